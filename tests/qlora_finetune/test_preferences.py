"""DPO with the trainer of a fine-tune: loss and gradients against TRL's own trainer, whole runs, resume, bad rows."""

import json

import pytest
import torch
from chats import chat
from onegpu import models
from onegpu.models import tiny_tokenizer
from onegpu.preference_data import dpo_loss, pair_logprobs, sides_of, tokenize_pair_set, tokenize_pairs
from onegpu.qlora_finetune import FinetuneConfig, attach_adapters, finetune, preferences, prepare_data
from onegpu.qlora_finetune import run as run_module
from onegpu.qlora_finetune.memory import memory_setup
from onegpu.qlora_finetune.preferences import PairRows, PreferenceTrainer, collate_pairs
from onegpu.qlora_finetune.trainer import training_arguments
from safetensors.torch import load_file

PROMPTS = ("Where is my parcel?", "Why is the sky blue?", "2 + 2?", "Write a line about tea.")
PAIRS = [
    {
        "prompt": f"{PROMPTS[i % 4]} ({i // 4})",
        "chosen": "It is here." + " Look." * (i % 3),
        "rejected": "No idea" + " at all" * (i % 4),
    }
    for i in range(24)
]
BETA = 0.3


@pytest.fixture(scope="module")
def pairs_file(tmp_path_factory):
    path = tmp_path_factory.mktemp("pairs") / "pairs.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in PAIRS), encoding="utf-8")
    return path


@pytest.fixture
def dpo_config(tiny_config, pairs_file):
    """A config for a DPO run of six steps on three pairs or so each."""

    def make(**changes):
        return tiny_config(**{"method": "dpo", "data": str(pairs_file), "max_length": 256} | changes)

    return make


def losses(result):
    return [loss for _, loss in result.losses]


def trainer_of(model, config, rows, folder, **options):
    """Our trainer on a model with adapters."""
    args = training_arguments(config, "fp32", str(folder), False)
    trainer = PreferenceTrainer(model=model, args=args, train_dataset=rows, beta=BETA, **options)
    trainer.layout = run_module.use_row_layout(model, rows.most_examples(), packing=config.packing).layout
    return trainer


def move(model, seed):
    """Give all B of the adapters values other than 0, so that every gradient is at work."""
    generator = torch.Generator().manual_seed(seed)
    for name, parameter in model.named_parameters():
        if "lora_B.default" in name:
            parameter.data = torch.randn(parameter.shape, generator=generator) * 0.1


def trl_trainer(model, pairs, folder, **options):
    """TRL's DPOTrainer on these very ids: all but its tokenizing is its own code."""
    trl = pytest.importorskip("trl", reason="install the extra `bench` for TRL")
    from datasets import Dataset
    from trl.trainer import dpo_trainer

    rows = []
    for pair in pairs:
        chosen, rejected = sides_of(pair)
        cut = pair.prompt_length
        rows.append(
            {
                "prompt_ids": chosen["input_ids"][:cut],
                "chosen_ids": chosen["input_ids"][cut:],
                "rejected_ids": rejected["input_ids"][cut:],
            }
        )
    args = trl.DPOConfig(
        output_dir=str(folder), beta=BETA, report_to="none", use_cpu=True, bf16=False, gradient_checkpointing=False,
        per_device_train_batch_size=len(rows), disable_tqdm=True,
    )  # fmt: skip
    as_it_is = pytest.MonkeyPatch()
    as_it_is.setattr(dpo_trainer.DPOTrainer, "_prepare_dataset", lambda self, dataset, *args: dataset)
    try:
        trainer = dpo_trainer.DPOTrainer(
            model,
            args=args,
            train_dataset=Dataset.from_list(rows),
            processing_class=tiny_tokenizer(),
            **options,
        )
    finally:
        as_it_is.undo()
    return trainer, trainer.data_collator(rows)


def loss_and_gradients(trainer, batch):
    trainer.model.train()
    trainer.model.zero_grad()
    loss = trainer.compute_loss(trainer.model, batch)
    loss.backward()
    return loss.item(), {n: p.grad.clone() for n, p in trainer.model.named_parameters() if p.grad is not None}


