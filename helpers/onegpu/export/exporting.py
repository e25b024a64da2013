"""One export from start to end: merge, convert, check, and only then give the file its name."""

from __future__ import annotations

import json
import math
import shutil
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from onegpu import data, models, runtime
from onegpu.chat.llama_cpp import Engine
from onegpu.chat.places import Place, base_of, find_place, run_system_prompt
from onegpu.chat.speakers import TransformersSpeaker
from onegpu.export import gguf_files
from onegpu.export.checks import EXACT, LOST, NOTICED, Agreement, Answers, compare_answers, compare_logprobs
from onegpu.export.hub import check_login, push
from onegpu.export.modelfile import find_turns, modelfile
from onegpu.qlora_finetune import FinetuneConfig, merge_adapter, triage_example
from onegpu.qlora_finetune.adapters import read_adapter
from onegpu.qlora_finetune.bases import read_base
from onegpu.qlora_finetune.evaluation import end_tokens
from onegpu.qlora_finetune.rows import read_examples
from onegpu.sft_datasets import to_example, tokenize_rows

FORMATS = ("gguf", "merged", "ollama", "adapter-gguf", "adapter")
"""``adapter`` is for the hub alone: a run's adapter folder is there already."""

ANSWERS = 3
ANSWER_TOKENS = 96


@dataclass(frozen=True)
class Exported:
    """What was written, and what was seen in checking it."""

    files: tuple[Path, ...]
    said: tuple[str, ...]

    def __str__(self) -> str:
        return "\n".join(self.said)


@dataclass
class _Job:
    """What all formats need: the place, the folder to work in, the merged model."""

    place: Place
    name: str
    base: str | None
    work: Path
    rows: Sequence[dict[str, Any]]
    say: Callable[[str], None]

    def merged_dir(self) -> Path:
        """Return the folder of the merged model, making it first; a model that needs no merging is its own."""
        if self.place.kind == "model":
            source = models.fetch(self.place.path)
            if not (source.folder / "config.json").is_file():
                raise ValueError(f"{self.place.path} is in GGUF already: there is nothing to export")
            return source.folder
        folder = self.work / "merged"
        if not folder.is_dir():
            self.say("merging the adapter into its base")
            recorded = read_base(Path(self.place.path))
            if self.base is None and recorded is not None and recorded.quantization != "unknown":
                merge_adapter(self.place.path, folder)
            else:
                base, quantization = base_of(self.place)
                merge_adapter(self.place.path, folder, base=self.base or base, quantization=quantization)
        return folder


