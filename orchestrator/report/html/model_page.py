"""What one model does, as one self-contained page."""

import math
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from orchestrator.evaluation.confusions import confused_most
from orchestrator.evaluation.insight import (
    UNCERTAINTY,
    Insight,
    principal_components,
    separation,
)
from orchestrator.evaluation.measures import OF_CLASSES
from orchestrator.report.html.charts import (
    proxies_matrix,
    recalls_chart,
    similarities_chart,
    training_charts,
    weights_charts,
)
from orchestrator.report.html.elements import Cell, Table, number_cell, score_cell
from orchestrator.report.html.rendering import render
from orchestrator.report.model_view import PAIR_COLUMNS, SHOWN_PAIRS, TILE, View, image_source, thumbnail
from orchestrator.storage.atomic import write_whole
from orchestrator.text import pluralize

CLASSES, PAIRS = 300, 30
"""The maximum number of rows of the tables of classes and of pairs on the page; the files have all."""
COUPLES = 3
"""The number of confused pairs shown at the top."""
MAP = 600
LONG_NAME = 20
"""Where a class's name has more characters, the page shows each class with an image of it."""


# The page ----------------------------------------------------------------------------------------------------


def model_page(view: View) -> str:
    """The HTML of a model's page."""
    maps = {"principal components": principal_components(view.insight.embedding_PD)}
    if view.near is not None:
        maps = {"t-SNE": view.near} | maps
    insight, pictures = view.insight, _pictures(view)
    values = {
        "view": view,
        "insight": insight,
        "questions": answers(insight),
        "confused": confused_most(insight.classes, insight.confusions),
        "worst": confused_most(insight.classes, {column: [] for column in insight.confusions}),
        "couples": _couples(insight, pictures),
        "sections": {
            "gallery": _gallery(view),
            "map": _map(view, maps),
            "similarities": {"pairs": similarities_chart(insight), "recalls": recalls_chart(insight)},
            "confusions": {"table": _confusions(insight, pictures), "shown": PAIRS},
            "classes": {"table": _classes(insight, pictures), "shown": CLASSES},
            "training": training_charts(view) or None,
            "uncertainty": _uncertainty(view),
            "proxies": proxies_matrix(view),
        },
    }
    return render("model.html", values, more="model_page", data={"points": _points(view, maps)})


def write_model_page(view: View, *paths: Path) -> None:
    """The page as one or several files, each whole or not at all."""
    html = model_page(view).encode()
    for path in paths:
        write_whole(path, html)


def answers(insight: Insight) -> dict[str, str]:
    """Question -> answer, in words."""
    from scipy.stats import spearmanr

    classes = insight.classes
    recalls = [value for value in classes["recall_at_1"] if value is not None]
    perfect, half = sum(value == 1 for value in recalls), sum(value < 0.5 for value in recalls)
    by_question = {
        "How many classes are hard?": f"Of {pluralize(len(recalls), 'class', 'classes')}, {perfect} have the right "
        f"nearest neighbour for every query, {half} for less than half."
    }
    if (apart := separation(insight.similarities)) is not None:
        positive, negative = (_mean_similarity(insight.similarities, kind) for kind in ("positive", "negative"))
        by_question["Does similarity separate the classes?"] = (
            f"A pair of one class is more similar than a pair of two classes {apart:.0%} of the time; the mean cosine "
            f"is {positive:z.2f} within a class and {negative:z.2f} between classes."
        )
    if UNCERTAINTY in classes and len(recalls) > 2:
        pairs = [(u, r) for u, r in zip(classes[UNCERTAINTY], classes["recall_at_1"], strict=True) if r is not None]
        varied = all(len(set(values)) > 1 for values in zip(*pairs, strict=True))
        correlation = float(spearmanr(*zip(*pairs, strict=True)).statistic) if varied else math.nan
        if math.isfinite(correlation):
            how = "lower" if correlation < 0 else "higher"
            by_question["Is it uncertain where it is wrong?"] = (
                f"Classes of more uncertain images have a {how} recall@1: rank correlation {correlation:+.2f} over "
                f"{len(pairs)} classes."
            )
    return by_question


