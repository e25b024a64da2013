"""Grade a class's labs: each notebook runs in a process of its own and is examined from outside.

Read it in this order: ``collecting`` (whose each file is: folders, zips, Moodle, Canvas, nbgrader), ``notebook`` (what a
notebook says, read without running it), ``examiner`` (sends each case's inputs, judges what comes back), ``student`` (the
process that runs the notebook), ``confinement`` (what that process may do), ``tracing`` (whose code ran), ``cases`` (inputs that
the lab doesn't show), ``values`` and ``channel`` (how results travel), ``running`` (a class, one notebook after the other or
several at a time), ``results`` (table and CSV), ``report`` (pages).
"""

from onegpu.grading.collecting import Submission, collect
from onegpu.grading.examiner import Limits
from onegpu.grading.results import Grade, Grades
from onegpu.grading.running import grade

__all__ = ["Grade", "Grades", "Limits", "Submission", "collect", "grade"]
