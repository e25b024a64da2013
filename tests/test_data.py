"""The shipped rows: schema, labels, and that no held-out row is a copy, or nearly a copy, of another row.

Near duplicates are found by comparing every pair of messages in two ways, after folding (NFKC, lower case, only letters
and digits, single spaces):

1. characters: Jaccard similarity of the sets of character 5-grams. Finds copies with small edits.
2. words: cosine of tf-idf vectors over word stems (the first five letters, in Korean the first two syllables), for
   messages of at least five words. Finds copies that were reordered or reworded but keep the rare words.

The thresholds lie between what rows written apart reach (asserted loosely: the rows pass) and what a reworded copy
reaches (asserted on synthetic copies).
"""

import importlib
import json
import math
import re
import subprocess
import sys
import unicodedata
from collections import Counter
from itertools import combinations, pairwise

import pytest
from onegpu import data

MAX_CHARACTERS = 0.32
MAX_WORDS = 0.38
KEYS = ["id", "split", "message", "intent", "urgency", "reply"]
SETS = ("support_triage", "support_triage_ko")
FILES = ("support_triage", "support_triage_heldout", "support_triage_ko")


def fold(text):
    """Letters and digits in lower case, one space between words; an apostrophe joins ("can't" is "cant")."""
    text = unicodedata.normalize("NFKC", text).casefold().replace("'", "").replace("’", "")
    return " ".join(re.findall(r"[^\W_]+", text))


def character_grams(text):
    return {text[i : i + 5] for i in range(max(1, len(text) - 4))}


def stems(text):
    return [word[:5] if word.isascii() else word[:2] for word in text.split()]


def near_duplicates(messages):
    """(first, second, measure, similarity) of every pair at or over a threshold; exact copies are among them."""
    folded = [fold(message) for message in messages]
    grams = [character_grams(text) for text in folded]
    counts = [Counter(stems(text)) for text in folded]
    rows_with = Counter(stem for count in counts for stem in count)
    vectors = []
    for count in counts:
        weights = {s: n * math.log(1 + len(messages) / rows_with[s]) for s, n in count.items()}
        norm = math.sqrt(sum(w * w for w in weights.values()))
        vectors.append({s: w / norm for s, w in weights.items()})
    found = []
    for i, j in combinations(range(len(messages)), 2):
        shared = len(grams[i] & grams[j])
        characters = shared / (len(grams[i]) + len(grams[j]) - shared)
        if characters >= MAX_CHARACTERS:
            found.append((i, j, "characters", round(characters, 2)))
        elif min(counts[i].total(), counts[j].total()) >= 5:
            words = sum(w * vectors[j].get(s, 0.0) for s, w in vectors[i].items())
            if words >= MAX_WORDS:
                found.append((i, j, "words", round(words, 2)))
    return found


@pytest.fixture(scope="module")
def triage():
    return {name: data.rows(name) for name in SETS}


# Schema


@pytest.mark.parametrize("name", FILES)
def test_each_line_is_one_object_with_the_keys_in_order(name):
    text = data.path(name).read_text(encoding="utf-8")
    assert text.endswith("\n")
    assert not text.endswith("\n\n")
    for line in text.removesuffix("\n").split("\n"):
        row = json.loads(line)
        assert list(row) == KEYS
        assert all(isinstance(value, str) and value == value.strip() != "" for value in row.values()), row
        assert line == json.dumps(row, ensure_ascii=False)


def test_ids_are_unique_and_numbered_within_each_file():
    for name in FILES:
        numbers = [int(re.fullmatch(r"(?:en-|en-h|ko-)(\d{3,4})", r["id"])[1]) for r in lines(name)]
        assert numbers == list(range(1, len(numbers) + 1))
    ids = [row["id"] for name in SETS for row in data.rows(name)]
    assert len(ids) == len(set(ids))


def lines(name):
    return [json.loads(line) for line in data.path(name).read_text(encoding="utf-8").splitlines()]


def test_the_heldout_file_holds_only_held_out_rows():
    assert {row["split"] for row in lines("support_triage_heldout")} == {"heldout"}


@pytest.mark.parametrize("name", SETS)
def test_labels_are_those_of_the_task(triage, name):
    for row in triage[name]:
        assert row["intent"] in data.INTENTS, row["id"]
        assert row["urgency"] in data.URGENCIES, row["id"]
        assert row["split"] in {"train", "heldout"}, row["id"]


def test_there_are_480_english_rows_and_100_of_them_held_out(triage):
    splits = Counter(row["split"] for row in triage["support_triage"])
    assert splits.total() >= 480
    assert splits["heldout"] >= 100


@pytest.mark.parametrize("name", SETS)
@pytest.mark.parametrize("split", ["train", "heldout"])
def test_every_intent_and_urgency_is_in_every_split(name, split):
    rows = data.rows(name, split)
    assert {row["intent"] for row in rows} == set(data.INTENTS)
    assert {row["urgency"] for row in rows} == set(data.URGENCIES)


