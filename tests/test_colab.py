"""The setup cell on a fake of Colab's image: what pip is asked to do, and what is said.

The image's versions are those of constraints-colab.txt, given as package metadata; pip is recorded instead of run.
"""

import importlib.metadata
import importlib.util
import re
import sys
from pathlib import Path
from types import ModuleType

import pytest
from IPython.core.inputtransformer2 import TransformerManager
from onegpu.notebooks import setup as colab_setup
from onegpu.notebooks.files import repository
from onegpu.notebooks.parts import ref, setup_source

IMAGE = Path(__file__).resolve().parents[1] / "constraints-colab.txt"
NOT_ON_IMAGE = {"bitsandbytes", "gguf", "hypothesis", "nbval", "jupyterlab", "ray", "tensorboardx"}
NEVER_TOUCHED = re.compile(r"\b(torch|numpy|pyarrow|ipywidgets|pandas|transformers|datasets)\b(?!ao)")


def image_versions():
    pins = dict(
        line.strip().split("==") for line in IMAGE.read_text(encoding="utf-8").splitlines() if "==" in line
    )
    return pins | {"torch": f"{pins['torch']}+cu128"}


@pytest.fixture
def colab(monkeypatch):
    """Colab's package versions, and a pip that only writes down what it is asked."""
    versions = {name: v for name, v in image_versions().items() if name not in NOT_ON_IMAGE}
    asked = []

    def version(name):
        normal = name.lower().replace("_", "-")
        if normal == "onegpu":
            return "0.1.0"
        if normal not in versions:
            raise importlib.metadata.PackageNotFoundError(name)
        return versions[normal]

    def pip(arguments):
        asked.append(list(arguments))

    for name in ("google", "google.colab"):
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    monkeypatch.setattr(importlib.metadata, "version", version)
    # Nothing is loaded when the cell runs first.
    monkeypatch.setattr("onegpu.runtime.environment.loaded_version", lambda name: None)
    monkeypatch.setattr(colab_setup, "_pip", pip)
    pip.asked, pip.versions = asked, versions
    return pip


def run_setup_cell(monkeypatch, asked, *, here=False):
    """Run the cell as IPython would, with `%pip` recorded; onegpu appears once it is installed."""
    find = importlib.util.find_spec
    state = {"installed": here}

    class Shell:
        def run_line_magic(self, magic, line):
            asked.append([f"%{magic}", line.format(WHERE=names["WHERE"])])  # as IPython does
            state["installed"] = True

    def find_spec(name, *args):
        return find(name, *args) if name != "onegpu" or state["installed"] else None

    monkeypatch.setattr(importlib.util, "find_spec", find_spec)
    code = TransformerManager().transform_cell(setup_source(repository()))
    names = {"get_ipython": Shell}
    exec(compile(code, "setup", "exec"), names)


def test_the_cell_installs_the_package_without_dependencies_then_only_what_is_missing(
    colab, monkeypatch, capsys
):
    run_setup_cell(monkeypatch, colab.asked)
    assert colab.asked[0] == ["%pip", f'install -q --no-deps "onegpu @ git+{repository()}@{ref()}"']
    assert colab.asked[1][:3] == ["install", "-q", "--no-deps"]
    assert sorted(re.split(r"[>=<]", r)[0] for r in colab.asked[1][3:]) == ["bitsandbytes", "gguf"]
    assert colab.asked[2] == ["uninstall", "-q", "-y", "torchao"]
    assert len(colab.asked) == 3
    out = capsys.readouterr().out
    assert out.count("\n") == 1
    assert "installed bitsandbytes" in out
    assert "removed torchao 0.10.0 (peft needs 0.16.0 or none)" in out


def test_pip_is_never_asked_to_replace_what_is_loaded(colab, monkeypatch):
    run_setup_cell(monkeypatch, colab.asked)
    for arguments in colab.asked:
        words = " ".join(arguments).replace("onegpu @ git+", "")
        assert not NEVER_TOUCHED.search(words), words
        assert "-U" not in arguments
        assert "--upgrade" not in words


def test_a_second_run_installs_nothing(colab, monkeypatch, capsys):
    colab.versions.update(bitsandbytes="0.50.2", gguf="0.19.0")
    del colab.versions["torchao"]
    run_setup_cell(monkeypatch, colab.asked, here=True)
    assert colab.asked == []
    assert " | installed" not in capsys.readouterr().out


def test_a_new_enough_torchao_stays(colab, monkeypatch):
    colab.versions["torchao"] = "0.16.0"
    run_setup_cell(monkeypatch, colab.asked, here=True)
    assert not any("torchao" in " ".join(a) for a in colab.asked)


