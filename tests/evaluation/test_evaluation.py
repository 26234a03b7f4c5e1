"""Evaluation against slow references: double loops over float64 distances."""

import importlib.util
import math
import re
import subprocess
import sys
from collections import Counter
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest
import torch
from sklearn.metrics import adjusted_mutual_info_score
from support.references import ranking_metrics

from orchestrator.evaluation import clustering, metrics
from orchestrator.evaluation import neighbours as neighbours_module
from orchestrator.evaluation.chance import chance_levels, chance_of_clusters
from orchestrator.evaluation.measures import METRICS, metric_of
from orchestrator.evaluation.measures.clusters import (
    adjusted_mutual_information,
    normalized_mutual_information,
    pairwise_f1,
)
from orchestrator.evaluation.metrics import evaluate_embeddings, evaluate_queries
from orchestrator.evaluation.neighbours import nearest_neighbours
from orchestrator.evaluation.ties import NO_TIES, Ties


@pytest.fixture(params=["faiss", "torch"])
def backend(request, monkeypatch):
    if request.param == "torch":
        monkeypatch.setattr(clustering, "faiss", None)
        monkeypatch.setattr(metrics, "faiss", None)
        monkeypatch.setattr(neighbours_module, "faiss", None)
    elif neighbours_module.faiss is None:
        pytest.skip("faiss is not installed")
    return request.param


def reference_neighbours(queries, gallery, exclude_self, exact=False):
    """Per query all gallery rows in order, by (distance, index); `exact` computes in rational numbers."""
    number = Fraction if exact else float
    order = []
    for i, query in enumerate(queries):
        ranked = []
        for j, row in enumerate(gallery):
            if exclude_self and i == j:
                continue
            pairs = zip(query, row, strict=True)
            ranked.append((sum((number(float(a)) - number(float(b))) ** 2 for a, b in pairs), j))
        order.append(sorted(ranked))
    return order


def reference_queries(queries, labels, gallery=None, gallery_labels=None, recall_at=(1, 2, 4, 8)):
    """Per query its values by name, None where it is left out."""
    alone = gallery is None
    if alone:
        gallery, gallery_labels = queries, labels
    ranked = reference_neighbours(queries, gallery, alone)
    return [
        ranking_metrics([value for value, _ in row], [bool(gallery_labels[j] == label) for _, j in row], recall_at)
        for label, row in zip(labels, ranked, strict=True)
    ]


def reference_metrics(*arguments, **options):
    rows = reference_queries(*arguments, **options)
    kept = [row for row in rows if row is not None]
    means = {name: sum(row[name] for row in kept) / len(kept) for name in kept[0]}
    return means | {"queries_left_out": len(rows) - len(kept)}


def clustered(rng, count, classes, dimensions, noise=1.0):
    labels = rng.integers(classes, size=count)
    centres = rng.standard_normal((classes, dimensions))
    return centres[labels] + noise * rng.standard_normal((count, dimensions)), labels


@pytest.mark.parametrize("precision", [np.float32, np.float64])
@pytest.mark.parametrize("dimensions", [1, 3, 17])
def test_metrics_equal_the_reference(backend, precision, dimensions):
    embeddings, labels = clustered(np.random.default_rng(dimensions), 90, 25, dimensions)
    embeddings = embeddings.astype(precision)
    found = evaluate_embeddings(embeddings, labels, recall_at=(1, 3, 500), clustering=False)
    expected = reference_metrics(embeddings, labels, recall_at=(1, 3, 500))
    assert expected["queries_left_out"] > 0
    assert 0.02 < expected["map_at_r"] < 0.98
    assert found == pytest.approx(expected, rel=1e-12)


def test_metrics_with_a_gallery_equal_the_reference(backend):
    embeddings, labels = clustered(np.random.default_rng(0), 120, 20, 5)
    split = (embeddings[:50], labels[:50], embeddings[50:], labels[50:] + 3)
    queries, query_labels, gallery, gallery_labels = split
    found = evaluate_embeddings(
        torch.from_numpy(queries).float(),
        torch.from_numpy(query_labels),
        gallery=torch.from_numpy(gallery).float(),
        gallery_labels=torch.from_numpy(gallery_labels),
        clustering=False,
    )
    expected = reference_metrics(queries.astype(np.float32), query_labels, gallery.astype(np.float32), gallery_labels)
    assert expected["queries_left_out"] > 0
    assert found == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("case", ["one class", "two items", "one pair", "copies of other classes", "all the same"])
