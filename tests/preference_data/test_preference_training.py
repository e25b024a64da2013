import pytest
import torch
from onegpu.models import tiny_model, tiny_tokenizer
from onegpu.preference_data import (
    PreferencePair,
    Ranking,
    answer_features,
    pair_logprobs,
    reward_accuracy,
    tokenize_pairs,
    train_reward_head,
)
from onegpu.sft_datasets import IGNORE, tokenize

PAD = 3


@pytest.fixture(scope="module")
def tokenizer():
    return tiny_tokenizer()


@pytest.fixture(scope="module")
def model():
    return tiny_model()


SHORT = PreferencePair("Is it so?", "Yes.", "No, not at all.")
PAIRS = [
    SHORT,
    PreferencePair("And this?", "Maybe so.", "Never."),
    PreferencePair("Why?", "Because.", "Go away!"),
]


def prompt_length(pair, tokenizer):
    return tokenize({"prompt": pair.prompt, "completion": pair.chosen}, tokenizer).prompt_length


# --- truncation


def test_a_prompt_that_fills_max_length_drops_the_pair_trl_6321(tokenizer):
    long = PreferencePair("word " * 40, "Yes.", "No.")
    room = prompt_length(long, tokenizer)
    done = tokenize_pairs([SHORT, long], tokenizer, room, truncation="right")
    assert (len(done), done.dropped) == (1, {"no_answer_left": (1,)})


def test_one_token_of_room_leaves_one_completion_token_each_trl_6320(tokenizer):
    room = prompt_length(SHORT, tokenizer)
    pair = tokenize_pairs([SHORT], tokenizer, room + 1, truncation="right")[0]
    assert (pair.chosen.supervised_tokens, pair.rejected.supervised_tokens) == (1, 1)


def test_a_long_answer_does_not_shorten_the_other_trl_6548(tokenizer):
    uneven = PreferencePair("Why?", "Because it is so. " * 20, "No.")
    whole = tokenize_pairs([uneven], tokenizer)[0]
    room = len(whole.rejected) + 2
    cut = tokenize_pairs([uneven], tokenizer, room, truncation="right")
    assert cut[0].rejected == whole.rejected
    assert len(cut[0].chosen) == room
    assert cut.truncated == (0,)
    with pytest.raises(ValueError, match="No pair is left of 1"):
        tokenize_pairs([uneven], tokenizer, room)  # drop is the default


def test_nothing_left_names_the_shortest_prompt_trl_2538(tokenizer):
    shortest = min(prompt_length(pair, tokenizer) for pair in PAIRS)
    with pytest.raises(ValueError, match=f"shortest prompt has {shortest} tokens"):
        tokenize_pairs(PAIRS, tokenizer, 5)


def test_none_in_a_pair_names_the_row_llama_factory_3555(tokenizer):
    with pytest.raises(ValueError, match="row 1, field 'rejected': found None"):
        tokenize_pairs([SHORT, {"prompt": "p", "chosen": "a", "rejected": None}], tokenizer)


def test_joint_ids_have_exactly_one_bos_trl_1401():
    from tokenizers import processors

    tokenizer = tiny_tokenizer()
    tokenizer.add_special_tokens({"bos_token": "<|endoftext|>"})
    tokenizer.backend_tokenizer.post_processor = processors.TemplateProcessing(
        single="<|endoftext|> $A", special_tokens=[("<|endoftext|>", 0)]
    )
    pair = tokenize_pairs([SHORT], tokenizer, template="chatml")[0]
    for side in (pair.chosen, pair.rejected):
        assert side.input_ids[0] == 0
        assert side.input_ids.count(0) == 1
        assert side.labels[0] == IGNORE


# --- log-probabilities of a model


def test_pair_logprobs_equal_each_sequence_alone_with_all_logits(model, tokenizer):
    pairs = tokenize_pairs(PAIRS, tokenizer).pairs
    with torch.no_grad():
        chosen, rejected = pair_logprobs(model, pairs, PAD)
        for pair, together in zip(pairs, zip(chosen, rejected, strict=True), strict=True):
            for side, value in zip((pair.chosen, pair.rejected), together, strict=True):
                scores = model(torch.tensor([side.input_ids])).logits[0].log_softmax(-1)
                alone = sum(scores[i - 1, t] for i, t in enumerate(side.labels) if t != IGNORE)
                assert value.item() == pytest.approx(alone.item(), rel=1e-5)


