"""What a model makes of images: against slow counts; its page and its table of thumbnails, once in a real browser."""

import base64
import io
import json
import re
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from support.insight_views import CURVES, EMBEDDINGS, IMAGES, LABELS, NAMES, RNG, ROWS, WIDTH, evaluation, seen, view
from support.made_pages import CHROMIUM, HOSTILE, Elements, complaints, opened

import orchestrator.training.embed
from methods.uncertainty import certain_pairs_of_uncertain_items, gradient_weights
from orchestrator.data.store import Store
from orchestrator.evaluation.confusions import confused_most
from orchestrator.evaluation.insight import (
    NEIGHBOURS,
    POINTS,
    Insight,
    insight,
    neighbour_map,
    neighbours_of,
    principal_components,
    sample_places,
    separation,
    similarity_table,
    tabulate_classes,
)
from orchestrator.evaluation.metrics import evaluate_queries
from orchestrator.method import Diagnostics, Embedded
from orchestrator.report.html.charts import family, weights_charts
from orchestrator.report.html.gallery import write_gallery
from orchestrator.report.html.model_page import model_page, neighbours
from orchestrator.report.model_view import SHOWN_PAIRS, View, read_insight, read_pairs, read_weights
from orchestrator.storage.trial_folder import DIAGNOSTICS, SAMPLE
from orchestrator.training.embed import keep_insight, look, save_insight
from orchestrator.training.model_file import save_diagnostics


def nearest() -> list[int]:
    """The slow way."""
    distance = np.linalg.norm(EMBEDDINGS[:, None] - EMBEDDINGS[None], axis=2) + np.diag(np.full(IMAGES, np.inf))
    return [int(LABELS[place]) for place in distance.argmin(axis=1)]


# The numbers


def test_classes_and_confusions_by_counting() -> None:
    found, taken = seen(), Counter(zip(LABELS.tolist(), nearest(), strict=True))
    table = found.classes
    assert sorted(table["label"]) == sorted(set(LABELS.tolist()))
    keys = list(zip(table["recall_at_1"], table["map_at_r"], strict=True))
    assert keys == sorted(keys), "the worst class comes first"
    for place, label in enumerate(table["label"]):
        own = EMBEDDINGS[label == LABELS].astype(np.float32)
        others = {other: count for (a, other), count in taken.items() if a == label and other != label}
        assert table["queries"][place] == len(own)
        assert table["recall_at_1"][place] == pytest.approx(taken[label, label] / len(own))
        assert table["share"][place] == pytest.approx(max(others.values(), default=0) / len(own))
        if others:
            assert others[NAMES.index(table["taken_for"][place])] == max(others.values())
        assert table["radius"][place] == pytest.approx(max(np.linalg.norm(own - own.mean(0), axis=1)), rel=1e-5)
    pairs = found.confusions
    assert sum(pairs["queries"]) + sum(pairs["and_back"]) == sum(a != b for a, b in taken.elements())
    for one, other, there, back in zip(*list(pairs.values())[:4], strict=True):
        a, b = NAMES.index(one), NAMES.index(other)
        assert (there, back) == (taken[a, b], taken[b, a]) and there >= back
    assert pairs["share"] == sorted(pairs["share"], reverse=True)


def test_a_class_with_one_query_can_be_wholly_confused() -> None:
    images, labels = np.array([[0.0], [1.0]]), np.array([0, 1])
    found = evaluate_queries(
        images[:1], labels[:1], gallery=images[::-1] - 0.1, gallery_labels=labels, clustering=False
    )
    table = tabulate_classes(found, NAMES, images[:1], labels[:1])
    assert (table["taken_for"], table["share"]) == ([NAMES[1]], [1.0])


