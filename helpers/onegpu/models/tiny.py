"""A random Llama and a byte-level tokenizer, made in code, for tests that need no download."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from transformers import LlamaForCausalLM, PreTrainedTokenizerFast

TINY_VOCAB_SIZE = 384

_SENTENCES = (
    "The parcel has not arrived, and nobody answers the phone.",
    "I was charged twice for the same order. Please send the money back.",
    "How do I reset my password? The link in the mail does not work.",
    '{"intent": "refund", "urgency": "high", "reply": "We are sorry. The money is on its way."}',
    "A model reads tokens, not words; a token may be a word, a part of one, or a single byte.",
    "주문한 상품이 아직 오지 않았어요. 확인해 주세요.",
    "비밀번호를 바꾸고 싶습니다.",
    "def add(a, b):\n    return a + b\n",
)
_TEMPLATE = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)


def tiny_model(
    *,
    vocab_size: int = TINY_VOCAB_SIZE,
    hidden_size: int = 64,
    layers: int = 2,
    heads: int = 2,
    kv_heads: int = 1,
    intermediate_size: int | None = None,
    tied: bool = True,
    max_position_embeddings: int = 512,
    seed: int = 0,
) -> LlamaForCausalLM:
    """Build a random fp32 Llama, the same weights for the same seed, leaving torch's generator as it was.

    Raises
    ------
    ValueError
        If ``hidden_size`` or ``intermediate_size`` isn't a multiple of 64: bitsandbytes 0.50 dequantizes such 4-bit
        rows wrongly on CPUs with AVX-512, without an error.

    Examples
    --------
    >>> model = tiny_model()
    >>> model.config.hidden_size, sum(p.numel() for p in model.parameters())
    (64, 98624)
    """
    intermediate_size = 2 * hidden_size if intermediate_size is None else intermediate_size
    for what, size in (("hidden_size", hidden_size), ("intermediate_size", intermediate_size)):
        if size <= 0 or size % 64:
            raise ValueError(
                f"{what} is {size}, expected a multiple of 64: bitsandbytes quantizes in blocks of 64, and its "
                f"AVX-512 code dequantizes shorter rows wrongly"
            )
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=vocab_size,
        hidden_size=hidden_size,
        intermediate_size=intermediate_size,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=kv_heads,
        max_position_embeddings=max_position_embeddings,
        tie_word_embeddings=tied,
        bos_token_id=1,
        eos_token_id=2,
        pad_token_id=3,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return LlamaForCausalLM(config).eval()


def tiny_tokenizer(*, pad_token: str = "<|pad|>") -> PreTrainedTokenizerFast:
    """Train a byte-level BPE tokenizer of 384 tokens on a few sentences, with a ChatML template.

    It splits digits, keeps leading spaces on words and reports character offsets, as SmolLM2's does. It adds no
    special tokens by itself. Ids: ``<|endoftext|>`` 0, ``<|im_start|>`` 1 (bos), ``<|im_end|>`` 2 (eos),
    ``<|pad|>`` 3. SmolLM2 pads with its end token; give ``pad_token="<|im_end|>"`` to test for that.

    Examples
    --------
    >>> tokenizer = tiny_tokenizer()
    >>> ids = tokenizer("The parcel costs 12.").input_ids
    >>> tokenizer.decode(ids), len(tokenizer)
    ('The parcel costs 12.', 384)
    """
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    backend = Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    backend.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=TINY_VOCAB_SIZE,
        special_tokens=["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|pad|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    backend.train_from_iterator(_SENTENCES, trainer)
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=backend,
        bos_token="<|im_start|>",
        eos_token="<|im_end|>",
        unk_token="<|endoftext|>",
        pad_token=pad_token,
        model_max_length=512,
        clean_up_tokenization_spaces=False,
    )
    tokenizer.chat_template = _TEMPLATE
    return tokenizer
