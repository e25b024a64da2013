"""``python -m onegpu.notebooks build|run|check|text|from-text``: the same as ``onegpu notebooks ...``."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from onegpu import notebooks


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; return 0 if nothing is out of step."""
    parser = argparse.ArgumentParser(
        prog="onegpu notebooks", description="Build, execute and check the notebooks."
    )
    commands = parser.add_subparsers(dest="command", required=True)
    build = commands.add_parser("build", help="badges, setup cells, and labs/ from solutions/")
    build.add_argument(
        "--nbgrader",
        metavar="DIR",
        type=Path,
        help="write nbgrader's source tree into DIR instead: each solution an assignment, each check a point",
    )
    run = commands.add_parser("run", help="execute course/ and solutions/ and store their outputs")
    run.add_argument("paths", nargs="*", type=Path)
    commands.add_parser("check", help="say what is out of step")
    text = commands.add_parser("text", help="print a notebook as Markdown text")
    text.add_argument("path", type=Path)
    from_text = commands.add_parser("from-text", help="write a notebook from Markdown text")
    from_text.add_argument("text", type=Path)
    from_text.add_argument("path", type=Path)
    chosen = parser.parse_args(arguments)
    try:
        if chosen.command == "text":
            print(notebooks.to_text(notebooks.files.read(chosen.path)), end="")
            return 0
        if chosen.command == "from-text":
            notebook = notebooks.from_text(chosen.text.read_text(encoding="utf-8"))
            notebooks.files.write(chosen.path, notebook)
            return 0
        if chosen.command == "run":
            report = notebooks.run(chosen.paths)
        elif chosen.command == "build" and chosen.nbgrader is not None:
            report = notebooks.build_nbgrader(chosen.nbgrader)
        else:
            report = getattr(notebooks, chosen.command)()
    except (notebooks.NotebookError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    print(report)
    return 0 if report.ok else 1


if __name__ == "__main__":
    sys.exit(main())
