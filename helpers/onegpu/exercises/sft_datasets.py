"""Exercises of lab 01: from a chat to supervised tokens."""

from __future__ import annotations

from typing import Any

from onegpu.exercises.exercise import Case, Exercise, Mistake
from onegpu.sft_datasets import IGNORE, Example, Tokenized, collate, render, supervised_mask

ONE_TURN = [{"role": "user", "content": "2+2?"}, {"role": "assistant", "content": "4"}]
WITH_SYSTEM = [{"role": "system", "content": "Be brief."}, *ONE_TURN]
TWO_ANSWERS = [*ONE_TURN, {"role": "user", "content": "And 3+3?"}, {"role": "assistant", "content": "6"}]


def to_chatml(messages: list[dict[str, str]]) -> str:
    """Write a chat in ChatML: ``<|im_start|>role``, a newline, the content, ``<|im_end|>``, a newline, for each turn."""
    return render(Example(tuple(messages)), template="chatml").text


def mask_labels(ids: list[int], offsets: list[tuple[int, int]], start: int, end: int) -> list[int]:
    """Keep the ids of tokens that share a character with text[start:end]; -100 for the rest."""
    return [
        i if keep else IGNORE for i, keep in zip(ids, supervised_mask(offsets, [(start, end)]), strict=True)
    ]


def pad_batch(rows: list[list[int]], pad_id: int) -> dict[str, Any]:
    """Pad rows of ids on the right into input_ids, attention_mask and labels (int64 tensors)."""
    return collate([Tokenized(tuple(row), tuple(row), len(row)) for row in rows], pad_id)


