"""The table of cards: found by any usual spelling, or by size; what is unknown is answered with what is near."""

import pytest
from onegpu.runtime import COURSE_CARDS, GPUS, find_gpu

GIB, MIB = 2**30, 2**20


@pytest.mark.parametrize(("spelling", "name"), [
    ("t4", "T4"), ("Tesla T4", "T4"), ("NVIDIA L4", "L4"), ("NVIDIA A100-SXM4-80GB", "A100-80GB"), ("a100", "A100-80GB"),
    ("A100-PCIE-40GB", "A100-40GB"), ("NVIDIA H100 80GB HBM3", "H100-80GB"), ("Tesla V100-SXM2-32GB", "V100-32GB"),
    ("NVIDIA GeForce RTX 4090", "RTX-4090"), ("rtx4090", "RTX-4090"), ("4090", "RTX-4090"), ("RTX 3060", "RTX-3060-12GB"),
    ("4060 ti", "RTX-4060-Ti-16GB"), ("NVIDIA RTX 6000 Ada Generation", "RTX-6000-Ada"), ("a6000", "RTX-A6000"),
    ("Tesla P100-PCIE-16GB", "P100-16GB"), ("l40s", "L40S"), ("b200", "B200"), ("RTX 5090", "RTX-5090"), ("cpu", "CPU"),
])  # fmt: skip
def test_a_card_is_found_by_any_usual_spelling(spelling, name):
    assert find_gpu(spelling).name == name


def test_every_card_is_found_by_its_own_name():
    assert all(find_gpu(name) is gpu and find_gpu(name.lower()) is gpu for name, gpu in GPUS.items())
    assert len(GPUS) > 30


@pytest.mark.parametrize(
    ("size", "total"), [("24GiB", 24 * GIB), ("24 GB", 24 * 10**9), ("15.5 gib", int(15.5 * GIB))]
)
def test_a_size_is_a_card_too(size, total):
    found = find_gpu(size)
    assert found.total_bytes == total
    assert found.dtype == "bf16"


def test_a_t4_is_as_it_was_measured():
    # fitcheck-llm 0.3.1: 14,912 MiB and a context of 140.875 MiB in every run, with torch 2.10 and 2.14
    t4 = GPUS["T4"]
    assert t4.total_bytes == 14_912 * MIB
    assert t4.context_bytes == (int(140.875 * MIB),) * 2
    assert t4.dtype == "fp16"


def test_totals_are_below_what_is_on_the_box_and_every_one_says_where_it_is_from():
    for name, gpu in GPUS.items():
        if gpu.is_cpu:
            continue
        assert gpu.source, name
        assert isinstance(gpu.total_bytes, int), name
        low, high = gpu.context_bytes
        assert 0 < low <= high < gpu.total_bytes / 10, name
        for part in name.split("-"):
            if part.endswith("GB"):
                assert 0.9 < gpu.total_bytes / (int(part[:-2]) * GIB) < 1, name


@pytest.mark.parametrize(
    ("name", "near"), [("T5", "T4"), ("rtx 4091", "RTX-4090"), ("l41s", "L40S"), ("", COURSE_CARDS[0])]
)
def test_an_unknown_card_is_answered_with_what_is_near_and_where_the_list_is(name, near):
    with pytest.raises(ValueError, match="unknown GPU") as caught:
        find_gpu(name)
    assert near in str(caught.value)
    assert "onegpu memory --gpus" in str(caught.value)


def test_a_size_too_small_for_any_card_is_refused():
    with pytest.raises(ValueError, match="at least 1 GiB"):
        find_gpu("24MB")
