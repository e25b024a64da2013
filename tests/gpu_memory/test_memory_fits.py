"""Verdicts, the largest batch, the report, and how results print."""

import json
import sys

import pytest
from onegpu.gpu_memory import MemoryBreakdown, Moment, Peak, compare, judge
from plainly import closed_form, fits, largest_batch, make_setup, other_estimates, report, simulated
from transformers import AutoConfig

GIB = 2**30


def breakdown(peak, reserved, gpu="T4"):
    moment = Moment("after_step", peak, peak, {"weights": peak}, reserved)
    setup = make_setup("smollm2-135m", gpu=gpu).resolved
    return MemoryBreakdown(
        "made up", setup, (moment,), Peak(peak, "here", {"weights": peak}), {}, reserved_bytes=reserved
    )


@pytest.mark.parametrize(("peak", "reserved", "verdict"), [
    (10.0, 11.0, "fits"),
    (14.0, 14.5, "tight"),  # the context may take it over
    (14.6, 14.7, "does not fit"),
])  # fmt: skip
def test_the_context_and_fragmentation_decide_between_fits_and_tight(peak, reserved, verdict):
    found = judge(breakdown(int(peak * GIB), int(reserved * GIB)))
    assert found.verdict == verdict
    assert bool(found) == (verdict == "fits")


def test_a_16_bit_8b_model_does_not_fit_a_t4():
    found = fits("llama-3-8b", "T4", method="lora", max_length=64)
    assert found.verdict == "does not fit"
    assert "of 14.56 GiB" in str(found)


def test_whether_it_fits_is_not_asked_of_a_cpu():
    with pytest.raises(ValueError, match="asked of a card"):
        fits("smollm2-135m", "cpu")


@pytest.mark.parametrize("settings", [
    {"method": "full", "max_length": 512},
    {"method": "qlora", "max_length": 1024, "gradient_checkpointing": True},
])  # fmt: skip
def test_the_largest_batch_fits_and_the_next_does_not(settings):
    found = largest_batch("smollm2-135m", "T4", **settings)
    assert found.fit
    assert not found.next_fit
    assert (
        found.fit.breakdown.setup.per_device_train_batch_size
        == found.batch_size
        == found.next_fit.breakdown.setup.per_device_train_batch_size - 1
    )


def test_no_batch_fits_where_one_row_does_not():
    found = largest_batch("llama-3-8b", "T4", method="full", max_length=64)
    assert (found.batch_size, found.fit) == (0, None)
    assert str(found).startswith("no batch fits\nbatch 1 does not fit on T4")


def test_the_report_has_both_ways_in_whole_bytes():
    found = json.loads(
        json.dumps(
            report(
                "smollm2-135m", "t4", method="qlora", per_device_train_batch_size=4, max_length=64
            ).to_json()
        )
    )
    for way in ("simulated", "closed_form"):
        assert (
            set(found[way]["allocated_bytes"])
            == set(found[way]["peak_bytes"])
            == set(found[way]["by_category"])
        )
        for moment, size in found[way]["allocated_bytes"].items():
            assert isinstance(size, int)
            assert sum(found[way]["by_category"][moment].values()) == size
        assert sum(found[way]["peak"]["by_category"].values()) == found[way]["peak"]["bytes"]
        assert found[way]["versions"]["transformers"]
    assert found["verdict"] == "fits"
    assert found["settings"]["gpu"] == "T4"


@pytest.mark.parametrize(("gpu", "verdict"), [("T4", "does not fit"), ("cpu", None)])
def test_the_report_of_what_does_not_fit_is_json_too(gpu, verdict):
    found = report(
        "llama-3-8b", gpu, method="qlora", per_device_train_batch_size=4, max_length=1024, dtype="fp16"
    )
    written = json.loads(json.dumps(found.to_json()))
    assert written["verdict"] == verdict
    assert (written["needed_bytes"] is None) == (verdict is None)
    assert bool(written["remedies"]) == (verdict is not None)


def test_the_report_says_why_there_is_no_formula():
    found = report("gemma-3-270m", "L4", max_length=64)
    assert found.closed_form is None
    assert "no closed form: " in str(found)


