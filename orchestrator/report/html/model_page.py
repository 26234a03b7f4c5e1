"""What one model does, as one self-contained page."""

import math
from collections.abc import Iterator, Mapping
from html import escape
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from orchestrator.evaluation.insight import (
    UNCERTAINTY,
    Insight,
    Table,
    confused_most,
    neighbour_map,
    principal_components,
    separation,
)
from orchestrator.evaluation.measures import OF_CLASSES
from orchestrator.report.html.charts import proxies_chart, similarities_chart, training_charts
from orchestrator.report.html.elements import (
    answers_html,
    document,
    empty_html,
    number_cell,
    score_cell,
    sections_html,
    table_html,
)
from orchestrator.report.model_view import TILE, View, image_source, thumbnail
from orchestrator.storage.atomic import write_whole
from orchestrator.text import counted

CLASSES, PAIRS = 300, 30
"""The maximum number of rows of the tables of classes and of pairs on the page; the files have all."""
MAP = 600


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
        ("similarities", "How it parts the classes", similarities_chart(view.insight)),
        ("confusions", "Confused classes", _confusions(view.insight)),
        ("classes", "All classes", _classes(view.insight)),
        ("training", "Over the training", training_charts(view)),
        ("proxies", "Proxies", proxies_chart(view)),
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
    query = _picture(view, int(insight.query_K[place]), f"Query: {name}", uncertainty_text(insight, "K", place))
    cells = []
    count = neighbours(insight, place, insight.neighbour_KN.shape[1])
    for rank, row in enumerate(insight.neighbour_KN[place, :count].tolist()):
        label = int(insight.neighbour_label_KN[place, rank])
        right = label == own
        distance = f"distance {insight.distance_KN[place, rank]:.3f}"
        said = f"{rank + 1}: {'right' if right else 'wrong, ' + names[label]}, {distance}"
        caption = "✓" if right else f"✗ {names[label]}"
        picture = _picture(view, row, said, uncertainty_text(insight, "KN", (place, rank)))
        kind = "right" if right else "wrong"
        cells.append(f'<li class="{kind}" title="{escape(said)}">{picture}<span>{escape(caption)}</span></li>')
    hits = int((insight.neighbour_label_KN[place, :count] == own).sum())
    said = f"{hits} of {count} right"
    head = f'<div class="asked"><div>{query}</div><span><b>{escape(name)}</b><br>{said}</span></div>'
    return f'<li>{head}<ol class="found">{"".join(cells)}</ol></li>'


def neighbours(insight: Insight, place: int, most: int) -> int:
    """How many neighbours of a query are shown: at most as many as can be right, its class's other images."""
    own = int(insight.query_label_K[place])
    images = dict(zip(insight.classes["label"], insight.classes["queries"], strict=True))
    hits = int((insight.neighbour_label_KN[place, :most] == own).sum())
    return min(most, max(1, hits, int(images.get(own, most + 1)) - 1))


def _picture(view: View, row: int, said: str, level: str) -> str:
    image = view.thumbnails[row]
    size = f'width="{image.width}" height="{image.height}"'
    below = f"<small>{level}</small>" if level else ""
    return f'<img src="{image_source(image)}" alt="{escape(said)}" {size}>{below}'


def uncertainty_text(insight: Insight, part: str, place: Any) -> str:
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
    """Scaled into a square of MAP pixels, with a margin; one scale for both axes, so that distances stay comparable."""
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
        f"<style>#point .tile{{background-image:url({image_source(_sheet(view), 60)})}}</style></figure>"
    )


# Similarities, confusions, classes ---------------------------------------------------------------------------


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
        **{metric.name: metric.label for metric in OF_CLASSES},
        "taken_for": "most taken for",
        "share": "share",
        "radius": "radius",
        UNCERTAINTY: "uncertainty",
    }
    keys = [key for key in names if key in table]
    scores = {metric.name for metric in OF_CLASSES}
    count = len(table["class"])
    columns = [
        [score_cell(v) if key in scores else _percent(v) if key == "share" else v for v in table[key][:CLASSES]]
        for key in keys
    ]
    rows = list(zip(*columns, strict=True))
    more = empty_html(f"The worst {CLASSES} of {count} classes; all of them in classes.csv.") if count > CLASSES else ""
    said = "<p>Radius: the largest distance of one of a class's images to their mean.</p>"
    return said + table_html("classes", [names[key] for key in keys], rows, wrap=(0,)) + more
