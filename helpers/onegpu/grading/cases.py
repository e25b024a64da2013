"""Cases other than the lab's own, drawn anew each time: a function that only knows the lab's numbers fails here.

Each draw is an ordinary input as the exercise's text describes it, far from its edges: edges are the lab's own cases'
work, which a student can see.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from random import Random
from typing import Any

from onegpu.exercises import Case, Exercise

NAME = "an input that the lab doesn't show"
HOW_MANY = 2
WITHOUT = frozenset({"1.10", "2.8", "4.9", "7.8"})
"""Exercises without parameters, or judged by a property of their own input: nothing can be drawn for them."""

_WORDS = [
    "amber",
    "birch",
    "cedar",
    "delta",
    "ember",
    "fjord",
    "grove",
    "heath",
    "inlet",
    "jetty",
    "knoll",
    "lagoon",
    "maple",
    "north",
    "ocean",
    "pearl",
]


def other_cases(exercise: Exercise, random: Random) -> tuple[Case, ...]:
    """Return cases with drawn inputs, judged as the lab's first case is; none where there is no way to draw one."""
    draw = _DRAWS.get(exercise.number)
    if draw is None:
        return ()
    model = exercise.cases[0]
    return tuple(
        replace(
            Case(
                NAME,
                _maker(draw, random.randrange(2**62)),
                "The lab's own numbers come out right, others don't.",
            ),
            rtol=max(model.rtol, 1e-4),
            atol=max(model.atol, 1e-6),
            compare=model.compare,
        )
        for _ in range(HOW_MANY)
    )


def _maker(draw: Callable[[Random], tuple], seed: int) -> Callable[[], tuple]:
    """The same inputs at each call, made anew: nothing that a student does to them lasts."""
    return lambda: draw(Random(seed))


def _text(r: Random, words: int) -> str:
    return " ".join(r.choice(_WORDS) for _ in range(words))


def _ids(r: Random, n: int) -> list[int]:
    return [r.randrange(2, 900) for _ in range(n)]


def _labels(r: Random, n: int) -> list[int]:
    """Labels of which about a third are masked; the first is, the last isn't."""
    return [-100, *(r.choice((-100, *_ids(r, 2))) for _ in range(n - 2)), r.randrange(2, 900)]


def _floats(r: Random, *shape: int, scale: float = 2.0) -> Any:
    import torch

    count = 1
    for n in shape:
        count *= n
    return torch.tensor([r.gauss(0, scale) for _ in range(count)]).reshape(shape)


def _tokens_of_text(r: Random) -> tuple:
    ends = [0]
    for _ in range(8):
        ends.append(ends[-1] + r.randint(1, 4))
    first = r.randint(1, 4)
    last = r.randint(first + 1, 7)
    return _ids(r, 8), list(itertools.pairwise(ends)), [(ends[first], ends[last])]


def _chat(r: Random) -> tuple:
    from onegpu.exercises.sft_datasets import chatml

    turns = [("user", "assistant")] * r.randint(1, 3)
    messages = [{"role": role, "content": _text(r, r.randint(1, 4))} for turn in turns for role in turn]
    return messages, partial(chatml)


def _reward_head(r: Random) -> tuple:
    pairs = r.sample([(i, j) for i in range(5) for j in range(5) if i != j], 4)
    return _floats(r, 5, 3), pairs, r.randint(2, 5), r.choice((0.1, 0.3, 0.7))


def _row(r: Random) -> tuple:
    output = r.choice(
        (
            _text(r, 3),
            "",
            "N/A",
            r.uniform(1, 9),
            f"{_text(r, 1)}\n{r.randint(2, 30)}. Instruction: {_text(r, 2)}",
        )
    )
    return ({"instruction": _text(r, 3), "input": "", "output": output},)


def _prompts(r: Random) -> tuple:
    train = [_text(r, 3) for _ in range(4)]
    again = f" {r.choice(train).upper().replace(' ', '  ')} "
    evaluation = [_text(r, 4) for _ in range(4)]
    evaluation.insert(r.randint(0, 4), again)
    return train, evaluation


def _held(r: Random) -> tuple:
    """A number that fp16 or bf16 holds, and the format's widths."""
    exponent, mantissa = r.choice(((5, 10), (8, 7)))
    field = r.randrange(1, 2**exponent - 1)
    size = (1 + r.randrange(2**mantissa) / 2**mantissa) * 2.0 ** (field - 2 ** (exponent - 1) + 1)
    return r.choice((-1, 1)) * size, exponent, mantissa


def _checkpoint(r: Random) -> tuple:
    from onegpu.exercises.dtype_sizing import safetensors_file

    return (
        safetensors_file({word: ("F16", [n := r.randint(1, 90)], 2 * n) for word in r.sample(_WORDS, 4)}),
    )


