"""What is installed, what noise to keep quiet, and what is wrong here (`doctor`).

Each check is a function of what it looks at, so that a test can show it another machine.
"""

from __future__ import annotations

import logging
import threading

_HARMLESS = {
    # bitsandbytes 0.50 looks for an optional faster CPU kernel at import and warns when the `kernels`
    # package isn't installed; its own kernels do the work then.
    "bitsandbytes.backends.cpu.ops": "Failed to load CPU gemm_4bit_forward from kernels-community",
}


class _DropHarmless(logging.Filter):
    def __init__(self, prefix: str):
        super().__init__()
        self.prefix = prefix

    def filter(self, record: logging.LogRecord) -> bool:
        return not str(record.msg).startswith(self.prefix)


def quiet() -> None:
    """Silence the log lines that are known to be harmless, and no others.

    Call it before transformers, peft or bitsandbytes are imported. Calling it again changes nothing.

    Examples
    --------
    >>> quiet(); quiet()
    >>> len([f for f in logging.getLogger("bitsandbytes.backends.cpu.ops").filters if isinstance(f, _DropHarmless)])
    1
    """
    for logger_name, prefix in _HARMLESS.items():
        logger = logging.getLogger(logger_name)
        if not any(isinstance(f, _DropHarmless) for f in logger.filters):
            logger.addFilter(_DropHarmless(prefix))


def hub_offline() -> bool:
    """Whether the environment asks for no network use (`HF_HUB_OFFLINE`, `TRANSFORMERS_OFFLINE`)."""
    from huggingface_hub import constants

    return bool(constants.HF_HUB_OFFLINE)


def hub_reachable(timeout_s: float = 3.0) -> tuple[bool, str]:
    """Ask the hub for a sign of life, and give up after `timeout_s` seconds, whatever hangs.

    The timeout covers name resolution too, which sockets' own timeouts do not.

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
            outcome.append((False, f"{endpoint}: {type(error).__name__}: {error}"))

    thread = threading.Thread(target=ask, daemon=True)
    thread.start()
    thread.join(timeout_s)
    return outcome[0] if outcome else (False, f"{endpoint} did not answer within {timeout_s:g} s")
