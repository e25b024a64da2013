"""The site builds without a warning: no dead link, no docstring that doesn't render, every notebook in it."""

import importlib.util
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    if importlib.util.find_spec("myst_nb") is None:
        pytest.skip("myst-nb is missing: pip install -c constraints.txt -e '.[docs]'")
    folder = tmp_path_factory.mktemp("site")
    command = [
        sys.executable,
        "-m",
        "sphinx",
        "-q",
        "-W",
        "--keep-going",
        "-c",
        "docs",
        "-b",
        "html",
        ".",
        str(folder),
    ]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    return folder


@pytest.mark.slow
def test_every_notebook_and_page_is_on_the_site(site):
    sources = [*ROOT.glob("course/*.ipynb"), *ROOT.glob("labs/*.ipynb"), *ROOT.glob("docs/*.md")]
    missing = [s.name for s in sources if not (site / s.relative_to(ROOT)).with_suffix(".html").is_file()]
    assert not missing
    assert "url=docs/index.html" in (site / "index.html").read_text()


@pytest.mark.slow
def test_stored_figures_have_their_alt_text_on_the_site(site):
    images = re.findall(r"<img[^>]*_images/[^>]*>", (site / "course" / "03_dtype_sizing.html").read_text())
    assert images
    assert not [image for image in images if not re.search(r'alt="[^"]{20,}"', image)]


@pytest.mark.slow
def test_links_inside_the_site_lead_somewhere(site):
    pages = {p: p.read_text(encoding="utf-8") for p in site.rglob("*.html") if "_static" not in p.parts}
    broken = set()
    for page, text in pages.items():
        for link in re.findall(r'href="([^"?]+)"', text):
            target, _, place = link.partition("#")
            if re.match(r"[a-z]+:", link):
                continue
            file = (page.parent / target).resolve() if target else page
            found = pages.get(file, "")
            if not file.exists() or (place and found and f'id="{place}"' not in found):
                broken.add(f"{page.relative_to(site)} -> {link}")
    assert not broken
