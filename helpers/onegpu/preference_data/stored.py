"""DPO runs on the shipped rankings, as they were measured and stored: lesson 02 shows them.

Six runs take some twenty minutes, too long for a notebook that CI executes; so ``tests/benchmarks/dpo_runs.py`` takes the
functions out of the lesson, trains with them, and writes ``dpo_runs.json`` beside this module.
"""

from __future__ import annotations

import json
from importlib.resources import files
from typing import Any


def dpo_runs() -> dict[str, Any]:
    """Return the stored runs.

    Returns
    -------
    dict
        ``runs``: of each its ``learning_rate`` and ``seed``, its ``history`` (of each pair that was trained on, in order:
        margin before its step, whether the pair was new), ``held_out`` (implied rewards of the chosen and of the rejected
        answers), ``answers`` to what was ``asked``, and their ``nats_a_token`` under the model before training. ``before``
        and ``before_nats_a_token``: the same of that model. ``command_line``: a run of ``onegpu finetune --method dpo``,
        its ``command``, the tables of its ``report``, and ``logprobs_before``, the mean log-probabilities of the held-out
        pairs' ``chosen`` and ``rejected`` answers before the first step. ``machine``, ``versions``.

    Examples
    --------
    >>> [(run["learning_rate"], run["seed"]) for run in dpo_runs()["runs"]][::3]
    [(0.001, 0), (0.0002, 0)]
    """
    return json.loads(files(__package__).joinpath("dpo_runs.json").read_text(encoding="utf-8"))
