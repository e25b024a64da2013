import json
from collections import Counter
from math import comb

import pytest
from hypothesis import given
from hypothesis import strategies as st
from onegpu.preference_data import (
    PairError,
    PreferencePair,
    Ranking,
    check_votes,
    length_bias,
    load_rankings,
    pairs_of,
    parse_order,
    position_bias,
    read_pairs,
    same_text,
    split_rankings,
    to_pair,
    to_pairs,
    to_ranking,
    validate_pairs,
)
from onegpu.sft_datasets import deduplicate


@pytest.mark.parametrize(
    ("order", "pairs"),
    [
        ("A>B>C", ["AB", "AC", "BC"]),
        ("A>B=C", ["AB", "AC"]),
        ("A=B=C", []),
        ("A=B>C=D", ["AC", "AD", "BC", "BD"]),
    ],
)
def test_a_tie_never_becomes_a_pair_chatglm_efficient_tuning_152(order, pairs):
    row = {"prompt": "p", "answers": list("ABCD")[: len(order) // 2 + 1], "order": order}
    assert [pair.chosen + pair.rejected for pair in to_pairs([to_ranking(row)])] == pairs


@pytest.mark.parametrize(("k", "count"), list(enumerate([1, 3, 6, 10, 15, 21, 28, 36], start=2)))
def test_k_answers_make_k_choose_2_pairs_instruct_gpt(k, count):
    assert len(pairs_of(range(k))) == comb(k, 2) == count


def test_pairs_remember_their_prompt():
    rankings = [Ranking("a", ("x", "y", "z"), (3, 1, 2)), Ranking("b", ("x", "y"), (1, 2))]
    pairs = to_pairs(rankings)
    assert Counter(pair.group for pair in pairs) == {0: 3, 1: 1}
    assert {(pair.chosen, pair.rejected) for pair in pairs if pair.group == 0} == {
        ("y", "z"),
        ("y", "x"),
        ("z", "x"),
    }


@given(st.lists(st.integers(1, 4), min_size=2, max_size=7))
def test_pairs_are_exactly_the_unequal_ranks(ranks):
    pairs = pairs_of(ranks)
    every = {(i, j) for i in range(len(ranks)) for j in range(len(ranks)) if ranks[i] < ranks[j]}
    assert set(pairs) == every
    assert len(pairs) == len(every)


@pytest.mark.parametrize(
    ("order", "message"), [("A>>B", "nothing between"), ("A>B>A", "'A' twice"), ("", "nothing between")]
)
def test_broken_orders_are_named(order, message):
    with pytest.raises(ValueError, match=message):
        parse_order(order)


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"prompt": None}, "prompt"),
        ({"answers": ["a"]}, "answers"),
        ({"answers": ["a", None, "c"]}, r"answers\[1\]"),
        ({"answers": ["a", " ", "c"]}, r"answers\[1\]"),
        ({"ranks": [1, 2]}, "ranks"),
        ({"ranks": [0, 1, 2]}, "ranks"),
        ({"ranks": None}, "ranks"),
        ({"order": "A>B"}, "order"),
    ],
)
def test_broken_rankings_name_row_and_field(change, field):
    row = {"prompt": "p", "answers": ["a", "b", "c"], "ranks": [1, 2, 3], **change}
    with pytest.raises(ValueError, match=f"row 7, field '{field}': found .*, expected"):
        to_ranking(row, 7)


def test_ranking_with_too_few_ranks_is_refused():
    with pytest.raises(ValueError, match="2 answers and 1 ranks"):
        Ranking("p", ("a", "b"), (1,))


# --- votes


def test_votes_that_agree_are_fine_and_repeats_are_counted():
    done = check_votes([("A", "B"), ("B", "C"), ("A", "C"), ("A", "B")])
    assert done.ok
    assert done.repeated == (("A", "B", 2),)


