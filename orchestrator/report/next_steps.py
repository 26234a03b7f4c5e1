"""What to run next: up to three commands with their reasons and costs, by rules over a search's findings.

    findings ──> RULES, from the first ──> at most MOST steps ──> page, note, text report, `report --json`

Each rule gives the steps that it finds reason for. A rule that stands `alone` ends the list: after it nothing else is
worth saying. The rules at the end, `more` and `stop`, hold only where no earlier one asks for a search of its own.
"""

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from orchestrator.config.files import read_yaml, shipped_searches
from orchestrator.config.training import Training, resolve_experiment
from orchestrator.errors import InputError
from orchestrator.report import learning
from orchestrator.report.commands import changed_words, train_words
from orchestrator.report.findings import Findings
from orchestrator.report.importance import ENOUGH_TRIALS
from orchestrator.report.leading import Favoured
from orchestrator.report.limits import no_feasible_trial, within_words
from orchestrator.report.next_spaces import longer, narrow, tail_of, widen
from orchestrator.report.power import SEEDS_TO_FORECAST, seeds_needed
from orchestrator.report.settings import space_of
from orchestrator.report.significance import tests_by_seed
from orchestrator.report.standing import compare_trials, to_confirm
from orchestrator.report.steps import CONTENDERS, CONTENDING_METHODS, ProposedStep, left_of, line, of_finals, of_trials
from orchestrator.report.tested import goals
from orchestrator.storage.ledger import BENCHMARK, Ledger
from orchestrator.storage.trial_record import TrialRecord
from orchestrator.text import capitalize_first, join_names, pluralize, value_text

MOST = 3
"""The maximum number of steps that are shown."""
SEEDS = 5
"""The number of seeds over which leading trials are confirmed first."""
MAX_SEEDS = 30
"""More seeds than this are not proposed: the difference is then too small to be worth them."""
ENOUGH_TO_JUDGE = 20
"""Whether more trials are worth it is judged from so many results at least."""
LIKELY = 0.25
"""More trials are proposed where as many again better the best noticeably with this chance or more."""
NOTICEABLE = 0.01
"""Of the best value, where the deviation over seeds is not known."""
ELSEWHERE = ("widen", "longer", "narrow")
"""The rules whose steps are ordered by their expected gains."""
RECENT = 0.5
"""With two objectives: whether a trial joined the front among this share of them, the last ones."""
BASELINES = ("proxy_anchor", "multi_similarity")
"""Methods that learn on most data; the first that is not the search's own is the check of the data."""


@dataclass(frozen=True)
class Rule:
    """`when` is the condition in words, as the documentation has it; `search` rules ask for another search."""

    name: str
    when: str
    find: Callable[[Findings], Iterable[ProposedStep]]
    alone: bool = False
    search: bool = False
    last: bool = False
    """Whether it holds only where no `search` rule found anything."""


def next_steps(findings: Findings) -> list[ProposedStep]:
    """The steps that the rules give, the most important first, at most MOST. Searches elsewhere, or for longer, stand
    in the order of their expected gains per second of training."""
    collected: list[ProposedStep] = []
    searching = False
    for rule in RULES:
        if rule.last and searching:
            continue
        steps = list(rule.find(findings))
        collected += steps
        searching |= bool(steps) and rule.search
        if steps and rule.alone:
            break
    return sorted(collected, key=lambda step: -step.rate if step.rule in ELSEWHERE else 0.0)[:MOST]


# A search that has not ended, or has no result ---------------------------------------------------------------


def _lost(findings: Findings) -> Iterator[ProposedStep]:
    if findings.lost:
        yield ProposedStep(
            "lost",
            "Go on with it",
            "Its process is gone; what has ended is kept.",
            line(findings, ["orchestrator", "resume", findings.ledger.name]),
            left_of(findings),
        )


def _running(findings: Findings) -> Iterator[ProposedStep]:
    ledger = findings.ledger
    if ledger.state == "running":
        yield ProposedStep(
            "running",
            "Wait for its end",
            f"The {ledger.kind} has not ended, and its results may still change what is best to do.",
            line(findings, ["orchestrator", "status", ledger.name]),
            left_of(findings),
        )


def _resume_interrupted(findings: Findings) -> Iterator[ProposedStep]:
    ledger = findings.ledger
    if ledger.state == "interrupted":
        yield ProposedStep(
            "interrupted",
            "Go on with it",
            "It was interrupted; what has ended is kept.",
            line(findings, ["orchestrator", "resume", ledger.name]),
            left_of(findings),
        )


