"""What a metric is: its name, how it is shown, and how it is computed."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]
    Integers = NDArray[np.int64]
else:  # numpy is imported where something is computed: reports and settings only read the table
    Floats = Integers = Any


@dataclass(frozen=True)
class Ranked:
    """The neighbours of some queries that are of the queries' own classes. H of them, by query, the nearest first.

    Attributes:
        relevant_Q: R of each query, the gallery's items of its class without itself, above 0.
        query_H: whose neighbour it is, in 0 ... Q - 1.
        place_H: its place among all neighbours of that query, from 0.
        right_H: how many of that query's come no later, itself included.
        gallery: items that a query is compared with.
    """

    relevant_Q: Integers
    query_H: Integers
    place_H: Integers
    right_H: Integers
    gallery: int

    @property
    def precision_H(self) -> Floats:
        """precision@j at each right place j."""
        return self.right_H / (self.place_H + 1)

    def sums(self, values_H: "NDArray[np.generic]") -> Floats:
        """(Q,) sum of each query's values."""
        import numpy as np

        return np.asarray(np.bincount(self.query_H, values_H, len(self.relevant_Q)), np.float64)


@dataclass(frozen=True)
class Random:
    """A random ranking of n items of the gallery, R of them of the query's class."""

    relevant: int
    gallery: int
    expected_precisions: Callable[[int], float]
    """The expected sum of the precisions at the right places among the first so many."""


@dataclass(frozen=True)
class Metric:
    """One of a model's metrics. It has one way of being computed: by query, from clusters, or by the search itself.

    Attributes:
        name: in files, journals and trackers; there `val/` or `test/` stands before it.
        label: as a column's head.
        about: what it is, in a sentence.
        share: it is in 0 ... 1, and papers print it in percent.
        larger_is_better: so is its use as an objective.
        headline: it is named wherever a result is told in a line.
        beside: leaderboards show it beside the objective.
        by_class: the page of a model shows it for each class.
        of_paper: its place among the columns of papers' numbers.
        depth: neighbours that it needs, besides the R of each query.
        by_query: (Q,) values of a search's queries, whose mean is the metric. Only such metrics can be objectives.
        by_cluster: the value for (Q,) labels and (Q,) clusters of the queries.
        chance: the exact expected value for a query where the gallery is ranked at random.
    """

    name: str
    label: str
    about: str
    share: bool = True
    larger_is_better: bool = True
    headline: bool = False
    beside: bool = False
    by_class: bool = False
    of_paper: int | None = None
    depth: int = 0
    by_query: Callable[[Ranked], Floats] | None = None
    by_cluster: Callable[[Integers, Integers], float] | None = None
    chance: Callable[[Random], float] | None = None