def _mean_similarity(table: Mapping[str, Any], kind: str) -> float:
    counts = np.asarray(table[f"{kind}_pairs"], np.float64)
    middles = (np.asarray(table["low"]) + np.asarray(table["high"])) / 2
    return float((counts * middles).sum() / counts.sum())


# The gallery -------------------------------------------------------------------------------------------------


def _gallery(view: View) -> dict[str, Any]:
    """The queries with their neighbours: of the worst classes, and others."""
    insight = view.insight
    rows = [_query(view, place) for place in range(len(insight.query_K))] if insight.neighbour_KN.shape[1] else []
    return {"worst": rows[: insight.worst], "others": rows[insight.worst :]}


def _query(view: View, place: int) -> dict[str, Any]:
    """A query and its neighbours."""
    insight, names = view.insight, view.names
    query_label = int(insight.query_label_K[place])
    query = _picture(view, int(insight.query_K[place]), uncertainty_text(insight, "K", place))
    tiles = []
    for rank in range(neighbours(insight, place, insight.neighbour_KN.shape[1])):
        label = int(insight.neighbour_label_KN[place, rank])
        level = uncertainty_text(insight, "KN", (place, rank))
        picture = _picture(view, int(insight.neighbour_KN[place, rank]), level)
        tiles.append(
            picture
            | {"right": label == query_label, "name": names[label]}
            | {"measure": "product" if insight.by_product else "distance", "value": insight.distance_KN[place, rank]}
        )
    return {"name": names[query_label], "picture": query, "found": tiles}


def neighbours(insight: Insight, place: int, most: int) -> int:
    """How many neighbours of a query are shown: at most as many as can be right, its class's other images."""
    label = int(insight.query_label_K[place])
    images = dict(zip(insight.classes["label"], insight.classes["queries"], strict=True))
    hits = int((insight.neighbour_label_KN[place, :most] == label).sum())
    return min(most, max(1, hits, int(images.get(label, most + 1)) - 1))


def _picture(view: View, row: int, level: str) -> dict[str, Any]:
    image = view.thumbnails[row]
    return {"source": image_source(image), "width": image.width, "height": image.height, "level": level}


def uncertainty_text(insight: Insight, part: str, place: Any) -> str:
    """`u 4.71`, the uncertainty of an image; nothing where the model has none."""
    return f"u {insight.uncertainty[part][place]:.2f}" if insight.uncertainty else ""


# Uncertainty -------------------------------------------------------------------------------------------------


def _uncertainty(view: View) -> dict[str, Any] | None:
    """What uncertainty does to gradients, and pairs that are certain though both images are not."""
    charts, table = weights_charts(view), view.certain_pairs
    pairs = []
    if table is not None:
        columns = [table[name][:SHOWN_PAIRS] for name in PAIR_COLUMNS]
        for row_1, row_2, label_1, label_2, level_1, level_2, uncertainty in zip(*columns, strict=True):
            images = [
                {"picture": _picture(view, row, f"u {level:.2f}"), "name": view.names[label]}
                for row, label, level in ((row_1, label_1, level_1), (row_2, label_2, level_2))
            ]
            pairs.append({"images": images, "uncertainty": f"{uncertainty:.2f}"})
    return {"charts": charts, "pairs": pairs} if charts or pairs else None


# The map -----------------------------------------------------------------------------------------------------


