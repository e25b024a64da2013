"""What people hand in for the exercises of lab 07."""

import copy
import math

import torch
from onegpu.exercises.answers import Answers
from onegpu.exercises.qlora_finetune import my_rows as library_rows
from torch.nn import functional as F

ANSWERS = Answers()
wrong, right = ANSWERS.wrong, ANSWERS.right

# 7.1 ------------------------------------------------------------------------------------------------------------------
LAYER, IN_16_BITS, OWN_WAY = (
    "3 features to 4, rank 2, alpha 6",
    "a layer in bfloat16",
    "a layer that computes in its own way",
)


class Layer(torch.nn.Module):
    """A right layer, of which each answer changes one thing."""

    def __init__(self, linear, r, alpha):
        super().__init__()
        self.linear, self.r, self.alpha = linear.requires_grad_(False), r, alpha
        self.a = torch.nn.Parameter(torch.randn(r, linear.in_features))
        self.b = torch.nn.Parameter(torch.zeros(linear.out_features, r))

    def forward(self, x):
        y = self.linear(x)
        return y + (self.scale() * self.change(x)).to(y.dtype)

    def scale(self):
        return self.alpha / self.r

    def change(self, x):
        return x.float() @ self.a.T @ self.b.T


def layer_with(**methods):
    return type("Changed", (Layer,), methods)


def start_with(a, b, dtype=torch.float32):
    """A layer whose parameters are made by a(r, in) and b(out, r)."""

    def build(linear, r, alpha):
        layer = Layer(linear, r, alpha)
        layer.a = torch.nn.Parameter(a(r, linear.in_features).to(dtype))
        layer.b = torch.nn.Parameter(b(linear.out_features, r).to(dtype))
        return layer

    return build


@wrong("7.1", "both zero", case=LAYER, says="nothing is learned")
def both_zero(linear, r, alpha):
    return start_with(torch.zeros, torch.zeros)(linear, r, alpha)


@wrong("7.1", "both random", case=LAYER, says="before the first step")
def both_random(linear, r, alpha):
    return start_with(torch.randn, torch.randn)(linear, r, alpha)


@wrong("7.1", "fp16", case=LAYER, says="gradient scaler refuses fp16")
def in_half(linear, r, alpha):
    return start_with(torch.randn, torch.zeros, torch.float16)(linear, r, alpha)


@wrong("7.1", "shapes exchanged", case=LAYER, says="wrong way round")
def shapes_exchanged(linear, r, alpha):
    layer = Layer(linear, r, alpha)
    layer.a = torch.nn.Parameter(torch.randn(linear.in_features, r))
    layer.b = torch.nn.Parameter(torch.zeros(r, linear.out_features))
    return layer


@wrong("7.1", "other names", case=LAYER, says="Name the two parameters")
def other_names(linear, r, alpha):
    layer = Layer(linear, r, alpha)
    layer.down, layer.up = layer.a, layer.b
    del layer.a, layer.b
    return layer


@wrong("7.1", "not frozen", case=LAYER, says="freeze it")
def not_frozen(linear, r, alpha):
    layer = Layer(linear, r, alpha)
    layer.linear.requires_grad_(True)
    return layer


@wrong("7.1", "no gradient", case=LAYER, says="No gradient reaches")
def without_grad(linear, r, alpha):
    def change(self, x):
        return Layer.change(self, x).detach()

    return layer_with(change=change)(linear, r, alpha)


@wrong("7.1", "no scale", case=LAYER, says="scale alpha / r is missing")
def unscaled(linear, r, alpha):
    return layer_with(scale=lambda self: 1)(linear, r, alpha)


@wrong("7.1", "scaled by alpha", case=LAYER, says="not by alpha / r")
def by_alpha(linear, r, alpha):
    return layer_with(scale=lambda self: self.alpha)(linear, r, alpha)


@wrong("7.1", "rsLoRA", case=LAYER, says="rank-stabilised")
def by_root(linear, r, alpha):
    return layer_with(scale=lambda self: self.alpha / math.sqrt(self.r))(linear, r, alpha)


