"""What a reader asks of a search first: is it better, by how much, on what, how sure, at what cost, and what next.

    Findings, next steps ──> Answers ──> page, text report, Markdown, `report --json`

All of them fit into the first 150 words of a page; what qualifies an answer stands before it.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any, Literal

from orchestrator.data.measured import Measured
from orchestrator.evaluation.claims import FEWEST_CLASSES, Ends
from orchestrator.evaluation.measures import YARDSTICK
from orchestrator.report import learning
from orchestrator.report.findings import Findings
from orchestrator.report.significance import Difference, tests_by_seed
from orchestrator.report.standing import compare_trials, standing
from orchestrator.report.steps import ProposedStep
from orchestrator.report.tested import MetricGoal, goals, is_held_out
from orchestrator.storage.events import Gain
from orchestrator.storage.ledger import Ledger
from orchestrator.storage.outputs import Output
from orchestrator.storage.trial_record import TrialRecord
from orchestrator.text import capitalize_first, join_names, pluralize, span

RECALL = "recall_at_1"
"""Of 1,000 queries so many thousandths have a right nearest neighbour."""

SHORTEST = 0.01
"""Fewer hours of a processor are not named."""

Place = Literal["test", "held-out", "training"]


class AnswerOutput(Output):
    """To one of the six first questions: better, by how much, on what, how sure, at what cost, what next."""

    question: str
    caveat: str
    """What qualifies the answer; empty where nothing does."""
    answer: str


class LeadOutput(Output):
    """What the leading trial is compared with, and by how much it is ahead."""

    of: str
    place: Place
    """Whose values these are: of the test, of the held-out classes, or a loss of the training."""
    metric: str
    value: float
    difference: float
    low: float | None
    high: float | None
    better: bool | None
    """Beyond chance; null where that is not known."""
    queries_of_1000: int | None
    """How many more have a right nearest neighbour."""


@dataclass(frozen=True)
class Lead:
    """What the leading trial is compared with, on the same classes, and by how much it is ahead of that."""

    of: str
    """`its untrained network`, `trial 0003`"""
    place: Place
    metric: str
    value: float
    """The leading trial's."""
    difference: float
    """Its value less the other one's."""
    ends: Ends | None
    """The 95% interval of the difference; where it is one of several, corrected as its p is."""
    better: bool | None
    """Whether that is so beyond chance; None where that is not known."""
    sure: str
    """The interval and what it is over, or why there is none."""
    queries: int | None = None
    """Of 1,000, how many more have a right nearest neighbour; None where recall@1 was not measured."""

    def size(self, *, explained: bool) -> str:
        """`+0.4332 over its untrained network (652 more of 1,000 queries have a right nearest neighbour)`; not
        `explained`, `(652 more of 1,000)`"""
        text = f"{self.difference:+.4f} over {self.of}"
        if self.queries is None:
            return text
        count = f"{abs(self.queries)} {'more' if self.queries > 0 else 'fewer'}" if self.queries else "as many"
        return f"{text} ({count} of 1,000{' queries have a right nearest neighbour' if explained else ''})"

    @property
    def output(self) -> LeadOutput:
        """For JSON."""
        low, high = (None, None) if self.ends is None else self.ends
        return LeadOutput(
            of=self.of,
            place=self.place,
            metric=self.metric,
            value=self.value,
            difference=self.difference,
            low=low,
            high=high,
            better=self.better,
            queries_of_1000=self.queries,
        )


@dataclass(frozen=True)
class Answer:
    """`caveat` qualifies the text and stands before it; empty where nothing does."""

    question: str
    text: str
    caveat: str = ""

    @property
    def whole(self) -> str:
        """Both, in one line."""
        return " ".join(filter(None, (self.caveat, self.text)))

    @property
    def output(self) -> AnswerOutput:
        """For JSON."""
        return AnswerOutput(question=self.question, caveat=self.caveat, answer=self.text)


@dataclass(frozen=True)
class Answers:
    """The six, in the order in which they are asked, and what the first two were computed from."""

    better: Answer
    size: Answer
    measured_on: Answer
    certainty: Answer
    cost: Answer
    following: Answer
    leads: tuple[Lead, ...]
    command: str | None
    """The one that `following` names."""

    @property
    def each(self) -> tuple[Answer, ...]:
        """All six."""
        return (self.better, self.size, self.measured_on, self.certainty, self.cost, self.following)


