"""The page of a claim: its verdict, the effects with their intervals, the values, and the file as it was."""

import itertools
import shlex
import textwrap
from pathlib import Path
from typing import Any

from markupsafe import Markup

from orchestrator.claims.hypothesis import Claim
from orchestrator.claims.outputs import ClaimEffect, ClaimVerdict, DatasetVerdict
from orchestrator.report.html.elements import Figure, Plot, Table, number_cell
from orchestrator.report.html.rendering import render
from orchestrator.storage import paths
from orchestrator.storage.atomic import write_whole
from orchestrator.text import params_text

STATISTICS = (
    "The intervals hold at every number of pairs at once (a confidence sequence): looking after a pair costs nothing. "
    "They are over new trainings on these classes. It holds where it holds on all data sets and in all "
    "comparisons; one that fails is told with its error divided by their number."
)

LABEL_CHARACTERS = 22


def claim_command(claim: Claim, storage: Path) -> str:
    """What is typed to go on with a claim, or to see its verdict again."""
    return f"orchestrator claim {shlex.quote(str(claim.path))}{paths.in_command(storage)}"


def claim_page(claim: Claim, verdict: ClaimVerdict, storage: Path) -> str:
    """The HTML."""
    arms, states = claim.hypothesis.trained_arms, claim.hypothesis.states
    read = [claim.hypothesis.metric_of(arm, state) for state, arm in itertools.product(states, arms)]
    metrics = " and ".join(dict.fromkeys(read))
    values: dict[str, Any] = {
        "title": verdict.claim,
        "source": verdict.source,
        "lines": [verdict.line, *([claim.hypothesis.note] if claim.hypothesis.note else []), STATISTICS],
        "effects": _effects(verdict),
        "values": {f"{metrics} on {one.dataset}": _values(one) for one in verdict.datasets if one.pairs},
        "text": claim.text,
        "digest": verdict.digest,
        "again": claim_command(claim, storage),
    }
    return render("claim.html", values)


def _values(verdict: DatasetVerdict) -> Table:
    heads = ["arm", "tuned to", *(f"pair {n}" for n in range(1, verdict.pairs + 1))]
    points = {arm: params_text(point) for arm, point in verdict.tuned.items()}
    rows = [[arm, points.get(arm.partition(", ")[0], ""), *row] for arm, row in verdict.values.items()]
    return Table(f"values on {verdict.dataset}", heads, rows)


def write_claim_page(claim: Claim, verdict: ClaimVerdict, path: Path, storage: Path) -> None:
    """The page as a file, whole or not at all."""
    write_whole(path, claim_page(claim, verdict, storage).encode())


def _effects(verdict: ClaimVerdict) -> Plot | None:
    rows = [(one, effect) for one in verdict.datasets for effect in one.effects]
    if not rows:
        return None
    data = [_point(place, effect) for place, (_, effect) in enumerate(rows[::-1])]
    sign = 1 if verdict.direction == "higher" else -1
    ends = [0.0, *({"equivalence": [-1, 1], "non_inferiority": [-1]}.get(verdict.kind, [1]))]
    lines = [
        {"type": "line", "xref": "x", "yref": "paper", "x0": x, "x1": x, "y0": 0, "y1": 1}
        | {"line": {"color": "var(--soft)", "dash": "dash" if x == 0 else "dot", "width": 1}}
        for x in dict.fromkeys(sign * end * verdict.smallest_effect for end in ends)
    ]
    layout = {
        "height": 120 + 56 * len(rows),
        "xaxis": {"title": {"text": verdict.unit}, "rangemode": "tozero"},
        "yaxis": {
            "tickvals": list(range(len(rows))),
            "ticktext": [_broken_label(f"{effect.comparison} ({one.dataset})") for one, effect in rows[::-1]],
            "range": [-0.6, len(rows) - 0.4],
            "automargin": True,
        },
        "shapes": lines,
        "margin": {"l": 110, "r": 16, "t": 16, "b": 48},
    }
    cells = [
        [one.dataset, one.verdict, effect.comparison, one.pairs, one.classes, *map(_number, _ends(effect))]
        for one, effect in rows
    ]
    heads = ["data set", "verdict", "comparison", "pairs", "classes", "effect", "low", "high"]
    caption = (
        f"The mean effect in {verdict.unit}, and its 95% confidence sequence. Dotted: the smallest effect of interest."
    )
    return Plot("effects", "Effects", caption, data, layout, Table("effects", heads, cells))


def _broken_label(text: str) -> Markup:
    """In lines that leave a telephone room for the figure."""
    return Markup("<br>").join(textwrap.wrap(text, LABEL_CHARACTERS))


def _ends(effect: ClaimEffect) -> tuple[float | None, ...]:
    return effect.effect, effect.low, effect.high


def _number(value: float | None) -> Any:
    return None if value is None else number_cell(f"{value:+.3g}", value)


def _point(place: int, effect: ClaimEffect) -> Figure:
    point: Figure = {"type": "scatter", "mode": "markers", "x": [effect.effect], "y": [place], "showlegend": False}
    point["marker"] = {"color": "var(--ink)", "size": 10}
    if effect.low is not None and effect.high is not None:
        bar: Figure = {"type": "data", "symmetric": False, "array": [effect.high - effect.effect]}
        bar |= {"arrayminus": [effect.effect - effect.low], "color": "var(--ink)", "thickness": 2}
        point["error_x"] = bar
    return point | {"hovertemplate": Markup("{}: %{{x:+.3g}}<extra></extra>").format(effect.comparison)}
