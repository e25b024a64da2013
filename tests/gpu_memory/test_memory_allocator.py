"""The allocator's rules: rounding, segments, splitting, joining."""

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onegpu.gpu_memory.allocator import MIB, CachingAllocator, ExactAllocator, rounded_bytes, unsplit_bytes


@pytest.mark.parametrize(("request_", "block"), [(1, 512), (512, 512), (513, 1024), (8_519_680, 8_519_680)])
def test_requests_are_rounded_up_to_512_bytes(request_, block):
    assert CachingAllocator().malloc(request_).size == block


@pytest.mark.parametrize(
    ("request_", "segment_mib"),
    [(1, 2), (MIB, 2), (MIB + 1, 20), (10 * MIB - 512, 20), (10 * MIB, 10), (11 * MIB, 12)],
)
def test_segments_are_2_or_20_mib_or_rounded_to_2_mib(request_, segment_mib):
    allocator = CachingAllocator()
    allocator.malloc(request_)
    assert allocator.reserved_bytes == segment_mib * MIB


def test_small_and_large_requests_never_share_a_segment():
    allocator = CachingAllocator()
    allocator.malloc(2 * MIB)
    allocator.malloc(512)
    assert allocator.reserved_bytes == 22 * MIB


def test_a_large_rest_of_at_most_one_mib_stays_with_its_block():
    # pytorch's rule, and where 0.5 MiB of each of polyglot-ko's embeddings goes
    allocator = CachingAllocator()
    assert allocator.malloc(int(117.5 * MIB)).size == 118 * MIB
    assert allocator.malloc(int(116.5 * MIB)).size == int(116.5 * MIB)
    assert unsplit_bytes(117 * MIB) == MIB
    assert unsplit_bytes(int(116.5 * MIB)) == 0


def test_the_smallest_free_block_that_is_large_enough_is_taken():
    allocator = CachingAllocator()
    large, small = allocator.malloc(64 * MIB), allocator.malloc(32 * MIB)
    allocator.free(large)
    allocator.free(small)
    taken = allocator.malloc(30 * MIB)
    assert taken is small
    assert allocator.reserved_bytes == 96 * MIB


def test_free_neighbours_join_and_the_joined_block_is_used():
    allocator = CachingAllocator()
    blocks = [allocator.malloc(4 * MIB) for _ in range(5)]
    assert allocator.reserved_bytes == 20 * MIB
    for block in (blocks[1], blocks[3], blocks[2]):
        allocator.free(block)
    allocator.malloc(9 * MIB)
    assert allocator.reserved_bytes == 20 * MIB


def test_empty_cache_gives_back_only_segments_without_a_block_in_use():
    allocator = CachingAllocator()
    kept, freed = allocator.malloc(4 * MIB), allocator.malloc(64 * MIB)
    allocator.free(freed)
    allocator.empty_cache()
    assert allocator.reserved_bytes == 20 * MIB
    allocator.free(kept)
    allocator.empty_cache()
    assert allocator.reserved_bytes == 0


_SIZES = st.one_of(st.integers(1, 3000), st.integers(1, 30 * MIB))


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.booleans(), _SIZES), max_size=60))
def test_counters_are_the_sum_of_live_blocks_and_all_comes_back(steps):
    allocator, live = CachingAllocator(), []
    for free, size in steps:
        if free and live:
            allocator.free(live.pop(size % len(live)))
        else:
            live.append(allocator.malloc(size))
            assert live[-1].size >= rounded_bytes(size)
        assert allocator.allocated_bytes == sum(b.size for b in live)
        assert allocator.requested_bytes == sum(b.requested_bytes for b in live)
        assert allocator.requested_bytes <= allocator.allocated_bytes <= allocator.reserved_bytes
        spans = sorted((b.address, b.address + b.size) for b in live)
        assert all(end <= start for (_, end), (start, _) in itertools.pairwise(spans))
    for block in live:
        allocator.free(block)
    reserved = allocator.reserved_bytes
    assert allocator.allocated_bytes == 0
    allocator.empty_cache()
    assert allocator.reserved_bytes == 0, f"of {reserved} reserved bytes not all joined again"


def test_exact_allocator_counts_without_rounding():
    allocator = ExactAllocator()
    block = allocator.malloc(3)
    assert (allocator.allocated_bytes, allocator.reserved_bytes, allocator.peak_allocated_bytes) == (3, 3, 3)
    allocator.free(block)
    assert (allocator.allocated_bytes, allocator.peak_allocated_bytes) == (0, 3)