@pytest.mark.parametrize("packing", [True, False])
@pytest.mark.parametrize("new_adapters", [True, False])
def test_loss_gradients_and_figures_are_those_of_trls_trainer(tiny_folder, tmp_path, packing, new_adapters):
    """The reference is the base; or the adapter that is trained on, of which TRL keeps a copy."""
    from peft import LoraConfig, get_peft_model

    pairs = tokenize_pair_set(PAIRS[:5], tiny_tokenizer())
    rows = PairRows(pairs, [[0, 1, 2], [3, 4]])
    config = FinetuneConfig(method="dpo", packing=packing)
    lora = LoraConfig(r=4, lora_alpha=8, target_modules="all-linear", task_type="CAUSAL_LM")
    model = models.load(
        tiny_folder, quantization=None
    ).model  # TRL turns the adapters of a quantized base to bf16
    if new_adapters:
        trls, batch = trl_trainer(model, pairs, tmp_path / "trl", peft_config=lora)
    else:
        model = get_peft_model(model, lora)
        move(model, 1)
        trls, batch = trl_trainer(model, pairs, tmp_path / "trl")
    ours = trainer_of(trls.model, config, rows, tmp_path, new_adapters=new_adapters)
    move(trls.model, 2)
    loss, gradients = loss_and_gradients(ours, ours.collate([rows[0], rows[1]]))
    trls.model.base_model.model.set_attn_implementation("sdpa")
    their_loss, their_gradients = loss_and_gradients(trls, batch)

    assert loss == pytest.approx(their_loss, rel=1e-5)
    assert abs(loss - 0.6931) > 1e-3
    assert gradients.keys() == their_gradients.keys()
    for name, gradient in their_gradients.items():
        torch.testing.assert_close(gradients[name], gradient, rtol=1e-4, atol=1e-6)
    ours.log({"loss": loss})
    logged = ours.state.log_history[-1]
    assert logged["pairs"] == 5
    for name in ("chosen", "rejected", "margins", "accuracies"):
        name = f"rewards/{name}"
        assert logged[name] == pytest.approx(trls._metrics["train"][name][-1], rel=1e-4, abs=1e-6), name


