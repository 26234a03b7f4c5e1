"""How a model sees images: the classes it confuses, what it finds for a query, how its similarities are distributed.

Pure functions of an evaluation and its embeddings. The results are small, whatever the size of the data set: a
table per class, pairs of classes, histograms, and a sample of images to draw maps and retrieval galleries from.

Suffixes of array names: P images of the sample, K queries of the gallery, N neighbours, D embedding size.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray

from orchestrator.evaluation.confusions import Table
from orchestrator.evaluation.measures import OF_CLASSES
from orchestrator.evaluation.metrics import Evaluation
from orchestrator.evaluation.neighbours import nearest_neighbours
from orchestrator.method import Embedded

Floats = NDArray[np.floating[Any]]
Integers = NDArray[np.int64]

POINTS = 1000
"""Images of the sample: as many as t-SNE can place in seconds."""
FEWEST_OF_A_CLASS = 8
"""Images of a class in the sample, if it has this many: the sample must have pairs within classes."""
WORST, RANDOM, NEIGHBOURS = 16, 8, 8
"""Queries of the gallery: the number of worst classes, one query of each, and of random queries; neighbours shown."""
PAIRS = 100
"""The number of pairs of classes listed, the most confused."""
BINS, NARROWEST = 60, 1e-3
"""Of the histograms, and the least width of all bins together: in a collapsed network all cosines are equal."""
PERPLEXITY, ITERATIONS = 30.0, 500
SEED = 0
UNCERTAINTY = "uncertainty"
"""The output of a network whose norm is its uncertainty about an image."""


@dataclass(frozen=True, eq=False)
class Insight:
    """Tables over all queries, and a bounded sample. Images are named by their rows in the data set.

    `classes` has a row per class, the worst first, `confusions` one per pair of classes, the most confused first,
    `similarities` the histograms. The gallery's first `worst` queries are of the worst classes, the others drawn at
    random. `distance_KN` holds inner products where the method has a `retrieval` of its own: then `by_product` is
    true. `uncertainty` (P,), (K,), (K, N) is empty where the model has none.
    """

    TABLES: ClassVar[tuple[str, ...]] = ("classes", "confusions", "similarities")
    """What is kept of every trial."""

    classes: Table
    confusions: Table
    similarities: Table
    images: int
    worst: int
    sample_P: Integers
    label_P: Integers
    embedding_PD: Floats
    query_K: Integers
    query_label_K: Integers
    neighbour_KN: Integers
    neighbour_label_KN: Integers
    distance_KN: Floats
    uncertainty: dict[str, Floats] = field(default_factory=dict)
    by_product: bool = False

    @property
    def tables(self) -> dict[str, Table]:
        """Those of TABLES, by name."""
        return {name: getattr(self, name) for name in self.TABLES}

    @property
    def arrays(self) -> dict[str, NDArray[Any]]:
        """What the tables do not hold, for a file; `Insight.of` takes both."""
        left_out = (*self.TABLES, UNCERTAINTY, *(() if self.by_product else ("by_product",)))
        arrays = {name: np.asarray(value) for name, value in vars(self).items() if name not in left_out}
        return arrays | {f"{UNCERTAINTY}_{part}": values for part, values in self.uncertainty.items()}

    @classmethod
    def of(cls, tables: Mapping[str, Table], arrays: Mapping[str, NDArray[Any]]) -> "Insight":
        """Rebuild it from `tables` and `arrays`. KeyError or TypeError if they are incomplete."""
        prefix = f"{UNCERTAINTY}_"
        levels = {name.removeprefix(prefix): arrays[name] for name in arrays if name.startswith(prefix)}
        plain = {name: arrays[name] for name in arrays if not name.startswith(prefix)}
        counts = {name: int(plain.pop(name)) for name in ("images", "worst")}
        by_product = bool(plain.pop("by_product", False))
        fields: dict[str, Any] = {**tables, **counts, **plain, "by_product": by_product}
        return cls(**fields, uncertainty=levels)


def insight(
    evaluation: Evaluation, embedded: Embedded, names: Sequence[str], gallery: Integers | None = None
) -> Insight:
    """The insight into an evaluation. Neighbours are those that are ranked; classes' radii, similarities and the sample
    are of the embeddings.

    Args:
        evaluation: of the queries; its column `query` holds rows of the data set.
        embedded: all images, queries and gallery.
        names: of the data set's classes.
        gallery: the places in `embedded` that are searched; None for all, each query without itself.
    """
    rows, labels = embedded.samples.numpy(), embedded.labels.numpy()
    embeddings, levels = embedded.outputs["embedding"].float().numpy(), uncertainty_levels(embedded)
    classes = tabulate_classes(evaluation, names, embeddings, labels, levels)
    row_K, worst = gallery_queries(evaluation, classes["label"])
    order = np.argsort(rows)
    place_K = order[np.searchsorted(rows, row_K, sorter=order)]
    if embedded.retrieval is None:
        distance_KN, place_KN = neighbours_of(embeddings, place_K, gallery)
    else:
        queries, items = (rows.numpy() for rows in embedded.retrieval)
        distance_KN, place_KN = neighbours_of(items, place_K, gallery, queries[place_K])
    place_P = sample_places(labels)
    places = {"P": place_P, "K": place_K, "KN": place_KN}
    return Insight(
        classes=classes,
        confusions=confusion_table(evaluation, names),
        similarities=similarity_table(embeddings[place_P], labels[place_P]),
        images=len(rows),
        worst=worst,
        sample_P=rows[place_P],
        label_P=labels[place_P],
        embedding_PD=embeddings[place_P],
        query_K=row_K,
        query_label_K=labels[place_K],
        neighbour_KN=rows[place_KN],
        neighbour_label_KN=labels[place_KN],
        distance_KN=distance_KN,
        uncertainty={} if levels is None else {part: levels[place] for part, place in places.items()},
        by_product=embedded.retrieval is not None,
    )


def uncertainty_levels(embedded: Embedded) -> Floats | None:
    """The norm of each image's uncertainty embedding (N,); None where the network has none."""
    output = embedded.outputs.get(UNCERTAINTY)
    return None if output is None else torch.linalg.vector_norm(output.double(), dim=1).numpy()