def test_degenerate_inputs_equal_the_reference(backend, case):
    rng = np.random.default_rng(16)
    embeddings, labels = rng.standard_normal((30, 4)), np.arange(30) // 3
    if case == "one class":
        labels = np.zeros(30, dtype=int)
    elif case == "two items":
        embeddings, labels = embeddings[:2], np.array([4, 4])
    elif case == "one pair":
        labels = np.maximum(np.arange(30), 1)
    elif case == "copies of other classes":
        embeddings = embeddings[np.arange(30) % 7]
    else:
        embeddings = np.full((30, 4), 0.1)
    embeddings = embeddings.astype(np.float32)
    found = evaluate_embeddings(embeddings, labels, recall_at=(1, 8, 500), clustering=False)
    expected = reference_metrics(embeddings, labels, recall_at=(1, 8, 500))
    assert found == pytest.approx(expected, rel=1e-12)
    assert evaluate_embeddings(embeddings, labels, recall_at=(1, 8, 500), clustering=False, chunk=1) == found


@pytest.mark.parametrize("bug", [False, True])
def test_a_collapsed_network_is_at_chance_however_its_rows_are_stored(backend, bug, monkeypatch):
    """By class, as most stores are: by the order of the rows it had 0.10 here."""
    if bug:
        monkeypatch.setattr(Ties, "of_sorted", lambda *_: NO_TIES)
    labels = np.repeat(np.arange(40), 5)
    found = evaluate_embeddings(np.full((200, 8), 0.3, np.float32), labels, clustering=False)
    chance = chance_levels(np.full(200, 4), 199)
    assert ({name: found[name] for name in chance} == pytest.approx(chance, rel=1e-12)) is not bug
    assert (found["map_at_r"] > 2 * chance["map_at_r"]) is bug


def test_three_images_are_enough(backend):
    embeddings, labels = np.array([[0.0], [1.0], [3.0]]), np.array([0, 0, 1])
    found = evaluate_embeddings(embeddings, labels, recall_at=(1,), clustering=False)
    assert found == pytest.approx(reference_metrics(embeddings, labels, recall_at=(1,)), rel=1e-12)


