"""Grade a class: collect, examine each notebook once, keep the results, count each student once."""

from __future__ import annotations

import contextlib
import hashlib
import json
import re
import signal
from collections.abc import Iterator, Mapping
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, replace
from functools import cache
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from onegpu.exercises import exercises_of
from onegpu.exercises.exercise import TOPICS
from onegpu.grading.collecting import Submission, collect, commonest
from onegpu.grading.confinement import PACKAGE
from onegpu.grading.examiner import Limits, examine_lab, not_found
from onegpu.grading.notebook import Lab, Unreadable, read_lab
from onegpu.grading.results import Grade, Grades, all_failed


@dataclass(frozen=True)
class _Work:
    """One notebook to be examined, and what came of it."""

    submission: Submission
    lab: Lab | None
    topic: int | None
    problem: str = ""
    grades: tuple[Grade, ...] = ()
    notes: tuple[str, ...] = ()
    confinement: str = ""

    @property
    def score(self) -> int:
        return sum(grade.status == "right" for grade in self.grades)

    @property
    def attempted(self) -> int:
        return sum(grade.status not in ("failed", "not attempted") for grade in self.grades)


def grade(
    source: Path | str,
    *,
    lab: int | None = None,
    limits: Limits = Limits(),  # noqa: B008
    jobs: int = 1,
    kept: Path | None = None,
) -> Grades:
    """Grade what a class handed in.

    Parameters
    ----------
    source
        A folder, a zip or a notebook; ``collecting`` says which layouts are known.
    lab
        The lab's number. By default each notebook's own, and for a file that can't be read the one that most of the
        class's notebooks are of.
    limits
        Time and memory for a notebook.
    jobs
        How many notebooks are examined at a time.
    kept
        A folder for results: a notebook that was examined before, with this version of the course, isn't run again.

    Raises
    ------
    ValueError
        When there is nothing to grade, or no such lab.
    """
    if lab is not None and not (lab in TOPICS and exercises_of(lab)):
        raise ValueError(f"there is no lab {lab}: expected a number from {min(TOPICS)} to {max(TOPICS)}.")
    if jobs < 1:
        raise ValueError(f"jobs is {jobs}, expected at least 1.")
    works = [_prepared(submission) for submission in collect(Path(source))]
    usual = lab if lab is not None else commonest([work.topic for work in works])
    if usual is None:
        reasons = "; ".join(dict.fromkeys(f"{w.submission.place}: {w.problem}" for w in works[:3]))
        raise ValueError(f"{source}: no notebook says which lab it is of ({reasons}). Say which: --lab 2.")
    works = [replace(work, topic=usual if work.topic is None else work.topic) for work in works]
    if lab is not None:
        works = _of_lab(works, lab)
    done = list(_examined(works, limits, jobs, kept))
    return _counted(done)


def _prepared(submission: Submission) -> _Work:
    if submission.problem:
        return _Work(submission, None, None, submission.problem)
    try:
        lab = read_lab(submission.content)
    except Unreadable as error:
        return _Work(submission, None, None, str(error))
    if not lab.cells:
        return _Work(submission, None, None, "a notebook without a code cell")
    if lab.topic is None:
        return _Work(submission, lab, None, "no function and no check of a lab in it")
    return _Work(submission, lab, lab.topic)


def _of_lab(works: list[_Work], lab: int) -> list[_Work]:
    """Of a student with several labs, the asked one; of one who handed in another lab, a row that says so."""
    has = {work.submission.student for work in works if work.topic == lab}
    chosen = []
    for work in works:
        if work.topic == lab:
            chosen.append(work)
        elif work.submission.student not in has:
            name = f"{work.topic:02}_{TOPICS[work.topic or 0]}"
            chosen.append(replace(work, topic=lab, lab=None, problem=f"this is lab {name}"))
    return chosen


def _examined(works: list[_Work], limits: Limits, jobs: int, kept: Path | None) -> Iterator[_Work]:
    """Examine what isn't known yet, with a bar; keep each result as soon as there is one."""
    from tqdm.auto import tqdm

    waiting: list[_Work] = []
    for work in works:
        if work.lab is None or work.topic is None:
            yield _failed(work, work.problem)
        elif (before := _kept(work, limits, kept)) is not None:
            yield before
        else:
            waiting.append(work)
    if len(waiting) < len(works) and kept is not None and waiting:
        known = sum(w.lab is not None for w in works) - len(waiting)
        if known:
            tqdm.write(f"{known} notebooks were examined before: their results are kept in {kept}")
    if not waiting:
        return
    bar = tqdm(total=len(waiting), desc="grading", unit="notebook")
    with bar, contextlib.ExitStack() as stack:
        remaining = waiting
        # Each worker is an examiner; a new interpreter, so that no thread of this one is copied into it.
        for attempt in (1, 2):
            pool = stack.enter_context(
                ProcessPoolExecutor(jobs, mp_context=get_context("spawn"), initializer=_in_worker)
            )
            again: list[_Work] = []
            futures: dict[Future[_Work], _Work] = {
                pool.submit(_examine_one, work, limits): work for work in remaining
            }
            try:
                for future in as_completed(futures):
                    work = futures[future]
                    try:
                        done = future.result()
                    except BrokenProcessPool:  # the examiner itself was killed: once more, by itself
                        again.append(work)
                        continue
                    except Exception as error:
                        done = _failed(work, f"it couldn't be examined ({type(error).__name__}: {error})")
                    else:
                        _keep(done, limits, kept)
                    bar.set_postfix_str(done.submission.student[:20], refresh=False)
                    bar.update()
                    yield done
            except BaseException:
                workers = list((pool._processes or {}).values())  # `shutdown` forgets them
                pool.shutdown(wait=False, cancel_futures=True)
                for worker in workers:  # or the rest of a notebook is waited for
                    worker.terminate()
                raise
            if not again:
                break
            remaining, jobs = again, 1
            if attempt == 2:
                for work in again:
                    yield _failed(work, "its examiner was killed by the system (out of memory?)")


