"""What the setup cell does: look at the machine; on Colab and Kaggle, install what is missing and nothing else.

Never -U, never torch, numpy, pyarrow or ipywidgets: replacing a library that is loaded breaks the session until it is
restarted (unslothai/notebooks#339, datasets#6661).
"""

from __future__ import annotations

import functools
import importlib.metadata
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

# Colab has its own front end and executes nothing in the background.
NOT_ON_COLAB = frozenset({"jupyterlab", "nbclient", "nbformat"})
# What a Colab session has loaded or compiled against: never installed from here.
NEVER = frozenset({"torch", "numpy", "pyarrow", "ipywidgets", "pandas"})

Pip = Callable[[Sequence[str]], None]


def setup(*, pip: Pip | None = None) -> None:
    """Prepare this session and print one line that says what was found.

    On Colab and Kaggle it installs what onegpu needs and the image lacks (bitsandbytes, gguf), and takes out a torchao that peft
    refuses to work with. Elsewhere it only looks.
    """
    from onegpu import runtime

    runtime.quiet()
    if os.environ.get("TQDM_DISABLE") == "1":
        _no_notebook_bars()
    actions = install_missing(pip or _pip) if runtime.on_session_machine() else []
    from onegpu.doctor import check_stale
    from onegpu.runtime.environment import LIBRARIES, installed_version, loaded_version

    stale = check_stale([(name, loaded_version(name), installed_version(name)) for name in LIBRARIES])
    found = runtime.versions()
    short = ", ".join(
        f"{name} {found[name]}" for name in ("python", "torch", "transformers") if name in found
    )
    print(f"onegpu {found['onegpu']} | {short} | {runtime.machine()}" + "".join(f" | {a}" for a in actions))
    if not stale.ok:
        print(f"Restart needed ({stale.found}): Runtime > Restart session, then run this cell again.")


def install_missing(pip: Pip) -> list[str]:
    """Install what is missing and remove what is in the way; return what was done, in words."""
    from packaging.requirements import Requirement
    from packaging.version import Version

    from onegpu.doctor import OLDEST_TORCHAO

    done = []
    missing, old = [], []
    for text in importlib.metadata.requires("onegpu") or []:
        requirement = Requirement(text)
        if requirement.name in NOT_ON_COLAB or (
            requirement.marker and not requirement.marker.evaluate({"extra": ""})
        ):
            continue
        version = _installed(requirement.name)
        if version is None and requirement.name not in NEVER:
            missing.append(f"{requirement.name}{requirement.specifier}")
        elif version is None or not requirement.specifier.contains(version, prereleases=True):
            old.append(f"{requirement.name} {version or 'missing'}, needed {requirement.specifier}")
    if missing:
        pip(["install", "-q", "--no-deps", *missing])
        done.append("installed " + ", ".join(missing))
    torchao = _installed("torchao")
    if torchao is not None and Version(torchao) < Version(OLDEST_TORCHAO):
        # Nothing here uses it, and peft raises ImportError beside an old one. Upgrading it could pull in another torch.
        pip(["uninstall", "-q", "-y", "torchao"])
        done.append(f"removed torchao {torchao} (peft needs {OLDEST_TORCHAO} or none)")
    if old:
        done.append(
            "this runtime is too old (" + "; ".join(old) + "): Runtime > Change runtime type > latest version"
        )
    return done


def install_extra(extra: str, *, pip: Pip | None = None) -> None:
    """On Colab and Kaggle, install an extra of onegpu, such as "ray"; elsewhere say the line that does. Nothing if it's here.

    All installed packages are given to pip as constraints, so it can only add.

    Raises
    ------
    ModuleNotFoundError
        When the extra is missing and this is the learner's own machine: the message is the line to run.
    """
    from packaging.requirements import Requirement

    wanted = [
        requirement
        for requirement in map(Requirement, importlib.metadata.requires("onegpu") or [])
        if requirement.marker
        and requirement.marker.evaluate({"extra": extra})
        and not requirement.marker.evaluate({"extra": ""})
    ]
    if not wanted:
        raise ValueError(
            f"onegpu has no extra {extra!r}: expected one of those in pyproject.toml, such as 'ray'."
        )
    missing = [r for r in wanted if _installed(r.name) is None]
    if not missing:
        return
    names = [
        f"{r.name}{'[' + ','.join(sorted(r.extras)) + ']' if r.extras else ''}{r.specifier}" for r in missing
    ]
    from onegpu.runtime import on_session_machine

    if not on_session_machine():
        quoted = " ".join(f'"{name}"' for name in names)
        raise ModuleNotFoundError(
            f"{', '.join(r.name for r in missing)} missing: run %pip install {quoted} in a cell (or the same without % in a "
            "terminal), restart the kernel, then run this cell again."
        )
    print(f"installing {', '.join(names)}: about a minute …")
    with tempfile.TemporaryDirectory() as folder:
        pins = Path(folder) / "constraints.txt"
        pins.write_text(
            "".join(
                f"{d.metadata['Name']}=={d.version}\n"
                for d in importlib.metadata.distributions()
                if d.metadata["Name"] and d.version
            ),
            encoding="utf-8",
        )
        (pip or _pip)(["install", "-q", "-c", str(pins), *names])


def _no_notebook_bars() -> None:
    """Make tqdm's notebook bars obey TQDM_DISABLE, as its text bars do; for stored outputs."""
    from tqdm.notebook import tqdm_notebook

    tqdm_notebook.__init__ = functools.partialmethod(tqdm_notebook.__init__, disable=True)


def _installed(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def _pip(arguments: Sequence[str]) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "pip", *arguments], capture_output=True, text=True, check=False
    )
    if done.returncode:
        last = "\n".join((done.stderr or done.stdout).strip().splitlines()[-3:])
        raise RuntimeError(f"pip {' '.join(arguments)} failed:\n{last}")
    importlib.invalidate_caches()
