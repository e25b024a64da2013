"""What people hand in for the exercises of lab 05."""

import torch
from onegpu.exercises.answers import Answers

ANSWERS = Answers()
wrong, right = ANSWERS.wrong, ANSWERS.right

# 5.1 ------------------------------------------------------------------------------------------------------------------


@wrong("5.1", "the weights only", case="AdamW in fp16", says="weights alone")
def weights_only(parameters, bytes_each, optimizer):
    return parameters * bytes_each


@wrong("5.1", "one moment", case="AdamW in fp16", says="two moments make four numbers")
def one_moment(parameters, bytes_each, optimizer):
    return parameters * 3 * bytes_each


@wrong("5.1", "fp32 moments", case="AdamW in fp16", says="not in fp32")
def fp32_moments(parameters, bytes_each, optimizer):
    return parameters * (2 * bytes_each + 8)


@wrong("5.1", "always 16", case="AdamW in fp16", says="16 bytes a parameter is fp32")
def sixteen(parameters, bytes_each, optimizer):
    return 16 * parameters


@wrong("5.1", "8-bit as any other", case="8-bit AdamW", says="one byte a moment")
def no_8bit(parameters, bytes_each, optimizer):
    return parameters * bytes_each * (2 if optimizer == "sgd" else 4)


@wrong("5.1", "8-bit moments forgotten", case="8-bit AdamW", says="not gone")
def no_moments(parameters, bytes_each, optimizer):
    return parameters * bytes_each * (4 if optimizer == "adamw" else 2)


@wrong("5.1", "SGD with momentum", case="SGD", says="without momentum")
def momentum(parameters, bytes_each, optimizer):
    return (
        parameters
        * {"adamw": 4 * bytes_each, "adamw_8bit": 2 * bytes_each + 2, "sgd": 3 * bytes_each}[optimizer]
    )


@right("5.1", "if by if")
def by_if(parameters, bytes_each, optimizer):
    total = 2 * parameters * bytes_each
    if optimizer == "adamw":
        total += 2 * parameters * bytes_each
    elif optimizer == "adamw_8bit":
        total += 2 * parameters
    return total


@right("5.1", "a table")
def by_table(parameters, bytes_each, optimizer):
    return {"sgd": 2 * bytes_each, "adamw": 4 * bytes_each, "adamw_8bit": 2 * bytes_each + 2}[
        optimizer
    ] * parameters


@right("5.1", "added up in turn")
def in_turn(parameters, bytes_each, optimizer):
    weights = gradients = parameters * bytes_each
    each = 0 if optimizer == "sgd" else 1 if "8bit" in optimizer else bytes_each
    return weights + gradients + 2 * parameters * each


# 5.2 ------------------------------------------------------------------------------------------------------------------


@wrong("5.2", "no scales", case="Llama-2-7b, scales in fp32", says="scales are missing")
def no_scales(linear, other, double):
    return linear // 2 + 2 * other


@wrong("5.2", "everything quantized", case="Llama-2-7b, scales in fp32", says="aren't quantized")
def all_quantized(linear, other, double):
    return (linear + other) // 2 + 4 * (linear // 64)


@wrong("5.2", "one byte a scale", case="Llama-2-7b, scales in fp32", says="four bytes")
def byte_scales(linear, other, double):
    return linear // 2 + linear // 64 + 2 * other


@wrong("5.2", "double quantization ignored", case="double quantization", says="one byte, not four")
def never_double(linear, other, double):
    return linear // 2 + 4 * (linear // 64) + 2 * other


@wrong("5.2", "no scales of the scales", case="double quantization", says="have scales too")
def no_second_scales(linear, other, double):
    return linear // 2 + (1 if double else 4) * (linear // 64) + 2 * other


@wrong("5.2", "rounds down", case="a last block that isn't full", says="each of the two started blocks")
def rounds_down(linear, other, double):
    blocks = linear // 64
    return linear // 2 + (blocks + 4 * (blocks // 256) if double else 4 * blocks) + 2 * other


@right("5.2", "ceil")
def with_ceil(linear, other, double):
    import math

    blocks = math.ceil(linear / 64)
    scales = blocks + 4 * math.ceil(blocks / 256) if double else 4 * blocks
    return math.ceil(linear / 2) + scales + 2 * other


