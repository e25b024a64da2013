"""The command line's application and its entry point; one module a command stands beside it."""

from __future__ import annotations

import atexit
import gc
import os
import signal
import sys
import threading
from typing import Annotated

import typer

HELP = (
    "Fine-tune a language model on one small GPU, with every byte and every token accounted for. "
    "--debug, anywhere, shows the stack trace of an error."
)
app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)


def _version(asked: bool) -> None:
    if asked:
        import onegpu

        print(f"onegpu {onegpu.__version__}")
        raise typer.Exit


@app.callback(help=HELP)
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Options of ``onegpu`` itself."""


def _terminate(signum: int, frame: object) -> None:
    print("stopped", file=sys.stderr)
    raise SystemExit(128 + signum)


def main() -> None:
    """Run the command line (the entry point of ``onegpu``)."""
    # Threads that spin long while they wait stall each other where another process holds a core (30 times slower, on two
    # cores); threads that sleep at once lose a quarter of the speed on a quiet machine. Read when torch is imported, and
    # by the kernels of `onegpu lab`.
    os.environ.setdefault("GOMP_SPINCOUNT", "20000")
    # What the libraries make is millions of objects; looking for cycles among them on the way out takes a second.
    atexit.register(gc.freeze)
    debug = "--debug" in sys.argv
    arguments = [a for a in sys.argv[1:] if a != "--debug"]
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, _terminate)
    try:
        app(args=arguments, prog_name="onegpu")
    except SystemExit as ended:
        if ended.code == 128 + signal.SIGINT:  # what typer makes of Ctrl-C
            print("stopped", file=sys.stderr)
        raise
    except Exception as error:
        if debug:
            raise
        # ValueError and its like are ours and say what to do; anything else gets its kind named and the way to its trace.
        expected = isinstance(error, ValueError | OSError) or type(error).__module__.startswith("onegpu")
        message = str(error) if expected else f"{type(error).__name__}: {error} (--debug shows where)"
        status = getattr(error, "exit_status", 1)
        print(message if status > 1 else f"error: {message}", file=sys.stderr)
        sys.exit(status)
