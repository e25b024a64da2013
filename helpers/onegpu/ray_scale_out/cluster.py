"""A Ray on this machine that starts quietly, fits two cores, and is gone afterwards; or a cluster by its address.

Ray needs three things said before it starts: how many CPUs it may count on (it trusts the number, also on a laptop
whose cores are busy), how large its object store is (shared memory that holds the rows between the stages), and where
objects go when the store is full (a disk, which can be full too).
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import logging
import os
import shutil
import sys
import tempfile
import time
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

OBJECT_STORE_BYTES = 200 * 2**20
"""Of a Ray that is started here: small, since tokenized rows are small. Ray's own least is 75 MiB."""

DISK_LIMIT = 0.95
"""Share of the disk beyond which Ray writes no more objects to it (its ``local_fs_capacity_threshold``)."""

# Set before Ray starts: what it prints is for operators, not for a notebook.
QUIET = {
    "RAY_DEDUP_LOGS": "1",
    "RAY_COLOR_PREFIX": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",  # workers without a GPU keep CUDA_VISIBLE_DEVICES; else Ray warns of it
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_USAGE_STATS_PROMPT_ENABLED": "0",
    "RAY_TRAIN_METRICS_ENABLED": "0",
    "RAY_DATA_DISABLE_PROGRESS_BARS": "1",
}
# Set before a Ray is started here, where asking often costs nothing and no machine is taken back by its owner. The first
# is how often Ray Train looks for new checkpoints and for the end of a run (2 s by itself), in seconds. Niceness is the
# priority of workers: Ray's own 15 gives them what everything else on the machine leaves over, and on two cores with one
# busy program that is next to nothing. And a process with nothing to do waits for a minute instead of a second: the next
# task or actor takes it, with all that it has imported.
LOCAL = {
    "RAY_TRAIN_HEALTH_CHECK_INTERVAL_S": "0.5",
    "RAY_TRAIN_ENABLE_PREEMPTION_WATCHER": "0",
    "RAY_worker_niceness": "0",
    "RAY_idle_worker_killing_time_threshold_ms": "60000",
}
LOGGERS = ("ray", "ray.data", "ray.train", "ray.serve", "ray.tune")


class RayMissing(ImportError):
    """Ray isn't installed. The message says how to get it."""

    def _render_traceback_(self) -> list[str]:
        return str(self).splitlines()


class NotEnoughResources(ValueError):
    """More was asked for than the cluster has: Ray itself would wait for it without end."""

    def _render_traceback_(self) -> list[str]:
        return str(self).splitlines()


def require_ray() -> Any:
    """Import Ray and return it.

    Raises
    ------
    RayMissing
        If ``ray`` or ``aiohttp`` is missing; without the second, Ray 2.60 starts no dashboard agent and hangs.
    """
    for package in ("ray", "aiohttp"):
        if importlib.util.find_spec(package) is None:
            raise RayMissing(f"{package} is not installed: pip install 'onegpu[ray]' (lesson 08 only)")
    _set_missing(QUIET)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import ray
    return ray


def _require_dashboard() -> None:
    try:
        importlib.import_module("ray.dashboard.optional_deps")  # what Ray itself tries, after seconds
    except ImportError as error:
        raise RayMissing(
            f"Ray's dashboard needs more packages ({error.name} is missing): pip install 'ray[default]', or leave "
            "dashboard=True out"
        ) from error


def _set_missing(variables: dict[str, str]) -> None:
    """Set environment variables that the user hasn't set."""
    os.environ.update({name: value for name, value in variables.items() if name not in os.environ})


@dataclass(frozen=True)
class Cluster:
    """What a Ray has.

    Attributes
    ----------
    cpus, gpus : float
        As Ray counts them: numbers that it was told or found, not measured load.
    nodes : int
        Machines.
    object_store_bytes : int
        Of all nodes together.
    dashboard : str
        Address of the dashboard, or "".
    started_here : bool
        Whether ``local_ray`` started it, and will stop it.
    """

    cpus: float
    gpus: float
    nodes: int
    object_store_bytes: int
    dashboard: str
    started_here: bool

    def __str__(self) -> str:
        how = "started here, stops with this block" if self.started_here else "was running, stays"
        lines = [
            f"Ray: {self.nodes} node(s), {self.cpus:g} CPUs, {self.gpus:g} GPUs, object store "
            f"{self.object_store_bytes / 2**20:,.0f} MiB; {how}"
        ]
        if self.dashboard:
            lines.append(f"dashboard: http://{self.dashboard}")
        return "\n".join(lines)


