"""The metrics, each in a file of this folder and a line of the table: from it follow which objectives there are, what
reports name, and what tables and pages show."""

from orchestrator.evaluation.measures.base import Metric
from orchestrator.evaluation.measures.clusters import AMI, CLUSTERING_F1, NMI
from orchestrator.evaluation.measures.precision import MAP_AT_1000, MAP_AT_R, R_PRECISION
from orchestrator.evaluation.measures.recall import DEFAULT_RECALL_AT, recall
from orchestrator.evaluation.measures.search import APPROXIMATE_RECALL, QUERIES_LEFT_OUT
from orchestrator.parts import load_all

BUILT_IN: tuple[Metric, ...] = (
    R_PRECISION,
    MAP_AT_R,
    MAP_AT_1000,
    APPROXIMATE_RECALL,
    NMI,
    AMI,
    CLUSTERING_F1,
    QUERIES_LEFT_OUT,
)
RECALLS = tuple(map(recall, DEFAULT_RECALL_AT))
METRICS = (
    *BUILT_IN,
    *load_all("metrics", [metric.name for metric in (*BUILT_IN, *RECALLS)], Metric),
)
"""All but recall, which there is for any k, in the order of a test's numbers; those that packages announce last."""

KNOWN = tuple(sorted(METRICS, key=lambda metric: not metric.headline)) + RECALLS
"""Those of a usual test: the headline first, recall last."""
BY_NAME = {metric.name: metric for metric in KNOWN}

YARDSTICK = MAP_AT_R.name
"""The metric that trainings and searches are judged by unless they name another one."""
DEFAULT_OBJECTIVE = f"val/{YARDSTICK}"
OBJECTIVES = tuple(f"val/{metric.name}" for metric in KNOWN if metric.by_query)
"""The metrics of a validation."""
HEADLINES = tuple(metric.name for metric in KNOWN if metric.headline)
"""The metrics that are reported first."""
BESIDE = tuple(metric for metric in KNOWN if metric.beside)
OF_CLASSES = (*(m for m in RECALLS if m.by_class), *(m for m in KNOWN if m.by_class and m not in RECALLS))
OF_PAPERS = tuple(
    metric.name for metric in sorted(KNOWN, key=lambda metric: metric.of_paper or 0) if metric.of_paper is not None
)
"""The columns of papers' numbers, in the order in which papers give them."""
PAPER_HEADLINES = tuple(name for name in OF_PAPERS if name in HEADLINES)


def metric_of(name: str) -> Metric | None:
    """The metric of a name such as `map_at_r` or `recall_at_10`, or None."""
    start, _, k = name.partition("recall_at_")
    return recall(int(k)) if not start and k.isdecimal() else BY_NAME.get(name)


def is_share(name: str) -> bool:
    """Whether a metric, as `val/map_at_r` or a part of a test, is in 0 ... 1."""
    metric = metric_of(name.removeprefix("val/").removeprefix("concatenated_"))
    return metric is not None and metric.share


def is_minimised(objective: str) -> bool:
    """Whether an objective such as `val/map_at_r` is a metric of which less is better."""
    metric = metric_of(objective.removeprefix("val/"))
    return metric is not None and not metric.larger_is_better