@wrong("7.1", "without the bias", case=LAYER, says="with its bias")
def without_bias(linear, r, alpha):
    def forward(self, x):
        return x @ self.linear.weight.T + self.scale() * self.change(x)

    return layer_with(forward=forward)(linear, r, alpha)


@wrong("7.1", "merged once, at the start", case=LAYER, says="nothing is added")
def merged_early(linear, r, alpha):
    layer = Layer(linear, r, alpha)
    delta = layer.scale() * layer.b.detach() @ layer.a.detach()
    layer.change = lambda x: x @ delta.T + 0 * Layer.change(layer, x)
    return layer


@wrong("7.1", "in the layer's dtype", case=IN_16_BITS, says="stays float32")
def in_its_dtype(linear, r, alpha):
    return start_with(torch.randn, torch.zeros, linear.weight.dtype)(linear, r, alpha)


@wrong("7.1", "float32 comes out", case=IN_16_BITS, says="has become float32")
def float_out(linear, r, alpha):
    def forward(self, x):
        return self.linear(x) + self.scale() * self.change(x)

    return layer_with(forward=forward)(linear, r, alpha)


@wrong("7.1", "x stays in 16 bits", case=IN_16_BITS, says="convert it for them")
def x_as_it_is(linear, r, alpha):
    return layer_with(change=lambda self, x: x @ self.a.T @ self.b.T)(linear, r, alpha)


@wrong("7.1", "reads the weight", case=OWN_WAY, says="don't read its weight")
def reads_weight(linear, r, alpha):
    def forward(self, x):
        y = F.linear(x, self.linear.weight, self.linear.bias)
        return y + (self.scale() * self.change(x)).to(y.dtype)

    return layer_with(forward=forward)(linear, r, alpha)


@right("7.1", "a subclass")
def a_subclass(linear, r, alpha):
    return Layer(linear, r, alpha)


@right("7.1", "two functional layers, small numbers")
def functional(linear, r, alpha):
    layer = layer_with(change=lambda self, x: F.linear(F.linear(x.to(self.a.dtype), self.a), self.b))(
        linear, r, alpha
    )
    torch.nn.init.normal_(layer.a, std=0.01)
    return layer


@right("7.1", "einsum, summed in float32")
def einsum(linear, r, alpha):
    def forward(self, x):
        y = self.linear(x)
        low = torch.einsum("...i,ri->...r", x.float(), self.a)
        return (y.float() + alpha / r * torch.einsum("...r,or->...o", low, self.b)).to(y.dtype)

    return layer_with(forward=forward)(linear, r, alpha)


# 7.2 ------------------------------------------------------------------------------------------------------------------
TWO_NAMES = "two blocks, two names"


def wrap_chosen(model, wrap, chosen):
    """Wrap the layers that `chosen` (path, module) names; return how many."""
    found = [(path, module) for path, module in model.named_modules() if chosen(path, module)]
    for path, module in found:
        parent, _, name = path.rpartition(".")
        setattr(model.get_submodule(parent), name, wrap(module))
    return len(found)


def called(names):
    return lambda path, module: path.split(".")[-1] in names and isinstance(module, torch.nn.Linear)


@wrong("7.2", "freezes afterwards", case=TWO_NAMES, says="frozen as well")
def freezes_all(model, names, wrap):
    many = wrap_chosen(model, wrap, called(names))
    model.requires_grad_(False)
    return many


@wrong("7.2", "doesn't freeze", case=TWO_NAMES, says="freeze the whole model")
def freezes_nothing(model, names, wrap):
    return wrap_chosen(model, wrap, called(names))


@wrong("7.2", "ends with", case=TWO_NAMES, says="whole last part")
def ends_with(model, names, wrap):
    model.requires_grad_(False)
    chosen = called(names)
    return wrap_chosen(
        model, wrap, lambda p, m: chosen(p, m) or (p.endswith(tuple(names)) and chosen(names[0], m))
    )


@wrong("7.2", "a variable, not the model", case=TWO_NAMES, says="an attribute of its parent")
def only_a_variable(model, names, wrap):
    model.requires_grad_(False)
    many = 0
    for path, module in list(model.named_modules()):
        if called(names)(path, module):
            module = wrap(module)
            many += 1
    return many