@contextlib.contextmanager
def local_ray(
    num_cpus: int | None = None,
    *,
    address: str | None = None,
    object_store_bytes: int = OBJECT_STORE_BYTES,
    dashboard: bool = False,
    log_to_driver: bool = False,
    **init: Any,
) -> Iterator[Cluster]:
    """Use a Ray for the length of a ``with`` block.

    If this process is connected to one already, that one is used and stays. Else, with an address, the block joins
    that cluster and leaves it at the end; without one, it starts a Ray on this machine and stops it at the end,
    whatever happens inside.

    Parameters
    ----------
    num_cpus
        How many CPUs Ray may count on. None: those of this machine, but at least 2, so that a small machine trains
        slowly rather than not at all. Only for a Ray that is started here.
    address
        Of a running cluster, such as "auto", "ray://host:10001" or "host:6379".
    object_store_bytes
        Shared memory for objects, at least 75 MiB. Only for a Ray that is started here.
    dashboard
        Whether to start the dashboard. It takes some seconds and about 200 MB, and more packages than the extra ``ray``
        brings: ``pip install "ray[default]"``. The page asks for a token, which ``ray get-auth-token`` prints. Only for
        a Ray that is started here.
    log_to_driver
        Whether workers' prints appear here.
    init
        Further arguments of ``ray.init``.

    Raises
    ------
    RayMissing
        If Ray isn't installed, or the dashboard's packages aren't and it is asked for.
    ValueError
        If no cluster answers at the address, or num_cpus is below 1.
    """
    ray = require_ray()
    quiet_loggers()
    if ray.is_initialized():
        yield describe(started_here=False)
        return
    if num_cpus is not None and num_cpus < 1:
        raise ValueError(f"num_cpus is {num_cpus}, expected at least 1")
    if dashboard and address is None:
        _require_dashboard()
    settings: dict[str, Any] = {
        "log_to_driver": log_to_driver, "logging_level": logging.ERROR, "configure_logging": False,
    }  # fmt: skip
    with contextlib.ExitStack() as stack:
        if not log_to_driver:
            stack.enter_context(_no_notices(ray))
            stack.enter_context(_no_log_monitor(ray))
        if address is None:
            _set_missing(LOCAL)
            with _quick_start(stack):
                settings |= {
                    "address": "local",  # a Ray of our own, even if another one runs on this machine
                    "num_cpus": num_cpus or max(2, os.cpu_count() or 1),
                    "object_store_memory": object_store_bytes,
                    "include_dashboard": dashboard,
                }
                ray.init(**settings | init)
        else:
            import onegpu

            settings |= {
                "address": address,
                "runtime_env": {"py_modules": [str(Path(onegpu.__file__).parent)]},
            }
            try:
                ray.init(**settings | init)
            except ConnectionError as error:
                raise ValueError(
                    f"no Ray cluster answers at {address!r}: start one there (ray start --head), or leave address out"
                ) from error
        stack.callback(ray.shutdown)
        quiet_loggers()
        yield describe(started_here=address is None)


@contextlib.contextmanager
def _quick_start(stack: contextlib.ExitStack) -> Iterator[None]:
    """Give Ray's processes their environment (``worker_environment``), and spare each one most of ``import ray``.

    Processes that Ray starts inherit the environment in which it was started. Given as a ``runtime_env`` it would make
    Ray throw away the processes that it starts in advance, and ask an agent before each other one.

    Ray imports jsonschema, which imports rfc3987_syntax if it is there (JupyterLab brings it), which compiles a grammar
    for a second, in each of about twenty processes of a run of two workers. jsonschema does without; an empty module of
    that name, found first, tells it so. It also lets Python look for garbage less often, which is a fifth of importing
    torch, transformers and Ray. Lives as long as the stack, since workers start at any time.
    """
    folder = stack.enter_context(
        tempfile.TemporaryDirectory(prefix="onegpu_ray_", ignore_cleanup_errors=True)
    )
    Path(folder, "rfc3987_syntax.py").write_text(
        '"""Nothing of that name: see onegpu.ray_scale_out.cluster."""\nimport gc\n\ngc.set_threshold(100_000)\n'
    )
    given = worker_environment()
    given["PYTHONPATH"] = os.pathsep.join([folder, given["PYTHONPATH"]])
    before = {name: os.environ.get(name) for name in given}
    os.environ.update(given)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


