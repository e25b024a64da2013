"""The house: imports only go down, importing the package loads nothing heavy, one name in five places."""

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "helpers" / "onegpu"

# Ground first; a module may import those before it. Names on one line stand on one floor and don't import each other.
FLOORS = (
    ("data",),
    ("runtime",),
    ("models",),
    ("doctor",),
    ("packed_training",),
    ("sft_datasets",),
    ("preference_data",),
    ("dtype_sizing",),
    ("quantization",),
    ("gpu_memory",),
    ("token_counting",),
    ("qlora_finetune",),
    ("ray_scale_out",),
    ("chat",),
    ("export",),
    ("exercises",),
    ("plots",),
    ("widgets",),
    ("notebooks",),
    ("grading",),
    ("cli",),
)
FLOOR = {name: level for level, names in enumerate(FLOORS) for name in names}


def modules():
    return sorted(
        {
            p.name if p.is_dir() else p.stem
            for p in PACKAGE.iterdir()
            if p.suffix == ".py" or (p / "__init__.py").is_file()
        }
        - {"__init__"}
    )


def imports_of(file: Path):
    """Names of the onegpu modules that a file imports, with the line."""
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.module == "onegpu":
            yield from ((alias.name, node.lineno) for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith("onegpu."):
            yield node.module.split(".")[1], node.lineno
        elif isinstance(node, ast.Import):
            yield from (
                (alias.name.split(".")[1], node.lineno)
                for alias in node.names
                if alias.name.startswith("onegpu.")
            )
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            # A module's name in a string, whole or the start of an f-string, is an import in disguise (importlib).
            found = re.match(r"onegpu\.(\w+)(\.\w*)*$", node.value)
            if found:
                yield found[1], node.lineno


def test_every_module_has_its_floor():
    assert set(modules()) <= set(FLOOR)


@pytest.mark.parametrize(
    ("line", "name"),
    [
        ("from onegpu import grading", "grading"),
        ("from onegpu.grading import Grade", "grading"),
        ("import onegpu.grading.x", "grading"),
        ("importlib.import_module('onegpu.grading')", "grading"),
        ("package = 'onegpu.grading'", "grading"),
        ("importlib.import_module(f'onegpu.grading.{name}')", "grading"),
        ("files('onegpu.data').joinpath('rankings.jsonl')", "data"),
    ],
)
def test_every_way_to_import_is_seen(tmp_path, line, name):
    file = tmp_path / "module.py"
    file.write_text(f"def f(name):\n    {line}\n")
    assert list(imports_of(file)) == [(name, 2)]


@pytest.mark.parametrize("module", modules())
def test_imports_only_go_down(module):
    path = PACKAGE / module
    files = sorted(path.rglob("*.py")) if path.is_dir() else [path.with_suffix(".py")]
    upward = [
        f"{file.relative_to(ROOT)}:{line} imports {name}, a floor above"
        for file in files
        for name, line in imports_of(file)
        if name in FLOOR and name != module and FLOOR[name] >= FLOOR[module]
    ]
    assert not upward, "\n".join(upward)


def test_importing_the_package_loads_nothing_heavy():
    code = "import sys, onegpu; print([m for m in ('torch', 'numpy', 'transformers', 'pyarrow') if m in sys.modules])"
    assert subprocess.check_output([sys.executable, "-c", code], text=True).strip() == "[]"


def lessons():
    return sorted(p.stem for p in (ROOT / "course").glob("0[1-9]_*.ipynb"))


@pytest.mark.parametrize("lesson", lessons())
def test_one_name_in_five_places(lesson):
    topic = lesson.split("_", 1)[1]
    assert topic in modules(), f"no helper module {topic}"
    assert (ROOT / "solutions" / f"{lesson}.ipynb").is_file()
    assert (ROOT / "labs" / f"{lesson}.ipynb").is_file()
    assert (ROOT / "tests" / f"test_{topic}.py").is_file() or (ROOT / "tests" / topic).is_dir()
    assert (PACKAGE / "exercises" / f"{topic}.py").is_file()
