"""The site: README, lessons, labs, pages for teachers and authors, and the API, built without a network.

    sphinx-build -W -c docs -b html . build/site

The source folder is the repository itself, so that the links of the notebooks and of the README hold on the site too.
"""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

from myst_nb.core.render import NbElementRenderer

ROOT = Path(__file__).resolve().parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]

project = PROJECT["name"]
author = "the onegpu authors"
copyright = "the onegpu authors"
release = PROJECT["version"]

extensions = [
    "myst_nb",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx.ext.viewcode",
    "sphinx_copybutton",
]
root_doc = "docs/index"
include_patterns = [
    "docs/**.md",
    "course/*",
    "labs/*.ipynb",
    "CONTRIBUTING.md",
    "CHANGELOG.md",
    "helpers/onegpu/data/README.md",
]
exclude_patterns = ["**/.ipynb_checkpoints", "docs/_*"]

nb_execution_mode = "off"  # the stored outputs are what CI compares
nb_merge_streams = True
myst_enable_extensions = ["dollarmath", "deflist"]
myst_heading_anchors = 3
suppress_warnings = [
    "mystnb.unknown_mime_type",  # a widget's view: its stored picture is beside it
    "myst.xref_missing",  # it doesn't see the glossary's anchors; tests/test_docs.py follows every link of the built site
    "ref.python",  # a field of a dataclass that has a namesake in another
    "misc.highlighting_failure",  # an output that happens to look like code
]

autodoc_member_order = "bysource"
autodoc_typehints = "none"  # the signature's are enough
napoleon_google_docstring = False
napoleon_use_rtype = False
napoleon_use_ivar = True  # fields of a dataclass are members already
default_role = "code"

html_theme = "sphinx_book_theme"
html_title = "onegpu"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_additional_pages = {"index": "to_start.html"}
templates_path = ["_templates"]
html_theme_options = {
    "repository_url": PROJECT["urls"]["Repository"],
    "use_repository_button": True,
    "use_download_button": False,
    "home_page_in_toc": True,
    "show_navbar_depth": 1,
    "navbar_persistent": [],  # the search field stands in the side bar
}
# Pages of source code: no table of contents beside them, which would take a fifth of the build.
html_sidebars = {"_modules/**": ["navbar-logo.html", "icon-links.html", "search-button-field.html"]}
html_context = {"default_mode": "auto"}


def _with_alt_text() -> None:
    """Give figures the alt text that their outputs carry; myst-nb reads only a cell's own settings."""
    render = NbElementRenderer.render_image

    def render_image(self, data):
        nodes = render(self, data)
        alt = data.output_metadata.get(data.mime_type, {}).get("alt")
        for node in nodes:
            if alt:
                node["alt"] = alt
        return nodes

    NbElementRenderer.render_image = render_image


_with_alt_text()


def _notebook_links(app, exception) -> None:
    """Lead links in outputs, such as the map's of lesson 00, to the pages; Sphinx does it in texts only."""
    for page in Path(app.outdir).rglob("*.html") if exception is None else ():
        text = page.read_text(encoding="utf-8")
        page.write_text(re.sub(r'(href="(?![a-z]+:)[^"]+)\.ipynb"', r'\1.html"', text), encoding="utf-8")


def setup(app) -> None:
    """Sphinx calls this."""
    app.connect("build-finished", _notebook_links)
