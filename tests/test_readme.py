"""What the README shows of a command is what the command prints; what it and the teachers' page say of minutes holds."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
from onegpu.notebooks.overview import TOPICS
from onegpu.qlora_finetune.whole_task import whole_task

ROOT = Path(__file__).resolve().parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
SHOWN = re.findall(r"```console\n\$ onegpu ([^\n]+)\n(.*?)```", README, re.S)


@pytest.mark.slow
@pytest.mark.parametrize(("command", "lines"), SHOWN, ids=[command for command, _ in SHOWN])
def test_the_shown_lines_are_what_the_command_prints(command, lines):
    done = subprocess.run(
        [sys.executable, "-m", "onegpu.cli", *command.split()], capture_output=True, text=True, check=True
    )
    printed = {line.strip() for line in done.stdout.splitlines()}
    assert [line for line in lines.splitlines() if line.strip() not in printed] == []


def test_the_scores_are_those_of_the_stored_run():
    stored = whole_task()
    before, after = stored["before"], stored["after"]
    rows = {
        "valid JSON": "valid_json",
        "intent right": "intent_accuracy",
        "urgency right": "urgency_accuracy",
    }
    for name, key in rows.items():
        assert f"| {name} | {before[key]:.0%} | {after[key]:.0%} |" in README
    assert f"| held-out loss, nats a token | {before['loss']:.2f} | {after['loss']:.2f} |" in README
    assert f"{stored['steps']} steps on {stored['tokens']:,} tokens" in README
    assert f"{stored['answered_rows']} of them" in README


def test_files_that_the_readme_links_to_are_there():
    for target in re.findall(r"\]\((\./[^)#]+)", README):
        assert (ROOT / target).exists(), target


def test_the_teachers_page_has_the_minutes_of_the_map():
    page = (ROOT / "docs" / "teachers.md").read_text(encoding="utf-8")
    for topic in TOPICS:
        assert f"lab {topic.number:02}, {topic.lab_minutes} minutes" in page
