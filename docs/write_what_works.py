"""Writes docs/what_works.md: `make what-works`. Its measured figures are of the claims' verdicts, the tabular
benchmark, the comparison of algorithms, and the record. What is said in words of searches with few epochs is quoted
from benchmarks/scale.md by hand."""

import itertools
import json
import math
import statistics
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, get_args

import numpy as np
import optuna
from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution
from optuna.importance import PedAnovaImportanceEvaluator, get_param_importances

from orchestrator.benchmarking import TabularTask, read_tasks
from orchestrator.claims.file import read_claim
from orchestrator.claims.hypothesis import Hypothesis
from orchestrator.claims.outputs import ClaimVerdict, DatasetVerdict
from orchestrator.claims.shipped import measured_verdict, shipped_claims
from orchestrator.config.space import Parameter
from orchestrator.evaluation.verdicts import kendall_tau
from orchestrator.results.outputs import Word
from orchestrator.results.row import Row
from orchestrator.results.standings import Standings, read_standings
from orchestrator.text import join_names

PAGE = Path(__file__).with_name("what_works.md")
TEMPLATE = PAGE.with_suffix(".txt")
ALGORITHMS = Path(__file__).parents[1] / "benchmarks" / "algorithms.json"
RECORD = Path(__file__).parents[1] / "results"
TASKS = {"glyphs": "glyphs-small", "emoji": "emoji-frozen", "icons": "icons-frozen"}
"""Tasks of the record that are planned for every method, by what the page calls them."""
HARDER = "glyphs-hard"
OBJECTIVE = "val/map_at_r"
BEST = 10
"""How many of a task's 200 points count as its best."""
NORMAL = statistics.NormalDist()
ERROR, POWER = 0.05, 0.8


def verdicts() -> dict[str, ClaimVerdict]:
    """The shipped ones, by the claim's name."""
    each = {name: measured_verdict(path, read_claim(path)) for name, path in shipped_claims().items()}
    return {name: verdict for name, verdict in each.items() if verdict is not None}


def points(verdict: ClaimVerdict, dataset: str, at: int = 0) -> str:
    """`+10.6 points (+5.6 to +15.6)`, of the comparison `at` on a data set."""
    (one,) = (one for one in verdict.datasets if one.dataset == dataset)
    effect = one.effects[at]
    return f"{effect.effect:+.1f} points ({effect.low:+.1f} to {effect.high:+.1f})"


def differences(verdict: DatasetVerdict, hypothesis: Hypothesis) -> Iterator[list[float]]:
    """Those of recall@1 of two arms that all learned, seed by seed, in points. Arms of the same trainings, which are
    read by two metrics, are one."""
    arms = [
        verdict.values[name]
        for name, arm in hypothesis.arms.items()
        if (arm.metric or hypothesis.metric) == "test/recall_at_1"
        and hypothesis.trains_as(name) == name
        and name in verdict.values.keys() - verdict.unlearned.keys()
    ]
    for one, other in itertools.combinations(arms, 2):
        yield [100 * (a - b) for a, b in zip(one, other, strict=True)]


def deviations(claims: Mapping[str, ClaimVerdict], dataset: str) -> list[float]:
    """The standard deviation of such differences, a value for each claim with 4 seeds or more: their median, since some
    claims have many arms."""
    paths, each = shipped_claims(), []
    for name, claim in claims.items():
        for one in claim.datasets:
            if one.dataset == dataset and one.pairs >= 4:
                of_claim = [statistics.stdev(of) for of in differences(one, read_claim(paths[name]).hypothesis)]
                each += [statistics.median(of_claim)] if of_claim else []
    return each


def pairs_for_one_point(deviation: float) -> int:
    """Pairs of seeds to see a difference of one point at 5% error and 80% power, by the normal approximation, and two
    for the deviation that is not known: n = ((z_0.975 + z_0.8) s)^2 + 2."""
    quantiles = NORMAL.inv_cdf(1 - ERROR / 2) + NORMAL.inv_cdf(POWER)
    return math.ceil((quantiles * deviation) ** 2) + 2


def best_values(task: TabularTask, seed: int) -> list[float]:
    return [max(task.curves[number, seed].metrics[OBJECTIVE]) for number in range(len(task.points))]


def best_rates(task: TabularTask) -> tuple[float, float]:
    """The least and the greatest learning rate of the best points, by the mean of the seeds."""
    columns = [best_values(task, seed) for seed in task.seeds]
    mean = [statistics.fmean(values) for values in zip(*columns, strict=True)]
    order = sorted(range(len(mean)), key=lambda number: -mean[number])[:BEST]
    rates = [float(task.points[number]["lr"]) for number in order]
    return min(rates), max(rates)