def test_the_three_most_confused_in_words() -> None:
    classes, confusions = seen().classes, seen().confusions
    said = confused_most(classes, confusions)
    assert said.count("recall@1") == 3 and said.startswith(f"{classes['class'][0]} (recall@1 ")
    assert f"taken for {classes['taken_for'][0]} in {classes['share'][0]:.0%} of its queries" in said
    pairs = zip(confusions["class"], confusions["taken_for"], confusions["share"], strict=True)
    told = "; ".join(f"{one} and {other} ({share:.0%} of their queries)" for one, other, share in list(pairs)[:3])
    assert said.endswith(f" The most confused pairs: {told}.")
    perfect = {name: values[:1] for name, values in classes.items()} | {"recall_at_1": [1.0]}
    assert confused_most(perfect, {name: [] for name in confusions}).startswith("None:")


def test_the_gallery_shows_true_neighbours_of_the_worst_and_of_any() -> None:
    found, table = seen(), evaluation().queries.to_pydict()
    place_of = {int(row): place for place, row in enumerate(ROWS)}
    assert len(set(found.query_K.tolist())) == len(found.query_K) == found.worst + 8
    for number, row in enumerate(found.query_K.tolist()):
        place = place_of[row]
        if number < found.worst:
            own = [value for value, label in zip(table["map_at_r"], LABELS, strict=True) if label == LABELS[place]]
            assert LABELS[place] == found.classes["label"][number]
            assert table["map_at_r"][place] == min(own)
        distance = np.linalg.norm(EMBEDDINGS - EMBEDDINGS[place], axis=1)
        distance[place] = np.inf
        expected = np.argsort(distance)[:NEIGHBOURS]
        assert found.neighbour_KN[number].tolist() == ROWS[expected].tolist()
        assert found.neighbour_label_KN[number].tolist() == LABELS[expected].tolist()
        np.testing.assert_allclose(found.distance_KN[number], distance[expected], rtol=1e-5)


def test_copies_and_galleries_apart() -> None:
    rows = np.zeros((20, 3), np.float32)
    rows[10:] = 1
    _, found = neighbours_of(rows, np.array([3, 15]))
    assert 3 not in found[0] and 15 not in found[1]
    assert set(found[0].tolist()) < set(range(10)) and found.shape == (2, NEIGHBOURS)
    _, apart = neighbours_of(rows, np.array([3]), np.arange(10, 20))
    assert set(apart[0].tolist()) < set(range(10, 20))
    _, few = neighbours_of(rows[:3], np.array([0]))
    assert few.tolist() == [[1, 2]]


