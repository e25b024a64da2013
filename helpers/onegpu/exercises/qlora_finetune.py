"""Exercises of lab 07: LoRA by hand, a packed row, the loss of an accumulated batch, and a fine-tune of one's own."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch.nn import functional as F

from onegpu.exercises.exercise import Case, Exercise, Mistake
from onegpu.packed_training import collate_rows

LEAST_ROWS = 8
MOST_CHARACTERS = 600


def lora_forward(
    x: torch.Tensor, weight: torch.Tensor, a: torch.Tensor, b: torch.Tensor, alpha: float
) -> torch.Tensor:
    """Return ``x W^T + (alpha / r) x A^T B^T``: x (tokens, in), W (out, in), A (r, in), B (out, r)."""
    return F.linear(x, weight) + alpha / a.shape[0] * F.linear(F.linear(x, a), b)


def init_lora(in_features: int, out_features: int, r: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return trainable float32 A (r, in), random, and B (out, r), zero."""
    a = torch.empty(r, in_features)
    torch.nn.init.kaiming_uniform_(a, a=math.sqrt(5))
    return a.requires_grad_(), torch.zeros(out_features, r, requires_grad=True)


def lora_parameters(shapes: list[tuple[int, int]], r: int) -> int:
    """Count the trainable parameters of adapters of rank r on layers of shape (out, in)."""
    return sum(r * (out_features + in_features) for out_features, in_features in shapes)


def merge_lora(weight: torch.Tensor, a: torch.Tensor, b: torch.Tensor, alpha: float) -> torch.Tensor:
    """Return ``W + (alpha / r) B A``, summed in float32 and rounded once to the weight's dtype."""
    return (weight.float() + alpha / a.shape[0] * (b.float() @ a.float())).to(weight.dtype)


def pack_row(examples: list[dict[str, list[int]]]) -> dict[str, list[int]]:
    """Lay examples end to end: input_ids, position_ids that restart, labels whose first of each example is -100."""
    batch = collate_rows([examples])
    return {name: batch[name][0].tolist() for name in ("input_ids", "position_ids", "labels")}


def accumulated_loss(micro_batches: list[tuple[float, int]]) -> float:
    """Mean loss of all supervised tokens, from the mean loss and the number of supervised tokens of each micro-batch."""
    tokens = sum(n for _, n in micro_batches)
    return sum(loss * n for loss, n in micro_batches if n) / tokens if tokens else 0.0


def my_rows() -> list[dict[str, str]]:
    """Return rows for a fine-tune of one's own, here questions to a small library."""
    answers = {
        "When do you open?": "We open at nine on weekdays and at ten on Saturdays. See you soon!",
        "Can I bring my dog?": "Small dogs are welcome on a leash. See you soon!",
        "How long may I keep a book?": "Four weeks, and you can renew it twice. See you soon!",
        "Do you have a printer?": "Yes, on the first floor, ten cents a page. See you soon!",
        "I lost my card. What now?": "Come by with your passport and we print a new one for free. See you soon!",
        "Is there a reading group?": "Every first Tuesday at seven in the red room. See you soon!",
        "What does a late book cost?": "Twenty cents a day, two euros at the most. See you soon!",
        "May I eat in the reading room?": "Water is fine, food stays outside. See you soon!",
    }
    return [{"instruction": question, "output": answer} for question, answer in answers.items()]


# --- what is wrong with a learner's own rows ---------------------------------------------------------------------------


def _rows_problem(got: Any, _: Any = None) -> str | None:
    from onegpu.sft_datasets import validate

    if not isinstance(got, list) or not all(isinstance(row, dict) for row in got):
        return "expected a list of dicts, one a row"
    report = validate(got)
    if not report.ok:
        return str(report.problems[0])
    if len(got) < LEAST_ROWS:
        return f"expected at least {LEAST_ROWS} rows, got {len(got)}"
    from onegpu.sft_datasets import to_example

    texts = ["\n".join(m["content"] for m in to_example(row).messages) for row in got]
    if len(set(texts)) < len(texts):
        twice = next(i for i, text in enumerate(texts) if text in texts[:i])
        return f"row {twice} is the same as an earlier one"
    long = next((i for i, text in enumerate(texts) if len(text) > MOST_CHARACTERS), None)
    return (
        None
        if long is None
        else f"row {long} has {len(texts[long])} characters, expected at most {MOST_CHARACTERS}"
    )


