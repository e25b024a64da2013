"""What people hand in for the exercises of lab 07."""

import math

import torch
from onegpu.exercises.answers import Answers
from onegpu.exercises.qlora_finetune import my_rows as library_rows
from torch.nn import functional as F

ANSWERS = Answers()
wrong, right = ANSWERS.wrong, ANSWERS.right

# 7.1 ------------------------------------------------------------------------------------------------------------------
BY_HAND, SCALED = "rank 1, alpha 1", "rank 2, alpha 5"


@wrong("7.1", "the adapter alone", case=BY_HAND, says="the frozen layer x W^T is added")
def adapter_alone(x, weight, a, b, alpha):
    return alpha / a.shape[0] * (x @ a.T @ b.T)


@wrong("7.1", "the frozen layer alone", case=BY_HAND, says="the adapter is missing")
def frozen_alone(x, weight, a, b, alpha):
    return x @ weight.T


@wrong("7.1", "does not transpose", case=BY_HAND, says="stored as (out, in)")
def untransposed(x, weight, a, b, alpha):
    return x @ weight + alpha / a.shape[0] * (x @ a @ b)


@wrong("7.1", "no scale", case=SCALED, says="scale alpha / r is missing")
def unscaled(x, weight, a, b, alpha):
    return x @ weight.T + x @ a.T @ b.T


@wrong("7.1", "scaled by alpha", case=SCALED, says="not by alpha / r")
def by_alpha(x, weight, a, b, alpha):
    return x @ weight.T + alpha * (x @ a.T @ b.T)


@wrong("7.1", "rsLoRA", case=SCALED, says="rank-stabilised")
def by_root(x, weight, a, b, alpha):
    return x @ weight.T + alpha / math.sqrt(a.shape[0]) * (x @ a.T @ b.T)


@wrong("7.1", "scales both", case=SCALED, says="belongs to the adapter only")
def both_scaled(x, weight, a, b, alpha):
    return alpha / a.shape[0] * (x @ weight.T + x @ a.T @ b.T)


@wrong("7.1", "divides by the outputs", case=BY_HAND, says="the inner size")
def by_outputs(x, weight, a, b, alpha):
    return x @ weight.T + alpha / b.shape[0] * (x @ a.T @ b.T)


@wrong("7.1", "two dimensions only", case="a batch of sentences", says="any number of dimensions")
def two_dimensions(x, weight, a, b, alpha):
    return (weight @ x.T + alpha / a.shape[0] * (b @ a @ x.T)).T


@right("7.1", "x @ A.T @ B.T")
def matrix_products(x, weight, a, b, alpha):
    return x @ weight.T + (x @ a.T) @ b.T * (alpha / a.shape[0])


@right("7.1", "one merged weight")
def merged_weight(x, weight, a, b, alpha):
    return F.linear(x, weight + alpha / b.shape[1] * (b @ a))


@right("7.1", "einsum")
def einsum(x, weight, a, b, alpha):
    low = torch.einsum("...i,ri->...r", x, a)
    return torch.einsum("...i,oi->...o", x, weight) + alpha / len(a) * torch.einsum("...r,or->...o", low, b)


# 7.2 ------------------------------------------------------------------------------------------------------------------
START = "from 6 features to 3, rank 2"


@wrong("7.2", "both random", case=START, says="changes the model before the first step")
def both_random(in_features, out_features, r):
    return torch.randn(r, in_features, requires_grad=True), torch.randn(out_features, r, requires_grad=True)


@wrong("7.2", "both zero", case=START, says="nothing is ever learned")
def both_zero(in_features, out_features, r):
    return torch.zeros(r, in_features, requires_grad=True), torch.zeros(out_features, r, requires_grad=True)


@wrong("7.2", "A zero, B random", case=START, says="the other way round")
def a_zero(in_features, out_features, r):
    return torch.zeros(r, in_features, requires_grad=True), torch.randn(out_features, r, requires_grad=True)