# Classes -----------------------------------------------------------------------------------------------------


def tabulate_classes(
    evaluation: Evaluation, names: Sequence[str], embeddings: Floats, labels: Integers, levels: Floats | None = None
) -> Table:
    """A row per class of the queries, the worst first: by recall@1, then MAP@R, then label; those without last.

    `taken_for` is the other class that most of its queries have as their nearest (the lower label of several), `share`
    how many of its queries; `radius` the largest distance of one of its images to their mean; `uncertainty` the mean
    of its images'.
    """
    columns = evaluation.classes().to_pydict()
    most: dict[int, tuple[int, int]] = {}
    for (class_label, other), count in sorted(_wrong(evaluation).items()):
        if count > most.get(class_label, (0, 0))[1]:
            most[class_label] = (other, count)

    def badness(place: int) -> tuple[bool, float, float]:
        values = columns["recall_at_1"][place], columns["map_at_r"][place]
        return (True, 0.0, 0.0) if values[0] is None else (False, *values)

    rows: list[dict[str, Any]] = []
    by_label = np.argsort(labels, kind="stable")
    ordered = labels[by_label]
    for place in sorted(range(len(columns["label"])), key=badness):
        label, queries = columns["label"][place], columns["queries"][place]
        other, count = most.get(label, (-1, 0))
        members = by_label[slice(*np.searchsorted(ordered, [label, label + 1]))]
        inside = embeddings[members]
        row = {"label": label, "class": names[label], "queries": queries}
        row |= {metric.name: columns[metric.name][place] for metric in OF_CLASSES}
        row |= {"taken_for": names[other] if count else ""}
        row |= {"share": count / max(1, queries - columns["left_out"][place])}
        row |= {"radius": float(np.linalg.norm(inside - inside.mean(axis=0), axis=1).max())}
        rows.append(row | ({} if levels is None else {UNCERTAINTY: float(levels[members].mean())}))
    return {name: [row[name] for row in rows] for name in rows[0]}