def test_loaded_and_installed_versions_that_differ_ask_for_a_restart(colab, monkeypatch, capsys):
    monkeypatch.setattr(
        "onegpu.runtime.environment.loaded_version", lambda name: "2.0.2" if name == "numpy" else None
    )
    run_setup_cell(monkeypatch, colab.asked, here=True)
    assert "Restart needed (numpy: 2.0.2 is loaded, 2.1.3 is installed)" in capsys.readouterr().out


def test_a_runtime_that_is_too_old_is_named_and_left_alone(colab, monkeypatch, capsys):
    colab.versions["transformers"] = "4.57.0"
    run_setup_cell(monkeypatch, colab.asked, here=True)
    assert "transformers 4.57.0, needed >=5.13" in capsys.readouterr().out
    assert not any("transformers" in " ".join(a) for a in colab.asked)


def test_elsewhere_the_cell_only_looks(monkeypatch, capsys):
    asked = []
    monkeypatch.setattr(colab_setup, "_pip", asked.append)
    run_setup_cell(monkeypatch, asked, here=True)
    assert asked == []
    assert capsys.readouterr().out.startswith("onegpu ")


def test_elsewhere_without_the_package_the_cell_says_what_to_do(monkeypatch):
    asked = []
    with pytest.raises(ModuleNotFoundError) as error:
        run_setup_cell(monkeypatch, asked)
    assert f'%pip install "onegpu @ git+{repository()}@{ref()}"' in str(error.value)
    assert asked == []


def test_on_kaggle_the_cell_installs_as_on_colab(colab, monkeypatch):
    for name in ("google", "google.colab"):
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setenv("KAGGLE_KERNEL_RUN_TYPE", "Interactive")
    run_setup_cell(monkeypatch, colab.asked)
    assert colab.asked[0][0] == "%pip"
    assert colab.asked[1][:2] == ["install", "-q"]


def test_ipython_puts_the_address_into_the_line_for_pip():
    from IPython.core.interactiveshell import InteractiveShell

    shell = InteractiveShell()
    lines = []
    shell.register_magic_function(lines.append, magic_name="pip")
    source = setup_source(repository()).splitlines()
    where = next(line for line in source if line.startswith("WHERE"))
    shell.run_cell(where + "\n" + next(line.strip() for line in source if "%pip" in line))
    assert lines == [f'install -q --no-deps "onegpu @ git+{repository()}@{ref()}"']


def test_the_lower_bounds_admit_the_image():
    from packaging.requirements import Requirement

    versions = image_versions()
    for text in importlib.metadata.requires("onegpu"):
        requirement = Requirement(text)
        if requirement.name in versions and not requirement.marker:
            assert requirement.specifier.contains(versions[requirement.name]), text


def test_an_extra_is_installed_under_constraints_of_all_that_is_here(colab):
    colab_setup.install_extra("ray", pip=colab)
    (arguments,) = colab.asked
    assert arguments[:3] == ["install", "-q", "-c"]
    assert any(a.startswith("ray[data,train]") for a in arguments)


def test_an_extra_that_is_here_is_not_installed(colab):
    colab.versions.update(ray="2.60.0", aiohttp="3.13.0")
    colab_setup.install_extra("ray", pip=colab)
    assert colab.asked == []


def test_on_a_machine_of_ones_own_a_missing_extra_is_said_and_not_installed(monkeypatch):
    asked = []
    version = importlib.metadata.version
    monkeypatch.setattr(
        importlib.metadata,
        "version",
        lambda name: version("no-such-package" if name == "ray" else name),
    )
    with pytest.raises(ModuleNotFoundError, match=r'ray missing: run %pip install "ray\[data,train\]'):
        colab_setup.install_extra("ray", pip=asked.append)
    assert asked == []


def test_an_unknown_extra_is_named(colab):
    with pytest.raises(ValueError, match="no extra 'rya'"):
        colab_setup.install_extra("rya", pip=colab)


def test_a_failing_pip_says_what_failed(monkeypatch):
    with pytest.raises(RuntimeError, match=r"pip install --no-index .* failed"):
        colab_setup._pip(["install", "--no-index", "no-such-package-for-onegpu"])


def test_the_map_links_to_colab_there_and_to_files_elsewhere():
    from onegpu.notebooks.overview import _table

    assert (
        f"{repository().replace('https://github.com/', 'colab.research.google.com/github/')}/blob/{ref()}/labs/04"
        in _table(True)
    )
    assert "](../labs/04_quantization.ipynb)" in _table(False)