@pytest.mark.parametrize("name", SETS)
@pytest.mark.parametrize("split", ["train", "heldout"])
def test_no_label_dominates(name, split):
    rows = data.rows(name, split)
    intents = Counter(row["intent"] for row in rows)
    assert max(intents.values()) <= 1.5 * min(intents.values())
    urgencies = Counter(row["urgency"] for row in rows)
    assert 0.12 <= urgencies["high"] / len(rows) <= 0.28
    assert 0.22 <= urgencies["low"] / len(rows) <= 0.38


@pytest.mark.parametrize("name", FILES)
def test_rows_are_shuffled(name):
    intents = [row["intent"] for row in lines(name)]
    neighbours = sum(a == b for a, b in pairwise(intents))
    assert neighbours < 0.2 * len(intents)


# Texts


def test_messages_have_at_most_90_words_and_vary(triage):
    words = [len(row["message"].split()) for row in triage["support_triage"]]
    assert max(words) <= 90
    assert sum(n <= 8 for n in words) >= 0.05 * len(words)
    assert sum(n >= 40 for n in words) >= 0.05 * len(words)


@pytest.mark.parametrize("name", SETS)
def test_replies_are_one_or_two_sentences_and_short(triage, name):
    least = 8 if name == "support_triage" else 5  # Korean packs particles and auxiliaries into one word
    for row in triage[name]:
        assert least <= len(row["reply"].split()) <= 30, row["id"]
        assert len(re.findall(r"[.!?]+(?=\s|$)", row["reply"])) in {1, 2}, row["id"]
        assert row["reply"][-1] in ".!?", row["id"]


def test_replies_are_unique(triage):
    replies = Counter(fold(row["reply"]) for name in SETS for row in triage[name])
    assert [reply for reply, n in replies.items() if n > 1] == []


def test_korean_rows_are_korean_and_english_rows_are_not(triage):
    hangul = re.compile("[가-힣]")
    for row in triage["support_triage_ko"]:
        assert hangul.search(row["message"]), row["id"]
        assert hangul.search(row["reply"]), row["id"]
    assert not [row["id"] for row in triage["support_triage"] if hangul.search(row["message"] + row["reply"])]


def test_no_addresses_of_real_people_or_pages(triage):
    contact = re.compile(
        r"\S@(?![\w.-]*example\b)\S|https?:|www\.|\+\d[\d -]{7,}|\b0\d{1,4}[ -]\d{3,4}[ -]?\d{3,}"
    )
    assert not [
        row["id"]
        for rows in triage.values()
        for row in rows
        if contact.search(row["message"]) or contact.search(row["reply"])
    ]


# Duplicates and leakage


def test_no_message_is_given_twice(triage):
    messages = Counter(fold(row["message"]) for name in SETS for row in triage[name])
    assert [message for message, n in messages.items() if n > 1] == []


@pytest.mark.parametrize("name", SETS)
def test_no_message_is_nearly_another_within_or_between_splits(triage, name):
    rows = triage[name]
    found = near_duplicates([row["message"] for row in rows])
    assert [(rows[i]["id"], rows[j]["id"], *how) for i, j, *how in found] == []


@pytest.mark.parametrize(
    ("copy", "measure"),
    [
        ("the KETTLE lid arrived cracked; can you send me another one before the weekend??", "characters"),
        ("Kettle lid arrived cracked, can you send another before the weekend?", "characters"),
        (
            "Before the weekend, could another one be sent to me? My kettle's lid was cracked on arrival.",
            "words",
        ),
    ],
    ids=["same but for case and signs", "words left out", "reordered and reworded"],
)
def test_the_detector_finds_a_planted_copy(copy, measure):
    planted = "The kettle lid arrived cracked. Can you send me another one before the weekend?"
    messages = [row["message"] for row in data.rows("support_triage", "heldout")] + [planted, copy]
    assert [pair[:3] for pair in near_duplicates(messages)] == [
        (len(messages) - 2, len(messages) - 1, measure)
    ]


@pytest.mark.parametrize(
    ("copy", "measure"),
    [
        ("전기포트 뚜껑이 깨져서 왔어요! 주말 전에 새걸로 보내주실 수 있나요", "characters"),
        ("주말 전에 새것을 보내 주실 수 있을까요? 받아 보니 전기포트 뚜껑이 깨져 있어요.", "words"),
    ],
    ids=["small edits", "reordered and reworded"],
)
def test_the_detector_finds_a_planted_korean_copy(triage, copy, measure):
    planted = "전기포트 뚜껑이 깨져서 왔어요. 주말 전에 새것으로 보내 주실 수 있나요?"
    messages = [row["message"] for row in triage["support_triage_ko"]] + [planted, copy]
    assert [pair[:3] for pair in near_duplicates(messages)] == [
        (len(messages) - 2, len(messages) - 1, measure)
    ]