@wrong("7.2", "the first name only", case=TWO_NAMES, says="A layer is missing")
def first_name(model, names, wrap):
    model.requires_grad_(False)
    return wrap_chosen(model, wrap, called(names[:1]))


@wrong("7.2", "the first block only", case=TWO_NAMES, says="A layer is missing")
def first_block(model, names, wrap):
    model.requires_grad_(False)
    return wrap_chosen(model, wrap, lambda path, module: called(names)(path, module) and ".1." not in path)


@wrong("7.2", "returns nothing", case=TWO_NAMES, says="return how many")
def returns_nothing(model, names, wrap):
    model.requires_grad_(False)
    wrap_chosen(model, wrap, called(names))


@wrong("7.2", "returns the names", case=TWO_NAMES, says="number returned")
def returns_names(model, names, wrap):
    model.requires_grad_(False)
    wrap_chosen(model, wrap, called(names))
    return len(names)


@wrong(
    "7.2", "a round for each name", case="the adapter's own layer is called so", says="isn't wrapped again"
)
def round_by_round(model, names, wrap):
    model.requires_grad_(False)
    return sum(wrap_chosen(model, wrap, called([name])) for name in names)


@wrong("7.2", "needs a parent", case="a layer at the top", says="the model itself as parent")
def needs_parent(model, names, wrap):
    model.requires_grad_(False)
    return wrap_chosen(model, wrap, lambda path, module: called(names)(path, module) and "." in path)


@wrong("7.2", "whatever has the name", case="a container with the name", says="Only linear layers")
def any_module(model, names, wrap):
    model.requires_grad_(False)
    return wrap_chosen(model, wrap, lambda path, module: path.split(".")[-1] in names)


@right("7.2", "in two steps")
def two_steps(model, names, wrap):
    for parameter in model.parameters():
        parameter.requires_grad = False
    return wrap_chosen(model, wrap, called(names))


@right("7.2", "by parents")
def by_parents(model, names, wrap):
    model.requires_grad_(False)
    many = 0
    for parent in list(model.modules()):
        for name, child in list(parent.named_children()):
            if name in names and isinstance(child, torch.nn.Linear):
                setattr(parent, name, wrap(child))
                many += 1
    return many


@right("7.2", "children first, by recursion")
def by_recursion(model, names, wrap):
    def go(module):
        many = 0
        for name, child in list(module.named_children()):
            many += go(child)
            if name in names and isinstance(child, torch.nn.Linear):
                module._modules[name] = wrap(child)
                many += 1
        return many

    model.requires_grad_(False)
    return go(model)


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
TURNS, RUNS_OUT, TOO_MUCH, NO_BATCH, NO_PASS = (
    "a held-out loss that turns",
    "passes run out",
    "the first pass is too much",
    "no batch",
    "no pass",
)


def adapters(model):
    return [p for p in model.parameters() if p.requires_grad]


def one_pass(model, batches, optimizer):
    for batch in batches:
        optimizer.zero_grad()
        model(**batch).loss.backward()
        optimizer.step()


def kept(parameters):
    return [p.detach().clone() for p in parameters]


def put_back(parameters, values):
    for p, value in zip(parameters, values, strict=True):
        p.data.copy_(value)


def until_worse(
    *, make=torch.optim.AdamW, of=adapters, train=one_pass, keep=kept, restore=put_back,
    worse=lambda losses: losses[-1] >= losses[-2],
):  # fmt: skip
    """A right answer, of which each wrong one changes one thing."""

    def answer(model, batches, measure, lr, passes):
        trained = of(model)
        optimizer = make(trained, lr=lr)
        losses = [measure(model)]
        for _ in range(passes):
            before = keep(trained)
            train(model, batches, optimizer)
            losses.append(measure(model))
            if worse(losses):
                restore(trained, before)
                break
        return losses

    return answer


def wrong_training(why, says, case=TURNS, **changed):
    return wrong("7.4", why, case=case, says=says)(until_worse(**changed))


def step_by_step(model, batches, optimizer, *, clear="before", step=True):
    for batch in batches:
        if clear == "before":
            optimizer.zero_grad()
        model(**batch).loss.backward()
        if clear == "too early":
            optimizer.zero_grad()
        if step:
            optimizer.step()
        if clear == "after":
            optimizer.zero_grad()