def answers_of(findings: Findings, steps: Sequence[ProposedStep]) -> Answers:
    """The six answers of a search so far; `steps` are its next ones, of which the first is named."""
    leads = tuple(_leads(findings))
    step = steps[0] if steps else None
    cost = f" ({step.cost})" if step is not None and step.cost else ""
    return Answers(
        better=_better(findings, leads),
        size=Answer("By how much?", _sizes(findings.ledger, leads), _untested_text(findings)),
        measured_on=_measured_on(findings),
        certainty=Answer(
            "How sure?",
            " ".join(f"{capitalize_first(one.of)}: {one.sure}." for one in leads) or "Nothing was compared.",
        ),
        cost=Answer("What did it cost?", _cost(findings)),
        following=Answer("What next?", "Nothing." if step is None else f"{step.what}{cost}."),
        leads=leads,
        command=None if step is None else step.command,
    )


# Better than what, and by how much -------------------------------------------------------------------------------


def _leads(findings: Findings) -> Iterator[Lead]:
    """The untrained network first, then the next trial or point."""
    if findings.leader is None:
        return
    lead = _over_untrained_on_test(findings.ledger, findings.leader)
    lead = lead or _over_untrained_held_out(findings.ledger, findings.leader)
    if lead is not None:
        yield lead
    if (rival := _over_point(findings) if findings.points else _over_rival(findings)) is not None:
        yield rival


def _over_untrained_on_test(ledger: Ledger, leader: TrialRecord) -> Lead | None:
    """On the test classes, by the run whose network was measured before its training."""
    runs, goal = ledger.tests_of(leader), goals(ledger)[0]
    for run in runs:
        if (score := learning.untrained_on_test(ledger, run)) is None:
            continue
        metric = goal.metric if goal.larger and goal.metric in score["metrics"] else YARDSTICK
        of = "its untrained network" + (f" (seed {run.settings.get('seed', 0)})" if len(runs) > 1 else "")
        if metric in run.test:
            verdict = learning.judge(ledger, run).verdict
            return _over_untrained(of, "test", metric, run.test, score, run.gain, verdict)
    return None


def _over_untrained_held_out(ledger: Ledger, leader: TrialRecord) -> Lead | None:
    score = learning.untrained_score(ledger, leader)
    if score is None or score["split"] != "validation" or not leader.best_metrics:
        return None
    metric = ledger.metric if is_held_out(ledger.metric) and ledger.mode == "max" else f"val/{YARDSTICK}"
    values = {name.removeprefix("val/"): value for name, value in leader.best_metrics.items()}
    metric = metric.removeprefix("val/")
    if metric not in values or metric not in score["metrics"]:
        return None
    gain = None if leader.test else leader.gain
    return _over_untrained(
        "its untrained network", "held-out", metric, values, score, gain, learning.judge(ledger, leader).verdict
    )


def _over_untrained(
    of: str,
    place: Place,
    metric: str,
    values: Mapping[str, float],
    score: Mapping[str, Any],
    gain: Gain | None,
    verdict: learning.Verdict,
) -> Lead:
    """By the gain paired by class, where it was recorded; else by the rule of who learned (`learning.judge`)."""
    before = score["metrics"]
    gain = gain if gain is not None and gain.metric == metric else None
    difference = values[metric] - before[metric] if gain is None else gain.difference
    queries = round(1000 * (values[RECALL] - before[RECALL])) if RECALL in values and RECALL in before else None
    better: bool | None = {"learned": True, "did not learn": False}.get(verdict)
    if gain is None or gain.low is None or gain.high is None:
        of_set = Measured.read(score.get("of"))
        few = of_set is not None and of_set.classes < FEWEST_CLASSES
        why = f"{FEWEST_CLASSES} classes are needed" if few else "the table of its classes is missing"
        return Lead(of, place, metric, values[metric], difference, None, better, f"no interval, {why}", queries)
    ends = gain.low, gain.high
    if better is not False:
        better = True if ends[0] > 0 else False if ends[1] < 0 else None
    sure = f"95% {_ends(ends)} over {pluralize(gain.classes, 'class', 'classes')}"
    return Lead(of, place, metric, values[metric], difference, ends, better, sure, queries)


