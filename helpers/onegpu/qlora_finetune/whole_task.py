"""What ``onegpu finetune`` gave on the shipped task, as it was measured and stored: lesson 07 and the README show it.

A whole run takes minutes, too long for a notebook that CI executes; so ``tests/benchmarks/whole_task.py`` runs it, asks
the message of lesson 00 before and after, and writes ``whole_task.json`` beside this module.
"""

from __future__ import annotations

import json
from importlib.resources import files
from typing import Any

MESSAGE = "My order 4471 has not arrived. Where is it?"
"""What lesson 00 asks, and lesson 07 again."""


def whole_task() -> dict[str, Any]:
    """Return the stored run.

    Returns
    -------
    dict
        ``losses`` and ``eval_losses`` as (step, nats a token), ``before`` and ``after`` (``Scores``) over ``answered_rows``
        held-out rows, ``answers`` (``message``, ``before``, ``after``), ``trained`` and ``parameters`` (numbers),
        ``peak_memory_bytes`` (of the process), ``steps``, ``tokens``, ``machine``, ``precision``, ``versions``;
        ``few_shot`` (the untrained model with worked ``examples`` in its prompt, and with ``examples_and_labels``: ids,
        ``prompt_tokens``, ``scores``) and ``speed`` (``cpu_seconds`` of the first ``steps``, and their ``tokens``).

    Examples
    --------
    >>> whole_task()["answers"][0]["message"]
    'My order 4471 has not arrived. Where is it?'
    """
    return json.loads(files(__package__).joinpath("whole_task.json").read_text(encoding="utf-8"))