def importances(task: TabularTask, seed: int) -> dict[str, float]:
    """Of the settings that all points have, PED-ANOVA."""
    shared = [of for of in task.space.parameters() if all(of.key in point for point in task.points)]
    study = optuna.create_study(direction="maximize")
    for point, value in zip(task.points, best_values(task, seed), strict=True):
        study.add_trial(
            optuna.trial.create_trial(
                params={of.key: _value(of, point[of.key]) for of in shared},
                distributions={of.key: _distribution(of) for of in shared},
                value=value,
            )
        )
    return get_param_importances(study, evaluator=PedAnovaImportanceEvaluator())


def _value(parameter: Parameter, value: Any) -> Any:
    return str(value) if parameter.choices else float(value)


def _distribution(parameter: Parameter) -> BaseDistribution:
    if parameter.choices:
        return CategoricalDistribution([str(choice) for choice in parameter.choices])
    return FloatDistribution(parameter.low, parameter.high, log=parameter.log)


def beside_the_reference(standings: Standings) -> dict[str, Any]:
    """Which methods of the record are told apart above the reference, and how many below; which are nowhere told apart
    below the best."""
    words: dict[str, dict[str, str]] = {name: {} for name in TASKS}
    below: set[str] = set()
    for row in standings.outputs:
        for name, task in TASKS.items():
            if row.task == task:
                words[name][row.method] = "" if row.against_reference is None else row.against_reference.verdict
                if row.against_best is not None and row.against_best.verdict == "worse":
                    below.add(row.method)
    everywhere = set.intersection(*(set(of) for of in words.values()))
    tasks = [task for task in standings.tasks if task.name in TASKS.values()]
    collapsed = {row.facts.method for task in tasks for row in task.rows if has_collapsed(row)}
    better = {name: {method for method in everywhere if of[method] == "better"} for name, of in words.items()}
    if any(one & other for one, other in itertools.combinations(better.values(), 2)):
        raise ValueError(f"{TEMPLATE.name} says that no method is better than {standings.plan.reference} on two tasks")
    return {
        "never_below": join_names(
            [f"{name} (a seed collapsed)" if name in collapsed else name for name in sorted(everywhere - below)],
            " and ",
        ),
        **{f"better_{name}": join_names(sorted(methods), " and ") or "none" for name, methods in better.items()},
        **{f"worse_{name}": sum(of[method] == "worse" for method in everywhere) for name, of in words.items()},
    }


def has_collapsed(row: Row) -> bool:
    """Whether a seed has less than half of the median seed's MAP@R."""
    values = row.facts.test["map_at_r"]
    return min(values) < statistics.median(values) / 2


def on_harder_glyphs(standings: Standings) -> dict[str, Any]:
    """How many others are told apart above the reference there, and the best."""
    others = [row for row in standings.outputs if row.task == HARDER and row.against_reference is not None]
    above = sum(row.against_reference.verdict == "better" for row in others if row.against_reference)
    return {"hard_others": len(others), "hard_above": above, "hard_best": max(others, key=lambda row: row.score).method}


def beside_the_rates(standings: Standings, least: float) -> dict[str, int]:
    """On frozen networks: how many winners of the record have a lower learning rate, and of how many."""
    rates = {
        name: [float(str(row.facts.params["lr"])) for row in task.rows]
        for task in standings.tasks
        for name, of in TASKS.items()
        if of == task.name
    }
    return {
        **{f"lower_{name}": sum(rate < least for rate in of) for name, of in rates.items()},
        **{f"rows_{name}": len(of) for name, of in rates.items()},
    }


def beside_the_network(standings: Standings, name: str) -> dict[str, float]:
    """How many methods of the record are told apart from the pre-trained network as it comes, and by how many points
    those above it are."""
    (task,) = (task for task in standings.tasks if task.name == TASKS[name])
    words = [one.verdict for one in task.over_network.values()]
    if task.network is None or 2 * words.count("better") <= len(words):
        raise ValueError(f"{TEMPLATE.name} says that on {name} the pre-trained network is seldom enough")
    above = [100 * one.estimate.mean for one in task.over_network.values() if one.verdict == "better"]
    recall = max(row.recall_at_1 for row in standings.outputs if row.task == task.name)
    counted = {f"{word}_network": words.count(word) for word in get_args(Word)}
    facts = {"on_network": len(words), "network_score": task.network.score}
    facts["recall"] = 100 * (recall - task.network.scores.test["recall_at_1"])
    facts |= counted | {"least_network": min(above), "most_network": max(above)}
    return {f"{key}_{name}": value for key, value in facts.items()}


def metrics_agreement(standings: Standings, task: str) -> float:
    """Kendall's tau-b of the methods' MAP@R and recall@1."""
    rows = [row for row in standings.outputs if row.task == task]
    return float(kendall_tau(np.array([row.score for row in rows]), np.array([row.recall_at_1 for row in rows])))


