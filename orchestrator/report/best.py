"""What `orchestrator best` answers of its search: is it worth it, which model, how good, what would more time bring.

Findings, the pre-trained networks' scores by class ──> BestAnswers ──> terminal, `--json`, Python
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from orchestrator.evaluation.measures import HEADLINES, YARDSTICK
from orchestrator.report.class_tables import ClassTable
from orchestrator.report.findings import Findings
from orchestrator.report.learning import held_out_set
from orchestrator.report.next_steps import enough_results, outlook_of
from orchestrator.report.significance import Difference, differences, resolution_of, tables_by_seed, tests_by_seed
from orchestrator.storage.ledger import Ledger
from orchestrator.storage.outputs import Output, SettingValue
from orchestrator.storage.trial_record import TrialRecord
from orchestrator.text import params_text, pluralize, span

RECALL = "recall_at_1"
DAY = 86400.0
RECIPE = ("method", "backbone", "augmentation", "warmup_epochs")
"""Settings that the answer puts into words."""


class BestReply(Output):
    """A question and its answer."""

    question: str
    answer: str


class BestOutput(Output):
    """What `orchestrator best --json` prints."""

    search: str
    dataset: str
    replies: list[BestReply]
    worth_it: bool | None
    """Whether the trained model is better than the pre-trained network; null where that is not known."""
    pretrained: str | None
    difference: float | None
    """Of test MAP@R, trained less pre-trained."""
    low: float | None
    high: float | None
    trial_id: str | None
    params: dict[str, SettingValue]
    test: dict[str, float]
    """Means over the seeds."""
    exported: str | None
    """The file of the model."""


@dataclass(frozen=True)
class Pretrained:
    """A backbone as it comes, whose embeddings are its pooled features at unit length."""

    backbone: str
    held_out: float
    """MAP@R on the held-out classes, by which one of several is chosen."""
    test: Mapping[str, float]
    by_class: Mapping[str, Mapping[str, float]]
    """Of the test: the mean of each headline metric by the class's name."""


@dataclass(frozen=True)
class BestAnswers:
    """The replies, and the facts behind the first ones."""

    replies: tuple[BestReply, ...]
    worth_it: bool | None
    between: Difference | None
    leader: TrialRecord | None
    test: Mapping[str, float]


def answer_best(findings: Findings, pretrained: Sequence[Pretrained]) -> BestAnswers:
    """The answers of a search so far; the first of the pre-trained networks is the best on held-out classes."""
    ledger, leader = findings.ledger, findings.leader
    first = pretrained[0] if pretrained else None
    between = None if first is None or leader is None else over_pretrained(ledger, leader, first)
    worth = None if between is None or not between.real else between.mean > 0
    test = {name: fmean(values.values()) for name in HEADLINES if (values := tests_by_seed(ledger, leader, name))}
    replies = (
        BestReply(question="Is fine-tuning worth it?", answer=_worth_text(findings, first, between, worth, test)),
        BestReply(question="Which model?", answer=_model_text(findings)),
        BestReply(question="How good on classes never seen?", answer=_quality_text(findings)),
        BestReply(question="What would one more day bring?", answer=one_day_text(findings)),
    )
    return BestAnswers(replies, worth, between, leader, test)


def over_pretrained(ledger: Ledger, leader: TrialRecord, network: Pretrained) -> Difference | None:
    """How much the tests of a trial's final runs are above those of a pre-trained network, which has no seeds: over
    classes and seeds crossed (`verdicts.crossed_estimate`)."""
    values = tests_by_seed(ledger, leader, YARDSTICK)
    if not values or YARDSTICK not in network.test:
        return None
    tables, means = tables_by_seed(ledger, leader, YARDSTICK), network.by_class.get(YARDSTICK, {})
    same = {
        seed: ClassTable(dict(means), table.counts)
        for seed, table in tables.items()
        if means.keys() == table.means.keys()
    }
    one, other = leader.trial_id, network.backbone
    compared = differences(
        {one: values, other: dict.fromkeys(values, network.test[YARDSTICK])},
        {one: tables, other: same},
        resolution_of(ledger),
        {one: ledger.looks},
    )
    return compared[0] if compared else None


