"""Saved views of a search for MLflow's web pages: what its reviewer should see first, without any configuration.

MLflow keeps a view as a tag of the experiment, `mlflow.sharedViewState.KEY`, and shows it at
`#/experiments/ID/runs?viewStateShareKey=KEY`. The format is not documented: `TRIED` lists the versions that show
these views correctly (the tests open them in a browser); other versions get none.
"""

import base64
import json
import zlib
from collections.abc import Mapping, Sequence
from typing import Any, Literal
from urllib.parse import quote

from orchestrator.storage.events import SearchStarted, named_settings
from orchestrator.storage.ledger import best_key

TRIED = ("3.17",)
"""Tested versions of MLflow's server, major and minor."""
TAG = "mlflow.sharedViewState."
MAX_CHARTS = 8
"""How many settings get their own chart."""
MAX_COMPARED = 10

View = Literal["table", "charts", "best", "methods"]
ML = "workflowType=machine_learning"


def view_key(search_id: str, view: View) -> str:
    """The key of a view in its address."""
    return f"{search_id[:16]}-{view}"


def view_path(experiment_id: str, search_id: str, view: View) -> str:
    """The path of a view, relative to MLflow's address."""
    mode = "&compareRunsMode=CHART" if view in ("charts", "best") else ""
    return f"#/experiments/{experiment_id}/runs?viewStateShareKey={view_key(search_id, view)}{mode}&{ML}"


def run_path(experiment_id: str, run_id: str) -> str:
    """The path of a run, relative to MLflow's address."""
    return f"#/experiments/{experiment_id}/runs/{run_id}?{ML}"


def report_path(experiment_id: str, run_id: str, page: str) -> str:
    """The path of a page among a run's artifacts, relative to MLflow's address."""
    return f"#/experiments/{experiment_id}/runs/{run_id}/artifacts/{page}?{ML}"


def comparison_path(experiment_id: str, run_ids: Sequence[str]) -> str:
    """The path of a comparison of runs, relative to MLflow's address."""
    runs, experiments = json.dumps(list(run_ids[:MAX_COMPARED])), json.dumps([experiment_id])
    return f"#/compare-runs?runs={quote(runs)}&experiments={quote(experiments)}&{ML}"


def first_stop(started: SearchStarted) -> int | None:
    """The first validation after which a trial of this search may be stopped, so that all trials compare
    there; None without early stopping. Older journals lack it; all schedulers that they name had the same keys."""
    if "first_stop" in started.model_fields_set:
        return started.first_stop
    scheduler = started.config.get("scheduler") or {}
    return scheduler.get("grace_validations", 1) if scheduler.get("name", "none") != "none" else None


def best_at_key(metric: str, age: int) -> str:
    """The metric with a trial's best after `age` validations: `best_at_3/val_map_at_r`"""
    return f"best_at_{age}/{best_key(metric).removeprefix('best/')}"


def saved_views(
    started: SearchStarted, important: Sequence[str] = (), least: float | None = None, longest: int = 0
) -> dict[str, str]:
    """The tags of an experiment that hold a search's views.

    Args:
        started: the first event of its journal.
        important: searched settings, the most important first; the others of the space follow.
        least: the objective of the last of the best trials that get their own view.
        longest: the validations of the longest trial so far. If even that is shorter than the age at which trials are
            compared, they are compared by their best.
    """
    name, search_id, objective = started.name, started.search_id, started.objective
    best = best_key(objective.metric)
    keys = list(dict.fromkeys([*important, *named_settings(started.config["raw_space"])]))
    of_search = f"tags.`orchestrator.search_id` = '{search_id}' and tags.`orchestrator.kind` != 'search'"
    trials = f"tags.`orchestrator.search_id` = '{search_id}' and tags.`orchestrator.kind` = 'trial'"
    ascending = objective.mode == "min"
    several = "method" in keys
    age = first_stop(started)
    compared = best if age is None or 0 < longest < age else best_at_key(objective.metric, age)
    values = dict.fromkeys((best, compared, "best/val_recall_at_1", "test/map_at_r"))
    columns = ["tags.`orchestrator.state`", *(f"metrics.`{value}`" for value in values)]
    columns += [*(f"params.`{key}`" for key in keys), "metrics.`epoch`", "attributes.`Duration`"]
    table: dict[str, Any] = {"searchFilter": of_search, "selectedColumns": columns, "columnOrder": columns}
    charts: dict[str, Any] = table | {"searchFilter": trials, **_charts(keys, best, compared, objective.metric)}
    groups = [{"mode": "tag", "groupByData": "orchestrator.method"}]
    # for a group of runs MLflow shows the greatest value of each setting, as if that were a point
    scores = [column for column in columns if not column.startswith("params.")]
    methods = table | {
        "selectedColumns": scores,
        "columnOrder": scores,
        "searchFilter": trials if several else "tags.`orchestrator.kind` = 'trial'",
        "groupBy": {"aggregateFunction": "min" if ascending else "max", "groupByKeys": groups},
    }
    order = {"orderByKey": f"metrics.`{best}`", "orderByAsc": ascending}
    among = f"{trials} and metrics.`{best}` {'<=' if ascending else '>='} {least!r}"
    few = {"searchFilter": f"{among} and tags.`orchestrator.state` != 'failed'"}
    views: dict[View, tuple[str, dict[str, Any]]] = {
        "table": (f"{name}: leaderboard", table),
        "charts": (f"{name}: charts", charts),
        **({} if least is None else {"best": (f"{name}: the best", charts | few)}),
        "methods": (f"{name if several else started.dataset}: by method", methods),
    }
    return {
        TAG + view_key(search_id, view): _tag(title, COMMON | order | state, started.time)
        for view, (title, state) in views.items()
    }