@pytest.mark.parametrize("gallery", [False, True])
def test_every_query_and_class_equals_the_reference(backend, gallery):
    embeddings, labels = clustered(np.random.default_rng(17), 110, 30, 5)
    given = (embeddings[:60], labels[:60] - 9) if gallery else (embeddings, labels)
    among = (embeddings[60:], labels[60:] - 9) if gallery else (None, None)
    found = evaluate_queries(*given, gallery=among[0], gallery_labels=among[1], clustering=False, chunk=13)
    expected = reference_queries(*given, *among)
    table = found.queries.to_pydict()
    assert table.pop("query") == list(range(len(given[0])))
    assert table.pop("label") == given[1].tolist()
    relevant, nearest = table.pop("same_class"), table.pop("nearest_label")
    right = [None if other is None else other == own for other, own in zip(nearest, given[1].tolist(), strict=True)]
    assert right == [None if value is None else value == 1 for value in table["recall_at_1"]]
    assert [count == 0 for count in relevant] == [row is None for row in expected]
    assert 0 < expected.count(None) < len(expected)
    assert list(table) == found.names == [name for name in found.metrics if name != "queries_left_out"]
    for name, values in table.items():
        assert values == [None if row is None else pytest.approx(row[name], rel=1e-12) for row in expected]

    classes = found.classes().to_pylist()
    assert [row["label"] for row in classes] == sorted(set(given[1].tolist()))
    for row in classes:
        mine = [value for value, label in zip(expected, given[1], strict=True) if label == row["label"]]
        kept = [value for value in mine if value is not None]
        assert (row["queries"], row["left_out"]) == (len(mine), len(mine) - len(kept))
        for name in found.names:
            mean = pytest.approx(sum(value[name] for value in kept) / len(kept), rel=1e-12) if kept else None
            assert row[name] == mean


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("gallery", [False, True])
def test_agrees_with_pytorch_metric_learning(backend, seed, gallery):
    from pytorch_metric_learning.utils.accuracy_calculator import AccuracyCalculator

    embeddings, labels = clustered(np.random.default_rng(100 + seed), 500, 90, 12)
    rows, classes = torch.from_numpy(embeddings).float(), torch.from_numpy(labels)
    theirs = {
        "recall_at_1": "precision_at_1",
        "r_precision": "r_precision",
        "map_at_r": "mean_average_precision_at_r",
        "mean_average_precision_at_1000": "mean_average_precision",  # the same with fewer than 1000 items
    }
    calculator = AccuracyCalculator(include=tuple(theirs.values()), device=torch.device("cpu"))
    if gallery:
        expected = calculator.get_accuracy(rows[:200], classes[:200], rows[200:], classes[200:])
        found = evaluate_embeddings(
            rows[:200], classes[:200], gallery=rows[200:], gallery_labels=classes[200:], clustering=False
        )
    else:
        expected = calculator.get_accuracy(rows, classes)
        found = evaluate_embeddings(rows, classes, clustering=False)
    assert found["queries_left_out"] > 0
    for ours, name in theirs.items():
        assert found[ours] == pytest.approx(expected[name], abs=1e-6)
        assert 0.02 < found[ours] < 0.98


@pytest.mark.parametrize("gallery", [False, True])
def test_an_approximate_search_says_what_it_misses(gallery, monkeypatch):
    pytest.importorskip("faiss")
    monkeypatch.setattr(neighbours_module, "APPROXIMATE_SAMPLE", 10**6)
    monkeypatch.setattr(
        neighbours_module, "APPROXIMATE_FACTOR", 1
    )  # nothing is looked at twice: the codes alone decide
    monkeypatch.setattr(neighbours_module, "SLACK", 1)
    few = tuple(replace(metric, depth=min(metric.depth, 40)) for metric in METRICS)
    monkeypatch.setattr(metrics, "METRICS", few)
    embeddings, labels = clustered(np.random.default_rng(19), 600, 60, 16)
    rows = embeddings.astype(np.float32)
    among = {"gallery": rows[200:], "gallery_labels": labels[200:]} if gallery else {}
    given = (rows[:200], labels[:200]) if gallery else (rows, labels)
    exact = evaluate_embeddings(*given, **among, clustering=False)
    found = evaluate_embeddings(*given, **among, clustering=False, approximate=True)
    assert evaluate_embeddings(*given, **among, clustering=False, approximate=True, chunk=77) == found
    assert "approximate_recall" not in exact
    assert 0.5 < found["approximate_recall"] < 0.99
    assert abs(found["map_at_r"] - exact["map_at_r"]) < 0.1 * exact["map_at_r"]

    search = neighbours_module.NeighbourSearch(
        given[0], among.get("gallery", rows), not gallery, torch.device("cpu"), True
    )
    neighbours = nearest_neighbours(given[0], among.get("gallery", rows), 40, exclude_self=not gallery)[1]
    counted = evaluate_queries(*given, **among, clustering=False).queries["same_class"].to_numpy()
    shares = []
    for query, approximate, _ in search.nearest(np.flatnonzero(counted), 40, 2048):
        shares += [len(set(a) & set(b)) / 40 for a, b in zip(approximate, neighbours[query], strict=True)]
    assert found["approximate_recall"] == pytest.approx(np.mean(shares), rel=1e-9)

    monkeypatch.setattr(neighbours_module, "APPROXIMATE_FACTOR", 20)  # more than there are
    everything = evaluate_embeddings(*given, **among, clustering=False, approximate=True)
    assert everything.pop("approximate_recall") == 1
    assert everything == exact