EXERCISES = (
    Exercise(
        "1.1",
        "a chat as ChatML",
        to_chatml,
        (
            Case(
                "one turn each",
                (ONE_TURN,),
                "Each turn is <|im_start|>role, a newline, the content, <|im_end|>, a newline, and nothing between turns.",
                expected="<|im_start|>user\n2+2?<|im_end|>\n<|im_start|>assistant\n4<|im_end|>\n",
                mistakes=(
                    Mistake(
                        "<|im_start|>user\n2+2?<|im_end|>\n<|im_start|>assistant\n4",
                        "The answer's <|im_end|> is missing: a model that never sees it never learns to stop.",
                    ),
                    Mistake(
                        "<|im_start|>user\n2+2?<|im_end|>\n<|im_start|>assistant\n4<|im_end|>",
                        "The newline after the last <|im_end|> is missing: every turn ends the same way.",
                    ),
                    Mistake(
                        "<|im_start|>user\n2+2?<|im_end|>\n<|im_start|>assistant\n4<|im_end|>\n<|im_start|>assistant\n",
                        "An opened assistant turn at the end is for generation only: in training the answer is there.",
                    ),
                    Mistake(
                        "<|im_start|>user 2+2?<|im_end|>\n<|im_start|>assistant 4<|im_end|>\n",
                        "Role and content are divided by a newline, not by a space.",
                    ),
                    Mistake(
                        "<|im_start|>user\n2+2?\n<|im_end|>\n<|im_start|>assistant\n4\n<|im_end|>\n",
                        "A newline before <|im_end|> becomes part of the answer: the model would learn to write it.",
                    ),
                    Mistake(
                        "<|im_start|>user\n2+2?<|im_end|><|im_start|>assistant\n4<|im_end|>",
                        "Each turn ends in a newline after <|im_end|>.",
                    ),
                ),
            ),
            Case(
                "with a system message",
                (WITH_SYSTEM,),
                "A system message is a turn like any other: its role is written, and nothing is left out.",
            ),
            Case(
                "two answers",
                (TWO_ANSWERS,),
                "The chat may have any number of turns, in the order given: go over all of them.",
            ),
        ),
    ),
    Exercise(
        "1.2",
        "labels by character offsets",
        mask_labels,
        (
            Case(
                "tokens end where the answer begins",
                ([11, 12, 13, 14], [(0, 2), (2, 6), (6, 8), (8, 9)], 6, 9),
                "Keep the id where the token lies in the answer, else -100.",
                expected=[-100, -100, 13, 14],
                mistakes=(
                    Mistake(
                        [11, 12, 13, 14],
                        "Nothing is masked: the model would also learn to write the question.",
                    ),
                    Mistake(
                        [11, 12, -100, -100],
                        "The wrong way round: the prompt is masked, the answer is learned.",
                    ),
                    Mistake(
                        [0, 0, 13, 14], "0 is a token's id, so the model would learn it. The loss skips -100."
                    ),
                    Mistake(
                        [-100, 13, 14, -100],
                        "Shifted by one: the model shifts labels itself, here they stay in place.",
                    ),
                    Mistake([13, 14], "Labels are as long as the ids: mask with -100, don't cut."),
                    Mistake(
                        [-100, -100, 13, -100],
                        "The last token is masked: spans end before `end`, so a token that ends at 9 belongs to it.",
                    ),
                    Mistake(
                        [-100, 12, 13, 14],
                        "A token that only touches the answer, (2, 6) with the answer from 6, has no character of it.",
                    ),
                ),
            ),
            Case(
                "a token reaches over the boundary",
                ([21, 22, 23], [(0, 2), (2, 8), (8, 11)], 9, 11),
                "The last token begins in the prompt and ends in the answer. Masked, a character of the answer is never "
                "learned: keep every token that shares a character with the answer.",
                expected=[-100, -100, 23],
            ),
            Case(
                "text goes on after the answer",
                ([31, 32, 33, 34], [(0, 3), (3, 5), (5, 6), (6, 9)], 3, 6),
                "What comes after the answer (the next question) is masked too.",
                expected=[-100, 32, 33, -100],
            ),
            Case(
                "no answer",
                ([41, 42], [(0, 2), (2, 4)], 4, 4),
                "An empty answer has no tokens: all labels are -100.",
                expected=[-100, -100],
            ),
        ),
    ),
    Exercise(
        "1.3",
        "a batch whose pad token is its end token",
        pad_batch,
        (
            Case(
                "pad is another token",
                ([[263, 5], [263, 264, 5]], 0),
                "Pad on the right to the longest row: input_ids with pad_id, attention_mask with 0, labels with -100, all int64.",
                mistakes=(
                    Mistake(
                        lambda got: got["labels"][0].tolist() == [263, 5, 0],
                        "Padding is in the labels: the model would learn to write it. Labels are padded with -100.",
                    ),
                    Mistake(
                        lambda got: got["input_ids"][0].tolist() == [0, 263, 5],
                        "Padded on the left, which is for generation. In training rows begin at position 0.",
                    ),
                    Mistake(
                        lambda got: got["attention_mask"].tolist() == [[1, 1, 1], [1, 1, 1]],
                        "The attention mask is 0 where a row is padded.",
                    ),
                    Mistake(
                        lambda got: got["input_ids"].shape[1] == 2,
                        "Rows were cut to the shortest: nothing may be lost, pad to the longest.",
                    ),
                    Mistake(
                        lambda got: got["input_ids"][0].tolist() == [263, 5, -100],
                        "-100 is no token: it belongs to the labels. input_ids are padded with pad_id.",
                    ),
                ),
            ),
            Case(
                "pad is the end token",
                ([[263, 1], [263, 264, 272, 1]], 1),
                "Some labels are wrong.",
                mistakes=(
                    Mistake(
                        lambda got: (
                            got["labels"].tolist() == [[263, -100, -100, -100], [263, 264, 272, -100]]
                        ),
                        "The end tokens are masked too, because they equal pad_id: the model would never learn to stop. "
                        "Mask by position (the row's length), not by the token.",
                    ),
                    Mistake(
                        lambda got: got["attention_mask"].tolist() == [[1, 0, 0, 0], [1, 1, 1, 0]],
                        "The attention mask leaves out the end tokens, because they equal pad_id: take the row's length.",
                    ),
                ),
            ),
            Case(
                "one row",
                ([[7, 8, 9]], 0),
                "The longest row needs no padding, also when it is the only one.",
            ),
        ),
    ),
)
