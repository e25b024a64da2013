"""Exercises of lab 05: where the gibibytes of a fine-tune go."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

import torch
from torch import nn

from onegpu.exercises.exercise import Case, Exercise, Mistake
from onegpu.gpu_memory import Timeline, gradient_bytes, measured, optimizer_state_bytes
from onegpu.models import tiny_model

GIB, MIB = 2**30, 2**20
POLYGLOT = 1_331_810_304
LLAMA_2_7B = (6_476_005_376, 262_410_240)  # weights of linear layers, all others


def state_bytes(parameters: int, bytes_each: int, optimizer: str) -> int:
    """Weights, gradients and optimizer state of a full fine-tune."""
    moments = {"adamw": 2 * bytes_each, "adamw_8bit": 2, "sgd": 0}[optimizer]
    return parameters * (2 * bytes_each + moments)


def nf4_bytes(linear: int, other: int, double: bool) -> int:
    """A frozen NF4 model: packed linear layers with their scales, the rest in 16 bits."""
    blocks = -(-linear // 64)
    scales = blocks + 4 * -(-blocks // 256) if double else 4 * blocks
    return -(-linear // 2) + scales + 2 * other


def live_bytes(model: nn.Module, optimizer: Any) -> tuple[int, int]:
    """Bytes of the gradients and of the optimizer's state, as they are now."""
    return gradient_bytes(model), optimizer_state_bytes(optimizer)


def activation_bytes(layers: int, tokens: int, hidden: int, layer_bytes: int, checkpointing: bool) -> int:
    """Most that the forward pass, or a recomputed layer, keeps."""
    if not checkpointing:
        return layers * tokens * layer_bytes
    return layers * tokens * hidden * 2 + tokens * layer_bytes


def explain_excess(
    printed: Sequence[int], predicted: Sequence[int], candidates: Mapping[str, int]
) -> str | None:
    """Name the candidate that is the same distance between print and prediction in every run."""
    for name, size in candidates.items():
        if all(abs(p - q - size) <= 0.01 * size for p, q in zip(printed, predicted, strict=True)):
            return name
    return None