def _retry(findings: Findings) -> Iterator[ProposedStep]:
    ledger, again = findings.ledger, findings.ledger.trials_to_retry()
    if again:
        yield ProposedStep(
            "retry",
            f"Try {pluralize(len(again), 'training')} again",
            f"Nothing but a GPU that could no longer be used made {'it' if len(again) == 1 else 'them'} fail.",
            line(findings, ["orchestrator", "resume", ledger.name]),
            of_trials(findings, len(again)),
        )


def _look_at_failed(findings: Findings) -> Iterator[ProposedStep]:
    ledger = findings.ledger
    if findings.winner is not None:
        return
    if (nearest := ledger.nearest()) is not None:
        why = f"{capitalize_first(no_feasible_trial(ledger) or '')}."
        wider = ["orchestrator", "search", "--like", ledger.name, *within_words(nearest, ledger.constraints)]
        yield ProposedStep("failed", "Allow what the nearest trial costs", why, line(findings, wider))
        return
    first = next((trial for trial in ledger.everyone() if trial.state == "failed"), None)
    words = None if first is None else train_words({**first.settings, "epochs": 1})
    if first is None or words is None:
        yield ProposedStep("failed", "Find out why nothing was recorded", f"The {ledger.kind} ended without a result.")
        return
    yield ProposedStep(
        "failed",
        f"Train trial {first.trial_id} alone, for one epoch, to see its error",
        f"No trial has a result; the first failed with: {first.reason}.",
        line(findings, words),
    )


def _not_learned(findings: Findings) -> Iterator[ProposedStep]:
    ledger, winner = findings.ledger, findings.winner
    if winner is None or not (judgement := learning.judge(ledger, winner)).bad:
        return
    settings = winner.settings
    rate = float(settings.get("lr") or 0.0)
    why = f"Even the best trial did not learn ({judgement.why})"
    ways = [(0.1, "a tenth of it"), (10.0, "ten times as much")][: 1 if judgement.diverged else 2]
    for factor, share in ways if rate else ():
        lr = float(f"{rate * factor:.3g}")
        because = f"; {judgement.diverged}" if judgement.diverged else ""
        if words := train_words({**settings, "lr": lr}):
            what = f"Check the learning rate: train with {share}, {value_text(lr)}"
            yield ProposedStep("not_learned", what, f"{why}{because}.", line(findings, words), winner.seconds)
    method = next(name for name in BASELINES if name != settings.get("method"))
    training_settings = {key: value for key, value in settings.items() if key in Training.model_fields and key != "lr"}
    try:
        other = resolve_experiment({**training_settings, "method": method}, "next step").flat()
    except InputError:
        return
    if words := train_words(other):
        yield ProposedStep(
            "not_learned",
            f"Check the data: train {method} on it",
            f"{why}. If {method} does not learn either, look at the images and their labels first.",
            line(findings, words),
            winner.seconds,
        )


# Which of the leading trials is best -------------------------------------------------------------------------


def contenders(findings: Findings) -> list[TrialRecord]:
    """The trials that `--final-trials N` trains again, with N large enough for those that could as well have won
    (`_is_close`), at most CONTENDERS, and for one of each method, of at most CONTENDING_METHODS. With two objectives
    the first of the front."""
    ledger, winner = findings.ledger, findings.winner
    if winner is None or winner.best is None:
        return []
    listed_ = to_confirm(ledger, CONTENDERS)
    if ledger.second is not None:
        close = [trial.trial_id in ledger.front for trial in listed_]
    else:
        close = [_is_close(ledger, winner, trial) for trial in listed_]
    count = max((place for place, one in enumerate(close, start=1) if one), default=1)
    methods = {trial.settings.get("method", ledger.method) for trial in ledger.candidates()}
    return to_confirm(ledger, max(count, min(len(methods), CONTENDING_METHODS)))


def _is_close(ledger: Ledger, winner: TrialRecord, trial: TrialRecord) -> bool:
    """Whether a trial, at the age that both have, is within the winner's 95% interval over the held-out classes; so is
    each where none was recorded."""
    if trial is winner or winner.best_interval is None or winner.best is None:
        return True
    low, high = winner.best_interval
    margin = winner.best - low if ledger.mode == "max" else high - winner.best
    pair = compare_trials(ledger, winner, trial)
    return (pair.one - pair.other if ledger.mode == "max" else pair.other - pair.one) <= margin


