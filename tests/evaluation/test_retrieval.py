"""What is ranked: neighbours by inner product against a slow reference, a method's `retrieval` wherever it is used."""

from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from support.references import ranking_metrics
from torch import Tensor

from methods.hyperbolic import Hyperbolic
from methods.matryoshka import Matryoshka
from orchestrator.check import check_method
from orchestrator.check.subject import CheckFailed
from orchestrator.config.training import resolve_experiment
from orchestrator.data.store import Store
from orchestrator.errors import InputError, TrainingFailed
from orchestrator.evaluation import metrics, neighbours
from orchestrator.evaluation.intervals import interval_metrics
from orchestrator.evaluation.measures import METRICS
from orchestrator.evaluation.metrics import evaluate_queries
from orchestrator.evaluation.neighbours import NeighbourSearch, ProductSearch, nearest_neighbours
from orchestrator.evaluation.ties import NO_TIES
from orchestrator.method import Embedded, Method, Outputs
from orchestrator.report.html.model_page import model_page
from orchestrator.report.model_view import View, read_insight
from orchestrator.search.export import SUFFIXES, export
from orchestrator.search.source import ModelSource
from orchestrator.storage.trial_folder import BEST
from orchestrator.training.checkpoint import save_checkpoint
from orchestrator.training.embed import (
    evaluate_and_embed,
    look,
    others_of,
    retrieval_of,
    retrieve,
    save_insight,
    validate,
)
from orchestrator.training.folds import evaluate_folds
from orchestrator.training.model_file import build_learner, model_state

Rows = np.ndarray[Any, Any]

# The search ------------------------------------------------------------------------------------------------


def slow(queries: Rows, gallery: Rows, own: bool) -> list[list[int]]:
    """All rows of the gallery by their products with each query, in rational numbers; ties by row number."""
    order = []
    for i, query in enumerate(queries.tolist()):
        products = [
            (-sum(Fraction(a) * Fraction(b) for a, b in zip(query, row, strict=True)), j)
            for j, row in enumerate(gallery.tolist())
            if not (own and i == j)
        ]
        order.append([j for _, j in sorted(products)])
    return order


def rows_of(kind: str) -> tuple[Rows, Rows]:
    """As many queries as items, each image's two rows."""
    rng = np.random.default_rng(4)
    plain, other = rng.standard_normal((2, 60, 5))
    whole = rng.integers(-1, 2, (60, 5))
    space = 0.3 * plain
    time = np.sqrt(1 + (space**2).sum(1, keepdims=True))
    kinds = {
        "asymmetric": (plain, other),
        "symmetric, of any length": (plain, plain),
        "integers": (whole, rng.integers(-2, 3, (60, 5))),
        "copies": (plain, other[rng.integers(12, size=60)]),
        "signs": (rng.choice([-1, 1], (60, 5)) / 3, rng.choice([-1, 1], (60, 5)) / 3),
        "one point": (plain, np.full((60, 5), 0.3)),
        "hyperboloid": (np.hstack([-time, space]), np.hstack([time, space])),
        "far from zero": (plain, 1000 + other),
        "of any scale": (plain * 10.0 ** rng.integers(-20, 20, (60, 1)), other * 10.0 ** rng.integers(-3, 3, (60, 1))),
        "queries of zero": (whole * (rng.random((60, 1)) < 0.5), other),
    }
    queries, gallery = kinds[kind]
    return queries.astype(np.float32), gallery.astype(np.float32)


KINDS = (
    *("asymmetric", "symmetric, of any length", "integers", "copies", "signs", "one point", "hyperboloid"),
    *("far from zero", "of any scale", "queries of zero"),
)


