"""What ``build``, ``run`` and ``check`` say."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True)
class Report:
    """What was done and what is out of step.

    Attributes
    ----------
    command
        "build", "run" or "check".
    done
        Notebooks that were written (build, run) or looked at (check), as paths from the repository's root.
    problems
        One sentence each: the notebook, the cell, what was found, what to do.
    seconds
        How long each notebook took to execute, by path (run).
    """

    command: str
    done: tuple[str, ...] = ()
    problems: tuple[str, ...] = ()
    seconds: dict[str, float] = field(default_factory=dict)

    @property
    def ok(self) -> bool:
        """Whether nothing is out of step."""
        return not self.problems

    def __str__(self) -> str:
        verb = {"build": "wrote", "run": "executed", "check": "checked"}[self.command]
        lines = [f"{verb} {len(self.done)} notebook{'s' * (len(self.done) != 1)}"]
        if self.command != "check":
            lines += [
                f"  {path}" + (f"  {self.seconds[path]:.1f} s" if path in self.seconds else "")
                for path in self.done
            ]
        if self.problems:
            lines.append(f"{len(self.problems)} problem{'s' * (len(self.problems) != 1)}:")
            lines += [f"  {problem}" for problem in self.problems]
        return "\n".join(lines)
