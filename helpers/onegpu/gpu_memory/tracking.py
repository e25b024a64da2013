"""Which storages live when: a dispatch mode that sees every tensor an operation makes, and the trace it writes.

The same tracker runs over meta tensors (a simulation: shapes only, no memory) and over real ones on the CPU (a
measurement). A trace says which storages came and went, how large they were and what for; what an allocator makes of
that is decided when the trace is replayed.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import zip_longest
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry

from onegpu.gpu_memory.output_shapes import output_on_meta

aten = torch.ops.aten

MATRIX_PRODUCTS = {
    aten.mm.default,
    aten.addmm.default,
    aten.bmm.default,
    aten.baddbmm.default,
    aten.mv.default,
    aten.addmv.default,
    aten._scaled_mm.default,
}


@dataclass
class Work:
    """What a phase has a card do.

    Attributes
    ----------
    operations
        Of matrix products and attention, by the dtype they run in: a multiplication and an addition are two, and
        attention counts whole squares (as in PaLM, arXiv 2204.02311, appendix B).
    moved_bytes
        Read and written by all operations, each for itself.
    """

    operations: dict[torch.dtype, int] = field(default_factory=dict)
    moved_bytes: int = 0

    def add(self, func: Any, args: tuple, kwargs: dict, out: Any) -> None:
        """Add one operation's."""
        count = _operations(func, args, kwargs, out)
        if count:
            dtype = args[1].dtype
            self.operations[dtype] = self.operations.get(dtype, 0) + count
        self.moved_bytes += _moved_bytes(args) + _moved_bytes(out)


_counted: dict[Any, int] = {}


def _operations(func: Any, args: tuple, kwargs: dict, out: Any) -> int:
    """Multiplications and additions of an operation; of the same shapes they are counted once."""
    if func is aten.linear.default:  # whole under a dispatch mode where nothing is differentiated
        return 2 * args[0].numel() * args[1].shape[0]
    formula = flop_registry.get(func._overloadpacket)
    if formula is None:
        return 0
    if func not in MATRIX_PRODUCTS:
        return formula(*_with_all_heads(args), **kwargs, out_val=out)
    key = (func, *(a.shape if isinstance(a, torch.Tensor) else None for a in args))
    if key not in _counted:
        _counted[key] = formula(*args, **kwargs, out_val=out)
    return _counted[key]


def _with_all_heads(args: tuple) -> tuple:
    """Attention's arguments with keys and values of every query head: before torch 2.13 no formula takes fewer."""
    heads = max((a.shape[1] for a in args if isinstance(a, torch.Tensor) and a.ndim == 4), default=0)
    return tuple(
        a[:, :1].expand(-1, heads, -1, -1)
        if isinstance(a, torch.Tensor) and a.ndim == 4 and a.shape[1] < heads and heads % a.shape[1] == 0
        else a
        for a in args
    )


def _moved_bytes(value: Any) -> int:
    if isinstance(value, torch.Tensor):
        return value.numel() * value.element_size()
    if isinstance(value, (tuple, list)):
        return sum(map(_moved_bytes, value))
    return 0


@dataclass
class Trace:
    """What came and went.

    Attributes
    ----------
    events : list of int
        ``i`` where storage ``i`` was made, ``~i`` where it was released.
    sizes, categories, operations : list
        Of each storage: bytes, category (None: decided by how long it lived), and the operation that made it.
    marks : list of (int, str)
        Where phases begin: index into ``events`` and name, such as "forward" or "step".
    work : dict of str to Work
        What the operations of each phase come to, all its repetitions together.
    layers : list
        Of each storage: the decoder layer it belongs to, or None.
    block, blocks, block_layers
        A block is a stretch of events in which one layer is at work: the one at hand (-1: none), of each event its
        block, and of each block its layer.
    growth : dict of int to int
        Of storages that grow with the number of layers: bytes for one.
    """

    events: list[int] = field(default_factory=list)
    sizes: list[int] = field(default_factory=list)
    categories: list[str | None] = field(default_factory=list)
    operations: list[str] = field(default_factory=list)
    recomputed: list[bool] = field(default_factory=list)
    marks: list[tuple[int, str]] = field(default_factory=list)
    work: dict[str, Work] = field(default_factory=dict)
    layers: list[int | None] = field(default_factory=list)
    block: int = -1
    blocks: list[int] = field(default_factory=list)
    block_layers: list[int] = field(default_factory=list)
    growth: dict[int, int] = field(default_factory=dict)

    def begin(self, phase: str) -> None:
        """Begin a phase."""
        self.block = -1
        self.marks.append((len(self.events), phase))

    def add(
        self,
        size: int,
        category: str | None,
        operation: str,
        recomputed: bool = False,
        layer: int | None = None,
    ) -> int:
        """Note a new storage and return its number; ``layer`` is whose it is where none is at work."""
        number = len(self.sizes)
        self.sizes.append(size)
        self.categories.append(category)
        self.operations.append(operation)
        self.recomputed.append(recomputed)
        self.layers.append(self.block_layers[self.block] if self.block >= 0 else layer)
        self.events.append(number)
        self.blocks.append(self.block)
        return number

    def release(self, number: int) -> None:
        """Note that a storage is gone."""
        self.events.append(~number)
        self.blocks.append(self.block)

    def at_work(self, layer: int | None) -> None:
        """Begin a layer's block; None: no layer is at work."""
        if layer is None:
            self.block = -1
        elif self.block < 0 or self.block_layers[self.block] != layer:
            self.block = len(self.block_layers)
            self.block_layers.append(layer)


