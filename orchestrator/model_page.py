"""What one model does, as one page and as a table of thumbnails: a self-contained HTML file, and files for MLflow.

    insight.py ──> tables, sample ──> page (here): gallery, map, histograms, confusions, classes, curves
                                 └──> gallery.json and its images: a table in MLflow

Figures are SVG that is drawn here, in the colours of `page.css`; `model_page.js` moves the map and shows the images of
its points. Whatever comes from a data set or a search is escaped.
"""

import base64
import contextlib
import csv
import io
import json
import math
import zipfile
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from html import escape
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageOps

from orchestrator.checkpoint import DIAGNOSTICS, INSIGHT, SAMPLE, model_folders, write_whole
from orchestrator.claims import test_texts
from orchestrator.data.store import Store
from orchestrator.elements import (
    answers_html,
    details_html,
    document,
    empty_html,
    number_cell,
    score_cell,
    sections_html,
    table_html,
)
from orchestrator.findings import HEADLINES
from orchestrator.insight import (
    UNCERTAINTY,
    Insight,
    Table,
    confused_most,
    neighbour_map,
    principal_components,
    separation,
)
from orchestrator.learning import held_out_set, judge, test_set
from orchestrator.ledger import Ledger, TrialRecord, counted, params_text

SHOWN = 3
"""So many of the best trials have a page, besides the final model."""
DAMAGED = (OSError, ValueError, LookupError, TypeError, EOFError, csv.Error, zipfile.BadZipFile, zlib.error)
"""What reading a table or an array that is not whole may raise."""
CURVES = "diagnostics/"
GALLERY = "gallery"
"""A table of the tracker, `gallery.json`, and the folder of its images."""
THUMBNAIL, TILE = 64, 40
"""Pixels of the longer side: in the gallery, and of a point of the map."""
TABLE_NEIGHBOURS = 5
FRAME = 3
CLASSES, PAIRS = 300, 30
"""So many rows of the classes' table and of the pairs' stand on the page; the files have all."""
CHART = (420, 250)
MAP = 600
STROKES = ("var(--accent)", "var(--published)", "var(--done)", "var(--pruned)", "var(--interrupted)")
DASHES = ("", "6 3", "2 3", "8 3 2 3", "1 2")
PROXY_PIXELS = 384
QUALIFIERS = frozenset(("trained", "held", "out", "mixed", "class", "proxy", "mean", "jaccard", "mrr", "cosine"))
"""Words that tell the curves of one chart apart."""


@dataclass(frozen=True)
class View:
    """What a model's page is made of.

    `told` are the lines under the title, the first the most important; `image` gives an image's pixels, uint8
    (H, W, channels), by its row in the data set; `curves` are numbers per validation, by name; `proxies` the
    similarities of all pairs of proxies.
    """

    title: str
    facts: Sequence[str]
    told: Sequence[str]
    insight: Insight
    names: Sequence[str]
    image: Callable[[int], NDArray[np.uint8]]
    curves: Mapping[str, Sequence[float]] = field(default_factory=dict)
    proxies: NDArray[np.floating[Any]] | None = None
    neighbour_map: bool = True
    """Whether t-SNE, which takes seconds, is among its maps."""

    @cached_property
    def thumbnails(self) -> dict[int, Image.Image]:
        """Of all images of the gallery, by row."""
        rows = {*self.insight.query_K.tolist(), *self.insight.neighbour_KN.ravel().tolist()}
        return {row: thumbnail(self.image(row), THUMBNAIL) for row in sorted(rows)}


def shown_models(ledger: Ledger) -> list[TrialRecord]:
    """Whose model is shown: the final run's, and those of the best trials."""
    final = [ledger.final] if ledger.final is not None and ledger.final.state == "done" else []
    best = [trial for trial in ledger.best_models(SHOWN) if trial.state in ("done", "pruned")]
    return final + best


def confused_classes(ledger: Ledger, folder: Path) -> str:
    """In words, of the first of the models that are shown; empty if nothing is known of it."""
    for trial in shown_models(ledger)[:1]:
        place = folder / "trials" / trial.trial_id
        for model in dict.fromkeys([place, *model_folders(place)]):
            with contextlib.suppress(*DAMAGED):
                classes, confusions = (
                    _read_table(model / INSIGHT / f"{name}.csv") for name in ("classes", "confusions")
                )
                return confused_most(classes, confusions)
    return ""


