"""Exercises of lab 07: LoRA by hand (layer, model, training, merging), a packed row, an accumulated loss, rows of one's own."""

from __future__ import annotations

import copy
import functools
import math
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

from onegpu.exercises.comparison import difference
from onegpu.exercises.exercise import Case, Exercise, Mistake
from onegpu.packed_training import collate_rows

LEAST_ROWS = 8
MOST_CHARACTERS = 600


class LoRALinear(nn.Module):
    """A frozen linear layer with a trainable change of rank r beside it (Hu et al. 2021, LoRA).

    ``a`` is float32 of shape (r, in), random; ``b`` is float32 of shape (out, r), zero at the start.
    """

    def __init__(self, linear: nn.Module, r: int, alpha: float) -> None:
        super().__init__()
        self.linear, self.scale = linear.requires_grad_(False), alpha / r
        self.a = nn.Parameter(nn.init.kaiming_uniform_(torch.empty(r, linear.in_features), a=math.sqrt(5)))
        self.b = nn.Parameter(torch.zeros(linear.out_features, r))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return linear(x) + (alpha / r) x A^T B^T in the frozen layer's dtype; the change is computed in float32."""
        frozen = self.linear(x)
        return frozen + (self.scale * F.linear(F.linear(x.float(), self.a), self.b)).to(frozen.dtype)


def lora_linear(linear: nn.Module, r: int, alpha: float) -> nn.Module:
    """Return a layer that computes as the frozen ``linear`` does, plus a trainable change of rank r."""
    return LoRALinear(linear, r, alpha)


def add_lora(model: nn.Module, names: Sequence[str], wrap: Callable[[nn.Module], nn.Module]) -> int:
    """Freeze a model, put ``wrap(layer)`` in the place of each linear layer called so, and return how many there were."""
    model.requires_grad_(False)
    found = [
        (path.rpartition("."), layer)
        for path, layer in model.named_modules()
        if path.rpartition(".")[2] in names and isinstance(layer, nn.Linear)
    ]
    for (parent, _, name), layer in found:
        setattr(model.get_submodule(parent), name, wrap(layer))
    return len(found)


def train_until_worse(
    model: nn.Module,
    batches: Sequence[dict[str, Any]],
    measure: Callable[[nn.Module], float],
    lr: float,
    passes: int,
) -> list[float]:
    """Train what requires a gradient with AdamW until a pass over the batches doesn't lower what ``measure`` gives.

    The model keeps the adapters of the lowest. Returned are all measurements, the first from before training.
    """
    trained = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=lr)
    losses = [measure(model)]
    for _ in range(passes):
        before = [p.detach().clone() for p in trained]
        for batch in batches:
            optimizer.zero_grad()
            model(**batch).loss.backward()
            optimizer.step()
        losses.append(measure(model))
        if not losses[-1] < losses[-2]:  # nan isn't lower either
            with torch.no_grad():
                for p, kept in zip(trained, before, strict=True):
                    p.copy_(kept)
            break
    return losses


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

W = torch.tensor([[1.0, 0.0], [0.0, 1.0], [1.0, 1.0]])
A = torch.tensor([[1.0, 1.0], [0.0, 1.0]])
B = torch.tensor([[1.0, 0.0], [0.0, 1.0], [0.0, 0.0]])
A1, B1 = torch.tensor([[1.0, 1.0]]), torch.tensor([[1.0], [0.0], [2.0]])

TWO = [
    {"input_ids": [1, 11, 12, 2], "labels": [-100, -100, 12, 2]},
    {"input_ids": [1, 21, 2], "labels": [1, 21, 2]},
]


class DoublingLinear(nn.Linear):
    """Computes in a way of its own, as a layer in four bits does: who reads ``weight`` doesn't get its output."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return twice what a linear layer gives."""
        return 2 * super().forward(x)