def export(
    name: str | Path,
    to: str = "gguf",
    *,
    types: Sequence[str] = ("f16",),
    output_dir: str | Path | None = None,
    push_to_hub: str | None = None,
    private: bool = True,
    base: str | None = None,
    system: str | None = None,
    check_rows: int = 8,
    say: Callable[[str], None] = lambda line: None,
) -> Exported:
    """Export a run, an adapter or a model.

    Parameters
    ----------
    name
        Folder of a run, an adapter or a model, a catalogue name or a hub id.
    to
        One of ``FORMATS``: "gguf" for llama.cpp, "ollama" (the same with a Modelfile), "merged" (16-bit safetensors),
        "adapter-gguf" (the adapter alone, for use on its base in GGUF), "adapter" (only to push it to the hub).
    types
        Of the weights in GGUF files, each of ``TYPES``.
    output_dir
        A folder for the files; ``export`` in the run's folder, or ``export/NAME`` here, if not given. For "merged" the
        model's own folder.
    push_to_hub
        A repository (NAME or OWNER/NAME) for an adapter or a merged model.
    private
        Whether a repository that is made for it is private.
    base
        Of an adapter, in place of the one that it names.
    system
        System prompt of a Modelfile; otherwise the one that all rows of the run share.
    check_rows
        Held-out rows that are compared.
    say
        Gets one line at each stage.

    Raises
    ------
    ValueError
        For anything that can't work or doesn't pass its check. No file is left then.
    """
    if to not in FORMATS:
        raise ValueError(f"format is {to!r}, expected one of {', '.join(FORMATS)}")
    for kind in types:
        if kind not in gguf_files.TYPES:
            raise ValueError(f"type is {kind!r}, expected one of {', '.join(gguf_files.TYPES)}")
    if check_rows < 1:
        raise ValueError(f"check_rows is {check_rows}, expected at least 1")
    place = find_place(name)
    if place.kind == "gguf":
        raise ValueError(f"{name} is a GGUF file already: give the run or model that it was made from")
    if place.kind == "model" and to.startswith("adapter"):
        raise ValueError(
            f"{name} is a model without an adapter: expected a run or an adapter to export as {to}"
        )
    if push_to_hub is not None and to not in ("merged", "adapter"):
        raise ValueError(f"push-to-hub goes with the formats merged and adapter, not with {to}")
    if to == "adapter" and push_to_hub is None:
        raise ValueError(
            f"the adapter is in {place.path} already: copy that folder, or push it with --push-to-hub NAME"
        )
    repo_id = check_login(push_to_hub) if push_to_hub else None
    if to == "adapter":
        address = push(Path(place.path), repo_id, private=private)
        return Exported((), (f"pushed {place.path} to {address}",))
    if to != "merged":
        gguf_files.llama_cpp_folder()  # what is missing is said before the work
    runtime.quiet()
    short = (place.run or Path(str(place.path))).name
    folder = (
        Path(output_dir) if output_dir else (place.run / "export" if place.run else Path("export") / short)
    )
    if to == "merged":
        folder = folder if output_dir else folder / "merged"
        if folder.exists() and any(folder.iterdir()):
            raise ValueError(f"{folder} is not empty: give a new folder with --output-dir")
    parent = folder.parent if to == "merged" else folder
    existed = [p for p in (parent, *parent.parents) if not p.exists()]
    try:
        parent.mkdir(parents=True, exist_ok=True)
        work = Path(tempfile.mkdtemp(prefix=".export-", dir=parent))
    except OSError as error:
        raise ValueError(
            f"{parent} can't be written ({error.strerror or error}): choose another folder"
        ) from None
    done = False
    try:
        job = _Job(place, short, base, work, _check_rows(place, check_rows), say)
        exported = _WRITERS[to](job, folder, tuple(types), system)
        done = True
    finally:
        shutil.rmtree(work, ignore_errors=True)
        if not done:
            for made in existed:  # deepest first
                if made.is_dir() and not any(made.iterdir()):
                    made.rmdir()
    if repo_id:
        address = push(folder, repo_id, private=private)
        exported = Exported(exported.files, (*exported.said, f"pushed to {address}"))
    return exported


def _check_rows(place: Place, count: int) -> list[dict[str, Any]]:
    """Rows to compare on: held-out ones of the run, else its first training rows, else the shipped task's."""
    config = place.run_config
    if config:
        known = {key: config[key] for key in ("method", "data", "eval_data") if key in config}
        try:
            examples = read_examples(FinetuneConfig(**known))
            return (examples.held_out or examples.train)[:count]
        except (OSError, ValueError):  # the rows were moved
            pass
    return [triage_example(row) for row in data.rows("support_triage", "heldout")[:count]]


def _write_merged(job: _Job, folder: Path, types: tuple[str, ...], system: str | None) -> Exported:
    from onegpu.chat.speakers import load_with_adapter

    source = job.merged_dir()
    if job.place.kind == "model":
        raise ValueError(f"{job.place.path} has no adapter to merge: it is in {source}")
    merged = models.load(source, dtype=torch.float32)
    tuned = load_with_adapter(job.place, base=job.base, dtype=torch.float32)
    gap, tokens = _logprob_gap(merged.model, tuned.model, tokenize_rows(job.rows, merged.tokenizer))
    if gap > EXACT["f16"]:
        raise ValueError(
            f"the merged model's log-probabilities differ from base and adapter by {gap:.3f} nats on average: not written"
        )
    card = Path(job.place.path) / "README.md"
    if card.is_file():
        (source / "README.md").write_text(merged_card(card.read_text(encoding="utf-8")), encoding="utf-8")
    if folder.exists():
        folder.rmdir()
    source.replace(folder)
    said = (
        f"{folder}: log-probabilities of {tokens} held-out tokens differ from base and adapter by {gap:.4f} nats on average",
    )
    return Exported((folder,), said)


