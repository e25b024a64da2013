"""The generated parts of a notebook: Colab badge, setup cell, last cell with links, metadata, cell ids.

They are made from the repository's address and the package's version, so that a fork or a school's copy needs one
change in pyproject.toml and one ``onegpu notebooks build``.
"""

from __future__ import annotations

import hashlib
import re
from typing import Any

import onegpu
from onegpu.notebooks.overview import BADGE_IMAGE, TOPICS

BADGE = re.compile(r"^\[!\[[^\]]*\]\(" + re.escape(BADGE_IMAGE) + r"\)\]\([^)]*\)$", re.M)
EXERCISE = re.compile(r"^(#{2,3} (\d\.\d+)\b.*)\n*(?:^\*(?:Warm-up|Core|Stretch)\b.*\n*)?", re.M)
"""An exercise's heading, with the line of facts under it where there is one."""
SETUP_TAG = "setup"
FOOTER = "**Go on:** "
METADATA = {
    "accelerator": "GPU",
    "colab": {"gpuType": "T4", "provenance": []},
    "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
    "language_info": {"name": "python"},
}


def lesson_minutes(notebook: Any) -> float:
    """Estimate the minutes that a lesson takes a first reader: 150 words a minute, a minute a cell of code, one a guess.

    What a lesson's long cells run comes on top. Nobody has stood beside readers with a watch; 00_start_here says so.
    """
    words = sum(
        len(re.sub(r"^(```|~~~).*?^\1", "", cell.source, flags=re.S | re.M).split())
        for cell in notebook.cells
        if cell.cell_type == "markdown" and not is_footer(cell)
    )
    code = [cell.source for cell in notebook.cells if cell.cell_type == "code" and not is_setup(cell)]
    return words / 150 + len(code) + sum(source.count("reveal(") for source in code)


def ref() -> str:
    """Return the git tag that badges and setup cells name: a class stays on the version it began with."""
    return f"v{onegpu.__version__}"


def badge(place: str, address: str) -> str:
    """Return the badge that opens a notebook on Colab.

    Parameters
    ----------
    place
        Path from the repository's root, such as "labs/04_quantization.ipynb".
    address
        The repository's (``files.repository``).

    Examples
    --------
    >>> badge("labs/04_quantization.ipynb", "https://github.com/school/course").partition("/github/")[2]
    'school/course/blob/v0.1.0/labs/04_quantization.ipynb)'
    """
    owner_name = address.removeprefix("https://github.com/")
    url = f"https://colab.research.google.com/github/{owner_name}/blob/{ref()}/{place}"
    return f"[![Open in Colab]({BADGE_IMAGE})]({url})"


def setup_source(address: str) -> str:
    """Return the source of the setup cell, the same in every notebook.

    Colab and Kaggle are machines of one session: there it installs what is missing. Elsewhere it says the line that
    does, and installs nothing.
    """
    return "\n".join(
        [
            "# Made by `onegpu notebooks build`. On Colab and Kaggle it installs what is missing.",
            "import importlib.util",
            "import os",
            "import sys",
            "",
            f'WHERE = "onegpu @ git+{address}@{ref()}"',
            'HOSTED = "google.colab" in sys.modules or "KAGGLE_KERNEL_RUN_TYPE" in os.environ',
            'if HOSTED and importlib.util.find_spec("onegpu") is None:',
            '    %pip install -q --no-deps "{WHERE}"',
            'if importlib.util.find_spec("onegpu") is None:',
            """    message = f'onegpu is missing: run %pip install "{WHERE}" and restart the kernel'""",
            "    raise ModuleNotFoundError(message)",
            "from onegpu.notebooks.setup import setup",
            "",
            "setup()",
        ]
    )