def _told(r: Random) -> tuple:
    import torch

    from onegpu.exercises.quantization import Told

    tokens = r.randint(4, 9)
    odds = torch.tensor([[r.uniform(0.1, 1) for _ in range(12)] for _ in range(tokens)])
    ids = torch.tensor([[r.randrange(12) for _ in range(tokens)]])
    return Told(odds / odds.sum(1, keepdim=True)), ids


def _layers(r: Random) -> Any:
    from torch import nn

    wide = r.randint(3, 20)
    return nn.Sequential(
        nn.Linear(r.randint(3, 20), wide), nn.LayerNorm(wide), nn.Linear(wide, r.randint(2, 9))
    )


def _stepped(r: Random) -> tuple:
    import torch

    model = _layers(r)
    model[0].requires_grad_(r.random() < 0.5)
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-3)
    model(torch.ones(2, model[0].in_features)).sum().backward()
    optimizer.step()
    return model, optimizer


def _outliers(r: Random) -> tuple:
    x = _floats(r, 3, 4, scale=1.0).clamp(-4, 4)
    x[:, r.randrange(4)] = _floats(r, 3).abs() + 7
    return x, 6.0


def _nearest(r: Random) -> tuple:
    from onegpu.quantization import table

    return _floats(r, r.randint(5, 9)), table("nf4")


def _codes(r: Random) -> tuple:
    import torch

    return (torch.tensor([r.randrange(16) for _ in range(r.randint(5, 12))], dtype=torch.uint8),)


def _excess(r: Random) -> tuple:
    sizes = {"the context": r.randint(300, 500) * 2**20, "a copy": r.randint(2000, 3000) * 2**20}
    name = r.choice(list(sizes))
    predicted = [r.randint(8, 14) * 2**30 for _ in range(3)]
    return [p + sizes[name] for p in predicted], predicted, sizes


def _timeline(r: Random) -> tuple:
    from onegpu.gpu_memory import Timeline

    points = 6
    numbers = r.sample(range(1, 60), 3 * points)
    by_category = {
        name: tuple(numbers[i * points : (i + 1) * points])
        for i, name in enumerate(("weights", "activations", "gradients"))
    }
    totals = [sum(column) for column in zip(*by_category.values(), strict=True)]
    if totals.count(max(totals)) > 1:
        return _timeline(r)
    marks = ((0, "load"), (10, "forward"), (30, "backward"), (50, "step"))
    return (Timeline(tuple(range(0, 10 * points, 10)), by_category, marks),)


def _lists(r: Random) -> list[list[int]]:
    return [_ids(r, r.randint(0, 6)) for _ in range(r.randint(3, 6))]


def _array(r: Random) -> Any:
    import pyarrow as pa

    return pa.array(_lists(r), pa.list_(pa.int64()))[1:]


def _label_array(r: Random) -> Any:
    import pyarrow as pa

    return pa.array([_labels(r, r.randint(2, 6)) for _ in range(r.randint(3, 6))])[1:]


def _dataset(r: Random) -> tuple:
    import datasets
    import pyarrow as pa

    rows = [_labels(r, r.randint(2, 6)) for _ in range(8)]
    table = pa.table({"input_ids": [_ids(r, len(row)) for row in rows], "labels": rows})
    dataset = datasets.Dataset(table, fingerprint=f"{r.getrandbits(64):x}")
    return (dataset.select(sorted(r.sample(range(8), 5))),)


def _packed(r: Random) -> tuple:
    found = []
    for _ in range(3):
        labels = _labels(r, r.randint(3, 6))
        found.append({"input_ids": _ids(r, len(labels)), "labels": labels})
    return (found,)


def _adapter(r: Random) -> tuple:
    wide, out, rank = r.randint(3, 5), r.randint(3, 6), r.randint(2, 3)
    return wide, out, rank


def _lora(r: Random) -> tuple:
    wide, out, rank = _adapter(r)
    return (
        _floats(r, 2, wide),
        _floats(r, out, wide),
        _floats(r, rank, wide),
        _floats(r, out, rank),
        r.choice((3.0, 5.0, 7.0)),
    )


def _linear(r: Random) -> tuple:
    import torch

    from onegpu.exercises.qlora_finetune import small_layer

    wide, out, rank = _adapter(r)
    return small_layer(torch.nn.Linear, wide, out, torch.float32), rank, r.choice((3.0, 5.0, 7.0)) * rank


def _adapted(r: Random) -> tuple:
    import functools

    from onegpu.exercises.qlora_finetune import Block, lora_linear

    names = r.sample(("q_proj", "k_proj", "linear", "my_q_proj"), 2)
    return Block(), names, functools.partial(lora_linear, r=r.randint(1, 3), alpha=2.0)


