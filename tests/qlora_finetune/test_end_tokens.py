"""A base model: no chat template, and an end token that isn't the one that answers are taught to end in (open-r1#604)."""

import json

import pytest
from onegpu import models
from onegpu.models import tiny_model, tiny_tokenizer
from onegpu.qlora_finetune import finetune, merge_adapter, prepare_data
from onegpu.qlora_finetune.evaluation import generate
from transformers import AutoTokenizer, GenerationConfig

ROW = {"prompt": "2+2?", "completion": "Four"}
ENDOFTEXT, IM_END = 0, 2


@pytest.fixture(scope="module")
def base_folder(tmp_path_factory):
    """As Qwen2.5 base: the tokens of ChatML are there, documents end in <|endoftext|>, and nothing says how chats look."""
    folder = tmp_path_factory.mktemp("base")
    model, tokenizer = tiny_model(), tiny_tokenizer()
    tokenizer.chat_template, tokenizer.eos_token = None, "<|endoftext|>"
    model.config.eos_token_id = model.generation_config.eos_token_id = ENDOFTEXT
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


@pytest.fixture
def base_config(base_folder, tiny_config, tmp_path):
    path = tmp_path / "rows.jsonl"
    path.write_text(json.dumps(ROW) + "\n")

    def make(**changes):
        settings = {
            "model": str(base_folder),
            "data": str(path),
            "eval_data": str(path),
            "max_new_tokens": 12,
        }
        return tiny_config(**settings | changes)

    return make


def test_without_a_template_the_run_says_what_to_set(base_config):
    with pytest.raises(
        ValueError, match=r"has no chat template \(a base model has none\): set template to 'alpaca'"
    ):
        finetune(base_config())


def test_it_learns_to_stop_and_whoever_loads_it_stops_there_too(base_config, tmp_path):
    result = finetune(
        base_config(
            template="chatml", max_steps=80, learning_rate=2e-2, lora_r=16, lora_alpha=32, save_steps=80
        )
    )
    assert result.samples[0]["after"] == "Four"  # it ends, though the model's own end token was never seen
    adapter = tmp_path / "run" / "adapter"
    assert set(GenerationConfig.from_pretrained(adapter).eos_token_id) == {ENDOFTEXT, IM_END}
    merged = tmp_path / "merged"
    merge_adapter(adapter, merged)
    loaded = models.load(merged)
    assert set(loaded.model.generation_config.eos_token_id) == {ENDOFTEXT, IM_END}
    chat = [{"role": "user", "content": ROW["prompt"]}]
    assert generate(loaded.model, loaded.tokenizer, [chat], max_new_tokens=12) == ["Four"]
    prompt = loaded.tokenizer.apply_chat_template(
        chat, add_generation_prompt=True, return_tensors="pt", return_dict=True
    )
    plain = loaded.model.generate(
        **prompt, max_new_tokens=12, do_sample=False, pad_token_id=3
    )  # as anybody would
    assert plain[0, -1] == IM_END
    assert plain.shape[1] < prompt["input_ids"].shape[1] + 12


@pytest.mark.parametrize(("template", "end"), [("chatml", IM_END), ("alpaca", ENDOFTEXT)])
def test_the_last_supervised_id_stops_generation(base_config, base_folder, template, end):
    tokenizer = AutoTokenizer.from_pretrained(base_folder)
    prepared = prepare_data(base_config(template=template), tokenizer)
    assert prepared.train[0].labels[-1 if template == "alpaca" else -2] == end
    assert prepared.train.end_ids == (end,)


def test_a_template_whose_end_token_the_tokenizer_lacks_is_refused(base_config, tmp_path):
    """Ten ordinary tokens would never stop anything."""
    template = tmp_path / "own.jinja"
    template.write_text(
        "{% for m in messages %}{{ '[' + m.role + ']' + m.content + '<|my_end|>' }}{% endfor %}"
        "{% if add_generation_prompt %}{{ '[assistant]' }}{% endif %}"
    )
    with pytest.raises(ValueError, match="ends this answer in no special token that stops generation"):
        finetune(base_config(template=str(template)))


def test_a_template_file_of_ones_own_trains_and_is_saved(base_config, tmp_path):
    template = tmp_path / "own.jinja"
    template.write_text(
        "{% for m in messages %}{{ m.role + ': ' + m.content }}{% if m.role == 'assistant' %}{{ '<|im_end|>' }}{% endif %}"
        "{{ '\n' }}{% endfor %}{% if add_generation_prompt %}{{ 'assistant: ' }}{% endif %}"
    )
    finetune(base_config(template=str(template), max_steps=1))
    adapter = tmp_path / "run" / "adapter"
    assert AutoTokenizer.from_pretrained(adapter).chat_template == template.read_text()
    assert IM_END in GenerationConfig.from_pretrained(adapter).eos_token_id
