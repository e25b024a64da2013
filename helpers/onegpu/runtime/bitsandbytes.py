"""bitsandbytes, imported in a tenth of a second instead of several."""

from __future__ import annotations

import contextlib
import functools
import importlib
import sys
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

from onegpu.runtime.environment import quiet


def import_bitsandbytes() -> ModuleType:
    """Import bitsandbytes without the compiler that it asks for and hardly ever uses; return the module.

    At its import it hands four functions to ``torch.compile``, which loads torch's compiler (dynamo and inductor, half of
    all that a command line waits for). Here they are compiled when one of them is first called. Call this wherever
    bitsandbytes may be needed for the first time, also by transformers or peft.

    Examples
    --------
    >>> import_bitsandbytes().__name__
    'bitsandbytes'
    """
    if "bitsandbytes" not in sys.modules:
        quiet()
        with _compiling_later():
            importlib.import_module("bitsandbytes")
    return sys.modules["bitsandbytes"]


@contextlib.contextmanager
def _compiling_later() -> Iterator[None]:
    import torch

    at_once = torch.compile

    def later(function: Callable | None = None, **options: Any) -> Callable:
        if function is None:
            return functools.partial(later, **options)
        compiled = functools.cache(lambda: at_once(function, **options))

        @functools.wraps(function)
        def call(*args: Any, **kwargs: Any) -> Any:
            return compiled()(*args, **kwargs)

        return call

    torch.compile = later
    try:
        yield
    finally:
        torch.compile = at_once
