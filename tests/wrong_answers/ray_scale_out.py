"""What people hand in for the exercises of lab 08."""

import copy
import itertools
import json
import math
import pickle
import tempfile
from pathlib import Path

import numpy as np
import torch
from onegpu.exercises.answers import Answers

ANSWERS = Answers()
wrong, right = ANSWERS.wrong, ANSWERS.right

# 8.1 ------------------------------------------------------------------------------------------------------------------


@wrong("8.1", "a new iterator each call", case="three batches, five calls", says="new iterator")
def new_iterator(batches):
    return lambda: next(iter(batches), None)


@wrong("8.1", "always the first", case="three batches, five calls", says="new iterator")
def always_first(batches):
    def next_batch():
        for batch in batches:
            return batch
        return None

    return next_batch


@wrong("8.1", "starts again", case="three batches, five calls", says="never ends")
def starts_again(batches):
    endless = itertools.cycle(batches)
    return lambda: next(endless)


@wrong("8.1", "looks whether there is one", case="three batches, five calls", says="and lost")
def peeks(batches):
    iterator = iter(batches)
    next(iterator, None)
    return lambda: next(iterator, None)


@wrong("8.1", "pops from the end", case="three batches, five calls", says="from the end")
def pops(batches):
    left = list(batches)
    return lambda: left.pop() if left else None


@wrong("8.1", "drops the short batch", case="three batches, five calls", says="last batch is missing")
def drops_last(batches):
    iterator = iter([batch for batch in batches if len(batch) == len(batches[0])])
    return lambda: next(iterator, None)


@wrong("8.1", "returns the batches", case="three batches, five calls", says="Return a function")
def returns_batches(batches):
    return list(batches)


@wrong("8.1", "an empty list at the end", case="no batches", says="returns None already")
def empty_list(batches):
    if not batches:
        return list
    iterator = iter(batches)
    return lambda: next(iterator, None)


@right("8.1", "a counter")
def counter(batches):
    at = 0

    def next_batch():
        nonlocal at
        at += 1
        return batches[at - 1] if at <= len(batches) else None

    return next_batch


@right("8.1", "try and except")
def tries(batches):
    iterator = iter(batches)

    def next_batch():
        try:
            return next(iterator)
        except StopIteration:
            return None

    return next_batch


@right("8.1", "a generator")
def generator(batches):
    def give():
        yield from batches
        while True:
            yield None

    return give().__next__


# 8.2 ------------------------------------------------------------------------------------------------------------------


@wrong("8.2", "hands it back", case="SGD in an actor", says="did not move")
def as_it_came(model, optimizer):
    return optimizer


@wrong("8.2", "copies it", case="SGD in an actor", says="did not move")
def copied(model, optimizer):
    return copy.deepcopy(optimizer)


@wrong("8.2", "its old parameters", case="SGD in an actor", says="did not move")
def old_parameters(model, optimizer):
    return type(optimizer)(optimizer.param_groups[0]["params"], **optimizer.defaults)


@wrong("8.2", "parameters of a copy", case="SGD in an actor", says="did not move")
def of_a_copy(model, optimizer):
    return type(optimizer)(copy.deepcopy(model).parameters(), **optimizer.defaults)


@wrong("8.2", "loads the state into itself", case="SGD in an actor", says="did not move")
def loads_state(model, optimizer):
    optimizer.load_state_dict(optimizer.state_dict())
    return optimizer


@wrong("8.2", "always SGD", case="Adam with weight decay", says="another kind")
def always_sgd(model, optimizer):
    return torch.optim.SGD(
        model.parameters(),
        lr=optimizer.defaults["lr"],
        weight_decay=optimizer.defaults.get("weight_decay", 0),
    )


@wrong("8.2", "only the learning rate", case="Adam with weight decay", says="settings changed")
def only_lr(model, optimizer):
    return type(optimizer)(model.parameters(), lr=optimizer.defaults["lr"])


@right("8.2", "swaps the parameters")
def swaps(model, optimizer):
    optimizer.param_groups[0]["params"] = list(model.parameters())
    return optimizer


@right("8.2", "from the group")
def from_group(model, optimizer):
    settings = {k: v for k, v in optimizer.param_groups[0].items() if k in optimizer.defaults}
    return optimizer.__class__(list(model.parameters()), **settings)


@right("8.2", "only what is trained")
def trained_only(model, optimizer):
    return type(optimizer)([p for p in model.parameters() if p.requires_grad], **optimizer.defaults)


# 8.3 ------------------------------------------------------------------------------------------------------------------


@wrong("8.3", "mean of means", case="2 workers, 10 and 30 tokens", says="mean of the means")
def mean_of_means(losses, tokens):
    return sum(losses) / len(losses)


