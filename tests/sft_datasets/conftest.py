"""Tiny tokenizers of the kinds that matter for masks, trained in a moment on a few lines."""

import pytest

TEXT = [
    "Below is an instruction that describes a task. Write a response that appropriately completes it.",
    "### Instruction:\nSay yes or no.\n\n### Response:\nYes",
    "### Response: Yes",
    "### Response:\n\nNo",
    "user assistant system human gpt The answer is yes. What is two plus two? Four, of course.",
    "한국어 문장도 하나 넣는다. 답은 네 입니다.",
] * 4

CHATML = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n"
    "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)

LLAMA2 = (
    "{{ bos_token }}{% for message in messages %}"
    "{% if message['role'] == 'system' %}{{ raise_exception('System role not supported') }}{% endif %}"
    "{% if message['role'] == 'user' %}[INST] {{ message['content'].strip() }} [/INST]"
    "{% else %} {{ message['content'].strip() }} {{ eos_token }}{% endif %}{% endfor %}"
)


def make_tokenizer(kind="bytes", chat_template="chatml", adds_bos=False, trim_offsets=False, text=TEXT):
    """A trained tokenizer: kind "bytes" (GPT-2, SmolLM2) or "metaspace" (Llama-2)."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
    from transformers import PreTrainedTokenizerFast

    special = ["<s>", "<|im_start|>", "<|im_end|>", "<unk>"]
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>" if kind == "metaspace" else None))
    if kind == "bytes":
        tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        tokenizer.decoder = decoders.ByteLevel()
        tokenizer.post_processor = processors.ByteLevel(trim_offsets=trim_offsets)
        alphabet = pre_tokenizers.ByteLevel.alphabet()
    else:
        tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first")
        tokenizer.decoder = decoders.Metaspace(prepend_scheme="first")
        alphabet = []
    trainer = trainers.BpeTrainer(
        vocab_size=600, special_tokens=special, initial_alphabet=alphabet, show_progress=False
    )
    tokenizer.train_from_iterator(text, trainer)
    if adds_bos:
        tokenizer.post_processor = processors.TemplateProcessing(
            single="<s> $A", special_tokens=[("<s>", tokenizer.token_to_id("<s>"))]
        )
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, bos_token="<s>", eos_token="<|im_end|>", pad_token="<|im_end|>"
    )
    fast.chat_template = {"chatml": CHATML, "llama2": LLAMA2}.get(chat_template, chat_template)
    return fast


@pytest.fixture(scope="session")
def tokenizer():
    """Byte-level, ChatML, pad == eos == <|im_end|>, as SmolLM2-Instruct ships."""
    return make_tokenizer()


@pytest.fixture(scope="session")
def make():
    """The factory, for tests that need another kind."""
    return make_tokenizer


@pytest.fixture(scope="session")
def supervised_text():
    """Decode what a row trains, piece by piece."""

    def decode(tokenized, tokenizer):
        pieces, piece = [], []
        for label in (*tokenized.labels, -100):
            if label != -100:
                piece.append(label)
            elif piece:
                pieces.append(tokenizer.decode(piece))
                piece = []
        return pieces

    return decode