def _training(r: Random) -> tuple:
    from onegpu.exercises.qlora_finetune import HeldOutLoss, NextToken, token_batches

    *rows, held_out = ([r.randrange(11) for _ in range(r.randint(3, 6))] for _ in range(4))
    model = NextToken(r.randrange(1000))
    return model, token_batches(*rows), HeldOutLoss(*held_out), r.uniform(0.02, 0.1), r.randint(3, 6)


def _asked(r: Random) -> tuple:
    import functools

    from onegpu.exercises.ray_scale_out import RayHere

    return (
        RayHere(),
        functools.partial(pow, exp=r.randint(2, 4)),
        [r.randint(1, 900) for _ in range(r.randint(3, 6))],
    )


def _shares(r: Random) -> tuple:
    from onegpu.exercises.ray_scale_out import RayHere

    return RayHere(), [[float(r.randint(1, 90)) for _ in range(3)] for _ in range(7)], r.randint(2, 4)


def _steps(r: Random) -> tuple:
    n = r.randint(3, 6)
    waits, works = r.choice(((0.31, 0.12), (0.52, 0.2), (0.13, 0.3), (0.45, 0.1)))
    return [r.uniform(3, 9), *([waits] * n)], [r.uniform(3, 9), *([works] * n)]


def _whole(r: Random, *bounds: tuple[int, int]) -> tuple:
    return tuple(r.randint(*bound) for bound in bounds)


def _pairs_of_rewards(r: Random) -> tuple:
    return _floats(r, 5), _floats(r, 5)


def _logits(r: Random) -> tuple:
    import torch

    labels = torch.tensor([-100, *(r.choice((-100, r.randrange(7))) for _ in range(4)), r.randrange(7)])
    return _floats(r, 6, 7), labels


def _ties(r: Random) -> tuple:
    import torch

    return tuple(torch.tensor([float(r.randint(0, 2)) for _ in range(9)]) for _ in range(2))


def _file(r: Random) -> tuple:
    """Tensors of a checkpoint with their dtypes and shapes, and its metadata."""
    tensors = [
        (name, r.choice(("F32", "BF16", "F16", "U8")), list(_whole(r, (2, 60), (2, 60))))
        for name in r.sample(_WORDS, 4)
    ]
    return tensors, {}


def _run(r: Random) -> tuple:
    """A model's parameters and shape, rows and their length."""
    kv_heads = r.randint(1, 3)
    shape = {
        "layers": r.randint(2, 6),
        "heads": kv_heads * r.randint(1, 3),
        "kv_heads": kv_heads,
        "head_dim": r.randint(3, 9),
        "vocab_size": r.randint(40, 90),
    }
    return r.randint(400, 9000), shape, r.randint(2, 6), r.randint(3, 9)


def _texts_here(r: Random) -> tuple:
    from onegpu.exercises.ray_scale_out import RowsHere, TokenizersHere

    rows = [{"text": _text(r, r.randint(1, 5))} for _ in range(r.randint(8, 12))]
    return RowsHere(rows), TokenizersHere(), r.choice((2, 4))


def _training_here(r: Random) -> tuple:
    from onegpu.exercises.ray_scale_out import TrainHere, fold

    every, steps = r.randint(2, 4), r.randint(11, 14)
    return TrainHere(dies_before=r.randint(every + 1, steps - 2)), partial(fold), steps, every