def test_loss_is_that_of_the_written_out_dpo_on_padded_pairs(tiny_nf4, tmp_path):
    tokenizer = tiny_tokenizer()
    model = attach_adapters(
        tiny_nf4.model, FinetuneConfig(lora_r=4, lora_alpha=8, gradient_checkpointing=False)
    )
    move(model, 1)
    padded = tokenize_pairs(PAIRS[:5], tokenizer).pairs
    with torch.no_grad():
        policy = pair_logprobs(model, padded, tokenizer.pad_token_id)
        with model.disable_adapter():
            reference = pair_logprobs(model, padded, tokenizer.pad_token_id)
    done = dpo_loss(*policy, *reference, beta=BETA)
    rows = PairRows(tokenize_pair_set(PAIRS[:5], tokenizer), [[0, 1, 2, 3, 4]])
    losses, figures = trainer_of(model, FinetuneConfig(method="dpo"), rows, tmp_path).pair_figures(
        collate_pairs([rows[0]])
    )
    torch.testing.assert_close(losses.detach(), done.losses, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(figures[:, 1], done.chosen_rewards, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(figures[:, 4], policy[1], rtol=1e-5, atol=1e-5)


def test_the_prompt_of_a_pair_stands_in_the_row_once():
    pairs = tokenize_pair_set(PAIRS[:5], tiny_tokenizer())
    rows = PairRows(pairs, [[0, 1, 2, 3, 4]])
    once, twice = (collate_pairs([rows[0]], shared=shared) for shared in (True, False))
    prompts = [pair.prompt_length for pair in pairs]
    assert once["input_ids"].numel() == twice["input_ids"].numel() - sum(prompts) + 5 == pairs.tokens
    assert (once["labels"] != -100).sum() == (twice["labels"] != -100).sum() == pairs.supervised_tokens
    assert once["prefix_lens"] == tuple(n for prompt in prompts for n in (0, prompt - 1))
    at = once["seq_lens"][0]
    assert once["position_ids"][0, at] == prompts[0] - 1


def test_sides_that_begin_alike_by_chance_are_put_together_again():
    """Answers whose first tokens are one with the prompt's end would be cut elsewhere."""
    rows = [{"prompt": "2+2?", "chosen": "four", "rejected": "fourteen"}]
    tokenizer = tiny_tokenizer()
    (pair,) = tokenize_pair_set(rows, tokenizer).examples
    padded = tokenize_pairs(rows, tokenizer)[0]
    for side, whole in zip(sides_of(pair), (padded.chosen, padded.rejected), strict=True):
        assert side["input_ids"] == list(whole.input_ids[: len(side["input_ids"])])
        assert side["labels"] == list(whole.labels[: len(side["labels"])])
        assert sum(label != -100 for label in side["labels"]) == whole.supervised_tokens


def test_where_a_shared_prompt_would_change_numbers_it_stands_before_each_side(
    tiny_nf4, tmp_path, monkeypatch
):
    model = attach_adapters(tiny_nf4.model, FinetuneConfig(lora_r=4, gradient_checkpointing=False))
    rows = PairRows(tokenize_pair_set(PAIRS[:5], tiny_tokenizer()), [[0, 1, 2, 3, 4]])
    trainer = trainer_of(model, FinetuneConfig(method="dpo"), rows, tmp_path)
    assert trainer.check_shared_prompts(1e-4).startswith("each pair's prompt once")
    assert "prefix_lens" in trainer.collate([rows[0]])
    unshared = preferences.collate_pairs

    def forgetful(items, shared=True):
        return {k: v for k, v in unshared(items, shared).items() if k != "prefix_lens"}

    monkeypatch.setattr(preferences, "collate_pairs", forgetful)
    assert trainer.check_shared_prompts(1e-4).startswith("a prompt before each side")
    monkeypatch.undo()
    assert trainer.collate([rows[0]])["seq_lens"] == unshared([rows[0]], shared=False)["seq_lens"]


def test_a_pair_is_both_sides_up_to_their_end_tokens_with_the_answers_supervised():
    tokenizer = tiny_tokenizer()
    (pair,) = tokenize_pair_set(PAIRS[:1], tokenizer, template="chatml").examples
    for side, text in zip(sides_of(pair), (PAIRS[0]["chosen"], PAIRS[0]["rejected"]), strict=True):
        assert tokenizer.decode([i for i in side["labels"] if i != -100]) == f"{text}<|im_end|>"
        assert side["labels"][-1] == side["input_ids"][-1]
        assert PAIRS[0]["prompt"] in tokenizer.decode(side["input_ids"])


@pytest.mark.parametrize("precision", ["fp32", "bf16", "fp16"])
def test_a_run_learns_to_prefer_and_reports_it(dpo_config, tmp_path, precision):
    config = dpo_config(max_steps=12, eval_share=0.2, eval_steps=6, precision=precision)
    result = finetune(config)
    assert losses(result)[0] == pytest.approx(0.693147, abs=1e-5)  # ln 2: policy and reference are one
    assert losses(result)[-1] < 0.5
    assert (result.before.margin, result.before.margins_above_0) == (0.0, 0)
    assert result.before.loss == pytest.approx(0.693147, abs=1e-5)
    assert result.after.loss < result.before.loss
    assert result.after.pairs == result.held_out_rows == 4
    assert result.trained.pairs == 20
    assert result.trained.margins_above_0 == 20
    assert result.trained.margin > 0.5
    assert result.margins[0] == (1, 0.0)
    text = str(result)
    assert [line.split() for line in text.splitlines() if line.startswith("margin above 0")] == [
        ["margin", "above", "0", "0", "of", "4", str(result.after.margins_above_0), "of", "4"],
        ["margin", "above", "0", "20", "of", "20"],
    ]
    assert set(result.samples[0]) == {"question", "before", "after", "wanted", "rejected"}
    log = [json.loads(line) for line in (tmp_path / "run" / "log.jsonl").read_text().splitlines()]
    steps = [line for line in log if "rewards/margins" in line]
    assert [line["rewards/margins"] for line in steps] == [margin for _, margin in result.margins]
    assert all(0 <= line["rewards/accuracies"] <= 1 and line["pairs"] >= 1 for line in steps)
    assert {line["step"] for line in log if "eval_rewards/margins" in line} >= {6, 12}
    card = (tmp_path / "run" / "adapter" / "README.md").read_text()
    assert "- dpo\n" in card
    assert "| beta | 0.1 |" in card
    assert "of 4 |" in card


@pytest.mark.parametrize("packing", [True, False])
def test_accumulation_equals_one_big_batch(dpo_config, tmp_path, packing):
    """Rows of unequal numbers of pairs: a mean of means, as TRL takes it, would differ."""
    common = {"max_steps": 2, "packing": packing, "max_length": 300, "seed": 3}
    big = finetune(dpo_config(**common, per_device_train_batch_size=4, output_dir=str(tmp_path / "a")))
    small = finetune(dpo_config(**common, gradient_accumulation_steps=4, output_dir=str(tmp_path / "b")))
    assert losses(small) == pytest.approx(losses(big), rel=1e-4)
    left, right = (load_file(tmp_path / name / "adapter" / "adapter_model.safetensors") for name in "ab")
    for name, weight in left.items():
        torch.testing.assert_close(weight, right[name], rtol=1e-2, atol=1e-4)


def test_resume_gives_the_losses_of_a_run_without_a_break(dpo_config, tmp_path, monkeypatch):
    """Two rows at a time, in another order in each epoch: the reference's figures come from the checkpoint."""
    settings = {"max_steps": 12, "per_device_train_batch_size": 2, "save_steps": 100, "eval_share": 0.2}
    whole = finetune(dpo_config(**settings, output_dir=str(tmp_path / "whole")))

    class Stop(run_module.StopOnNan):
        def on_step_begin(self, args, state, control, **kwargs):
            if state.global_step == 7:
                run_module.signal.raise_signal(run_module.signal.SIGINT)

    monkeypatch.setattr(run_module, "StopOnNan", Stop)
    with pytest.raises(run_module.Interrupted, match="stopped at step 8 of 12"):
        finetune(dpo_config(**settings))
    monkeypatch.undo()
    assert len(torch.load(tmp_path / "run" / "checkpoint-8" / "reference.pt")) == 24  # held-out ones too
    monkeypatch.setattr(PreferenceTrainer, "_as_at_the_start", lambda self: pytest.fail("asked again"))
    resumed = finetune(dpo_config(**settings), resume=True)
    assert losses(resumed) == losses(whole)
    assert resumed.margins == whole.margins
    assert resumed.after == whole.after


def test_the_reference_is_asked_once_for_each_pair(dpo_config, monkeypatch):
    asked = []
    at_the_start = PreferenceTrainer._as_at_the_start
    monkeypatch.setattr(
        PreferenceTrainer, "_as_at_the_start", lambda self: (asked.append(1), at_the_start(self))[1]
    )
    rows = len(prepare_data(dpo_config(), tiny_tokenizer()).train_rows)
    finetune(dpo_config(max_steps=3 * rows))
    assert len(asked) == rows


def test_rankings_give_all_their_pairs_and_the_shipped_ones_are_the_default():
    config = FinetuneConfig(method="dpo", max_length=1024)
    assert (config.data, config.beta) == ("rankings", 0.1)
    assert (config.num_train_epochs, config.learning_rate) == (1.0, 2e-4)
    prepared = prepare_data(config, tiny_tokenizer())
    assert len(prepared.train) + len(prepared.held_out) == 440
    assert len(prepared.held_out) == 108
    assert prepared.train.unit == "pairs"
    assert "440" not in str(prepared.train)
    assert {"prompt", "chosen", "rejected"} <= set(prepared.raw_held_out[0])
    prompts = [pair["prompt"] for pair in prepared.raw_held_out]
    assert len(set(prompts)) == len(set(prompts[:35])) == 35  # one pair of each is asked before a second


def test_pairs_that_are_too_long_are_counted_and_the_length_that_would_do_is_named(dpo_config, tmp_path):
    long = PAIRS[1] | {"chosen": "long " * 200}
    path = tmp_path / "long.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in (PAIRS[0], long, PAIRS[2])))
    result = finetune(dpo_config(data=str(path), max_steps=1))
    assert result.dropped_rows == {"too_long": 1}
    with pytest.raises(
        ValueError, match=r"leaves no pair of 3: .* smallest max_length that keeps one is (\d+)"
    ) as found:
        prepare_data(dpo_config(data=str(path), max_length=20), tiny_tokenizer())
    smallest = int(str(found.value).split("keeps one is ")[1].split()[0])
    assert len(prepare_data(dpo_config(data=str(path), max_length=smallest), tiny_tokenizer()).train) == 1
    cut = prepare_data(dpo_config(data=str(path), truncation="right", max_length=160), tiny_tokenizer()).train
    assert (len(cut), len(cut.truncated)) == (3, 1)


BAD = [
    (
        PAIRS[1] | {"rejected": PAIRS[1]["chosen"] + " "},
        "row 1, field 'rejected': found .* an answer other than",
    ),
    (PAIRS[1] | {"chosen": " "}, "row 1, field 'chosen': found ' ', expected an answer"),
    (PAIRS[1] | {"rejected": None}, "row 1, field 'rejected': found None, expected text"),
    (PAIRS[1] | {"prompt": None}, "row 1, field 'prompt': found None, expected text"),
    (PAIRS[1] | {"chosen": "a<|im_end|>b"}, "row 1, .*special tokens"),
    (
        {"prompt": "x", "answers": ["a", "b"], "ranks": [1, 1]},
        "row 1: field 'ranks': found a tie of all answers",
    ),
    (chat(1), r"row 1: found messages, expected prompt, chosen and rejected.* for method='sft'"),
]


@pytest.mark.parametrize(("bad", "message"), BAD)
def test_a_bad_row_is_named_with_its_file_or_skipped_and_counted(dpo_config, tmp_path, bad, message):
    path = tmp_path / "mixed.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in (PAIRS[0], bad, PAIRS[2])))
    with pytest.raises(ValueError, match=f"mixed.jsonl.*{message}") as found:
        prepare_data(dpo_config(data=str(path)), tiny_tokenizer())
    assert "\n" not in str(found.value)
    train = prepare_data(dpo_config(data=str(path), bad_rows="skip"), tiny_tokenizer()).train
    assert len(train) == 2
    assert [number for number, _ in train.bad_rows] == [1]


@pytest.mark.parametrize("row", [PAIRS[0], {"prompt": "x", "answers": ["a", "b"], "ranks": [1, 2]}])
def test_preferences_given_to_sft_are_told_where_they_belong(tiny_config, tmp_path, row):
    path = tmp_path / "pairs.jsonl"
    path.write_text(json.dumps(row) + "\n")
    with pytest.raises(ValueError, match=r"pairs.jsonl, row 0: found a row of preferences.*--method dpo"):
        prepare_data(tiny_config(data=str(path)), tiny_tokenizer())


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"method": "ppo"}, "method is 'ppo', expected one of"),
        ({"beta": 0.1}, "method 'sft' has none"),
        ({"method": "dpo", "beta": 0}, "beta is 0, expected above 0"),
        ({"method": "dpo", "truncation": "turns"}, "truncation is 'turns', expected 'drop' or 'right'"),
        ({"method": "dpo", "lora_dropout": 0.1}, "lora_dropout is 0.1, expected 0"),
        ({"method": "dpo", "repairs": "strip"}, "repairs is for chats"),
        ({"method": "dpo", "turns": "last"}, "turns is for chats"),
    ],
)
def test_settings_that_dpo_has_not_are_refused(changes, message):
    with pytest.raises(ValueError, match=message):
        FinetuneConfig(**changes)


def test_the_default_learning_rate_is_a_fortieth_of_that_for_chats_and_says_so():
    config, why = FinetuneConfig(method="dpo", data="pairs.jsonl").filled(rows=100, parameters=8_000_000_000)
    assert config.learning_rate == pytest.approx(5e-6)
    assert "a 40th of a fine-tune's on chats" in why[0]
    assert config.num_train_epochs == 3
    assert why[1] == "num_train_epochs=3, for 100 pairs"


def test_memory_is_predicted_for_the_task_of_the_method():
    assert memory_setup(FinetuneConfig(method="dpo"), "T4").task == "dpo"
    assert memory_setup(FinetuneConfig(), "T4").task == "sft"
