"""What stands around the code: the version in each place, the release check, the hosted CI that calls our own."""

import re
import shutil
import subprocess
from pathlib import Path

import onegpu
import pytest

ROOT = Path(__file__).resolve().parents[1]


def test_the_version_is_the_same_in_every_place():
    pyproject = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    citation = (ROOT / "CITATION.cff").read_text(encoding="utf-8")
    found = {
        re.search(r'^version = "(.+)"', pyproject, re.M)[1],
        re.search(r"^version: (.+)", citation, re.M)[1],
    }
    assert found == {onegpu.__version__}


def test_the_address_is_the_same_in_every_place():
    from onegpu.notebooks.files import repository

    citation = (ROOT / "CITATION.cff").read_text(encoding="utf-8")
    assert re.search(r"^repository-code: (.+)", citation, re.M)[1] == repository()


def test_hosted_ci_runs_our_own_check():
    assert "run: bash .ci/run" in (ROOT / ".github" / "workflows" / "ci.yml").read_text(encoding="utf-8")


@pytest.mark.skipif(shutil.which("git") is None, reason="git is missing")
def test_the_release_check_wants_the_tag_and_its_notebooks(tmp_path):
    def git(*arguments):
        name = ["-c", "user.name=a", "-c", "user.email=a@example.org"]
        subprocess.run(["git", *name, *arguments], cwd=tmp_path, check=True, capture_output=True)

    def check_tag():
        return subprocess.run(
            ["bash", ".ci/check_tag"], cwd=tmp_path, capture_output=True, text=True, check=False
        )

    (tmp_path / "helpers" / "onegpu").mkdir(parents=True)
    (tmp_path / "course").mkdir()
    (tmp_path / ".ci").mkdir()
    shutil.copy(ROOT / ".ci" / "check_tag", tmp_path / ".ci")
    (tmp_path / "helpers" / "onegpu" / "__init__.py").write_text('__version__ = "1.2.3"\n')
    git("init", "-q")
    git("add", "-A")
    git("commit", "-qm", "one")
    missing = check_tag()
    assert missing.returncode == 1
    assert "git tag v1.2.3" in missing.stderr
    git("tag", "v1.2.3")
    assert check_tag().returncode == 0
    (tmp_path / "course" / "01_new.ipynb").write_text("{}")
    git("add", "-A")
    git("commit", "-qm", "two")
    late = check_tag()
    assert late.returncode == 1
    assert "v1.2.3 has no course/01_new.ipynb" in late.stderr


def test_what_the_tests_hand_out_first_exists(pytestconfig):
    conftest = pytestconfig.pluginmanager.get_plugin(str(ROOT / "conftest.py"))
    assert not [unit for unit in conftest.LONGEST if not (ROOT / unit).exists()]