@wrong("7.2", "fp16", case=START, says="gradient scaler refuses fp16")
def in_half(in_features, out_features, r):
    a = torch.randn(r, in_features, dtype=torch.float16, requires_grad=True)
    return a, torch.zeros(out_features, r, dtype=torch.float16, requires_grad=True)


@wrong("7.2", "no gradient", case=START, says="both need requires_grad")
def without_gradient(in_features, out_features, r):
    return torch.randn(r, in_features), torch.zeros(out_features, r)


@wrong("7.2", "scaled after requires_grad", case=START, says="takes leaves only")
def no_leaf(in_features, out_features, r):
    a = torch.randn(r, in_features, requires_grad=True) * 0.01
    return a, torch.zeros(out_features, r, requires_grad=True)


@wrong("7.2", "transposed shapes", case=START, says="wrong way round")
def transposed_start(in_features, out_features, r):
    return torch.randn(in_features, r, requires_grad=True), torch.zeros(r, in_features, requires_grad=True)


@wrong("7.2", "in and out exchanged", case=START, says="(r, in_features)")
def exchanged(in_features, out_features, r):
    return torch.randn(r, out_features, requires_grad=True), torch.zeros(in_features, r, requires_grad=True)


@right("7.2", "randn")
def with_randn(in_features, out_features, r):
    a = torch.randn(r, in_features) / r
    a.requires_grad_()
    return a, torch.zeros(out_features, r, requires_grad=True)


@right("7.2", "parameters")
def with_parameters(in_features, out_features, r):
    a = torch.nn.Parameter(torch.nn.Linear(in_features, r, bias=False).weight.detach().clone())
    return a, torch.nn.Parameter(torch.zeros(out_features, r))


@right("7.2", "two linear layers")
def with_layers(in_features, out_features, r):
    down, up = torch.nn.Linear(in_features, r, bias=False), torch.nn.Linear(r, out_features, bias=False)
    torch.nn.init.zeros_(up.weight)
    return down.weight, up.weight


# 7.3 ------------------------------------------------------------------------------------------------------------------
SQUARE, SMOLLM2 = "one square layer", "SmolLM2-135M's seven layers, 30 blocks"


@wrong("7.3", "A only", case=SQUARE, says="one of the two matrices")
def a_only(shapes, r):
    return sum(r * i for _, i in shapes)


@wrong("7.3", "the frozen weights", case=SQUARE, says="frozen weights")
def frozen(shapes, r):
    return sum(o * i for o, i in shapes)


@wrong("7.3", "r times the frozen weights", case=SQUARE, says="r times the frozen")
def r_times(shapes, r):
    return sum(r * o * i for o, i in shapes)


@wrong("7.3", "a float", case=SQUARE, says="is an int")
def as_float(shapes, r):
    return float(sum(r * (o + i) for o, i in shapes))


@wrong("7.3", "all like the first", case=SMOLLM2, says="counted like the first")
def like_the_first(shapes, r):
    return len(shapes) * r * sum(shapes[0]) if shapes else 0


@wrong("7.3", "one block", case=SMOLLM2, says="One block")
def one_block(shapes, r):
    return sum(r * (o + i) for o, i in shapes[:7])


@wrong("7.3", "fails without layers", case="no layer", says="No layers, no parameters")
def needs_a_layer(shapes, r):
    outs, ins = zip(*shapes, strict=True)
    return r * (sum(outs) + sum(ins))


@right("7.3", "numel of real tensors")
def real_tensors(shapes, r):
    return sum(torch.empty(r, i).numel() + torch.empty(o, r).numel() for o, i in shapes)


@right("7.3", "a loop")
def counting_loop(shapes, r):
    total = 0
    for out_features, in_features in shapes:
        total += r * in_features
        total += out_features * r
    return total


@right("7.3", "sums first")
def sums_first(shapes, r):
    return r * sum(sum(shape) for shape in shapes)


# 7.4 ------------------------------------------------------------------------------------------------------------------
MERGE_ONE, SIXTEEN = "rank 1, alpha 4", "a 16-bit base"