def _wrong(evaluation: Evaluation) -> Counter[tuple[int, int]]:
    """(class of the query, other class of what is nearest to it) -> number of queries."""
    labels = evaluation.queries["label"].to_pylist()
    nearest = evaluation.queries["nearest_label"].to_pylist()
    return Counter((a, b) for a, b in zip(labels, nearest, strict=True) if b is not None and a != b)


def confusion_table(evaluation: Evaluation, names: Sequence[str]) -> Table:
    """Pairs of classes, the most confused first: `queries` of either whose nearest is of the other, `share` of both
    classes' queries. A pair appears once, first the class that is more often taken for the other."""
    wrong = _wrong(evaluation)
    queries = Counter(evaluation.queries["label"].to_pylist())
    pairs: Counter[tuple[int, int]] = Counter()
    for (label, other), count in wrong.items():
        pairs[min(label, other), max(label, other)] += count
    share = {pair: count / (queries[pair[0]] + queries[pair[1]]) for pair, count in pairs.items()}
    rows: list[list[Any]] = []
    for pair in sorted(pairs, key=lambda pair: (-share[pair], pair))[:PAIRS]:
        one, other = sorted(pair, key=lambda own: (-wrong[own, pair[0] + pair[1] - own], own))
        rows.append([names[one], names[other], wrong[one, other], wrong[other, one], share[pair]])
    heads = ["class", "taken_for", "queries", "and_back", "share"]
    return {name: [row[place] for row in rows] for place, name in enumerate(heads)}


# The gallery -------------------------------------------------------------------------------------------------


def gallery_queries(evaluation: Evaluation, worst_first: Sequence[int]) -> tuple[Integers, int]:
    """The rows of the queries to show, and how many of them are of the worst classes: of each class the query with the
    lowest MAP@R (the lowest row of several). The others are drawn at random, the same whatever the model."""
    scored = evaluation.queries.filter(evaluation.queries["map_at_r"].is_valid())
    row, label = scored["query"].to_numpy(), scored["label"].to_numpy()
    value = scored["map_at_r"].to_numpy()
    order = np.lexsort((row, value))
    rows = []
    for worst in worst_first[:WORST]:
        of_class = order[label[order] == worst]
        if len(of_class):
            rows.append(int(row[of_class[0]]))
    others = np.sort(row[~np.isin(row, rows)])
    random = np.random.default_rng(SEED).permutation(others)[:RANDOM]
    return np.array([*rows, *random], dtype=np.int64), len(rows)


def neighbours_of(
    embeddings: Floats, place_K: Integers, gallery: Integers | None = None, queries: Floats | None = None
) -> tuple[Floats, Integers]:
    """The distances and places (K, N) of the nearest neighbours of these images, among `gallery` or all but itself;
    the inner products instead with rows (K, D) of the images as `queries`."""
    searched = np.arange(len(embeddings)) if gallery is None else gallery
    by_product, query_rows = (False, embeddings[place_K]) if queries is None else (True, queries)
    distance, neighbours = nearest_neighbours(query_rows, embeddings[searched], NEIGHBOURS + 1, by_product=by_product)
    neighbours = searched[neighbours]
    itself = neighbours == place_K[:, None]
    itself[~itself.any(axis=1), -1] = True  # drop one in every row: itself, or else the last
    shape = len(neighbours), neighbours.shape[1] - 1
    return distance[~itself].reshape(shape), neighbours[~itself].reshape(shape)


# The embedding space -----------------------------------------------------------------------------------------