def _over_rival(findings: Findings) -> Lead | None:
    """By the tests of the two, where both were tested over seeds; else by their best validations at equal age."""
    ledger, leader = findings.ledger, findings.leader
    assert leader is not None
    between = findings.rival
    if between is not None:
        goal, ahead = goals(ledger)[0], between.one == leader.trial_id
        other = ledger.trials[between.other if ahead else between.one]
        difference = between.mean if ahead else -between.mean
        ends = between.ends if between.is_tested else None
        if ends is not None and not ahead:
            ends = -ends[1], -ends[0]
        sure = _sure(between, ends)
        better = goal.better(difference, 0.0) if between.real else None
        value = fmean(tests_by_seed(ledger, leader, goal.metric).values())
        recalls = (tests_by_seed(ledger, one, RECALL) for one in (leader, other))
        of = f"trial {other.trial_id}"
        return Lead(of, "test", goal.metric, value, difference, ends, better, sure, _more_queries(*recalls))
    others = [] if ledger.second is not None or leader.best is None else standing(ledger)[1:]
    if not others:
        return None
    pair = compare_trials(ledger, leader, others[0])
    recalls = ({0: one.best_metrics[f"val/{RECALL}"]} for one in (leader, others[0]) if pair.age is None and _has(one))
    queries = _more_queries(*found) if len(found := list(recalls)) == 2 else None
    return Lead(
        of=f"trial {others[0].trial_id}" + ("" if pair.age is None else f" at {pluralize(pair.age, 'validation')}"),
        place=_place(ledger),
        metric=ledger.metric.removeprefix("val/"),
        value=pair.one,
        difference=pair.one - pair.other,
        ends=None,
        better=None,
        sure="one seed each, which may be chance",
        queries=queries,
    )


def _sure(between: Difference, ends: Ends | None) -> str:
    """The interval and p of a difference, or why it has none."""
    if not between.is_tested or ends is None:
        return between.why_untested
    return f"95% {_ends(ends)} over {between.over}, p {between.adjusted:.2g}"


def _over_point(findings: Findings) -> Lead | None:
    """Of a grid over seeds: the best point against the next one."""
    ledger = findings.ledger
    first, *others = findings.points
    if not others:
        return None
    other, between = others[0], others[0].against
    of = f"the next point (trial {other.point.trial_ids[0]})"
    goal = MetricGoal(ledger.metric, ledger.mode == "max")
    difference, ends, better = first.point.mean - other.point.mean, None, None
    sure = "no common seeds"
    if between is not None:
        difference, ends = between.mean, between.ends if between.is_tested else None
        sure = _sure(between, ends)
        better = goal.better(difference, 0.0) if between.real else None
    recalls = (
        {trial.seed: trial.best_metrics[f"val/{RECALL}"] for trial in trials if _has(trial)}
        for trials in ([ledger.trials[name] for name in point.point.trial_ids] for point in (first, other))
    )
    metric = ledger.metric.removeprefix("val/")
    return Lead(of, _place(ledger), metric, first.point.mean, difference, ends, better, sure, _more_queries(*recalls))


def _place(ledger: Ledger) -> Place:
    """Where the objective is measured."""
    if not is_held_out(ledger.metric):
        return "training"
    return "test" if ledger.selection == "test" else "held-out"


def _has(trial: TrialRecord) -> bool:
    return f"val/{RECALL}" in trial.best_metrics


def _more_queries(one: Mapping[Any, float], other: Mapping[Any, float]) -> int | None:
    """Of 1,000, over the seeds that both have."""
    seeds = one.keys() & other.keys()
    return round(1000 * fmean(one[seed] - other[seed] for seed in seeds)) if seeds else None


# The answers' texts ----------------------------------------------------------------------------------------------


def _better(findings: Findings, leads: Sequence[Lead]) -> Answer:
    ledger, leader = findings.ledger, findings.leader
    caveat = " ".join(_qualify(findings))
    if leader is None:
        return Answer("Is it better?", f"Not known: no trial has a result{ledger.yet}.", caveat)
    name = "the best point" if findings.points else f"trial {leader.trial_id}"
    text = " ".join(f"Than {one.of}: {_word(one)}." for one in leads)
    if ledger.second is not None:
        front = pluralize(len(ledger.front), "trial")
        text = f"Best in {ledger.metric} of {front} on the front. {text}".rstrip()
    return Answer(f"Is {name} better?", text or "Nothing was measured that it could be compared with.", caveat)


def _word(lead: Lead) -> str:
    return "not known" if lead.better is None else "yes" if lead.better else "no"


def _qualify(findings: Findings) -> Iterator[str]:
    """What qualifies all answers."""
    ledger = findings.ledger
    if findings.lost:
        yield "Its process is gone, so that answers are of a part."
    elif ledger.state in ("running", "interrupted"):
        yield "It still runs: answers may change." if ledger.state == "running" else "Interrupted: answers may change."
    if learning.verdict_line(ledger):
        yield "It did not learn."
    elif learning.better_untrained(ledger):
        yield "No training is above an untrained network."
    if findings.favoured is not None:
        yield "Its own tests chose it."


