"""Figures of topic 05: stacked bars of memory by category, and the timeline of a training step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch, Rectangle

from onegpu.gpu_memory import CATEGORIES, MemoryBreakdown
from onegpu.plots.base import COLOURS, captioned, figure
from onegpu.plots.drawing import TINTS, box, canvas
from onegpu.runtime import find_gpu

GIB = 2**30
REST = "the rest"
_BLUE, _RED, _TEAL, _YELLOW, _SKY, _GREY = COLOURS
STYLE = {
    "weights": (_BLUE, ""),
    "quantization_state": (_BLUE, "xx"),
    "buffers": (_GREY, ".."),
    "lora": (_TEAL, ""),
    "gradients": (_RED, ""),
    "optimizer_state": (_YELLOW, ""),
    "optimizer_temporaries": (_YELLOW, "//"),
    "activations": (_SKY, ""),
    "kv_cache": (_TEAL, "//"),
    "logits_and_loss": (_RED, "//"),
    "dequantized": (_BLUE, "//"),
    "temporaries": (_SKY, "//"),
    "cublas_workspace": (_GREY, "//"),
    "rounding": (_GREY, "xx"),
    REST: (_GREY, ""),
}
_LABELS = {**CATEGORIES, REST: "the rest"}
LEAST_SHARE = 0.01  # of the tallest bar; thinner pieces are drawn together


def stacked(
    bars: Mapping[str, MemoryBreakdown | Mapping[str, int]],
    *,
    moment: str = "after_step",
    title: str = "Memory after the step",
    cards: Sequence[str] = (),
    reach: int = 0,
    height: float | None = None,
) -> Figure:
    """Draw one horizontal bar for each breakdown, its categories end to end, its total behind it.

    Parameters
    ----------
    bars
        Label to a breakdown, or to bytes by category.
    moment
        Of the breakdowns: a moment's name, or "peak".
    cards
        Names of cards, drawn as lines across where they lie within the picture.
    reach
        Bytes that the picture goes to at least, to have a card's line in it.

    Examples
    --------
    >>> made = stacked({"full": {"weights": GIB, "gradients": GIB}, "LoRA": {"weights": GIB}}, cards=("T4",))
    >>> [text.get_text() for text in made.axes[0].texts]
    ['2.00', '1.00']
    """
    shares = _thin_pieces_together({label: _sizes(bar, moment) for label, bar in bars.items()})
    made, axes = figure(title, "GiB", "", size=(7.4, height or 1.9 + 0.5 * len(shares)))
    labels = list(shares)
    largest = max(sum(sizes.values()) for sizes in shares.values()) / GIB
    for y, (label, sizes) in enumerate(shares.items()):
        left = 0.0
        for category, size in sizes.items():
            colour, hatch = STYLE[category]
            axes.barh(
                y,
                size / GIB,
                left=left,
                color=colour,
                hatch=hatch,
                edgecolor="white",
                linewidth=0.6,
                height=0.62,
            )
            left += size / GIB
        axes.annotate(
            f"{_total(bars[label], moment) / GIB:.2f}",
            (left, y),
            xytext=(3, 0),
            textcoords="offset points",
            va="center",
            fontsize=10,
            # A card's line may run through the number.
            bbox={"facecolor": "white", "edgecolor": "none", "pad": 1.2},
        )
    axes.set_yticks(range(len(labels)), labels)
    axes.invert_yaxis()
    right = max(largest * 1.12, reach / GIB * 1.03)
    axes.set_xlim(0, right)
    axes.grid(axis="y", visible=False)
    _card_lines(axes, cards, right)
    used = [c for c in STYLE if any(c in sizes for sizes in shares.values())]
    _legend(made, used)
    return made


def step_in_boxes(layers: int = 3) -> Figure:
    """Draw the idea of a training step: what of each layer is alive at four moments, full boxes, and what isn't, empty ones.

    Examples
    --------
    >>> step_in_boxes().onegpu_caption
    'Full is alive. Alive boxes of 3 layers: 6, 6, 6, 12. Activations and gradients trade places, the moments come last and stay.'
    """
    half = layers // 2
    rows = ("weights", "activations", "gradients", "moment 1", "moment 2")
    colours = (0, 4, 1, 3, 3)
    moments = {
        "after the\nforward pass": (layers, layers, 0, 0, 0),
        "half-way through\nthe backward pass": (layers, layers - half, half, 0, 0),
        "after the\nbackward pass": (layers, 0, layers, 0, 0),
        "after the\noptimizer step": (layers, 0, layers, layers, layers),
    }
    made, axes = canvas("A training step, layer by layer", 2.0 + 3.0 * len(moments), 4.9)
    counts = []
    for column, (name, alive) in enumerate(moments.items()):
        left = 2.0 + 3.0 * column
        axes.text(left + 1.3, 4.5, name, ha="center", va="center", fontsize=9)
        counts.append(sum(alive))
        for row, (kind, number, colour) in enumerate(zip(rows, alive, colours, strict=True)):
            y = 3.2 - 0.75 * row
            if not column:
                axes.text(1.8, y + 0.3, kind, ha="right", va="center", fontsize=9)
            for layer in range(layers):
                # The backward pass begins at the last layer: its activations go first, its gradients come first.
                there = layer >= layers - number if kind == "gradients" else layer < number
                spot = (left + 0.87 * layer, y, 0.77, 0.6)
                if there:
                    box(axes, *spot, str(layer + 1), colour)
                else:
                    axes.add_patch(
                        Rectangle(spot[:2], *spot[2:], fill=False, edgecolor="#c4c4c4", linestyle=":")
                    )
    listed = ", ".join(str(count) for count in counts)
    return captioned(
        made,
        f"Full is alive. Alive boxes of {layers} layers: {listed}. Activations and gradients trade places, the moments come "
        "last and stay.",
    )


def timeline(breakdown: MemoryBreakdown, *, title: str | None = None, cards: Sequence[str] = ()) -> Figure:
    """Draw allocated bytes over a training step and the next, by category, with phases and the peak.

    The horizontal axis counts allocations and releases, so it has no unit of time.

    Examples
    --------
    >>> from onegpu.gpu_memory import simulated
    >>> made = timeline(simulated("smollm2-135m", max_length=32))
    >>> made.axes[0].get_xlabel(), made.axes[0].get_ylabel()
    ('allocations and releases', 'GiB')
    """
    line = breakdown.timeline
    if line is None:
        raise ValueError(
            f"{breakdown.way} has no timeline: a simulation has one, and a measurement on the CPU"
        )
    made, axes = figure(
        title or f"A training step of {breakdown.setup.name}",
        "allocations and releases",
        "GiB",
        size=(7.4, 4.4),
    )
    highest = max(line.allocated_bytes)
    shown = [c for c in STYLE if c in line.by_category and max(line.by_category[c]) >= LEAST_SHARE * highest]
    rest = [c for c in line.by_category if c not in shown]
    series = {c: [n / GIB for n in line.by_category[c]] for c in shown}
    if rest:
        series[REST] = [sum(ns) / GIB for ns in zip(*(line.by_category[c] for c in rest), strict=True)]
    areas = axes.stackplot(
        line.positions, *series.values(), colors=[STYLE[c][0] for c in series], linewidth=0
    )
    for area, category in zip(areas, series, strict=True):
        area.set_hatch(STYLE[category][1])
        area.set_edgecolor("white")
    at = line.positions[line.allocated_bytes.index(highest)]
    axes.annotate(
        f"peak {highest / GIB:.2f}",
        (at, highest / GIB),
        xytext=(0, 8),
        textcoords="offset points",
        ha="center",
    )
    axes.plot([at], [highest / GIB], marker="v", color=_RED, markersize=6)
    totals = [find_gpu(card).total_bytes for card in cards]
    within = [total / GIB for total in totals if total < 1.4 * highest]
    top = max([highest / GIB * 1.22, *(size * 1.13 for size in within)])
    axes.set_ylim(0, top)
    axes.set_xlim(0, line.positions[-1])
    _phases(axes, line.marks, line.positions[-1])
    _card_lines(axes, cards, top, across=True)
    _legend(made, list(series))
    return made


def nested(breakdown: MemoryBreakdown, card: str) -> Figure:
    """Draw what three counters say of one card: allocated inside reserved inside what nvidia-smi shows.

    Parameters
    ----------
    breakdown
        Of a run on that card.
    card
        As ``find_gpu`` knows it.
    """
    gpu = find_gpu(card)
    context = sum(gpu.context_bytes) / 2
    total = gpu.total_bytes / GIB
    parts = {
        f"{gpu.name}: all there is": (total, "white", ""),
        "what nvidia-smi shows": ((breakdown.reserved_bytes + context) / GIB, TINTS[5], ""),
        "reserved: taken from the card": (breakdown.reserved_bytes / GIB, TINTS[3], ""),
        "allocated at the peak": (breakdown.peak_bytes / GIB, TINTS[0], ""),
        "allocated after the step": (breakdown["after_step"].allocated_bytes / GIB, COLOURS[4], ""),
    }
    made, axes = figure("One card, three counters", "memory (GiB)", "", size=(7.4, 2.9))
    for depth, (name, (size, fill, hatch)) in enumerate(parts.items()):
        height = 5.4 - depth
        patch = Rectangle(
            (0, depth / 2), size, height, facecolor=fill, hatch=hatch, edgecolor=COLOURS[5], linewidth=1.2
        )
        axes.add_patch(patch)
        axes.text(0.1, 5.4 - depth / 2 - 0.27, f"{name}: {size:.2f}", va="center", fontsize=9)
    axes.set(xlim=(0, max(size for size, *_ in parts.values()) * 1.03), ylim=(-0.1, 5.6), yticks=[])
    axes.grid(visible=False)
    sizes = [size for size, *_ in parts.values()]
    return captioned(
        made,
        f"After the step {sizes[4]:.2f} GiB are allocated, at the peak {sizes[3]:.2f}; the allocator has taken "
        f"{sizes[2]:.2f} from the card and keeps them; with the CUDA context nvidia-smi shows {sizes[1]:.2f} of "
        f"{sizes[0]:.2f}.",
    )


def growth(breakdowns: Mapping[int, MemoryBreakdown], *, moment: str = "after_step") -> Figure:
    """Draw what each category adds over the smallest batch.

    Examples
    --------
    >>> from onegpu.gpu_memory import closed_form
    >>> runs = {n: closed_form("smollm2-135m", per_device_train_batch_size=n, max_length=64) for n in (4, 8)}
    >>> growth(runs).axes[0].get_title(loc="left")
    'What grows with the batch, over batch 4'
    """
    first, *more = sorted(breakdowns)
    base = _sizes(breakdowns[first], moment)
    bars = {
        f"batch {n}": {
            c: size - base.get(c, 0)
            for c, size in _sizes(breakdowns[n], moment).items()
            if size > base.get(c, 0)
        }
        for n in more
    }
    return stacked(bars, title=f"What grows with the batch, over batch {first}")


def _sizes(bar: MemoryBreakdown | Mapping[str, int], moment: str) -> Mapping[str, int]:
    if not isinstance(bar, MemoryBreakdown):
        return bar
    return bar.peak.by_category if moment == "peak" else bar[moment].by_category


def _total(bar: MemoryBreakdown | Mapping[str, int], moment: str) -> int:
    """All bytes of a bar, those too thin to be drawn as well."""
    if not isinstance(bar, MemoryBreakdown):
        return sum(bar.values())
    return bar.peak_bytes if moment == "peak" else bar[moment].allocated_bytes


def _thin_pieces_together(bars: Mapping[str, Mapping[str, int]]) -> dict[str, dict[str, int]]:
    least = LEAST_SHARE * max((sum(sizes.values()) for sizes in bars.values()), default=0)
    thick = {c for sizes in bars.values() for c, size in sizes.items() if size >= least}
    found = {}
    for label, sizes in bars.items():
        found[label] = {c: sizes[c] for c in STYLE if sizes.get(c) and c in thick}
        rest = sum(size for c, size in sizes.items() if c not in thick)
        if rest >= least / 4:
            found[label][REST] = found[label].get(REST, 0) + rest
    return found


def _card_lines(axes: Axes, cards: Sequence[str], limit: float, across: bool = False) -> None:
    for card in cards:
        size = find_gpu(card).total_bytes / GIB
        if size > limit:
            continue
        if across:
            axes.axhline(size, color="black", linestyle="--", linewidth=1)
            axes.annotate(card, (0, size), xycoords=("axes fraction", "data"), xytext=(3, 3),
                          textcoords="offset points", ha="left", fontsize=9)  # fmt: skip
        else:
            axes.axvline(size, color="black", linestyle="--", linewidth=1)
            axes.annotate(card, (size, 1), xycoords=("data", "axes fraction"), xytext=(0, 2),
                          textcoords="offset points", ha="center", fontsize=9)  # fmt: skip


def _phases(axes: Axes, marks: Sequence[tuple[int, str]], end: int) -> None:
    names = {"load": "load", "forward": "forward", "backward": "backward", "step": "step"}
    shown = [(p, names[n]) for p, n in marks if n in names]
    for i, (start, name) in enumerate(shown):
        stop = shown[i + 1][0] if i + 1 < len(shown) else end
        if start:
            axes.axvline(start, color="black", linewidth=0.7, linestyle=":")
        if stop - start >= 0.055 * end:
            axes.annotate(name, ((start + stop) / 2, 0.97), xycoords=("data", "axes fraction"), ha="center",
                          va="top", fontsize=9)  # fmt: skip


def _legend(made: Figure, categories: Sequence[str]) -> None:
    handles = [
        Patch(facecolor=STYLE[c][0], hatch=STYLE[c][1], edgecolor="white", label=_LABELS[c])
        for c in categories
    ]
    made.legend(handles=handles, loc="outside lower center", ncols=3, fontsize=9, frameon=False)