@wrong("8.3", "weights turned round", case="2 workers, 10 and 30 tokens", says="turned round")
def turned_round(losses, tokens):
    return sum(loss * n for loss, n in zip(losses, reversed(tokens), strict=True)) / sum(tokens)


@wrong("8.3", "the sum", case="2 workers, 10 and 30 tokens", says="sum over all tokens")
def summed(losses, tokens):
    return sum(loss * n for loss, n in zip(losses, tokens, strict=True))


@wrong(
    "8.3", "divides by the workers", case="2 workers, 10 and 30 tokens", says="not by the number of workers"
)
def by_workers(losses, tokens):
    return sum(loss * n for loss, n in zip(losses, tokens, strict=True)) / len(losses)


@wrong("8.3", "the largest worker's", case="2 workers, 10 and 30 tokens", says="most tokens")
def largest(losses, tokens):
    return losses[tokens.index(max(tokens))]


@wrong("8.3", "0 times nan", case="a worker with a filler row", says="0 times nan is nan")
def zero_times_nan(losses, tokens):
    if not sum(tokens):
        raise ValueError("no tokens")
    return sum(loss * n for loss, n in zip(losses, tokens, strict=True)) / sum(tokens)


@wrong("8.3", "0 when there is nothing", case="nobody has a token", says="raise a ValueError")
def zero_for_nothing(losses, tokens):
    total = sum(loss * n for loss, n in zip(losses, tokens, strict=True) if n)
    return total / max(1, sum(tokens))


@right("8.3", "a loop")
def loop(losses, tokens):
    total = count = 0
    for loss, n in zip(losses, tokens, strict=True):
        if n > 0:
            total += loss * n
            count += n
    if count == 0:
        raise ValueError("nothing to average")
    return total / count


@right("8.3", "torch")
def with_torch(losses, tokens):
    weights = torch.tensor(tokens, dtype=torch.float64)
    if weights.sum() == 0:
        raise ValueError("nothing to average")
    return float((torch.tensor(losses, dtype=torch.float64).nan_to_num() * weights).sum() / weights.sum())


@right("8.3", "fsum over pairs")
def with_fsum(losses, tokens):
    pairs = [(loss, n) for loss, n in zip(losses, tokens, strict=True) if n]
    if not pairs:
        raise ValueError("nothing to average")
    return math.fsum(loss * n for loss, n in pairs) / sum(n for _, n in pairs)


# 8.4 ------------------------------------------------------------------------------------------------------------------