@wrong("7.4", "no scale", case=MERGE_ONE, says="scale alpha / r is missing")
def merge_unscaled(weight, a, b, alpha):
    return weight + b @ a


@wrong("7.4", "the adapter alone", case=MERGE_ONE, says="W is still to be added")
def merge_adapter_alone(weight, a, b, alpha):
    return alpha / a.shape[0] * (b @ a)


@wrong("7.4", "A @ B", case=MERGE_ONE, says="the product is B @ A")
def merge_exchanged(weight, a, b, alpha):
    return weight + alpha / a.shape[0] * (a.T @ b.T)


@wrong("7.4", "scaled by alpha", case="rank 2, alpha 5", says="not by alpha / r")
def merge_by_alpha(weight, a, b, alpha):
    return (weight.float() + alpha * (b @ a)).to(weight.dtype)


@wrong("7.4", "float32 comes out", case=SIXTEEN, says="convert the sum")
def merge_float(weight, a, b, alpha):
    return weight.float() + alpha / a.shape[0] * (b @ a)


@wrong("7.4", "rounded twice", case=SIXTEEN, says="Rounded twice")
def merge_twice(weight, a, b, alpha):
    return weight + (alpha / a.shape[0] * (b @ a)).to(weight.dtype)


@wrong("7.4", "in place", case=MERGE_ONE, says="Work on a copy")
def merge_in_place(weight, a, b, alpha):
    weight += alpha / a.shape[0] * (b @ a)
    return weight


@right("7.4", "in float64")
def merge_double(weight, a, b, alpha):
    return (weight.double() + alpha / a.shape[0] * (b.double() @ a.double())).to(weight.dtype)


@right("7.4", "outer products")
def merge_outer(weight, a, b, alpha):
    merged = weight.float()
    for k in range(a.shape[0]):
        merged = merged + alpha / a.shape[0] * torch.outer(b[:, k], a[k])
    return merged.to(weight.dtype)


@right("7.4", "addmm")
def merge_addmm(weight, a, b, alpha):
    return torch.addmm(weight.float(), b.float(), a.float(), alpha=alpha / a.shape[0]).to(weight.dtype)


# 7.5 ------------------------------------------------------------------------------------------------------------------
JOIN = "two examples"


def pack(examples, *, positions=None, labels=None):
    ids, where, what = [], [], []
    for e in examples:
        where += positions(e, len(ids)) if positions else list(range(len(e["input_ids"])))
        what += labels(e) if labels else [-100, *e["labels"][1:]]
        ids += e["input_ids"]
    return {"input_ids": ids, "position_ids": where, "labels": what}


@wrong("7.5", "positions run on", case=JOIN, says="run on over the join")
def run_on(examples):
    return pack(examples, positions=lambda e, at: list(range(at, at + len(e["input_ids"]))))


@wrong("7.5", "positions from 1", case=JOIN, says="counted from 0")
def from_one(examples):
    return pack(examples, positions=lambda e, at: list(range(1, len(e["input_ids"]) + 1)))


@wrong("7.5", "loss across the join", case=JOIN, says="predicted from the last of the first one")
def across(examples):
    return pack(examples, labels=lambda e: list(e["labels"]))


@wrong("7.5", "labels shifted", case=JOIN, says="aren't shifted here")
def shifted(examples):
    return pack(examples, labels=lambda e: [*e["labels"][1:], -100])


@wrong("7.5", "a -100 put in", case=JOIN, says="nothing is put in")
def put_in(examples):
    row = pack(examples, labels=lambda e: list(e["labels"]))
    return row | {"labels": [-100, -100, 12, 2, -100, -100, 21, 2]}


@wrong("7.5", "padded", case=JOIN, says="no padding")
def padded(examples):
    width = max(len(e["input_ids"]) for e in examples)
    return pack(
        [
            {
                key: e[key] + [fill] * (width - len(e[key]))
                for key, fill in (("input_ids", 0), ("labels", -100))
            }
            for e in examples
        ]
    )