def changed_pass(**changed):
    return lambda *args: step_by_step(*args, **changed)


def everything(model):
    model.requires_grad_(True)
    return list(model.parameters())


def all_of_them(model):
    return list(model.parameters())


no_step = wrong_training("no step", "No weight has changed", train=changed_pass(step=False))
cleared_too_early = wrong_training(
    "gradients away before the step", "No weight has changed", train=changed_pass(clear="too early")
)
left_over = wrong_training(
    "cleared after each step only", "left over from before", train=changed_pass(clear="after")
)
never_cleared = wrong_training(
    "never cleared", "gradients of the steps before", train=changed_pass(clear="never")
)
all_parameters = wrong_training(
    "all parameters", "A frozen weight has changed", of=all_of_them, train=changed_pass(clear="after")
)
trains_all = wrong_training("trains all", "A frozen weight has changed", of=everything)
plain_sgd = wrong_training("plain SGD", "AdamW is asked for", make=torch.optim.SGD)
default_rate = wrong_training(
    "the default learning rate", "AdamW's default", make=lambda trained, lr: torch.optim.AdamW(trained)
)
one_batch = wrong_training(
    "one batch a pass",
    "Passes over the batches",
    train=lambda model, batches, o: one_pass(model, batches[:1], o),
)
backwards = wrong_training(
    "in another order",
    "Passes over the batches",
    train=lambda model, batches, o: one_pass(model, batches[::-1], o),
)
follows = wrong_training("put aside without a clone", "follow every step", keep=list)
not_put_back = wrong_training(
    "keeps the last pass", "follow every step", restore=lambda trained, values: None
)
goes_on = wrong_training("never stops", "It goes on", worse=lambda losses: False)
equal_goes_on = wrong_training(
    "goes on where nothing changes", "the same isn't lower", case=NO_BATCH,
    worse=lambda losses: losses[-1] > losses[-2],
)  # fmt: skip
above_the_start = wrong_training(
    "compares with the start", "It goes on", worse=lambda losses: losses[-1] >= losses[0]
)


@wrong("7.4", "a copy of the model", case=TURNS, says="follow every step")
def copies_the_model(model, batches, measure, lr, passes):
    optimizer = torch.optim.AdamW(adapters(model), lr=lr)
    losses = [measure(model)]
    for _ in range(passes):
        best = copy.deepcopy(model)
        one_pass(model, batches, optimizer)
        losses.append(measure(model))
        if losses[-1] >= losses[-2]:
            model = best
            break
    return losses


@wrong("7.4", "a new optimizer for each pass", case=TURNS, says="forgets its moments")
def anew(model, batches, measure, lr, passes):
    def train(model, batches, optimizer):
        one_pass(model, batches, torch.optim.AdamW(adapters(model), lr=lr))

    return until_worse(train=train)(model, batches, measure, lr, passes)


@wrong("7.4", "the last loss alone", case=TURNS, says="Return a list")
def last_loss(*args):
    return until_worse()(*args)[-1]


@wrong("7.4", "without the first loss", case=TURNS, says="The first loss is missing")
def without_first(*args):
    return until_worse()(*args)[1:]


@wrong("7.4", "without the worse loss", case=TURNS, says="The last loss is missing")
def without_last(*args):
    losses = until_worse()(*args)
    return losses[:-1] if len(losses) > 1 and losses[-1] >= losses[-2] else losses


@wrong("7.4", "takes the last pass back in any case", case=RUNS_OUT, says="its adapters stay")
def always_back(model, batches, measure, lr, passes):
    trained = adapters(model)
    optimizer, losses = torch.optim.AdamW(trained, lr=lr), [measure(model)]
    before = kept(trained)
    for _ in range(passes):
        before = kept(trained)
        one_pass(model, batches, optimizer)
        losses.append(measure(model))
        if losses[-1] >= losses[-2]:
            break
    put_back(trained, before)
    return losses


@wrong("7.4", "as many passes as it takes", case=RUNS_OUT, says="After `passes` passes")
def without_limit(model, batches, measure, lr, passes):
    return until_worse()(model, batches, measure, lr, 20)