_DRAWS: dict[str, Callable[[Random], tuple]] = {
    "0.1": lambda r: (2 * r.randint(1000, 10**8) + 1, r.choice((4, 8, 16, 32))),
    "1.1": lambda r: (
        [{"role": ("user", "assistant")[i % 2], "content": _text(r, 3)} for i in range(r.choice((2, 4)))],
    ),
    "1.2": _tokens_of_text,
    "1.9": _chat,
    "2.7": _reward_head,
    "1.3": lambda r: ([_ids(r, r.randint(1, 6)) for _ in range(3)], r.choice((0, 1))),
    "1.4": lambda r: (_labels(r, 9), r.randint(2, 8)),
    "1.5": lambda r: ((ids := _ids(r, 9))[: r.randint(1, 7)], ids),
    "1.6": _row,
    "1.7": _prompts,
    "1.8": lambda r: ([r.randint(1, 9) for _ in range(7)], r.randint(10, 14)),
    "2.1": lambda r: (r.sample(_WORDS, 5), [r.randint(1, 4) for _ in range(5)]),
    "2.2": _pairs_of_rewards,
    "2.3": _ties,
    "2.4": lambda r: ([(_text(r, r.randint(1, 3)), _text(r, r.randint(1, 3))) for _ in range(7)],),
    "2.5": _logits,
    "2.6": lambda r: (*(_floats(r, 4) for _ in range(4)), r.choice((0.05, 0.2, 0.5))),
    "3.1": _held,
    "3.2": lambda r: _whole(r, (6, 8), (2, 23)),
    "3.3": lambda r: (r.uniform(-90, 90), r.choice((7, 10))),
    "3.4": lambda r: (_layers(r),),
    "3.5": lambda r: (
        (block := r.choice((32, 64, 128))) * r.randint(10, 9999) * 2,
        r.randint(10, 9999),
        r.choice((4, 8)),
        block,
        r.choice((8, 16, 32)),
    ),
    "3.6": lambda r: ({word: r.randint(2**30, 40 * 2**30) for word in r.sample(_WORDS, 6)}, r.uniform(8, 24)),
    "3.7": _checkpoint,
    "3.8": _file,
    "4.1": lambda r: (_floats(r, r.randint(5, 9)), r.uniform(0.001, 0.3)),
    "4.2": lambda r: (_floats(r, 12), r.choice((3, 4, 6))),
    "4.3": lambda r: (_floats(r, 12), r.choice((3, 4, 5))),
    "4.4": lambda r: ((n := r.randint(2, 9)), n + 1, r.uniform(0.95, 0.98)),
    "4.5": _nearest,
    "4.6": _codes,
    "4.7": _told,
    "4.8": _outliers,
    "5.1": lambda r: (r.randint(1000, 10**9), r.choice((2, 4)), r.choice(("adamw", "adamw_8bit", "sgd"))),
    "5.2": lambda r: (64 * 256 * r.randint(10, 9999), r.randint(10, 10**8), r.random() < 0.5),
    "5.3": _stepped,
    "5.4": lambda r: (*_whole(r, (3, 40), (100, 4000), (64, 4096), (5000, 90000)), r.random() < 0.5),
    "5.5": _excess,
    "5.6": lambda r: (
        r.randint(2, 9) * 2**30,
        r.randint(100, 900) * 2**20,
        r.randint(14, 40) * 2**30,
        r.randint(300, 600) * 2**20,
    ),
    "5.7": _timeline,
    "5.8": _run,
    "5.9": lambda r: (r.choice((3, 5, 7, 8)),),
    "6.1": lambda r: (sorted(r.randint(3, 60) for _ in range(7)),),
    "6.2": lambda r: (_array(r), r.randint(2, 5)),
    "6.3": lambda r: (_label_array(r),),
    "6.4": _dataset,
    "6.5": lambda r: (*_whole(r, (10, 9999), (10_000, 99_999)), r.choice((16, 32, 64)), r.choice((32, 64))),
    "6.6": lambda r: ([r.randint(1, 300) for _ in range(11)], r.randint(2, 5)),
    "6.7": lambda r: (*_whole(r, (20, 400), (1, 8), (1, 4), (1, 4)), r.randint(1, 5)),
    "6.8": lambda r: (
        *_whole(r, (5, 50), (100, 900)),
        r.uniform(200, 900),
        r.choice((True, False)),
        (r.randint(5, 40), r.uniform(0.5, 9)),
    ),
    "6.9": lambda r: (
        [max(4, int(r.lognormvariate(4, 0.8))) for _ in range(r.randint(200, 280))],
        8,
        r.randint(20, 99),
    ),
    "7.1": _linear,
    "7.2": _adapted,
    "7.3": lambda r: ([_whole(r, (8, 900), (8, 900)) for _ in range(4)], r.randint(2, 64)),
    "7.4": _training,
    "7.5": lambda r: _lora(r)[1:],
    "7.6": _packed,
    "7.7": lambda r: ([(r.uniform(0.5, 8), r.randint(1, 200)) for _ in range(4)],),
    "8.1": lambda r: ([_ids(r, r.randint(1, 3)) for _ in range(r.randint(3, 6))],),
    "8.2": lambda r: r.choice(
        (("SGD", {"lr": r.uniform(0.05, 0.3), "momentum": 0.5}), ("Adam", {"lr": 0.02, "eps": 1e-3}))
    ),
    "8.3": lambda r: ([r.uniform(0.5, 5) for _ in range(4)], [r.randint(1, 90) for _ in range(4)]),
    "8.4": lambda r: (_ids(r, r.randint(5, 11)), r.randint(2, 4)),
    "8.5": lambda r: (
        iter([r.randint(3, 30) for _ in range(4)]),
        r.randint(1, 4),
        r.randint(1, 3),
        r.randint(1, 3),
        float(r.randint(1, 3)),
    ),
    "8.6": _steps,
    "8.7": lambda r: (r.uniform(0.2, 0.9), r.choice((0.07, 0.11, 0.13))),
    "8.8": _asked,
    "8.9": _shares,
    "8.10": _texts_here,
    "8.11": _training_here,
}
