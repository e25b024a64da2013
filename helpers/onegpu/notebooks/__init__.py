"""The notebook system: labs made from solutions, stored outputs made stable, and a check of what is out of step.

solutions/ and course/ are what an author writes; everything else is generated. ``build`` makes the badges, the setup
cells and labs/; ``run`` executes course/ and solutions/ and stores their outputs; ``check`` says what is out of step and
which command mends it. On the command line: ``onegpu notebooks build|run|check``.

Read it in this order: ``files`` (where notebooks are), ``parts`` (badge, setup cell, metadata), ``labs`` (a lab from a
solution), ``execution``, ``rules`` and ``prose`` (what ``check`` looks for), ``text`` (notebooks as Markdown text), ``setup`` (what the setup
cell does on Colab).
"""

from onegpu.notebooks.building import build
from onegpu.notebooks.execution import run
from onegpu.notebooks.files import NotebookError
from onegpu.notebooks.nbgrader import build_nbgrader
from onegpu.notebooks.report import Report
from onegpu.notebooks.rules import check
from onegpu.notebooks.text import from_text, to_text

__all__ = ["NotebookError", "Report", "build", "build_nbgrader", "check", "from_text", "run", "to_text"]