def _failed(work: _Work, reason: str) -> _Work:
    s = work.submission
    return replace(work, grades=tuple(all_failed(s.student, work.topic or 0, reason, s.place)))


def _in_worker() -> None:
    """Ctrl-C is the main process's to answer: it ends its workers."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def _examine_one(work: _Work, limits: Limits) -> _Work:
    """Examine one notebook, in a worker."""
    assert work.lab is not None
    assert work.topic is not None
    found = examine_lab(work.lab, work.topic, limits)
    student, place = work.submission.student, work.submission.place
    grades = []
    for exercise in exercises_of(work.topic):
        outcome = found.outcomes.get(exercise.number)
        if outcome is None:
            reason = not_found(work.lab, exercise, found.failed)
            grades.append(Grade(student, exercise.number, "failed", reason=reason, file=place))
        else:
            grades.append(
                Grade(
                    student,
                    exercise.number,
                    outcome.status,
                    outcome.case,
                    outcome.hint,
                    outcome.message,
                    place,
                )
            )
    return replace(work, grades=tuple(grades), notes=found.notes, confinement=str(found.confinement or ""))


def _counted(works: list[_Work]) -> Grades:
    """Count each student once for a lab: the file with most right, of equals the one with most attempted, then the last."""
    groups: dict[tuple[str, int], list[_Work]] = {}
    for work in works:
        groups.setdefault((work.submission.student, work.topic or 0), []).append(work)
    grades: list[Grade] = []
    notes: dict[str, list[str]] = {}
    for (student, _), several in sorted(groups.items(), key=lambda item: (item[0][1], item[0][0].casefold())):
        best = max(several, key=lambda w: (w.score, w.attempted, _natural(w.submission.place)))
        grades += best.grades
        said = notes.setdefault(student, [])
        if len(several) > 1:
            others = ", ".join(
                f"{w.submission.place} ({w.score})"
                for w in several
                if w.submission.place != best.submission.place
            )
            said.append(
                f"{len(several)} files, counted once: {best.submission.place} ({best.score} right), not {others}"
            )
        said += best.notes
    held = dict.fromkeys(work.confinement for work in works if work.confinement)
    return Grades(
        tuple(grades), {student: tuple(said) for student, said in notes.items() if said}, "; ".join(held)
    )


def _natural(place: str) -> list[tuple[int, int | str]]:
    """A key that puts lab-2 before lab-10."""
    return [(0, int(part)) if part.isdigit() else (1, part) for part in re.split(r"(\d+)", place) if part]


# Results that are kept ------------------------------------------------------------------------------------------------


@cache
def _version() -> str:
    """A digest of what decides a mark: the exercises and the grader."""
    digest = hashlib.sha256()
    for folder in ("exercises", "grading"):
        for path in sorted((PACKAGE / folder).glob("*.py")):
            digest.update(path.read_bytes())
    return digest.hexdigest()


def _key(work: _Work, limits: Limits) -> str:
    parts: tuple[Any, ...] = (_version(), work.topic, limits.cell_s, limits.memory_bytes)
    return hashlib.sha256(repr(parts).encode() + work.submission.content).hexdigest()[:32]


def _kept(work: _Work, limits: Limits, folder: Path | None) -> _Work | None:
    if folder is None:
        return None
    try:
        content = json.loads((folder / f"{_key(work, limits)}.json").read_text(encoding="utf-8"))
        own: Mapping[str, str] = {"student": work.submission.student, "file": work.submission.place}
        grades = tuple(Grade(**{**g, **own}) for g in content["grades"])
        return replace(
            work, grades=grades, notes=tuple(content["notes"]), confinement=str(content["confinement"])
        )
    except (OSError, ValueError, KeyError, TypeError):  # none, or cut off when it was written
        return None


def _keep(work: _Work, limits: Limits, folder: Path | None) -> None:
    if folder is None:
        return
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{_key(work, limits)}.json"
    content = {
        "grades": [{k: v for k, v in vars(g).items() if k not in ("student", "file")} for g in work.grades],
        "notes": work.notes,
        "confinement": work.confinement,
    }
    unfinished = path.with_suffix(".part")
    unfinished.write_text(json.dumps(content, ensure_ascii=False), encoding="utf-8")
    unfinished.replace(path)
