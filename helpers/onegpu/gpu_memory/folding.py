"""Simulate a few of a model's layers, and make the trace of all of them from that, event by event.

The layers of most models are alike, and so is what a training step does in them. So a model of ``KEPT`` layers is run:
the first, two twins, the last. Where the twins left the same events behind, everywhere in the trace and shifted by one
layer, every further layer between them would leave them too, and they are copied as often as the model has such layers.
Nothing is extrapolated: the allocator replays the whole trace. A model with layers of several kinds, or a trace in which
the twins differ, is simulated whole (``fold`` and ``unfold`` return None).
"""

from __future__ import annotations

import copy
import weakref
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from onegpu.gpu_memory.tracking import StorageTracker, Trace, Work
from onegpu.gpu_memory.training_setup import ResolvedSetup

KEPT = 4
FIRST, TWIN, SECOND_TWIN, LAST = range(KEPT)
aten = torch.ops.aten
_JOINS = {aten.cat.default, aten.stack.default}  # what they make grows with the layers by what they are given
_ONE_NUMBER = {aten.linalg_vector_norm.default}  # makes the same, however much it is given
_INDICES = ("layer_idx", "layer_id", "layer_index")


# --- the model ----------------------------------------------------------------------------------------------------


def fold(setup: ResolvedSetup, config: Any, whole: nn.Module) -> Any | None:
    """Return the configuration of a model like this with ``KEPT`` layers; None if it hasn't more, or layers that differ.

    Parameters
    ----------
    setup, config
        What is to be simulated.
    whole
        The bare model on the meta device.
    """
    layers = decoder_layers(whole, config)
    if layers is None or len(layers) <= KEPT + 1 or config.get_text_config() is not config:
        return None
    targets = setup.target_modules
    if isinstance(targets, str) and targets != "all-linear":
        return None  # a pattern may mean some layers
    if any(character.isdigit() for name in (*(targets or ()), *setup.modules_to_save) for character in name):
        return None
    first = _description(layers[0])
    if any(_description(layer) != first for layer in layers[1:]):
        return None
    small = copy.deepcopy(config)
    for name, value in vars(small).items():
        if isinstance(value, list) and len(value) == len(layers):  # such as layer_types
            setattr(small, name, value[:KEPT])
    small.num_hidden_layers = KEPT
    return small


def decoder_layers(model: nn.Module, config: Any) -> nn.ModuleList | None:
    """Find the layers: the outermost list of modules that is as long as the configuration says."""
    count = getattr(config.get_text_config(), "num_hidden_layers", None)
    lists = (m for m in model.modules() if isinstance(m, nn.ModuleList) and len(m) == count)
    return next(lists, None)


def _description(layer: nn.Module) -> list[Any]:
    """Everything about a layer that isn't its place: modules, their plain attributes, and the tensors' shapes."""
    found: list[Any] = []
    for name, module in layer.named_modules():
        plain = {
            key: value
            for key, value in vars(module).items()
            if key not in _INDICES and isinstance(value, (bool, int, float, str, tuple, type(None)))
        }
        tensors = (*module.named_parameters(recurse=False), *module.named_buffers(recurse=False))
        found.append((name, type(module), plain, [(key, t.shape, t.dtype) for key, t in tensors]))
    return found


# --- the trace ------------------------------------------------------------------------------------------------------