def _confirm(findings: Findings) -> Iterator[ProposedStep]:
    ledger, winner = findings.ledger, findings.winner
    if winner is None:
        return
    metric = goals(ledger)[0].metric
    if ledger.kind == "training":
        if len(tests_by_seed(ledger, winner, metric)) < 2 and (words := train_words(winner.settings)):
            yield ProposedStep(
                "confirm",
                f"Repeat it over {SEEDS} seeds",
                "It has one seed: how much its number varies by chance is not known.",
                line(findings, [*words, "--repeats", str(SEEDS)]),
                SEEDS * winner.seconds,
            )
        return
    if ledger.over_seeds and not ledger.repeats:
        yield from _more_seeds(findings)
        return
    if findings.favoured is not None:
        yield _other_seeds(findings, findings.favoured)
        return
    leading = contenders(findings)
    real = {frozenset((d.one, d.other)) for d in findings.differences if d.real}
    rivals = [trial for trial in leading[1:] if frozenset((winner.trial_id, trial.trial_id)) not in real]
    if not rivals:
        return
    have = {trial.trial_id: tests_by_seed(ledger, trial, metric) for trial in leading}
    fewest, seeds, forecast = min(len(tests) for tests in have.values()), SEEDS, ""
    if fewest >= SEEDS:
        pairs = [d for d in findings.differences if {d.one, d.other} == {winner.trial_id, rivals[0].trial_id}]
        seeds_forecast = seeds_needed(pairs[0], len(findings.differences)) if pairs else None
        if seeds_forecast is None or seeds_forecast.seeds is None or not SEEDS < seeds_forecast.seeds <= MAX_SEEDS:
            return  # so small a difference does not matter: `stop` says that
        seeds, forecast = (
            seeds_forecast.seeds,
            f" A difference as large as the one seen takes {seeds_forecast.text} to be found.",
        )
    names = join_names([trial.trial_id for trial in leading], " and ")
    runs = sum(max(0, seeds - len(tests)) for tests in have.values())
    if ledger.second is not None:
        why = "None of them beats another in both objectives, and with one seed each their order may be chance."
    elif fewest >= 2:
        why = f"Over {pluralize(fewest, 'seed')} they cannot be told apart.{forecast}"
    elif max(len(tests) for tests in have.values()) >= 2:
        why = "Not all of them were tested over several seeds: their order may be chance."
    else:
        within = ""
        if winner.best_interval is not None and all(_is_close(ledger, winner, trial) for trial in leading):
            within = ", and the others are within the winner's 95% interval"
        each = "Over so few seeds" if ledger.repeats else "With one seed each"
        why = f"{each}, the order may be chance{within}."
    words = ["--final-trials", str(len(leading)), "--final-seeds", str(seeds)]
    yield ProposedStep(
        "confirm",
        f"Confirm trials {names} over {seeds} seeds",
        f"{why}{_of_methods(ledger, leading)}",
        line(findings, ["orchestrator", "resume", ledger.name, *words]),
        of_finals(findings, runs),
    )


def _of_methods(ledger: Ledger, leading: Sequence[TrialRecord]) -> str:
    """What confirming these says of methods, where the search is over several; as a sentence after others."""
    if len({trial.settings.get("method") for trial in ledger.trials.values()}) < 2:
        return ""
    methods = list(dict.fromkeys(str(trial.settings.get("method")) for trial in leading))
    best = "the best configuration of each" if len(methods) == len(leading) else "with the best configuration of each"
    names = join_names(methods, " and ")
    return f" They are of {names}, {best}: methods themselves are compared by orchestrator benchmark."


def _other_seeds(findings: Findings, ahead: Favoured) -> ProposedStep:
    """Train the chosen trial and the one that tests favour with seeds that chose nothing."""
    ledger, metric = findings.ledger, goals(findings.ledger)[0].metric
    order = [trial.trial_id for trial in to_confirm(ledger, len(ledger.trials))]
    count = 1 + max(order.index(trial.trial_id) for trial in (ahead.chosen, ahead.trial))
    among = to_confirm(ledger, count)
    have = [len(tests_by_seed(ledger, trial, metric)) for trial in among]
    seeds = max(have) + SEEDS
    words = ["--final-trials", str(count), "--final-seeds", str(seeds)]
    return ProposedStep(
        "confirm",
        f"Confirm trials {join_names([trial.trial_id for trial in among], ' and ')} over {SEEDS} more seeds",
        f"The test of trial {ahead.trial.trial_id} chose it: these seeds have not.",
        line(findings, ["orchestrator", "resume", ledger.name, *words]),
        of_finals(findings, sum(seeds - n for n in have)),
    )