def model_view(
    ledger: Ledger,
    trial: TrialRecord,
    folder: Path,
    store: Store,
    events: Sequence[Mapping[str, Any]],
    *,
    neighbour_map: bool = True,
) -> View | None:
    """The page of a trial's model, from what lies in the search's `folder` and its journal; None if the trial left
    nothing to see."""
    place = folder / "trials" / trial.trial_id
    insight = read_insight(place)
    if insight is None:
        return None
    settings = trial.settings
    what = "final model" if trial.kind == "final" else f"trial {trial.trial_id}"
    if trial.test:
        where = "Test (selection: test)" if ledger.selection == "test" else "Test on classes never seen before"
        scores = {name: value for name, value in trial.test.items() if name in HEADLINES}
    else:
        where = f"Held-out classes, validation {trial.best_validation} of {trial.validations}"
        scores = {name: v for name, v in trial.best_metrics.items() if name.removeprefix("val/") in HEADLINES}
    said = {name: f"{value:.4f}" for name, value in scores.items()}
    said |= {name: text for name, text in test_texts(ledger, trial.test).items() if name in said}
    told = [f"{where}: {', '.join(f'{name} {text}' for name, text in said.items())}."]
    if (found := judge(ledger, trial)).bad:
        told.insert(0, f"It learned nothing: {'; '.join(filter(None, (found.why, found.diverged)))}.")
    if (of := test_set(ledger) if trial.test else held_out_set(ledger, trial)) is not None:
        told.append(f"These are {of.size_text}; chance is {of.chance_text()}.")
    told.append(f"{what.capitalize()} of {ledger.name}" + (f": {params_text(trial.params)}." if trial.params else "."))
    facts = [str(settings.get(key)) for key in ("method", "dataset", "backbone")]
    facts += [
        f"{settings.get('embedding_dim')}-D",
        f"{len(insight.classes['class'])} classes",
        f"{insight.images} images",
    ]
    curves: dict[str, list[float]] = {}
    seen = set()
    for event in events:
        if event["event"] == "validation" and event["trial_id"] == trial.trial_id and event["validation"] not in seen:
            seen.add(event["validation"])
            for name, value in event["metrics"].items():
                if name.startswith(CURVES):
                    curves.setdefault(name.removeprefix(CURVES), []).append(value)
    return View(
        title=f"{ledger.name}: {what}",
        facts=facts,
        told=told,
        insight=insight,
        names=store.class_names,
        image=store.image,
        curves=curves,
        proxies=_proxy_similarity(place),
        neighbour_map=neighbour_map,
    )


def _proxy_similarity(place: Path) -> NDArray[np.floating[Any]] | None:
    """What the method left of its proxies, of the test or else of the best validation."""
    for folder in dict.fromkeys([place, *model_folders(place)]):
        for prefix in ("test_", ""):
            with contextlib.suppress(*DAMAGED):
                matrix = np.load(folder / DIAGNOSTICS / f"{prefix}proxy_similarity.npy", allow_pickle=False)
                if matrix.ndim == 2 and matrix.shape[0] == matrix.shape[1]:
                    return np.asarray(matrix, np.float64)
    return None


def read_insight(folder: Path) -> Insight | None:
    """The insight that lies beside a model; of a training over folds, that of the folds together, else of the first.
    None if there is none, or only a part of it."""
    for place in dict.fromkeys([folder, *model_folders(folder)]):
        try:
            with np.load(place / SAMPLE, allow_pickle=False) as arrays:
                tables = {name: _read_table(place / INSIGHT / f"{name}.csv") for name in Insight.TABLES}
                return Insight.of(tables, dict(arrays))
        except DAMAGED:
            continue
    return None


def _read_table(path: Path) -> Table:
    with path.open(newline="", encoding="utf-8") as file:
        heads, *rows = csv.reader(file)
    return {head: [_value(head, row[place]) for row in rows] for place, head in enumerate(heads)}


def _value(head: str, text: str) -> Any:
    if head in ("class", "taken_for"):
        return text
    if not text:
        return None
    return int(text) if text.lstrip("-").isdigit() else float(text)


def thumbnail(pixels: NDArray[np.uint8], side: int) -> Image.Image:
    """An image whose longer side has at most `side` pixels; (H, W, 1) is grey, (H, W, 3) coloured."""
    image = Image.fromarray(pixels[..., 0] if pixels.shape[2] == 1 else pixels).convert("RGB")
    image.thumbnail((side, side), Image.Resampling.LANCZOS)
    return image


