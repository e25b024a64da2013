"""The memory explorer: each card for itself, and quickly."""

from onegpu.gpu_memory import judge
from onegpu.runtime import COURSE_CARDS, GPUS
from onegpu.widgets import gpu_memory as widget
from onegpu.widgets.gpu_memory import memory_picture
from plainly import closed_form

GIB = 2**30


def asked(**changes):
    settings = {
        "model": "llama-2-7b", "method": "qlora", "batch_size": 4, "length": 512, "checkpointing": True,
        "supervised": False, "optimizer": "adamw_torch",
    }  # fmt: skip
    return memory_picture(**{**settings, **changes})


def test_a_card_is_judged_with_its_own_kernels():
    # A T4 writes out the scores of grouped heads: what an L4 could do with 12 GiB doesn't fit there.
    changes = {"model": "qwen2.5-1.5b", "method": "lora", "batch_size": 4, "length": 2048, "checkpointing": False,
               "supervised": True}  # fmt: skip
    settings = {
        "method": "lora",
        "per_device_train_batch_size": 4,
        "max_length": 2048,
        "loop": "onegpu",
        "gradient_checkpointing": False,
        "target_modules": "all-linear",
        "lora_r": 16,
    }
    t4, l4 = (closed_form("qwen2.5-1.5b", **settings, gpu=gpu) for gpu in ("T4", "L4"))
    assert judge(t4).verdict == "does not fit"
    assert t4.peak_bytes > 1.5 * l4.peak_bytes
    assert "is the T4" not in asked(**changes)[1]


def test_the_card_that_it_fits_on_is_in_the_picture():
    drawn, sentence = asked()
    assert "the smallest card it fits on is the T4; there the peak is 6." in sentence
    assert drawn.axes[0].get_xlim()[1] > GPUS["T4"].total_bytes / GIB


def test_a_small_model_is_not_dwarfed_by_its_card():
    drawn, _ = asked(model="smollm2-135m", batch_size=1)
    assert drawn.axes[0].get_xlim()[1] < GPUS["T4"].total_bytes / GIB


def test_what_fits_nowhere_is_said_to():
    assert asked(model="llama-3-8b", method="full", batch_size=32)[1].startswith(
        "By formula it fits on none of these cards"
    )


def test_it_asks_a_formula_once_for_each_card_and_setting(monkeypatch):
    # a simulation takes a second or two, in which nobody waits for a slider
    calls, real = [], widget.closed_form

    def formula(model, **settings):
        calls.append(settings["gpu"])
        return real(model, **settings)

    monkeypatch.setattr(widget, "closed_form", formula)
    widget._predict.cache_clear()
    for _ in range(2):
        asked(model="llama-3-8b", batch_size=2)
    assert calls == list(COURSE_CARDS)