@wrong("7.4", "puts aside after the first pass", case=TOO_MUCH, says="the model is as it came")
def first_pass_counts(model, batches, measure, lr, passes):
    trained = adapters(model)
    optimizer, losses, best = torch.optim.AdamW(trained, lr=lr), [measure(model)], None
    for _ in range(passes):
        one_pass(model, batches, optimizer)
        losses.append(measure(model))
        if losses[-1] >= losses[-2]:
            if best:
                put_back(trained, best)
            break
        best = kept(trained)
    return losses


@wrong("7.4", "at least one pass", case=NO_PASS, says="Without a pass")
def one_at_least(model, batches, measure, lr, passes):
    return until_worse()(model, batches, measure, lr, max(1, passes))


@right("7.4", "a dict of all weights")
def state_of_all(model, batches, measure, lr, passes):
    optimizer = torch.optim.AdamW(adapters(model), lr=lr)
    losses, best = [measure(model)], copy.deepcopy(model.state_dict())
    while len(losses) <= passes:
        one_pass(model, batches, optimizer)
        losses.append(measure(model))
        if losses[-1] >= min(losses[:-1]):
            break
        best = copy.deepcopy(model.state_dict())
    model.load_state_dict(best)
    return losses


@right("7.4", "clears the model's gradients first, then after each step")
def clears_after(model, batches, measure, lr, passes):
    model.zero_grad()
    return until_worse(train=changed_pass(clear="after"))(model, batches, measure, lr, passes)


@right("7.4", "autograd.grad, new values for the parameters")
def autograd_grad(model, batches, measure, lr, passes):
    def train(model, batches, optimizer):
        trained = adapters(model)
        for batch in batches:
            loss = model(input_ids=batch["input_ids"], labels=batch["labels"]).loss
            for p, gradient in zip(trained, torch.autograd.grad(loss, trained), strict=True):
                p.grad = gradient
            optimizer.step()

    def restore(trained, values):
        for p, value in zip(trained, values, strict=True):
            p.data = value

    return until_worse(train=train, restore=restore)(model, batches, measure, lr, passes)


# 7.5 ------------------------------------------------------------------------------------------------------------------
MERGE_ONE, SIXTEEN = "rank 1, alpha 4", "a 16-bit base"


@wrong("7.5", "no scale", case=MERGE_ONE, says="scale alpha / r is missing")
def merge_unscaled(weight, a, b, alpha):
    return weight + b @ a


@wrong("7.5", "the adapter alone", case=MERGE_ONE, says="W is still to be added")
def merge_adapter_alone(weight, a, b, alpha):
    return alpha / a.shape[0] * (b @ a)


@wrong("7.5", "A @ B", case=MERGE_ONE, says="the product is B @ A")
def merge_exchanged(weight, a, b, alpha):
    return weight + alpha / a.shape[0] * (a.T @ b.T)


@wrong("7.5", "scaled by alpha", case="rank 2, alpha 5", says="not by alpha / r")
def merge_by_alpha(weight, a, b, alpha):
    return (weight.float() + alpha * (b @ a)).to(weight.dtype)


@wrong("7.5", "float32 comes out", case=SIXTEEN, says="convert the sum")
def merge_float(weight, a, b, alpha):
    return weight.float() + alpha / a.shape[0] * (b @ a)


@wrong("7.5", "rounded twice", case=SIXTEEN, says="Rounded twice")
def merge_twice(weight, a, b, alpha):
    return weight + (alpha / a.shape[0] * (b @ a)).to(weight.dtype)


@wrong("7.5", "in place", case=MERGE_ONE, says="Work on a copy")
def merge_in_place(weight, a, b, alpha):
    weight += alpha / a.shape[0] * (b @ a)
    return weight


@right("7.5", "in float64")
def merge_double(weight, a, b, alpha):
    return (weight.double() + alpha / a.shape[0] * (b.double() @ a.double())).to(weight.dtype)


@right("7.5", "outer products")
def merge_outer(weight, a, b, alpha):
    merged = weight.float()
    for k in range(a.shape[0]):
        merged = merged + alpha / a.shape[0] * torch.outer(b[:, k], a[k])
    return merged.to(weight.dtype)