@wrong("7.5", "one row an example", case=JOIN, says="join the lists")
def unjoined(examples):
    return {
        "input_ids": [e["input_ids"] for e in examples],
        "position_ids": [list(range(len(e["input_ids"]))) for e in examples],
        "labels": [[-100, *e["labels"][1:]] for e in examples],
    }


@wrong(
    "7.5", "the first two only", case="three examples, one of a single token", says="Each example starts anew"
)
def first_two(examples):
    return pack(examples[:2])


@right("7.5", "a loop")
def row_loop(examples):
    row = {"input_ids": [], "position_ids": [], "labels": []}
    for example in examples:
        for i, (token, label) in enumerate(zip(example["input_ids"], example["labels"], strict=True)):
            row["input_ids"].append(token)
            row["position_ids"].append(i)
            row["labels"].append(-100 if i == 0 else label)
    return row


@right("7.5", "comprehensions")
def comprehensions(examples):
    return {
        "input_ids": [t for e in examples for t in e["input_ids"]],
        "position_ids": [i for e in examples for i in range(len(e["input_ids"]))],
        "labels": [label if i else -100 for e in examples for i, label in enumerate(e["labels"])],
    }


@right("7.5", "itertools")
def chained(examples):
    from itertools import chain

    flat = chain.from_iterable
    return {
        "input_ids": list(flat(e["input_ids"] for e in examples)),
        "position_ids": list(flat(range(len(e["labels"])) for e in examples)),
        "labels": list(flat([-100, *e["labels"][1:]] for e in examples)),
    }


# 7.6 ------------------------------------------------------------------------------------------------------------------
TEN, EMPTY = "10 tokens and 100 tokens", "a micro-batch without supervised tokens"


@wrong("7.6", "mean of means", case=TEN, says="mean of the means")
def mean_of_means(micro_batches):
    return sum(loss for loss, _ in micro_batches) / len(micro_batches)


@wrong("7.6", "a sum of losses", case=TEN, says="grows with the number")
def summed(micro_batches):
    return sum(loss for loss, _ in micro_batches)


@wrong("7.6", "a sum over tokens", case=TEN, says="Divide by the number of tokens")
def summed_tokens(micro_batches):
    return sum(loss * n for loss, n in micro_batches)


@wrong("7.6", "divides by the micro-batches", case=TEN, says="not of tokens")
def by_batches(micro_batches):
    return sum(loss * n for loss, n in micro_batches) / len(micro_batches)


@wrong("7.6", "the last one", case=TEN, says="Only the last micro-batch")
def last_one(micro_batches):
    return micro_batches[-1][0]


@wrong("7.6", "nan * 0", case=EMPTY, says="nan * 0 is nan")
def nan_stays(micro_batches):
    return sum(loss * n for loss, n in micro_batches) / max(1, sum(n for _, n in micro_batches))


@wrong("7.6", "divides by zero", case="nothing supervised at all", says="no division by zero")
def divides(micro_batches):
    return sum(loss * n for loss, n in micro_batches if n) / sum(n for _, n in micro_batches)


@right("7.6", "a loop")
def weighted_loop(micro_batches):
    total, tokens = 0.0, 0
    for loss, n in micro_batches:
        if n > 0:
            total, tokens = total + loss * n, tokens + n
    return total / tokens if tokens else 0.0


@right("7.6", "tensors")
def weighted_tensors(micro_batches):
    losses = torch.tensor([loss for loss, _ in micro_batches], dtype=torch.float64).nan_to_num()
    weights = torch.tensor([n for _, n in micro_batches], dtype=torch.float64)
    return ((losses * weights).sum() / weights.sum().clamp(min=1)).item()


@right("7.6", "a running mean")
def running_mean(micro_batches):
    mean, tokens = 0.0, 0
    for loss, n in micro_batches:
        if n:
            tokens += n
            mean += (loss - mean) * n / tokens
    return mean


# 7.7 ------------------------------------------------------------------------------------------------------------------
OWN = "your rows"


@wrong("7.7", "three rows", case=OWN, says="at least 8 rows")
def three_rows():
    return library_rows()[:3]


