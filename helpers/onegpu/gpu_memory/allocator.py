"""What PyTorch's CUDA caching allocator does with a request, replayed block by block without a GPU.

The rules, from ``c10/cuda/CUDACachingAllocator.cpp`` (native backend, default settings, one stream): requests are
rounded up to 512 bytes; up to 1 MiB they come out of 2 MiB segments, above out of 20 MiB segments or, from 10 MiB on,
segments of their own rounded up to 2 MiB; the smallest free block that is large enough is taken; its rest is split off
if it is at least 512 bytes (small) or more than 1 MiB (large), otherwise the request keeps it. Freed blocks join their
free neighbours. Hence two numbers: allocated (blocks in use) and reserved (segments taken from the card).
"""

from __future__ import annotations

from bisect import bisect_left, insort

KIB, MIB = 2**10, 2**20
ROUNDING_BYTES = 512
SMALL_REQUEST_BYTES = MIB
SMALL_SEGMENT_BYTES = 2 * MIB
LARGE_SEGMENT_BYTES = 20 * MIB
LARGE_REQUEST_BYTES = 10 * MIB
SEGMENT_ROUNDING_BYTES = 2 * MIB


class Block:
    """A piece of a segment, in use or free. ``requested_bytes`` is what was asked for, ``size`` what it got."""

    __slots__ = ("address", "after", "before", "free", "requested_bytes", "size", "small")

    def __init__(self, size: int, address: int, small: bool):
        self.size, self.address, self.small = size, address, small
        self.before: Block | None = None
        self.after: Block | None = None
        self.free, self.requested_bytes = True, 0


class CachingAllocator:
    """Replays requests and keeps torch's counters: allocated, requested and reserved bytes, and their peaks.

    Examples
    --------
    >>> allocator = CachingAllocator()
    >>> block = allocator.malloc(1)
    >>> allocator.allocated_bytes, allocator.requested_bytes, allocator.reserved_bytes
    (512, 1, 2097152)
    >>> allocator.free(block)
    >>> allocator.allocated_bytes, allocator.reserved_bytes
    (0, 2097152)

    A tensor of 117.5 MiB gets a segment of 118 MiB and keeps the half MiB that is too little to split off:

    >>> allocator = CachingAllocator()
    >>> allocator.malloc(30080 * 2048 * 2).size / MIB
    118.0
    """

    def __init__(self):
        self.allocated_bytes = self.requested_bytes = self.reserved_bytes = 0
        self.peak_allocated_bytes = self.peak_reserved_bytes = 0
        # By size and address, sorted; numbers in front, since Python compares those much faster than blocks.
        self._free: dict[bool, list[tuple[int, int, Block]]] = {True: [], False: []}
        self._next_address = 0

    def malloc(self, requested_bytes: int) -> Block:
        """Take a block for a request; zero bytes are a request too, of one rounding unit."""
        size = rounded_bytes(requested_bytes)
        small = size <= SMALL_REQUEST_BYTES
        block = self._take(size, small) or self._new_segment(size, small)
        rest = block.size - size
        if rest >= ROUNDING_BYTES if small else rest > SMALL_REQUEST_BYTES:
            self._split(block, size)
        block.free, block.requested_bytes = False, requested_bytes
        self.allocated_bytes += block.size
        self.requested_bytes += requested_bytes
        self.peak_allocated_bytes = max(self.peak_allocated_bytes, self.allocated_bytes)
        return block

    def free(self, block: Block) -> None:
        """Give a block back; it joins its free neighbours."""
        self.allocated_bytes -= block.size
        self.requested_bytes -= block.requested_bytes
        block.free, block.requested_bytes = True, 0
        if block.after is not None and block.after.free:
            self._forget(block.after)
            _join(block, block.after)
        if block.before is not None and block.before.free:
            self._forget(block.before)
            block = _join(block.before, block)
        self._keep(block)

    def empty_cache(self) -> None:
        """Give segments without a block in use back to the card, as ``torch.cuda.empty_cache()`` does."""
        for small, blocks in self._free.items():
            parts = [kept for kept in blocks if kept[2].before is not None or kept[2].after is not None]
            self.reserved_bytes -= sum(size for size, _, _ in blocks) - sum(size for size, _, _ in parts)
            self._free[small] = parts

    def _take(self, size: int, small: bool) -> Block | None:
        blocks = self._free[small]
        i = bisect_left(blocks, (size, -1))
        return blocks.pop(i)[2] if i < len(blocks) else None

    def _new_segment(self, size: int, small: bool) -> Block:
        block = Block(segment_bytes(size), self._next_address, small)
        self._next_address += block.size + 2**40  # segments never touch, so they never join
        self.reserved_bytes += block.size
        self.peak_reserved_bytes = max(self.peak_reserved_bytes, self.reserved_bytes)
        return block

    def _split(self, block: Block, size: int) -> None:
        rest = Block(block.size - size, block.address + size, block.small)
        rest.before, rest.after = block, block.after
        if block.after is not None:
            block.after.before = rest
        block.after, block.size = rest, size
        self._keep(rest)

    def _forget(self, block: Block) -> None:
        blocks = self._free[block.small]
        blocks.pop(bisect_left(blocks, (block.size, block.address)))

    def _keep(self, block: Block) -> None:
        insort(self._free[block.small], (block.size, block.address, block))


