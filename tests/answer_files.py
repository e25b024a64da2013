"""The answers of tests/wrong_answers, one `Answers` a topic."""

import importlib.util
from pathlib import Path

from onegpu.exercises.exercise import TOPICS

FOLDER = Path(__file__).parent / "wrong_answers"


def load(name):
    path = FOLDER / f"{name}.py"
    spec = importlib.util.spec_from_file_location(f"wrong_answers_{name}", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.ANSWERS


FILES = {name: load(name) for name in TOPICS.values() if (FOLDER / f"{name}.py").is_file()}
ANSWERS = [answer for answers in FILES.values() for answer in answers]