@wrong("7.7", "an empty answer", case=OWN, says="needs an answer")
def empty_answer():
    return [*library_rows(), {"instruction": "Who are you?", "output": "  "}]


@wrong("7.7", "texts in place of rows", case=OWN, says="A row is a dict")
def texts():
    return [row["instruction"] + " " + row["output"] for row in library_rows()]


@wrong("7.7", "one row many times", case=OWN, says="weighs double")
def copies():
    return [library_rows()[0] for _ in range(10)]


@wrong("7.7", "an essay", case=OWN, says="Keep it short")
def essay():
    return [*library_rows(), {"instruction": "Tell me all.", "output": "We open at nine. " * 100}]


@wrong("7.7", "names of one's own", case=OWN, says="validator of topic 01")
def own_names():
    return [{"ask": row["instruction"], "say": row["output"]} for row in library_rows()]


@wrong("7.7", "ends with the user", case=OWN, says="validator of topic 01")
def no_last_answer():
    return [{"messages": [{"role": "user", "content": row["instruction"]}]} for row in library_rows()]


@right("7.7", "chats")
def chats():
    return [
        {
            "messages": [
                {"role": "user", "content": row["instruction"]},
                {"role": "assistant", "content": row["output"]},
            ]
        }
        for row in library_rows()
    ]


@right("7.7", "prompt and completion")
def pairs():
    return [{"prompt": row["instruction"], "completion": row["output"]} for row in library_rows()]


@right("7.7", "made in a loop")
def numbers():
    return [{"instruction": f"What is {n} in Roman numerals?", "output": "I" * n} for n in range(1, 9)]


# Statements of the texts, and what ignores them -------------------------------------------------------------------------


@wrong("7.1", "no gradient", case="a gradient for training", says="nothing can be trained")
def without_grad(x, weight, a, b, alpha):
    with torch.no_grad():
        return x @ weight.T + alpha / a.shape[0] * (x @ a.T @ b.T)


@wrong("7.1", "a whole number for the scale", case=SCALED, says="alpha / r times")
def whole_scale(x, weight, a, b, alpha):
    return x @ weight.T + alpha // a.shape[0] * (x @ a.T @ b.T)


@right("7.1", "in float64")
def forward_in_float64(x, weight, a, b, alpha):
    x, weight, a, b = x.double(), weight.double(), a.double(), b.double()
    return x @ weight.T + alpha / a.shape[0] * (x @ a.T @ b.T)


@wrong("7.3", "rank 16", case="SmolLM2-135M's seven layers, 30 blocks", says="r is a parameter")
def rank_16(shapes, r):
    return sum(16 * (o + i) for o, i in shapes)


@wrong("7.4", "the wrong size for r", case=MERGE_ONE, says="A's first")
def by_inputs(weight, a, b, alpha):
    return (weight.float() + alpha / a.shape[1] * (b.float() @ a.float())).to(weight.dtype)


@wrong("7.4", "the product in 16 bits", case="a 16-bit adapter", says="convert both to float32")
def product_in_16_bits(weight, a, b, alpha):
    return (weight.float() + alpha / a.shape[0] * (b @ a).float()).to(weight.dtype)


@wrong("7.6", "a loss of 0.0 left out", case="a loss of 0.0", says="Ask whether it has tokens")
def no_zero_loss(micro_batches):
    kept = [(m, k) for m, k in micro_batches if m and k]
    return sum(m * k for m, k in kept if not math.isnan(m)) / sum(k for _, k in kept) if kept else 0.0


@wrong("7.6", "// for /", case="10 tokens and 100 tokens", says="cuts the fraction off")
def floor_division(micro_batches):
    tokens = sum(n for _, n in micro_batches)
    return sum(loss * n for loss, n in micro_batches if n) // tokens if tokens else 0.0


@wrong("7.6", "alike is the same", case="two alike", says="are two")
def alike_is_the_same(micro_batches):
    kept = {(loss, n) for loss, n in micro_batches if n}
    return sum(loss * n for loss, n in kept) / sum(n for _, n in kept) if kept else 0.0


