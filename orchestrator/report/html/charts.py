"""The charts of a model's page: what their SVG is drawn from."""

import base64
import io
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from PIL import Image

from orchestrator.evaluation.insight import Insight
from orchestrator.report.html.elements import Table
from orchestrator.report.model_view import WEIGHT_COLUMNS, View
from orchestrator.text import pluralize

CHART, MARGINS = (420, 250), (48, 10, 22, 36)
"""Width and height; left, right, top, bottom."""
STROKES = ("var(--accent)", "var(--published)", "var(--done)", "var(--pruned)", "var(--interrupted)")
DASHES = ("", "6 3", "2 3", "8 3 2 3", "1 2")
PROXY_PIXELS = 384
QUALIFIERS = frozenset(("trained", "held", "out", "mixed", "class", "proxy", "mean", "jaccard", "mrr", "cosine"))
"""Words that distinguish the curves of one chart."""


@dataclass(frozen=True)
class Curve:
    """A line of a chart, with the outline of what is shaded around it; or the outline of a histogram."""

    name: str
    path: str
    stroke: str
    dash: str
    band: str = ""


@dataclass(frozen=True)
class Points:
    """What a line goes through, and the ends of what is shaded around it; of a histogram the edges and heights of its
    bars."""

    x: Sequence[float]
    y: Sequence[float]
    low: Sequence[float] = ()
    high: Sequence[float] = ()


@dataclass(frozen=True)
class Chart:
    """Curves over one axis, in pixels; `across` and `up` are the axes' ticks: place and number."""

    size: ClassVar = CHART
    margins: ClassVar = MARGINS

    name: str
    title: str
    said: str
    label: str
    filled: bool
    curves: Sequence[Curve]
    across: Sequence[tuple[float, float]]
    up: Sequence[tuple[float, float]]
    table: Table


def similarities_chart(insight: Insight) -> Chart | None:
    table = insight.similarities
    sides = {"one class": table["positive_pairs"], "two classes": table["negative_pairs"]}
    shares = {name: np.asarray(counts) / max(1, sum(counts)) for name, counts in sides.items()}
    used = np.flatnonzero(sum(shares.values()) > 0)
    if not len(used):
        return None
    part = slice(max(0, used[0] - 1), used[-1] + 2)
    edges = [*table["low"][part], table["high"][part][-1]]
    series = {f"pairs of {name}": Points(edges, share[part].tolist()) for name, share in shares.items()}
    rows = [
        [low, *(int(sides[name][place]) for name in sides)]
        for place, low in enumerate(table["low"])
        if place in set(used.tolist())
    ]
    caption = f"Share of the pairs by their cosine, of {pluralize(len(insight.sample_P), 'image')}."
    more = Table("similarities", ["cosine from", "pairs of one class", "pairs of two"], rows)
    title, label = "Similarity of pairs", "cosine similarity"
    return _chart("histogram", title, caption, series, more, steps=True, label=label)


def recalls_chart(insight: Insight) -> Chart:
    """The distribution of the classes' recall."""
    recalls = [value for value in insight.classes["recall_at_1"] if value is not None]
    counts, edges = np.histogram(recalls, bins=20, range=(0, 1))
    rows = [[low, int(count)] for low, count in zip(edges.tolist(), counts, strict=False)]
    more = Table("recalls", ["recall@1 from", "classes"], rows)
    caption = f"The {len(recalls)} classes by their recall@1."
    title, series = "Recall@1 of the classes", {"classes": Points(edges.tolist(), counts.tolist())}
    return _chart("recalls", title, caption, series, more, steps=True, label="recall@1")


def training_charts(view: View) -> list[Chart]:
    """One chart per family of curves: `uncertainty_trained` and `uncertainty_mixed` share one."""
    families: dict[str, dict[str, Sequence[float]]] = {}
    for name, values in view.curves.items():
        if len(values) > 1:
            families.setdefault(family(name), {})[name] = values
    charts = []
    for number, (title, curves) in enumerate(families.items()):
        title = title if len(curves) > 1 else next(iter(curves)).replace("_", " ")
        length = max(len(values) for values in curves.values())
        rows = [[i + 1, *(v[i] if i < len(v) else None for v in curves.values())] for i in range(length)]
        more = Table(f"curve-{number}", ["validation", *curves], rows)
        series = {
            name: Points(range(1, len(values) + 1), values) for name, values in list(curves.items())[: len(STROKES)]
        }
        last = ", ".join(f"{name} {points.y[-1]:.4g}" for name, points in series.items())
        charts.append(_chart(f"curves-{number}", title, f"At the end: {last}.", series, more, label="validation"))
    return charts


