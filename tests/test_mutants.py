"""Every solution with a small fault is rejected by its check: hundreds of slips, made by `mutants`.

What computes the same is listed in tests/wrong_answers under EQUIVALENT, with the reason.
"""

import ast
import dataclasses
from functools import cache
from pathlib import Path

import nbformat
import pytest
from answer_files import FILES
from mutants import mutants
from onegpu.exercises import checking, examine, exercises_of
from onegpu.exercises.execution import parameters_of
from onegpu.exercises.exercise import TOPICS

ROOT = Path(__file__).resolve().parents[1]
EXERCISES = [exercise for topic in TOPICS for exercise in exercises_of(topic)]


@cache
def solution(topic):
    """The names of a solution notebook that its functions need, and each solved function's source."""
    space, sources = {}, {}
    paths = list((ROOT / "solutions").glob(f"{topic:02d}_*.ipynb"))
    for cell in nbformat.read(paths[0], 4).cells if paths else ():
        if cell.cell_type != "code" or "%pip" in cell.source:
            continue
        nodes = ast.parse(cell.source.replace("%", "#%") if cell.source.startswith("%") else cell.source).body
        defines = "### BEGIN SOLUTION" in cell.source and any(isinstance(n, ast.FunctionDef) for n in nodes)
        for node in nodes:
            if isinstance(node, ast.Import | ast.ImportFrom) or (
                defines and isinstance(node, ast.FunctionDef | ast.ClassDef | ast.Assign)
            ):
                exec(ast.unparse(node), space)
            if defines and isinstance(node, ast.FunctionDef):
                sources[node.name] = ast.unparse(node)
    return space, sources


def source_of(exercise):
    space, sources = solution(exercise.topic)
    if exercise.function_name in sources:
        return space, sources[exercise.function_name]
    return None


def constants(exercise):
    """For each parameter that takes plain numbers or texts: the values of the first two cases."""
    names, values = parameters_of(exercise.reference) or (), {}
    for case in exercise.cases[:2]:
        for name, value in zip(names, checking._arguments(case), strict=False):
            if isinstance(value, int | float | str | bool):
                values.setdefault(name, []).append(value)
    return {name: dict.fromkeys(found) for name, found in values.items()}


def trained(exercise):
    """The parameters that a case asks a gradient for."""
    names = parameters_of(exercise.reference) or ()
    return {
        name
        for case in exercise.cases
        for name, value in zip(names, checking._arguments(case), strict=False)
        if getattr(value, "requires_grad", False) is True
    }


def survivors(exercise):
    """How many mutants there are, and the names of those that the check accepts."""
    space, source = source_of(exercise)
    quick = dataclasses.replace(exercise, time_limit_s=0.5)
    count, alive = 0, []
    for name, text in mutants(source, constants(exercise), trained(exercise)):
        mine = dict(space)
        exec(text, mine)
        count += 1
        if examine(quick, mine[exercise.function_name]).status != "wrong":
            alive.append(name)
    return count, alive


@pytest.mark.parametrize("exercise", EXERCISES, ids=lambda exercise: exercise.number)
def test_every_slip_is_caught(exercise):
    if source_of(exercise) is None:
        pytest.skip(f"{exercise.function_name} is in no solution notebook: lesson 00 has it")
    listed = {
        name: why
        for answers in FILES.values()
        for name, why in answers.equivalents.get(exercise.number, {}).items()
    }
    count, alive = survivors(exercise)
    assert count
    new = [name for name in alive if name not in listed]
    assert not new, (
        f"{exercise.number}: {len(new)} of {count} slips are accepted: add a case that tells them apart, or list them "
        "with ANSWERS.equivalent in tests/wrong_answers:\n  " + "\n  ".join(new)
    )
