"""What a search says about itself."""

from orchestrator.evaluation.measures.base import Metric

QUERIES_LEFT_OUT = Metric(
    name="queries_left_out",
    label="queries left out",
    about="number of queries without a same-class item in the gallery; they are in no mean",
    share=False,
)
APPROXIMATE_RECALL = Metric(
    name="approximate_recall",
    label="approximate recall",
    about="only where the search is approximate: share of the true neighbours that it found",
)