def sample_places(labels: Integers) -> Integers:
    """Places of at most POINTS images, drawn class by class, so that there are pairs of one class among them."""
    if len(labels) <= POINTS:
        return np.arange(len(labels))
    rng = np.random.default_rng(SEED)
    shuffled = rng.permutation(len(labels))
    members = shuffled[np.argsort(labels[shuffled], kind="stable")]  # class by class, shuffled in each
    classes, first = np.unique(labels[members], return_index=True)
    share = max(FEWEST_OF_A_CLASS, POINTS // len(classes))
    parts = np.split(members, first[1:])
    sample = np.concatenate([parts[place][:share] for place in rng.permutation(len(classes))])
    return np.sort(sample[:POINTS])


def similarity_table(embeddings: Floats, labels: Integers) -> Table:
    """How many pairs within a class, and across classes, have a cosine similarity from `low` to `high`, in BINS equal
    bins between the least and the largest; every unordered pair counts once. A row of zeros has similarity 0 to all."""
    norm = np.linalg.norm(embeddings, axis=1, keepdims=True)
    unit = embeddings / np.where(norm > 0, norm, 1)
    first, second = np.triu_indices(len(unit), 1)
    cosine = np.clip((unit @ unit.T)[first, second], -1, 1).astype(np.float64)
    same = labels[first] == labels[second]
    low, high = (cosine.min(), cosine.max()) if len(cosine) else (-1.0, 1.0)
    edges = np.linspace(min(low, high - NARROWEST), high, BINS + 1)
    sides = {"positive_pairs": cosine[same], "negative_pairs": cosine[~same]}
    counts = {name: np.histogram(side, edges)[0].tolist() for name, side in sides.items()}
    return {"low": edges[:-1].tolist(), "high": edges[1:].tolist()} | counts


def separation(similarities: Table) -> float | None:
    """The probability that a pair within a class is more similar than one across classes, a common bin counting half;
    None unless there are both."""
    positive, negative = (np.asarray(similarities[f"{kind}_pairs"], np.float64) for kind in ("positive", "negative"))
    if not positive.sum() or not negative.sum():
        return None
    below = np.cumsum(negative) - negative / 2
    return float((positive * below).sum() / positive.sum() / negative.sum())


def principal_components(embeddings: Floats) -> Floats:
    """The plane of the largest variance (P, 2), each axis with its largest value positive."""
    from sklearn.decomposition import PCA

    wide = np.pad(embeddings, ((0, 0), (0, max(0, 2 - embeddings.shape[1])))).astype(np.float64)
    if not np.ptp(wide, axis=0).any():
        return np.zeros((len(wide), 2))  # all images in one place
    places: Floats = PCA(2, svd_solver="full").fit_transform(wide)
    return places * np.where(places.max(axis=0) >= -places.min(axis=0), 1, -1)


def neighbour_map(embeddings: Floats) -> Floats | None:
    """t-SNE (P, 2) from a start by principal components, seeded; None for fewer than four images, or all in one place.

    Neighbours stay together; distances between groups, and their sizes, mean nothing. One thread computes it: several
    wait for each other at each of its many short steps, and on a busy machine take five times as long.
    """
    from sklearn.decomposition import PCA
    from sklearn.manifold import TSNE
    from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]

    if len(embeddings) < 4 or not np.ptp(embeddings, axis=0).any():
        return None
    parts = min(50, *embeddings.shape)
    reduced = PCA(parts, svd_solver="full").fit_transform(embeddings.astype(np.float64))
    perplexity = min(PERPLEXITY, (len(embeddings) - 1) / 3)
    start = np.pad(reduced[:, :2], ((0, 0), (0, max(0, 2 - parts))))
    start = start / max(float(np.std(start[:, 0])), 1e-12) * 1e-4
    placing = TSNE(2, init=start, perplexity=perplexity, max_iter=ITERATIONS, random_state=SEED)
    with threadpool_limits(1):
        positions: Floats = placing.fit_transform(reduced)
    return positions