def _worth_text(
    findings: Findings,
    network: Pretrained | None,
    between: Difference | None,
    worth: bool | None,
    test: Mapping[str, float],
) -> str:
    if network is None:
        return "Not known: no pre-trained network was measured."
    if between is None:
        why = "no trial has a result" if findings.leader is None else "its final runs are not done"
        return f"Not known: {why}{findings.ledger.yet}."
    if worth:
        first = "Yes."
    elif worth is False:
        first = f"No: it is worse than {network.backbone} as it comes."
    elif between.is_tested:
        first = f"Not known: it is not better than {network.backbone} as it comes beyond chance."
    else:
        first = f"Not known: no test {between.why_untested}."
    low, high = between.ends or (None, None)
    ends = "" if low is None else f" (95% {low:+.4f} to {high:+.4f} over {between.over})"
    text = f"{first} Test {YARDSTICK} {test[YARDSTICK]:.4f}, {network.backbone} as it comes "
    text += f"{network.test[YARDSTICK]:.4f}: {between.mean:+.4f}{ends}."
    if RECALL in test and RECALL in network.test:
        more = round(1000 * (test[RECALL] - network.test[RECALL]))
        count = f"{abs(more)} {'more' if more > 0 else 'fewer'}" if more else "As many"
        text += f" {count} of 1,000 queries have a right nearest neighbour."
    return text


def _model_text(findings: Findings) -> str:
    ledger, leader = findings.ledger, findings.leader
    if leader is None:
        return f"None: no trial has a result{ledger.yet}."
    settings = {**leader.settings, **leader.params}
    frozen = settings.get("warmup_epochs", 0) >= settings.get("epochs", 1)
    what = "its embedding layer alone trained" if frozen else "all its layers trained"
    held_out = held_out_set(ledger, leader)
    of = "" if held_out is None else f" on {pluralize(held_out.classes, 'held-out class', 'held-out classes')}"
    point = f" ({found})" if (found := _point_text(leader)) else ""
    trials = pluralize(len(ledger.candidates()), "trial")
    return (
        f"Trial {leader.trial_id}, the best of {trials}{of}: {settings.get('method')} on {settings.get('backbone')}, "
        f"{what}{point}."
    )


def _point_text(leader: TrialRecord) -> str:
    return params_text({key: value for key, value in leader.params.items() if key not in RECIPE})


def _quality_text(findings: Findings) -> str:
    texts = [f"{name} {findings.tested[name]}" for name in (RECALL, YARDSTICK) if name in findings.tested]
    return f"{', '.join(texts)}." if texts else f"Not known: not tested{findings.ledger.yet}."


def one_day_text(findings: Findings) -> str:
    """What another 24 hours of this search may bring; forecasts are checked for as many trials again only."""
    ledger = findings.ledger
    results, seconds = len(ledger.candidates()), ledger.elapsed or findings.seconds
    if not results:
        return "Cannot be said: no trial has a result."
    in_a_day = int(results * DAY / seconds)
    if results < (enough := enough_results(findings)):
        hours = (enough - results) * seconds / results
        return (
            f"Cannot be said from {pluralize(results, 'result')}: it takes {enough} to judge this space (about "
            f"{span(hours)} more). A day is room for {in_a_day:,} trials."
        )
    outlook = outlook_of(findings, min(results, in_a_day))
    if outlook is None:
        return "Cannot be said: too few trials are comparable at one age."
    took = span(outlook.more * seconds / results)
    text = f"{outlook.text} (on held-out classes); they take {took}."
    if in_a_day > outlook.more:
        text += " Of the rest of the day nothing can be said: forecasts are checked for as many trials again only."
    return text


def best_output(ledger: Ledger, answers: BestAnswers, pretrained: Sequence[Pretrained], exported: Any) -> BestOutput:
    """For JSON; `exported` is the model's file, or None."""
    low, high = (None, None) if answers.between is None else answers.between.ends or (None, None)
    return BestOutput(
        search=ledger.name,
        dataset=str(ledger.dataset),
        replies=list(answers.replies),
        worth_it=answers.worth_it,
        pretrained=pretrained[0].backbone if pretrained else None,
        difference=None if answers.between is None else answers.between.mean,
        low=low,
        high=high,
        trial_id=None if answers.leader is None else answers.leader.trial_id,
        params={} if answers.leader is None else dict(answers.leader.params),
        test=dict(answers.test),
        exported=None if exported is None else str(exported),
    )
