"""Answers and their scores."""

import json

import pytest
from chats import QUESTIONS
from onegpu.models import tiny_model, tiny_tokenizer
from onegpu.qlora_finetune import evaluation, generate, read_triage, score_triage

ROW = {"message": "Where is it?", "intent": "track_order", "urgency": "low", "reply": "On its way."}


def answer(**changes):
    return json.dumps({"intent": "track_order", "urgency": "low", "reply": "Tomorrow."} | changes)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("Sure! " + answer(), "text around it"),
        (answer()[:-1], "cut off"),
        (answer(intent="lost_parcel"), "a label that doesn't exist"),
        (answer(urgency="HIGH"), "another spelling"),
        (answer(reply=""), "an empty reply"),
        (answer(reply=3), "a reply that is no text"),
        (answer(extra="x"), "a field too many"),
        (f"[{answer()}]", "a list"),
        ("", "nothing"),
    ],
)
def test_an_answer_that_a_program_could_not_use_is_not_valid(text, why):
    assert read_triage(text) is None, why


def test_scores_count_unreadable_answers_as_wrong():
    scores = score_triage(
        [answer(), answer(intent="feedback"), "no idea", answer(urgency="high")], [ROW] * 4, 1.5
    )
    assert (scores.valid_json, scores.intent_accuracy, scores.urgency_accuracy, scores.rows) == (
        0.75,
        0.5,
        0.5,
        4,
    )


def test_scores_need_as_many_answers_as_rows():
    with pytest.raises(ValueError, match="1 answers to 2 rows"):
        score_triage([answer()], [ROW] * 2)


@pytest.fixture
def talkative():
    """An untied random model: a tied one repeats the last token of the prompt for ever."""
    return tiny_model(tied=False, seed=1), tiny_tokenizer()


def test_answers_in_a_batch_equal_answers_alone_and_keep_their_order(talkative):
    chats = [[{"role": "user", "content": q}] for q in QUESTIONS]
    together = generate(*talkative, chats, max_new_tokens=6, batch_size=4)
    alone = [generate(*talkative, [chat], max_new_tokens=6)[0] for chat in chats]
    assert together == alone
    assert len(set(alone)) > 1


def test_the_head_gets_contiguous_states_while_answering(talkative):
    model, tokenizer = talkative
    head, seen = model.get_output_embeddings(), []
    watch = head.register_forward_hook(lambda module, args, output: seen.append(args[0].is_contiguous()))
    hooks = len(head._forward_pre_hooks)
    generate(model, tokenizer, [[{"role": "user", "content": q}] for q in QUESTIONS], max_new_tokens=2)
    watch.remove()
    assert seen
    assert all(seen)
    assert len(head._forward_pre_hooks) == hooks


def test_an_error_leaves_the_model_as_it_was(talkative, monkeypatch):
    model, tokenizer = talkative
    model.train()
    monkeypatch.setattr(model, "generate", lambda **kwargs: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        generate(model, tokenizer, [[{"role": "user", "content": QUESTIONS[0]}]])
    assert model.training
    assert not model.get_output_embeddings()._forward_pre_hooks


def test_only_hopeless_answers_are_cut_short(talkative, monkeypatch):
    monkeypatch.setattr(evaluation, "GIVE_UP_AFTER", 2)
    chats = [[{"role": "user", "content": q}] for q in QUESTIONS]
    whole = generate(*talkative, chats, max_new_tokens=12)
    hopeless = whole[0][:1]
    cut = generate(
        *talkative, chats, max_new_tokens=12, is_hopeless=lambda text: text.strip().startswith(hopeless)
    )
    shorter = [len(short) < len(long) for long, short in zip(whole, cut, strict=True)]
    assert all(long.startswith(short) for long, short in zip(whole, cut, strict=True))
    assert shorter == [long.startswith(hopeless) for long in whole]
    assert not all(shorter)