def test_a_pair_voted_both_ways_is_a_contradiction_and_no_cycle():
    done = check_votes([("A", "B"), ("A", "B"), ("B", "A")])
    assert (done.contradictions, done.cycles, done.ok) == ((("A", "B", 2, 1),), (), False)


def test_a_cycle_is_named_in_order():
    done = check_votes([("A", "B"), ("B", "C"), ("C", "A"), ("A", "D")])
    assert (done.cycles, done.ok) == ((("A", "B", "C"),), False)
    assert "A > B > C > A goes round in a circle" in str(done)


def test_two_separate_cycles_are_both_found():
    votes = [("A", "B"), ("B", "C"), ("C", "A"), ("X", "Y"), ("Y", "Z"), ("Z", "W"), ("W", "X"), ("A", "X")]
    assert check_votes(votes).cycles == (("A", "B", "C"), ("W", "X", "Y", "Z"))


def test_a_vote_for_itself_is_refused():
    with pytest.raises(ValueError, match="'A' over itself"):
        check_votes([("A", "A")])


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5)).filter(lambda v: v[0] != v[1]), max_size=12))
def test_votes_are_ok_exactly_when_some_ranking_holds_them_all(votes):
    import graphlib

    graph = {}
    for winner, loser in votes:
        graph.setdefault(str(loser), set()).add(str(winner))
    try:
        list(graphlib.TopologicalSorter(graph).static_order())
        possible = True
    except graphlib.CycleError:
        possible = False
    assert check_votes([(str(a), str(b)) for a, b in votes]).ok == possible


# --- pairs


USER = {"role": "user", "content": "2+2?"}


@pytest.mark.parametrize(
    ("row", "code"),
    [
        ({"prompt": "p", "chosen": "a", "rejected": "a"}, "identical_pair"),
        ({"prompt": "p", "chosen": "a b", "rejected": " a  b\n"}, "identical_pair"),
        ({"prompt": "p", "chosen": None, "rejected": "a"}, "not_text"),  # LLaMA-Factory#3555
        ({"prompt": "p", "chosen": "a", "rejected": "  "}, "empty_side"),
        ({"prompt": "", "chosen": "a", "rejected": "b"}, "empty_prompt"),
        ({"chosen": "a", "rejected": "b"}, "empty_prompt"),
        (
            {
                "chosen": [USER, {"role": "assistant", "content": "4"}],
                "rejected": [{"role": "user", "content": "2+3?"}, {"role": "assistant", "content": "5"}],
            },
            "prompt_differs",
        ),
        ({"prompt": "p", "chosen": [USER], "rejected": "b"}, "no_answer"),
        ({"prompt": "p", "chosen": [], "rejected": "b"}, "no_answer"),
    ],
)
def test_each_kind_of_bad_pair_has_its_code(row, code):
    with pytest.raises(PairError) as caught:
        to_pair(row, 3)
    problem = caught.value.problem
    assert problem.code == code
    assert all((problem.field, problem.found, problem.expected, problem.fix))
    assert str(caught.value) == (
        f"row 3, field {problem.field!r}: found {problem.found}, expected {problem.expected}. {problem.fix}"
    )
    report = validate_pairs([row])
    assert (report.ok, report.counts) == (False, {code: 1})


def test_longer_chats_are_refused_and_not_cut():
    turns = [USER, {"role": "assistant", "content": "4"}, {"role": "user", "content": "Sure?"}]
    row = {
        "chosen": [*turns, {"role": "assistant", "content": "Yes"}],
        "rejected": [*turns, {"role": "assistant", "content": "No"}],
    }
    with pytest.raises(PairError, match="3 turns before the answer"):
        to_pair(row)
    assert validate_pairs([row]).counts == {"not_one_question": 1}


def test_same_pair_again_and_the_other_way_round_are_reported():
    pair = {"prompt": "p", "chosen": "a", "rejected": "b"}
    other = {"prompt": "p", "chosen": "b", "rejected": "a"}
    report = validate_pairs([pair, pair, other])
    assert report.counts == {"repeated": 1, "contradicts": 1}
    assert str(report.problems[1]).startswith("row 2, field 'chosen': found the pair of row 0, expected one ")
    with pytest.raises(PairError, match="row 1"):
        validate_pairs([pair, pair], strict=True)