class StorageTracker(TorchDispatchMode):
    """Write a trace of the storages that operations make on one device.

    Parameters
    ----------
    device_type
        "meta" or "cpu"; tensors elsewhere (such as Adam's step counters, which stay on the CPU) aren't counted.
    workspace_bytes
        What cuBLAS takes at the first matrix product of the forward pass and again of the backward pass (its handles
        belong to threads, and autograd has its own).
    vocab_size
        Tensors whose last dimension this is are logits, or their gradients.
    rules
        Operation to a function ``(tracker, func, args, kwargs) -> output`` that runs instead of it.
    scratch
        Operation to a function ``(args, kwargs, output) -> bytes`` of what its kernel takes and gives back at once.
    """

    def __init__(
        self,
        device_type: str,
        *,
        workspace_bytes: int = 0,
        vocab_size: int | None = None,
        rules: dict[Any, Callable] | None = None,
        scratch: dict[Any, Callable] | None = None,
    ):
        super().__init__()
        self.trace = Trace()
        self.device_type = device_type
        self.vocab_size = vocab_size
        self.rules = dict(rules or {})
        self.scratch = dict(scratch or {})
        self.in_backward = False
        self.supervised_tokens, self.needs_mask = (
            0,
            False,
        )  # of the micro-batch at hand, for rules that need its values
        self._scope: str | None = None
        self._workspaces = [workspace_bytes, workspace_bytes] if workspace_bytes else [0, 0]
        self._known: dict[int, tuple[int, weakref.ref]] = {}
        self._alone = _exclusive_counts()
        self._run = (
            output_on_meta if device_type == "meta" else lambda func, args, kwargs: func(*args, **kwargs)
        )

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return (
            False  # nothing is compiled here, and what keeps the compiler out takes a tenth of a simulation
        )

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        if func in MATRIX_PRODUCTS and self._workspaces[self.in_backward]:
            self.trace.add(self._workspaces[self.in_backward], "cublas_workspace", "cuBLAS")
            self._workspaces[self.in_backward] = 0
        if func is aten.add.Tensor and self.in_backward and self._accumulates(args, kwargs):
            return args[0].add_(args[1])
        rule = self.rules.get(func)
        out = self._run(func, args, kwargs) if rule is None else rule(self, func, args, kwargs)
        made = out if isinstance(out, (tuple, list)) else (out,)
        layers = self._note(func, args, kwargs, out, made)
        for one, layer in zip_longest(made, layers):
            if isinstance(one, torch.Tensor):
                self.see(one, func=func, layer=layer)
        needed = self.scratch.get(func)
        if needed is not None:
            self.use(needed(args, kwargs, out), str(func))
        return out

    def see(
        self,
        tensor: torch.Tensor,
        category: str | None = None,
        *,
        func: Any = None,
        layer: int | None = None,
    ) -> None:
        """Note a tensor's storage, if it is new (of a layer, if one is given); give it a category, if one is given."""
        if tensor.device.type != self.device_type:
            return
        storage = tensor.untyped_storage()
        key = storage._cdata
        known = self._known.get(key)
        if known is not None:
            if category is not None:
                self.trace.categories[known[0]] = category
            return
        size = storage.nbytes()
        if size == 0:
            return
        recomputed = self.in_backward and torch.is_grad_enabled()
        category = category or self._scope or self._by_shape(tensor, func)
        number = self.trace.add(size, category, _name(func), recomputed, layer)
        self._known[key] = (number, weakref.ref(storage, lambda _: self._gone(key)))

    def use(self, size: int, operation: str, growth: int = 0) -> None:
        """Note scratch that is taken and given back at once; ``growth`` is what one more layer would add."""
        if size:
            number = self.trace.add(size, "temporaries", operation)
            self.trace.release(number)
            if growth:
                self.trace.growth[number] = growth

    def is_known(self, tensor: torch.Tensor) -> bool:
        """Whether the tensor's storage is in the trace."""
        return tensor.untyped_storage()._cdata in self._known

    @contextmanager
    def scope(self, category: str | None) -> Iterator[None]:
        """Give what is made inside a category."""
        before, self._scope = self._scope, category
        try:
            yield
        finally:
            self._scope = before

    def set_scope(self, category: str | None) -> str | None:
        """Set the category of what is made from now on, and return the one before."""
        before, self._scope = self._scope, category
        return before

    def forget(self) -> None:
        """Stop noting releases."""
        self._known.clear()

    def _note(
        self, func: Any, args: tuple, kwargs: dict, out: Any, made: Sequence[Any]
    ) -> Sequence[int | None]:
        """Note an operation's work; return whose each output is, as far as it is known."""
        phase = self.trace.marks[-1][1] if self.trace.marks else "load"
        if phase != "load" and not func.is_view:
            self.trace.work.setdefault(phase, Work()).add(func, args, kwargs, out)
        return ()

    def _gone(self, key: int) -> None:
        known = self._known.pop(key, None)
        if known is not None:
            self.trace.release(known[0])

    def _by_shape(self, tensor: torch.Tensor, func: Any) -> str | None:
        if func is not None and "dequantize" in func._opname:
            return "dequantized"
        if (
            self.vocab_size
            and tensor.ndim
            and tensor.shape[-1] == self.vocab_size
            and tensor.is_floating_point()
        ):
            return "logits_and_loss"
        return None

    def _accumulates(self, args: tuple, kwargs: dict) -> bool:
        """Whether this sum is autograd adding two gradients of one tensor, the first of which nothing else needs.

        Without a dispatch mode the engine then adds in place; under one it doesn't, which would count a third tensor.
        """
        if torch.is_grad_enabled() or kwargs or len(args) != 2:
            return False
        old, new = args
        if not (isinstance(old, torch.Tensor) and isinstance(new, torch.Tensor)):
            return False
        if old.shape != new.shape or old.dtype != new.dtype or not old.is_contiguous():
            return False
        return _counts(old) <= self._alone