COMMON: dict[str, Any] = {
    "startTime": "ALL",
    "lifecycleFilter": "Active",
    "datasetsFilter": [],
    "modelVersionFilter": "All Runs",
    "columnOrder": [],
    "columnWidths": {},
    "runsHiddenMode": "SHOW_ALL",
    "runsHidden": [],
    "runsPinned": [],
    "groupBy": None,
    "groupsExpanded": {},
    "viewMaximized": False,
    "runListHidden": False,
    "isAccordionReordered": True,
    "useGroupedValuesInCharts": True,
    "hideEmptyCharts": True,
    "globalLineChartConfig": {"xAxisKey": "step", "lineSmoothness": 0, "selectedXAxisMetricKey": ""},
    "compareRunSections": [],
    "compareRunCharts": [],
}


def _charts(keys: Sequence[str], best: str, compared: str, metric: str) -> dict[str, Any]:
    """`compared` is the metric that compares trials of unequal length: settings are plotted against it."""

    def axis(key: str) -> dict[str, str]:
        return {"key": key, "type": "METRIC" if key == compared else "PARAM"}

    charted = list(keys[:MAX_CHARTS])
    charts: list[dict[str, Any]] = []
    if charted:
        every: dict[str, Any] = {"selectedParams": charted, "selectedMetrics": [compared], "showAllRuns": False}
        charts.append({"type": "PARALLEL", "runsCountToCompare": 100, **every})
    charts += [{"type": "BAR", "metricKey": key, "runsCountToCompare": 20} for key in dict.fromkeys((best, compared))]
    curves: dict[str, Any] = {
        "metricKey": metric,
        "selectedMetricKeys": [metric],
        "xAxisKey": "step",
        "scaleType": "linear",
    }
    curves |= {"xAxisScaleType": "linear", "lineSmoothness": 0, "yAxisKey": "metric", "yAxisExpressions": []}
    curves |= {"ignoreOutliers": False, "useGlobalXaxisKey": True, "useGlobalLineSmoothing": True, "range": {}}
    charts.append({"type": "LINE", "runsCountToCompare": 20, **curves})
    if len(charted) > 1:
        axes = {"xaxis": axis(charted[0]), "yaxis": axis(charted[1]), "zaxis": axis(compared)}
        charts.append({"type": "CONTOUR", "runsCountToCompare": 100, **axes})
    for key in charted:
        axes = {"xaxis": axis(key), "yaxis": axis(compared)}
        charts.append({"type": "SCATTER", "runsCountToCompare": 100, **axes})
    # MLflow adds a chart for every metric without one; those of settings recorded as metrics are useless
    charts += [{"type": "BAR", "metricKey": f"param/{key}", "deleted": True, "isGenerated": True} for key in keys]
    common = {"metricSectionId": "search", "deleted": False, "isGenerated": False}
    section = {"uuid": "search", "name": "Search", "display": True, "isReordered": False, "columns": 2}
    return {
        "compareRunSections": [section],
        "compareRunCharts": [{"uuid": f"chart-{n}", **common, **chart} for n, chart in enumerate(charts)],
    }


def _tag(name: str, state: Mapping[str, Any], time: int) -> str:
    packed = base64.b64encode(zlib.compress(json.dumps(state).encode(), 9)).decode()
    return json.dumps({"name": name, "createdAt": time, "updatedAt": time, "state": f"deflate;{packed}"})
