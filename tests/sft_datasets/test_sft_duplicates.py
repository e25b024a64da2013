import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onegpu.sft_datasets import deduplicate, find_duplicates, find_leakage, similarity


def row(prompt, answer="x"):
    return {"prompt": prompt, "completion": answer}


def test_copies_that_differ_in_case_and_space_are_exact_axolotl_2719():
    rows = [row("Name a fruit."), row("name a  FRUIT. "), row("Name a fruit."), row("Name a tree.")]
    found = find_duplicates(rows, threshold=None)
    assert [(p.first, p.second, p.kind) for p in found.pairs] == [(0, 1, "exact"), (0, 2, "exact")]
    assert found.affected == (1, 2)
    assert found.share == 0.5


def test_same_question_with_another_answer_is_a_conflict():
    rows = [row("Name a fruit.", "Apple"), row("Name a fruit.", "Fig")]
    assert find_duplicates(rows).pairs[0].kind == "conflict"
    assert not find_duplicates(rows, fields="all").pairs
    assert find_duplicates([row("a", "Yes, it is."), row("b", "Yes, it is.")], fields="answer").affected == (
        1,
    )


def test_full_width_letters_are_the_same_letters():
    assert find_duplicates([row("ABC 가"), row("ＡＢＣ\u3000가")], threshold=None).affected == (1,)


def test_near_duplicates_carry_their_similarity():
    texts = "Write a short poem about the sea.", "Write a short poem about the sea", "Bake bread."
    found = find_duplicates([row(text) for text in texts], threshold=0.9)
    assert [(p.first, p.second, p.kind) for p in found.pairs] == [(0, 1, "near")]
    assert found.pairs[0].similarity == similarity(*texts[:2]) == pytest.approx(28 / 29)


def test_deduplicate_keeps_the_first_and_the_rows_as_given():
    rows = [row("Name a fruit."), row("Name a tree."), row("NAME A FRUIT.")]
    kept, report = deduplicate(rows)
    assert kept == rows[:2]
    assert kept[0] is rows[0]
    assert report.affected == (2,)


def test_a_chain_of_near_duplicates_keeps_more_than_its_first():
    a, b, c = "abcdefghijkl", "abcdefghijklmn", "abcdefghijklmnop"
    assert similarity(a, b) >= 0.75
    assert similarity(b, c) >= 0.75
    assert similarity(a, c) < 0.75
    kept, _ = deduplicate([row(text) for text in (a, b, c)], threshold=0.75)
    assert [r["prompt"] for r in kept] == [a, c]


def test_nothing_is_left_to_find_after_deduplicate():
    rows = [
        row(f"Write a {w} about the {t}.") for w in ("poem", "poems", "story") for t in ("sea", "seas", "sun")
    ]
    kept, report = deduplicate(rows, threshold=0.6)
    assert report.affected
    assert not find_duplicates(kept, threshold=0.6).pairs


def test_leakage_is_the_share_of_evaluation_rows_open_text_shield_194():
    train = [row("Name a fruit."), row("Name a fruit."), row("Write a short poem about the sea.")]
    evaluation = [
        row("NAME A FRUIT."),
        row("Bake bread."),
        row("Write a short poem about the sea!"),
        row("Name a tree."),
    ]
    found = find_leakage(train, evaluation)
    assert [(p.first, p.second, p.kind) for p in found.pairs] == [(0, 0, "exact"), (2, 2, "near")]
    assert found.share == 0.5
    assert not find_leakage(train, evaluation[1:2]).pairs


def test_duplicates_within_the_evaluation_rows_are_not_leakage():
    assert not find_leakage([row("Bake bread.")], [row("Name a fruit."), row("Name a fruit.")]).pairs


@pytest.mark.parametrize("threshold", [0, 1.5, -1])
def test_bad_threshold_is_named(threshold):
    with pytest.raises(ValueError, match=f"threshold={threshold}"):
        find_duplicates([row("a")], threshold=threshold)


def test_bad_fields_are_named():
    with pytest.raises(ValueError, match="fields='question': expected one of prompt, answer, all"):
        find_duplicates([row("a")], fields="question")


texts = st.lists(st.text("ab ", min_size=1, max_size=14).filter(str.strip), min_size=2, max_size=12)


@settings(max_examples=150, deadline=None)
@given(texts, st.sampled_from([0.3, 0.5, 0.7, 0.8, 1.0]))
def test_the_prefix_filter_finds_exactly_the_pairs_that_comparing_all_finds(texts, threshold):
    # Exact copies are paired with their first only, so compare the distinct texts.
    from onegpu.sft_datasets import normalise_text

    texts = list(dict.fromkeys(normalise_text(text) for text in texts))
    found = {(p.first, p.second) for p in find_duplicates([row(t) for t in texts], threshold=threshold).pairs}
    every = itertools.combinations(range(len(texts)), 2)
    assert found == {(i, j) for i, j in every if similarity(texts[i], texts[j]) >= threshold}


@settings(max_examples=60, deadline=None)
@given(texts, texts, st.sampled_from([0.3, 0.6, 0.8]))
def test_leakage_finds_exactly_the_rows_that_comparing_all_finds(train, evaluation, threshold):
    found = find_leakage([row(t) for t in train], [row(t) for t in evaluation], threshold=threshold)
    leaked = {i for i, e in enumerate(evaluation) if any(similarity(t, e) >= threshold for t in train)}
    assert set(found.affected) == leaked