def footer_source(place: str, address: str) -> str:
    """Return the last cell: where to go from this notebook, as links that work here, on GitHub and on Colab.

    Colab opens one file and has no folder around it, so each link stands twice: relative, and to Colab.

    Parameters
    ----------
    place
        Path from the repository's root, such as "labs/04_quantization.ipynb".
    address
        The repository's (``files.repository``).
    """
    folder, _, file = place.partition("/")
    number = int(file[:2]) if file[:2].isdigit() else -1
    here = next((topic for topic in TOPICS if topic.file == file), None)
    after = next((topic for topic in TOPICS if topic.number == number + 1), None)
    places = []
    if here is not None and folder != "course":
        places.append(("course", here.file, f"lesson {here.title}"))
    if here is not None and folder != "labs":
        places.append(("labs", here.file, f"lab {here.title}"))
    if after is not None:
        places.append(("course", after.file, f"lesson {after.title}"))
    if folder != "course" or number != 0:
        places.append(("course", "00_start_here.ipynb", "start and map"))
    base = address.removeprefix("https://github.com/")
    colab = f"https://colab.research.google.com/github/{base}/blob/{ref()}"
    near = [f"[{text}]({'' if at == folder else f'../{at}/'}{name})" for at, name, text in places]
    near.append(f"[glossary]({'' if folder == 'course' else '../course/'}glossary.md)")
    far = [f"[{text}]({colab}/{at}/{name})" for at, name, text in places]
    far.append(f"[glossary]({address}/blob/{ref()}/course/glossary.md)")
    return f"{FOOTER}{' · '.join(near)}\n\nOn Colab: {' · '.join(far)}"


def with_badge(source: str, place: str, address: str) -> str:
    """Return a first cell with the right badge: in place of the one it has, else under the title."""
    right = badge(place, address)
    if BADGE.search(source):
        return BADGE.sub(lambda _: right, source, count=1)
    title, _, rest = source.partition("\n")
    return f"{title}\n\n{right}\n\n{rest.lstrip()}".rstrip()


def with_facts(source: str) -> str:
    """Return a Markdown cell with the facts of an exercise under its heading ("## 4.3 ..."): level, minutes, hint.

    They stand in one place, the exercise's own module (``onegpu.exercises.Exercise.facts``).
    """
    from onegpu.exercises import NoSuchExercise, find

    def line(heading: re.Match[str]) -> str:
        try:
            return f"{heading[1]}\n\n{find(heading[2]).facts}\n\n"
        except NoSuchExercise:
            return heading[0]

    return EXERCISE.sub(line, source).rstrip()


def is_setup(cell: Any) -> bool:
    """Whether this is the setup cell, by its tag."""
    return cell.cell_type == "code" and SETUP_TAG in cell.metadata.get("tags", [])


def is_footer(cell: Any) -> bool:
    """Whether this is the generated last cell, by its first words."""
    return cell.cell_type == "markdown" and cell.source.startswith(FOOTER)


def prepare(notebook: Any, place: str, address: str) -> Any:
    """Put badge, setup cell, facts of exercises, last cell, metadata and stable cell ids into a notebook, in place, and return it."""
    import nbformat

    cells = notebook.cells
    if not cells or cells[0].cell_type != "markdown":
        cells.insert(0, nbformat.v4.new_markdown_cell("# " + place.rpartition("/")[2].removesuffix(".ipynb")))
    cells[0].source = with_badge(cells[0].source, place, address)
    if not place.startswith("course/"):
        for cell in cells:
            if cell.cell_type == "markdown":
                cell.source = with_facts(cell.source)
    setup = next((cell for cell in cells if is_setup(cell)), None)
    if setup is None:
        setup = nbformat.v4.new_code_cell()
    else:
        cells.remove(setup)
    setup.metadata = nbformat.from_dict({"tags": [SETUP_TAG, "hide-input"]})  # folded on the site
    setup.source = setup_source(address)
    cells.insert(1, setup)
    cells[:] = [cell for cell in cells if not is_footer(cell)]
    cells.append(nbformat.v4.new_markdown_cell(footer_source(place, address)))
    executed = notebook.metadata.get("onegpu")
    notebook.metadata = nbformat.from_dict(METADATA | ({"onegpu": executed} if executed else {}))
    notebook.nbformat, notebook.nbformat_minor = 4, 5
    number_cells(notebook)
    return notebook


def number_cells(notebook: Any) -> None:
    """Give each cell an id made from its text, so that two builds are equal and a diff shows what changed."""
    seen: dict[str, int] = {}
    for cell in notebook.cells:
        cell.source = cell.source.rstrip()
        count = seen[cell.source] = seen.get(cell.source, 0) + 1
        cell.id = hashlib.sha1(f"{cell.cell_type}:{cell.source}:{count}".encode()).hexdigest()[:8]