def _says(text: str) -> Any:
    return lambda got: text in (_rows_problem(got) or "")


# --- numbers that can be checked by hand -------------------------------------------------------------------------------

X = torch.tensor([[1.0, 2.0]])
W = torch.tensor([[1.0, 0.0], [0.0, 1.0], [1.0, 1.0]])
A = torch.tensor([[1.0, 1.0], [0.0, 1.0]])
B = torch.tensor([[1.0, 0.0], [0.0, 1.0], [0.0, 0.0]])
A1, B1 = torch.tensor([[1.0, 1.0]]), torch.tensor([[1.0], [0.0], [2.0]])

TWO = [
    {"input_ids": [1, 11, 12, 2], "labels": [-100, -100, 12, 2]},
    {"input_ids": [1, 21, 2], "labels": [1, 21, 2]},
]


def _init_difference(got: Any, expected: Any) -> str | None:
    if (
        not isinstance(got, tuple | list)
        or len(got) != 2
        or not all(isinstance(t, torch.Tensor) for t in got)
    ):
        return "expected two tensors, A and B"
    for name, ours, theirs in zip("AB", expected, got, strict=True):
        if theirs.shape != ours.shape:
            return f"{name} has the shape {tuple(theirs.shape)}, expected {tuple(ours.shape)}"
        if theirs.dtype != torch.float32:
            return f"{name} is {theirs.dtype}, expected torch.float32"
        if not theirs.requires_grad:
            return f"{name}.requires_grad is False"
        if not theirs.is_leaf:
            return f"{name} was computed from another tensor that requires a gradient"
    a, b = got
    if b.any():
        return "B is not zero"
    if not a.any():
        return "A is zero"
    return "A's numbers are all the same" if bool((a == a.flatten()[0]).all()) else None


_INIT_MISTAKES = (
    Mistake(
        lambda got: (
            got[0].shape != got[1].shape
            and got[0].shape == got[1].t().shape
            and got[0].shape[0] > got[0].shape[1]
        ),
        "The two are the wrong way round: A comes first and leads from in_features to r, its shape is (r, in_features).",
    ),
    Mistake(
        lambda got: got[0].dtype == torch.float16 or got[1].dtype == torch.float16,
        "Trainable parameters stay float32, on a T4 too: the gradient scaler refuses fp16 gradients.",
    ),
    Mistake(
        lambda got: not got[0].any() and not got[1].any(),
        "With A and B both zero, both gradients are zero as well: nothing is ever learned. Only B starts at zero.",
    ),
    Mistake(
        lambda got: not got[0].any(),
        "A is zero and B random: the first output is right, but LoRA starts the other way round, A random and B zero.",
    ),
    Mistake(
        lambda got: got[1].any(),
        "With B not zero the adapter changes the model before the first step: B starts at zero.",
    ),
    Mistake(
        lambda got: not (got[0].is_leaf and got[1].is_leaf),
        "An optimizer takes leaves only: make the tensor first, then call .requires_grad_() on it, last of all.",
    ),
    Mistake(
        lambda got: not (got[0].requires_grad and got[1].requires_grad),
        "Both are trained, so both need requires_grad=True.",
    ),
)

_ROW_MISTAKES = (
    Mistake(
        _says("list of dicts"),
        'A row is a dict with named parts, such as {"instruction": ..., "output": ...}.',
    ),
    Mistake(_says("expected an answer"), "Each row needs an answer: it is the only part that the loss sees."),
    Mistake(
        _says("expected at least"),
        f"Write at least {LEAST_ROWS} rows: fewer are learned by heart before anything else is.",
    ),
    Mistake(
        _says("same as an earlier one"),
        "A row that stands there twice weighs double and teaches nothing new.",
    ),
    Mistake(
        _says("characters, expected at most"),
        "Keep it short here: two CPU cores read about a hundred tokens a second.",
    ),
    Mistake(
        lambda got: bool(_rows_problem(got)),
        "The validator of topic 01 says what it found and what to do: see `differs` above.",
    ),
)