@right("7.5", "addmm")
def merge_addmm(weight, a, b, alpha):
    return torch.addmm(weight.float(), b.float(), a.float(), alpha=alpha / a.shape[0]).to(weight.dtype)


# 7.6 ------------------------------------------------------------------------------------------------------------------
JOIN = "two examples"


def pack(examples, *, positions=None, labels=None):
    ids, where, what = [], [], []
    for e in examples:
        where += positions(e, len(ids)) if positions else list(range(len(e["input_ids"])))
        what += labels(e) if labels else [-100, *e["labels"][1:]]
        ids += e["input_ids"]
    return {"input_ids": ids, "position_ids": where, "labels": what}


@wrong("7.6", "positions run on", case=JOIN, says="run on over the join")
def run_on(examples):
    return pack(examples, positions=lambda e, at: list(range(at, at + len(e["input_ids"]))))


@wrong("7.6", "positions from 1", case=JOIN, says="counted from 0")
def from_one(examples):
    return pack(examples, positions=lambda e, at: list(range(1, len(e["input_ids"]) + 1)))


@wrong("7.6", "loss across the join", case=JOIN, says="predicted from the last of the first one")
def across(examples):
    return pack(examples, labels=lambda e: list(e["labels"]))


@wrong("7.6", "labels shifted", case=JOIN, says="aren't shifted here")
def shifted(examples):
    return pack(examples, labels=lambda e: [*e["labels"][1:], -100])


@wrong("7.6", "a -100 put in", case=JOIN, says="nothing is put in")
def put_in(examples):
    row = pack(examples, labels=lambda e: list(e["labels"]))
    return row | {"labels": [-100, -100, 12, 2, -100, -100, 21, 2]}


@wrong("7.6", "padded", case=JOIN, says="no padding")
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


@wrong("7.6", "one row an example", case=JOIN, says="join the lists")
def unjoined(examples):
    return {
        "input_ids": [e["input_ids"] for e in examples],
        "position_ids": [list(range(len(e["input_ids"]))) for e in examples],
        "labels": [[-100, *e["labels"][1:]] for e in examples],
    }


@wrong(
    "7.6", "the first two only", case="three examples, one of a single token", says="Each example starts anew"
)
def first_two(examples):
    return pack(examples[:2])


@right("7.6", "a loop")
def row_loop(examples):
    row = {"input_ids": [], "position_ids": [], "labels": []}
    for example in examples:
        for i, (token, label) in enumerate(zip(example["input_ids"], example["labels"], strict=True)):
            row["input_ids"].append(token)
            row["position_ids"].append(i)
            row["labels"].append(-100 if i == 0 else label)
    return row


@right("7.6", "comprehensions")
def comprehensions(examples):
    return {
        "input_ids": [t for e in examples for t in e["input_ids"]],
        "position_ids": [i for e in examples for i in range(len(e["input_ids"]))],
        "labels": [label if i else -100 for e in examples for i, label in enumerate(e["labels"])],
    }


@right("7.6", "itertools")
def chained(examples):
    from itertools import chain

    flat = chain.from_iterable
    return {
        "input_ids": list(flat(e["input_ids"] for e in examples)),
        "position_ids": list(flat(range(len(e["labels"])) for e in examples)),
        "labels": list(flat([-100, *e["labels"][1:]] for e in examples)),
    }


# 7.7 ------------------------------------------------------------------------------------------------------------------
TEN, EMPTY = "10 tokens and 100 tokens", "a micro-batch without supervised tokens"


@wrong("7.7", "mean of means", case=TEN, says="mean of the means")
def mean_of_means(micro_batches):
    return sum(loss for loss, _ in micro_batches) / len(micro_batches)


@wrong("7.7", "a sum of losses", case=TEN, says="grows with the number")
def summed(micro_batches):
    return sum(loss for loss, _ in micro_batches)


@wrong("7.7", "a sum over tokens", case=TEN, says="Divide by the number of tokens")
def summed_tokens(micro_batches):
    return sum(loss * n for loss, n in micro_batches)


