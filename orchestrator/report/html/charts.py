"""The charts of a model's page, as SVG."""

import base64
import io
import math
from collections.abc import Mapping, Sequence
from html import escape

import numpy as np
from PIL import Image

from orchestrator.evaluation.insight import Insight
from orchestrator.report.html.elements import details_html, empty_html
from orchestrator.report.model_view import View
from orchestrator.text import counted

CHART = (420, 250)
STROKES = ("var(--accent)", "var(--published)", "var(--done)", "var(--pruned)", "var(--interrupted)")
DASHES = ("", "6 3", "2 3", "8 3 2 3", "1 2")
PROXY_PIXELS = 384
QUALIFIERS = frozenset(("trained", "held", "out", "mixed", "class", "proxy", "mean", "jaccard", "mrr", "cosine"))
"""Words that distinguish the curves of one chart."""


def similarities_chart(insight: Insight) -> str:
    table = insight.similarities
    sides = {"one class": table["positive_pairs"], "two classes": table["negative_pairs"]}
    shares = {name: np.asarray(counts) / max(1, sum(counts)) for name, counts in sides.items()}
    used = np.flatnonzero(sum(shares.values()) > 0)
    if not len(used):
        return empty_html("There are no pairs.")
    part = slice(max(0, used[0] - 1), used[-1] + 2)
    edges = [*table["low"][part], table["high"][part][-1]]
    series = {f"pairs of {name}": share[part].tolist() for name, share in shares.items()}
    rows = [
        [low, *(int(sides[name][place]) for name in sides)]
        for place, low in enumerate(table["low"])
        if place in set(used.tolist())
    ]
    told = f"Share of the pairs by their cosine, of {counted(len(insight.sample_P), 'image')}."
    more = details_html("similarities", ["cosine from", "pairs of one class", "pairs of two"], rows)
    pairs = _chart("histogram", "Similarity of pairs", told, edges, series, more, steps=True, label="cosine similarity")
    return f'<div class="pair">{pairs}{_recalls(insight)}</div>'


def _recalls(insight: Insight) -> str:
    """The distribution of the classes' recall."""
    recalls = [value for value in insight.classes["recall_at_1"] if value is not None]
    counts, edges = np.histogram(recalls, bins=20, range=(0, 1))
    rows = [[low, int(count)] for low, count in zip(edges.tolist(), counts, strict=False)]
    more = details_html("recalls", ["recall@1 from", "classes"], rows)
    told = f"How many of {len(recalls)} classes have which recall@1."
    series = {"classes": counts.tolist()}
    return _chart(
        "recalls", "Recall@1 of the classes", told, edges.tolist(), series, more, steps=True, label="recall@1"
    )


def training_charts(view: View) -> str:
    """One chart per family of curves: `uncertainty_trained` and `uncertainty_mixed` share one."""
    families: dict[str, dict[str, Sequence[float]]] = {}
    for name, values in view.curves.items():
        if len(values) > 1:
            families.setdefault(family(name), {})[name] = values
    parts = []
    for number, (title, curves) in enumerate(families.items()):
        title = title if len(curves) > 1 else next(iter(curves)).replace("_", " ")
        length = max(len(values) for values in curves.values())
        rows = [[i + 1, *(v[i] if i < len(v) else None for v in curves.values())] for i in range(length)]
        more = details_html(f"curve-{number}", ["validation", *curves], rows)
        series = {name: list(values) for name, values in list(curves.items())[: len(STROKES)]}
        last = ", ".join(f"{name} {values[-1]:.4g}" for name, values in series.items())
        x = list(range(1, length + 1))
        parts.append(_chart(f"curves-{number}", title, f"At the end: {last}.", x, series, more, label="validation"))
    return f'<div class="pair">{"".join(parts)}</div>' if parts else ""


def family(name: str) -> str:
    """What a curve shows, without the words that vary between curves: `proxy_coding_rate` is a `coding rate`."""
    words = name.split("_")
    return " ".join(word for word in words if word not in QUALIFIERS) or " ".join(words)


