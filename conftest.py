"""pytest's set-up for the notebooks: nbval's kernels get the environment that the stored outputs were made in.

`pytest --nbval labs/` works from any folder: the sanitize file is found here, and each notebook is one unit under
`-n 3 --dist loadfile`, the longest units first.
"""

from __future__ import annotations

import gc
import importlib.util
import os
import time
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from queue import Empty

import pytest
from onegpu.notebooks.execution import ENVIRONMENT
from onegpu.notebooks.files import NotebookError, read

ROOT = Path(__file__).resolve().parent

# Files, or folders whose files stay together (one Ray for all), that take longest: handed out first under xdist, since
# what comes last is waited for. The order matters little, so it needn't follow every change.
LONGEST = (
    "tests/ray_scale_out/",
    "course/08_ray_scale_out.ipynb",
    "course/07_qlora_finetune.ipynb",
    "course/02_preference_data.ipynb",
    "course/01_sft_datasets.ipynb",
    "tests/test_browser.py",
    "tests/test_models.py",
    "tests/after_the_run/test_export.py",
    "course/04_quantization.ipynb",
    "labs/08_ray_scale_out.ipynb",
    "solutions/08_ray_scale_out.ipynb",
    "tests/qlora_finetune/test_run.py",
    "tests/qlora_finetune/test_stopping.py",
    "tests/gpu_memory/test_memory_runs.py",
    "tests/test_notebooks.py",
    "tests/test_grading.py",
    "tests/test_docs.py",
)

if "PYTEST_XDIST_WORKER" in os.environ:
    # Several processes on one machine: threads of their own would fight for the same cores. Before torch is imported.
    os.environ.setdefault("OMP_NUM_THREADS", "1")

# Data for tests/test_exercises.py, not tests; they share names with test folders.
collect_ignore = ["tests/wrong_answers"]
if importlib.util.find_spec("ray") is None:  # topic 08 needs the extra "ray"; its tests skip with that reason
    collect_ignore.append("helpers/onegpu/ray_scale_out/worker.py")
    collect_ignore_glob = ["course/08_*", "labs/08_*", "solutions/08_*"]


def pytest_report_header() -> str | None:
    """Say what is left out, where something is: files that aren't collected are not in the list of skips."""
    if importlib.util.find_spec("ray") is None:
        return "notebooks of topic 08 left out: ray is missing (pip install -c constraints.txt -e '.[ray]')"
    return None


def pytest_configure(config: pytest.Config) -> None:
    """Point nbval to this interpreter and to the sanitize file, whatever the working directory."""
    gc.disable()  # a fifth of the imports to come; see pytest_collection_finish
    option = config.option
    if getattr(option, "nbval", False) or getattr(option, "nbval_lax", False):
        option.nbval_current_env = True  # whatever kernels this machine has
        if not option.nbval_sanitize_with:
            option.nbval_sanitize_with = str(ROOT / "tests" / "nbval_sanitize.cfg")

        _notice_dead_kernels()


def _notice_dead_kernels() -> None:
    """Make nbval say that a kernel died; by itself it waits until the cell's time is over."""
    from nbval.kernel import RunningKernel

    wait = RunningKernel.get_message

    def get_message(self: RunningKernel, stream: str, timeout: float | None = None) -> dict:
        end = float("inf") if timeout is None else time.monotonic() + timeout
        while True:
            left = end - time.monotonic()
            try:
                return wait(self, stream, timeout=max(0.0, min(1.0, left)))
            except Empty:
                if left <= 1.0:
                    raise
                if not self.is_alive():
                    raise RuntimeError("the kernel died while it ran this cell (out of memory?)") from None

    RunningKernel.get_message = get_message


def _unit(nodeid: str) -> str:
    """What stays in one process."""
    return next((unit for unit in LONGEST if nodeid.startswith(unit)), nodeid.partition("::")[0])


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """In xdist's processes: the longest units first, then the other notebooks."""
    if "PYTEST_XDIST_WORKER" in os.environ:
        place = {unit: at for at, unit in enumerate(LONGEST)}
        items.sort(key=lambda item: (place.get(_unit(item.nodeid), len(place)), item.path.suffix != ".ipynb"))


def pytest_collection_finish() -> None:
    """Spare each garbage collection of the tests the half million objects of libraries and collected tests."""
    gc.enable()
    gc.collect()
    gc.freeze()


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: object) -> object | None:
    """Under ``--dist loadfile``, hand out units in the order of the tests."""
    if config.getvalue("dist") != "loadfile":
        return None
    from xdist.scheduler import LoadFileScheduling

    class InOrder(LoadFileScheduling):
        def _split_scope(self, nodeid: str) -> str:
            return _unit(nodeid)

    config.option.loadscopereorder = False  # by number of tests, which says little of seconds
    return InOrder(config, log)


class UnreadableNotebook(pytest.File):
    """A notebook that nbval would stumble over with a stack trace."""

    def collect(self) -> list[pytest.Item]:
        raise self.CollectError(f"{self.path.name}: {self.problem}")


@pytest.hookimpl(wrapper=True)
def pytest_collect_file(file_path: Path, parent: pytest.Collector) -> Iterator[list]:
    """Say in one line what is wrong with a notebook that can't be read."""
    found = yield
    if file_path.suffix == ".ipynb" and found:
        try:
            read(file_path)
        except NotebookError as error:
            unreadable = UnreadableNotebook.from_parent(parent, path=file_path)
            unreadable.problem = str(error).removeprefix(f"{file_path.name}: ")
            return [unreadable]
    return found


@pytest.hookimpl(wrapper=True)
def pytest_runtest_setup(item: pytest.Item) -> Iterator[None]:
    """Start a notebook's kernel in the environment of the stored outputs; other tests keep their own."""
    if item.path.suffix != ".ipynb":
        return (yield)
    before = dict(os.environ)
    os.environ.update(ENVIRONMENT | {"ONEGPU_STRICT": before.get("ONEGPU_STRICT", "")})
    try:
        return (yield)
    finally:
        os.environ.clear()
        os.environ.update(before)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print the table of exercises and wrong answers, and say what to run when a notebook's cell failed."""
    reports = [r for kind in ("passed", "failed") for r in terminalreporter.stats.get(kind, ())]
    table = defaultdict(list)
    for report in reports:
        for key, value in report.user_properties:
            if key == "wrong_answer":
                number, answer = value.split("|")
                table[number].append(answer if report.passed else f"{answer}: NOT CAUGHT")
    if table:
        terminalreporter.section("exercise x wrong answers")
        for number, answers in sorted(table.items()):
            caught = sum(not answer.endswith("NOT CAUGHT") for answer in answers)
            terminalreporter.line(
                f"{number}  {caught} of {len(answers)} caught: {', '.join(sorted(answers))}"
            )
    failed = {r.nodeid.partition("::")[0] for r in reports if r.failed and ".ipynb::" in r.nodeid}
    if failed:
        terminalreporter.section("notebooks")
    for path in sorted(failed):
        if "labs/" in path:
            terminalreporter.line(f"{path}: an exercise is not right, or a cell raised: see above.")
        else:
            terminalreporter.line(f"{path}: if the new output is the right one: onegpu notebooks run {path}")