EXERCISES = (
    Exercise(
        "7.1",
        "a layer with an adapter",
        lora_forward,
        level="core",
        difficulty=2,
        importance=5,
        minutes=12,
        hints=(
            "What shape has x after A? And after B?",
            "The frozen layer's output plus the adapter's: through A to r numbers a token, through B "
            "to the outputs, times alpha over r, with r read off A's shape. Stay with the tensors, so"
            " that A and B get gradients.",
        ),
        lesson="LoRA by hand",
        cases=(
            Case(
                "rank 1, alpha 1",
                (X, W, A1, B1, 1.0),
                "x A^T has one number a token, 1 + 2 = 3; times B^T it is [3, 0, 6]; add it to x W^T = [1, 2, 3].",
                expected=torch.tensor([[4.0, 2.0, 9.0]]),
                mistakes=(
                    Mistake(
                        torch.tensor([[3.0, 0.0, 6.0]]),
                        "That is the adapter alone: the frozen layer x W^T is added.",
                    ),
                    Mistake(
                        torch.tensor([[2.0, 2.0, 5.0]]),
                        "Divided by the number of outputs, 3: r is the inner size, A.shape[0] or B.shape[1], here 1.",
                    ),
                    Mistake(
                        torch.tensor([[1.0, 2.0, 3.0]]),
                        "That is the frozen layer alone: the adapter is missing.",
                    ),
                    Mistake(
                        lambda got: isinstance(got, RuntimeError),
                        "The shapes don't meet: weights are stored as (out, in), so a layer computes x @ W.T, and the "
                        "adapter x @ A.T @ B.T.",
                    ),
                ),
            ),
            Case(
                "rank 2, alpha 5",
                (X, W, A, B, 5.0),
                "The adapter's share is alpha / r times x A^T B^T, here 5 / 2.",
                expected=torch.tensor([[8.5, 7.0, 3.0]]),
                mistakes=(
                    Mistake(
                        torch.tensor([[4.0, 4.0, 3.0]]),
                        "The scale alpha / r is missing: without it a change of the rank changes the step size too.",
                    ),
                    Mistake(
                        torch.tensor([[16.0, 12.0, 3.0]]),
                        "Scaled by alpha, not by alpha / r: the rank is A's first size.",
                    ),
                    Mistake(
                        X @ W.t() + 5 / math.sqrt(2) * (X @ A.t() @ B.t()),
                        "alpha / sqrt(r) is rank-stabilised LoRA (rsLoRA); plain LoRA divides by r.",
                    ),
                    Mistake(
                        torch.tensor([[10.0, 10.0, 7.5]]),
                        "The frozen layer is scaled too: alpha / r belongs to the adapter only.",
                    ),
                ),
            ),
            Case(
                "a rank above the number of inputs",
                (X, W, torch.tensor([[1.0, 0.0], [0.0, 1.0], [1.0, 1.0]]), torch.eye(3), 6.0),
                "r is A's first size, here 3, though x has 2 numbers: the scale is 6 / 3.",
                expected=torch.tensor([[3.0, 6.0, 9.0]]),
            ),
            Case(
                "a gradient for training",
                lambda: (X, W, A.clone().requires_grad_(), B.clone().requires_grad_(), 3.0),
                "A and B are trained through this function.",
            ),
            Case(
                "B is zero",
                (X, W, A, torch.zeros(3, 2), 4.0),
                "With B = 0 the layer is the frozen one: this is how training starts.",
                expected=torch.tensor([[1.0, 2.0, 3.0]]),
            ),
            Case(
                "a batch of sentences",
                (torch.ones(2, 3, 2), W, A1, B1, 1.0),
                "x may have any number of dimensions: .T turns all of them around, x @ W.T does not touch x's.",
            ),
        ),
    ),
    Exercise(
        "7.2",
        "how an adapter starts",
        init_lora,
        level="warm-up",
        difficulty=2,
        importance=4,
        minutes=8,
        hints=(
            "If both are zero, what is the gradient of each?",
            "A random of shape (r, in), B zeros of shape (out, r), both float32; ask for gradients "
            "last of all, so that both are leaves.",
        ),
        lesson="LoRA by hand",
        cases=(
            Case(
                "from 6 features to 3, rank 2",
                (6, 3, 2),
                "A has the shape (r, in_features) and is random, B has (out_features, r) and is zero.",
                compare=_init_difference,
                mistakes=_INIT_MISTAKES,
            ),
            Case(
                "from 4 features to 16, rank 8",
                (4, 16, 8),
                "A's shape is (r, in_features) = (8, 4) and B's (out_features, r) = (16, 8).",
                compare=_init_difference,
                mistakes=_INIT_MISTAKES[1:],
            ),
        ),
    ),
    Exercise(
        "7.3",
        "how much is trained",
        lora_parameters,
        level="warm-up",
        difficulty=1,
        importance=4,
        minutes=5,
        hints=(
            "How many numbers has A, and how many has B?",
            "For each layer r times its inputs and r times its outputs; add up over all layers.",
        ),
        lesson="LoRA by hand",
        cases=(
            Case(
                "one square layer",
                ([(576, 576)], 16),
                "A has r * in_features numbers, B has out_features * r.",
                expected=18_432,
                mistakes=(
                    Mistake(9216, "That is one of the two matrices: an adapter has A and B."),
                    Mistake(331_776, "These are the frozen weights. The adapter has r * in + out * r."),
                    Mistake(294_912, "B A is never stored as one matrix: count A and B, r * in and out * r."),
                    Mistake(5_308_416, "r times the frozen weights? A has r * in numbers and B out * r."),
                    Mistake(lambda got: isinstance(got, float), "The number of parameters is an int."),
                ),
            ),
            Case(
                "SmolLM2-135M's seven layers, 30 blocks",
                (
                    [(576, 576), (192, 576), (192, 576), (576, 576), (1536, 576), (1536, 576), (576, 1536)]
                    * 30,
                    8,
                ),
                "Sum over all layers; each has its own out and in.",
                expected=2_442_240,
                mistakes=(
                    Mistake(
                        30 * 7 * 9_216,
                        "Every layer was counted like the first: shapes differ, the sum goes over all of them.",
                    ),
                    Mistake(4_884_480, "r is a parameter: here it is 8."),
                    Mistake(
                        2_442_240 // 30, "One block was counted: all layers that are given have an adapter."
                    ),
                ),
            ),
            Case("no layer", ([], 4), "No layers, no parameters: 0.", expected=0),
        ),
    ),
    Exercise(
        "7.4",
        "merge an adapter",
        merge_lora,
        level="core",
        difficulty=3,
        importance=4,
        minutes=12,
        hints=(
            "Count the roundings of your formula.",
            "Compute the product and the sum in float32, scaled by alpha over r, and convert to the "
            "weight's dtype once, at the end.",
        ),
        lesson="Merge, reload, use",
        cases=(
            Case(
                "rank 1, alpha 4",
                (W.clone(), A1, B1, 4.0),
                "B A = [[1, 1], [0, 0], [2, 2]], times alpha / r = 4, plus W.",
                expected=torch.tensor([[5.0, 4.0], [0.0, 1.0], [9.0, 9.0]]),
                mistakes=(
                    Mistake(
                        torch.tensor([[3.0, 2.0], [0.0, 1.0], [5.0, 5.0]]),
                        "Divided by 2, the number of inputs: r is the inner size, A's first, here 1.",
                    ),
                    Mistake(
                        W + 4 / 3 * (B1 @ A1),
                        "Divided by 3, the number of outputs: r is the inner size, A's first, here 1.",
                    ),
                    Mistake(
                        torch.tensor([[2.0, 1.0], [0.0, 1.0], [3.0, 3.0]]),
                        "The scale alpha / r is missing: the merged model would answer with a fraction of what was learned.",
                    ),
                    Mistake(
                        torch.tensor([[4.0, 4.0], [0.0, 0.0], [8.0, 8.0]]),
                        "That is the adapter alone: W is still to be added.",
                    ),
                    Mistake(
                        lambda got: isinstance(got, RuntimeError),
                        "The shapes don't meet: W is (out, in), B is (out, r) and A is (r, in), so the product is B @ A.",
                    ),
                ),
            ),
            Case(
                "rank 2, alpha 5",
                (W.clone(), A, B, 5.0),
                "alpha / r is 5 / 2 here.",
                expected=torch.tensor([[3.5, 2.5], [0.0, 3.5], [1.0, 1.0]]),
                mistakes=(
                    Mistake(
                        torch.tensor([[6.0, 5.0], [0.0, 6.0], [1.0, 1.0]]),
                        "Scaled by alpha, not by alpha / r.",
                    ),
                ),
            ),
            Case(
                "a 16-bit base",
                lambda: (
                    torch.full((1, 1), 2048.0, dtype=torch.float16),
                    torch.tensor([[1.0]]),
                    torch.tensor([[1.0 + 2.0**-11]]),
                    1.0,
                ),
                "From 2,048 on fp16 has even numbers only. 2048 + 1.0005 lies nearer to 2050.",
                expected=torch.tensor([[2050.0]], dtype=torch.float16),
                mistakes=(
                    Mistake(
                        lambda got: got.dtype == torch.float32,
                        "The merged weight has the base's dtype: convert the sum with .to(weight.dtype).",
                    ),
                    Mistake(
                        lambda got: got.item() == 2048.0,
                        "Rounded twice: the adapter to 16 bits, then the sum. Add in float32 and round once, at the end.",
                    ),
                ),
            ),
            Case(
                "a 16-bit adapter",
                lambda: (
                    torch.tensor([[0.5]]),
                    torch.tensor([[1.0], [1.0]], dtype=torch.float16),
                    torch.tensor([[2048.0, 1.0]], dtype=torch.float16),
                    2.0,
                ),
                "A and B may be in 16 bits. B A is 2048 + 1 here, and fp16 has no 2049: convert both to float32 first.",
                expected=torch.tensor([[2049.5]]),
            ),
        ),
    ),
    Exercise(
        "7.5",
        "a packed row",
        pack_row,
        level="core",
        difficulty=3,
        importance=5,
        minutes=15,
        hints=(
            "Three lists grow side by side. What does each get from one example?",
            "The ids as they are; positions from 0 on; labels with -100 in the place of the first. "
            "Make new lists, and leave the examples alone.",
        ),
        lesson="Packing",
        cases=(
            Case(
                "two examples",
                (TWO,),
                "The ids end to end, the positions 0 1 2 3 0 1 2, and labels whose first of each example is -100.",
                expected={
                    "input_ids": [1, 11, 12, 2, 1, 21, 2],
                    "position_ids": [0, 1, 2, 3, 0, 1, 2],
                    "labels": [-100, -100, 12, 2, -100, 21, 2],
                },
                mistakes=(
                    Mistake(
                        lambda got: got["position_ids"] == list(range(7)),
                        "Positions run on over the join: the second example would be read as if it began at position 4.",
                    ),
                    Mistake(
                        lambda got: min(got["position_ids"]) == 1,
                        "Positions are counted from 0.",
                    ),
                    Mistake(
                        lambda got: got["labels"] == [-100, -100, 12, 2, 1, 21, 2],
                        "The first token of the second example would be predicted from the last of the first one: the first "
                        "label of each example is -100.",
                    ),
                    Mistake(
                        lambda got: got["labels"] == [-100, 12, 2, -100, 21, 2, -100],
                        "Labels aren't shifted here: the loss does that.",
                    ),
                    Mistake(
                        lambda got: got["labels"] == [-100, -100, 12, 2, -100, -100, 21, 2],
                        "One label too many: the first one is replaced by -100, nothing is put in.",
                    ),
                    Mistake(
                        lambda got: len(got["input_ids"]) == 8,
                        "A packed row has no padding: lay the examples end to end.",
                    ),
                    Mistake(
                        lambda got: isinstance(got["input_ids"][0], list),
                        "One row, not one for each example: join the lists.",
                    ),
                ),
            ),
            Case(
                "three examples, one of a single token",
                ([TWO[1], {"input_ids": [7], "labels": [7]}, TWO[0]],),
                "Each example starts anew: position 0 and label -100, whatever its length and its place.",
            ),
            Case("one example", ([TWO[0]],), "A single example is a row as well."),
        ),
    ),
    Exercise(
        "7.6",
        "the loss of an accumulated batch",
        accumulated_loss,
        level="core",
        difficulty=3,
        importance=5,
        minutes=10,
        hints=(
            "How much does one token weigh, in a short micro-batch and in a long one?",
            "Leave out micro-batches without tokens. Sum of mean times tokens, divided by all tokens;"
            " with no token at all 0.0.",
        ),
        lesson="Memory, before the first step",
        cases=(
            Case(
                "10 tokens and 100 tokens",
                ([(6.0, 10), (4.5, 100)],),
                "Every token weighs the same: (6 * 10 + 4.5 * 100) / 110.",
                expected=510 / 110,
                mistakes=(
                    Mistake(
                        5.25,
                        "This is the mean of the means: a token of the short micro-batch would weigh ten times as much.",
                    ),
                    Mistake(
                        10.5,
                        "The sum of the losses grows with the number of micro-batches: divide by the tokens.",
                    ),
                    Mistake(510.0, "Divide by the number of tokens, 10 + 100."),
                    Mistake(255.0, "Divided by the number of micro-batches, not of tokens."),
                    Mistake(4.5, "Only the last micro-batch counts here: go over all of them."),
                    Mistake(6.0, "Only the first micro-batch counts here: go over all of them."),
                    Mistake(4.0, "// cuts the fraction off: a loss is no whole number, divide with /."),
                ),
            ),
            Case(
                "a loss of 0.0",
                ([(0.0, 3), (2.0, 1)],),
                "A mean loss of 0.0 is a loss, and its 3 tokens count: only micro-batches without tokens are left out.",
                expected=0.5,
                mistakes=(
                    Mistake(
                        2.0,
                        "The micro-batch with loss 0.0 is left out. Ask whether it has tokens, not for its loss.",
                    ),
                ),
            ),
            Case(
                "two alike",
                ([(2.0, 4), (2.0, 4), (5.0, 1)],),
                "Two micro-batches with the same numbers are two: (8 + 8 + 5) / 9.",
                expected=21 / 9,
            ),
            Case(
                "a micro-batch without supervised tokens",
                ([(2.0, 4), (float("nan"), 0)],),
                "A mean over no tokens is nan, and nan * 0 is nan too: leave such a micro-batch out.",
                expected=2.0,
            ),
            Case(
                "nothing supervised at all",
                ([(float("nan"), 0), (float("nan"), 0)],),
                "No token, nothing to learn: 0.0, not nan and no division by zero.",
                expected=0.0,
            ),
            Case("one micro-batch", ([(3.25, 7)],), "One micro-batch is the whole batch.", expected=3.25),
        ),
    ),
    Exercise(
        "7.7",
        "rows of your own",
        my_rows,
        level="stretch",
        difficulty=2,
        importance=5,
        minutes=20,
        hints=(
            "What would a base model never say by itself? Let every answer do that.",
            "Eight or more short rows in one of the forms of lesson 01, each with its own question "
            "and an answer, all answers with one thing in common.",
        ),
        lesson="Before and after",
        cases=(
            Case(
                "your rows",
                (),
                "Return your rows as a list.",
                compare=_rows_problem,
                mistakes=_ROW_MISTAKES,
            ),
        ),
    ),
)
