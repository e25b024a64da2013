"""What is installed here, what noise to keep quiet, and whether the hub answers."""

from __future__ import annotations

import contextlib
import importlib.metadata
import logging
import platform
import sys
import threading
import warnings
from collections.abc import Iterator

LIBRARIES = (
    "torch",
    "transformers",
    "peft",
    "bitsandbytes",
    "datasets",
    "tokenizers",
    "accelerate",
    "pyarrow",
    "numpy",
)

# Logger, and how the lines to drop begin. Each is known, frequent, and asks nothing of the reader.
_HARMLESS = (
    # bitsandbytes 0.50 looks for an optional faster CPU kernel at import; its own does the work without.
    ("bitsandbytes.backends.cpu.ops", "Failed to load CPU gemm_4bit_forward from kernels-community"),
    # LLM.int8 rounds its inputs by way of fp16, and says so once per layer and call.
    ("bitsandbytes.autograd._functions", "MatMul8bitLt: inputs will be cast from"),
    # Checkpoints saved within a second of each other; the numbers in their names order them as well.
    ("transformers.trainer_utils", "mtime may not be reliable on this filesystem"),
    # Said by `model.dequantize()` about what it was called for.
    ("transformers.integrations.bitsandbytes", "The modules are dequantized in"),
)

# Warnings that Python itself shows: category, and how they begin (a regular expression).
_HARMLESS_WARNINGS = (
    # peft 0.21 and transformers' own Trainer ask by the old names; the old names do the same until transformers 6.
    (FutureWarning, r"`(is_gradient_checkpointing|gradient_checkpointing_enable)` is deprecated"),
)


class _DropHarmless(logging.Filter):
    def __init__(self, prefix: str):
        super().__init__()
        self.prefix = prefix

    def filter(self, record: logging.LogRecord) -> bool:
        return not str(record.msg).startswith(self.prefix)


def quiet() -> None:
    """Silence the log lines and warnings that are known to be harmless, and no others.

    Call it before transformers, peft or bitsandbytes are imported. Calling it again changes nothing.

    Examples
    --------
    >>> quiet(); quiet()
    >>> len([f for f in logging.getLogger("bitsandbytes.backends.cpu.ops").filters if isinstance(f, _DropHarmless)])
    1
    """
    for logger_name, prefix in _HARMLESS:
        logger = logging.getLogger(logger_name)
        if not any(isinstance(f, _DropHarmless) and f.prefix == prefix for f in logger.filters):
            logger.addFilter(_DropHarmless(prefix))
    for category, begins in _HARMLESS_WARNINGS:
        warnings.filterwarnings("ignore", begins, category)


@contextlib.contextmanager
def no_progress_bars() -> Iterator[None]:
    """Keep transformers' bars off for what takes a second or two."""
    from transformers.utils import logging as transformers_logging

    were_on = transformers_logging.is_progress_bar_enabled()
    transformers_logging.disable_progress_bar()
    try:
        yield
    finally:
        if were_on:
            transformers_logging.enable_progress_bar()


class Versions(dict[str, str]):
    """Names and versions; prints as one line."""

    def __str__(self) -> str:
        return ", ".join(f"{name} {version}" for name, version in self.items())


def versions() -> Versions:
    """Return the versions in use of Python, onegpu and the libraries it stands on, and of CUDA if there is one.

    A library that is imported reports what was imported, which after an upgrade without a restart isn't what is
    installed. What isn't installed is left out.

    Examples
    --------
    >>> found = versions()
    >>> found["python"] == platform.python_version(), str(found).startswith("python 3.")
    (True, True)
    """
    found = Versions(python=platform.python_version())
    for name in ("onegpu", *LIBRARIES):
        version = loaded_version(name) or installed_version(name)
        if version:
            found[name] = version
    torch = sys.modules.get("torch")
    if torch is not None and torch.version.cuda and torch.cuda.is_available():
        found["cuda"] = torch.version.cuda
    return found


def installed_version(name: str) -> str | None:
    """Return the version of a distribution on disk, None if there is none."""
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def loaded_version(name: str) -> str | None:
    """Return the version of a module that is imported already, None if it isn't or doesn't say."""
    version = getattr(sys.modules.get(name), "__version__", None)
    return None if version is None else str(version)


def hub_offline() -> bool:
    """Whether the environment asks for no use of the hub (``HF_HUB_OFFLINE``, ``TRANSFORMERS_OFFLINE``)."""
    from huggingface_hub import constants

    return bool(constants.HF_HUB_OFFLINE)


def hub_reachable(timeout_s: float = 3.0) -> tuple[bool, str]:
    """Ask the hub for a sign of life, and give up after ``timeout_s`` seconds, whatever hangs.

    The limit covers name resolution too, which sockets' own timeouts don't.

    Returns
    -------
    tuple of bool and str
        Whether it answered, and what happened in words.
    """
    from huggingface_hub import constants

    endpoint = constants.ENDPOINT
    if hub_offline():
        return False, "HF_HUB_OFFLINE is set"
    outcome: list[tuple[bool, str]] = []

    def ask() -> None:
        try:
            from huggingface_hub import get_session

            status = get_session().head(endpoint, timeout=timeout_s, follow_redirects=True).status_code
            # A proxy that forbids the host answers too, with 403 or 407.
            ok = status < 400 or status in (401, 404, 405)
            outcome.append((ok, f"{endpoint} answered with status {status}"))
        except Exception as error:
            outcome.append((False, f"{endpoint}: {error}"))

    thread = threading.Thread(target=ask, daemon=True)
    thread.start()
    thread.join(timeout_s)
    return outcome[0] if outcome else (False, f"{endpoint} did not answer within {timeout_s:g} s")
