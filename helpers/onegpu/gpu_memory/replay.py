"""From a trace to a breakdown: decide what each storage was for, and let an allocator replay the trace.

A first step and a second one are replayed. The second differs: the optimizer's state is there from its beginning, and
what the first left behind (the plain loop's ``outputs``) lives until it is replaced.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping
from dataclasses import dataclass, field

from onegpu.gpu_memory.allocator import Block, CachingAllocator, ExactAllocator
from onegpu.gpu_memory.breakdown import CATEGORIES, Moment, Peak, Timeline
from onegpu.gpu_memory.tracking import Trace

TIMELINE_POINTS = 1500
_INDEX = {category: i for i, category in enumerate(CATEGORIES)}
_ROUNDING = _INDEX["rounding"]
_PHASE_NAMES = {
    "load": "loading",
    "forward": "the forward pass",
    "backward": "the backward pass",
    "after_backward": "gradient clipping",
    "step": "optimizer.step()",
    "after_step": "the end of the step",
}
_OPERATIONS = {
    "_log_softmax_backward_data": "gradient of the logits",
    "nll_loss_backward": "gradient of the log-probabilities",
    "_log_softmax": "log-softmax of the logits",
    "_to_copy": "a copy in another dtype",
    "_foreach_sqrt": "square roots of AdamW's second moments",
    "dequantize_4bit": "a dequantized weight",
    "cuBLAS": "cuBLAS's workspace",
    "mm": "a matrix product",
    "addmm": "a matrix product",
    "bmm": "a batched matrix product",
    "nll_loss_forward": "the loss",
    "mul": "a product, number by number",
    "add": "a sum, number by number",
    "cat": "a concatenation",
    "linear": "a matrix product",
    "embedding_dense_backward": "the embedding's gradient",
}


@dataclass
class Replayed:
    """Moments, the peak and the timeline of a replayed trace."""

    moments: list[Moment] = field(default_factory=list)
    peak: Peak | None = None
    timeline: Timeline | None = None
    reserved_bytes: int = 0


def settle_categories(trace: Trace) -> None:
    """Give every storage without a category one, by the phase it was made in and by how long it lived."""
    died = {}
    for position, event in enumerate(trace.events):
        if event < 0:
            died[~event] = position
    starts = [position for position, _ in trace.marks]
    names = [name for _, name in trace.marks]
    ends = [*starts[1:], len(trace.events)]
    born = _births(trace)
    end = len(trace.events)
    for number, category in enumerate(trace.categories):
        if category is not None and category != "logits_and_loss":
            continue
        phase = bisect_right(starts, born[number]) - 1
        name = names[phase]
        outlived = died.get(number, end) >= ends[phase]
        if category == "logits_and_loss" and name in ("forward", "backward"):
            continue
        if name == "load":
            trace.categories[number] = "weights" if outlived else "temporaries"
        elif name == "forward":
            trace.categories[number] = "activations" if outlived else "temporaries"
        elif name == "step":
            trace.categories[number] = "optimizer_temporaries"
        else:
            trace.categories[number] = "activations" if trace.recomputed[number] else "temporaries"


def replay(trace: Trace, *, exact: bool = False, second_step: bool = True) -> Replayed:
    """Let the CUDA caching allocator (or, exact, none) replay a trace whose categories are settled."""
    return _Replay(trace, ExactAllocator() if exact else CachingAllocator()).run(second_step)


class _Replay:
    def __init__(self, trace: Trace, allocator: CachingAllocator | ExactAllocator):
        self.trace, self.allocator = trace, allocator
        self.category = [_INDEX[c] for c in trace.categories]
        self.blocks: dict[int, Block] = {}
        self.sizes = [0] * len(CATEGORIES)
        self.points: list[tuple[int, list[int]]] = []
        self.marks: list[tuple[int, str]] = []
        self.position = 0
        self.peak_bytes, self.peak_sizes, self.peak_place = 0, list(self.sizes), ("load", 0, 1)
        self.high_bytes, self.high_sizes = 0, list(self.sizes)  # since the phase began
        self.phase, self.step = "load", 1
        self.sample = max(1, 2 * len(trace.events) // TIMELINE_POINTS)
        self._highest_in_sample: tuple[int, list[int]] | None = None

    def run(self, second_step: bool) -> Replayed:
        result = Replayed()
        marks = self.trace.marks
        ends = [position for position, _ in marks[1:]] + [len(self.trace.events)]
        labels = _moments_of_first_step([name for _, name in marks])
        for i, ((start, name), end) in enumerate(zip(marks, ends, strict=True)):
            self.step += name == "forward" and i > 0 and marks[i - 1][1] == "after_step"
            self.enter(name)
            self.mark_high()
            self.play(start, end)
            if i in labels and name == "step":
                result.moments.append(self.moment("in_step", self.high_bytes, self.high_sizes))
            if i in labels:
                result.moments.append(self.moment(labels[i]))
        if second_step:
            self.play_second_step()
        if second_step or self.step > 1:
            result.moments.append(self.moment("second_step"))
        phase, number, step = self.peak_place
        result.peak = Peak(
            self.peak_bytes,
            self.place(phase, number, step),
            self.named(self.peak_sizes),
            _moment_of(phase, step),
        )
        result.timeline = self.timeline()
        result.reserved_bytes = self.allocator.peak_reserved_bytes
        return result

    def enter(self, phase: str) -> None:
        self.phase = phase
        self.marks.append((self.position, phase))

    def mark_high(self) -> None:
        self.high_bytes, self.high_sizes = self.allocator.allocated_bytes, list(self.sizes)

    def play(self, start: int, end: int) -> None:
        for position in range(start, end):
            event = self.trace.events[position]
            if event >= 0:
                self.malloc(event)
            else:
                self.free(~event)

    def malloc(self, number: int) -> None:
        block = self.allocator.malloc(self.trace.sizes[number])
        self.blocks[number] = block
        self.sizes[self.category[number]] += block.requested_bytes
        self.sizes[_ROUNDING] += block.size - block.requested_bytes
        allocated = self.allocator.allocated_bytes
        if allocated > self.high_bytes:
            self.high_bytes, self.high_sizes = allocated, list(self.sizes)
            if allocated > self.peak_bytes:
                self.peak_bytes, self.peak_sizes = allocated, list(self.sizes)
                self.peak_place = (self.phase, number, self.step)
        self.tick()

    def free(self, number: int) -> None:
        block = self.blocks.pop(number, None)
        if block is not None:
            self.give(number, block)

    def give(self, number: int, block: Block) -> None:
        self.sizes[self.category[number]] -= block.requested_bytes
        self.sizes[_ROUNDING] -= block.size - block.requested_bytes
        self.allocator.free(block)
        self.tick()

    def tick(self) -> None:
        """Keep a point now and then, and within each stretch the highest one."""
        self.position += 1
        allocated = self.allocator.allocated_bytes
        if self._highest_in_sample is None or allocated > sum(self._highest_in_sample[1]):
            self._highest_in_sample = (self.position, list(self.sizes))
        if self.position % self.sample == 0:
            if self._highest_in_sample[0] != self.position:
                self.points.append(self._highest_in_sample)
            self.points.append((self.position, list(self.sizes)))
            self._highest_in_sample = None

    def play_second_step(self) -> None:
        """Zero the gradients, run the same passes again on top of the optimizer's state, and step."""
        self.step = 2
        births = _births(self.trace)
        starts = {position: name for position, name in self.trace.marks if name not in ("load", "after_step")}
        first = min(starts)
        stop = next(position for position, name in self.trace.marks if name == "after_step")
        for number in [n for n in self.blocks if CATEGORY_NAMES[self.category[n]] == "gradients"]:
            self.free(number)
        # What the first step's variables still hold: the loop lets go of it when the new outputs are there.
        held = {n: b for n, b in self.blocks.items() if first <= births[n] < stop and not self.stays(n)}
        for number in held:
            del self.blocks[number]
        for position in range(first, stop):
            if position in starts:
                if starts[position] == "backward":
                    self.release(held)
                self.enter(starts[position])
            event = self.trace.events[position]
            if event < 0:
                self.free(~event)
            elif event not in self.blocks and not self.stays(event):
                self.malloc(event)
        self.release(held)

    def release(self, held: dict[int, Block]) -> None:
        for number, block in held.items():
            self.give(number, block)
        held.clear()

    def stays(self, number: int) -> bool:
        """Whether a storage, once made, is there for good."""
        return CATEGORY_NAMES[self.category[number]] in ("cublas_workspace", "optimizer_state")

    def moment(self, name: str, allocated: int | None = None, sizes: list[int] | None = None) -> Moment:
        allocated = self.allocator.allocated_bytes if allocated is None else allocated
        return Moment(
            name, allocated, self.allocator.peak_allocated_bytes,
            self.named(self.sizes if sizes is None else sizes), self.allocator.reserved_bytes,
        )  # fmt: skip

    def named(self, sizes: list[int]) -> Mapping[str, int]:
        return {category: size for category, size in zip(CATEGORIES, sizes, strict=True) if size}

    def place(self, phase: str, number: int, step: int) -> str:
        operation = self.trace.operations[number] if self.trace.operations else ""
        what = _OPERATIONS.get(operation, operation)
        where = _PHASE_NAMES.get(phase, phase)
        of = {1: "", 2: " of the second step"}.get(step, f" of step {step}")
        return where + of + (f", at {what}" if what else "")

    def timeline(self) -> Timeline:
        if not self.points or self.points[-1][0] != self.position:
            self.points.append((self.position, list(self.sizes)))
        points = sorted(self.points)
        by_category = {
            category: tuple(sizes[i] for _, sizes in points)
            for i, category in enumerate(CATEGORIES)
            if any(sizes[i] for _, sizes in points)
        }
        return Timeline(tuple(p for p, _ in points), by_category, tuple(self.marks))


CATEGORY_NAMES = tuple(CATEGORIES)


def _births(trace: Trace) -> list[int]:
    born = [0] * len(trace.sizes)
    for position, event in enumerate(trace.events):
        if event >= 0:
            born[event] = position
    return born


def _moments_of_first_step(names: list[str]) -> dict[int, str]:
    """Which phases end at a moment: loading, the last micro-batch's passes, and the step, of the first step."""
    stop = names.index("after_backward") if "after_backward" in names else len(names)
    labels = {0: "loaded"}
    for phase, label in (("forward", "after_forward"), ("backward", "after_backward")):
        found = [i for i, name in enumerate(names[:stop]) if name == phase]
        if found:
            labels[found[-1]] = label
    if "step" in names:
        labels[names.index("step")] = "after_step"
    return labels


def _moment_of(phase: str, step: int) -> str:
    if step > 1:
        return "second_step"
    return {
        "load": "loaded",
        "forward": "after_forward",
        "backward": "after_backward",
        "step": "in_step",
    }.get(phase, "after_backward")