def _more_seeds(findings: Findings) -> Iterator[ProposedStep]:
    """Train a grid's points over more seeds, if some cannot be told apart from the best."""
    points = findings.points
    alike = [other for other in points[1:] if other.answer != "yes"]
    fewest = min((len(ranked.point.values) for ranked in points), default=0)
    if not alike or fewest >= SEEDS:
        return
    who = "the other point" if len(points) == 2 else f"{len(alike)} of the other {len(points) - 1} points"
    share = SEEDS / max(1, max(len(ranked.point.values) for ranked in points))
    yield ProposedStep(
        "confirm",
        f"Train the grid over {SEEDS} seeds",
        f"Over {pluralize(fewest, 'seed')}, {who} cannot be told apart from the best.",
        line(findings, ["orchestrator", "search", "--like", findings.ledger.name, "--seeds", str(SEEDS)]),
        share * findings.seconds,
    )


# More of the same, or an end ---------------------------------------------------------------------------------


def _is_exhausted(findings: Findings) -> bool:
    """Whether every point of a finite space was tried."""
    space, trials = space_of(findings.ledger), findings.ledger.trials.values()
    points = [trial.point if findings.ledger.repeats else trial.params for trial in trials if trial.state != "running"]
    ended = {json.dumps(point, sort_keys=True, default=str) for point in points}
    return space is not None and findings.ledger.kind == "search" and space.size() <= len(ended)


def noise_of(findings: Findings) -> float | None:
    """The standard deviation of the leader's test over its seeds; None with fewer than SEEDS_TO_FORECAST of them."""
    ledger = findings.ledger
    tests = tests_by_seed(ledger, findings.leader, goals(ledger)[0].metric)
    if len(tests) < SEEDS_TO_FORECAST:
        return None
    from statistics import stdev

    return stdev(tests.values())


@dataclass(frozen=True)
class Outlook:
    """What as many trials again are expected to bring."""

    more: int
    margin: float
    """What is noticeable: the deviation over seeds, or NOTICEABLE."""
    chance: float
    """That the best of them is better by more than the margin."""
    gain: float
    age: int | None
    """After so many validations; None at the best of trainings that all ended."""

    @property
    def text(self) -> str:
        """`40 more trials of this space better the best by more than 0.0060 with a chance of roughly 20%`

        To tens, as it is right within some ten points (benchmarks/verdicts.md)."""
        tens = round(self.chance, 1)
        chance = f"roughly {tens:.0%}" if tens else "less than 5%"
        age = "" if self.age is None else f", after {pluralize(self.age, 'validation')},"
        return (
            f"{pluralize(self.more, 'more trial')} of this space better the best{age} by more than {self.margin:.4f} "
            f"with a chance of {chance}"
        )


def outlook_of(findings: Findings, more: int | None = None) -> Outlook | None:
    """From the tail of the results; None where these are too few. `more` trials: by default as many again."""
    tail_fit, more = tail_of(findings), len(findings.ledger.candidates()) if more is None else more
    if tail_fit is None:
        return None
    tail, best = tail_fit
    margin = noise_of(findings) or NOTICEABLE * abs(best)
    return Outlook(more, margin, tail.chance(best + margin, more), tail.gain(best, more), findings.comparable.age)


def _too_few(findings: Findings) -> Iterator[ProposedStep]:
    ledger = findings.ledger
    if findings.winner is None or ledger.kind != "search" or _is_exhausted(findings):
        return
    results, settings, enough = (
        len(ledger.candidates()),
        sum(s.varies for s in findings.searched),
        enough_results(findings),
    )
    if results < enough:
        have = f"{pluralize(results, 'result')} for {pluralize(settings, 'searched setting')}"
        yield _more_points(findings, "too_few", enough, f"{have}: it takes {enough} to judge the space.")


def enough_results(findings: Findings) -> int:
    """The number of results that is enough to judge a space."""
    return max(ENOUGH_TRIALS * sum(setting.varies for setting in findings.searched), ENOUGH_TO_JUDGE)


def _improves(findings: Findings) -> Iterator[ProposedStep]:
    ledger = findings.ledger
    results = len(ledger.candidates())
    if (
        findings.winner is None
        or ledger.kind != "search"
        or _is_exhausted(findings)
        or results < enough_results(findings)
    ):
        return
    if ledger.second is not None:
        count = round(RECENT * results)
        if ledger.trials_without_improvement < count:
            yield _more_points(findings, "improves", 2 * results, f"A trial joined the front among the last {count}.")
    elif (outlook := outlook_of(findings)) is not None and outlook.chance >= LIKELY:
        why = f"{outlook.text}."
        yield replace(_more_points(findings, "improves", 2 * results, why), gain=outlook.gain)