def _points(view: View, maps: Mapping[str, Any]) -> dict[str, Any]:
    """What the script needs: places of each map, classes, uncertainty, the images as one sheet."""
    insight = view.insight
    labels = np.unique(insight.label_P)
    return {
        "maps": {name: [[x, y] for x, y in _scale(places).tolist()] for name, places in maps.items()},
        "class": np.searchsorted(labels, insight.label_P).tolist(),
        "names": [view.names[label] for label in labels],
        "uncertainty": [round(float(level), 3) for level in insight.uncertainty.get("P", ())],
        "columns": _columns(len(insight.sample_P)),
        "tile": TILE,
    }


def _columns(images: int) -> int:
    return math.ceil(math.sqrt(images))


def _scale(places: Any) -> Any:
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


def _map(view: View, maps: Mapping[str, Any]) -> dict[str, Any]:
    """The points of the first map, and what the reader chooses from."""
    insight = view.insight
    labels = np.unique(insight.label_P)
    place_of = {int(label): place for place, label in enumerate(labels)}
    places = _scale(next(iter(maps.values()))).tolist()
    hues = [f"{place_of[int(label)] * 137.5 % 360:.0f}" for label in insight.label_P]
    return {
        "dots": [(x, y, hue) for (x, y), hue in zip(places, hues, strict=True)],
        "kinds": list(maps),
        "classes": [(place_of[label], view.names[label]) for label in insight.classes["label"] if label in place_of],
        "points": len(insight.sample_P),
        "size": MAP,
        "tile": TILE,
        "sheet": image_source(_sheet(view), 60),
    }


# Similarities, confusions, classes ---------------------------------------------------------------------------

Pictures = Mapping[str, tuple[int, int]]
"""Where the sheet of the map has an image of a class, in pixels from its left and top, by the class's name."""


def _pictures(view: View) -> Pictures:
    """An image of each class that has one on the map; none where all names are short."""
    insight = view.insight
    if all(len(name) <= LONG_NAME for name in insight.classes["class"]):
        return {}
    labels, first = np.unique(insight.label_P, return_index=True)
    columns = _columns(len(insight.sample_P))
    return {
        view.names[label]: (place % columns * TILE, place // columns * TILE)
        for label, place in zip(labels.tolist(), first.tolist(), strict=True)
    }


def _class_cell(name: str, pictures: Pictures) -> Cell:
    return Cell(name, picture=pictures.get(name))


def _couples(insight: Insight, pictures: Pictures) -> list[dict[str, Any]]:
    """The most confused pairs whose images are known, for the answer at the top."""
    table = insight.confusions
    pairs = zip(table["class"], table["taken_for"], table["share"], strict=True)
    pictured = [(one, other, share) for one, other, share in pairs if one in pictures and other in pictures]
    return [
        {"classes": [_class_cell(one, pictures), _class_cell(other, pictures)], "share": f"{share:.0%}"}
        for one, other, share in pictured[:COUPLES]
    ]


def _confusions(insight: Insight, pictures: Pictures) -> Table | None:
    table = insight.confusions
    count = len(table["class"])
    if not count:
        return None
    rows = [
        [
            *(_class_cell(table[name][i], pictures) for name in ("class", "taken_for")),
            *(table[name][i] for name in ("queries", "and_back")),
            _percent(table["share"][i]),
        ]
        for i in range(min(count, PAIRS))
    ]
    heads = ["class", "taken for", "queries", "and the other way", "share of both"]
    return Table("confusions", heads, rows, wrap=(0, 1))


def _same(value: Any) -> Any:
    return value


def _percent(share: float) -> Cell:
    return number_cell(f"{share:.1%}", share)


def _classes(insight: Insight, pictures: Pictures) -> Table:
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
    formats: dict[str, Callable[[Any], Any]] = {**dict.fromkeys(scores, score_cell), "share": _percent}
    formats |= dict.fromkeys(("class", "taken_for"), partial(_class_cell, pictures=pictures))
    columns = [[formats.get(key, _same)(value) for value in table[key][:CLASSES]] for key in keys]
    rows = list(zip(*columns, strict=True))
    return Table("classes", [names[key] for key in keys], rows, wrap=(0,))