def test_pair_logprobs_do_not_depend_on_the_padding_token(model, tokenizer):
    pairs = tokenize_pairs(PAIRS, tokenizer).pairs
    with torch.no_grad():
        assert torch.allclose(pair_logprobs(model, pairs, PAD)[0], pair_logprobs(model, pairs, 77)[0])


# --- reward model


def test_features_do_not_depend_on_the_batch(model, tokenizer):
    rankings = [Ranking(p.prompt, (p.chosen, p.rejected), (1, 2)) for p in PAIRS]
    for pooling in ("mean", "last"):
        together = answer_features(model, tokenizer, rankings, pooling=pooling)
        alone = answer_features(model, tokenizer, rankings, pooling=pooling, batch_size=1)
        assert all(torch.allclose(a, b, atol=1e-5) for a, b in zip(together, alone, strict=True))


def test_last_feature_is_the_state_at_the_end_token(model, tokenizer):
    feature = answer_features(model, tokenizer, [Ranking("Why?", ("So.", "No."), (1, 2))])[0][0]
    done = tokenize({"prompt": "Why?", "completion": "So."}, tokenizer)
    with torch.no_grad():
        states = model.base_model(torch.tensor([done.input_ids])).last_hidden_state[0]
    assert done.labels[-2] == tokenizer.eos_token_id
    assert torch.allclose(feature, states[-2], atol=1e-5)


def test_fewer_layers_are_run_and_the_model_is_left_as_it_was(model, tokenizer):
    rankings = [Ranking("Why?", ("So.", "No."), (1, 2))]
    one = answer_features(model, tokenizer, rankings, layers=1)[0]
    all_layers = answer_features(model, tokenizer, rankings)[0]
    assert not torch.allclose(one, all_layers)
    assert torch.equal(all_layers, answer_features(model, tokenizer, rankings, layers=2)[0])
    assert model.config.num_hidden_layers == 2
    with pytest.raises(ValueError, match="layers=3: expected 1 to 2"):
        answer_features(model, tokenizer, rankings, layers=3)
    with pytest.raises(ValueError, match="pooling='max'"):
        answer_features(model, tokenizer, rankings, pooling="max")


def made_up(count, seed=0):
    """Rankings whose order is the first feature, with noise in the others."""
    generator = torch.Generator().manual_seed(seed)
    features = [torch.randn(3, 8, generator=generator) for _ in range(count)]
    rankings = []
    for group in features:
        order = (-group[:, 0]).argsort().tolist()
        rankings.append(Ranking("p", ("a", "b", "c"), tuple(order.index(i) + 1 for i in range(3))))
    return features, rankings


def test_a_reward_head_starts_at_ln_2_and_learns_an_order_that_holds_elsewhere():
    features, rankings = made_up(60)
    done = train_reward_head(features, rankings, made_up(30, seed=1), learning_rate=1e-2)
    assert done.train_loss[0] == pytest.approx(0.693147, abs=1e-6)
    assert done.held_out_loss[0] == pytest.approx(0.693147, abs=1e-6)
    assert done.train_loss[-1] < 0.4
    assert done.held_out_accuracy.value > 0.9
    assert done.held_out_accuracy == reward_accuracy(done.head, *made_up(30, seed=1))


def test_an_untrained_head_is_all_ties_and_none_of_them_right():
    features, rankings = made_up(5)
    head = train_reward_head(features, rankings, epochs=0).head
    accuracy = reward_accuracy(head, features, rankings)
    assert (accuracy.right, accuracy.ties, accuracy.value) == (0, 15, 0.0)


def test_reward_training_repeats_exactly():
    features, rankings = made_up(10)
    runs = [train_reward_head(features, rankings, epochs=3).train_loss for _ in range(2)]
    assert runs[0] == runs[1]


def test_features_and_rankings_must_match():
    features, rankings = made_up(3)
    with pytest.raises(ValueError, match="found 2 features and 3 rankings"):
        train_reward_head(features[:2], rankings)
