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
    Where such items are tied with others, each place of the tie is one of the H, with its chance (`evaluation.ties`).

    Attributes:
        relevant_Q: R of each query, the gallery's items of its class without itself, above 0.
        query_H: whose neighbour it is, in 0 ... Q - 1.
        place_H: its place among all neighbours of that query, from 0.
        right_H: how many of that query's come no later, itself included; in a tie the expected number.
        gallery: items that a query is compared with.
        chance_H: the probability that there is one at this place; None for 1 everywhere.
        missed_H: the probability that there is none, if there was none at the places before; None for 0 everywhere.
    """

    relevant_Q: Integers
    query_H: Integers
    place_H: Integers
    right_H: "NDArray[np.integer | np.floating]"
    gallery: int
    chance_H: Floats | None = None
    missed_H: Floats | None = None

    @property
    def precision_H(self) -> Floats:
        """precision@j at each right place j."""
        return self.right_H / (self.place_H + 1)

    def sums(self, values_H: "NDArray[np.integer | np.floating | np.bool_]") -> Floats:
        """(Q,) expected sum of each query's values."""
        import numpy as np

        expected = values_H if self.chance_H is None else values_H * self.chance_H
        return np.asarray(np.bincount(self.query_H, expected, len(self.relevant_Q)), np.float64)

    def found(self, places: int) -> Floats:
        """(Q,) probability that there is one among so many nearest neighbours."""
        import numpy as np

        among = self.place_H < places
        missed = np.ones(len(self.relevant_Q))
        if self.missed_H is None:
            missed[self.query_H[among]] = 0
        else:
            np.multiply.at(missed, self.query_H[among], self.missed_H[among])
        return 1 - missed


@dataclass(frozen=True)
class RandomRanking:
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
        chance_of_clusters: the exact expected value for random clusters that have the (C,) classes' numbers of queries.
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
    chance: Callable[[RandomRanking], float] | None = None
    chance_of_clusters: Callable[[Integers], float] | None = None