def weights_charts(view: View) -> list[Chart]:
    """The weights of gradients over each of their axes, one line per set of images."""
    axes = dict.fromkeys(axis for table in view.gradient_weights.values() for axis in table["axis"])
    charts = []
    for axis in axes:
        series, rows, means = {}, [], []
        for images, table in view.gradient_weights.items():
            bins = [bin_ for bin_ in zip(*(table[column] for column in WEIGHT_COLUMNS), strict=True) if bin_[0] == axis]
            if not bins:
                continue
            x, y, deviation = (list(values) for values in list(zip(*bins, strict=True))[1:])
            spread = list(zip(y, deviation, strict=True))
            low = [max(0.0, mean - apart) for mean, apart in spread]
            high = [min(1.0, mean + apart) for mean, apart in spread]
            series[images] = Points(x, y, low, high)
            rows += [[images, *bin_[1:]] for bin_ in bins]
            means.append(f"of {images} from {y[0]:.3g} to {y[-1]:.3g}")
        label = axis.replace("_", " ")
        title, caption = f"Weight of the gradient by the {label}", f"Mean H {', '.join(means)}; shaded: its deviation."
        more = Table(f"weights-{axis}", ["images", label, "mean H", "deviation"], rows)
        charts.append(_chart(f"weights-by-{axis}", title, caption, series, more, label=label, low=0.0))
    return charts


def family(name: str) -> str:
    """What a curve shows, without the words that vary between curves: `proxy_coding_rate` is a `coding rate`."""
    words = name.split("_")
    return " ".join(word for word in words if word not in QUALIFIERS) or " ".join(words)


def proxies_matrix(view: View) -> dict[str, Any] | None:
    """The similarities of the proxies as an image, and what it shows in words."""
    matrix = view.proxies
    if matrix is None or len(matrix) < 2:
        return None
    from matplotlib import colormaps

    apart = matrix[~np.eye(len(matrix), dtype=bool)]
    low, high = float(apart.min()), float(apart.max())
    shade = np.clip((matrix - low) / ((high - low) or 1), 0, 1)
    pixels = (colormaps["viridis"](shade)[..., :3] * 255).astype(np.uint8)
    image = Image.fromarray(pixels)
    if len(matrix) > PROXY_PIXELS:
        image = image.resize((PROXY_PIXELS, PROXY_PIXELS), Image.Resampling.BOX)
    file = io.BytesIO()
    image.save(file, "PNG")
    source = "data:image/png;base64," + base64.b64encode(file.getvalue()).decode("ascii")
    caption = (
        f"Cosines of {len(matrix)} proxies with each other, class by class: {low:.2f} (dark) to {high:.2f} (bright), "
        f"{float(apart.mean()):.3f} on average."
    )
    return {"image": source, "said": caption}


def _chart(
    name: str,
    title: str,
    caption: str,
    series: Mapping[str, Points],
    more: Table,
    *,
    label: str,
    steps: bool = False,
    low: float | None = None,
) -> Chart:
    """Lines; with `steps` histograms. `low` is the lower end of the axis, by default 0 of a histogram and otherwise the
    lowest value."""
    (width, height), (left, right, top, bottom) = CHART, MARGINS
    values = [value for one in series.values() for value in (*one.y, *one.low, *one.high)]
    low, high = (0.0 if steps else min(values)) if low is None else low, max(values)
    if high == low:
        low, high = low - 0.5 * (abs(low) or 1), high + 0.5 * (abs(high) or 1)
    places = [place for one in series.values() for place in one.x]
    first, last = float(min(places)), float(max(places))
    last += last == first

    def across(value: float) -> float:
        return round(left + (value - first) / (last - first) * (width - left - right), 1)

    def up(value: float) -> float:
        return round(height - bottom - (value - low) / (high - low) * (height - top - bottom), 1)

    def line(x: Sequence[float], y: Sequence[float]) -> str:
        return "M" + "L".join(f"{across(at)} {up(value)}" for at, value in zip(x, y, strict=True))

    marks = []
    for number, (one, points) in enumerate(series.items()):
        if steps:
            path = f"M{across(points.x[0])} {up(0)}" + "".join(
                f"V{up(value)}H{across(edge)}" for value, edge in zip(points.y, points.x[1:], strict=True)
            )
            path += f"V{up(0)}Z"
        else:
            path = line(points.x, points.y)
        band = f"{line(points.x, points.high)}L{line(points.x[::-1], points.low[::-1])[1:]}Z" if points.low else ""
        marks.append(Curve(one, path, STROKES[number % len(STROKES)], DASHES[number % len(DASHES)], band))
    below = [(across(tick), tick) for tick in _ticks(first, last)]
    beside = [(up(tick), tick) for tick in _ticks(low, high)]
    return Chart(name, title, caption, label, steps, marks, below, beside, more)


def _ticks(low: float, high: float, most: int = 6) -> list[float]:
    """Round numbers between the two."""
    rough = (high - low) / (most - 1)
    power = 10 ** math.floor(math.log10(rough))
    step = next(step * power for step in (1, 2, 5, 10) if step * power >= rough * 0.999)
    return [float(f"{n * step:.12g}") for n in range(math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9) + 1)]