def _sizes(ledger: Ledger, leads: Sequence[Lead]) -> str:
    """Each lead, after the value that it is of; without one, the best values alone."""
    if not leads and (winner := ledger.winner()) is not None and winner.best is not None:
        best = {ledger.metric: winner.best, ledger.second or "": winner.second}
        return f"{', '.join(f'{name} {value:.4g}' for name, value in best.items() if value is not None)}."
    values: dict[tuple[str, str, float], list[str]] = {}
    for number, lead in enumerate(leads):
        explained = all(one.queries is None for one in leads[:number])
        values.setdefault((lead.place, lead.metric, lead.value), []).append(lead.size(explained=explained))
    texts = []
    for (place, metric, value), sizes in values.items():
        where = "" if place == "training" else f"{capitalize_first(place)} "
        texts.append(f"{where}{metric} {value:.4f}: {', '.join(sizes)}.")
    return " ".join(texts) or "Not known."


def _untested_text(findings: Findings) -> str:
    """Why the numbers are of the classes that chose them, if they are."""
    ledger, leader = findings.ledger, findings.leader
    if leader is None or ledger.tests_of(leader) or not is_held_out(ledger.metric) or ledger.selection == "test":
        return ""
    if leader.excess is None:
        return f"Not tested{ledger.yet}; these classes chose it, so that values are rather too high."
    much = f"about {leader.excess.value:.4f}" if learning.is_noticeable(leader.excess) else "hardly"
    return f"Not tested{ledger.yet}; {much} too high, as the {learning.best_of_text(ledger, leader.excess)}."


def _measured_on(findings: Findings) -> Answer:
    """Data set, classes and queries of the test and of the choice."""
    ledger, leader = findings.ledger, findings.leader
    question, dataset = "On what?", ledger.dataset or str(findings.settings.get("dataset"))
    remarks = "See the remark on the data set." if learning.data_lines(ledger) else ""
    held_out, test = learning.held_out_set(ledger, leader), learning.test_set(ledger)
    if ledger.selection == "test":
        caveat = " ".join(filter(None, (remarks, "Chosen on the TEST classes: no number is of unseen ones.")))
        return Answer(question, f"{_set_text(test, 'test ')} of {dataset}.", caveat)
    new = "unseen " if findings.settings.get("protocol") != "classification" else "known "
    parts = [f"The test: {_set_text(test, new)} of {dataset}"] if leader is not None and ledger.tests_of(leader) else []
    if is_held_out(ledger.metric) and (leader is None or leader.best is not None):
        few = learning.small_selection(ledger) is not None
        remarks = " ".join(filter(None, (remarks, "The choice is on very little." if few else "")))
        of = "" if parts else f" of {dataset}"
        parts.append(f"{'chosen' if parts else 'Chosen'} on {_set_text(held_out, 'held-out ')}{of}")
    return Answer(question, "; ".join(parts or [dataset]) + ".", remarks)


def _set_text(of: Measured | None, kind: str) -> str:
    """`60 unseen classes, 1,920 queries`"""
    if of is None:
        return f"{kind}classes"
    folds = f" in {of.folds} folds" if of.folds > 1 else ""
    queries = f"{of.queries:,} {'query' if of.queries == 1 else 'queries'}"
    return f"{of.classes:,} {kind}{'class' if of.classes == 1 else 'classes'}{folds}, {queries}"


def _cost(findings: Findings) -> str:
    """Hours on a clock and of processors, and for how many trainings."""
    ledger = findings.ledger
    hours = {kind: sum(run.hours.get(kind, 0.0) for run in ledger.everyone()) for kind in ("GPU", "CPU")}
    used = [f"{amount:.2g} {kind}-hours" for kind, amount in hours.items() if amount >= SHORTEST]
    counts = [pluralize(len(ledger.trials), "trial" if ledger.kind == "search" else "training")]
    counts += [pluralize(len(ledger.finals), "final run")] if ledger.finals else []
    clock = [f"{span(ledger.elapsed)} on the clock"] if ledger.elapsed else []
    return f"{', '.join([*clock, *used, f'{span(findings.seconds)} of training'])}: {join_names(counts, ' and ')}."


def _ends(ends: Ends) -> str:
    return f"{ends[0]:+.4f} to {ends[1]:+.4f}"