def test_ultrafeedback_falls_back_to_the_shipped_rankings_in_its_own_columns(monkeypatch):
    import datasets

    monkeypatch.setattr(datasets, "load_dataset", lambda *args, **kwargs: 1 / 0)
    pairs = read_pairs("HuggingFaceH4/ultrafeedback_binarized", split="train_prefs", limit=5)
    expected = to_pairs(load_rankings())[:5]
    assert [(p.prompt, p.chosen, p.rejected) for p in pairs] == [
        (p.prompt, p.chosen, p.rejected) for p in expected
    ]


def test_length_bias_by_hand():
    pairs = [
        PreferencePair("p", "aaaa", "b"),
        PreferencePair("p", "aa", "b"),
        PreferencePair("p", "a", "bbb"),
    ]
    bias = length_bias(pairs)
    assert bias.longer_wins == pytest.approx(2 / 3)
    assert bias.mean_difference == pytest.approx((3 + 1 - 2) / 3)
    assert bias.correlation == pytest.approx(1 / 3)
    assert length_bias([PreferencePair("p", "aaa", "b")] * 5).correlation == 1
    assert length_bias([]).longer_wins == 0.5


def test_position_bias_by_hand():
    bias = position_bias([Ranking("p", ("x", "y", "z"), (1, 2, 2)), Ranking("p", ("x", "y", "z"), (1, 2, 3))])
    assert (bias.pairs, bias.earlier_wins) == (5, 1.0)
    assert bias.mean_rank == (1.0, 2.0, 2.5)


# --- the shipped rankings


@pytest.fixture(scope="module")
def shipped():
    return load_rankings()


def test_shipped_rankings_are_many_and_each_has_three_answers_and_a_reason(shipped):
    assert len(shipped) >= 120
    assert all(len(ranking.answers) >= 3 and ranking.reason and ranking.topic for ranking in shipped)
    assert all(len(pairs_of(ranking.ranks)) >= 2 for ranking in shipped)


def test_shipped_ranks_are_places(shipped):
    for ranking in shipped:
        ranks = sorted(ranking.ranks)
        assert all(rank == 1 + sum(other < rank for other in ranks) for rank in ranks), ranking.prompt


def test_shipped_pairs_are_valid_and_no_answer_stands_twice(shipped):
    assert validate_pairs(to_pairs(shipped)).ok
    for ranking in shipped:
        for i, answer in enumerate(ranking.answers):
            assert not any(same_text(answer, other) for other in ranking.answers[:i])


def test_shipped_prompts_are_not_duplicates(shipped):
    rows = [{"prompt": ranking.prompt, "completion": ranking.answers[0]} for ranking in shipped]
    assert not deduplicate(rows, threshold=0.6)[1].pairs


def test_longer_shipped_answers_are_not_better(shipped):
    bias = length_bias(to_pairs(shipped))
    assert abs(bias.longer_wins - 0.5) < 0.05
    assert abs(bias.correlation) < 0.1


def test_place_shown_does_not_decide_the_shipped_ranks(shipped):
    assert abs(position_bias(shipped).earlier_wins - 0.5) < 0.06


def test_split_holds_out_whole_prompts_of_every_topic(shipped):
    train, held_out = split_rankings(shipped)
    assert len(train) + len(held_out) == len(shipped)
    assert not {r.prompt for r in train} & {r.prompt for r in held_out}
    assert {r.topic for r in held_out} == {r.topic for r in shipped}


def test_rankings_are_read_from_any_file(tmp_path):
    path = tmp_path / "rankings.jsonl"
    row = {"prompt": "p", "answers": ["a", "b"], "order": "B>A"}
    path.write_text(json.dumps(row) + "\n\n")
    assert load_rankings(path) == [Ranking("p", ("a", "b"), (2, 1))]