@pytest.mark.parametrize("width", [1, 30, 258, 512, 514])
def test_an_approximate_search_finds_nearly_all(width):
    pytest.importorskip("faiss")
    embeddings, labels = clustered(np.random.default_rng(23), 1500, 400, width)
    exact = evaluate_embeddings(embeddings, labels, clustering=False)
    found = evaluate_embeddings(embeddings, labels, clustering=False, approximate=True)
    assert found.pop("approximate_recall") > 0.95
    assert found == pytest.approx(exact, rel=0.01)


def test_an_approximate_search_of_one_point():
    pytest.importorskip("faiss")
    found = evaluate_embeddings(np.ones((50, 3)), np.arange(50) // 5, clustering=False, approximate=True)
    assert 0 <= found["map_at_r"] <= 1
    assert 0 < found["approximate_recall"] <= 1


def test_an_approximate_search_needs_faiss(monkeypatch):
    monkeypatch.setattr(clustering, "faiss", None)
    monkeypatch.setattr(metrics, "faiss", None)
    monkeypatch.setattr(neighbours_module, "faiss", None)
    with pytest.raises(ValueError, match="approximate: needs faiss"):
        evaluate_embeddings(np.eye(4), np.array([0, 0, 1, 1]), approximate=True)


@pytest.mark.parametrize("case", ["integers", "copies", "one point", "signs", "tight", "far", "few points"])
def test_ties_resolve_by_index(backend, case):
    rng = np.random.default_rng(1)
    labels = rng.integers(6, size=70)
    embeddings = {
        "integers": rng.integers(-1, 2, size=(70, 4)),
        "copies": rng.standard_normal((12, 8))[rng.integers(12, size=70)],
        "one point": np.full((70, 3), 0.3),
        "signs": rng.choice([-1, 1], size=(70, 9)) / 3,
        "tight": 1 + 1e-6 * rng.integers(-20, 20, size=(70, 4)),
        "far": rng.integers(-1, 2, size=(70, 4)) + 2.0**20,
        "few points": np.eye(3)[rng.integers(3, size=70)] * -0.0,
    }[case].astype(np.float32)
    ranked = reference_neighbours(embeddings, embeddings, exclude_self=True, exact=case == "signs")
    means = reference_metrics(embeddings, labels)
    for chunk in (1, 7, 25, 2048):
        for k in (1, 5, 40, 69):
            distances, neighbours = nearest_neighbours(embeddings, embeddings, k, exclude_self=True, chunk=chunk)
            assert neighbours.tolist() == [[j for _, j in row[:k]] for row in ranked], chunk
            expected = [[math.sqrt(d) for d, _ in row[:k]] for row in ranked]
            np.testing.assert_allclose(distances, expected, rtol=1e-12, err_msg=str(chunk))
        found = evaluate_embeddings(embeddings, labels, clustering=False, chunk=chunk)
        assert found == pytest.approx(means, rel=1e-12), chunk


@pytest.mark.parametrize("values", ["unit", "integers", "bimodal"])
def test_ties_across_the_last_place_of_many_rows(backend, values, monkeypatch):
    """More rows than the search looks at, so ties spill over what it has seen."""
    monkeypatch.setattr(neighbours_module, "SLACK", 2)
    rng = np.random.default_rng(2)
    embeddings = rng.standard_normal((400, 6))
    if values == "unit":
        embeddings /= np.linalg.norm(embeddings, axis=1, keepdims=True)
    elif values == "integers":
        embeddings = np.sign(embeddings.round())
    else:
        embeddings = 1e-5 * embeddings + np.sign(embeddings[:, :1])
    rows = embeddings.astype(np.float32).astype(np.float64)
    squared = ((rows[:, None] - rows[None]) ** 2).sum(-1)
    np.fill_diagonal(squared, np.inf)
    expected = np.argsort(squared, axis=1, kind="stable")
    for k in (1, 10, 100):
        for chunk in (33, 400):
            found = nearest_neighbours(rows.astype(np.float32), rows, k, exclude_self=True, chunk=chunk)[1]
            np.testing.assert_array_equal(found, expected[:, :k])


def test_copies_of_the_query_do_not_hide_it():
    embeddings = np.zeros((300, 2), dtype=np.float32)
    distances, neighbours = nearest_neighbours(embeddings, embeddings, 2, exclude_self=True)
    assert neighbours[:3].tolist() == [[1, 2], [0, 2], [0, 1]]
    assert neighbours[-1].tolist() == [0, 1]
    assert not distances.any()


def test_near_distances_keep_their_digits(backend):
    """In a Gram matrix in float32 these distances are noise."""
    rng = np.random.default_rng(3)
    gallery = (1 + 1e-4 * rng.standard_normal((200, 32))).astype(np.float32)
    distances, neighbours = nearest_neighbours(gallery, gallery, 5)
    rows = gallery.astype(np.float64)
    squared = ((rows[:, None] - rows[None]) ** 2).sum(-1)
    np.testing.assert_array_equal(neighbours, np.argsort(squared, axis=1, kind="stable")[:, :5])
    np.testing.assert_allclose(distances, np.sqrt(np.sort(squared, axis=1))[:, :5], rtol=1e-11)


@pytest.mark.parametrize("scale", [1e-30, 1e-6, 1e30])
def test_the_unit_of_the_embeddings_does_not_matter(backend, scale):
    embeddings, labels = clustered(np.random.default_rng(4), 60, 8, 6)
    found = evaluate_embeddings((embeddings * scale), labels, clustering=False)
    assert found == pytest.approx(reference_metrics(embeddings, labels), rel=1e-12)


def test_more_than_1000_relevant_items(backend):
    rng = np.random.default_rng(5)
    labels = np.repeat([0, 1], [1300, 200])
    embeddings = (labels[:, None] * 0.7 + rng.standard_normal((1500, 3))).astype(np.float32)
    found = evaluate_embeddings(embeddings, labels, clustering=False)
    squared = ((embeddings[:, None].astype(np.float64) - embeddings[None]) ** 2).sum(-1)
    np.fill_diagonal(squared, np.inf)
    order = np.argsort(squared, axis=1, kind="stable")[:, :-1]
    hits = labels[order] == labels[:, None]
    relevant = hits.sum(axis=1)
    precision = hits * hits.cumsum(axis=1) / np.arange(1, 1500)
    within = np.arange(1499) < relevant[:, None]
    assert found["r_precision"] == pytest.approx(np.mean((hits & within).sum(axis=1) / relevant), rel=1e-12)
    assert found["map_at_r"] == pytest.approx(np.mean((precision * within).sum(axis=1) / relevant), rel=1e-12)
    expected = np.mean(precision[:, :1000].sum(axis=1) / np.minimum(relevant, 1000))
    assert found["mean_average_precision_at_1000"] == pytest.approx(expected, rel=1e-12)


def test_known_values(backend):
    """Three on a line, and one of its own class that is in no mean."""
    found = evaluate_embeddings(
        np.array([[0.0], [1.0], [3.0], [9.0]]), np.array([7, 5, 7, -2]), recall_at=(1, 2, 8), clustering=False
    )
    assert found == {
        "recall_at_1": 0.0,
        "recall_at_2": 1.0,
        "recall_at_8": 1.0,
        "r_precision": 0.0,
        "map_at_r": 0.0,
        "mean_average_precision_at_1000": 0.5,
        "queries_left_out": 2.0,
    }


def test_gallery_of_one():
    found = evaluate_embeddings(
        np.eye(3), np.array([0, 1, 0]), gallery=np.ones((1, 3)), gallery_labels=np.array([0]), clustering=False
    )
    assert found["recall_at_8"] == found["map_at_r"] == found["mean_average_precision_at_1000"] == 1.0
    assert found["queries_left_out"] == 1.0


def test_chunks_and_backends_agree_to_the_bit(monkeypatch):
    embeddings, labels = clustered(np.random.default_rng(6), 5000, 400, 64, noise=2.0)
    embeddings = embeddings.astype(np.float32)
    first = evaluate_embeddings(embeddings, labels, clustering=False)
    assert 0.02 < first["map_at_r"] < 0.98
    assert evaluate_embeddings(embeddings, labels, clustering=False, chunk=999) == first
    monkeypatch.setattr(clustering, "faiss", None)
    monkeypatch.setattr(metrics, "faiss", None)
    monkeypatch.setattr(neighbours_module, "faiss", None)
    assert evaluate_embeddings(torch.from_numpy(embeddings), labels, clustering=False) == first


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")
def test_the_gpu_agrees_to_the_bit():
    embeddings, labels = clustered(np.random.default_rng(6), 5000, 400, 64, noise=2.0)
    rows = torch.from_numpy(embeddings.astype(np.float32))
    expected = evaluate_embeddings(rows, labels, clustering=False)
    assert evaluate_embeddings(rows.cuda(), torch.from_numpy(labels).cuda(), clustering=False) == expected


def test_clusters_of_separate_classes_are_found(backend):
    embeddings, labels = clustered(np.random.default_rng(7), 600, 30, 16, noise=0.05)
    found = evaluate_embeddings(embeddings.astype(np.float32), labels)
    assert found["normalized_mutual_information"] == pytest.approx(1)
    assert found["clustering_f1"] == 1


def test_clustering_is_the_same_twice(backend):
    embeddings, labels = clustered(np.random.default_rng(8), 500, 40, 8)
    first = evaluate_embeddings(embeddings, labels)
    assert 0.3 < first["normalized_mutual_information"] < 0.95
    assert evaluate_embeddings(embeddings, labels) == first


def test_clusters_are_of_the_queries_only():
    embeddings, labels = clustered(np.random.default_rng(9), 90, 9, 4)
    alone = evaluate_embeddings(embeddings, labels)
    more = evaluate_embeddings(embeddings, labels, gallery=-embeddings, gallery_labels=labels)
    for name in ("normalized_mutual_information", "clustering_f1"):
        assert more[name] == alone[name]
    assert more["map_at_r"] != alone["map_at_r"]


def test_large_clusterings_start_at_random_rows(backend, monkeypatch):
    monkeypatch.setattr(clustering, "SPREAD_START_ENTRIES", 0)
    embeddings, labels = clustered(np.random.default_rng(10), 300, 20, 8, noise=0.1)
    found = evaluate_embeddings(embeddings, labels)
    assert 0.8 < found["normalized_mutual_information"] <= 1
    assert evaluate_embeddings(embeddings, labels) == found


@pytest.mark.filterwarnings("ignore:Number of distinct clusters")
@pytest.mark.parametrize("collapsed", [True, False])
def test_clusterings_without_structure_are_finite(backend, collapsed):
    rng = np.random.default_rng(11)
    embeddings = np.zeros((40, 3)) if collapsed else rng.standard_normal((40, 3))
    found = evaluate_embeddings(embeddings, np.arange(40) // 2)
    assert all(math.isfinite(value) for value in found.values())


def test_pairwise_f1_and_mutual_information_equal_their_definitions():
    rng = np.random.default_rng(12)
    labels, clusters = rng.integers(5, size=60), rng.integers(4, size=60)
    pairs = [(i, j) for i in range(60) for j in range(i)]
    both = sum(labels[i] == labels[j] and clusters[i] == clusters[j] for i, j in pairs)
    precision = both / sum(clusters[i] == clusters[j] for i, j in pairs)
    recall = both / sum(labels[i] == labels[j] for i, j in pairs)
    expected = 2 * precision * recall / (precision + recall)
    assert pairwise_f1(labels, clusters) == pytest.approx(expected, rel=1e-12)
    assert pairwise_f1(np.arange(3), np.arange(3)) == 1
    assert pairwise_f1(np.arange(4), np.zeros(4, dtype=int)) == 0

    def entropy(values):
        return -sum(n / 60 * math.log(n / 60) for n in Counter(values).values())

    pair_labels = list(zip(labels.tolist(), clusters.tolist(), strict=True))
    shared = entropy(labels.tolist()) + entropy(clusters.tolist()) - entropy(pair_labels)
    expected = shared / ((entropy(labels.tolist()) + entropy(clusters.tolist())) / 2)
    assert normalized_mutual_information(labels, clusters) == pytest.approx(expected, rel=1e-10)


@pytest.mark.parametrize(
    ("items", "classes", "clusters"), [(500, 100, 90), (600, 2, 3), (60, 4, 60), (40, 1, 5), (400, 12, 40), (7, 7, 7)]
)
def test_adjusted_mutual_information_equals_scikit_learn_s(items, classes, clusters):
    rng = np.random.default_rng(items)
    one, other = rng.integers(classes, size=items), rng.integers(clusters, size=items)
    other[: items // 3] = one[: items // 3]
    assert adjusted_mutual_information(one, other) == pytest.approx(adjusted_mutual_info_score(one, other), abs=1e-11)
    assert adjusted_mutual_information(one, one) == pytest.approx(1)


def test_random_clusters_are_at_the_chance_levels():
    """Small classes: NMI is 0.77 by chance, AMI 0."""
    rng = np.random.default_rng(3)
    labels = np.repeat(np.arange(150), rng.integers(2, 5, 150))
    levels = chance_of_clusters(labels)
    found = {
        metric.name: [metric.by_cluster(labels, rng.permutation(labels)) for _ in range(60)]
        for metric in METRICS
        if metric.by_cluster
    }
    assert found.keys() == levels.keys() and levels["normalized_mutual_information"] > 0.75
    for name, values in found.items():
        assert np.mean(values) == pytest.approx(levels[name], abs=4 * np.std(values) / 60**0.5 + 1e-12), name
    assert chance_of_clusters(np.zeros(4, int)) == {
        "normalized_mutual_information": 1, "adjusted_mutual_information": 1, "clustering_f1": 1
    }  # fmt: skip


def test_every_metric_is_defined():
    pytest.importorskip("faiss")
    embeddings, labels = clustered(np.random.default_rng(13), 30, 4, 3)
    found = evaluate_embeddings(embeddings, labels, recall_at=(5,), approximate=True)
    assert set(found) == {"recall_at_5", *(metric.name for metric in METRICS)}
    assert all((known := metric_of(name)) and known.name == name and known.about for name in found)
    assert all(type(value) is float for value in found.values())


def test_inputs_of_other_types():
    rows = np.random.default_rng(14).integers(-8, 8, size=(40, 6))
    labels = np.arange(40) % 5
    expected = evaluate_embeddings(rows.astype(np.float32), labels)
    leaf = torch.tensor(rows, dtype=torch.float32, requires_grad=True)
    assert evaluate_embeddings(rows, labels.astype(np.uint8)) == expected
    assert evaluate_embeddings(leaf, torch.from_numpy(labels).int()) == expected
    assert evaluate_embeddings(leaf.bfloat16(), labels) == expected
    assert evaluate_embeddings(np.asfortranarray(rows.astype(np.float16)), labels) == expected


def test_inputs_stay_as_they_are():
    embeddings, labels = clustered(np.random.default_rng(15), 50, 4, 3)
    before = embeddings.copy()
    evaluate_embeddings(torch.from_numpy(embeddings), labels)
    np.testing.assert_array_equal(embeddings, before)


ROWS, LABELS = np.eye(4), np.array([0, 0, 1, 1])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((ROWS[:0], LABELS[:0]), "embeddings: need a non-empty matrix"),
        ((ROWS[0], LABELS), "embeddings: need a non-empty matrix"),
        ((ROWS + np.array([[np.nan], [1], [np.inf], [1]]), LABELS), "embeddings: 2 of 4 rows hold NaN or infinity"),
        ((ROWS.astype(complex), LABELS), "embeddings: need real numbers, got complex128"),
        ((ROWS, LABELS[:3]), r"labels: need one per row of embeddings, shape \(4,\), got \(3,\)"),
        ((ROWS, LABELS[:, None]), "labels: need one per row"),
        ((ROWS, LABELS / 2), "labels: need integers, got float64"),
        ((ROWS, np.arange(4)), "none of the 4 queries has a same-class item"),
        ((ROWS[:1], LABELS[:1]), "none of the 1 queries has a same-class item"),
    ],
)
def test_bad_inputs_are_named(arguments, message):
    with pytest.raises(ValueError, match=message):
        evaluate_embeddings(*arguments)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"gallery": ROWS}, "give both or neither"),
        ({"gallery_labels": LABELS}, "give both or neither"),
        ({"gallery": ROWS[:, :3], "gallery_labels": LABELS}, "3 dimensions, those of embeddings 4"),
        ({"gallery": ROWS, "gallery_labels": LABELS[:2]}, "gallery_labels: need one per row of gallery"),
        ({"gallery": ROWS + np.inf, "gallery_labels": LABELS}, "gallery: 4 of 4 rows"),
        ({"gallery": ROWS, "gallery_labels": LABELS + 5}, "none of the 4 queries"),
        ({"recall_at": (1, 0)}, "recall_at: need whole numbers from 1, got 0"),
        ({"recall_at": (1.5,)}, "recall_at: need whole numbers from 1, got 1.5"),
        ({"chunk": 0}, "chunk: need whole numbers from 1, got 0"),
    ],
)
def test_bad_options_are_named(options, message):
    with pytest.raises(ValueError, match=message):
        evaluate_embeddings(ROWS, LABELS, **options)