def merged_card(card: str) -> str:
    """Turn the card of an adapter into that of the model it was merged into."""
    about, _, rest = card.partition("## Use")
    about = about.replace("library_name: peft", "library_name: transformers")
    about = about.replace("base_model_relation: adapter", "base_model_relation: finetune")
    about = about.replace("A LoRA adapter, made", "A LoRA adapter merged into its base, made")
    use = "## Use\n\nA 16-bit model for transformers, without peft and bitsandbytes.\n\n"
    return about + use + rest[rest.index("Versions:") :] if "Versions:" in rest else about + use


@torch.no_grad()
def _logprob_gap(one: Any, other: Any, examples: Any) -> tuple[float, int]:
    gaps = []
    for example in examples:
        ids, labels = torch.tensor([list(example.input_ids)]), torch.tensor(list(example.labels))[1:]
        at = (labels != -100).nonzero()[:, 0]
        a, b = (
            m(input_ids=ids.to(m.device)).logits[0].float().log_softmax(-1).cpu()[at, labels[at]]
            for m in (one, other)
        )
        gaps.append((a - b).abs())
    together = torch.cat(gaps)
    return float(together.mean()), together.numel()


def _reference(job: _Job) -> TransformersSpeaker:
    loaded = models.load(job.merged_dir(), dtype=torch.float32)
    return TransformersSpeaker(loaded.model, loaded.tokenizer, "merged model")


def _write_gguf(job: _Job, folder: Path, types: tuple[str, ...], system: str | None) -> Exported:
    reference = _reference(job)
    made, said = [], []
    for kind in types:
        target = folder / f"{job.name}-{kind}.gguf"
        part = job.work / target.name
        job.say(f"converting to {kind}")
        gguf_files.convert(job.merged_dir(), part, kind)
        summary = gguf_files.read_back(part)
        said.append(f"{target}: {summary}")
        said += _check(job, Engine(part), kind, reference)
        if not summary.has_chat_template:
            raise ValueError(f"{part.name} came out without a chat template: not written")
        made.append((part, target))
    for part, target in made:
        part.replace(target)
    return Exported(tuple(target for _, target in made), tuple(said))


def _check(job: _Job, engine: Engine, kind: str, reference: TransformersSpeaker) -> list[str]:
    job.say(f"comparing {kind} in llama.cpp with the merged model")
    tokenized = tokenize_rows(job.rows, reference.tokenizer)
    agreement = compare_logprobs(engine, reference.model, tokenized)
    chats = [list(to_example(row).messages)[:-1] for row in job.rows[:ANSWERS]]
    answers = compare_answers(engine, reference, chats, ANSWER_TOKENS)
    return [f"  {agreement}", f"  {answers}", *_judge(kind, agreement, answers)]


def _judge(kind: str, agreement: Agreement, answers: Answers) -> list[str]:
    """Refuse a file that isn't the model, or that has lost too much of it; return what is to be warned of."""
    bound = EXACT.get(kind)
    times = agreement.perplexity / agreement.reference_perplexity
    if bound is None and not times <= LOST:
        raise ValueError(
            f"too little of the model is left in {kind}: its {agreement}. At most {LOST:g} times the perplexity is "
            f"expected: take {_larger(kind)}. Not written"
        )
    if bound is not None and not agreement.mean_difference <= bound:
        raise ValueError(
            f"the {kind} file isn't the model: its {agreement}, and at most {bound} on average are expected. Not written"
        )
    if kind in ("f32", "f16") and answers.worst_gap > max(0.05, 4 * agreement.max_difference):
        raise ValueError(f"the {kind} file answers differently: {answers}. Not written")
    if bound is None and times > NOTICED:
        return [f"  {kind}: perplexity {times - 1:.0%} above the merged model's; {_larger(kind)} loses less"]
    return []