@right("5.2", "divmod")
def with_divmod(linear, other, double):
    blocks, rest = divmod(linear, 64)
    blocks += rest > 0
    second, rest = divmod(blocks, 256)
    second += rest > 0
    return (linear + 1) // 2 + 2 * other + (blocks + 4 * second if double else 4 * blocks)


@right("5.2", "negative floor")
def negative_floor(linear, other, double):
    blocks = -(-linear // 64)
    total = -(-linear // 2) + 2 * other
    return total + (blocks - -blocks // 256 * 0 + 4 * -(-blocks // 256) if double else blocks * 4)


# 5.3 ------------------------------------------------------------------------------------------------------------------


def state_tensors(optimizer):
    return [t for state in optimizer.state.values() for t in state.values() if torch.is_tensor(t)]


def size(t):
    return t.numel() * t.element_size()


@wrong("5.3", "elements, not bytes", case="after one step of AdamW", says="element_size")
def elements(model, optimizer):
    return (
        sum(p.grad.numel() for p in model.parameters() if p.grad is not None),
        sum(t.numel() for t in state_tensors(optimizer)),
    )


@wrong("5.3", "one moment", case="after one step of AdamW", says="two moments")
def first_moment(model, optimizer):
    gradients = sum(size(p.grad) for p in model.parameters() if p.grad is not None)
    return gradients, sum(size(s["exp_avg"]) for s in optimizer.state.values())


@wrong("5.3", "no step counters", case="after one step of AdamW", says="step counter")
def no_counters(model, optimizer):
    gradients = sum(size(p.grad) for p in model.parameters() if p.grad is not None)
    return gradients, sum(size(s["exp_avg"]) + size(s["exp_avg_sq"]) for s in optimizer.state.values())


@wrong("5.3", "one number", case="after one step of AdamW", says="Return both")
def one_number(model, optimizer):
    return sum(size(p.grad) for p in model.parameters() if p.grad is not None) + sum(
        map(size, state_tensors(optimizer))
    )


@wrong("5.3", "parameters for gradients", case="a frozen layer", says="p.grad where there is one")
def all_parameters(model, optimizer):
    return sum(map(size, model.parameters())), sum(map(size, state_tensors(optimizer)))


@wrong("5.3", "gradients that are None", case="a frozen layer", says="no gradient")
def none_gradients(model, optimizer):
    return sum(size(p.grad) for p in model.parameters()), sum(map(size, state_tensors(optimizer)))


@wrong("5.3", "trainable is not used", case="a layer that was never used", says="skip it")
def trainable(model, optimizer):
    return sum(size(p) for p in model.parameters() if p.requires_grad), sum(
        map(size, state_tensors(optimizer))
    )


@right("5.3", "a loop")
def loop(model, optimizer):
    gradients = states = 0
    for p in model.parameters():
        if p.grad is not None:
            gradients += p.grad.numel() * p.grad.element_size()
    for state in optimizer.state.values():
        for value in state.values():
            if isinstance(value, torch.Tensor):
                states += value.numel() * value.element_size()
    return gradients, states


@right("5.3", "nbytes")
def nbytes(model, optimizer):
    return sum(p.grad.nbytes for p in model.parameters() if p.grad is not None), sum(
        t.nbytes for t in state_tensors(optimizer)
    )


@right("5.3", "storages")
def storages(model, optimizer):
    gradients = [p.grad for p in model.parameters() if p.grad is not None]
    return tuple(
        sum(t.untyped_storage().nbytes() for t in ts) for ts in (gradients, state_tensors(optimizer))
    )


# 5.4 ------------------------------------------------------------------------------------------------------------------


@wrong("5.4", "one layer", case="all layers keep theirs", says="one layer")
def one_layer(layers, tokens, hidden, layer_bytes, checkpointing):
    return tokens * layer_bytes


@wrong("5.4", "one token", case="all layers keep theirs", says="for one token")
def one_token(layers, tokens, hidden, layer_bytes, checkpointing):
    return layers * layer_bytes


@wrong("5.4", "checkpointing ignored", case="checkpointing", says="keeps only its input")
def no_checkpointing(layers, tokens, hidden, layer_bytes, checkpointing):
    return layers * tokens * layer_bytes


@wrong("5.4", "inputs only", case="checkpointing", says="recomputed in full")
def inputs_only(layers, tokens, hidden, layer_bytes, checkpointing):
    return layers * tokens * (2 * hidden if checkpointing else layer_bytes)


@wrong("5.4", "one byte a number", case="checkpointing", says="takes 2 bytes")
def one_byte(layers, tokens, hidden, layer_bytes, checkpointing):
    return layers * tokens * hidden + tokens * layer_bytes if checkpointing else layers * tokens * layer_bytes


@wrong("5.4", "one input", case="checkpointing", says="Every layer's input")
def one_input(layers, tokens, hidden, layer_bytes, checkpointing):
    return tokens * (2 * hidden + layer_bytes) if checkpointing else layers * tokens * layer_bytes


@right("5.4", "in one line")
def one_line(layers, tokens, hidden, layer_bytes, checkpointing):
    return tokens * (layers * 2 * hidden + layer_bytes if checkpointing else layers * layer_bytes)


@right("5.4", "two parts")
def two_parts(layers, tokens, hidden, layer_bytes, checkpointing):
    inputs = layers * tokens * hidden * 2 if checkpointing else 0
    full = 1 if checkpointing else layers
    return inputs + full * tokens * layer_bytes


@right("5.4", "a loop over layers")
def over_layers(layers, tokens, hidden, layer_bytes, checkpointing):
    kept = sum(tokens * (2 * hidden if checkpointing else layer_bytes) for _ in range(layers))
    return kept + tokens * layer_bytes * checkpointing


# 5.5 ------------------------------------------------------------------------------------------------------------------


@wrong("5.5", "the nearest within 10 %", case="the article's three runs", says="within 1 %")
def within_10(printed, predicted, candidates):
    for name, size in candidates.items():
        if all(abs(p - q - size) <= 0.1 * size for p, q in zip(printed, predicted, strict=True)):
            return name
    return None


@wrong("5.5", "to the byte of the ratio", case="the article's three runs", says="the same in every run")
def by_ratio(printed, predicted, candidates):
    ratios = {p / q for p, q in zip(printed, predicted, strict=True)}
    return next(iter(candidates)) if len(ratios) == 1 and ratios != {1.0} else None


@wrong("5.5", "the first run only", case="a distance that grows with the batch", says="all runs must agree")
def first_run(printed, predicted, candidates):
    excess = printed[0] - predicted[0]
    return next((n for n, s in candidates.items() if abs(excess - s) <= 0.01 * s), None)


@wrong("5.5", "always the copy", case="a distance that grows with the batch", says="all runs must agree")
def always(printed, predicted, candidates):
    return "a second copy of the model"


@wrong("5.5", "the nearest, however far", case="a distance that grows with the batch", says="grows")
def nearest(printed, predicted, candidates):
    mean = sum(p - q for p, q in zip(printed, predicted, strict=True)) / len(printed)
    return min(candidates, key=lambda n: abs(candidates[n] - mean)) if mean < 3e9 else "unknown"


@wrong("5.5", "to the byte", case="a little noise", says="Allow 1 %")
def to_the_byte(printed, predicted, candidates):
    for name, size in candidates.items():
        if all(p - q == size for p, q in zip(printed, predicted, strict=True)):
            return name
    return None


@right("5.5", "a comprehension")
def comprehension(printed, predicted, candidates):
    excess = [p - q for p, q in zip(printed, predicted, strict=True)]
    found = [n for n, s in candidates.items() if all(abs(e - s) <= s / 100 for e in excess)]
    return found[0] if found else None


@right("5.5", "nested loops")
def nested(printed, predicted, candidates):
    for name, size in candidates.items():
        good = True
        for i in range(len(printed)):
            if abs(printed[i] - predicted[i] - size) > 0.01 * size:
                good = False
        if good:
            return name
    return None


@right("5.5", "relative distance")
def relative(printed, predicted, candidates):
    for name, size in candidates.items():
        if max(abs((p - q) / size - 1) for p, q in zip(printed, predicted, strict=True)) <= 0.01:
            return name
    return None


# 5.6 ------------------------------------------------------------------------------------------------------------------


@wrong("5.6", "no context", case="a T4", says="CUDA context")
def no_context(fixed, row, card, context):
    return max(0, (card - fixed) // row)


@wrong("5.6", "no fixed part", case="a T4", says="comes off first")
def no_fixed(fixed, row, card, context):
    return max(0, (card - context) // row)


@wrong("5.6", "rounds up", case="a T4", says="Rounded up")
def rounds_up(fixed, row, card, context):
    return max(0, -(-(card - context - fixed) // row))


@wrong("5.6", "a fraction", case="a T4", says="no row")
def fraction(fixed, row, card, context):
    return max(0, (card - context - fixed) / row)


@wrong("5.6", "negative", case="not even the model fits", says="not a negative")
def negative(fixed, row, card, context):
    return (card - context - fixed) // row


@wrong("5.6", "strictly less", case="an exact fit", says="last byte fits")
def strictly(fixed, row, card, context):
    return max(0, (card - context - fixed - 1) // row)


@right("5.6", "counting up")
def counting(fixed, row, card, context):
    n = 0
    while fixed + (n + 1) * row + context <= card:
        n += 1
    return n


@right("5.6", "int of a division")
def int_of(fixed, row, card, context):
    free = card - context - fixed
    return int(free / row) if free > 0 else 0


@right("5.6", "divmod")
def by_divmod(fixed, row, card, context):
    return max(divmod(card - fixed - context, row)[0], 0)


# 5.7 ------------------------------------------------------------------------------------------------------------------


def totals(timeline):
    return [sum(sizes) for sizes in zip(*timeline.by_category.values(), strict=True)]


def largest_at(timeline, i):
    return max(timeline.by_category, key=lambda c: timeline.by_category[c][i])


@wrong("5.7", "one category's peak", case="a peak in the optimizer step", says="add the categories up first")
def one_category(timeline):
    best = max(timeline.by_category, key=lambda c: max(timeline.by_category[c]))
    sizes = timeline.by_category[best]
    return max(sizes), timeline.phase_at(timeline.positions[sizes.index(max(sizes))]), best


@wrong("5.7", "end of the forward pass", case="a peak in the optimizer step", says="higher later")
def forward_end(timeline):
    total = totals(timeline)
    i = next(i for i in range(len(total) - 1) if total[i + 1] < total[i])
    return total[i], timeline.phase_at(timeline.positions[i]), largest_at(timeline, i)


@wrong("5.7", "index for position", case="a peak in the optimizer step", says="not an index")
def by_index(timeline):
    total = totals(timeline)
    i = total.index(max(total))
    return total[i], timeline.phase_at(i), largest_at(timeline, i)


@wrong("5.7", "the phase before", case="a peak in the optimizer step", says="peak's own position")
def phase_before(timeline):
    total = totals(timeline)
    i = total.index(max(total))
    return total[i], timeline.phase_at(timeline.positions[i] - 1), largest_at(timeline, i)


@wrong("5.7", "largest on the whole", case="a peak at the loss", says="at the peak")
def on_the_whole(timeline):
    total = totals(timeline)
    i = total.index(max(total))
    best = max(timeline.by_category, key=lambda c: sum(timeline.by_category[c]))
    return total[i], timeline.phase_at(timeline.positions[i]), best


@wrong("5.7", "the last of equals", case="the same height twice", says="Take the first")
def last_of_equals(timeline):
    total = totals(timeline)
    i = len(total) - 1 - total[::-1].index(max(total))
    return total[i], timeline.phase_at(timeline.positions[i]), largest_at(timeline, i)


@right("5.7", "allocated_bytes")
def allocated(timeline):
    total = timeline.allocated_bytes
    i = max(range(len(total)), key=total.__getitem__)
    return total[i], timeline.phase_at(timeline.positions[i]), largest_at(timeline, i)


@right("5.7", "sums by hand")
def by_hand(timeline):
    total = totals(timeline)
    i = total.index(max(total))
    return total[i], timeline.phase_at(timeline.positions[i]), largest_at(timeline, i)


@right("5.7", "a loop")
def by_loop(timeline):
    best = (-1, "", "")
    for i, position in enumerate(timeline.positions):
        height = sum(sizes[i] for sizes in timeline.by_category.values())
        if height > best[0]:
            best = (height, timeline.phase_at(position), largest_at(timeline, i))
    return best


# Statements of the texts, and what ignores them -------------------------------------------------------------------------


@wrong("5.2", "a started block whole", case="a last block that isn't full", says="half a byte each")
def whole_blocks(linear, other, double):
    blocks = -(-linear // 64)
    return blocks * 32 + (blocks + 4 * -(-blocks // 256) if double else 4 * blocks) + 2 * other


@wrong("5.2", "half of the last byte", case="an odd number of weights", says="needs its byte")
def half_of_the_last_byte(linear, other, double):
    blocks = -(-linear // 64)
    return linear // 2 + (blocks + 4 * -(-blocks // 256) if double else 4 * blocks) + 2 * other


@wrong("5.3", "4 bytes always", case="in 16 bits", says="ask each tensor")
def four_bytes(model, optimizer):
    return (
        sum(p.grad.numel() * 4 for p in model.parameters() if p.grad is not None),
        sum(v.numel() * 4 for st in optimizer.state.values() for v in st.values() if torch.is_tensor(v)),
    )


@wrong("5.3", "everything is a tensor", case="things that aren't tensors", says="count tensors only")
def everything(model, optimizer):
    return (
        sum(p.grad.nbytes for p in model.parameters() if p.grad is not None),
        sum(v.nbytes for st in optimizer.state.values() for v in st.values()),
    )


@wrong("5.3", "each size once", case="two layers of the same size", says="are two gradients")
def each_size_once(model, optimizer):
    return (
        sum({p.grad.nbytes for p in model.parameters() if p.grad is not None}),
        sum(v.nbytes for st in optimizer.state.values() for v in st.values() if torch.is_tensor(v)),
    )


@wrong("5.3", "clears the gradients", case="after one step of AdamW", says="changes its input")
def clears(model, optimizer):
    found = (
        sum(p.grad.nbytes for p in model.parameters() if p.grad is not None),
        sum(v.nbytes for st in optimizer.state.values() for v in st.values() if torch.is_tensor(v)),
    )
    optimizer.zero_grad()
    return found


def explains(within):
    def explain_excess(printed, predicted, candidates):
        for name, size in candidates.items():
            if all(within(p, q, size) for p, q in zip(printed, predicted, strict=True)):
                return name
        return None

    return explain_excess


unsigned = wrong("5.5", "the sign is lost", case="printed below the prediction", says="sign is lost")(
    explains(lambda p, q, size: abs(abs(p - q) - size) <= 0.01 * size)
)
of_printed = wrong("5.5", "1 % of what was printed", case="the article's three runs", says="within 1 %")(
    explains(lambda p, q, size: abs(p - q - size) <= 0.01 * p)
)
half_percent = wrong("5.5", "half a percent", case="nearly 1 % off", says="within 1 %")(
    explains(lambda p, q, size: abs(p - q - size) <= 0.005 * size)
)
two_percent = wrong("5.5", "two percent", case="just over 1 %", says="all runs must")(
    explains(lambda p, q, size: abs(p - q - size) <= 0.02 * size)
)


@wrong("5.5", "on average", case="right on average", says="on average only")
def on_average(printed, predicted, candidates):
    mean = sum(p - q for p, q in zip(printed, predicted, strict=True)) / len(printed)
    fits = (name for name, size in candidates.items() if abs(mean - size) <= 0.01 * size)
    return next(fits, None)


@wrong("5.7", "where it stands", case="a peak in the optimizer step", says="The bytes come first")
def where_it_stands(timeline):
    total = [sum(sizes) for sizes in zip(*timeline.by_category.values(), strict=True)]
    at = total.index(max(total))
    largest = max(timeline.by_category, key=lambda category: timeline.by_category[category][at])
    return timeline.positions[at], timeline.phase_at(timeline.positions[at]), largest


ANSWERS.equivalent(
    "5.3",
    "each tensor is itself: a set of them loses none",
    "[t for state in optimizer.state.values() for t in state.values() if torch.is_tensor(t)] -> "
    "{t for state in optimizer.state.values() for t in state.values() if torch.is_tensor(t)}",
)
ANSWERS.equivalent("5.5", "a function that ends without return returns None", "return None -> print(None)")
ANSWERS.equivalent(
    "5.5",
    "all of a set is all of the list; a distance has no sign; exactly 1 % is a matter of rounding",
    "(abs(p - q - size) <= 0.01 * size for p, q in zip(printed, predicted)) -> "
    "{abs(p - q - size) <= 0.01 * size for p, q in zip(printed, predicted)}",
    "p - q - size -> size - (p - q)",
    "abs(p - q - size) <= 0.01 * size -> abs(p - q - size) < 0.01 * size",
)
ANSWERS.statements(
    "5.1",
    {
        "weights, gradients and state": weights_only,
        "two moments": one_moment,
        "in the dtype of the weights": fp32_moments,
        "bytes_each": sixteen,
        "8-bit: one byte each": no_8bit,
        "8-bit: not none": no_moments,
        "SGD: none": momentum,
    },
)
ANSWERS.statements(
    "5.2",
    {
        "a scale for each block": no_scales,
        "what isn't linear stays in 16 bits": all_quantized,
        "fp32 scales": byte_scales,
        "with double quantization one byte": never_double,
        "and fp32 scales of those": no_second_scales,
        "a started block has a whole scale": rounds_down,
        "a weight has half a byte": whole_blocks,
        "an odd one rounds up": half_of_the_last_byte,
    },
)
ANSWERS.statements(
    "5.3",
    {
        "bytes": elements,
        "of each dtype": four_bytes,
        "all tensors in the state": first_moment,
        "step counters too": no_counters,
        "tensors only": everything,
        "two ints": one_number,
        "gradients, not parameters": all_parameters,
        "gradients that are there": none_gradients,
        "not those that could be": trainable,
        "each": each_size_once,
        "as they are now": clears,
    },
)
ANSWERS.statements(
    "5.4",
    {
        "layers": one_layer,
        "for each token": one_token,
        "checkpointing": no_checkpointing,
        "one layer is computed again in full": inputs_only,
        "numbers of 2 bytes": one_byte,
        "each layer keeps its input": one_input,
    },
)
ANSWERS.statements(
    "5.5",
    {
        "within 1 %": within_10,
        "no less than 1 %": half_percent,
        "no more": two_percent,
        "of its size": of_printed,
        "not to the byte": to_the_byte,
        "in all runs": first_run,
        "in each of them": on_average,
        "printed minus predicted": unsigned,
        "None if no suspect is": always,
    },
)
ANSWERS.statements(
    "5.6",
    {
        "the context takes its share": no_context,
        "a fixed part": no_fixed,
        "whole rows": rounds_up,
        "int": fraction,
        "0 if none does": negative,
        "an exact fit fits": strictly,
    },
)
ANSWERS.statements(
    "5.7",
    {
        "all categories together": one_category,
        "the highest point": forward_end,
        "bytes": where_it_stands,
        "phase_at(position)": by_index,
        "its phase": phase_before,
        "the one largest there": on_the_whole,
        "the first counts": last_of_equals,
    },
)


# 5.8 ------------------------------------------------------------------------------------------------------------------

RUN = "1,000 parameters, 4 rows of 6 tokens"


def run_of(parameters, tokens, shape, moments=2, each=4, vectors=2, heads="kv_heads", layers=None):
    layers = shape["layers"] if layers is None else layers
    return {
        "weights": each * parameters,
        "gradients": each * parameters,
        "optimizer_state": each * moments * parameters,
        "logits_and_loss": each * tokens * shape["vocab_size"],
        "kv_cache": each * vectors * layers * tokens * shape[heads] * shape["head_dim"],
    }


@wrong("5.8", "all in fp16", case=RUN, says="That is fp16")
def run_in_fp16(parameters, shape, rows, length):
    return run_of(parameters, rows * length, shape, each=2)


@wrong("5.8", "numbers, not bytes", case=RUN, says="Those are numbers")
def run_in_numbers(parameters, shape, rows, length):
    return run_of(parameters, rows * length, shape, each=1)


@wrong("5.8", "one moment", case=RUN, says="two moments")
def run_one_moment(parameters, shape, rows, length):
    return run_of(parameters, rows * length, shape, moments=1)


@wrong("5.8", "keys without values", case=RUN, says="keys and values")
def run_keys(parameters, shape, rows, length):
    return run_of(parameters, rows * length, shape, vectors=1)


@wrong("5.8", "a cache of query heads", case=RUN, says="Only the key heads")
def run_query_heads(parameters, shape, rows, length):
    return run_of(parameters, rows * length, shape, heads="heads")


@wrong("5.8", "one layer", case=RUN, says="Every layer")
def run_one_layer(parameters, shape, rows, length):
    return run_of(parameters, rows * length, shape, layers=1)


@wrong("5.8", "one row", case=RUN, says="rows times length")
def run_one_row(parameters, shape, rows, length):
    return run_of(parameters, rows * length, shape) | {"logits_and_loss": 4 * length * shape["vocab_size"]}


@wrong("5.8", "logits of one token", case=RUN, says="for every token")
def run_last_logits(parameters, shape, rows, length):
    return run_of(parameters, rows * length, shape) | {"logits_and_loss": 4 * shape["vocab_size"]}


@wrong("5.8", "parameters alone", case=RUN, says="Five categories")
def run_parameters(parameters, shape, rows, length):
    found = run_of(parameters, rows * length, shape)
    return {name: found[name] for name in ("weights", "gradients", "optimizer_state")}


@right("5.8", "line by line")
def run_by_lines(parameters, shape, rows, length):
    weights, tokens = parameters * 4, rows * length
    each_layer = 2 * shape["kv_heads"] * shape["head_dim"] * 4
    return {
        "weights": weights,
        "gradients": weights,
        "optimizer_state": weights * 2,
        "logits_and_loss": shape["vocab_size"] * tokens * 4,
        "kv_cache": shape["layers"] * each_layer * tokens,
    }


@right("5.8", "in another order")
def run_turned(parameters, shape, rows, length):
    return dict(reversed(run_of(parameters, length * rows, shape).items()))


@right("5.8", "row by row")
def run_row_by_row(parameters, shape, rows, length):
    found = run_of(parameters, 0, shape)
    for _ in range(rows):
        one = run_of(parameters, length, shape)
        for name in ("logits_and_loss", "kv_cache"):
            found[name] += one[name]
    return found


ANSWERS.statements(
    "5.8",
    {
        "fp32": run_in_fp16,
        "bytes": run_in_numbers,
        "two moments": run_one_moment,
        "keys and values": run_keys,
        "of the key heads": run_query_heads,
        "every layer": run_one_layer,
        "rows of length tokens": run_one_row,
        "logits of every token": run_last_logits,
        "five categories": run_parameters,
    },
)

# 5.9 ------------------------------------------------------------------------------------------------------------------

LEAN = "4 rows a step"


def lean(batch, accumulation, checkpointing=True, **more):
    return {
        "per_device_train_batch_size": batch,
        "gradient_accumulation_steps": accumulation,
        "gradient_checkpointing": checkpointing,
        **more,
    }


@wrong("5.9", "micro-batches only", case=LEAN, says="keeps its input alone")
def lean_without_checkpointing(rows):
    return lean(1, rows, False)


@wrong("5.9", "checkpointing only", case=LEAN, says="Several rows")
def lean_in_one(rows):
    return lean(rows, 1)


@wrong("5.9", "one row a step", case=LEAN, says="all its rows")
def lean_one_row(rows):
    return lean(1, 1)


@wrong("5.9", "twice as many rows", case=LEAN, says="all its rows")
def lean_too_many(rows):
    return lean(2, rows)


@wrong("5.9", "SGD", case=LEAN, says="AdamW in fp32 stays")
def lean_sgd(rows):
    return lean(1, rows, optim="sgd")


@wrong("5.9", "8-bit moments", case=LEAN, says="AdamW in fp32 stays")
def lean_8bit(rows):
    return lean(1, rows, optim="adamw_8bit")


@wrong("5.9", "LoRA", case=LEAN, says="the rest of the run stays")
def lean_lora(rows):
    return lean(1, rows, method="lora")


@wrong("5.9", "four rows, whatever is asked", case="6 rows a step", says="any number of rows")
def lean_four(rows):
    return lean(1, 4)


@right("5.9", "one tensor after the other")
def lean_single(rows):
    return lean(1, rows, optim="adamw_single")


@right("5.9", "batch size left out")
def lean_short(rows):
    return {"gradient_accumulation_steps": rows, "gradient_checkpointing": True}


@right("5.9", "the default optimizer named")
def lean_named(rows):
    return lean(1, rows, optim="adamw_torch")


ANSWERS.statements(
    "5.9",
    {
        "at most 1.5 times": lean_without_checkpointing,
        "of one row's size": lean_in_one,
        "rows a step": lean_one_row,
        "and no more": lean_too_many,
        "AdamW": lean_sgd,
        "in fp32": lean_8bit,
        "these four settings": lean_lora,
        "rows is a parameter": lean_four,
    },
)
