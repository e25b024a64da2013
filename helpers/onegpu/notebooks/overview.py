"""The map of the course that 00_start_here shows, with links that work where it is opened."""

from __future__ import annotations

import importlib.metadata
from dataclasses import dataclass

BADGE_IMAGE = "https://colab.research.google.com/assets/colab-badge.svg"


@dataclass(frozen=True)
class Topic:
    """One topic: its number and name, the question it answers, and the minutes of lesson and lab."""

    number: int
    name: str
    question: str
    lesson_minutes: int
    lab_minutes: int

    @property
    def file(self) -> str:
        """The name of its notebooks."""
        return f"{self.number:02}_{self.name}.ipynb"

    @property
    def title(self) -> str:
        """Its number and name as a reader says them, such as "04 quantization"."""
        return f"{self.number:02} {self.name.replace('_', ' ')}"


TOPICS = (
    Topic(1, "sft_datasets", "Which tokens of a chat does the model learn from?", 65, 110),
    Topic(2, "preference_data", "How does a ranking of answers become a loss?", 75, 95),
    Topic(3, "dtype_sizing", "How many bytes is a number, a model, a data set?", 55, 85),
    Topic(4, "quantization", "How does a model fit into 4 bits, and what is lost?", 60, 125),
    Topic(5, "gpu_memory", "Where do 14 GiB go during training?", 55, 95),
    Topic(6, "token_counting", "How many tokens does a data set have, and how many count?", 60, 90),
    Topic(7, "qlora_finetune", "How do you fine-tune a model on one small GPU?", 70, 100),
    Topic(8, "ray_scale_out", "What if one machine is not enough?", 80, 110),
)


def course_map() -> None:
    """Show the topics with their minutes, and links to lesson and lab."""
    from IPython.display import Markdown, display

    from onegpu.runtime import on_colab

    display(Markdown(_table(on_colab())))


def _table(colab: bool) -> str:
    lessons, labs = _places(colab)
    lines = ["| topic | question | lesson | lab |", "|---|---|---|---|"]
    lines += [
        f"| {topic.title} | {topic.question} "
        f"| [{topic.lesson_minutes} minutes]({lessons}/{topic.file}) | [{topic.lab_minutes} minutes]({labs}/{topic.file}) |"
        for topic in TOPICS
    ]
    return "\n".join(lines)


def _places(colab: bool) -> tuple[str, str]:
    """Where lessons and labs are, seen from course/: on Colab there is one file and no folder around it."""
    if not colab:
        return ".", "../labs"
    found = importlib.metadata.metadata("onegpu")
    address = next(
        u.partition(", ")[2] for u in found.get_all("Project-URL") or [] if u.startswith("Repository,")
    )
    owner_name = address.removeprefix("https://github.com/").rstrip("/")
    base = f"https://colab.research.google.com/github/{owner_name}/blob/v{found['Version']}"
    return f"{base}/course", f"{base}/labs"


def readme_table(address: str, ref: str) -> str:
    """Return the README's table of topics: question, minutes, and badges that open lesson and lab on Colab.

    Parameters
    ----------
    address
        The repository's (``files.repository``).
    ref
        The tag that the badges name (``parts.ref``).
    """
    base = (
        f"https://colab.research.google.com/github/{address.removeprefix('https://github.com/')}/blob/{ref}"
    )

    def cell(folder: str, file: str, minutes: int) -> str:
        badge = f"[![Open {folder}/{file} in Colab]({BADGE_IMAGE})]({base}/{folder}/{file})"
        return f"[{minutes} minutes](./{folder}/{file}) {badge}"

    lines = ["| topic | question | lesson | lab |", "|---|---|---|---|"]
    lines += [
        f"| {topic.title} | {topic.question} | {cell('course', topic.file, topic.lesson_minutes)} "
        f"| {cell('labs', topic.file, topic.lab_minutes)} |"
        for topic in TOPICS
    ]
    hours = [
        sum(minutes) / 60
        for minutes in zip(*((t.lesson_minutes, t.lab_minutes) for t in TOPICS), strict=True)
    ]
    lines.append(f"| **all** | | **{hours[0]:.1f} hours** | **{hours[1]:.1f} hours** |")
    return "\n".join(lines)
