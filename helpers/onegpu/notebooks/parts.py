"""The generated parts of a notebook: Colab badge, setup cell, metadata, cell ids.

They are made from the repository's address and the package's version, so that a fork or a school's copy needs one
change in pyproject.toml and one `onegpu notebooks build`.
"""

from __future__ import annotations

import hashlib
import re
from typing import Any

import onegpu

BADGE_IMAGE = "https://colab.research.google.com/assets/colab-badge.svg"
BADGE = re.compile(r"^\[!\[[^\]]*\]\(" + re.escape(BADGE_IMAGE) + r"\)\]\([^)]*\)$", re.M)
SETUP_TAG = "setup"
METADATA = {
    "accelerator": "GPU",
    "colab": {"gpuType": "T4", "provenance": []},
    "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
    "language_info": {"name": "python"},
}


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
        The repository's (`files.repository`).

    Examples
    --------
    >>> badge("labs/04_quantization.ipynb", "https://github.com/school/course").partition("/github/")[2]
    'school/course/blob/v0.1.0/labs/04_quantization.ipynb)'
    """
    owner_name = address.removeprefix("https://github.com/")
    url = f"https://colab.research.google.com/github/{owner_name}/blob/{ref()}/{place}"
    return f"[![Open in Colab]({BADGE_IMAGE})]({url})"


def setup_source(address: str) -> str:
    """Return the source of the setup cell, the same in every notebook."""
    return "\n".join(
        [
            "# Made by `onegpu notebooks build`, the same in every notebook. On Colab it installs what is missing.",
            "import importlib.util",
            "import sys",
            "",
            'if "google.colab" in sys.modules and importlib.util.find_spec("onegpu") is None:',
            f'    %pip install -q --no-deps "onegpu @ git+{address}@{ref()}"',
            'if importlib.util.find_spec("onegpu") is None:',
            '    raise SystemExit("onegpu is not installed in this kernel: run `pip install -e .` in its repository.")',
            "from onegpu.notebooks.setup import setup",
            "",
            "setup()",
        ]
    )


def with_badge(source: str, place: str, address: str) -> str:
    """Return a first cell with the right badge: in place of the one it has, else under the title."""
    right = badge(place, address)
    if BADGE.search(source):
        return BADGE.sub(lambda _: right, source, count=1)
    title, _, rest = source.partition("\n")
    return f"{title}\n\n{right}\n\n{rest.lstrip()}".rstrip()


def is_setup(cell: Any) -> bool:
    """Whether this is the setup cell, by its tag."""
    return cell.cell_type == "code" and SETUP_TAG in cell.metadata.get("tags", [])


def prepare(notebook: Any, place: str, address: str) -> Any:
    """Put badge, setup cell, metadata and stable cell ids into a notebook, in place, and return it."""
    import nbformat

    cells = notebook.cells
    if not cells or cells[0].cell_type != "markdown":
        cells.insert(0, nbformat.v4.new_markdown_cell("# " + place.rpartition("/")[2].removesuffix(".ipynb")))
    cells[0].source = with_badge(cells[0].source, place, address)
    setup = next((cell for cell in cells if is_setup(cell)), None)
    if setup is None:
        setup = nbformat.v4.new_code_cell(metadata={"tags": [SETUP_TAG]})
    else:
        cells.remove(setup)
    setup.source = setup_source(address)
    cells.insert(1, setup)
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