def test_the_report_offers_a_remedy_where_it_does_not_fit():
    found = report("llama-2-7b", "T4", method="qlora", per_device_train_batch_size=4, max_length=1024)
    assert not found.fit
    assert all(found.remedies)
    assert found.remedies[0].changes == {"gradient_checkpointing": True}
    assert found.remedies[-1].changes == {
        "gpu": "A100-80GB"
    }  # 53 GiB: the first card of the course that holds them


def test_categories_that_do_not_add_up_are_refused():
    with pytest.raises(ValueError, match="add up to 2 bytes, expected 3"):
        Moment("loaded", 3, 3, {"weights": 2})
    with pytest.raises(ValueError, match="unknown categories"):
        Moment("loaded", 3, 3, {"wights": 3})


def test_the_table_shows_moments_peak_context_and_versions():
    found = simulated("smollm2-135m", max_length=64)
    text = str(found)
    for word in (
        "weights",
        "activations",
        "optimizer scratch",
        "forward backward in step after second",
        "reserved",
        "nvidia-smi would show",
        "transformers 5",
    ):
        assert word in text
    assert "<th scope='row'>weights</th>" in found._repr_html_()


def test_compare_prints_the_ratio_to_the_first():
    a, b = (way("smollm2-135m", max_length=64) for way in (simulated, closed_form))
    last = compare([a, b]).splitlines()[-1].split()
    assert last[0] == "ratio"
    assert float(last[2]) == pytest.approx(
        b["after_step"].allocated_bytes / a["after_step"].allocated_bytes, abs=1e-4
    )


def test_the_timeline_starts_low_ends_at_the_second_step_and_has_the_peak():
    found = simulated("smollm2-135m", max_length=64)
    line = found.timeline
    assert max(line.allocated_bytes) == found.peak_bytes
    assert line.allocated_bytes[-1] == found["second_step"].allocated_bytes
    assert list(line.positions) == sorted(line.positions)
    assert [name for _, name in line.marks][:4] == ["load", "forward", "backward", "after_backward"]
    assert line.phase_at(0) == "load"


# accelerate#2512: with no activation term the batch size means nothing
def test_other_estimators_answer_as_published():
    small, large = (
        {e.name: round(e.bytes / GIB, 1) for e in other_estimates("polyglot-ko-1.3b", per_device_train_batch_size=n, max_length=256, dtype="fp16")}
        for n in (4, 16)
    )  # fmt: skip
    assert small == {
        "accelerate estimate-memory": 9.5,
        "HF train_memory formula": 12.2,
        "EleutherAI cookbook": 24.4,
    }
    assert large == {
        "accelerate estimate-memory": 9.5,
        "HF train_memory formula": 26.3,
        "EleutherAI cookbook": 30.6,
    }
    with pytest.raises(ValueError, match="none of these estimators knows"):
        other_estimates("polyglot-ko-1.3b", method="qlora")


def test_fewer_or_shorter_rows_that_cannot_fit_are_not_simulated(monkeypatch):
    module = sys.modules["onegpu.gpu_memory.fits"]
    config = AutoConfig.for_model(
        "llama",
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        vocab_size=500,
    )
    setup = make_setup(
        config, loop="trainer", attention="eager", per_device_train_batch_size=64, max_length=256
    )
    asked = simulated(setup)
    tried = []

    def note(changed):
        tried.append(changed.resolved.per_device_train_batch_size)
        return simulated(changed)

    monkeypatch.setattr(module, "simulated", note)
    context = asked.setup.gpu.context_bytes[0]
    budget = module.least_bytes(asked, {"per_device_train_batch_size": 4}) + context - 1
    half = {"per_device_train_batch_size": 32}
    assert module.least_bytes(asked, half) < simulated(setup.change(**half)).peak_bytes
    for batch in (32, 16, 4, 1):
        module._try(setup, {"per_device_train_batch_size": batch}, "", budget, asked)
    assert tried == [1]
    assert module.least_bytes(asked, {"optim": "sgd"}) == 0
