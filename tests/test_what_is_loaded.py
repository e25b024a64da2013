"""What a command imports before it answers: seconds differ between machines, names of modules don't."""

import json
import subprocess
import sys

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from onegpu.gpu_memory.output_shapes import output_on_meta
from onegpu.runtime import bitsandbytes as loading

HEAVY = ("torch", "transformers", "peft", "bitsandbytes", "accelerate", "datasets")
COMPILER = ("torch._dynamo", "torch._inductor")


def loaded_by(code, *arguments):
    """Run code in a fresh process; return the names of the modules that were loaded when it ended."""
    report = (
        "import atexit, json, sys\natexit.register(lambda: print('\\n' + json.dumps(sorted(sys.modules))))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", report + code, *arguments], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return set(json.loads(done.stdout.splitlines()[-1]))


RUN = "from onegpu.cli import main\nmain()"


@pytest.mark.parametrize(
    "arguments", [("--help",), ("--version",), ("memory", "--help"), ("memory", "--gpus")]
)
def test_help_loads_no_library(arguments):
    assert not loaded_by(RUN, *arguments) & {*HEAVY, "numpy", "pyarrow"}


def test_counting_ready_made_tokens_loads_no_torch(tmp_path):
    file = tmp_path / "rows.parquet"
    pq.write_table(pa.table({"input_ids": [[1, 2, 3], [4]], "labels": [[-100, 2, 3], [4]]}), file)
    assert not loaded_by(RUN, "tokens", str(file)) & set(HEAVY)


def test_the_memory_topic_loads_torch_and_none_of_what_it_simulates():
    loaded = loaded_by("import onegpu.gpu_memory")
    assert "torch" in loaded
    assert not loaded & {"transformers", "peft", "accelerate", *COMPILER}


def test_bitsandbytes_comes_without_the_compiler_and_leaves_torch_as_it_was():
    code = "import torch; before = torch.compile; from onegpu.runtime import import_bitsandbytes as load\n"
    loaded = loaded_by(code + "load(); assert torch.compile is before")
    assert "bitsandbytes" in loaded
    assert not loaded & set(COMPILER)


def test_training_loads_bitsandbytes_the_quick_way(tmp_path):
    """transformers' trainer imports it by way of peft, unless it is there."""
    loaded = loaded_by("import onegpu.qlora_finetune.run, onegpu.qlora_finetune.trainer")
    assert "bitsandbytes" in loaded
    assert "torch._inductor.compile_fx" not in loaded


def test_what_is_compiled_later_is_compiled_once_with_its_options(monkeypatch):
    asked = []

    def compiled(function, **options):
        asked.append(options)
        return lambda x: function(x) + 1

    monkeypatch.setattr(torch, "compile", compiled)
    with loading._compiling_later():

        @torch.compile(dynamic=False)
        def double(x):
            return 2 * x

    assert torch.compile is compiled
    assert not asked
    assert (double(3), double(4)) == (7, 9)
    assert asked == [{"dynamic": False}]


@pytest.mark.parametrize(
    ("operation", "make"),
    [
        (torch.ops.aten.mm.default, lambda x: (x, x.t())),
        (torch.ops.aten.mul.Tensor, lambda x: (x, 2)),
        (torch.ops.aten.mul.Tensor, lambda x: (x.long(), 2.0)),
        (torch.ops.aten.var_mean.correction, lambda x: (x, [1])),
        (torch.ops.aten.t.default, lambda x: (x,)),
        (torch.ops.aten._unsafe_view.default, lambda x: (x, [4, 3])),
        (torch.ops.aten.mul_.Tensor, lambda x: (x, 2)),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_a_remembered_operation_makes_what_it_made_the_first_time(operation, make):
    x = torch.empty(3, 4, device="meta")
    expected = operation(*make(x))
    for _ in range(3):
        arguments = make(x)
        found = output_on_meta(operation, arguments, {})
        for a, b in zip(
            *((t,) if isinstance(t, torch.Tensor) else t for t in (expected, found)), strict=True
        ):
            assert (a.shape, a.stride(), a.dtype) == (b.shape, b.stride(), b.dtype)
            assert a.untyped_storage().nbytes() == b.untyped_storage().nbytes()
            shared = a.untyped_storage()._cdata == x.untyped_storage()._cdata
            assert shared == (b.untyped_storage()._cdata == x.untyped_storage()._cdata)


def test_a_whole_number_and_a_fraction_are_not_the_same_argument():
    x = torch.empty(3, dtype=torch.int64, device="meta")
    kinds = [output_on_meta(torch.ops.aten.mul.Tensor, (x, by), {}).dtype for by in (2, 2.0, 2, 2.0)]
    assert kinds == [torch.int64, torch.float32] * 2