def test_the_sample_is_bounded_and_has_pairs() -> None:
    many = RNG.integers(0, 4000, 30_000)
    chosen = sample_places(many)
    assert len(chosen) == POINTS == len(set(chosen.tolist())) and (chosen == sample_places(many)).all()
    assert min(sorted(Counter(many[chosen].tolist()).values())[1:]) >= min(Counter(many.tolist()).values())
    few = np.repeat([0, 1], [50, 5000])
    assert Counter(few[sample_places(few)].tolist()) == {0: 50, 1: POINTS // 2}
    assert sample_places(LABELS).tolist() == list(range(IMAGES))


def test_similarities_by_counting() -> None:
    table = similarity_table(EMBEDDINGS, LABELS)
    unit = EMBEDDINGS / np.linalg.norm(EMBEDDINGS, axis=1, keepdims=True)
    pairs = [(float(unit[i] @ unit[j]), LABELS[i] == LABELS[j]) for i in range(IMAGES) for j in range(i)]
    assert sum(table["positive_pairs"]) == sum(bool(same) for _, same in pairs)
    assert sum(table["negative_pairs"]) == sum(not same for _, same in pairs)
    middle = table["low"][30]
    assert sum(table["negative_pairs"][:30]) == sum(not same and cosine < middle for cosine, same in pairs)
    positive, negative = ([c for c, same in pairs if bool(same) == kind] for kind in (True, False))
    exact = np.mean([np.mean(np.less(negative, c)) for c in positive])
    assert separation(table) == pytest.approx(exact, abs=0.01)
    assert separation(similarity_table(np.eye(3), np.arange(3))) is None


def test_maps() -> None:
    plane = principal_components(EMBEDDINGS)
    centred = EMBEDDINGS - EMBEDDINGS.mean(axis=0)
    values = np.linalg.svd(centred, compute_uv=False)
    np.testing.assert_allclose(np.linalg.norm(plane, axis=0), values[:2], rtol=1e-9)
    near = neighbour_map(EMBEDDINGS)
    assert near is not None and near.shape == (IMAGES, 2) and np.isfinite(near).all()
    np.testing.assert_array_equal(near, neighbour_map(EMBEDDINGS))
    assert neighbour_map(np.ones((50, 4))) is None and neighbour_map(EMBEDDINGS[:3]) is None
    assert principal_components(np.ones((5, 1))).shape == (5, 2)


@pytest.mark.parametrize("value", [0.0, 1.0])
def test_a_collapsed_network_is_looked_at_too(value: float) -> None:
    same = torch.full((IMAGES, WIDTH), value)
    images = Embedded({"embedding": same}, torch.from_numpy(LABELS), torch.from_numpy(ROWS))
    result = evaluate_queries(same, LABELS, clustering=False)
    result = type(result)(result.metrics, result.queries.set_column(0, "query", [ROWS]))
    found = insight(result, images, NAMES)
    assert separation(found.similarities) == pytest.approx(0.5)
    html = model_page(View("collapsed", [], [], found, NAMES, lambda row: np.zeros((8, 8, 1), np.uint8)))
    assert "of two classes 50% of the time" in html and ">nan" not in html and not re.search(r'="[^"]*\bnan\b', html)


def test_what_goes_wrong_in_looking_costs_no_training(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, glyphs: Store
) -> None:
    def broken(*_: Any) -> Insight:
        raise ZeroDivisionError("no such thing")

    monkeypatch.setattr(orchestrator.training.embed, "insight", broken)
    place = np.arange(20)
    images = Embedded({"embedding": torch.eye(20)}, torch.from_numpy(glyphs.labels[place]), torch.from_numpy(place))
    with pytest.warns(UserWarning, match="not saved .ZeroDivisionError: no such thing"):
        keep_insight(tmp_path, evaluation(), images, glyphs)
    assert list(tmp_path.iterdir()) == []


def test_uncertainty_goes_along() -> None:
    level = torch.from_numpy(RNG.normal(size=(IMAGES, 3)))
    found = seen(uncertainty=level)
    norms = dict(zip(ROWS.tolist(), torch.linalg.vector_norm(level, dim=1).tolist(), strict=True))
    assert found.uncertainty["K"].tolist() == pytest.approx([norms[row] for row in found.query_K.tolist()])
    assert found.uncertainty["KN"][2, 3] == pytest.approx(norms[int(found.neighbour_KN[2, 3])])
    label = found.classes["label"][0]
    own = [norms[row] for row, other in zip(ROWS.tolist(), LABELS, strict=True) if other == label]
    assert found.classes["uncertainty"][0] == pytest.approx(np.mean(own))


def test_what_is_kept_is_read_again(tmp_path: Path, glyphs: Store) -> None:
    place = np.flatnonzero(np.isin(glyphs.labels, np.unique(glyphs.labels)[:10]))[:200]
    outputs = {"embedding": torch.randn(len(place), 5, generator=torch.Generator().manual_seed(0))}
    images = Embedded(outputs, torch.from_numpy(glyphs.labels[place]), torch.from_numpy(place))
    result = evaluate_queries(outputs["embedding"], images.labels, clustering=False)
    result = type(result)(result.metrics, result.queries.set_column(0, "query", [place]))
    found = look(result, images, glyphs)
    save_insight(tmp_path, found)
    again = read_insight(tmp_path)
    assert again is not None and again.tables == found.tables and again.worst == found.worst
    for name, array in found.arrays.items():
        np.testing.assert_array_equal(again.arrays[name], array)
    (tmp_path / SAMPLE).write_bytes(b"not a file of numpy")
    assert read_insight(tmp_path) is None and read_insight(tmp_path / "nowhere") is None


# The page


def test_the_page_is_whole_and_offline() -> None:
    html = model_page(view(curves=CURVES, proxies=np.corrcoef(RNG.normal(size=(20, 8)))))
    assert len(html.encode()) < 2_000_000
    elements = Elements(html)
    loads = [value for _, found in elements.tags for name, value in found.items() if name in ("src", "href") and value]
    assert all(value.startswith(("#", "data:")) for value in loads)
    ids = [found["id"] for _, found in elements.tags if found.get("id")]
    assert len(ids) == len(set(ids))
    assert {"gallery", "map", "similarities", "confusions", "classes", "training", "proxies"} <= set(ids)
    pictures = [found for tag, found in elements.tags if tag == "img"]
    found = view().insight
    reach = np.array([[neighbours(found, place, NEIGHBOURS)] for place in range(20)])
    assert len(pictures) == reach.sum() + 20 + 1 and all(found["alt"] for found in pictures)
    labelled = [found["aria-labelledby"] for _, found in elements.tags if found.get("aria-labelledby")]
    assert set(labelled) <= set(ids)
    frames = Counter(found["class"] for tag, found in elements.tags if tag == "li" and found.get("class"))
    right = found.neighbour_label_KN == found.query_label_K[:, None]
    shown = np.arange(NEIGHBOURS) < reach
    assert frames == {"right": int((right & shown).sum()), "wrong": int((~right & shown).sum())}
    first = Image.open(io.BytesIO(base64.b64decode(str(pictures[0]["src"]).partition(",")[2])))
    assert max(first.size) == 64 and first.size[1] < 64, "a thumbnail keeps the image's shape"
    points = json.loads(re.findall(r'id="points">(.*?)</script>', html)[0])
    assert set(points["maps"]) == {"t-SNE", "principal components"} and len(points["maps"]["t-SNE"]) == IMAGES
    text = "".join(elements.text)
    assert confused_most(found.classes, found.confusions) in text and "uncertainty_mixed 6" in text
    plain = "".join(Elements(model_page(view(uncertain=False))).text)
    for words in ("u: its uncertainty", "u 0."):
        assert words in text and words not in plain


def uncertain_tables(seed: int) -> dict[str, dict[str, list[Any]]]:
    """What IDML records of 40 of the images."""
    s, u = (torch.from_numpy(np.random.default_rng(seed).normal(size=(40, 6))) for _ in range(2))
    alpha, beta = torch.cdist(s, s), torch.cdist(u, -u)
    rows, level = torch.from_numpy(ROWS[:40]), u.norm(dim=1)
    return {
        "gradient_weights_trained": gradient_weights(alpha, beta, tau=5.0, gamma=0.0),
        "gradient_weights_held_out": gradient_weights(alpha, beta, tau=1.0, gamma=1.0),
        "certain_pairs": certain_pairs_of_uncertain_items(
            beta, level, {"sample": rows, "label": torch.from_numpy(LABELS[:40])}
        ),
    }


def test_weights_of_gradients_and_certain_pairs_are_drawn(tmp_path: Path) -> None:
    """Only where they were recorded; what the test recorded goes before the best validation."""
    first, tested = uncertain_tables(0), uncertain_tables(1)
    assert read_weights(tmp_path) == {} and read_pairs(tmp_path) is None
    save_diagnostics(tmp_path / "fold-0" / DIAGNOSTICS, Diagnostics({}, {}, first))
    assert list(read_weights(tmp_path)) == ["training images", "held-out images"]
    assert read_pairs(tmp_path) == first["certain_pairs"]
    save_diagnostics(tmp_path / "fold-0" / DIAGNOSTICS, Diagnostics({}, {}, tested), "test_")
    weights, pairs = read_weights(tmp_path), read_pairs(tmp_path)
    expected = {"training images": "gradient_weights_trained", "test images": "gradient_weights_held_out"}
    of = {"training images": first, "test images": tested}
    assert weights == {images: of[images][name] for images, name in expected.items()}
    assert pairs == tested["certain_pairs"]

    shown = view(gradient_weights=weights, certain_pairs=pairs)
    charts = weights_charts(shown)
    assert [chart.label for chart in charts] == ["semantic distance", "uncertainty", "relative uncertainty"]
    for chart in charts:
        rows = list(zip(*first["gradient_weights_trained"].values(), strict=True))
        means = [row[4] for row in rows if row[0] == chart.label.replace(" ", "_")]
        line, other = chart.curves
        assert (line.name, other.name) == ("training images", "test images")
        heights = [float(pair.split()[1]) for pair in line.path[1:].split("L")]
        (zero, _), (tick, number) = chart.up[0], chart.up[1]
        assert chart.up[0][1] == 0 and len(heights) == len(means) == 20
        scale = (zero - tick) / number
        assert [(zero - height) / scale for height in heights] == pytest.approx(means, abs=0.2 / scale)
        assert line.band.endswith("Z") and line.band.count("L") == 39
    html = model_page(shown)
    elements = Elements(html)
    text = "".join(elements.text)
    assert "Uncertain pairs" in text and f"pair: u {pairs['uncertainty'][0]:.2f}" in text
    plain = model_page(view())
    pictures = len([tag for tag, _ in elements.tags if tag == "img"])
    assert pictures == len([tag for tag, _ in Elements(plain).tags if tag == "img"]) + 2 * SHOWN_PAIRS
    assert "Uncertain pairs" not in plain and "couples" not in re.sub(r"<style>.*?</style>", "", plain, flags=re.S)
    (tmp_path / "fold-0" / DIAGNOSTICS / "test_certain_pairs.csv").write_text("sample_1,sample_2\n1,2\n")
    assert read_pairs(tmp_path) == first["certain_pairs"], "a table without its columns is no table"


def test_names_cannot_break_out() -> None:
    hostile = [f"{HOSTILE}{label}" for label in range(12)]
    more: dict[str, Any] = {"neighbour_map": False, "certain_pairs": uncertain_tables(0)["certain_pairs"]}
    harmless = [f"{'x' * len(HOSTILE)}{label}" for label in range(12)]
    calm, html = (model_page(view(names, **more)) for names in (harmless, hostile))
    tags = [[tag for tag, _ in Elements(page).tags if tag != "wbr"] for page in (calm, html)]
    assert tags[0] == tags[1]
    assert f"{HOSTILE}3" in "".join(Elements(html).text)


def test_curves_of_a_kind_stand_together() -> None:
    assert family("uncertainty_mixed") == family("uncertainty_held_out") == "uncertainty"
    assert family("proxy_coding_rate") == family("class_coding_rate") == family("coding_rate") == "coding rate"
    assert family("covering_radius") == family("mean_covering_radius") == "covering radius"
    assert family("mean") == "mean"


def test_the_tracker_s_table_has_its_images(tmp_path: Path) -> None:
    assert write_gallery(view(), tmp_path / "insight", "insight") == "insight/gallery.json"
    table = json.loads((tmp_path / "insight" / "gallery.json").read_text("utf-8"))
    assert len(table["data"]) == 20 and all(len(row) == len(table["columns"]) for row in table["data"])
    cells = [cell for row in table["data"] for cell in row if isinstance(cell, dict)]
    assert len(cells) == 20 * 6 and all(cell["type"] == "image" for cell in cells)
    for cell in cells:
        with Image.open(tmp_path / cell["filepath"]) as image:
            assert image.size == (70, 82)
    assert table["columns"] == ["class", "query", *(f"neighbour {rank}" for rank in range(1, 6)), "found"]
    for row in table["data"]:
        right, of, marks = re.fullmatch(r"(\d) of (\d) right: (.*)", row[-1]).groups()  # type: ignore[union-attr]
        assert (marks.count("✓"), marks.count("✗")) == (int(right), int(of) - int(right))
        assert marks.count(f"✓ {row[0]}") == int(right)
    total = sum(path.stat().st_size for path in (tmp_path / "insight").rglob("*.webp"))
    assert total < 1_000_000


@pytest.mark.slow
@pytest.mark.skipif(CHROMIUM is None, reason="needs chromium")
@pytest.mark.parametrize("dark", [False, True])
def test_a_browser_shows_the_map_and_the_images_of_its_points(tmp_path: Path, dark: bool) -> None:
    html = model_page(view([HOSTILE, *NAMES[1:]], curves=CURVES))
    keys = (
        'const drawn = document.getElementById("points-map"); drawn.focus();'
        'drawn.dispatchEvent(new KeyboardEvent("keydown", {key: "ArrowRight"}));'
    )
    path = tmp_path / "model.html"
    path.write_text(html.replace("</body>", f"<script>{keys}</script></body>"), encoding="utf-8")
    theme = ["--blink-settings=preferredColorScheme=0"] if dark else []
    shown = opened(path.as_uri(), "--dump-dom", *theme, folder=tmp_path)
    assert complaints(shown.stderr) == []
    elements = Elements(shown.stdout)
    card = next(found for _, found in elements.tags if found.get("id") == "point")
    assert "hidden" not in card
    assert HOSTILE in "".join(elements.text)
    at = [found for tag, found in elements.tags if tag == "circle" and found.get("class") == "at"]
    assert len(at) == 1
    faded = [found for tag, found in elements.tags if tag == "circle" and found.get("class") == "faded"]
    assert len(faded) == IMAGES - int((LABELS == 0).sum())


def test_no_more_neighbours_are_looked_at_than_can_be_right() -> None:
    """A class of three images has two others: a perfect query finds 2 of 2."""
    found = view().insight
    classes = {**found.classes, "label": [0, 1], "queries": [3, 50]}
    labels = np.array([[0, 0, 1, 1], [0, 1, 0, 0], [1, 0, 0, 0]])
    few = replace(found, classes=classes, query_label_K=np.array([0, 0, 1]), neighbour_label_KN=labels)
    assert [neighbours(few, place, 4) for place in range(3)] == [2, 3, 4]


def test_classes_with_long_names_are_shown_with_an_image_of_them() -> None:
    long = [f"{name}, whose name is long" for name in NAMES]
    shades = {row: 20 * label for row, label in zip(ROWS.tolist(), LABELS.tolist(), strict=True)}
    shown = replace(view(long), image=lambda row: np.full((40, 40, 3), shades[row], np.uint8))
    html = model_page(shown)
    sheet = re.search(r"\.tile\{[^}]*url\(data:image/webp;base64,([^)]*)\)", html)
    assert sheet is not None
    image = Image.open(io.BytesIO(base64.b64decode(sheet[1]))).convert("L")
    found = re.findall(r'class="pictured" title="([^"]*)">.*?background-position:-(\d+)px -(\d+)px', html)
    for name, left, top in found:
        shade = image.getpixel((int(left) + 20, int(top) + 20))
        assert shade == pytest.approx(20 * long.index(name), abs=4), name
    insight = shown.insight
    pairs = len(insight.confusions["class"])
    named = [*insight.classes["class"], *filter(None, insight.classes["taken_for"])]
    assert len(found) == 2 * min(pairs, 3) + 2 * min(pairs, 30) + len(named) > 24
    assert 'class="pictured"' not in model_page(view())