# The card


def card_tables():
    """{(row label, column label): count} of the tables of counts in the data card."""
    card = data.path("support_triage").with_name("README.md").read_text(encoding="utf-8")
    cells = {}
    header = None
    for line in card.splitlines():
        if not line.startswith("|"):
            header = None
            continue
        parts = [part.strip(" `") for part in line.strip("|").split("|")]
        if header is None:
            header = parts
        elif all(part.isdigit() for part in parts[1:]):
            cells |= {(parts[0], column): int(n) for column, n in zip(header[1:], parts[1:], strict=True)}
    return cells


def test_the_counts_in_the_card_are_those_of_the_files(triage):
    expected = Counter()
    for name, language in zip(SETS, ("en", "ko"), strict=True):
        for row in triage[name]:
            for column in (f"{language} {row['split']}", "all"):
                for label in (row["intent"], row["urgency"], "rows"):
                    expected[label, column] += 1
    found = card_tables()
    assert {cell: n for cell, n in found.items() if cell[1] != "rows"} == dict(expected)
    assert {cell[0].removesuffix(".jsonl"): n for cell, n in found.items() if cell[1] == "rows"} == {
        file: len(lines(file)) for file in FILES
    }


def test_the_card_states_the_thresholds():
    card = data.path("support_triage").with_name("README.md").read_text(encoding="utf-8")
    assert f"Jaccard similarity of {MAX_CHARACTERS:.2f}" in card
    assert f"cosine of {MAX_WORDS:.2f}" in card


# The loader


def test_a_set_is_its_file_followed_by_its_held_out_file():
    assert data.rows("support_triage") == lines("support_triage") + lines("support_triage_heldout")
    assert data.rows("support_triage", "heldout") == lines("support_triage_heldout")
    assert data.rows("support_triage_heldout") == lines("support_triage_heldout")


def test_splits_within_one_file_are_told_apart():
    both = data.rows("support_triage_ko", "train"), data.rows("support_triage_ko", "heldout")
    assert [len(rows) for rows in both] == [72, 24]


def test_rows_are_read_anew_so_that_a_caller_may_change_them():
    data.rows("support_triage")[0]["message"] = "changed"
    assert data.rows("support_triage")[0]["message"] != "changed"


def test_an_unknown_name_is_refused_with_the_names_that_exist():
    with pytest.raises(
        ValueError, match=r"no shipped data file 'alpaca'.*support_triage, .*support_triage_ko"
    ):
        data.rows("alpaca")


def test_a_path_is_no_name():
    with pytest.raises(ValueError, match="no shipped data file"):
        data.path("../data/support_triage")


def test_an_unknown_split_is_refused_with_the_splits_that_exist():
    with pytest.raises(ValueError, match="no rows of split 'validation': its splits are heldout, train"):
        data.rows("support_triage", "validation")


def test_a_set_without_splits_says_so(monkeypatch, tmp_path):
    plant(monkeypatch, tmp_path, plain='{"prompt": "Name a fruit."}\n')
    assert data.rows("plain") == [{"prompt": "Name a fruit."}]
    with pytest.raises(ValueError, match="its splits are none"):
        data.rows("plain", "train")


@pytest.mark.parametrize(
    ("text", "message"),
    [('{"a": 1}\n{"a": \n', "bad.jsonl, line 2: .*one JSON object"), ("[1]\n", "line 1 .*found a int")],
    ids=["cut off", "not an object"],
)
def test_a_broken_line_is_named(monkeypatch, tmp_path, text, message):
    plant(monkeypatch, tmp_path, bad=text)
    with pytest.raises(ValueError, match=message):
        data.rows("bad")


def test_a_line_separator_inside_a_text_does_not_end_the_row(monkeypatch, tmp_path):
    plant(monkeypatch, tmp_path, odd='{"a": "one\u2028two"}\n')
    assert data.rows("odd") == [{"a": "one\u2028two"}]


def test_a_file_ending_in_heldout_without_its_set_keeps_its_name(monkeypatch, tmp_path):
    plant(monkeypatch, tmp_path, a="{}\n", a_heldout="{}\n", b_heldout="{}\n")
    assert data.names() == ["a", "b_heldout"]


def plant(monkeypatch, folder, **texts):
    for name, text in texts.items():
        (folder / f"{name}.jsonl").write_text(text, encoding="utf-8")
    monkeypatch.setattr(importlib.import_module("onegpu.data"), "files", lambda package: folder)


def test_importing_the_data_needs_only_the_standard_library():
    code = (
        "import sys; before = set(sys.modules); import onegpu.data;"
        "new = {m.split('.')[0] for m in set(sys.modules) - before} - set(sys.stdlib_module_names);"
        "print(sorted(new))"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "['onegpu']"