def untrained_arms(claim: Path) -> set[str]:
    """The arms whose learning rate rises from zero for ever: the network before its training."""
    arms = read_claim(claim).hypothesis.arms
    return {name for name, arm in arms.items() if str(arm.settings.get("lr_warmup", "")).startswith("999999999")}


def is_reversed(standings: Standings, claim: ClaimVerdict) -> bool:
    """Whether on emoji the record and the claim, whose trainings are others, rank these two losses differently."""
    score = {row.method: row.score for row in standings.outputs if row.task == "emoji-frozen"}
    (emoji,) = (one for one in claim.datasets if one.dataset == "emoji")
    mean = {name: statistics.mean(values) for name, values in emoji.values.items()}
    one, other = "contrastive", "multi_similarity"
    return (score[one] < score[other]) is not (mean[one] < mean[other])


def figures() -> dict[str, Any]:
    """Those of the template, by name."""
    claims, standings = verdicts(), read_standings(RECORD)
    if not is_reversed(standings, claims["lore/losses_alike"]):
        raise ValueError(f"{TEMPLATE.name} says that other trainings reversed an order on emoji")
    words = [verdict.verdict for verdict in claims.values()]
    tasks = [task for task in read_tasks().values() if task.complete and not task.held_out]
    shown = [importances(task, seed) for task in tasks for seed in task.seeds]
    rates = [best_rates(task) for task in tasks]
    runs = json.loads(ALGORITHMS.read_text("utf-8"))
    alone = [statistics.median(run["shares"]) for run in runs if (run["way"], run["slots"]) == ("gp", 1)]
    stops = [run for run in runs if run["way"].startswith("gp + ")]
    asha = [run for run in stops if run["way"] == "gp + asha"]
    glyphs, emoji = deviations(claims, "glyphs-small"), deviations(claims, "emoji")
    worst = [statistics.quantiles(run["shares"], n=4)[2] for run in runs if (run["way"], run["slots"]) == ("gp", 1)]
    names = {
        "tuned": "lore/tuned_proxy_anchor",
        "finetuning": "lore/finetuning",
        "delta": "pfml/delta_stable",
    }
    idle = {name: untrained_arms(path) for name, path in shipped_claims().items()}
    (on_glyphs,) = (task for task in standings.tasks if task.name == TASKS["glyphs"])
    if (contrast := on_glyphs.contrast("proxy_anchor", "pfml")) is None or contrast.real:
        raise ValueError(f"{TEMPLATE.name} says that the record does not tell these two apart on glyphs")
    return {
        **{key: f"[`{name}`](../claims/{name}.json)" for key, name in names.items()},
        **{f"{key}_glyphs": points(claims[name], "glyphs-small") for key, name in names.items()},
        **{f"{key}_emoji": points(claims[name], "emoji") for key, name in names.items()},
        "wide_glyphs": points(claims[names["delta"]], "glyphs-small", 1),
        "wide_emoji": points(claims[names["delta"]], "emoji", 1),
        "claims": len(words),
        "hold": words.count("holds"),
        "fail": words.count("does not hold"),
        "undecided": words.count("undecided"),
        "unlearned": sum(any(one.unlearned.keys() - idle[name] for one in of.datasets) for name, of in claims.items()),
        **beside_the_reference(standings),
        **on_harder_glyphs(standings),
        **beside_the_network(standings, "emoji"),
        **beside_the_network(standings, "icons"),
        **beside_the_rates(standings, min(low for low, _ in rates)),
        **{f"tau_{name}": metrics_agreement(standings, task) for name, task in TASKS.items()},
        "tasks": len(tasks),
        "searches": len(shown),
        "rate_first": sum(next(iter(of)) == "lr" for of in shown),
        "rate_low": min(of["lr"] for of in shown),
        "rate_high": max(of["lr"] for of in shown),
        "least": min(low for low, _ in rates),
        "greatest": max(high for _, high in rates),
        "auto_low": min(alone),
        "auto_high": max(alone),
        "auto_tasks": len(alone),
        "auto_worst": max(worst),
        "asha_never": sum(run["never"] for run in asha),
        "asha_all": sum(len(run["shares"]) for run in asha),
        "stops_never": sum(run["never"] for run in stops),
        "stops_all": sum(len(run["shares"]) for run in stops),
        "kinds": len({run["way"] for run in stops}),
        **{f"{key}_glyphs": value for key, value in _spread(glyphs).items()},
        **{f"{key}_emoji": value for key, value in _spread(emoji).items()},
    }


def _spread(deviations: list[float]) -> dict[str, float]:
    low, median, high = statistics.quantiles(deviations, n=4)
    pairs = {"pairs": pairs_for_one_point(median), "more_pairs": pairs_for_one_point(high)}
    return {"sd": median, "n": len(deviations), "low": low, "high": high, **pairs}


def page() -> str:
    """The whole page."""
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
        return TEMPLATE.read_text("utf-8").format(**figures())


if __name__ == "__main__":
    PAGE.write_text(page(), "utf-8")