def _source(image: Image.Image, quality: int = 80) -> str:
    file = io.BytesIO()
    image.save(file, "WEBP", quality=quality)
    return "data:image/webp;base64," + base64.b64encode(file.getvalue()).decode("ascii")


# The page ----------------------------------------------------------------------------------------------------


def model_page(view: View) -> str:
    """The HTML of a model's page."""
    maps = {"principal components": principal_components(view.insight.embedding_PD)}
    if view.neighbour_map and (near := neighbour_map(view.insight.embedding_PD)) is not None:
        maps = {"t-SNE": near} | maps
    body = "".join(_body(view, maps))
    return document(view.title, body, {}, more="model_page", data={"points": _points(view, maps)})


def write_model_page(view: View, *paths: Path) -> None:
    """The page as one or several files, each whole or not at all."""
    html = model_page(view).encode()
    for path in paths:
        write_whole(path, html)


def _body(view: View, maps: Mapping[str, Any]) -> Iterator[str]:
    yield '<a class="skip" href="#gallery">Skip to the gallery</a><main><header>'
    yield f"<h1>{escape(view.title)}</h1>"
    yield f'<p class="sub">{" · ".join(escape(fact) for fact in view.facts)}</p>'
    lines = "".join(f"<p>{escape(line)}</p>" for line in view.told)
    yield f'<div class="verdict" role="note" aria-label="Verdict">{lines}</div>'
    insight = view.insight
    yield answers_html(answers(insight), escape(confused_most(insight.classes, insight.confusions)))
    sections = [
        ("gallery", "What it finds", _gallery(view)),
        ("map", "The embedding space", _map(view, maps)),
        ("similarities", "How it parts the classes", _similarities(view.insight)),
        ("confusions", "Confused classes", _confusions(view.insight)),
        ("classes", "All classes", _classes(view.insight)),
        ("training", "Over the training", _training(view)),
        ("proxies", "Proxies", _proxies(view)),
    ]
    sections = [section for section in sections if section[2]]
    yield f"</header>{sections_html(sections)}</main>"


def answers(insight: Insight) -> dict[str, str]:
    """Question -> answer, in words."""
    from scipy.stats import spearmanr

    classes = insight.classes
    recalls = [value for value in classes["recall_at_1"] if value is not None]
    perfect, half = sum(value == 1 for value in recalls), sum(value < 0.5 for value in recalls)
    found = {
        "How many classes are hard?": f"Of {counted(len(recalls), 'class', 'classes')}, {perfect} have the right "
        f"nearest neighbour for every query, {half} for less than half."
    }
    if (apart := separation(insight.similarities)) is not None:
        positive, negative = (_mean_similarity(insight.similarities, kind) for kind in ("positive", "negative"))
        found["Do similarities part the classes?"] = (
            f"A pair of one class is more similar than a pair of two with probability {apart:.3f}; the mean cosine is "
            f"{positive:.2f} in a class, {negative:.2f} across."
        )
    if UNCERTAINTY in classes and len(recalls) > 2:
        known = [(u, r) for u, r in zip(classes[UNCERTAINTY], classes["recall_at_1"], strict=True) if r is not None]
        varied = all(len(set(values)) > 1 for values in zip(*known, strict=True))
        correlation = float(spearmanr(*zip(*known, strict=True)).statistic) if varied else math.nan
        if math.isfinite(correlation):
            how = "lower" if correlation < 0 else "higher"
            found["Is it uncertain where it errs?"] = (
                f"Classes of more uncertain images have a {how} recall@1: rank correlation {correlation:+.2f} over "
                f"{len(known)} classes."
            )
    return found


def _mean_similarity(table: Table, kind: str) -> float:
    counts = np.asarray(table[f"{kind}_pairs"], np.float64)
    middles = (np.asarray(table["low"]) + np.asarray(table["high"])) / 2
    return float((counts * middles).sum() / counts.sum())


# The gallery -------------------------------------------------------------------------------------------------


