"""Peak memory of a merge: one file of the result, one tensor and the adapter, whatever the size of the model.

    python tests/benchmarks/merge_memory.py

Random Llamas of growing size are saved in shards and merged in a process of their own each, whose peak resident memory
the system counts. It is held against three terms: a file of the result, the largest tensor three times in float32
(dequantized, product, sum), and the adapter. What comes on top (pages of the base's files, bitsandbytes' temporaries,
what malloc keeps) goes into a 7B's figure as the largest ratio that was measured.

Measured on two CPU cores: a base of 19 MiB adds 47 MiB, one of 146 adds 195, one of 650 adds 281, one of 1,443 adds
384 MiB: at most 2.0 times the terms. Llama-2-7B, by the same ratio: 3.3 GiB above the imports.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path

MIB = 2**20
SIZES = ((512, 4), (1024, 8), (1536, 16), (2048, 20))  # hidden size, layers
FILE_BYTES = 64 * MIB


def make(folder: Path, hidden: int, layers: int) -> int:
    import torch
    from onegpu.models import tiny_model, tiny_tokenizer
    from peft import LoraConfig, get_peft_model

    model = tiny_model(
        hidden_size=hidden, layers=layers, heads=hidden // 64, kv_heads=hidden // 128, tied=False
    ).half()
    model.save_pretrained(folder / "base", max_shard_size="100MB")
    tiny_tokenizer().save_pretrained(folder / "base")
    model.name_or_path = str(folder / "base")
    torch.manual_seed(0)
    get_peft_model(model, LoraConfig(r=16, target_modules="all-linear")).save_pretrained(folder / "adapter")
    return sum(p.stat().st_size for p in (folder / "base").glob("*.safetensors"))


MERGE = """
import json, resource, sys, time
from onegpu.qlora_finetune import merge
import torch
def peak(): return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
import bitsandbytes, peft, transformers.models.llama.modeling_llama
merge.FILE_BYTES = int(sys.argv[3])
before, start = peak(), time.process_time()
done = merge.merge(sys.argv[1] + "/adapter", sys.argv[2], quantization="nf4")
assert not done.by_peft
print(json.dumps([before, peak(), time.process_time() - start]))
"""


def main() -> None:
    worst = 0.0
    print(f"files of {FILE_BYTES // MIB} MiB; peak over what the imports take")
    for hidden, layers in SIZES:
        with tempfile.TemporaryDirectory() as name:
            subprocess.run([sys.executable, __file__, "make", name, str(hidden), str(layers)], check=True)
            size = sum(p.stat().st_size for p in (Path(name) / "base").glob("*.safetensors"))
            adapter = sum(p.stat().st_size for p in (Path(name) / "adapter").glob("*.safetensors"))
            out = subprocess.check_output(
                [sys.executable, "-c", MERGE, name, f"{name}/merged", str(FILE_BYTES)], text=True
            )
            before, peak, seconds = json.loads(out.splitlines()[-1])
            largest = 2 * hidden * hidden * 4 * 3
            bound = FILE_BYTES + adapter + largest
            worst = max(worst, (peak - before) / bound)
            print(
                f"hidden {hidden:>5}, {layers:>2} layers: base {size / MIB:6.0f} MiB, merge adds "
                f"{(peak - before) / MIB:5.0f} MiB (file + adapter + 3 of the largest tensor: {bound / MIB:4.0f} MiB), "
                f"{seconds:5.1f} s of CPU"
            )
    # Llama-2-7B: down_proj is 4096 x 11008; an adapter of rank 16 on all linear layers has 39,976,960 parameters.
    bound = 2**30 + 4 * 39_976_960 + 3 * 4 * 4096 * 11_008
    print(
        f"Llama-2-7B by the same terms, files of 1 GiB: {bound / 2**30:.2f} GiB above the imports (base: 12.6 GiB)"
    )


if __name__ == "__main__":
    if sys.argv[1:2] == ["make"]:
        make(Path(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4]))
    else:
        main()