class ExactAllocator:
    """No rounding, no segments: what a CPU's tensors take. The same counters; reserved equals allocated.

    Examples
    --------
    >>> allocator = ExactAllocator()
    >>> allocator.malloc(1).size, allocator.allocated_bytes
    (1, 1)
    """

    def __init__(self):
        self.allocated_bytes = self.peak_allocated_bytes = 0

    @property
    def requested_bytes(self) -> int:
        """The same as allocated."""
        return self.allocated_bytes

    reserved_bytes = requested_bytes

    @property
    def peak_reserved_bytes(self) -> int:
        """The same as the peak allocated."""
        return self.peak_allocated_bytes

    def malloc(self, requested_bytes: int) -> Block:
        """Count a request."""
        block = Block(requested_bytes, 0, False)
        block.requested_bytes = requested_bytes
        self.allocated_bytes += requested_bytes
        self.peak_allocated_bytes = max(self.peak_allocated_bytes, self.allocated_bytes)
        return block

    def free(self, block: Block) -> None:
        """Count a release."""
        self.allocated_bytes -= block.size

    def empty_cache(self) -> None:
        """Nothing is cached."""


def rounded_bytes(requested_bytes: int) -> int:
    """Round a request up to a multiple of 512 bytes, at least one.

    >>> rounded_bytes(0), rounded_bytes(512), rounded_bytes(513)
    (512, 512, 1024)
    """
    return max(1, -(-requested_bytes // ROUNDING_BYTES)) * ROUNDING_BYTES


def segment_bytes(size: int) -> int:
    """Return the size of the segment that a (rounded) request makes the allocator take from the card.

    >>> [segment_bytes(n * MIB) // MIB for n in (1, 2, 10, 11)]
    [2, 20, 10, 12]
    """
    if size <= SMALL_REQUEST_BYTES:
        return SMALL_SEGMENT_BYTES
    if size < LARGE_REQUEST_BYTES:
        return LARGE_SEGMENT_BYTES
    return -(-size // SEGMENT_ROUNDING_BYTES) * SEGMENT_ROUNDING_BYTES


def unsplit_bytes(requested_bytes: int) -> int:
    """Bytes a request gets beyond its own when a new segment is taken for it: rounding, and a rest too small to split.

    >>> unsplit_bytes(30080 * 2048 * 2), unsplit_bytes(2048 * 2048 * 2)
    (524288, 0)
    """
    size = rounded_bytes(requested_bytes)
    rest = segment_bytes(size) - size
    small = size <= SMALL_REQUEST_BYTES
    kept = 0 if (rest >= ROUNDING_BYTES if small else rest > SMALL_REQUEST_BYTES) else rest
    return size - requested_bytes + kept


def _join(left: Block, right: Block) -> Block:
    """Let the left block swallow the right one."""
    left.size += right.size
    left.after = right.after
    if right.after is not None:
        right.after.before = left
    return left