def _more_points(findings: Findings, rule: str, number: int, why: str) -> ProposedStep:
    ledger = findings.ledger
    more = number - len(ledger.candidates())
    benchmark = ledger.tags.get(BENCHMARK)  # whose searches have the same budget
    if ledger.is_population:  # of which none can be added
        words = ["orchestrator", "search", "--like", ledger.name, "--num-trials", str(number)]
        return ProposedStep(rule, f"Begin again with a population of {number}", why, line(findings, words), None)
    of = ["resume", ledger.name] if benchmark is None else ["benchmark", "--name", str(benchmark)]
    words = ["orchestrator", *of]
    words += ["--num-trials", str(len(ledger.trials) + more + ledger.repeats)]  # as many may be repeated then
    for key, limit in (ledger.config.get("budget") or {}).items():
        if limit is not None:
            words += ["--budget", f"{key}=none" if key == "trials_without_improvement" else f"{key}={2 * limit:g}"]
    what = f"Try {pluralize(more, 'more point', 'more points')}{'' if benchmark is None else ' of each method'}"
    return ProposedStep(rule, what, why, line(findings, words), None if benchmark else of_trials(findings, more))


def _first_search(findings: Findings) -> Iterator[ProposedStep]:
    ledger, settings = findings.ledger, findings.settings
    method, shipped = str(settings.get("method")), shipped_searches()
    if ledger.kind != "training" or findings.winner is None or method not in shipped:
        return
    searched = {"epochs", "seed", *(read_yaml(shipped[method]).get("space") or {})}
    fixed = changed_words({key: value for key, value in settings.items() if key not in searched})
    if fixed is None:
        return
    words = ["orchestrator", "search", method, "--dataset", str(settings.get("dataset")), *fixed]
    words += ["--num-trials", str(ENOUGH_TO_JUDGE), "--epochs", str(settings.get("epochs", 1))]
    yield ProposedStep(
        "first_search",
        f"Search {method}'s hyperparameters",
        "It is one point; whether another is better is not known.",
        line(findings, words),
        ENOUGH_TO_JUDGE * findings.winner.seconds,
    )


def _stop(findings: Findings) -> Iterator[ProposedStep]:
    ledger = findings.ledger
    if findings.winner is None or ledger.kind != "search":
        return
    results = len(ledger.candidates())
    if _is_exhausted(findings):
        tried = f"All of its {pluralize(len(ledger.trials) - ledger.repeats, 'point')} were tried."
        if ledger.over_seeds and not ledger.repeats:
            tried = f"All of its {pluralize(len(ledger.points()), 'point')} were tried, each with all its seeds."
        yield ProposedStep("stop", "Stop: the space is exhausted", tried)
        return
    if ledger.second is not None:
        why = f"None of the last {round(RECENT * results)} of {pluralize(results, 'trial')} joined the front."
        yield ProposedStep("stop", "Stop: this space gives no more", why)
    elif (outlook := outlook_of(findings)) is not None:
        yield ProposedStep("stop", "Stop: little is left in this space", f"{outlook.text}.")


RULES: tuple[Rule, ...] = (
    Rule("lost", "it has not ended, and its process is gone", _lost, alone=True),
    Rule("running", "it still runs", _running, alone=True),
    Rule("interrupted", "it was interrupted", _resume_interrupted, alone=True),
    Rule("retry", "trials failed only because their GPU could no longer be used", _retry, alone=True),
    Rule("failed", "no trial has a result", _look_at_failed, alone=True),
    Rule("not_learned", "even the best trial did not learn", _not_learned, alone=True),
    Rule("widen", "the winner is at an end of a range that could go on", widen, search=True),
    Rule("longer", "the winner's best score is at its last validation and still rose", longer, search=True),
    Rule("narrow", "the best trials crowd at one end of a range", narrow, search=True),
    Rule("too_few", "there are too few results to judge the space", _too_few, search=True, last=True),
    Rule("confirm", "trials that could as well have won are not told apart over seeds", _confirm),
    Rule("improves", "as many trials again may well better the best", _improves, search=True, last=True),
    Rule("first_search", "it is a training, of one point", _first_search),
    Rule("stop", "every point was tried, or as many trials again hardly better the best", _stop, last=True),
)
"""The rules, the most important first."""