class NoTracker:
    """Stands where a tracker would, and notes nothing."""

    def __init__(self, device_type: str):
        self.device_type = device_type

    def see(self, tensor: torch.Tensor, category: str | None = None) -> None:
        """Note nothing."""

    def set_scope(self, category: str | None) -> None:
        """Note nothing."""

    def is_known(self, tensor: torch.Tensor) -> bool:
        """No tensor is."""
        return False

    @contextmanager
    def scope(self, category: str | None) -> Iterator[None]:
        """Note nothing."""
        yield


def _counts(tensor: torch.Tensor) -> tuple[int, int]:
    return torch._C._storage_Use_Count(tensor.untyped_storage()._cdata), tensor._use_count()


class _CountProbe(TorchDispatchMode):
    """Sees with how many references the engine hands over a gradient that is its own alone."""

    def __init__(self):
        super().__init__()
        self.found: tuple[int, int] | None = None

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if func is aten.add.Tensor and not torch.is_grad_enabled():
            self.found = self._look(args)
        return func(*args, **(kwargs or {}))

    def _look(self, args: tuple) -> tuple[int, int]:
        old, _ = args
        return _counts(old)


def _exclusive_counts() -> tuple[int, int]:
    x = torch.empty(2, 2, device="meta", requires_grad=True)
    with _CountProbe() as probe:
        h = x @ x.detach()
        (h.sigmoid() * 2 + h.relu() * 3).sum().backward()
    return probe.found


def _name(func: Any) -> str:
    return "" if func is None else func._opname