def _gallery(view: View) -> str:
    insight = view.insight
    if not insight.neighbour_KN.shape[1]:
        return empty_html("There is nothing to find: the gallery has one image.")
    rows = [_found(view, place) for place in range(len(insight.query_K))]
    worst, others = rows[: insight.worst], rows[insight.worst :]
    parts = [
        "<p>The first image of a row is the query, the others are its nearest neighbours, the nearest first. "
        '<span class="key right">✓ solid frame: of its class</span> '
        '<span class="key wrong">✗ dashed frame: of another class, which is named</span>'
        f"{' Below an image, u: its uncertainty.' if insight.uncertainty else ''}</p>",
        f"<h3>The worst query of each of the {counted(len(worst), 'worst class', 'worst classes')}</h3>",
        f'<ol class="queries">{"".join(worst)}</ol>',
    ]
    if others:
        parts += [f"<h3>{counted(len(others), 'query', 'queries')} drawn at random</h3>"]
        parts += [f'<ol class="queries">{"".join(others)}</ol>']
    return "".join(parts)


def _found(view: View, place: int) -> str:
    """A query and its neighbours."""
    insight, names = view.insight, view.names
    own = int(insight.query_label_K[place])
    name = names[own]
    query = _picture(view, int(insight.query_K[place]), f"Query: {name}", _level(insight, "K", place))
    cells = []
    count = neighbours(insight, place, insight.neighbour_KN.shape[1])
    for rank, row in enumerate(insight.neighbour_KN[place, :count].tolist()):
        label = int(insight.neighbour_label_KN[place, rank])
        right = label == own
        distance = f"distance {insight.distance_KN[place, rank]:.3f}"
        said = f"{rank + 1}: {'right' if right else 'wrong, ' + names[label]}, {distance}"
        caption = "✓" if right else f"✗ {names[label]}"
        picture = _picture(view, row, said, _level(insight, "KN", (place, rank)))
        kind = "right" if right else "wrong"
        cells.append(f'<li class="{kind}" title="{escape(said)}">{picture}<span>{escape(caption)}</span></li>')
    hits = int((insight.neighbour_label_KN[place, :count] == own).sum())
    said = f"{hits} of {count} right"
    head = f'<div class="asked"><div>{query}</div><span><b>{escape(name)}</b><br>{said}</span></div>'
    return f'<li>{head}<ol class="found">{"".join(cells)}</ol></li>'


def neighbours(insight: Insight, place: int, most: int) -> int:
    """How many neighbours of a query are looked at: no more than can be right, its class's other images."""
    own = int(insight.query_label_K[place])
    images = dict(zip(insight.classes["label"], insight.classes["queries"], strict=True))
    hits = int((insight.neighbour_label_KN[place, :most] == own).sum())
    return min(most, max(1, hits, int(images.get(own, most + 1)) - 1))


def _picture(view: View, row: int, said: str, level: str) -> str:
    image = view.thumbnails[row]
    size = f'width="{image.width}" height="{image.height}"'
    below = f"<small>{level}</small>" if level else ""
    return f'<img src="{_source(image)}" alt="{escape(said)}" {size}>{below}'


def _level(insight: Insight, part: str, place: Any) -> str:
    """`u 4.71`, the uncertainty of an image; nothing where the model has none."""
    return f"u {insight.uncertainty[part][place]:.2f}" if insight.uncertainty else ""


# The map -----------------------------------------------------------------------------------------------------


def _points(view: View, maps: Mapping[str, Any]) -> dict[str, Any]:
    """What the script needs: places of each map, classes, uncertainty, the images as one sheet."""
    insight = view.insight
    labels = np.unique(insight.label_P)
    return {
        "maps": {name: [[x, y] for x, y in _scaled(places).tolist()] for name, places in maps.items()},
        "class": np.searchsorted(labels, insight.label_P).tolist(),
        "names": [view.names[label] for label in labels],
        "uncertainty": [round(float(level), 3) for level in insight.uncertainty.get("P", ())],
        "columns": _columns(len(insight.sample_P)),
        "tile": TILE,
    }


def _columns(images: int) -> int:
    return math.ceil(math.sqrt(images))


def _scaled(places: Any) -> Any:
    """In a square of MAP pixels, with a margin; both axes by one scale, so that distances stay comparable."""
    middle = (places.max(axis=0) + places.min(axis=0)) / 2
    extent = float(np.ptp(places, axis=0).max()) or 1.0
    return np.round(MAP / 2 + (places - middle) * (MAP - 32) / extent, 1)