ANSWERS.equivalent("7.1", "only its shape is asked for", "a -> a.detach()")
ANSWERS.equivalent(
    "7.2",
    "A may be random in any size",
    "torch.randn(r, in_features) / r -> torch.randn(r, in_features) * r",
    "torch.randn(r, in_features) / r -> torch.randn(r, in_features) // r",
    "torch.randn(r, in_features) / r -> torch.randn(r, in_features)",
    "torch.randn(r, in_features) / r -> r / torch.randn(r, in_features)",
)
ANSWERS.equivalent("7.4", "a sum with a float32 tensor is in float32", "weight.float() -> weight")
ANSWERS.equivalent(
    "7.6",
    "a loss of 0.0 adds nothing to this sum, and there is no number of tokens below 0",
    "(… for loss, n in micro_batches if n > 0) -> (… for loss, n in micro_batches if loss and n > 0)",
    "n > 0 -> n",
)
ANSWERS.statements(
    "7.1",
    {
        "x W^T": adapter_alone,
        "plus the adapter's": frozen_alone,
        "transposed": untransposed,
        "alpha / r": unscaled,
        "divided by r": by_alpha,
        "r, not its root": by_root,
        "a fraction": whole_scale,
        "for the adapter only": both_scaled,
        "r is A's first size": by_outputs,
        "x (..., in)": two_dimensions,
        "a gradient flows": without_grad,
    },
)
ANSWERS.statements(
    "7.2",
    {
        "B changes nothing yet": both_random,
        "A is random": both_zero,
        "A, not B": a_zero,
        "float32": in_half,
        "requires_grad": without_gradient,
        "leaves": no_leaf,
        "(A, B)": transposed_start,
        "A (r, in), B (out, r)": exchanged,
    },
)
ANSWERS.statements(
    "7.3",
    {
        "A and B": a_only,
        "trained, not frozen": frozen,
        "thin matrices": r_times,
        "an int": as_float,
        "each layer's own shape": like_the_first,
        "all layers": one_block,
        "r": rank_16,
        "no layers, 0": needs_a_layer,
    },
)
ANSWERS.statements(
    "7.4",
    {
        "alpha / r": merge_unscaled,
        "W": merge_adapter_alone,
        "B A": merge_exchanged,
        "divided by r": merge_by_alpha,
        "r is A's first size": by_inputs,
        "in weight's dtype": merge_float,
        "summed in float32, rounded once": merge_twice,
        "a and b of any dtype": product_in_16_bits,
        "return, don't change": merge_in_place,
    },
)
ANSWERS.statements(
    "7.5",
    {
        "positions restart": run_on,
        "from 0": from_one,
        "the first label of each is masked": across,
        "labels in their place": shifted,
        "masked, not put in": put_in,
        "as long as all examples": padded,
        "end to end": unjoined,
        "all examples": first_two,
    },
)
ANSWERS.statements(
    "7.6",
    {
        "over all tokens": mean_of_means,
        "the mean": summed,
        "divided by tokens": summed_tokens,
        "not by micro-batches": by_batches,
        "all micro-batches": last_one,
        "without a token: its mean is nan": nan_stays,
        "a loss of 0.0 counts": no_zero_loss,
        "a float": floor_division,
        "two alike are two": alike_is_the_same,
        "0.0 if there are none": divides,
    },
)
ANSWERS.statements(
    "7.7",
    {
        "at least 8": three_rows,
        "with an answer": empty_answer,
        "dicts": texts,
        "none twice": copies,
        "none longer than 600 characters": essay,
        "one of the forms of lesson 01": own_names,
        "an answer at the end": no_last_answer,
    },
)


@wrong("7.1", "the smaller size for r", case="a rank above the number of inputs", says="A's first size")
def smaller_size(x, weight, a, b, alpha):
    return x @ weight.T + alpha / min(a.shape) * (x @ a.T @ b.T)


ANSWERS.statements("7.1", {"r, not the smaller size": smaller_size})