@wrong("8.4", "halves one after the other", case="six rows, 2 workers", says="one after the other")
def contiguous(rows, workers):
    each = -(-len(rows) // workers)
    padded = [*rows, *[None] * (each * workers - len(rows))]
    return [padded[each * rank : each * (rank + 1)] for rank in range(workers)]


@wrong("8.4", "one share a step", case="six rows, 2 workers", says="one share a step")
def by_steps(rows, workers):
    return [list(rows[i : i + workers]) for i in range(0, len(rows), workers)]


@wrong("8.4", "all to all", case="six rows, 2 workers", says="trained twice")
def everything(rows, workers):
    return [list(rows) for _ in range(workers)]


@wrong("8.4", "cuts off", case="seven rows, 3 workers", says="Row 6 is lost")
def cut_off(rows, workers):
    even = len(rows) // workers * workers
    return [list(rows[:even][rank::workers]) for rank in range(workers)]


@wrong("8.4", "unequal", case="seven rows, 3 workers", says="not equally long")
def unequal(rows, workers):
    return [list(rows[rank::workers]) for rank in range(workers)]


@wrong("8.4", "fills up from the beginning", case="seven rows, 3 workers", says="trained twice")
def from_the_beginning(rows, workers):
    padded = [*rows, *rows[: -len(rows) % workers]]
    return [padded[rank::workers] for rank in range(workers)]


@wrong("8.4", "repeats the last row", case="seven rows, 3 workers", says="trained three times")
def repeats_last(rows, workers):
    padded = [*rows, *[rows[-1]] * (-len(rows) % workers)]
    return [padded[rank::workers] for rank in range(workers)]


@right("8.4", "zip_longest")
def zipped(rows, workers):
    steps = [rows[i : i + workers] for i in range(0, len(rows), workers)]
    return [[step[rank] if rank < len(step) else None for step in steps] for rank in range(workers)]


@right("8.4", "dealt out")
def dealt(rows, workers):
    shares = [[] for _ in range(workers)]
    for i, row in enumerate(rows):
        shares[i % workers].append(row)
    longest = max(map(len, shares))
    return [share + [None] * (longest - len(share)) for share in shares]


@right("8.4", "tuples")
def as_tuples(rows, workers):
    padded = list(rows)
    while len(padded) % workers:
        padded.append(None)
    return [tuple(padded[rank::workers]) for rank in range(workers)]


# 8.5 ------------------------------------------------------------------------------------------------------------------


@wrong(
    "8.5", "forgets the workers", case="windows of 25, 35 and 30 packed rows", says="The workers are missing"
)
def without_workers(windows, workers, batch_size, accumulation, epochs):
    return math.ceil(epochs * math.ceil(sum(windows) / (batch_size * accumulation)))


@wrong(
    "8.5",
    "forgets the accumulation",
    case="windows of 25, 35 and 30 packed rows",
    says="The micro-batches are missing",
)
def without_accumulation(windows, workers, batch_size, accumulation, epochs):
    return math.ceil(epochs * math.ceil(sum(windows) / (batch_size * workers)))


@wrong("8.5", "counts rows", case="windows of 25, 35 and 30 packed rows", says="These are rows")
def rows_only(windows, workers, batch_size, accumulation, epochs):
    return math.ceil(sum(windows) * epochs)


@wrong("8.5", "each window by itself", case="windows of 25, 35 and 30 packed rows", says="two windows")
def window_by_window(windows, workers, batch_size, accumulation, epochs):
    return math.ceil(epochs * sum(math.ceil(n / (workers * batch_size * accumulation)) for n in windows))


@wrong("8.5", "rounds down", case="rows that don't come out even, four epochs", says="round up")
def rounds_down(windows, workers, batch_size, accumulation, epochs):
    return int(epochs * (sum(windows) // (workers * batch_size * accumulation)))


@wrong(
    "8.5",
    "rounds both epochs together",
    case="rows that don't come out even, four epochs",
    says="rounding is for one epoch",
)
def across_epochs(windows, workers, batch_size, accumulation, epochs):
    rows = sum(windows) * epochs
    return int(rows // (workers * batch_size * accumulation))


@wrong("8.5", "one epoch", case="rows that don't come out even, four epochs", says="steps of one epoch")
def one_epoch(windows, workers, batch_size, accumulation, epochs):
    return math.ceil(sum(windows) / (workers * batch_size * accumulation))


@wrong("8.5", "cuts half an epoch off", case="half an epoch", says="rounded up, as transformers")
def cuts_half(windows, workers, batch_size, accumulation, epochs):
    return int(epochs * math.ceil(sum(windows) / (workers * batch_size * accumulation)))


@right("8.5", "one pass")
def one_pass(windows, workers, batch_size, accumulation, epochs):
    rows = 0
    for n in windows:
        rows += n
    each, rest = divmod(rows, workers * batch_size * accumulation)
    return math.ceil(epochs * (each + (rest > 0)))


@right("8.5", "negative floor")
def negative_floor(windows, workers, batch_size, accumulation, epochs):
    return math.ceil(-(-sum(windows) // (workers * batch_size * accumulation)) * epochs)


@right("8.5", "filled up first")
def filled_up(windows, workers, batch_size, accumulation, epochs):
    a_step = workers * batch_size * accumulation
    rows = sum(windows)
    return math.ceil((rows + -rows % a_step) // a_step * epochs)


# 8.6 ------------------------------------------------------------------------------------------------------------------
SLOW = "a slow tokenizer"


@wrong("8.6", "with the first step", case=SLOW, says="Leave it out")
def with_first(waiting, computing):
    return sum(waiting) / (sum(waiting) + sum(computing))


@wrong("8.6", "waiting over computing", case=SLOW, says="never above 1")
def a_ratio(waiting, computing):
    return sum(waiting[1:]) / sum(computing[1:])


@wrong("8.6", "the share that computes", case=SLOW, says="share that computes")
def share_computing(waiting, computing):
    return sum(computing[1:]) / (sum(waiting[1:]) + sum(computing[1:]))


@wrong("8.6", "the last step", case=SLOW, says="last step alone")
def last_step(waiting, computing):
    return waiting[-1] / (waiting[-1] + computing[-1])


@wrong("8.6", "in percent", case=SLOW, says="in percent")
def in_percent(waiting, computing):
    return 100 * sum(waiting[1:]) / (sum(waiting[1:]) + sum(computing[1:]))


@wrong("8.6", "without the last step", case=SLOW, says="last step is left out")
def without_last(waiting, computing):
    return sum(waiting[:-1]) / (sum(waiting[:-1]) + sum(computing[:-1]))


@right("8.6", "means")
def with_means(waiting, computing):
    n = len(waiting) - 1
    w, c = sum(waiting[1:]) / n, sum(computing[1:]) / n
    return w / (w + c)


@right("8.6", "fsum")
def with_fsum_of_both(waiting, computing):
    return math.fsum(waiting[1:]) / math.fsum([*waiting[1:], *computing[1:]])


@right("8.6", "a loop")
def meter_loop(waiting, computing):
    waited = total = 0.0
    for step, (w, c) in enumerate(zip(waiting, computing, strict=True)):
        if step:
            waited += w
            total += w + c
    return waited / total


# 8.7 ------------------------------------------------------------------------------------------------------------------
HALF = "0.5 s a batch, 0.2 s a step"


@wrong("8.7", "rounds down", case=HALF, says="round up")
def rounded_down(waiting, computing):
    return max(1, int(waiting / computing + 1e-9))


@wrong("8.7", "no whole number", case=HALF, says="no half CPU")
def no_rounding(waiting, computing):
    return max(1, waiting / computing)


@wrong("8.7", "the wrong way round", case=HALF, says="wrong way round")
def other_way(waiting, computing):
    return max(1, math.ceil(computing / waiting - 1e-9))


@wrong("8.7", "one for the step, too", case=HALF, says="One too many")
def one_too_many(waiting, computing):
    return max(1, math.ceil(waiting / computing - 1e-9)) + 1


@wrong("8.7", "plain ceil", case="a hair above a whole number", says="take a hair off")
def plain_ceil(waiting, computing):
    return max(1, math.ceil(waiting / computing))


@wrong("8.7", "always one more", case="exactly two", says="don't add one")
def always_one_more(waiting, computing):
    return int(round(waiting / computing, 6) - 1e-3) + 1 if waiting / computing > 2.1 else 3


@wrong("8.7", "nobody prepares", case="data that is ready", says="at least 1")
def nobody(waiting, computing):
    return math.ceil(waiting / computing - 1e-9)


@right("8.7", "rounded first")
def rounded_first(waiting, computing):
    return max(1, math.ceil(round(waiting / computing, 6)))


@right("8.7", "counts CPUs up")
def counts_up(waiting, computing):
    cpus = 1
    while waiting / cpus > computing + 1e-9:
        cpus += 1
    return cpus


@right("8.7", "negative floor")
def negative_floor_of_cpus(waiting, computing):
    return max(1, -int(-(waiting / computing - 1e-9) // 1))


# 8.8 ------------------------------------------------------------------------------------------------------------------
SQUARES = "squares of three numbers"


@wrong("8.8", "waits in the loop", case=SQUARES, says="behind the loop")
def waits_in_loop(ray, function, items):
    task = ray.remote(function)
    return [ray.get(task.remote(item)) for item in items]


@wrong("8.8", "references", case=SQUARES, says="ray.get waits for them")
def references(ray, function, items):
    return [ray.remote(function).remote(item) for item in items]


@wrong("8.8", "in this process", case=SQUARES, says="ran in this process")
def in_this_process(ray, function, items):
    return [function(item) for item in items]


@wrong("8.8", "one task for all", case=SQUARES, says="runs on one CPU")
def one_task(ray, function, items):
    return ray.get(ray.remote(lambda all_items: [function(item) for item in all_items]).remote(items))


@wrong("8.8", "asks twice", case=SQUARES, says="asked twice")
def asks_twice(ray, function, items):
    task = ray.remote(function)
    [task.remote(item) for item in items]
    return ray.get([task.remote(item) for item in items])


@wrong("8.8", "in order of size", case=SQUARES, says="order than")
def by_size(ray, function, items):
    task = ray.remote(function)
    return ray.get([task.remote(item) for item in sorted(items)])


@wrong("8.8", "each item once", case="two alike", says="two tasks and two results")
def each_once(ray, function, items):
    task = ray.remote(function)
    return ray.get([task.remote(item) for item in dict.fromkeys(items)])


@right("8.8", "gets one by one, afterwards")
def one_by_one(ray, function, items):
    task = ray.remote(function)
    asked = [task.remote(item) for item in items]
    return [ray.get(reference) for reference in asked]


@right("8.8", "decorated")
def decorated(ray, function, items):
    @ray.remote
    def work(item):
        return function(item)

    return ray.get([work.remote(item) for item in items])


@right("8.8", "with resources")
def with_resources(ray, function, items):
    task, asked = ray.remote(num_cpus=1)(function), []
    for item in items:
        asked.append(task.remote(item))
    return ray.get(asked)


# 8.9 ------------------------------------------------------------------------------------------------------------------
FIVE = "five shares, 2 workers"


class Tally:
    """A right actor."""

    def __init__(self):
        self.total, self.calls = 0.0, 0

    def add(self, numbers):
        self.total += sum(numbers)
        self.calls += 1

    def read(self):
        return self.total, self.calls


def tallied(ray, shares, workers, *, kind=Tally, to=lambda i, workers: i % workers, made=None):
    actors = [ray.remote(kind).remote() for _ in range(made or workers)]
    for i, share in enumerate(shares):
        actors[to(i, len(actors))].add.remote(share)
    found = ray.get([actor.read.remote() for actor in actors])
    return sum(total for total, _ in found), [calls for _, calls in found]


@wrong("8.9", "waits for each call", case=FIVE, says="one actor works while the others rest")
def waits_for_each(ray, shares, workers):
    actors = [ray.remote(Tally).remote() for _ in range(workers)]
    for i, share in enumerate(shares):
        ray.get(actors[i % workers].add.remote(share))
    found = ray.get([actor.read.remote() for actor in actors])
    return sum(total for total, _ in found), [calls for _, calls in found]


@wrong("8.9", "no actor", case=FIVE, says="No actor was made")
def no_actor(ray, shares, workers):
    return sum(map(sum, shares)), [len(shares[i::workers]) for i in range(workers)]


@wrong("8.9", "an actor a share", case=FIVE, says="remembers nothing of the others")
def actor_a_share(ray, shares, workers):
    return tallied(ray, shares, workers, made=len(shares))


@wrong("8.9", "one actor", case=FIVE, says="went to one actor")
def one_actor(ray, shares, workers):
    return tallied(ray, shares, workers, made=1)


@wrong("8.9", "shares from the other end", case=FIVE, says="Share i goes to")
def from_the_end(ray, shares, workers):
    return tallied(ray, shares, workers, to=lambda i, n: n - 1 - i % n)


@wrong("8.9", "forgets", case=FIVE, says="add to what it has")
def forgets(ray, shares, workers):
    class Forgets(Tally):
        def add(self, numbers):
            self.total = sum(numbers)
            self.calls += 1

    return tallied(ray, shares, workers, kind=Forgets)


@wrong("8.9", "counts numbers", case=FIVE, says="a call is one share")
def counts_numbers(ray, shares, workers):
    class Numbers(Tally):
        def add(self, numbers):
            self.total += sum(numbers)
            self.calls += len(numbers)

    return tallied(ray, shares, workers, kind=Numbers)


@wrong("8.9", "only who has worked", case="more workers than shares", says="in the list")
def only_busy(ray, shares, workers):
    total, calls = tallied(ray, shares, workers)
    return total, [n for n in calls if n]


@wrong("8.9", "leaves empty shares out", case="an empty share", says="is a call, too")
def without_empty(ray, shares, workers):
    class Busy(Tally):
        def add(self, numbers):
            self.total += sum(numbers)
            self.calls += bool(numbers)

    return tallied(ray, shares, workers, kind=Busy)


@right("8.9", "a class of its own")
def own_class(ray, shares, workers):
    return tallied(ray, shares, workers)


@right("8.9", "decorated, the state returned by the last call")
def decorated_actor(ray, shares, workers):
    @ray.remote
    class Adder:
        def __init__(self, start):
            self.seen = [start]

        def add(self, numbers):
            self.seen.append(sum(numbers))
            return sum(self.seen), len(self.seen) - 1

    actors = [Adder.remote(0.0) for _ in range(workers)]
    last = {}
    for i, share in enumerate(shares):
        last[i % workers] = actors[i % workers].add.remote(share)
    ends = {rank: ray.get(reference) for rank, reference in last.items()}
    states = [ends.get(rank, (0.0, 0)) for rank in range(workers)]
    return sum(total for total, _ in states), [calls for _, calls in states]


@right("8.9", "asked worker by worker, read one by one")
def worker_by_worker(ray, shares, workers):
    actors = [ray.remote(num_cpus=0.5)(Tally).remote() for _ in range(workers)]
    for rank, actor in enumerate(actors):
        for share in shares[rank::workers]:
            actor.add.remote(share)
    found = [ray.get(actor.read.remote()) for actor in actors]
    return math.fsum(total for total, _ in found), [calls for _, calls in found]


# Statements of the texts, and what ignores them -------------------------------------------------------------------------


@wrong("8.3", "a loss of 0.0 left out", case="a loss of 0.0", says="Ask whether it has tokens")
def no_zero_loss(losses, tokens):
    p = [(loss, t) for loss, t in zip(losses, tokens, strict=True) if loss and t]
    if not p:
        raise ValueError("none")
    return sum(loss * t for loss, t in p) / sum(t for _, t in p)


@wrong("8.3", "alike is the same", case="two workers alike", says="are two")
def alike_is_the_same(losses, tokens):
    kept = {(loss, t) for loss, t in zip(losses, tokens, strict=True) if t}
    if not kept:
        raise ValueError("none")
    return sum(loss * t for loss, t in kept) / sum(t for _, t in kept)


@wrong(
    "8.5",
    "rounds up over the end of an epoch",
    case="rows that don't come out even, four epochs",
    says="rounding is for one epoch",
)
def ceil_across(windows, workers, batch_size, accumulation, epochs):
    return math.ceil(sum(windows) * epochs / (workers * batch_size * accumulation))


@wrong("8.5", "forgets the batch", case="windows of 25, 35 and 30 packed rows", says="batch_size is missing")
def without_batch(windows, workers, batch_size, accumulation, epochs):
    return math.ceil(epochs * math.ceil(sum(windows) / (workers * accumulation)))


@wrong("8.6", "a mean of shares", case="a slow tokenizer", says="sum first")
def mean_of_shares(waiting, computing):
    shares = [w / (w + c) for w, c in zip(waiting[1:], computing[1:], strict=True)]
    return sum(shares) / len(shares)


ANSWERS.equivalent(
    "8.3",
    "a loss of 0.0 adds nothing to this sum",
    "(… for loss, n in zip(losses, tokens) if n) -> (… for loss, n in zip(losses, tokens) if loss and n)",
)
ANSWERS.equivalent("8.4", "rows are a list", "list(rows) -> rows")
ANSWERS.equivalent("8.7", "a hair is a hair", "1e-06 -> 5e-07")
ANSWERS.statements(
    "8.1",
    {
        "the next batch": new_iterator,
        "each once": always_first,
        "then None": starts_again,
        "all of them": peeks,
        "in their order": pops,
        "the short one too": drops_last,
        "a function": returns_batches,
        "None where there are none": empty_list,
    },
)
ANSWERS.statements(
    "8.2",
    {
        "over this model's parameters": as_it_came,
        "not a copy's": of_a_copy,
        "not its old ones": old_parameters,
        "the same class": always_sgd,
        "the same settings": only_lr,
    },
)
ANSWERS.statements(
    "8.3",
    {
        "over all tokens": mean_of_means,
        "each loss with its own tokens": turned_round,
        "the mean": summed,
        "divided by tokens": by_workers,
        "all workers": largest,
        "a worker without tokens must not count": zero_times_nan,
        "a loss of 0.0 counts": no_zero_loss,
        "two alike are two": alike_is_the_same,
        "ValueError if none has one": zero_for_nothing,
    },
)
ANSWERS.statements(
    "8.4",
    {
        "row i to share i % workers": contiguous,
        "one list per worker": by_steps,
        "double no row": everything,
        "lose no row": cut_off,
        "equal length": unequal,
        "with None": from_the_beginning,
        "with nothing else": repeats_last,
    },
)
ANSWERS.statements(
    "8.5",
    {
        "workers": without_workers,
        "batch_size": without_batch,
        "accumulation": without_accumulation,
        "steps": rows_only,
        "across the borders of windows": window_by_window,
        "the last step is filled up": rounds_down,
        "of each epoch": ceil_across,
        "epochs": one_epoch,
        "a fraction rounds up": cuts_half,
    },
)
ANSWERS.statements(
    "8.6",
    {
        "without the first step": with_first,
        "the first, not the last": without_last,
        "share of all the time": a_ratio,
        "that waits": share_computing,
        "of all, not of each step": mean_of_shares,
        "all steps": last_step,
        "0 to 1": in_percent,
    },
)
ANSWERS.statements(
    "8.7",
    {
        "computing never waits": rounded_down,
        "whole CPUs": no_rounding,
        "seconds of a batch over those of a step": other_way,
        "no CPU too many": one_too_many,
        "rounding of floats": plain_ceil,
        "exactly enough is enough": always_one_more,
        "at least 1": nobody,
    },
)
ANSWERS.statements(
    "8.8",
    {
        "all are asked before one is waited for": waits_in_loop,
        "results, not references": references,
        "as Ray tasks": in_this_process,
        "one task an item": one_task,
        "once": asks_twice,
        "in the order of the items": by_size,
        "two alike are two": each_once,
    },
)
ANSWERS.statements(
    "8.9",
    {
        "no call waits for another actor's": waits_for_each,
        "in actors": no_actor,
        "one a worker": actor_a_share,
        "workers of them": one_actor,
        "share i in actor i % workers": from_the_end,
        "the total of all shares": forgets,
        "a call is a share": counts_numbers,
        "each actor's calls": only_busy,
        "an empty share is one": without_empty,
    },
)

# 8.10 -----------------------------------------------------------------------------------------------------------------

TEXTS = "seven texts, 3 actors"


def counted(batch, tokenizer):
    return batch | {"tokens": np.array([len(tokenizer(text)) for text in batch["text"]])}


def stage_of(make_tokenizer, change=counted):
    class Stage:
        def __init__(self):
            self.tokenizer = make_tokenizer()

        def __call__(self, batch):
            return change(batch, self.tokenizer)

    return Stage


@wrong("8.10", "rows in place of a data set", case=TEXTS, says="Return the data set")
def rows_of_it(dataset, make_tokenizer, actors):
    return dataset.map_batches(stage_of(make_tokenizer), concurrency=actors).rows


@wrong("8.10", "a tokenizer a batch", case=TEXTS, says="for every batch")
def made_each_time(dataset, make_tokenizer, actors):
    class Stage:
        def __call__(self, batch):
            return counted(batch, make_tokenizer())

    return dataset.map_batches(Stage, concurrency=actors)


@wrong("8.10", "tasks", case=TEXTS, says="Tasks, no actors")
def as_tasks(dataset, make_tokenizer, actors):
    tokenizer = make_tokenizer()
    return dataset.map_batches(lambda batch: counted(batch, tokenizer), concurrency=actors)


@wrong("8.10", "made by the driver", case=TEXTS, says="travels to the actors")
def made_here(dataset, make_tokenizer, actors):
    tokenizer = make_tokenizer()
    return dataset.map_batches(stage_of(lambda: tokenizer), concurrency=actors)


@wrong("8.10", "one actor", case=TEXTS, says="concurrency says how many")
def one_stage(dataset, make_tokenizer, actors):
    return dataset.map_batches(stage_of(make_tokenizer))


@wrong("8.10", "the column alone", case=TEXTS, says="one column more")
def column_alone(dataset, make_tokenizer, actors):
    only = stage_of(make_tokenizer, lambda batch, t: {"tokens": counted(batch, t)["tokens"]})
    return dataset.map_batches(only, concurrency=actors)


@wrong("8.10", "characters", case=TEXTS, says="These are characters")
def characters(dataset, make_tokenizer, actors):
    stage = stage_of(make_tokenizer, lambda batch, _: batch | {"tokens": [len(t) for t in batch["text"]]})
    return dataset.map_batches(stage, concurrency=actors)


@wrong("8.10", "the sum of a batch", case=TEXTS, says="not the sum of its batch")
def batch_sums(dataset, make_tokenizer, actors):
    def change(batch, tokenizer):
        found = counted(batch, tokenizer)
        return found | {"tokens": np.full_like(found["tokens"], found["tokens"].sum())}

    return dataset.map_batches(stage_of(make_tokenizer, change), concurrency=actors)


@wrong("8.10", "other columns left out", case="an empty text, and another column", says="other columns stay")
def text_and_tokens(dataset, make_tokenizer, actors):
    def change(batch, tokenizer):
        return {"text": batch["text"], "tokens": counted(batch, tokenizer)["tokens"]}

    return dataset.map_batches(stage_of(make_tokenizer, change), concurrency=actors)


@right("8.10", "the maker as an argument")
def maker_as_argument(dataset, make_tokenizer, actors):
    class Counts:
        def __init__(self, make):
            self.tokenizer = make()

        def __call__(self, batch):
            return counted(batch, self.tokenizer)

    return dataset.map_batches(Counts, fn_constructor_args=(make_tokenizer,), concurrency=actors)


@right("8.10", "a list for the column")
def a_list(dataset, make_tokenizer, actors):
    stage = stage_of(make_tokenizer, lambda b, t: {**b, "tokens": [len(t(text)) for text in b["text"]]})
    return dataset.map_batches(stage, concurrency=actors, batch_size=4)


@right("8.10", "a fixed pool")
def a_pool(dataset, make_tokenizer, actors):
    return dataset.map_batches(stage_of(make_tokenizer), concurrency=(actors, actors), num_cpus=0.5)


ANSWERS.statements(
    "8.10",
    {
        "a data set": rows_of_it,
        "each actor makes its tokenizer once": made_each_time,
        "in actors": as_tasks,
        "of its own": made_here,
        "as many as asked": one_stage,
        "one column more": column_alone,
        "tokens": characters,
        "of each text": batch_sums,
        "other columns stay": text_and_tokens,
    },
)
ANSWERS.equivalent("8.10", "a column may be a list", "np.array(counts) -> counts")

# 8.11 -----------------------------------------------------------------------------------------------------------------

KILLED = "ten steps, saved every three, killed before step 7"


def loop_of(
    at_start=True,
    ranks=(0,),
    done=lambda step: step + 1,
    keeps_state=True,
    reports=lambda rank, saving: True,
    time_to_save=lambda step, steps, every: (step + 1) % every == 0 or step + 1 == steps,
):
    def loop(train, step_once, steps, save_every):
        state, first = None, 0
        checkpoint = train.get_checkpoint()
        if checkpoint is not None and at_start:
            with checkpoint.as_directory() as folder:
                state, first = pickle.loads((Path(folder) / "run.pkl").read_bytes())
        rank = train.get_context().get_world_rank()
        for step in range(first, steps):
            state = step_once(state, step)
            with tempfile.TemporaryDirectory() as folder:
                saving, kept = time_to_save(step, steps, save_every), None
                if saving and rank in ranks:
                    content = pickle.dumps((state if keeps_state else None, done(step)))
                    (Path(folder) / "run.pkl").write_bytes(content)
                    kept = train.Checkpoint.from_directory(folder)
                if reports(rank, saving):
                    train.report({"step": step + 1}, checkpoint=kept)

    return loop


@wrong("8.11", "begins at 0 again", case=KILLED, says="begins at step 0")
def begins_anew(train, step_once, steps, save_every):
    loop_of(at_start=False)(train, step_once, steps, save_every)


@wrong("8.11", "every rank saves", case=KILLED, says="Only rank 0 should")
def all_save(train, step_once, steps, save_every):
    loop_of(ranks=(0, 1))(train, step_once, steps, save_every)


@wrong("8.11", "the step, not how many", case=KILLED, says="is done twice")
def one_too_few(train, step_once, steps, save_every):
    loop_of(done=lambda step: step)(train, step_once, steps, save_every)


@wrong("8.11", "one too many", case=KILLED, says="was left out")
def skips_one(train, step_once, steps, save_every):
    loop_of(done=lambda step: step + 2)(train, step_once, steps, save_every)


@wrong("8.11", "the state is lost", case=KILLED, says="began anew")
def loses_state(train, step_once, steps, save_every):
    loop_of(keeps_state=False)(train, step_once, steps, save_every)


@wrong("8.11", "only rank 0 reports", case=KILLED, says="Rank 1 never reports")
def rank_0_reports(train, step_once, steps, save_every):
    loop_of(reports=lambda rank, _: rank == 0)(train, step_once, steps, save_every)


@wrong("8.11", "reports with a checkpoint only", case=KILLED, says="no report between")
def reports_when_saving(train, step_once, steps, save_every):
    loop_of(reports=lambda rank, saving: saving)(train, step_once, steps, save_every)


@wrong("8.11", "saves each step", case=KILLED, says="saves too often")
def saves_always(train, step_once, steps, save_every):
    loop_of(time_to_save=lambda *_: True)(train, step_once, steps, save_every)


@wrong("8.11", "the end isn't saved", case=KILLED, says="The last steps aren't saved")
def end_unsaved(train, step_once, steps, save_every):
    loop_of(time_to_save=lambda step, steps, every: (step + 1) % every == 0)(
        train, step_once, steps, save_every
    )


@right("8.11", "with pickle")
def with_pickle(train, step_once, steps, save_every):
    loop_of()(train, step_once, steps, save_every)


@right("8.11", "with torch.save")
def saved_by_torch(train, step_once, steps, save_every):
    held = {"state": None, "step": 0}
    if train.get_checkpoint():
        with train.get_checkpoint().as_directory() as folder:
            held = torch.load(f"{folder}/held.pt")
    while held["step"] < steps:
        held = {"state": step_once(held["state"], held["step"]), "step": held["step"] + 1}
        if train.get_context().get_world_rank() or (held["step"] % save_every and held["step"] < steps):
            train.report({"step": held["step"]})
            continue
        with tempfile.TemporaryDirectory() as folder:
            torch.save(held, f"{folder}/held.pt")
            train.report({"step": held["step"]}, checkpoint=train.Checkpoint.from_directory(folder))


@right("8.11", "two files, steps counted from 1")
def two_files(train, step_once, steps, save_every):
    state, done = None, 0
    checkpoint = train.get_checkpoint()
    if checkpoint:
        folder = Path(checkpoint.to_directory())
        state, done = json.loads((folder / "state").read_text()), int((folder / "done").read_text())
    for number in range(done + 1, steps + 1):
        state = step_once(state, number - 1)
        kept = None
        if train.get_context().get_world_rank() == 0 and (number % save_every == 0 or number == steps):
            folder = Path(tempfile.mkdtemp())
            (folder / "state").write_text(json.dumps(state))
            (folder / "done").write_text(str(number))
            kept = train.Checkpoint.from_directory(folder)
        train.report({"step": number}, checkpoint=kept)


ANSWERS.statements(
    "8.11",
    {
        "from the newest checkpoint on": begins_anew,
        "rank 0 saves": all_save,
        "no step twice": one_too_few,
        "no step left out": skips_one,
        "the state is saved": loses_state,
        "every worker reports": rank_0_reports,
        "after every step": reports_when_saving,
        "every save_every steps": saves_always,
        "and at the end": end_unsaved,
    },
)
ANSWERS.equivalent("8.11", "a checkpoint is true", "checkpoint is not None -> checkpoint")