def _sheet(view: View) -> Image.Image:
    """The images of the map's points side by side, row by row."""
    columns = _columns(len(view.insight.sample_P))
    sheet = Image.new("RGB", (columns * TILE, math.ceil(len(view.insight.sample_P) / columns) * TILE), (128, 128, 128))
    for place, row in enumerate(view.insight.sample_P.tolist()):
        image = thumbnail(view.image(row), TILE)
        left, top = (place % columns) * TILE, place // columns * TILE
        sheet.paste(image, (left + (TILE - image.width) // 2, top + (TILE - image.height) // 2))
    return sheet


def _map(view: View, maps: Mapping[str, Any]) -> str:
    insight = view.insight
    labels = np.unique(insight.label_P)
    shown = set(labels.tolist())
    order = [label for label in insight.classes["label"] if label in shown]
    place_of = {int(label): place for place, label in enumerate(labels)}
    places = _scaled(next(iter(maps.values())))
    dots = "".join(
        f'<circle cx="{x}" cy="{y}" r="4.5" style="--hue:{place_of[int(label)] * 137.5 % 360:.0f}"/>'
        for (x, y), label in zip(places.tolist(), insight.label_P, strict=True)
    )
    kinds = "".join(f"<option>{escape(name)}</option>" for name in maps)
    options = "".join(f'<option value="{place_of[label]}">{escape(view.names[label])}</option>' for label in order)
    number = len(insight.sample_P)
    of = "All" if number == insight.images else f"{number} of the"
    said = (
        f"{of} {insight.images} images, coloured by class. In t-SNE neighbours stay together, but distances between "
        "groups mean nothing; principal components keep distances, in the plane of the largest variance only."
    )
    keys = "Point, tap, or use the arrow keys to see an image and its class."
    return (
        f'<figure class="map"><figcaption id="map-caption">Map of the embeddings<span>{escape(said)} {keys}</span>'
        '</figcaption><div class="controls">'
        f'<label>Map <select id="map-kind">{kinds}</select></label>'
        f'<label>Class, the worst first <select id="map-class"><option value="">all</option>{options}</select></label>'
        '<span><button type="button" id="map-in" aria-label="Zoom in">+</button>'
        '<button type="button" id="map-out" aria-label="Zoom out">−</button>'
        '<button type="button" id="map-reset">Reset</button></span></div>'
        f'<div class="ground"><svg id="points-map" viewBox="0 0 {MAP} {MAP}" tabindex="0" role="application" '
        f'aria-roledescription="map" aria-labelledby="map-caption">{dots}</svg>'
        f'<div id="point" hidden><div class="tile" style="width:{TILE}px;height:{TILE}px"></div><p></p></div></div>'
        '<p id="said" class="quiet" aria-live="polite"></p>'
        f"<style>#point .tile{{background-image:url({_source(_sheet(view), 60)})}}</style></figure>"
    )


# Similarities, confusions, classes ---------------------------------------------------------------------------


def _similarities(insight: Insight) -> str:
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
    """How the classes' recall is spread."""
    recalls = [value for value in insight.classes["recall_at_1"] if value is not None]
    counts, edges = np.histogram(recalls, bins=20, range=(0, 1))
    rows = [[low, int(count)] for low, count in zip(edges.tolist(), counts, strict=False)]
    more = details_html("recalls", ["recall@1 from", "classes"], rows)
    told = f"How many of {len(recalls)} classes have which recall@1."
    series = {"classes": counts.tolist()}
    return _chart(
        "recalls", "Recall@1 of the classes", told, edges.tolist(), series, more, steps=True, label="recall@1"
    )


def _confusions(insight: Insight) -> str:
    table = insight.confusions
    count = len(table["class"])
    if not count:
        return empty_html("No query has a neighbour of another class as its nearest.")
    rows = [
        [*(table[name][i] for name in ("class", "taken_for", "queries", "and_back")), _percent(table["share"][i])]
        for i in range(min(count, PAIRS))
    ]
    heads = ["class", "taken for", "queries", "and the other way", "share of both"]
    words = f"<p>{escape(confused_most(insight.classes, insight.confusions))}</p>"
    more = empty_html(f"The {PAIRS} most confused pairs; more in confusions.csv.") if count > PAIRS else ""
    return words + table_html("confusions", heads, rows, wrap=(0, 1)) + more


def _percent(share: float) -> Any:
    return number_cell(f"{share:.1%}", share)


def _classes(insight: Insight) -> str:
    table = insight.classes
    names = {
        "class": "class",
        "queries": "queries",
        "recall_at_1": "recall@1",
        "map_at_r": "MAP@R",
        "r_precision": "R-precision",
        "taken_for": "most taken for",
        "share": "share",
        "radius": "radius",
        UNCERTAINTY: "uncertainty",
    }
    keys = [key for key in names if key in table]
    scores = {"recall_at_1", "map_at_r", "r_precision"}
    count = len(table["class"])
    columns = [
        [score_cell(v) if key in scores else _percent(v) if key == "share" else v for v in table[key][:CLASSES]]
        for key in keys
    ]
    rows = list(zip(*columns, strict=True))
    more = empty_html(f"The worst {CLASSES} of {count} classes; all of them in classes.csv.") if count > CLASSES else ""
    said = "<p>Radius: the largest distance of one of a class's images to their mean.</p>"
    return said + table_html("classes", [names[key] for key in keys], rows, wrap=(0,)) + more


# Over the training -------------------------------------------------------------------------------------------


def _training(view: View) -> str:
    """A chart per family of curves: `uncertainty_trained` and `uncertainty_mixed` stand in one."""
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
    """What a curve is of, without the words that tell it from its like: `proxy_coding_rate` is a `coding rate`."""
    words = name.split("_")
    return " ".join(word for word in words if word not in QUALIFIERS) or " ".join(words)


def _proxies(view: View) -> str:
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


# Charts ------------------------------------------------------------------------------------------------------


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


# The tracker's table -----------------------------------------------------------------------------------------


def write_gallery(view: View, folder: Path, place: str) -> str:
    """The gallery as a table that MLflow shows with thumbnails: `gallery.json` in `folder`, its images beneath it.

    `place` is the folder's path among the artifacts of the run. Frames and words say what is right; the uncertainty
    stands under the image. The format is that of `mlflow.log_table` with `mlflow.Image` cells. Returns the table's
    path among the artifacts.
    """
    insight, names = view.insight, view.names
    shown = min(TABLE_NEIGHBOURS, insight.neighbour_KN.shape[1])
    heads = ["class", "query", *(f"neighbour {rank + 1}" for rank in range(shown)), "found"]
    rows = []
    for number, (row, label) in enumerate(zip(insight.query_K.tolist(), insight.query_label_K.tolist(), strict=True)):
        own = insight.neighbour_label_KN[number, : neighbours(insight, number, shown)]
        images = [_framed(view.thumbnails[row], None, _level(insight, "K", number))]
        for rank in range(shown):
            right = bool(insight.neighbour_label_KN[number, rank] == label)
            level = _level(insight, "KN", (number, rank))
            images.append(_framed(view.thumbnails[int(insight.neighbour_KN[number, rank])], right, level))
        cells = []
        for rank, image in enumerate(images):
            file = f"{GALLERY}/{number:02d}-{rank}.webp"
            content = io.BytesIO()
            image.save(content, "WEBP", quality=80)
            write_whole(folder / file, content.getvalue())
            cells.append({"type": "image", "filepath": f"{place}/{file}", "compressed_filepath": f"{place}/{file}"})
        said = ", ".join(f"{'✓' if other == label else '✗'} {names[other]}" for other in own.tolist())
        rows.append([names[label], *cells, f"{int((own == label).sum())} of {len(own)} right: {said}"])
    table = json.dumps({"columns": heads, "data": rows}, ensure_ascii=False)
    write_whole(folder / f"{GALLERY}.json", table.encode())
    return f"{place}/{GALLERY}.json"


def _framed(image: Image.Image, right: bool | None, level: str) -> Image.Image:
    """In a frame: green and whole, red and broken, or grey for a query; the level below."""
    side, below = THUMBNAIL + 2 * FRAME, 12 if level else 0
    framed = Image.new("RGB", (side, side + below), "white")
    colour = {None: (120, 120, 120), True: (26, 127, 75), False: (198, 47, 58)}[right]
    draw = ImageDraw.Draw(framed)
    draw.rectangle((0, 0, side - 1, side - 1), outline=colour, width=FRAME)
    if right is False:
        for gap in range(8, side - 8, 12):
            for box in ((gap, 0, gap + 4, FRAME - 1), (gap, side - FRAME, gap + 4, side - 1)):
                draw.rectangle(box, fill="white")
                draw.rectangle((box[1], box[0], box[3], box[2]), fill="white")
    image = ImageOps.contain(image, (THUMBNAIL, THUMBNAIL))  # small ones are enlarged
    framed.paste(image, ((side - image.width) // 2, (side - image.height) // 2))
    if level:
        draw.text((side / 2, side), level, fill="black", anchor="ma")
    return framed