@wrong("7.7", "divides by the micro-batches", case=TEN, says="not of tokens")
def by_batches(micro_batches):
    return sum(loss * n for loss, n in micro_batches) / len(micro_batches)


@wrong("7.7", "the last one", case=TEN, says="Only the last micro-batch")
def last_one(micro_batches):
    return micro_batches[-1][0]


@wrong("7.7", "nan * 0", case=EMPTY, says="nan * 0 is nan")
def nan_stays(micro_batches):
    return sum(loss * n for loss, n in micro_batches) / max(1, sum(n for _, n in micro_batches))


@wrong("7.7", "divides by zero", case="nothing supervised at all", says="no division by zero")
def divides(micro_batches):
    return sum(loss * n for loss, n in micro_batches if n) / sum(n for _, n in micro_batches)


@right("7.7", "a loop")
def weighted_loop(micro_batches):
    total, tokens = 0.0, 0
    for loss, n in micro_batches:
        if n > 0:
            total, tokens = total + loss * n, tokens + n
    return total / tokens if tokens else 0.0


@right("7.7", "tensors")
def weighted_tensors(micro_batches):
    losses = torch.tensor([loss for loss, _ in micro_batches], dtype=torch.float64).nan_to_num()
    weights = torch.tensor([n for _, n in micro_batches], dtype=torch.float64)
    return ((losses * weights).sum() / weights.sum().clamp(min=1)).item()


@right("7.7", "a running mean")
def running_mean(micro_batches):
    mean, tokens = 0.0, 0
    for loss, n in micro_batches:
        if n:
            tokens += n
            mean += (loss - mean) * n / tokens
    return mean


# 7.8 ------------------------------------------------------------------------------------------------------------------
OWN = "your rows"


@wrong("7.8", "three rows", case=OWN, says="at least 8 rows")
def three_rows():
    return library_rows()[:3]


@wrong("7.8", "an empty answer", case=OWN, says="needs an answer")
def empty_answer():
    return [*library_rows(), {"instruction": "Who are you?", "output": "  "}]


@wrong("7.8", "texts in place of rows", case=OWN, says="A row is a dict")
def texts():
    return [row["instruction"] + " " + row["output"] for row in library_rows()]


@wrong("7.8", "one row many times", case=OWN, says="weighs double")
def copies():
    return [library_rows()[0] for _ in range(10)]


@wrong("7.8", "an essay", case=OWN, says="Keep it short")
def essay():
    return [*library_rows(), {"instruction": "Tell me all.", "output": "We open at nine. " * 100}]


@wrong("7.8", "names of one's own", case=OWN, says="validator of topic 01")
def own_names():
    return [{"ask": row["instruction"], "say": row["output"]} for row in library_rows()]


@wrong("7.8", "ends with the user", case=OWN, says="validator of topic 01")
def no_last_answer():
    return [{"messages": [{"role": "user", "content": row["instruction"]}]} for row in library_rows()]


@right("7.8", "chats")
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


@right("7.8", "prompt and completion")
def pairs():
    return [{"prompt": row["instruction"], "completion": row["output"]} for row in library_rows()]


@right("7.8", "made in a loop")
def numbers():
    return [{"instruction": f"What is {n} in Roman numerals?", "output": "I" * n} for n in range(1, 9)]


# Statements of the texts, and what ignores them -------------------------------------------------------------------------


@wrong("7.3", "rank 16", case="SmolLM2-135M's seven layers, 30 blocks", says="r is a parameter")
def rank_16(shapes, r):
    return sum(16 * (o + i) for o, i in shapes)


@wrong("7.5", "the wrong size for r", case=MERGE_ONE, says="A's first")
def by_inputs(weight, a, b, alpha):
    return (weight.float() + alpha / a.shape[1] * (b.float() @ a.float())).to(weight.dtype)


@wrong("7.5", "the product in 16 bits", case="a 16-bit adapter", says="convert both to float32")
def product_in_16_bits(weight, a, b, alpha):
    return (weight.float() + alpha / a.shape[0] * (b @ a).float()).to(weight.dtype)


