"""Variants of a benchmark, each in a process of its own: nothing that one loads or allocates is there for the next."""

from __future__ import annotations

import argparse
import contextlib
import json
import subprocess
import sys
from collections.abc import Callable, Sequence
from typing import Any


def measure(
    file: str,
    about: str,
    variants: Sequence[str],
    run: Callable[[str, int], Any],
    on_request: Sequence[str] = (),
) -> dict[str, Any]:
    """Run each variant (or those asked for) and return what each found; a failed one is said and left out.

    Those of ``on_request`` run only where ``--only`` asks for them.

    Called again in the variant's process, it runs it, prints its result as JSON and exits.
    """
    parser = argparse.ArgumentParser(description=about, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--only", nargs="*", help="variants whose name holds one of these words")
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.worker:
        from onegpu import runtime

        runtime.quiet()
        with contextlib.redirect_stdout(sys.stderr):
            result = run(args.worker, args.steps)
        print(json.dumps(result))
        sys.exit()
    results = {}
    for variant in (*variants, *on_request):
        if not (any(word in variant for word in args.only) if args.only else variant in variants):
            continue
        command = [sys.executable, file, "--steps", str(args.steps), "--worker", variant]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            print(f"{variant}: failed\n{done.stderr[-2000:]}")
            continue
        results[variant] = json.loads(done.stdout.strip().splitlines()[-1])
    return results
