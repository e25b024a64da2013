"""The rules on what a reader reads: each finds its fault in a small bad notebook, and nothing in a good one."""

import nbformat
import pytest
from onegpu.notebooks import from_text
from onegpu.notebooks.files import root
from onegpu.notebooks.prose import EVERYDAY, glossary_terms, problems_of_prose

GLOSSARY = """# Glossary

| English | Korean | What it means here | Topic |
|---|---|---|---|
| <a id="mask"></a>mask, loss mask | 마스크 | Which tokens count | [01](01_sft_datasets.ipynb) |
| <a id="ppo"></a>PPO | PPO | A method | [02](02_preference_data.ipynb) |
| <a id="step"></a>step | 스텝 | One update | [05](05_gpu_memory.ipynb) |
"""


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "course").mkdir()
    (tmp_path / "course" / "glossary.md").write_text(GLOSSARY)
    (tmp_path / "course" / "02_other.ipynb").write_text("{}")
    return tmp_path


def problems(text, folder, place="course/02_lesson.ipynb", output=None):
    notebook = from_text(text)
    if output is not None:
        notebook.cells[-1].outputs = [nbformat.v4.new_output("stream", name="stdout", text=output)]
    return list(problems_of_prose(notebook, place, folder))


@pytest.mark.parametrize(
    "call",
    [
        'plots.show(figure, "The mask covers 12 tokens of a row.")',
        'plots.show(figure, f"The mask covers {n} of 12 tokens.")',
        'plots.show(figure, "The mask covers " + "12 tokens of a row.")',
        'figure = plots.captioned(figure, "Twice as many at 0.5 as elsewhere.")',
        'plots.show(figure, "Rows of 1,000 tokens are cut in two.")',
    ],
)
def test_a_typed_number_in_a_caption(call, folder):
    (found,) = problems(f"# Title\n\n```python\n{call}\n```\n", folder)
    assert "is typed into a caption" in found


@pytest.mark.parametrize(
    "call",
    [
        'plots.show(figure, f"The mask covers {n} of {len(row):,} tokens.")',
        'plots.show(figure, "SmolLM2-135M in NF4, on a T4, in lesson-2 style.")',
        "plots.show(figure)",
        'print("12 tokens")',
        'plots.show(draw(12), "All of them are masked here.")',
    ],
)
def test_captions_that_are_right(call, folder):
    assert problems(f"# Title\n\n```python\n{call}\n```\n", folder) == []


@pytest.mark.parametrize(
    "output", ["True\n", "lower loss: True\n", "(True, False)\n", "equal = False\n", "a\nsame: True\n"]
)
def test_a_verdict_for_a_result(output, folder):
    (found,) = problems("# Title\n\n```python\nrun()\n```\n", folder, output=output)
    assert "shows a verdict" in found


def test_a_true_inside_other_text_is_none(folder):
    assert (
        problems("# Title\n\n```python\nrun()\n```\n", folder, output="load_in_4bit=True, rank 8\n0.197\n")
        == []
    )


def test_a_line_that_is_too_wide(folder):
    line = "x = " + "1" * 90
    (found,) = problems(f"# Title\n\n```python\n{line}\n```\n", folder)
    assert "a line of 94 columns, at most 88" in found


@pytest.mark.parametrize(
    "target", ["03_missing.ipynb", "../labs/02_lesson.ipynb", "glossary.md#nothing", "htps://x.org/a"]
)
def test_a_link_that_leads_nowhere(target, folder):
    (found,) = problems(f"# Title\n\nSee [this]({target}).\n", folder)
    assert target.partition("#")[0] in found


@pytest.mark.parametrize(
    "target",
    ["02_other.ipynb", "glossary.md#mask", "https://arxiv.org/abs/2305.18290", "glossary.md#glossary"],
)
def test_links_that_are_right(target, folder):
    assert problems(f"# Title\n\nSee [this]({target}) and `[code](nowhere)`.\n", folder) == []


def test_a_term_that_nobody_explains(folder):
    (found,) = problems("# Title\n\nWe train with PPO.\n", folder)
    assert "'PPO' first stands here" in found
    assert "glossary.md#ppo" in found


@pytest.mark.parametrize(
    "text",
    [
        "We train with *PPO*, a method.",
        "We train with [PPO](glossary.md#ppo).",
        "**PPO** is a method, and PPO it stays.",
        "## PPO\n\nHere PPO comes.",
        "The mask was in lesson 01.",  # explained in an earlier lesson
        "One step after the other.",  # a word of every day
        "`PPO` in code, $PPO$ in a formula, and a PPOT.",
    ],
)
def test_terms_that_are_explained_linked_or_known(text, folder):
    assert problems(f"# Title\n\n{text}\n", folder) == []


def test_a_term_of_a_later_lesson_counts_too(folder):
    (found,) = problems("# Title\n\nWe train with PPO.\n", folder, place="course/00_lesson.ipynb")
    assert "'PPO'" in found


def test_labs_need_no_links_for_terms(folder):
    assert problems("# Title\n\nWe train with PPO.\n", folder, place="labs/02_lesson.ipynb") == []


def test_the_glossary_is_read_whole_and_the_lists_name_what_there_is():
    text = (root() / "course" / "glossary.md").read_text("utf-8")
    terms = glossary_terms(text)
    assert len(terms) == text.count("\n| ") - 1  # each row but the heading
    assert {name for _, names, _ in terms for name in names} >= EVERYDAY