def test_bad_neighbour_searches_are_named():
    with pytest.raises(ValueError, match="4 queries and 3 gallery rows"):
        nearest_neighbours(ROWS, ROWS[:3], 1, exclude_self=True)
    with pytest.raises(ValueError, match="holds one row only"):
        nearest_neighbours(ROWS[:1], ROWS[:1], 1, exclude_self=True)
    with pytest.raises(ValueError, match="k: need whole numbers from 1, got 0"):
        nearest_neighbours(ROWS, ROWS, 0)
    assert nearest_neighbours(ROWS, ROWS, np.int64(99))[1].shape == (4, 4)  # type: ignore[arg-type]
    assert nearest_neighbours(ROWS, ROWS, 99, exclude_self=True)[1].shape == (4, 3)


def test_faiss_may_be_imported_before_torch():
    """Each brings its own OpenMP; the other order is what all tests here run."""
    pytest.importorskip("faiss")
    code = """
import faiss, torch
from orchestrator.evaluation.metrics import evaluate_embeddings
torch.set_num_threads(2)
rows = torch.randn(1000, 32) @ torch.randn(32, 32)
evaluate_embeddings(rows, torch.arange(1000) % 30, clustering=False)
print(faiss.omp_get_max_threads())
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "2"


def test_the_retrieval_metrics_need_neither_faiss_nor_scikit_learn():
    code = """