def largest_batch(fixed: int, row: int, card: int, context: int) -> int:
    """Rows that fit beside what doesn't depend on the batch."""
    return max(0, (card - context - fixed) // row)


def read_timeline(timeline: Timeline) -> tuple[int, str, str]:
    """The highest point: bytes, phase, and the category that is largest there."""
    total = timeline.allocated_bytes
    at = total.index(max(total))
    largest = max(timeline.by_category, key=lambda category: timeline.by_category[category][at])
    return total[at], timeline.phase_at(timeline.positions[at]), largest


def predict_run(parameters: int, shape: Mapping[str, int], rows: int, length: int) -> dict[str, int]:
    """Return what is alive after a step of a plain fp32 loop with AdamW, by category."""
    tokens = rows * length
    numbers = {
        "weights": parameters,
        "gradients": parameters,
        "optimizer_state": 2 * parameters,
        "logits_and_loss": tokens * shape["vocab_size"],
        "kv_cache": 2 * shape["layers"] * tokens * shape["kv_heads"] * shape["head_dim"],
    }
    return {name: 4 * count for name, count in numbers.items()}


def lean_settings(rows: int) -> dict[str, Any]:
    """Return settings of a step that keeps one row's activations of one layer at a time."""
    return {
        "per_device_train_batch_size": 1,
        "gradient_accumulation_steps": rows,
        "gradient_checkpointing": True,
    }


LEANEST = 1.5
"""What a step may need at most in exercise 5.9, in multiples of 16 bytes a parameter."""

_LEAN = {
    "per_device_train_batch_size": 1,
    "gradient_accumulation_steps": 1,
    "gradient_checkpointing": False,
    "optim": "adamw_torch",
}


@cache
def _peak(settings: tuple[tuple[str, Any], ...]) -> float:
    """Measured peak of a step of the tiny model, in multiples of 16 bytes a parameter."""
    model = tiny_model()
    run = {"method": "full", "loop": "plain", "dtype": "fp32", "max_length": 128}
    seen = measured(module=model, **run, **dict(settings)).peak_bytes
    return seen / (16 * sum(p.numel() for p in model.parameters()))


def _lean_problem(got: Any, expected: Any) -> str | None:
    """What is wrong with somebody's settings, or None."""
    if not isinstance(got, dict):
        return f"{type(got).__name__} is no dict of settings"
    if unknown := set(got) - set(_LEAN):
        return f"{sorted(map(str, unknown))[0]!r} is none of the four settings"
    settings = _LEAN | got
    if settings["optim"] not in ("adamw_torch", "adamw_single"):
        return f"optim={settings['optim']!r} is another optimizer than AdamW in fp32"
    batch, accumulation = (settings[name] for name in list(_LEAN)[:2])
    if not all(isinstance(n, int) and n > 0 for n in (batch, accumulation)):
        return "a batch or its parts are no whole number above 0"
    rows = expected["gradient_accumulation_steps"]
    if batch * accumulation != rows:
        return f"{batch} rows x {accumulation} are {batch * accumulation} a step, not {rows}"
    peak = _peak(tuple(sorted(settings.items())))
    return None if peak <= LEANEST else f"the peak is {peak:.2f} times 16 bytes a parameter"


def _trained(
    frozen: bool = False,
    unused: bool = False,
    steps: int = 1,
    kind: str = "adamw",
    dtype: torch.dtype = torch.float32,
    twin: bool = False,
) -> tuple:
    torch.manual_seed(0)
    layers = [nn.Linear(16, 8), nn.ReLU(), nn.Linear(8, 4, bias=False)]
    if twin:
        layers = [nn.Linear(16, 16, bias=False), nn.ReLU(), nn.Linear(16, 16, bias=False)]
    model = nn.Sequential(*layers).to(dtype)
    if frozen:
        model[0].requires_grad_(False)
    if unused:
        model.extra = nn.Linear(4, 4)
    trainable = [p for p in model.parameters() if p.requires_grad]
    makers = {"adamw": torch.optim.AdamW, "sgd": torch.optim.SGD}
    optimizer = makers[kind](trainable, lr=1e-3)
    for _ in range(steps):
        optimizer.zero_grad()
        model[2](model[1](model[0](torch.ones(3, 16, dtype=dtype)))).sum().backward()
        optimizer.step()
    return model, optimizer


def _noted() -> tuple:
    model, optimizer = _trained()
    optimizer.state[model[0].weight] |= {"name": "first", "history": [1, 2], "momentum": None}
    return model, optimizer


def _line(by_category: Mapping[str, Sequence[int]], marks: Sequence[tuple[int, str]]) -> Timeline:
    points = len(next(iter(by_category.values())))
    positions = tuple(10 * i for i in range(points))
    return Timeline(positions, {c: tuple(n) for c, n in by_category.items()}, tuple(marks))


_STEP = _line(
    {
        "weights": [5, 5, 5, 5, 5, 5],
        "activations": [0, 3, 6, 2, 0, 0],
        "gradients": [0, 0, 0, 3, 4, 4],
        "optimizer_temporaries": [0, 0, 0, 0, 4, 0],
    },
    [(0, "load"), (10, "forward"), (30, "backward"), (40, "step")],
)
_LOSS = _line(
    {"weights": [5, 5, 5, 5], "logits_and_loss": [0, 1, 9, 0], "activations": [0, 4, 4, 1]},
    [(0, "load"), (10, "forward"), (20, "backward")],
)
_TWICE = _line(
    {"weights": [2, 2, 2, 2], "activations": [0, 7, 1, 7]},
    [(0, "load"), (10, "forward"), (20, "backward"), (30, "step")],
)
# Printed by a public article's script, and predicted for it, in bytes.
_PREDICTED = (11_240_678_912, 11_705_476_608, 12_633_499_136)
_COPY, _WEIGHTS = 2_765_357_568, 2_663_620_608
_CANDIDATES = {
    "the weights alone": _WEIGHTS,
    "a second copy of the model": _COPY,
    "the CUDA context": 400 * MIB,
}


EXERCISES = (
    Exercise(
        "5.1",
        "bytes per parameter",
        state_bytes,
        level="warm-up",
        difficulty=2,
        importance=5,
        minutes=8,
        hints=(
            "How many numbers belong to one parameter, and how many bytes has each?",
            "A weight and a gradient of bytes_each. Moments: two of bytes_each, two of one byte, or "
            "none, by the optimizer. Times the parameters.",
        ),
        lesson="What is left after the step",
        cases=(
            Case(
                "AdamW in fp16",
                (POLYGLOT, 2, "adamw"),
                "A weight, a gradient, and AdamW's two moments, all in the dtype of the weights: 2 + 2 + 4 bytes.",
                mistakes=(
                    Mistake(
                        2 * POLYGLOT, "Those are the weights alone: each also has a gradient and two moments."
                    ),
                    Mistake(
                        6 * POLYGLOT,
                        "One part is missing: weight, gradient, and two moments make four numbers.",
                    ),
                    Mistake(
                        12 * POLYGLOT,
                        "torch.optim.AdamW keeps its moments in the dtype of the weights, not in fp32.",
                    ),
                    Mistake(
                        16 * POLYGLOT, "16 bytes a parameter is fp32: here each number takes bytes_each."
                    ),
                ),
            ),
            Case("AdamW in fp32", (1000, 4, "adamw"), "The same four numbers of 4 bytes.", expected=16_000),
            Case(
                "8-bit AdamW",
                (1000, 4, "adamw_8bit"),
                "Its two moments take one byte each, whatever the weights are in; gradients stay as they are.",
                expected=10_000,
                mistakes=(
                    Mistake(8000, "The moments are small, not gone: one byte each."),
                    Mistake(9000, "There are two moments, of one byte each."),
                    Mistake(16_000, "8-bit AdamW keeps one byte a moment, not the dtype of the weights."),
                    Mistake(
                        12_000, "One byte a moment, and there are two: that is 2 bytes, not the dtype's 4."
                    ),
                    Mistake(4000, "Weights and gradients stay in the dtype of the weights: bytes_each."),
                ),
            ),
            Case(
                "SGD",
                (1000, 4, "sgd"),
                "SGD without momentum remembers nothing: weights and gradients.",
                expected=8000,
                mistakes=(Mistake(12_000, "SGD has no moment here: it is without momentum."),),
            ),
        ),
    ),
    Exercise(
        "5.2",
        "an NF4 model in bytes",
        nf4_bytes,
        level="core",
        difficulty=3,
        importance=4,
        minutes=12,
        hints=(
            "Count blocks first. What belongs to each started block?",
            "Half a byte for each linear weight, rounded up to whole bytes. Started blocks of 64. "
            "Four bytes a block, or one byte a block and four more for every started 256 blocks. Two "
            "bytes for every other parameter.",
        ),
        lesson="What each trick buys",
        cases=(
            Case(
                "Llama-2-7b, scales in fp32",
                (*LLAMA_2_7B, False),
                "Half a byte a weight, four bytes for each block of 64, and two bytes for every other parameter.",
                mistakes=(
                    Mistake(
                        LLAMA_2_7B[0] // 2 + 2 * LLAMA_2_7B[1],
                        "The scales are missing: one fp32 number for each 64 weights.",
                    ),
                    Mistake(
                        sum(LLAMA_2_7B) // 2 + 4 * (LLAMA_2_7B[0] // 64),
                        "Embeddings, head and norms aren't quantized: two bytes each.",
                    ),
                    Mistake(
                        LLAMA_2_7B[0] // 2 + LLAMA_2_7B[0] // 64 + 2 * LLAMA_2_7B[1],
                        "Without double quantization a scale is fp32: four bytes.",
                    ),
                ),
            ),
            Case(
                "double quantization",
                (*LLAMA_2_7B, True),
                "A scale takes one byte then, and each 256 scales have one fp32 scale of their own.",
                mistakes=(
                    Mistake(
                        LLAMA_2_7B[0] // 2 + LLAMA_2_7B[0] // 64 + 2 * LLAMA_2_7B[1],
                        "The 8-bit scales have scales too: 4 bytes for each 256 of them.",
                    ),
                    Mistake(
                        LLAMA_2_7B[0] // 2 + 4 * (LLAMA_2_7B[0] // 64) + 2 * LLAMA_2_7B[1],
                        "With double quantization a block's scale takes one byte, not four.",
                    ),
                ),
            ),
            Case(
                "a last block that isn't full",
                (100, 0, True),
                "50 bytes of weights, a scale for each of the two started blocks, and 4 bytes for the scales' own.",
                expected=50 + 2 + 4,
                mistakes=(
                    Mistake(
                        64 + 2 + 4,
                        "Only the scale of a started block is whole. Its weights take half a byte each: 100 of them 50.",
                    ),
                    Mistake(
                        50 + 1 + 4, "The second block holds 36 weights and has a scale of its own: round up."
                    ),
                    Mistake(
                        50 + 2, "Two scales begin a block of 256: it has its fp32 scale already, 4 bytes."
                    ),
                ),
            ),
            Case(
                "an odd number of weights",
                (129, 7, False),
                "65 bytes of weights (the last byte is half used), 3 scales of 4 bytes, and 7 x 2 bytes.",
                expected=65 + 12 + 14,
                mistakes=(
                    Mistake(
                        64 + 12 + 14, "129 half bytes are 64.5: the last weight needs its byte, round up."
                    ),
                ),
            ),
        ),
    ),
    Exercise(
        "5.3",
        "gradients and optimizer state of a live model",
        live_bytes,
        level="core",
        difficulty=3,
        importance=4,
        minutes=15,
        hints=(
            "Not every parameter has a gradient, and not everything in an optimizer's state is a tensor.",
            "Add up the bytes of each gradient that exists. For the state go over the dictionaries of"
            " all parameters and add up the bytes of what is a tensor, as large as its own dtype "
            "makes it.",
        ),
        lesson="What is left after the step",
        cases=(
            Case(
                "after one step of AdamW",
                _trained,
                "Add up the gradients, then every tensor in optimizer.state: moments and step counters.",
                mistakes=(
                    Mistake(lambda got: got == (672, 672), "AdamW has two moments for each parameter."),
                    Mistake(
                        lambda got: got == (672, 1344),
                        "Each parameter's step counter is a tensor in the state too.",
                    ),
                    Mistake(
                        lambda got: got == (168, 339),
                        "Those are numbers of elements: multiply by element_size().",
                    ),
                    Mistake(
                        lambda got: isinstance(got, int), "Return both: (gradient bytes, optimizer bytes)."
                    ),
                ),
            ),
            Case(
                "a frozen layer",
                lambda: _trained(frozen=True),
                "A frozen parameter has no gradient and no state.",
                mistakes=(
                    Mistake(
                        lambda got: isinstance(got, tuple) and got[0] == 672,
                        "Count p.grad where there is one, not p.",
                    ),
                ),
            ),
            Case(
                "a layer that was never used", lambda: _trained(unused=True), "Its gradient is None: skip it."
            ),
            Case(
                "before the first step",
                lambda: _trained(steps=0),
                "No gradients, no state: (0, 0).",
                expected=(0, 0),
            ),
            Case(
                "in 16 bits",
                lambda: _trained(dtype=torch.bfloat16),
                "The gradients have 2 bytes a number here, and so have the moments; the step counters keep 4.",
                mistakes=(
                    Mistake(
                        lambda got: got[0] == 672,
                        "A number doesn't always take 4 bytes: ask each tensor (element_size() or nbytes).",
                    ),
                ),
            ),
            Case(
                "things that aren't tensors",
                _noted,
                "A state may hold other things beside tensors, here a text, a list and a None: count tensors only.",
            ),
            Case(
                "two layers of the same size",
                lambda: _trained(twin=True),
                "Two gradients of the same size are two gradients.",
            ),
            Case(
                "SGD",
                lambda: _trained(kind="sgd"),
                "SGD without momentum has an empty state: 0 bytes.",
            ),
        ),
    ),
    Exercise(
        "5.4",
        "activations, with and without checkpointing",
        activation_bytes,
        level="warm-up",
        difficulty=2,
        importance=4,
        minutes=8,
        hints=(
            "What stays in every layer, and what exists for one layer at a time?",
            "Without checkpointing: layers times tokens times layer_bytes. With it: every layer's "
            "input, two bytes for each number, plus one layer in full.",
        ),
        lesson="What each trick buys",
        cases=(
            Case(
                "all layers keep theirs",
                (24, 1024, 2048, 57_000, False),
                "Every layer keeps layer_bytes for every token.",
                mistakes=(
                    Mistake(1024 * 57_000, "That is one layer: there are `layers` of them."),
                    Mistake(24 * 57_000, "layer_bytes is for one token."),
                ),
            ),
            Case(
                "checkpointing",
                (24, 1024, 2048, 57_000, True),
                "Each layer's input stays (hidden numbers of 2 bytes a token); one layer at a time is recomputed in full.",
                mistakes=(
                    Mistake(
                        24 * 1024 * 2048 * 2,
                        "A layer is recomputed in full before its backward pass: add one layer's share.",
                    ),
                    Mistake(
                        24 * 1024 * 2048 + 1024 * 57_000, "A number of the residual stream takes 2 bytes."
                    ),
                    Mistake(1024 * 2048 * 2 + 1024 * 57_000, "Every layer's input is kept, not only one."),
                    Mistake(24 * 1024 * 57_000, "With checkpointing a layer keeps only its input."),
                ),
            ),
            Case(
                "one layer",
                (1, 10, 64, 1000, True),
                "Its input, and all of it once more when it is recomputed.",
                expected=11_280,
            ),
        ),
    ),
    Exercise(
        "5.5",
        "find the leak",
        explain_excess,
        level="core",
        difficulty=3,
        importance=3,
        minutes=12,
        hints=(
            "What is printed minus predicted, for each run?",
            "For each candidate, look whether every run's difference (with its sign) lies within 1 % "
            "of the candidate's size. The first that passes in all runs is the answer; none is None.",
        ),
        lesson="Find the leak",
        cases=(
            Case(
                "the article's three runs",
                ([p + _COPY for p in _PREDICTED], list(_PREDICTED), dict(_CANDIDATES)),
                "Take printed minus predicted for each run: it is the same in all three, and one candidate has that size.",
                mistakes=(
                    Mistake(
                        "the weights alone",
                        "Close, but 4 % too small: compare within 1 %. Buffers are part of a model.",
                    ),
                    Mistake(
                        None, "The distance is the same in every run: look for a candidate within 1 % of it."
                    ),
                ),
            ),
            Case(
                "a distance that grows with the batch",
                ([p + n * _COPY for n, p in enumerate(_PREDICTED, 1)], list(_PREDICTED), dict(_CANDIDATES)),
                "A leak is the same in every run. Here the distance grows, so no candidate explains it: return None.",
                expected=None,
                mistakes=(
                    Mistake("a second copy of the model", "It fits the first run only: all runs must agree."),
                ),
            ),
            Case(
                "nothing printed in excess",
                ([10 * GIB], [10 * GIB], dict(_CANDIDATES)),
                "The distance is 0: no candidate has that size.",
                expected=None,
            ),
            Case(
                "a little noise",
                ([3 * GIB + 400 * MIB + 1000, 4 * GIB + 401 * MIB], [3 * GIB, 4 * GIB], dict(_CANDIDATES)),
                "Allow 1 % of the candidate's size.",
                expected="the CUDA context",
                mistakes=(Mistake(None, "Allow 1 % of the candidate's size: readings vary a little."),),
            ),
            Case(
                "nearly 1 % off",
                ([5009, 6991], [4000, 6000], {"a thousand": 1000}),
                "1,009 and 991 lie within 1 % of 1,000.",
                expected="a thousand",
            ),
            Case(
                "right on average",
                ([4500, 7500], [4000, 6000], {"a thousand": 1000}),
                "500 and 1,500 are 1,000 on average only: it must fit in every run.",
                expected=None,
            ),
            Case(
                "just over 1 %",
                ([5011, 7000], [4000, 6000], {"a thousand": 1000}),
                "1,011 doesn't lie within 1 % of 1,000, and all runs must.",
                expected=None,
            ),
            Case(
                "1 % of the candidate",
                ([102_000], [100_000], {"a thousand": 1000}),
                "The 1 % are of the candidate's size, not of what was printed.",
                expected=None,
            ),
            Case(
                "printed below the prediction",
                ([3000, 5000], [4000, 6000], {"a thousand": 1000}),
                "Less was printed than predicted: that is no leak. Keep the sign of the distance.",
                expected=None,
                mistakes=(
                    Mistake(
                        "a thousand",
                        "The sign is lost: here less was printed than predicted, no leak explains that.",
                    ),
                ),
            ),
        ),
    ),
    Exercise(
        "5.6",
        "the largest batch on a card",
        largest_batch,
        level="warm-up",
        difficulty=1,
        importance=4,
        minutes=5,
        hints=(
            "What of the card is left for rows?",
            "Take context and fixed part off the card, divide by a row in whole numbers, and never "
            "answer less than 0.",
        ),
        lesson="What fits on a T4",
        cases=(
            Case(
                "a T4",
                (9 * GIB, 270 * MIB, int(14.75 * GIB), 550 * MIB),
                "What the card has, less the context and what is there for every batch, in whole rows.",
                expected=19,
                mistakes=(
                    Mistake(20, "Rounded up: the last row would fit only in part."),
                    Mistake(21, "The CUDA context takes its part of the card as well."),
                    Mistake(53, "What doesn't depend on the batch comes off first."),
                    Mistake(55, "Context and what doesn't depend on the batch come off first."),
                    Mistake(lambda got: isinstance(got, float), "Half a row is no row: whole numbers only."),
                ),
            ),
            Case(
                "not even the model fits",
                (15 * GIB, 700 * MIB, int(14.75 * GIB), 480 * MIB),
                "No row fits: 0, not a negative number.",
                expected=0,
            ),
            Case(
                "an exact fit",
                (10 * GIB, GIB, 15 * GIB + 512 * MIB, 512 * MIB),
                "A row that ends at the last byte fits.",
                expected=5,
            ),
        ),
    ),
    Exercise(
        "5.7",
        "read a timeline",
        read_timeline,
        level="core",
        difficulty=3,
        importance=3,
        minutes=15,
        hints=(
            "The peak is one of the sum, not one of a category.",
            "Add the categories up position by position and find the first place of the highest sum. "
            "The phase belongs to the position there, the category is the one with the most bytes "
            "there.",
        ),
        lesson="A step, from left to right",
        cases=(
            Case(
                "a peak in the optimizer step",
                (_STEP,),
                "At position 40 the categories sum to 13, most of it weights; the mark of 40 says step.",
                expected=(13, "step", "weights"),
                mistakes=(
                    Mistake(
                        lambda got: got[0] == 6,
                        "That is one category's highest point: add the categories up first.",
                    ),
                    Mistake(
                        lambda got: got[0] == 11,
                        "That is the end of the forward pass; it gets higher later.",
                    ),
                    Mistake(lambda got: got[0] == 9, "That is the end of the step: it was higher before."),
                    Mistake(
                        lambda got: got[0] in (40, 4),
                        "The bytes come first: the height of the peak, not where it stands.",
                    ),
                    Mistake(
                        lambda got: got[0] == 13 and got[1] == "load",
                        "phase_at takes a position (timeline.positions[i]), not an index.",
                    ),
                    Mistake(
                        lambda got: got[0] == 13 and got[1:] == ("weights", "step"),
                        "The order is bytes, phase, category.",
                    ),
                    Mistake(
                        lambda got: got[0] == 13 and got[1] != "step",
                        "The bytes are right. The phase is that of the peak's own position.",
                    ),
                    Mistake(
                        lambda got: got[0] == 13 and got[2] == "activations",
                        "Activations have the highest point of all, but elsewhere: ask for the largest at the peak.",
                    ),
                ),
            ),
            Case(
                "a peak at the loss",
                (_LOSS,),
                "The largest category is the one with the most bytes at the peak, not the most on the whole.",
                expected=(18, "backward", "logits_and_loss"),
            ),
            Case(
                "the same height twice", (_TWICE,), "Take the first.", expected=(9, "forward", "activations")
            ),
        ),
    ),
    Exercise(
        "5.8",
        "predict a run",
        predict_run,
        level="core",
        difficulty=3,
        importance=5,
        minutes=20,
        hints=(
            "Which of the five depend on the batch, and which on the parameters alone?",
            "Four bytes everywhere. One number a parameter for weights and gradients, two for AdamW. Logits: "
            "tokens times vocabulary. The cache: keys and values, for every layer and token, of key heads times "
            "their width.",
        ),
        lesson="What is left after the step",
        cases=(
            Case(
                "1,000 parameters, 4 rows of 6 tokens",
                (1000, {"layers": 3, "heads": 10, "kv_heads": 2, "head_dim": 5, "vocab_size": 70}, 4, 6),
                "24 tokens: logits of 24 x 70 numbers, a cache of 2 x 3 x 24 x 2 x 5, and 1, 1 and 2 numbers a "
                "parameter; each number takes 4 bytes.",
                expected={
                    "weights": 4000,
                    "gradients": 4000,
                    "optimizer_state": 8000,
                    "logits_and_loss": 6720,
                    "kv_cache": 5760,
                },
                mistakes=(
                    Mistake(
                        lambda got: got["weights"] == 2000,
                        "That is fp16: in fp32 a number takes 4 bytes.",
                    ),
                    Mistake(
                        lambda got: got["weights"] == 1000,
                        "Those are numbers: each takes 4 bytes in fp32.",
                    ),
                    Mistake(
                        lambda got: got["optimizer_state"] == 4000,
                        "AdamW keeps two moments for each parameter.",
                    ),
                    Mistake(
                        lambda got: got["kv_cache"] == 2880,
                        "The cache holds keys and values: two numbers where you count one.",
                    ),
                    Mistake(
                        lambda got: got["kv_cache"] == 28_800,
                        "Only the key heads are kept (kv_heads); query heads have no cache.",
                    ),
                    Mistake(
                        lambda got: got["kv_cache"] == 1920,
                        "Every layer has keys and values of its own.",
                    ),
                    Mistake(
                        lambda got: got["logits_and_loss"] == 1680,
                        "A batch has rows times length tokens.",
                    ),
                    Mistake(
                        lambda got: got["logits_and_loss"] == 280,
                        "Logits exist for every token, not for the last of a row.",
                    ),
                    Mistake(
                        lambda got: len(got) < 5,
                        "Five categories are asked for, under the names of the docstring.",
                    ),
                ),
            ),
            Case(
                "another shape",
                (50, {"layers": 1, "heads": 4, "kv_heads": 4, "head_dim": 8, "vocab_size": 9}, 2, 3),
                "All in fp32; what the batch makes grows with rows times length.",
            ),
        ),
    ),
    Exercise(
        "5.9",
        "as few bytes as you can",
        lean_settings,
        level="stretch",
        difficulty=3,
        importance=3,
        minutes=20,
        hints=(
            "Where is the peak of the step as it is? Which trick of the lesson acts there?",
            "Split the rows into micro-batches until one is as small as it gets, and keep a layer's input in place of "
            "all that it computes. Then look whether the optimizer's temporaries can be smaller.",
        ),
        lesson="What each trick buys",
        cases=(
            Case(
                "4 rows a step",
                (4,),
                f"The measured peak may be {LEANEST} times 16 bytes a parameter; two tricks of the lesson together get there.",
                compare=_lean_problem,
                mistakes=(
                    Mistake(
                        lambda got: bool(got.keys() - _LEAN.keys()),
                        "Only per_device_train_batch_size, gradient_accumulation_steps, gradient_checkpointing and "
                        "optim may be set: the rest of the run stays as it is.",
                    ),
                    Mistake(
                        lambda got: (
                            "adamw" not in got.get("optim", "adamw") or "8bit" in got.get("optim", "")
                        ),
                        "Another optimizer trains another model: AdamW in fp32 stays.",
                    ),
                    Mistake(
                        lambda got: (
                            got.get("per_device_train_batch_size", 1)
                            * got.get("gradient_accumulation_steps", 1)
                            != 4
                        ),
                        "The step must see all its rows: batch size times accumulation.",
                    ),
                    Mistake(
                        lambda got: not got.get("gradient_checkpointing"),
                        "Each layer still keeps all that it computed: checkpointing keeps its input alone.",
                    ),
                    Mistake(
                        lambda got: got.get("per_device_train_batch_size", 1) > 1,
                        "Several rows are in memory at once: make the micro-batch smaller.",
                    ),
                ),
            ),
            Case(
                "6 rows a step",
                (6,),
                "The same for any number of rows: batch size times accumulation are `rows`.",
                compare=_lean_problem,
            ),
        ),
    ),
)