def _whole_numbers(*shape: int, period: int) -> torch.Tensor:
    """Small whole numbers, the same each time; exact in 16 bits."""
    return (torch.arange(math.prod(shape)) % period - period // 2).float().reshape(shape)


def small_layer(
    kind: type[nn.Linear], in_features: int, out_features: int, dtype: torch.dtype, bias: bool = True
) -> nn.Linear:
    """Return a layer whose weights are small whole numbers."""
    layer = kind(in_features, out_features, bias=bias, dtype=dtype)
    with torch.no_grad():
        layer.weight.copy_(_whole_numbers(out_features, in_features, period=4))
        if bias:
            layer.bias.copy_(_whole_numbers(out_features, period=3) + 5)
    return layer


def _report_layer(function: Callable[..., Any], linear: nn.Linear, r: int, alpha: float) -> Any:
    """Build the layer and say what it trains, how it starts, and what it gives once A and B are some numbers."""
    own = copy.deepcopy(linear)
    layer = function(linear, r, alpha)
    if not isinstance(layer, nn.Module):
        return layer
    if not all(isinstance(getattr(layer, name, None), nn.Parameter) for name in "ab"):
        return {"parameters": sorted(name for name, _ in layer.named_parameters())}
    x = _whole_numbers(2, 3, linear.in_features, period=5).to(linear.weight.dtype)
    report = {
        "trained": sorted(name for name, p in layer.named_parameters() if p.requires_grad),
        "a": [
            *layer.a.shape,
            str(layer.a.dtype),
            "random" if len(set(layer.a.flatten().tolist())) > 1 else "not random",
        ],
        "b": [*layer.b.shape, str(layer.b.dtype), "not zero" if layer.b.any() else "zero"],
    }
    if report["a"][:3] != [r, own.in_features, "torch.float32"] or report["b"][:3] != [
        own.out_features,
        r,
        "torch.float32",
    ]:
        return report
    report["changed at the start"] = not torch.equal(layer(x), own(x))
    with torch.no_grad():
        layer.a.copy_(_whole_numbers(*layer.a.shape, period=3))
        layer.b.copy_(_whole_numbers(*layer.b.shape, period=5) + 1)
    out = layer(x)
    report["added"] = (out.detach().float() - own(x).detach().float()).flatten().tolist()
    report["output"] = [*out.shape, str(out.dtype)]
    if out.requires_grad:
        out.float().pow(2).sum().backward()
    report["gradients"] = sorted(name for name, p in layer.named_parameters() if p.grad is not None)
    return report


def _added_times(factor: Callable[[float, int], float]) -> Callable[[float, int], Callable[[Any], bool]]:
    """Makes a mistake of what was added, in a case with these alpha and r, if it is ``factor`` times what it should be."""

    def of(alpha: float, r: int) -> Callable[[Any], bool]:
        right = _report_layer(lora_linear, small_layer(nn.Linear, 3, 4, torch.float32), r, alpha)["added"]
        return lambda got: torch.allclose(torch.tensor(got["added"]), torch.tensor(right) * factor(alpha, r))

    return of


class Block(nn.Module):
    """Layers as in a transformer's block, and two that only look alike."""

    def __init__(self) -> None:
        super().__init__()
        self.q_proj, self.k_proj = nn.Linear(4, 4), nn.Linear(4, 2)
        self.linear = nn.Linear(4, 4)
        self.my_q_proj = nn.Linear(4, 4)
        self.norm = nn.LayerNorm(4)


def _two_blocks() -> nn.Module:
    return nn.ModuleDict({"layers": nn.ModuleList([Block(), Block()]), "head": nn.Linear(4, 7)})


def _one_in_another() -> nn.Module:
    """A container called as its layer is."""
    return nn.Sequential(
        nn.ModuleDict({"q_proj": nn.ModuleDict({"q_proj": nn.Linear(4, 4)}), "norm": nn.LayerNorm(4)})
    )


def _rank_2() -> Callable[[nn.Module], nn.Module]:
    return functools.partial(lora_linear, r=2, alpha=4.0)


def _report_model(function: Callable[..., Any], model: nn.Module, names: list[str], wrap: Any) -> Any:
    """Put the adapters in and say where they are, and what is trained."""
    many = function(model, names, wrap)
    return {
        "returned": many,
        "adapters": [path for path, module in model.named_modules() if isinstance(module, LoRALinear)],
        "trained": [name for name, p in model.named_parameters() if p.requires_grad],
    }


class NextToken(nn.Module):
    """A model of 11 tokens with the interface of transformers; some gradients are left over from before."""

    def __init__(self, seed: int = 0) -> None:
        super().__init__()
        random = torch.Generator().manual_seed(seed)
        self.embedding, self.proj = nn.Embedding(11, 6), nn.Linear(6, 6)
        self.head = nn.Linear(6, 11, bias=False)
        for p in self.parameters():
            p.data = torch.randn(p.shape, generator=random)
        add_lora(self, ["proj"], _rank_2())
        self.proj.a.data = torch.randn(self.proj.a.shape, generator=random)
        for p in (self.proj.a, self.proj.b, self.head.weight):
            p.grad = torch.full_like(p, 3.0)

    def forward(self, input_ids: torch.Tensor, labels: torch.Tensor) -> SimpleNamespace:
        """Return an object with ``loss``, a mean over tokens: each label is predicted from the token before it."""
        logits = self.head(torch.tanh(self.proj(self.embedding(input_ids))))
        return SimpleNamespace(loss=F.cross_entropy(logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten()))


def token_batches(*rows: Sequence[int]) -> list[dict[str, torch.Tensor]]:
    """Return one batch for each row of token ids, every one of them learned."""
    return [{"input_ids": torch.tensor([row]), "labels": torch.tensor([row])} for row in rows]


class HeldOutLoss:
    """Measures the loss of one batch that isn't trained on."""

    def __init__(self, *row: int) -> None:
        (self.batch,) = token_batches(row)

    def __call__(self, model: nn.Module) -> float:
        """Return the loss; the model is in train mode afterwards."""
        model.eval()
        with torch.no_grad():
            loss = model(**self.batch).loss.item()
        model.train()
        return loss


def _report_training(
    function: Callable[..., Any],
    model: nn.Module,
    batches: list,
    measure: HeldOutLoss,
    lr: float,
    passes: int,
) -> Any:
    """Train, and say the losses (as they are returned), what changed and where it ended."""
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    losses = function(model, batches, measure, lr, passes)
    after = dict(model.named_parameters())
    return {
        "losses": losses,
        "changed": sorted(n for n, p in before.items() if not torch.equal(p, after[n])),
        "b after": after["proj.b"].detach().clone(),
    }


def _faulty_training(fault: str) -> Callable[..., list[float]]:
    """A training with one fault, to know the numbers that it gives."""

    def train(model: nn.Module, batches: list, measure: HeldOutLoss, lr: float, passes: int) -> list[float]:
        trained = [p for p in model.parameters() if p.requires_grad]

        def new_optimizer() -> torch.optim.Optimizer:
            if fault == "sgd":
                return torch.optim.SGD(trained, lr=lr)
            return torch.optim.AdamW(trained, **({} if fault == "default lr" else {"lr": lr}))

        optimizer, losses = new_optimizer(), [measure(model)]
        if fault not in ("left over", "never cleared"):
            optimizer.zero_grad()
        for _ in range(passes):
            before = [p.detach().clone() for p in trained]
            optimizer = new_optimizer() if fault == "anew" else optimizer
            for batch in batches:
                model(**batch).loss.backward()
                optimizer.step()
                if fault != "never cleared":
                    optimizer.zero_grad()
            losses.append(measure(model))
            if fault != "goes on" and losses[-1] >= losses[-2]:
                if fault != "not put back":
                    for p, value in zip(trained, before, strict=True):
                        p.data.copy_(value)
                break
        return losses

    return train


def _turning() -> tuple:
    batches = token_batches([1, 2, 3, 4], [5, 6, 7], [1, 2, 8, 9, 10])
    return NextToken(7), batches, HeldOutLoss(1, 2, 6, 4, 8), 0.03, 9


def _running_out() -> tuple:
    return NextToken(4), token_batches([3, 9, 1], [2, 2, 5, 7]), HeldOutLoss(2, 2, 5, 9, 1), 0.02, 2


def _too_much() -> tuple:
    return NextToken(1), token_batches([3, 9, 1], [2, 2, 5, 7]), HeldOutLoss(4, 4, 8, 3), 5.0, 3


@functools.cache
def _given_by(fault: str) -> dict[str, Any]:
    return _report_training(_faulty_training(fault), *_turning())


def _like(fault: str) -> Callable[[Any], bool]:
    """Was this fault made in the case of the loss that turns?"""
    return lambda got: difference(got, _given_by(fault), rtol=1e-4, atol=1e-5) is None


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
        lora_linear,
        level="core",
        difficulty=3,
        importance=5,
        minutes=20,
        hints=(
            "If A and B were both zero, what would be the gradient of each? And who knows best how the frozen layer computes?",
            "A class derived from torch.nn.Module: its __init__ keeps the layer, frozen, and makes two parameters, a random "
            "and b zero; its forward calls the layer and adds x through a, through b, times alpha over r, computed in "
            "float32 and converted to the dtype of the layer's output.",
        ),
        lesson="LoRA: learn a thin change",
        run=_report_layer,
        may_change_input=True,
        cases=(
            Case(
                "3 features to 4, rank 2, alpha 6",
                lambda: (small_layer(nn.Linear, 3, 4, torch.float32), 2, 6.0),
                "The layer's own output, plus alpha / r times x A^T B^T; a is (r, in), b is (out, r), and only they are "
                "trained.",
                mistakes=(
                    Mistake(
                        lambda got: "parameters" in got,
                        "Name the two parameters a and b, each a torch.nn.Parameter: others find them by these names.",
                    ),
                    Mistake(
                        lambda got: got["a"][:2] == [3, 2] or got["a"][:2] == [2, 4],
                        "The shapes are the wrong way round: a leads from the inputs to r, so it is (r, in_features), and b "
                        "is (out_features, r).",
                    ),
                    Mistake(
                        lambda got: "float16" in got["a"][2] + got["b"][2],
                        "Trainable parameters stay float32, on a T4 too: the gradient scaler refuses fp16 gradients.",
                    ),
                    Mistake(
                        lambda got: got["a"][3] == "not random" and got["b"][3] == "zero",
                        "With a and b both zero (or all alike), nothing is learned: a is random, only b is zero.",
                    ),
                    Mistake(
                        lambda got: got["b"][3] == "not zero",
                        "With b not zero the adapter changes the model before the first step: b starts at zero.",
                    ),
                    Mistake(
                        lambda got: any(name.startswith("linear") or "." in name for name in got["trained"]),
                        "The wrapped layer is trained too: freeze it with requires_grad_(False).",
                    ),
                    Mistake(
                        lambda got: got["gradients"] == [],
                        "No gradient reaches a and b: don't detach, and don't compute under no_grad.",
                    ),
                    Mistake(
                        _added_times(lambda alpha, r: r / alpha)(6.0, 2),
                        "The scale alpha / r is missing: without it a change of the rank changes the step size too.",
                    ),
                    Mistake(
                        _added_times(lambda alpha, r: r)(6.0, 2),
                        "Scaled by alpha, not by alpha / r.",
                    ),
                    Mistake(
                        _added_times(lambda alpha, r: math.sqrt(r))(6.0, 2),
                        "alpha / sqrt(r) is rank-stabilised LoRA (rsLoRA); plain LoRA divides by r.",
                    ),
                    Mistake(
                        lambda got: got["changed at the start"],
                        "At the start the layer gives something else than the wrapped one: add to its whole output, with "
                        "its bias.",
                    ),
                    Mistake(
                        lambda got: not any(got["added"]),
                        "Whatever a and b are, nothing is added: forward has to use them as they are now.",
                    ),
                ),
            ),
            Case(
                "a layer in bfloat16",
                lambda: (small_layer(nn.Linear, 4, 2, torch.bfloat16, bias=False), 1, 3.0),
                "a and b stay float32; x comes in the layer's dtype, so convert it for them, and convert what they give "
                "to the dtype of the layer's output.",
                mistakes=(
                    Mistake(
                        lambda got: "bfloat16" in got["a"][2] + got["b"][2],
                        "What is trained stays float32, whatever the frozen layer is in.",
                    ),
                    Mistake(
                        lambda got: got["output"][-1] == "torch.float32",
                        "The output has become float32: the layer after this one expects the dtype that the frozen one gives.",
                    ),
                ),
            ),
            Case(
                "a layer that computes in its own way",
                lambda: (small_layer(DoublingLinear, 2, 3, torch.float32), 4, 2.0),
                "A layer in four bits isn't x @ weight.T: call it, don't read its weight.",
            ),
        ),
    ),
    Exercise(
        "7.2",
        "adapters in a model",
        add_lora,
        level="core",
        difficulty=4,
        importance=5,
        minutes=20,
        hints=(
            "May a second round over the model meet an adapter that the first one put in? And what becomes of adapters "
            "when everything is frozen afterwards?",
            "Freeze everything. Make a list of (path, layer) from named_modules, of those layers that are linear and whose "
            "last part of the path is in names. Then go through the list: the module at the rest of the path is the parent, "
            "and setattr puts wrap(layer) into it.",
        ),
        lesson="A loop of your own",
        run=_report_model,
        may_change_input=True,
        cases=(
            Case(
                "two blocks, two names",
                lambda: (_two_blocks(), ["q_proj", "k_proj"], _rank_2()),
                "In each block q_proj and k_proj are wrapped, 4 in all; nothing but their a and b is trained.",
                mistakes=(
                    Mistake(
                        lambda got: got["adapters"] and not got["trained"],
                        "The adapters are frozen as well: freeze the model first, then put them in.",
                    ),
                    Mistake(
                        lambda got: any(name.startswith("head") or "norm" in name for name in got["trained"]),
                        "Something else than the adapters is trained: freeze the whole model.",
                    ),
                    Mistake(
                        lambda got: any("my_q_proj" in path for path in got["adapters"]),
                        "my_q_proj was wrapped: its name ends like q_proj, but is another. Compare the whole last part of the "
                        "path.",
                    ),
                    Mistake(
                        lambda got: got["returned"] == 4 and not got["adapters"],
                        "The layers were wrapped, but the model still holds the old ones: set the new one as an attribute "
                        "of its parent.",
                    ),
                    Mistake(
                        lambda got: 0 < len(got["adapters"]) < 4,
                        "A layer is missing: both names, in every block.",
                    ),
                    Mistake(
                        lambda got: got["returned"] is None,
                        "It returns None; return how many layers were wrapped.",
                    ),
                    Mistake(
                        lambda got: len(got["adapters"]) == 4 and got["returned"] != 4,
                        "The layers are right, the number returned is not: count the layers that were wrapped, 4.",
                    ),
                ),
            ),
            Case(
                "the adapter's own layer is called so",
                lambda: (_two_blocks(), ["q_proj", "linear"], _rank_2()),
                "An adapter holds its layer under the name `linear`, and that one isn't wrapped again: first make a list of "
                "what is to be replaced, then replace.",
            ),
            Case(
                "a layer at the top",
                lambda: (_two_blocks(), ["head"], _rank_2()),
                'A path without a dot has the model itself as parent: get_submodule("") gives it.',
            ),
            Case(
                "a container with the name",
                lambda: (_one_in_another(), ["q_proj", "norm"], _rank_2()),
                "Only linear layers can be wrapped: a container or a norm with such a name is left as it is.",
            ),
            Case(
                "no such layer",
                lambda: (_two_blocks(), ["gate_proj"], _rank_2()),
                "Nothing is wrapped: 0, and nothing is trained.",
                expected={"returned": 0, "adapters": [], "trained": []},
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
        lesson="LoRA: learn a thin change",
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
        "training that stops in time",
        train_until_worse,
        level="core",
        difficulty=4,
        importance=5,
        minutes=20,
        hints=(
            "When you notice that a pass was one too many, the adapters before it are gone, unless ... And does what you "
            "put aside stay as it is while the optimizer steps?",
            "One AdamW for all passes, over the parameters that require a gradient. Measure once. Then for each pass: clone "
            "the trained parameters, take a step for each batch (clear the gradients first), measure. If that is no lower "
            "than the measurement before, copy the clones back and stop.",
        ),
        lesson="A loop of your own",
        run=_report_training,
        may_change_input=True,
        cases=(
            Case(
                "a held-out loss that turns",
                _turning,
                "Passes over the batches with one AdamW of learning rate lr, measured before the first and after each, until "
                "one isn't lower than the one before it; then the adapters of before that pass.",
                rtol=1e-4,
                atol=1e-5,
                mistakes=(
                    Mistake(
                        lambda got: any("proj.a" != n != "proj.b" for n in got["changed"]),
                        "A frozen weight has changed. Give the optimizer only parameters that require a gradient: here a "
                        "gradient from before was left on a frozen one.",
                    ),
                    Mistake(
                        lambda got: not isinstance(got["losses"], list | tuple),
                        "Return a list of held-out losses: before training, and after each pass.",
                    ),
                    Mistake(
                        lambda got: (
                            difference(got["losses"], _given_by("")["losses"][1:], rtol=1e-4, atol=1e-5)
                            is None
                        ),
                        "The first loss is missing: that of the model as it came.",
                    ),
                    Mistake(
                        lambda got: (
                            difference(got["losses"], _given_by("")["losses"][:-1], rtol=1e-4, atol=1e-5)
                            is None
                        ),
                        "The last loss is missing: that of the pass which made it worse belongs to the list too.",
                    ),
                    Mistake(
                        lambda got: got["changed"] == [] and len(set(got["losses"])) == 1,
                        "No weight has changed: does each batch get a backward and then a step of the optimizer?",
                    ),
                    Mistake(
                        _like("goes on"),
                        "It goes on after the pass that made the held-out loss worse: stop there.",
                    ),
                    Mistake(
                        _like("not put back"),
                        "The losses are right, but the model has the adapters of the last pass, which was worse. Parameters "
                        "that were put aside without a clone follow every step; a copy of the whole model doesn't help who "
                        "holds the model.",
                    ),
                    Mistake(
                        _like("left over"),
                        "The first step also followed gradients that were left over from before: clear them before the "
                        "first backward.",
                    ),
                    Mistake(
                        _like("never cleared"),
                        "Each step also followed the gradients of the steps before: clear them for every batch.",
                    ),
                    Mistake(
                        _like("sgd"),
                        "These are the steps of plain SGD; AdamW is asked for.",
                    ),
                    Mistake(
                        _like("anew"),
                        "A new optimizer for each pass forgets its moments: make one, before the first pass.",
                    ),
                    Mistake(
                        _like("default lr"),
                        "The learning rate isn't lr but AdamW's default, 0.001.",
                    ),
                ),
            ),
            Case(
                "passes run out",
                _running_out,
                "After `passes` passes it is over. If the last one was still lower, its adapters stay.",
                rtol=1e-4,
                atol=1e-5,
            ),
            Case(
                "the first pass is too much",
                _too_much,
                "A pass with this learning rate makes it worse at once: the model is as it came.",
                rtol=1e-4,
                atol=1e-5,
            ),
            Case(
                "no batch",
                lambda: (NextToken(), [], HeldOutLoss(3, 9, 1), 0.1, 4),
                "A pass without a batch changes nothing, and a loss that is the same isn't lower: stop, with two losses.",
            ),
            Case(
                "no pass",
                lambda: (NextToken(), token_batches([3, 9, 1]), HeldOutLoss(3, 9, 2), 0.1, 0),
                "Without a pass there is one loss, that of the model as it came.",
            ),
        ),
    ),
    Exercise(
        "7.5",
        "merge an adapter",
        merge_lora,
        level="core",
        difficulty=3,
        importance=4,
        minutes=10,
        hints=(
            "Count the roundings of your formula.",
            "Compute the product and the sum in float32, scaled by alpha over r, and convert to the "
            "weight's dtype once, at the end.",
        ),
        lesson="Merged",
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
        "7.6",
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
        lesson="Packing: no token computed for nothing",
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
        "7.7",
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
        "7.8",
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
        lesson="The message, after",
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