def differences(kinds: tuple[str, ...] = KINDS) -> list[str]:
    """What differs from the slow reference."""
    wrong = []
    for kind in kinds:
        queries, gallery = rows_of(kind)
        for own in (False, True):
            wanted = slow(queries, gallery, own)
            for k, chunk in ((1, 2048), (7, 13), (59, 2048)):
                products, found = nearest_neighbours(
                    queries, gallery, k, exclude_self=own, chunk=chunk, by_product=True
                )
                exact = np.einsum("qd,qkd->qk", queries.astype(np.float64), gallery[found].astype(np.float64))
                close = np.allclose(products, exact, rtol=1e-12, atol=1e-12 * np.abs(exact).max())
                if not close or found.tolist() != [row[:k] for row in wanted]:
                    wrong.append(f"{kind}, own {own}, k {k}")
    return wrong


@pytest.fixture(params=["faiss", "torch"])
def backend(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(neighbours, "SLACK", 3)  # ties spill over what the fast search has seen
    if request.param == "torch":
        monkeypatch.setattr(neighbours, "faiss", None)
    elif neighbours.faiss is None:
        pytest.skip("faiss is not installed")


def test_products_are_ranked_exactly(backend: None) -> None:
    assert differences() == []


def swapped(patch: pytest.MonkeyPatch) -> None:
    made = ProductSearch.__init__
    patch.setattr(ProductSearch, "__init__", lambda self, queries, gallery, *more: made(self, gallery, queries, *more))


def by_distance(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(neighbours, "ProductSearch", NeighbourSearch)


def itself_found(patch: pytest.MonkeyPatch) -> None:
    def kept(self: Any, *given: Any) -> Any:
        self.exclude_self = False
        return NeighbourSearch._nearest_in_full_rows(self, *given)

    patch.setattr(ProductSearch, "_nearest_in_full_rows", kept)
    patch.setattr(ProductSearch, "_flat", lambda self: None)


def itself_taken_for_the_first(patch: pytest.MonkeyPatch) -> None:
    def dropped(self: Any, rows: Any, ready: Any, count: int) -> Any:
        products, found = self.index.search(ready, count + self.exclude_self)
        return -products[:, int(self.exclude_self) :], found[:, int(self.exclude_self) :]

    patch.setattr(ProductSearch, "_candidates", dropped)


def unrefined(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(ProductSearch, "_order_near_ties", lambda *_: NO_TIES)


def from_the_centre_of_queries_too(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(ProductSearch, "_ready", lambda self, queries: self._centre(queries))


BUGS = swapped, by_distance, itself_found, itself_taken_for_the_first, unrefined, from_the_centre_of_queries_too


@pytest.mark.skipif(neighbours.faiss is None, reason="no faiss")
@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.__name__)
def test_a_planted_bug_of_the_search_is_seen(bug: Callable[[pytest.MonkeyPatch], None]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        bug(patch)
        assert differences(("asymmetric", "integers"))


def test_an_approximate_search_by_product_says_what_it_misses(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("faiss")
    monkeypatch.setattr(neighbours, "APPROXIMATE_FACTOR", 1)
    monkeypatch.setattr(neighbours, "SLACK", 1)
    monkeypatch.setattr(metrics, "METRICS", tuple(replace(one, depth=min(one.depth, 40)) for one in METRICS))
    rng = np.random.default_rng(0)
    rows, labels = rng.standard_normal((600, 16)).astype(np.float32), np.arange(600) % 60
    items = rows[::-1].copy()
    given: dict[str, Any] = {"clustering": False, "by_product": (rows, items)}
    found = evaluate_queries(rows, labels, **given, approximate=True).metrics
    products = rows[:256].astype(np.float64) @ items.T
    products[np.arange(256), np.arange(256)] = -np.inf
    true = np.argsort(-products, axis=1)
    search = ProductSearch(rows, items, True, torch.device("cpu"), True)
    ((_, near, _),) = search.nearest(np.arange(256), 40, 2048)
    shares = [len(set(one) & set(row[:40])) / 40 for one, row in zip(near.tolist(), true.tolist(), strict=True)]
    assert search.recall(np.arange(256), 40) == pytest.approx(np.mean(shares), rel=1e-12)
    assert 0.5 < found["approximate_recall"] < 0.99
    monkeypatch.setattr(neighbours, "APPROXIMATE_FACTOR", 20)  # more than there are
    everything = evaluate_queries(rows, labels, **given, approximate=True).metrics
    assert everything.pop("approximate_recall") == 1
    assert everything == evaluate_queries(rows, labels, **given).metrics


# Metrics ---------------------------------------------------------------------------------------------------


def slow_metrics(queries: Rows, labels: Rows, gallery: Rows, gallery_labels: Rows, own: bool) -> dict[str, float]:
    """The means of the metrics, query by query."""
    found = []
    for i, (query, label) in enumerate(zip(queries.astype(np.float64), labels, strict=True)):
        products = gallery.astype(np.float64) @ query
        order = [j for j in np.argsort(-products, kind="stable") if not (own and i == j)]
        found.append(ranking_metrics((-products[order]).tolist(), (gallery_labels[order] == label).tolist()))
    return {name: float(np.mean([one[name] for one in found if one])) for name in found[0] or {}}


@pytest.mark.parametrize("apart", [False, True])
@pytest.mark.parametrize("whole", [False, True])
def test_metrics_rank_by_the_products_and_cluster_the_embeddings(apart: bool, whole: bool) -> None:
    rng = np.random.default_rng(1)
    labels = rng.integers(12, size=90)
    embeddings = rng.standard_normal((12, 4))[labels] + rng.standard_normal((90, 4))
    maps = rng.standard_normal((2, 4, 6))
    if whole:  # many ties
        embeddings, maps = np.sign(embeddings), np.sign(maps)
    queries, items = embeddings @ maps[0], embeddings @ maps[1]
    here, there = (slice(0, 40), slice(40, 90)) if apart else (slice(0, 90), slice(0, 90))
    among: dict[str, Any] = {"gallery": embeddings[there], "gallery_labels": labels[there]} if apart else {}
    found = evaluate_queries(embeddings[here], labels[here], **among, by_product=(queries[here], items[there]))
    wanted = slow_metrics(queries[here], labels[here], items[there], labels[there], not apart)
    assert {name: found.metrics[name] for name in wanted} == pytest.approx(wanted, rel=1e-12)
    plain = evaluate_queries(embeddings[here], labels[here], **among).metrics
    name = "normalized_mutual_information"
    assert found.metrics[name] == plain[name] and found.metrics["map_at_r"] != pytest.approx(plain["map_at_r"])
    one = (found.queries["nearest_label"].to_numpy() == found.queries["label"].to_numpy()).astype(float)
    recalls, known = found.queries["recall_at_1"].to_numpy(zero_copy_only=False), found.queries["same_class"].to_numpy()
    sure = (known > 0) & ((recalls == 0) | (recalls == 1))
    assert (recalls == one)[sure].all() and (whole or sure.sum() == (known > 0).sum())


@pytest.mark.parametrize(
    ("queries", "items", "message"),
    [
        (np.eye(4)[:3], np.eye(4), "by_product: queries: need a row for each of 4 embeddings, got 3"),
        (np.eye(4), np.eye(4)[:3], "by_product: gallery: need a row for each of 4 embeddings, got 3"),
        (np.eye(4), np.eye(4)[:, :3], "gallery: its rows have 3 dimensions, those of by_product: queries 4"),
        (np.eye(4), np.eye(4) * np.nan, "by_product: gallery: 4 of 4 rows hold NaN or infinity"),
    ],
)
def test_bad_products_are_named(queries: Rows, items: Rows, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        evaluate_queries(np.eye(4), np.array([0, 0, 1, 1]), by_product=(queries, items))


# The hook --------------------------------------------------------------------------------------------------

MAPS = torch.randn(2, 8, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(2))


def rows_of_images(outputs: Outputs) -> tuple[Tensor, Tensor]:
    """Different rows as query and as item, so that exchanging them is seen."""
    embedding = outputs["embedding"].double()
    return embedding @ MAPS[0], embedding @ MAPS[1]


@pytest.fixture(scope="module")
def models(glyphs: Store, tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Two saved models of tiny networks."""
    experiment = resolve_experiment({"method": "hyperbolic", "dataset": "glyphs-small", "embedding_dim": 8}, "test")
    paths = [tmp_path_factory.mktemp("models") / f"fold-{number}" / BEST for number in (0, 1)]
    for number, path in enumerate(paths):
        torch.manual_seed(number)
        path.parent.mkdir()
        save_checkpoint(path, model_state(experiment, glyphs, build_learner(experiment, glyphs, num_classes=5)))
    return paths


def test_what_is_ranked_is_the_same_everywhere(
    models: list[Path], glyphs: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Hyperbolic, "retrieval", lambda self, outputs: rows_of_images(outputs))
    rows = np.flatnonzero(np.isin(glyphs.labels, np.unique(glyphs.labels)[-12:]))[::2]
    labels = glyphs.labels[rows]
    found, embedded = evaluate_and_embed(models[0], glyphs, rows, "cpu")
    queries, items = (part.numpy() for part in rows_of_images(embedded.outputs))
    wanted = slow_metrics(queries, labels, items, labels, own=True)
    assert {name: found.metrics[name] for name in wanted} == pytest.approx(wanted, rel=1e-12)
    validated, _ = validate(embedded, glyphs)
    assert {name: validated[f"val/{name}"] for name in wanted} == pytest.approx(wanted, rel=1e-12)

    seen = look(found, embedded, glyphs)
    products = queries @ items.T
    np.fill_diagonal(products, -np.inf)
    for row, near, value in zip(seen.query_K, seen.neighbour_KN, seen.distance_KN, strict=True):
        own = products[np.searchsorted(rows, row)]
        assert near.tolist() == rows[np.argsort(-own, kind="stable")[: len(near)]].tolist()
        np.testing.assert_allclose(value, np.sort(own)[::-1][: len(near)], rtol=1e-9)
    save_insight(tmp_path, seen)
    again = read_insight(tmp_path)
    assert again is not None and again.by_product is True
    html = model_page(View("m", [], [], again, glyphs.class_names, glyphs.image, neighbour_map=False))
    assert f", product {seen.distance_KN[0, 0]:.3f}" in html and ", distance" not in html

    split = np.where(np.arange(len(rows)) % 3, "gallery", "query")
    parted: Any = SimpleNamespace(name="parted", splits=dict(zip(rows.tolist(), split, strict=True)))
    parted.splits = np.full(len(glyphs.labels), "", dtype=object)
    parted.splits[rows] = split
    asked, gallery = split == "query", split != "query"
    apart = retrieve(embedded, parted, "cpu", what="a model").metrics
    wanted = slow_metrics(queries[asked], labels[asked], items[gallery], labels[gallery], own=False)
    assert {name: apart[name] for name in wanted} == pytest.approx(wanted, rel=1e-12)

    folds, _, _ = evaluate_folds(models, glyphs, rows, "cpu")
    other = [part.numpy() for part in rows_of_images(evaluate_and_embed(models[1], glyphs, rows, "cpu")[1].outputs)]
    both = np.hstack([queries, other[0]]), np.hstack([items, other[1]])
    wanted = slow_metrics(both[0], labels, both[1], labels, own=True)
    assert {name: folds[f"concatenated_{name}"] for name in wanted} == pytest.approx(wanted, rel=1e-12)


def test_an_exported_model_gives_both_rows(models: list[Path], glyphs: Store, tmp_path: Path) -> None:
    onnxruntime = pytest.importorskip("onnxruntime")
    source = ModelSource.of(models[0], glyphs)
    path = export(source, "onnx", tmp_path / f"model{SUFFIXES['onnx']}").path
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    (given,) = session.run(["retrieval"], {"images": source.images.numpy()})
    assert given.dtype == np.float32 and given.shape == (len(source.images), 2, 9)
    assert source.about["output"].startswith("retrieval: float32 (batch, 2, 9), each image's row as a query")
    np.testing.assert_allclose(np.einsum("nk,nk->n", given[:, 0], given[:, 1]), -1, atol=1e-5)  # itself: -cosh 0


class Given(Hyperbolic, abstract=True):
    """L = as its base; its rows are what a test says."""

    name = "given"
    answer: ClassVar[Any] = None

    def retrieval(self, outputs: Outputs) -> tuple[Tensor, Tensor]:
        return self.answer(outputs["embedding"])  # type: ignore[no-any-return]


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (lambda z: z, "gave a Tensor, not two tensors"),
        (lambda z: (z, z, z), "gave 3 of them, not two tensors"),
        (lambda z: (z, z[:, :2]), r"gave shapes \(256, 4\) and \(256, 2\) for 256 images"),
        (lambda z: (z[:-1], z[:-1]), r"gave queries of shape \(255, 4\) for 256 images"),
        (lambda z: (z[:, 0], z[:, 0]), r"gave queries of shape \(256,\) for 256 images"),
        (lambda z: (z[:, :0], z[:, :0]), r"gave queries of shape \(256, 0\) for 256 images"),
        (lambda z: (z, z.long()), "gave torch.int64"),
        (lambda z: (z, z / (z > z[3, 0])), r"gave \d+ of 256 rows that are not finite"),
        (lambda z: (z @ z.T, z @ z.T), "gave 256 columns, and 44 for other images"),
    ],
)
def test_wrong_rows_are_told_in_a_line(answer: Callable[[Tensor], Any], said: str) -> None:
    class Wrong(Given, abstract=True):
        """L = as its base."""

    Wrong.answer = staticmethod(answer)
    task: Any = None
    method = Wrong(Wrong.Config(), task)
    embedding = torch.randn(300, 4, generator=torch.Generator().manual_seed(0))
    with pytest.raises(TrainingFailed, match=rf"^given: retrieval\(\) {said}: it must give two finite float") as told:
        retrieval_of(method, {"embedding": embedding})
    assert "\n" not in str(told.value)


def test_rows_are_given_in_eval_mode_and_a_default_costs_nothing() -> None:
    class Noting(Given, abstract=True):
        """L = as its base."""

    modes: list[tuple[bool, bool, int]] = []
    task: Any = None
    method = Noting(Noting.Config(), task)

    def answer(z: Tensor) -> tuple[Tensor, Tensor]:
        modes.append((method.training, torch.is_grad_enabled(), len(z)))
        return z, z

    Noting.answer = staticmethod(answer)
    rows = retrieval_of(method.train(), {"embedding": torch.ones(300, 3, dtype=torch.bfloat16)})
    assert modes == [(False, False, 256), (False, False, 44)] and method.training
    assert rows is not None and rows[0].shape == (300, 3) and rows[0].dtype == torch.float32
    lost = torch.full((2, 3), torch.nan)  # what reads the embeddings says so
    assert retrieval_of(method, {"embedding": lost}) is not None

    class Plain(Method, abstract=True):
        """L = nothing."""

    assert retrieval_of(Plain(Plain.Config(), task), {}) is None
    images = Embedded({"embedding": torch.eye(2)}, torch.zeros(2, dtype=torch.long), torch.arange(2))
    assert images.retrieval is None


# Other embeddings ------------------------------------------------------------------------------------------


def test_other_embeddings_are_measured_and_exported(
    models: list[Path], glyphs: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Hyperbolic, "embeddings", lambda self, outputs: {"first_3": outputs["embedding"][:, :3]})
    rows = np.flatnonzero(np.isin(glyphs.labels, np.unique(glyphs.labels)[-12:]))[::2]
    found, embedded = evaluate_and_embed(models[0], glyphs, rows, "cpu")
    short = embedded.outputs["embedding"][:, :3]
    wanted = evaluate_queries(short, embedded.labels, clustering=False)
    names = {f"first_3_{name}": name for name in ("recall_at_1", "map_at_r")}
    assert {key: found.metrics.get(key) for key in found.metrics if key.startswith("first_3")} == {
        key: wanted.metrics[name] for key, name in names.items()
    }
    for key, name in names.items():
        assert found.queries[key].to_pylist() == wanted.queries[name].to_pylist()
        assert f"{key}_over_classes_low" in interval_metrics(found)
        assert found.metrics[key] != pytest.approx(found.metrics[name]), "it is another embedding"
    validated, _ = validate(embedded, glyphs)
    folds, _, _ = evaluate_folds(models, glyphs, rows, "cpu")
    second = evaluate_and_embed(models[1], glyphs, rows, "cpu")[0]
    for key in names:
        assert validated[f"val/{key}"] == found.metrics[key]
        assert folds[key] == pytest.approx((found.metrics[key] + second.metrics[key]) / 2)

    source = ModelSource.of(models[0], glyphs, embedding="first_3")
    whole = ModelSource.of(models[0], glyphs)
    assert source.about["output"] == "first_3: float32 (batch, 3), compared by Euclidean distance"
    assert source.embeddings.shape == (len(whole.images), 3)
    written = torch.export.load(export(source, "pt2", tmp_path / "model.pt2").path).module()(source.images)
    torch.testing.assert_close(written, source.embeddings, rtol=0, atol=1e-6)
    with pytest.raises(InputError, match=r"^--embedding: first_4: .* no such embedding \(did you mean 'first_3'\?\)"):
        ModelSource.of(models[0], glyphs, embedding="first_4")
    monkeypatch.undo()
    with pytest.raises(InputError, match=r"^--embedding: first_3: .*: it has none but its own; leave it out$"):
        ModelSource.of(models[0], glyphs, embedding="first_3")


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (lambda z: z, "gave a Tensor, not tensors by name"),
        (lambda z: {"First 3": z}, "gave the name 'First 3', not one of lower-case letters, digits and underscores"),
        (lambda z: {"short": [1]}, "gave a list as 'short'"),
        (lambda z: {"short": z[:-1]}, r"gave short of shape \(255, 4\) for 256 images"),
        (lambda z: {"short": z.long()}, "gave torch.int64"),
        (lambda z: {"short": z} if len(z) > 44 else {}, "gave short, and nothing for other images"),
    ],
)
def test_wrong_embeddings_are_told_in_a_line(answer: Callable[[Tensor], Any], said: str) -> None:
    class Wrong(Hyperbolic, abstract=True):
        """L = as its base."""

        name = "wrong"

        def embeddings(self, outputs: Outputs) -> Any:
            return answer(outputs["embedding"])

    task: Any = None
    embedding = torch.randn(300, 4, generator=torch.Generator().manual_seed(0))
    with pytest.raises(TrainingFailed, match=rf"^wrong: embeddings\(\) {said}: it must give finite float matrices"):
        others_of(Wrong(Wrong.Config(), task), {"embedding": embedding})


def test_other_embeddings_of_an_image_depend_on_it_alone() -> None:
    class Centred(Matryoshka, abstract=True):
        """L = as its base."""

        name = "centred"

        def embeddings(self, outputs: Outputs) -> dict[str, Tensor]:
            return {"centred": outputs["embedding"] - outputs["embedding"].mean(0)}

    check, broken = (
        next(check for check in check_method(method) if check.name == "retrieval") for method in (Matryoshka, Centred)
    )
    check()
    with pytest.raises(CheckFailed, match="of a batch, then of each image alone"):
        broken()