class LayerTracker(StorageTracker):
    """Notes beside the trace which layer is at work, and where none is, whose the storages are.

    Attributes
    ----------
    works
        What the twins do, by phase.
    """

    def __init__(self, *args: Any, **kwargs: Any):
        super().__init__(*args, **kwargs)
        self.works: dict[tuple[str, int], Work] = {}
        # Where no layer was at work: storages made of one another, and by operation its phase and the bytes moved of each
        # storage. Those that aren't on the device, such as step counters, have negative numbers.
        self.links: dict[int, set[int]] = {}
        self.moves: list[tuple[str, dict[int, int]]] = []
        self.elsewhere: dict[int, tuple[int, weakref.ref]] = {}
        self.count_elsewhere = 0
        self.owners_elsewhere: dict[int, int] = {}
        self.grows_oddly = False

    def watch(self, layers: Sequence[nn.Module]) -> None:
        """See to it that a layer is known to be at work in its forward and backward pass, until the next begins."""
        for number, layer in enumerate(layers):
            layer.register_forward_pre_hook(lambda m, a, n=number: self._enter(n))
            layer.register_forward_hook(lambda m, a, out, n=number: self._watch_backward(out, n))

    def _enter(self, number: int) -> None:
        if not self.in_backward:
            self.trace.at_work(number)

    def _watch_backward(self, out: Any, number: int) -> None:
        out = out[0] if isinstance(out, tuple) else out
        if not self.in_backward and out.requires_grad:
            out.register_hook(lambda grad: self._enter_backward(number))

    def _enter_backward(self, number: int) -> None:
        self.trace.at_work(number)
        # The graph, and what its nodes alone hold, is let go of after the pass: no layer's doing.
        torch.autograd.Variable._execution_engine.queue_callback(lambda: self.trace.at_work(None))

    def name_states(self, layers: Sequence[nn.Module], optimizer: Any) -> None:
        """Note whose an optimizer's states are that aren't on the device."""
        for number, layer in enumerate(layers):
            for parameter in layer.parameters():
                for state in optimizer.state.get(parameter, {}).values():
                    if isinstance(state, torch.Tensor):
                        self.owners_elsewhere[self._number_elsewhere(state)] = number

    def name_layers(self, layers: Sequence[nn.Module]) -> None:
        """Note whose the parameters are that were made while none was at work."""
        for number, layer in enumerate(layers):
            for parameter in layer.parameters():
                known = self._known.get(parameter.untyped_storage()._cdata)
                if known is not None:
                    self.trace.layers[known[0]] = number

    def _note(
        self, func: Any, args: tuple, kwargs: dict, out: Any, made: Sequence[Any]
    ) -> Sequence[int | None]:
        super()._note(func, args, kwargs, out, made)
        if func.is_view:
            return ()
        trace = self.trace
        phase = trace.marks[-1][1]
        if trace.block < 0:
            whose = self._outside(phase, func, args, made)
            for tensor, owner in zip(made, whose, strict=True):
                if isinstance(tensor, torch.Tensor):
                    self.see(tensor, func=func, layer=owner)
            if len(made) == 1:
                self._link(made[0], args)
            if phase != "load":
                self.moves.append((phase, self._moved(args, made)))
            return whose
        layer = trace.block_layers[trace.block]
        if phase != "load" and layer in (TWIN, SECOND_TWIN):
            self.works.setdefault((phase, layer), Work()).add(func, args, kwargs, out)
        return ()

    def _outside(self, phase: str, func: Any, args: tuple, made: Sequence[Any]) -> Sequence[int | None]:
        """What comes of one layer's tensors is that layer's; of lists, each of its own."""
        given = list(_tensors(args))
        owners = [self._owner(t) for t in given]
        first = args[0] if args and isinstance(args[0], (tuple, list)) else ()
        if len(made) == len(first) > 1:
            whose = [self._owner(t) for t in first]
        else:
            distinct = set(owners) - {None}
            whose = [next(iter(distinct)) if len(distinct) == 1 else None] * len(made)
            if len(distinct) > 1 and func in _JOINS:
                self.see(made[0], func=func)
                twins = (_bytes(t) for t, owner in zip(given, owners, strict=True) if owner == TWIN)
                self.trace.growth[self._number(made[0])] = sum(twins)
            elif len(distinct) > 1 and any(self._number(t) is None for t in _tensors(made)):
                self.grows_oddly = True
        if func not in _JOINS | _ONE_NUMBER and any(self._number(t) in self.trace.growth for t in given):
            self.grows_oddly = True
        return whose

    def _link(self, made: Any, args: tuple) -> None:
        number = self._number(made) if isinstance(made, torch.Tensor) else None
        if number is not None:
            given = {self._number(t) for t in _tensors(args)} - {number}
            self.links.setdefault(number, set()).update(given)
            given.discard(None)
            for one in given:
                self.links.setdefault(one, set()).add(number)

    def name_the_rest(self) -> None:
        """Say whose storages are that were made before or beside a layer's parameters.

        What was made from one layer's tensors, or became them, is that layer's; what was made from nothing belongs to what was
        made before it.
        """
        layers = self.trace.layers
        waiting = [number for number in self.links if layers[number] is None]
        while waiting:
            named = []
            for number in waiting:
                whose = {layers[one] for one in self.links[number] - {None}} - {None}
                if len(whose) == 1:
                    named.append((number, whose.pop()))
            if not named:
                break
            for number, layer in named:
                layers[number] = layer
            waiting = [number for number in waiting if layers[number] is None]
        before = None
        for number, layer in enumerate(layers):
            if layer is None and number in self.links and not self.links[number]:
                layers[number] = before
            before = layers[number]

    def _number(self, tensor: torch.Tensor) -> int | None:
        known = self._known.get(tensor.untyped_storage()._cdata)
        return None if known is None else known[0]

    def _owner(self, tensor: torch.Tensor) -> int | None:
        number = self._number(tensor)
        return None if number is None else self.trace.layers[number]

    def _moved(self, args: tuple, made: Sequence[Any]) -> dict[int, int]:
        moved: dict[int, int] = {}
        for tensor in _tensors((*args, *made)):
            number = self._number(tensor)
            key = self._number_elsewhere(tensor) if number is None else number
            moved[key] = moved.get(key, 0) + _bytes(tensor)
        return moved

    def _number_elsewhere(self, tensor: torch.Tensor) -> int:
        storage = tensor.untyped_storage()
        key = storage._cdata
        if key not in self.elsewhere:
            self.count_elsewhere -= 1
            gone = weakref.ref(storage, lambda _: self.elsewhere.pop(key, None))
            self.elsewhere[key] = (self.count_elsewhere, gone)
        return self.elsewhere[key][0]

    def work_of_a_layer(self) -> dict[str, Work] | None:
        """What the first twin does, by phase; None where the second does something else."""
        works = {key: Work(dict(work.operations), work.moved_bytes) for key, work in self.works.items()}
        for phase, moved in self.moves:
            owners = {key: self._owner_of(key) for key in moved}
            alone = set(owners.values()) - {None}
            whose = alone.pop() if len(alone) == 1 else None
            for twin in (TWIN, SECOND_TWIN):
                more = sum(
                    self._share(key, size, owners[key] if whose is None else whose, twin)
                    for key, size in moved.items()
                )
                if more:
                    works.setdefault((phase, twin), Work()).moved_bytes += more
        one, other = (
            {phase: work for (phase, layer), work in works.items() if layer == twin}
            for twin in (TWIN, SECOND_TWIN)
        )
        return one if one == other else None

    def _owner_of(self, key: int) -> int | None:
        return self.owners_elsewhere.get(key) if key < 0 else self.trace.layers[key]

    def _share(self, key: int, size: int, owner: int | None, twin: int) -> int:
        """How many of the bytes moved of a storage are a twin's; of one that grows with the layers, each layer's."""
        if key in self.trace.growth:
            return self.trace.growth[key] * (size // self.trace.sizes[key])
        return size if owner == twin else 0


def unfold(tracker: LayerTracker, layers: int) -> Trace | None:
    """Make the trace of a model of so many layers, categories settled; None where it can't be told.

    Parameters
    ----------
    tracker
        Of a model of ``KEPT`` layers, at the end of its run, the categories of its trace settled.
    """
    tracker.name_the_rest()
    work = tracker.work_of_a_layer()
    if tracker.grows_oddly or work is None:
        return None
    found = _Unfolding(tracker.trace, layers).run()
    if found is not None:
        for phase, whole in tracker.trace.work.items():
            found.work[phase] = _add(whole, work.get(phase, Work()), layers - KEPT)
    return found


def _add(work: Work, one: Work, times: int) -> Work:
    operations = dict(work.operations)
    for dtype, count in one.operations.items():
        operations[dtype] += count * times
    return Work(operations, work.moved_bytes + one.moved_bytes * times)


@dataclass(frozen=True)
class _Piece:
    """Events one after the other of one layer (or of none), in one phase."""

    layer: int | None
    block: int
    start: int
    end: int

    def __len__(self) -> int:
        return self.end - self.start


class _Differ(Exception):
    """The twins do."""


class _Unfolding:
    def __init__(self, trace: Trace, layers: int):
        self.trace, self.layers = trace, layers
        self.new = Trace()
        self.numbers: dict[tuple[int | None, int], int] = {}  # (layer, storage before) to storage now
        self.twin_of: dict[int, int] = {}  # storage of the first twin to the second's
        self.back: dict[int, int] = {}
        self.marks = iter([*trace.marks, (len(trace.events) + 1, "")])
        self.mark = next(self.marks)

    def run(self) -> Trace | None:
        pieces = self.joined(list(self.pieces()))
        try:
            i = 0
            while i < len(pieces):
                self.pass_marks(pieces[i].start)
                pair = pieces[i : i + 2]
                if pieces[i].layer in (TWIN, SECOND_TWIN):
                    self.twins(*pair)
                    i += 2
                else:
                    self.emit(pieces[i], None, {FIRST: 0, LAST: self.layers - 1, None: None}[pieces[i].layer])
                    i += 1
            self.pass_marks(len(self.trace.events))
        except (_Differ, KeyError):
            return None
        return self.new

    def pieces(self) -> Iterator[_Piece]:
        trace = self.trace
        starts = {position for position, _ in trace.marks}
        begun, before = 0, None
        for position in range(len(trace.events) + 1):
            here = self.place(position) if position < len(trace.events) else None
            if position and (here != before or position in starts):
                yield _Piece(before[0], before[1], begun, position)
                begun = position
            before = here

    def joined(self, pieces: list[_Piece]) -> list[_Piece]:
        """Join what one layer does outside its blocks, where in between it lets go of something of its neighbour's."""
        starts = {position for position, _ in self.trace.marks}
        found: list[_Piece] = []
        for piece in pieces:
            around = found[-2:]
            if (
                len(around) == 2
                and piece.layer is not None
                and around[0].layer == piece.layer
                and around[1].layer in (piece.layer - 1, piece.layer + 1)
                and all(p.block < 0 for p in (*around, piece))
                and not starts & {around[1].start, piece.start}
                and all(event < 0 for event in self.trace.events[around[1].start : around[1].end])
            ):
                found[-2:] = [_Piece(piece.layer, -1, around[0].start, piece.end)]
            else:
                found.append(piece)
        return found

    def place(self, position: int) -> tuple[int | None, int]:
        block = self.trace.blocks[position]
        if block >= 0:
            return self.trace.block_layers[block], block
        return self.trace.layers[self.storage(position)], block

    def storage(self, position: int) -> int:
        event = self.trace.events[position]
        return event if event >= 0 else ~event

    def pass_marks(self, position: int) -> None:
        while self.mark[0] <= position:
            self.new.marks.append((len(self.new.events), self.mark[1]))
            self.mark = next(self.marks, (len(self.trace.events) + 1, ""))

    def twins(self, one: _Piece, other: _Piece | None = None) -> None:
        if other is None or {one.layer, other.layer} != {TWIN, SECOND_TWIN} or len(one) != len(other):
            raise _Differ
        if other.start in {position for position, _ in self.trace.marks}:
            raise _Differ
        upwards = one.layer == TWIN
        first, second = (one, other) if upwards else (other, one)
        for a, b in zip(range(first.start, first.end), range(second.start, second.end), strict=True):
            self.compare(a, b)
        last = self.layers - 2
        places = [(layer, first) for layer in range(1, last)] + [(last, second)]
        for layer, piece in places if upwards else reversed(places):
            self.emit(piece, second if piece is first else None, layer)

    def compare(self, a: int, b: int) -> None:
        """The twins' events are the same, and what they let go of is as far away."""
        one, other = self.storage(a), self.storage(b)
        trace = self.trace
        made = trace.events[a] >= 0
        if made != (trace.events[b] >= 0) or self.token(one) != self.token(other):
            raise _Differ
        if made:
            self.twin_of[one], self.back[other] = other, one
            return
        near, far = trace.layers[one], trace.layers[other]
        if near is None or far is None or far - near != 1:
            raise _Differ
        if near == TWIN and self.twin_of.get(one) != other:
            raise _Differ

    def token(self, number: int) -> tuple:
        trace = self.trace
        return (
            trace.sizes[number],
            trace.categories[number],
            trace.operations[number],
            trace.recomputed[number],
        )

    def emit(self, piece: _Piece, second: _Piece | None, layer: int | None) -> None:
        for position in range(piece.start, piece.end):
            event = self.trace.events[position]
            if event >= 0:
                owner = layer if piece.block >= 0 or piece.layer is not None else None
                self.numbers[owner, event] = self.copy(event)
            else:
                beside = None if second is None else self.storage(second.start + position - piece.start)
                self.new.release(self.number_of(~event, beside, piece.layer, layer))

    def copy(self, number: int) -> int:
        trace = self.trace
        size = trace.sizes[number] + trace.growth.get(number, 0) * (self.layers - KEPT)
        return self.new.add(
            size, trace.categories[number], trace.operations[number], trace.recomputed[number]
        )

    def number_of(self, storage: int, beside: int | None, template: int | None, layer: int | None) -> int:
        """Find what a release in a layer is of: its own, a neighbour's, or nobody's."""
        owner = self.trace.layers[storage]
        if owner is None:
            return self.numbers[None, storage]
        if template in (None, owner):
            at = {FIRST: 0, TWIN: 1, SECOND_TWIN: self.layers - 2, LAST: self.layers - 1}[owner]
            return self.numbers[at if template is None else layer, storage]
        distance = owner - template
        if abs(distance) != 1 and {owner, template} & {TWIN, SECOND_TWIN}:
            raise _Differ
        at = layer + distance if abs(distance) == 1 else (self.layers - 1 if owner == LAST else 0)
        if template == TWIN and distance == 1 and at < self.layers - 2:
            return self.numbers[at, self.back[storage]]
        if template == TWIN and distance == -1 and at > 0:
            return self.numbers[at, beside]
        return self.numbers[at, storage]


def _tensors(values: Any) -> Iterator[torch.Tensor]:
    for value in values:
        if isinstance(value, torch.Tensor):
            yield value
        elif isinstance(value, (tuple, list)):
            yield from _tensors(value)


def _bytes(tensor: torch.Tensor) -> int:
    return tensor.numel() * tensor.element_size()
