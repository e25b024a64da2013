"""What a student's process can't reach: by the system where it can, by hooks in Python where it can't."""

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from grading_samples import CHECK, SOME, lab
from onegpu.exercises import start_here
from onegpu.grading import Limits
from onegpu.grading.confinement import _landlock_version, environment, hidden_files
from onegpu.grading.examiner import examine_lab
from onegpu.grading.notebook import read_lab
from onegpu.notebooks.files import root

REFUSED = """import os, socket, subprocess
def refused(what):
    try:
        what()
    except (OSError, subprocess.SubprocessError):
        return True
    return False"""
landlock = pytest.mark.skipif(_landlock_version() < 1, reason="this system has no Landlock")


@pytest.fixture
def server():
    with socket.create_server(("127.0.0.1", 0)) as listening:
        yield listening.getsockname()[1]


def examined(condition):
    """Examine an answer that is right where a condition holds in the student's process."""
    found = examine_lab(read_lab(lab(REFUSED, SOME.format(condition), CHECK)), 0, Limits(cell_s=30))
    return found.outcomes["0.1"].status, found.confinement


@landlock
def test_files_of_others_are_out_of_reach(tmp_path):
    secret = tmp_path / "token"
    secret.write_text("x", encoding="utf-8")
    solution = root() / "solutions" / "02_preference_data.ipynb"
    assert solution.is_file()
    places = [secret, solution, Path(start_here.__file__), root() / "pyproject.toml"]
    conditions = [f"refused(lambda: open({str(place)!r}).read())" for place in places]
    conditions += [
        f"refused(lambda: subprocess.run(['cat', {str(secret)!r}], check=True))",
        f"refused(lambda: open({str(tmp_path / 'new')!r}, 'w'))",
        "refused(lambda: open(f'/proc/{os.getppid()}/environ').read())",
        "not refused(lambda: open('notes.txt', 'w'))",
    ]
    status, held = examined(" and ".join(conditions))
    assert status == "right"
    assert held.files == "kernel"


@pytest.mark.skipif(_landlock_version() < 6, reason="this system's Landlock doesn't know signals")
def test_the_examiner_can_t_be_ended():
    status, _ = examined("refused(lambda: os.kill(os.getppid(), 9))")
    assert status == "right"


def test_the_network_is_out_of_reach(server):
    status, held = examined(f"refused(lambda: socket.create_connection(('127.0.0.1', {server}), 2))")
    if held.network != "kernel":
        pytest.skip("this system has neither network namespaces for users nor Landlock's rule for TCP")
    assert status == "right"


def test_a_limit_of_memory_ends_a_cell_and_costs_nothing():
    cells = lab("x = bytearray(3 * 2**30)", SOME.format("'x' not in globals()"), CHECK)
    found = examine_lab(read_lab(cells), 0, Limits(cell_s=30, memory_bytes=2**30))
    if not found.confinement.memory:
        pytest.skip("this system limits no memory")
    assert found.outcomes["0.1"].status == "right"
    assert "MemoryError" in found.failed[1]


def test_no_variable_is_handed_on_that_a_lab_does_not_need(tmp_path, monkeypatch):
    monkeypatch.setenv("HF_TOKEN", "x")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "x")
    made = environment(tmp_path)
    assert not {"HF_TOKEN", "AWS_SECRET_ACCESS_KEY"} & set(made)
    assert made["HOME"] == made["TMPDIR"] == str(tmp_path)


def test_without_the_system_s_help_python_code_is_kept_off(tmp_path, server):
    code = f"""
import socket, sys
from pathlib import Path
from onegpu.grading import confinement
confinement._landlock_version = lambda: 0
confinement._own_network = lambda: False
print(*confinement.confine(Path({str(tmp_path)!r}), confinement.hidden_files()))
for what in (lambda: open({start_here.__file__!r}), lambda: open({str(root() / "solutions" / "x.ipynb")!r}),
             lambda: socket.create_connection(("10.255.255.1", 80), 2), lambda: socket.getaddrinfo("example.org", 80)):
    try:
        what()
    except PermissionError as error:
        print(error)
socket.create_connection(("127.0.0.1", {server})).close()
open({str(tmp_path / "own")!r}, "w").close()
"""
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False, env=dict(os.environ)
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [
        "python python",
        "not readable while a lab is graded: start_here.py",
        "not readable while a lab is graded: x.ipynb",
        "no network while a lab is graded: '10.255.255.1'",
        "no network while a lab is graded: 'example.org'",
    ]


def test_what_gives_answers_away_is_hidden():
    names = {path.name for path in hidden_files()}
    assert {"solutions", "tests", "start_here.py", "ray_scale_out.py"} <= names
    assert "checking.py" not in names