import sys
sys.modules["faiss"] = sys.modules["sklearn"] = sys.modules["threadpoolctl"] = None
import torch
from orchestrator.evaluation.metrics import evaluate_embeddings
print(evaluate_embeddings(torch.eye(4), torch.tensor([0, 0, 1, 1]), clustering=False)["map_at_r"])
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert float(done.stdout) == pytest.approx(1 / 3)  # all are equally near
    assert "faiss is not installed: torch searches in its place" in done.stderr


@pytest.mark.parametrize(
    ("line", "fault"),
    [
        ("import faiss_libraries", "cannot be imported (No module named 'faiss_libraries')"),
        ("raise ImportError('libcublas.so.12: no such file')", "cannot be imported (ImportError: libcublas.so.12"),
        ("None.ndarray", "cannot be imported (AttributeError: 'NoneType' object has no attribute 'ndarray')"),
    ],
)
def test_a_faiss_that_is_broken_is_told(line, fault, tmp_path, monkeypatch):
    """Planted: what its package does where a library of CUDA is missing, or NumPy is another."""
    (tmp_path / "faiss.py").write_text(f"{line}\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "faiss", raising=False)
    spec = importlib.util.spec_from_file_location("neighbours_anew", neighbours_module.__file__)
    assert spec is not None and spec.loader is not None
    anew = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(anew)
    with pytest.warns(UserWarning, match=f"^faiss {re.escape(fault)}.*with the same results"):
        anew.nearest_neighbours(ROWS, ROWS, 2)