@contextlib.contextmanager
def _no_notices(ray: Any) -> Iterator[None]:
    """Keep the raylet's notices ("8 worker processes have been started") out of a notebook; errors are raised anyway.

    Ray prints them whatever ``log_to_driver`` says, whenever they happen to arrive.
    """
    module = ray._private.worker
    kept = module.print_to_stdstream
    module.print_to_stdstream = lambda *args, **kwargs: None
    try:
        yield
    finally:
        module.print_to_stdstream = kept


@contextlib.contextmanager
def _no_log_monitor(ray: Any) -> Iterator[None]:
    """Start a Ray without the process that reads the workers' log files: it passes on what nobody is to see."""
    node = ray._private.node.Node
    kept = node.start_log_monitor
    node.start_log_monitor = lambda self: None
    try:
        yield
    finally:
        node.start_log_monitor = kept


def worker_environment() -> dict[str, str]:
    """Return the environment variables that workers on this machine need: where this package is, one thread each.

    Examples
    --------
    >>> worker_environment()["OMP_NUM_THREADS"]
    '1'
    """
    package = str(Path(__file__).resolve().parents[2])
    paths = [package, *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))]
    kept = ("HF_HUB_OFFLINE", "HF_HOME", "XDG_CACHE_HOME", "TRANSFORMERS_VERBOSITY")
    return {
        "PYTHONPATH": os.pathsep.join(dict.fromkeys(paths)),
        # Several workers on one machine: threads of their own would fight for the same cores.
        "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", "1"),
        "TOKENIZERS_PARALLELISM": "false",
    } | {name: os.environ[name] for name in kept if name in os.environ}


def quiet_loggers() -> None:
    """Let Ray's loggers say errors only, and switch Ray Data's bars off."""
    for name in LOGGERS:
        logging.getLogger(name).setLevel(logging.ERROR)
    if "ray" in sys.modules:
        from ray.data import DataContext

        context = DataContext.get_current()
        context.enable_progress_bars = False
        context.print_on_execution_start = False
        for name in LOGGERS:  # ray.data sets its level when it is first imported
            logging.getLogger(name).setLevel(logging.ERROR)


def describe(started_here: bool = False) -> Cluster:
    """Describe the Ray that this process is connected to."""
    import ray

    total = ray.cluster_resources()
    address = getattr(ray._private.worker._global_node, "webui_url", None) or ""
    return Cluster(
        cpus=total.get("CPU", 0.0),
        gpus=total.get("GPU", 0.0),
        nodes=sum(node["Alive"] for node in ray.nodes()),
        object_store_bytes=int(total.get("object_store_memory", 0)),
        dashboard=address,
        started_here=started_here,
    )


def free_cpus(total: float, patience_seconds: float = 3.0) -> float:
    """Return the CPUs of the connected Ray that nothing holds; waits a moment for those that are being given back."""
    import ray

    until = time.monotonic() + patience_seconds
    while (free := ray.available_resources().get("CPU", 0.0)) < total and time.monotonic() < until:
        time.sleep(0.1)
    return free


def data_cpus(free_cpus: float) -> float:
    """Return what one task of the data pipeline asks for: a CPU, or half of what is free on a small machine.

    Examples
    --------
    >>> data_cpus(16), data_cpus(1.9)
    (1.0, 0.95)
    """
    return min(1.0, round(free_cpus / 2, 2))