def _larger(kind: str) -> str:
    return "q8_0" if kind.startswith("q5") else "q5_0 or q8_0"


def _write_ollama(job: _Job, folder: Path, types: tuple[str, ...], system: str | None) -> Exported:
    if len(types) != 1:
        raise ValueError(f"a Modelfile names one GGUF file: give one type, not {len(types)}")
    exported = _write_gguf(job, folder, types, system)
    (file,) = exported.files
    reference = _reference(job)
    add_bos = gguf_files.read_back(file).add_bos
    turns = find_turns(reference.tokenizer, add_bos)
    system = run_system_prompt(job.place) if system is None else system
    stop = [reference.tokenizer.decode([token]) for token in end_tokens(reference.model, reference.tokenizer)]
    path = folder / "Modelfile"
    path.write_text(modelfile(file.name, turns, stop, system or None), encoding="utf-8")
    said = [f"{path}: `ollama create {job.name} -f {path}`, then `ollama run {job.name}`"]
    if turns is None:
        said.append(
            "  without TEMPLATE: this chat template can't be written in Go's language by its parts alone"
        )
    return Exported((file, path), (*exported.said, *said))


def _write_adapter_gguf(job: _Job, folder: Path, types: tuple[str, ...], system: str | None) -> Exported:
    adapter_dir = _low_rank_only(job)
    base, quantization = base_of(job.place)
    base = job.base or base
    loaded = models.load(base, quantization=quantization, dtype=torch.float32)
    model = loaded.model.dequantize() if quantization else loaded.model
    base_dir = job.work / "base"
    model.to(torch.float16).save_pretrained(base_dir)
    reference = _reference(job)
    reference.tokenizer.save_pretrained(base_dir)
    base_file, target = job.work / "base-f16.gguf", folder / f"{job.name}-adapter-f16.gguf"
    part = job.work / target.name
    job.say("converting base and adapter")
    gguf_files.convert(base_dir, base_file)
    gguf_files.convert_adapter(adapter_dir, base_dir, part)
    summary = gguf_files.read_back(part)
    said = _check(job, Engine(base_file, adapter=part), "f16", reference)
    part.replace(target)
    return Exported((target,), (f"{target}: {summary}, for use on {base} in GGUF (llama.cpp: --lora)", *said))


def _low_rank_only(job: _Job) -> Path:
    """Return the folder of an adapter as llama.cpp reads it: low-rank matrices, scaled by lora_alpha / r."""
    folder = Path(job.place.path)
    config, tensors = read_adapter(folder)
    more = {
        name.split(".")[-2] for name in tensors if not name.endswith((".lora_A.weight", ".lora_B.weight"))
    }
    if config.get("use_dora") or more:
        what = "DoRA's magnitudes" if config.get("use_dora") else f"whole modules ({', '.join(sorted(more))})"
        raise ValueError(
            f"{folder} holds {what}, which a GGUF adapter can't: export the merged model, with --to gguf"
        )
    if not config.get("use_rslora"):
        return folder
    if config.get("rank_pattern"):
        raise ValueError(
            f"{folder} has ranks of its own for some layers beside use_rslora, which a GGUF adapter can't hold: export the "
            "merged model, with --to gguf"
        )
    copied = Path(shutil.copytree(folder, job.work / "adapter"))
    config |= {"use_rslora": False, "lora_alpha": config["lora_alpha"] * math.sqrt(config["r"])}
    (copied / "adapter_config.json").write_text(json.dumps(config), encoding="utf-8")
    return copied


_WRITERS = {
    "gguf": _write_gguf,
    "merged": _write_merged,
    "ollama": _write_ollama,
    "adapter-gguf": _write_adapter_gguf,
}