@wrong("7.7", "a loss of 0.0 left out", case="a loss of 0.0", says="Ask whether it has tokens")
def no_zero_loss(micro_batches):
    kept = [(m, k) for m, k in micro_batches if m and k]
    return sum(m * k for m, k in kept if not math.isnan(m)) / sum(k for _, k in kept) if kept else 0.0


@wrong("7.7", "// for /", case="10 tokens and 100 tokens", says="cuts the fraction off")
def floor_division(micro_batches):
    tokens = sum(n for _, n in micro_batches)
    return sum(loss * n for loss, n in micro_batches if n) // tokens if tokens else 0.0


@wrong("7.7", "alike is the same", case="two alike", says="are two")
def alike_is_the_same(micro_batches):
    kept = {(loss, n) for loss, n in micro_batches if n}
    return sum(loss * n for loss, n in kept) / sum(n for _, n in kept) if kept else 0.0


ANSWERS.equivalent("7.5", "a sum with a float32 tensor is in float32", "weight.float() -> weight")
ANSWERS.equivalent(
    "7.7",
    "a loss of 0.0 adds nothing to this sum, and there is no number of tokens below 0",
    "(… for loss, n in micro_batches if n > 0) -> (… for loss, n in micro_batches if loss and n > 0)",
    "n > 0 -> n",
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
    "7.5",
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
    "7.6",
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
    "7.7",
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
    "7.8",
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


ANSWERS.statements(
    "7.1",
    {
        "a is random": both_zero,
        "b is zero": both_random,
        "float32": in_half,
        "whatever the layer is in": in_its_dtype,
        "a (r, in), b (out, r)": shapes_exchanged,
        "called a and b": other_names,
        "the wrapped layer is frozen": not_frozen,
        "a gradient flows": without_grad,
        "alpha / r": unscaled,
        "divided by r": by_alpha,
        "r, not its root": by_root,
        "the layer's whole output": without_bias,
        "a and b as they are now": merged_early,
        "output in the layer's dtype": float_out,
        "x in the layer's dtype": x_as_it_is,
        "call the layer": reads_weight,
    },
)
ANSWERS.statements(
    "7.2",
    {
        "adapters stay trainable": freezes_all,
        "all else is frozen": freezes_nothing,
        "the whole last part of the path": ends_with,
        "in the model": only_a_variable,
        "each of the names": first_name,
        "everywhere": first_block,
        "return": returns_nothing,
        "how many layers": returns_names,
        "each layer once": round_by_round,
        "at the top as well": needs_parent,
        "linear layers only": any_module,
    },
)
ANSWERS.statements(
    "7.4",
    {
        "measured before training": without_first,
        "measured after each pass": without_last,
        "a step for each batch": one_batch,
        "in their order": backwards,
        "gradients are still there at the step": cleared_too_early,
        "the optimizer steps": no_step,
        "only what requires a gradient": trains_all,
        "what is left over on frozen parameters": all_parameters,
        "what is left over on trained ones": left_over,
        "cleared for each batch": never_cleared,
        "AdamW": plain_sgd,
        "one optimizer": anew,
        "lr": default_rate,
        "a list": last_loss,
        "stop after the first that isn't lower": goes_on,
        "lower than before that pass": above_the_start,
        "the same is not lower": equal_goes_on,
        "adapters of the lowest": not_put_back,
        "as they were": follows,
        "in the model that was given": copies_the_model,
        "the last pass may be the best": always_back,
        "so may none be": first_pass_counts,
        "at most passes": without_limit,
        "no pass at all": one_at_least,
    },
)
ANSWERS.equivalent(
    "7.2",
    "another value for a key of a dict doesn't disturb a loop over it",
    "list(model.named_modules()) -> model.named_modules()",
)
ANSWERS.equivalent(
    "7.4",
    "the optimizer skips what has no gradient once all are cleared, and every parameter has a name",
    "(… for n, p in model.named_parameters() if p.requires_grad) -> (… for n, p in model.named_parameters())",
    "(… for n, p in model.named_parameters() if p.requires_grad) -> "
    "(… for n, p in model.named_parameters() if n and p.requires_grad)",
)
ANSWERS.equivalent("7.4", "a clone has the same numbers with a graph behind it", "p.detach() -> p")