def worker_resources(
    num_workers: int, use_gpu: bool, cpus: float, gpus: float, free_cpus: float | None = None
) -> dict[str, float]:
    """Return what one training worker asks of Ray, so that the data pipeline is left a CPU to run on.

    Ray Data's tasks need CPUs of the same cluster. If the workers took them all, the workers would wait for rows and
    the rows for a CPU, without end and without an error (ray#28822). So they share what is left beyond one CPU; what a
    worker asks for is bookkeeping, not a limit on what it uses.

    Parameters
    ----------
    num_workers
        Training workers.
    use_gpu
        Whether each has a GPU of its own.
    cpus, gpus
        Of the cluster.
    free_cpus
        Those that nothing else holds at the moment; None: all.

    Raises
    ------
    NotEnoughResources
        If there are more workers than CPUs, or than GPUs where they are used, or other work holds nearly all CPUs.

    Examples
    --------
    >>> worker_resources(2, False, cpus=2, gpus=0)
    {'CPU': 0.5}
    >>> worker_resources(2, True, cpus=16, gpus=2)
    {'CPU': 1.0, 'GPU': 1}
    """
    if num_workers < 1:
        raise ValueError(f"num_workers is {num_workers}, expected at least 1")
    if num_workers > cpus:
        raise NotEnoughResources(
            f"{num_workers} workers on {cpus:g} CPUs: Ray would wait for the missing ones without end. Take "
            f"num_workers={int(cpus)} or fewer, or a cluster with more CPUs (address=...)"
        )
    if use_gpu and num_workers > gpus:
        raise NotEnoughResources(
            f"{num_workers} workers with a GPU each, and the cluster has {gpus:g}: Ray would wait without end. Take "
            f"num_workers={max(1, int(gpus))}, or use_gpu=False"
        )
    free = cpus if free_cpus is None else free_cpus
    if free < 0.5:
        raise NotEnoughResources(
            f"other actors and tasks hold all but {free:g} of {cpus:g} CPUs: end them (delete the variables that hold "
            "them), or Ray would wait for them without end"
        )
    # Rounded down: a ten-thousandth too much, and the last worker waits.
    share = int(1000 * min(1.0, (free - data_cpus(free)) / num_workers)) / 1000
    return {"CPU": share} | ({"GPU": 1} if use_gpu else {})


@dataclass(frozen=True)
class SpillRoom:
    """Room on the disk that Ray writes objects to when its store is full.

    Attributes
    ----------
    folder : str
    total_bytes, used_bytes : int
        Of the disk.
    limit : float
        Share of the disk beyond which Ray writes nothing.
    """

    folder: str
    total_bytes: int
    used_bytes: int
    limit: float = DISK_LIMIT

    @property
    def room_bytes(self) -> int:
        """Bytes that Ray may still write."""
        return max(0, int(self.limit * self.total_bytes) - self.used_bytes)

    def __str__(self) -> str:
        return (
            f"{self.folder}: {self.used_bytes / self.total_bytes:.0%} of {self.total_bytes / 1e9:,.0f} GB used, "
            f"{self.room_bytes / 1e9:,.1f} GB until Ray stops writing at {self.limit:.0%}"
        )


def spill_room(folder: str | Path | None = None, needed_bytes: int = 0, usage: Any = None) -> SpillRoom:
    """Say how much Ray can spill to a disk, and refuse if that is less than needed.

    Parameters
    ----------
    folder
        Where objects go; Ray's own choice is the temporary folder.
    needed_bytes
        What the run may have to spill.
    usage
        ``(total, used, free)`` in bytes instead of the disk's own, as ``shutil.disk_usage`` gives it.

    Raises
    ------
    NotEnoughResources
        If there is less room. Beyond the limit, Ray's tasks fail with ``OutOfDiskError`` in mid-run.

    Examples
    --------
    >>> room = spill_room("/data", usage=(100_000_000_000, 60_000_000_000, 40_000_000_000))
    >>> print(room)
    /data: 60% of 100 GB used, 35.0 GB until Ray stops writing at 95%
    """
    folder = Path(folder or tempfile.gettempdir())
    total, used, _ = usage or shutil.disk_usage(folder)
    room = SpillRoom(str(folder), total, used)
    if room.room_bytes < needed_bytes or not room.room_bytes:
        raise NotEnoughResources(
            f"the disk of {folder} is {used / total:.0%} full, so Ray can spill {room.room_bytes / 1e9:.1f} GB and "
            f"the run may need {needed_bytes / 1e9:.1f} GB: free some, or give another folder "
            "(object_spilling_directory of ray.init)"
        )
    return room


def spilled_bytes() -> int:
    """Return how many bytes lie on this machine's disk because the connected Ray's object store was too small."""
    import ray

    node = ray._private.worker._global_node
    session = Path(node.get_session_dir_path())
    return sum(file.stat().st_size for file in session.rglob("ray_spilled_objects*/*") if file.is_file())