def proxies_chart(view: View) -> str:
    matrix = view.proxies
    if matrix is None or len(matrix) < 2:
        return ""
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
    said = (
        f"Cosines of {len(matrix)} proxies with each other, class by class: {low:.2f} (dark) to {high:.2f} (bright), "
        f"{float(apart.mean()):.3f} on average."
    )
    return (
        f'<figure class="matrix"><figcaption>Similarity of the proxies<span>{escape(said)}</span></figcaption>'
        f'<img src="{source}" alt="{escape(said)}"></figure>'
    )


def _chart(
    name: str,
    title: str,
    told: str,
    x: Sequence[float],
    series: Mapping[str, Sequence[float]],
    more: str,
    *,
    label: str,
    steps: bool = False,
) -> str:
    """Lines over `x`; with `steps` histograms, whose `x` are the edges of the bins."""
    width, height = CHART
    left, right, top, bottom = 48, 10, 22, 36
    values = [value for one in series.values() for value in one]
    low, high = (0.0, max(values)) if steps else (min(values), max(values))
    if high == low:
        low, high = low - 0.5 * (abs(low) or 1), high + 0.5 * (abs(high) or 1)
    first, last = float(x[0]), float(x[-1]) if x[-1] != x[0] else float(x[0]) + 1

    def across(value: float) -> float:
        return round(left + (value - first) / (last - first) * (width - left - right), 1)

    def up(value: float) -> float:
        return round(height - bottom - (value - low) / (high - low) * (height - top - bottom), 1)

    drawn = []
    for tick in _ticks(low, high):
        drawn.append(f'<path class="grid" d="M{left} {up(tick)}H{width - right}"/>')
        drawn.append(f'<text x="{left - 6}" y="{up(tick) + 4}" text-anchor="end">{tick:.4g}</text>')
    drawn += [
        f'<text x="{across(tick)}" y="{height - bottom + 16}" text-anchor="middle">{tick:.4g}</text>'
        for tick in _ticks(first, last)
    ]
    drawn.append(f'<text x="{(left + width - right) / 2}" y="{height - 4}" text-anchor="middle">{escape(label)}</text>')
    legend = []
    for number, (one, points) in enumerate(series.items()):
        stroke, dash = STROKES[number % len(STROKES)], DASHES[number % len(DASHES)]
        if steps:
            path = f"M{across(x[0])} {up(0)}" + "".join(
                f"V{up(value)}H{across(edge)}" for value, edge in zip(points, x[1:], strict=True)
            )
            path += f"V{up(0)}Z"
        else:
            path = "M" + "L".join(f"{across(at)} {up(value)}" for at, value in zip(x, points, strict=False))
        fill = f'fill="{stroke}" fill-opacity=".22"' if steps else 'fill="none"'
        line = f'stroke="{stroke}" stroke-width="2" stroke-dasharray="{dash}"'
        drawn.append(f'<path d="{path}" {fill} {line}/>')
        sample = f'<svg viewBox="0 0 26 8" aria-hidden="true"><path d="M0 4H26" {line}/></svg>'
        legend.append(f"<li>{sample}{escape(one)}</li>")
    names = f'<ul class="legend">{"".join(legend)}</ul>' if len(series) > 1 else ""
    return (
        f'<figure class="chart"><figcaption id="{name}-caption">{escape(title)}<span>{escape(told)}</span></figcaption>'
        f'{names}<svg viewBox="0 0 {width} {height}" role="img" aria-labelledby="{name}-caption">{"".join(drawn)}</svg>'
        f"{more}</figure>"
    )


def _ticks(low: float, high: float, most: int = 6) -> list[float]:
    """Round numbers between the two."""
    rough = (high - low) / (most - 1)
    power = 10 ** math.floor(math.log10(rough))
    step = next(step * power for step in (1, 2, 5, 10) if step * power >= rough * 0.999)
    return [round(n * step, 12) for n in range(math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9) + 1)]
