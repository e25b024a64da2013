"""Run the shipped task as `onegpu finetune` does, ask lesson 00's message, and store what came out.

python tests/benchmarks/whole_task.py            # some minutes; writes helpers/onegpu/qlora_finetune/whole_task.json
python tests/benchmarks/whole_task.py RUN        # from the folder of a run that is finished, with its report.json
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path

from onegpu import models, plots
from onegpu.qlora_finetune import generate
from onegpu.qlora_finetune.config import SYSTEM_PROMPT
from onegpu.qlora_finetune.whole_task import MESSAGE
from peft import PeftModel

STORED = Path(__file__).resolve().parents[2] / "helpers" / "onegpu" / "qlora_finetune" / "whole_task.json"
PICTURE = Path(__file__).resolve().parents[2] / "docs" / "_static" / "result.png"  # the README's
KEPT = (
    "losses", "before", "after", "peak_memory_bytes", "steps", "tokens", "supervised_tokens", "machine", "precision",
    "versions",
)  # fmt: skip
# Not the seconds: they say how busy the machine was. tests/benchmarks/finetune.py measures speed, in pairs.


def main(folder: Path | None) -> None:
    """Train where no folder is given, ask, write."""
    if folder is None:
        folder = Path(tempfile.mkdtemp(prefix="whole_task_")) / "run"
        subprocess.run(
            [sys.executable, "-m", "onegpu.cli", "finetune", "--output-dir", str(folder)], check=True
        )
    report = json.loads((folder / "report.json").read_text(encoding="utf-8"))
    chat = [{"role": "system", "content": SYSTEM_PROMPT}, {"role": "user", "content": MESSAGE}]
    loaded = models.load(report["config"]["model"], quantization=report["config"]["quantization"])
    before = generate(loaded.model, loaded.tokenizer, [chat], max_new_tokens=96)[0]
    tuned = PeftModel.from_pretrained(loaded.model, folder / "adapter")
    after = generate(tuned, loaded.tokenizer, [chat], max_new_tokens=96)[0]
    count = models.count_parameters(tuned)
    stored = {name: report[name] for name in KEPT} | {
        "model": report["config"]["model"],
        "eval_losses": [[0, report["before"]["loss"]], [report["steps"], report["after"]["loss"]]],
        "answered_rows": report["after"]["rows"],
        "answers": [{"message": MESSAGE, "before": before, "after": after}],
        "trained": sum(p.numel() for n, p in tuned.named_parameters() if "lora_" in n),
        "parameters": count.total - sum(p.numel() for n, p in tuned.named_parameters() if "lora_" in n),
    }
    STORED.write_text(json.dumps(stored, ensure_ascii=False, indent=1) + "\n", encoding="utf-8")
    drawn = plots.qlora_finetune.loss_curve(stored["losses"], stored["eval_losses"])
    PICTURE.write_bytes(plots.base.png(drawn))
    print(f"before: {before}\nafter:  {after}\nwritten to {STORED}")


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else None)
