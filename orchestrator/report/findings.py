"""The results of a search: which point won, how certain that is, what mattered, and what to be careful about.

    ledger ──> Findings ──> note in the tracker (note.py), page (html/search_page.py), formats (formats/)

All of it comes from the journal's ledger alone, so it is available for a search that is running, stopped or finished.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from orchestrator.config.algorithms import is_exhaustive, learns
from orchestrator.config.intervals import EVERY
from orchestrator.data.catalog import datasets
from orchestrator.errors import InputError
from orchestrator.evaluation.claims import SIGNIFICANT, is_end
from orchestrator.evaluation.measures import HEADLINES, PAPER_HEADLINES
from orchestrator.evaluation.rising import p_rising
from orchestrator.report import learning
from orchestrator.report.claims import metric_texts, test_texts
from orchestrator.report.commands import train_command
from orchestrator.report.effect import idle_by_trial, idle_trials
from orchestrator.report.evidence import Direction, Evidence, evidence_of
from orchestrator.report.front import front_text
from orchestrator.report.importance import ENOUGH_TRIALS, Importances, importances_of, trials_needed
from orchestrator.report.leading import Favoured, find_favoured
from orchestrator.report.limits import no_feasible_trial
from orchestrator.report.points import Placed, apart_text, best_text, placed_points, seed_effect_text
from orchestrator.report.published import ComparableRow, beside
from orchestrator.report.settings import Searched, searched_settings, space_of
from orchestrator.report.significance import Difference, between_confirmed, equal_texts, how_tested
from orchestrator.report.standing import Comparable, beside_values, comparable, compare_trials, standing
from orchestrator.report.status import state_texts
from orchestrator.report.stopping import Stop, stops
from orchestrator.report.tested import goals, is_held_out, measured_on
from orchestrator.report.widening import beyond_chance, suggest_wider
from orchestrator.storage.leaderboard import Repeated, repeated_tests
from orchestrator.storage.ledger import Ledger
from orchestrator.storage.presence import driver
from orchestrator.storage.trial_record import TrialRecord
from orchestrator.text import join_names, params_text, pluralize, span, value_text

RISING = 0.01
"""The objective still rises if the last fifth of the validations gained this share of it."""
STATE_ORDER = ("done", "pruned", "running", "interrupted", "failed")


@dataclass(frozen=True)
class Findings:
    """The answers. `verdict` is two lines, best first; `warnings` are whole sentences."""

    ledger: Ledger
    winner: TrialRecord | None
    """The trial chosen by the objective."""
    leader: TrialRecord | None
    """The trial to use: the winner, or the one that tests over seeds favour. Its are the test, the distance to the
    papers and the command."""
    favoured: Favoured | None
    settings: Mapping[str, Any]
    """All settings of the winner; of the first trial before there is one."""
    searched: tuple[Searched, ...]
    comparable: Comparable
    evidence: Evidence
    idle: Mapping[str, tuple[int, int, str]]
    """Searched settings that had no effect: in how many trials, of how many, and because of which others."""
    verdict: tuple[str, str]
    certainty: str
    differences: tuple[Difference, ...]
    """Between the points that were trained again, test by test over their common seeds."""
    widen: str
    warnings: tuple[str, ...]
    published: tuple[ComparableRow, ...]
    distance: str
    """How far the test is from the closest published row."""
    test: Mapping[str, tuple[float, float | None]]
    """The leader's test metrics; mean and deviation if they are over several seeds."""
    tested: Mapping[str, str]
    """The same as text, with their intervals."""
    command: str | None
    """The command that trains the leader again."""
    numbers: tuple[str, ...] = ()
    """What its numbers are measured on and compared with: the sizes of the sets, chance, the untrained network."""
    points: tuple[Placed, ...] = ()
    """The points of a grid over their seeds, best first; empty for other searches."""
    confused: str = ""
    """Which classes its model confuses most; empty if that is not known."""
    storage: str = ""
    """Where the search is, for commands; empty for the default."""
    lost: bool = False
    """Whether it has not ended, and nobody drives it."""

    @classmethod
    def of(cls, ledger: Ledger, confused: str = "", storage: str = "", folder: Path | None = None) -> "Findings":
        """The findings of a ledger so far; `confused` is what the model's own insight says, `storage` where the search
        is, if that is not the default, `folder` its folder, which says whether it is driven."""
        winner = ledger.winner()
        anyone = winner or next(iter(ledger.everyone()), None)
        settings = {} if anyone is None else anyone.settings
        idle = idle_by_trial(ledger)
        point = None if winner is None or winner.copied else winner  # a copy has left its point
        searched = tuple(searched_settings(ledger, space_of(ledger), point, settings, idle))
        compared, without_effect = comparable(ledger, trials_needed(searched)), idle_trials(ledger, idle)
        evidence = evidence_of(searched, compared, _points(ledger), _goal(ledger))
        searched = beyond_chance(searched, evidence)
        between, points = between_confirmed(ledger), placed_points(ledger)
        ahead = find_favoured(ledger, between)
        leader = winner if ahead is None else ahead.trial
        tested, test = _tested_text(ledger, leader), _test(ledger, leader)
        of_leader = settings if leader is None else leader.settings
        published = tuple(beside(of_leader, [*test, *PAPER_HEADLINES]))
        lost = folder is not None and ledger.state == "running" and not _driven(folder)
        return cls(
            ledger=ledger,
            winner=winner,
            leader=leader,
            favoured=ahead,
            settings=settings,
            searched=searched,
            comparable=compared,
            evidence=evidence,
            idle=without_effect,
            verdict=(
                _first_line(ledger, winner, points, lost, ahead),
                _second_line(ledger, leader, tested, lost, ahead),
            ),
            certainty=_certainty(ledger, winner, between, points, ahead),
            differences=tuple(between),
            widen=suggest_wider(ledger, point, searched, compared, evidence, settings),
            warnings=(
                *([] if ahead is None else [ahead.warning(between)]),
                *_warnings(ledger, winner, searched, between),
                *_without_effect(without_effect),
            ),
            published=published,
            distance=_distance(published, test, of_leader),
            test=test,
            tested=tested,
            command=None if leader is None else train_command(leader.settings),
            numbers=tuple(learning.yardstick_lines(ledger)),
            points=tuple(points),
            confused=confused,
            lost=lost,
            storage=storage,
        )

    @cached_property
    def importances(self) -> Importances:
        """Which settings mattered, and how much; it takes a second or two."""
        if space_of(self.ledger) is None or not self.searched:
            return Importances(self.evidence, {}, "no importances: nothing was searched that this version can read")
        return importances_of(self.searched, self.comparable, _points(self.ledger), self.evidence)

    @cached_property
    def other_importances(self) -> dict[str, Importances]:
        """The same for the second objective, and for the other metrics that were recorded beside the objective."""
        if space_of(self.ledger) is None or not self.importances.shares:
            return {}
        points, by_metric = _points(self.ledger), {}
        for name, compared in beside_values(self.ledger).items():
            larger = name != self.ledger.second or self.ledger.config["second_objective"]["mode"] == "max"
            evidence = evidence_of(self.searched, compared, points, _goal(self.ledger)._replace(larger=larger))
            by_metric[name] = importances_of(self.searched, compared, points, evidence)
        return {name: importances for name, importances in by_metric.items() if importances.shares}

    @property
    def rival(self) -> Difference | None:
        """How the winner's tests over seeds differ from those of the best other point (of the favoured one, if there is
        one); None where one of the two has none."""
        return None if self.winner is None else _rival(self.ledger, self.winner, self.differences, self.favoured)[2]

    @cached_property
    def stops(self) -> list[Stop]:
        """The early stops, with what was asked of each."""
        return stops(self.ledger)

    @property
    def what_mattered(self) -> str:
        """For the objective, or for both."""
        first, second = self.importances, self.other_importances.get(self.ledger.second or "")
        if second is None:
            return first.answer
        same = f"the same of {self.ledger.second}"
        return f"{self.ledger.metric}: {first.answer} {self.ledger.second}: {second.describe(same)}"

    @property
    def keys(self) -> list[str]:
        """The columns of a leaderboard that say what a trial's point is."""
        return [*(setting.key for setting in self.searched), *(["seed"] if self.ledger.over_seeds else [])]

    @property
    def rising(self) -> float:
        """The gain of the winner's last fifth of validations, if it is large; else 0."""
        return 0.0 if self.winner is None else _still_rising(self.ledger, self.winner)

    @property
    def seconds(self) -> float:
        """The seconds of all trainings together."""
        return sum(trial.seconds for trial in self.ledger.everyone())

    @property
    def epochs_per_validation(self) -> float | None:
        """None where validations are counted in steps."""
        match = EVERY.fullmatch(str(self.settings.get("validate_every", "")))
        return float(match[1]) if match and match[2] == "epoch" else None


def _goal(ledger: Ledger) -> Direction:
    return Direction(ledger.mode == "max", learns(ledger.config.get("algorithm")))


def _points(ledger: Ledger) -> dict[str, Mapping[str, Any]]:
    return {trial_id: trial.params for trial_id, trial in ledger.trials.items()}


def _driven(folder: Path) -> bool:
    """Whether somebody drives a search, or the record of that is damaged."""
    try:
        return driver(folder) is not None
    except InputError:
        return True


def _first_line(
    ledger: Ledger, winner: TrialRecord | None, points: Sequence[Placed], lost: bool, ahead: Favoured | None
) -> str:
    where = measured_on(ledger)
    if winner is None:
        limits = no_feasible_trial(ledger)
        why = _states(ledger, lost) if limits is None else limits
        text = f"No trial of {ledger.name} has a result{ledger.yet} ({why})."
        if (first := ledger.first_so_far()) is None:
            return text
        after = pluralize(first.validations, "validation")
        return f"{text} So far trial {first.trial_id}: {ledger.metric} {first.best:.4f}{where} after {after}."
    so_far = "" if ledger.state == "done" else " so far"
    line = learning.verdict_line(ledger) or learning.better_untrained(ledger)
    nothing = f"{line} " if line else ""
    if points:
        tests = "" if ahead is None else f" But {ahead.text}."
        return f"{nothing}{best_text(ledger, points, where)}{tests}"
    if ahead is not None:
        leads = f"with {params_text(ahead.trial.params)}" if ahead.trial.params else ""
        choice = f"Chosen{where or f' by {ledger.metric}'}: {winner.trial_id}"
        return f"{nothing}{choice}; {ahead.text}{f', {leads}' if leads else ''}."
    if winner.best is None:
        return f"{nothing}Trained without held-out classes: its test is what it has."
    value = f"{winner.best:.4f}"
    point = f", with {params_text(winner.params)}" if winner.params else ""
    if ledger.second is not None and winner.second is not None:
        return (
            f"{nothing}On the front{so_far}: {pluralize(len(ledger.front), 'trial')}. Best in {ledger.metric}: trial "
            f"{winner.trial_id}, {value}{where}, {ledger.config['second_objective']['metric']} "
            f"{value_text(winner.second)}{point}."
        )
    higher = ""
    if (first := ledger.first_so_far()) is not None:
        after = pluralize(first.validations, "validation")
        higher = f" Trial {first.trial_id}, which has not ended, stands at {first.best:.4f} after {after}."
    if winner.excess is not None and learning.is_noticeable(winner.excess):
        best_of = learning.best_of_text(ledger, winner.excess)
        value += f" (about {winner.excess.value:.4f} of it from being the {best_of})"
    return f"{nothing}Best{so_far}: trial {winner.trial_id}, {ledger.metric} {value}{where}{point}.{higher}"


def _second_line(
    ledger: Ledger, leader: TrialRecord | None, tested: Mapping[str, str], lost: bool, ahead: Favoured | None
) -> str:
    whose = "" if ahead is None else f" of {ahead.trial.trial_id}"
    where = f"Test{whose} (selection: test)" if ledger.selection == "test" else f"Test{whose} on unseen classes"
    test = ", ".join(f"{name} {tested[name]}" for name in HEADLINES if name in tested)
    seconds = sum(trial.seconds for trial in ledger.everyone())
    cost = f"{pluralize(len(ledger.trials), 'trial')} ({_states(ledger, lost)}), {span(seconds)} of training"
    if ledger.hours["GPU"]:
        cost += f", {ledger.hours['GPU']:.3g} GPU-hours"
    if test:
        before = learning.untrained_test_text(ledger, leader)
        return f"{where}: {test}; {f'{before}; ' if before else ''}{cost}."
    others = {run.source for run in ledger.finals.values() if run.test and run.source} if leader is not None else set()
    whose = f" (the final runs are of {join_names(sorted(others), ' and ')})" if others else ""
    return f"Not tested{ledger.yet}{whose}; {cost}."


def _states(ledger: Ledger, lost: bool = False) -> str:
    counts = ledger.counts()
    return ", ".join(state_texts({state: counts[state] for state in STATE_ORDER}, lost)) or "none begun"


def _repeated_text(ledger: Ledger, trial: TrialRecord | None) -> Repeated | None:
    """A trial's tests over seeds; None for fewer than two."""
    names = [run.trial_id for run in ledger.tests_of(trial)]
    return next((group for group in repeated_tests(ledger) if group.trial_ids == names), None)


def _tested_text(ledger: Ledger, trial: TrialRecord | None) -> dict[str, str]:
    if (group := _repeated_text(ledger, trial)) is not None:
        return metric_texts(ledger, group)
    return test_texts(ledger, runs[0].test) if (runs := ledger.tests_of(trial)) else {}


def _test(ledger: Ledger, trial: TrialRecord | None) -> dict[str, tuple[float, float | None]]:
    if (group := _repeated_text(ledger, trial)) is not None:
        return {name: (spread.mean, spread.standard_deviation) for name, spread in group.metrics.items()}
    test = runs[0].test if (runs := ledger.tests_of(trial)) else {}
    return {name: (value, None) for name, value in test.items() if not is_end(name)}


def _distance(
    published: Sequence[ComparableRow], test: Mapping[str, tuple[float, float | None]], settings: Mapping[str, Any]
) -> str:
    """The distance from the paper's number, and whether the comparison is fair."""
    of = f"{settings.get('method')} on {settings.get('dataset')}"
    closest = next((b for b in published if b.same_method), None)
    if closest is None:
        dataset = datasets().get(str(settings.get("dataset")))
        is_generated = dataset is not None and dataset.build is not None
        why = ": no paper has numbers on these images, which are drawn here to try methods out"
        return f"None of the papers' tables here has {of}{why if is_generated else ''}."
    row = closest.row
    metric = next((name for name in (*PAPER_HEADLINES, *row.values) if name in row.values and name in test), None)
    where = f"{row.paper}, Table {row.table}, {row.method}"
    if metric is None:
        return f"The closest published row is of {where}; there is no test to compare with it."
    gap = 100 * (test[metric][0] - row.values[metric].value)
    far = "equals" if abs(gap) < 0.05 else f"is {abs(gap):.1f} points {'above' if gap > 0 else 'below'}"
    differ = ", ".join(dict.fromkeys(d.setting for d in closest.differences))
    fair = f"Not like for like: {differ} differ." if differ else "No stated setting differs."
    return f"{metric} {100 * test[metric][0]:.1f} {far} {100 * row.values[metric].value:.1f} of {where}. {fair}"


def _certainty(
    ledger: Ledger,
    winner: TrialRecord | None,
    between: Sequence[Difference],
    points: Sequence[Placed],
    ahead: Favoured | None,
) -> str:
    """How certain it is that the winner is better than the next, in one or two sentences."""
    if winner is None or winner.best is None:
        return f"Nothing to compare{ledger.yet}."
    if points:
        return f"{apart_text(points)} {seed_effect_text(ledger)}"
    others = standing(ledger)[1:]
    if not others:
        return "There is one result only: nothing to compare it with."
    if ledger.second is not None:
        return front_text(ledger)
    metric = goals(ledger)[0].metric
    winners, rival, apart = _rival(ledger, winner, between, ahead)
    if winners is not None and rival is not None and apart is not None:
        one, two = winners.metrics[metric], rival.metrics[metric]
        other, better = f"trial {rival.source}", goals(ledger)[0].better(one.mean, two.mean)
        return (
            f"Test {metric} {one.mean:.4f} ± {one.standard_deviation:.4f} against {two.mean:.4f} ± "
            f"{two.standard_deviation:.4f} of {other}: {apart.verdict(how_tested(between), other, better=better)}"
            f"{_equal(ledger, between, apart)}"
        )
    alone = ""
    if winners is not None:
        noise = winners.metrics[metric].standard_deviation
        alone = f" Over {len(winners.trial_ids)} seeds its test has a deviation of {noise:.4f}."
    return (
        f"{_lead(ledger, winner, others[0])}{alone} Final runs of the best two over seeds would tell (--final-trials 2 "
        "--final-seeds 5)."
    )


def _equal(ledger: Ledger, between: Sequence[Difference], apart: Difference) -> str:
    """Whether the two are equal within the search's margin, as a sentence after others; empty without a margin."""
    margin = ledger.config.get("equivalence_margin")
    texts = {} if margin is None else equal_texts(between, margin)
    return f" {texts[pair]}" if (pair := (apart.one, apart.other)) in texts else ""


def _lead(ledger: Ledger, winner: TrialRecord, rival: TrialRecord) -> str:
    """By how much the winner led the next trial at the age that both have."""
    pair, other = compare_trials(ledger, winner, rival), f"trial {rival.trial_id}"
    gap = f"{abs(pair.one - pair.other):.4f}"
    chance = "with one seed each: that may be chance."
    if pair.age is None:
        return f"It {f'leads {other} by {gap}' if pair.one != pair.other else f'ties with {other}'}, {chance}"
    after, against = pluralize(pair.age, "validation"), f"({pair.one:.4f} against {pair.other:.4f})"
    when = f"After {after}, where {other} was stopped"
    if len(rival.curve) > pair.age or rival.state == "done":
        when, other = f"After {after}, where it was stopped itself", f"trial {rival.trial_id}"
    else:
        other = "that one"
    if pair.one == pair.other:
        return f"{when}, it tied with {other} ({pair.one:.4f}), {chance}"
    if ledger.better(pair.one, pair.other):
        return f"{when}, it led {other} by {gap} {against}, {chance}"
    against = f"({pair.other:.4f} against {pair.one:.4f})"
    return f"{when}, {other} led by {gap} {against}: it might have won."


def _rival(
    ledger: Ledger, winner: TrialRecord, between: Sequence[Difference], ahead: Favoured | None
) -> tuple[Repeated | None, Repeated | None, Difference | None]:
    """The repeated tests of the winner and of the best other point (of the favoured one, if there is one), and the
    difference between the two."""
    goal = goals(ledger)[0]
    metric, pick = goal.metric, max if goal.larger else min
    groups = [group for group in repeated_tests(ledger) if metric in group.metrics and group.source]
    winners = next((group for group in groups if group.source == winner.trial_id), None)
    others = [g for g in groups if g is not winners and (ahead is None or g.source == ahead.trial.trial_id)]
    rival = pick(others, key=lambda group: group.metrics[metric].mean, default=None)
    if winners is None or rival is None:
        return winners, rival, None
    pair = {winner.trial_id, rival.source}
    return winners, rival, next((d for d in between if {d.one, d.other} == pair), None)


def _warnings(
    ledger: Ledger, winner: TrialRecord | None, searched: Sequence[Searched], between: Sequence[Difference]
) -> Iterator[str]:
    yield from learning.warnings_of(ledger)
    if ledger.selection == "test":
        yield "selection: test: the best validation was chosen on the TEST classes; no number is of unseen classes."
    if ledger.state in ("interrupted", "failed"):
        yield f"The search {'failed' if ledger.state == 'failed' else 'was interrupted'}: {_states(ledger)}."
    failed = [trial for trial in ledger.everyone() if trial.state == "failed"]
    if failed:
        yield f"{pluralize(len(failed), 'training')} failed; the first: {failed[0].reason}."
    if winner is None:
        return
    with_value = len(ledger.candidates())
    grid = is_exhaustive(ledger.config.get("algorithm"))
    if searched and not grid and with_value < ENOUGH_TRIALS * len(searched):
        yield (
            f"The budget is small: {pluralize(with_value, 'result')} for "
            f"{pluralize(len(searched), 'searched setting')}; "
            f"{ENOUGH_TRIALS} for each is a usual minimum."
        )
    for setting in searched:
        if setting.edge:
            yield (
                f"{setting.key} = {value_text(setting.best)} is at the {setting.edge} edge of its range "
                f"({setting.range_in_brackets}): the optimum may lie outside."
            )
    if gain := _still_rising(ledger, winner):
        count = _last_fifth(winner.curve)
        yield (
            f"The winner's objective still rose by {gain:.4f} in the last{f' {count}' if count > 1 else ''} of its "
            f"{pluralize(winner.validations, 'validation')}: longer training may help, and may change the order."
        )
    metric = ledger.metric.removeprefix("val/")
    winners, _, apart = _rival(ledger, winner, between, None)
    others = standing(ledger)[1:] if is_held_out(ledger.metric) else []
    if winners is not None and others and winner.best is not None and not (apart is not None and apart.real):
        pair = compare_trials(ledger, winner, others[0])
        noise, lead = winners.metrics[metric].standard_deviation, abs(pair.one - pair.other)
        if noise > lead:
            at = "" if pair.age is None else f" after {pluralize(pair.age, 'validation')}"
            yield f"Unstable over seeds: the deviation, {noise:.4f}, is more than the winner's lead{at}, {lead:.4f}."


def _without_effect(idle_by_key: Mapping[str, tuple[int, int, str]]) -> Iterator[str]:
    for key, (count, of, because) in idle_by_key.items():
        where = f"any of its {pluralize(of, 'trial')}" if count == of else f"{count} of {pluralize(of, 'trial')}"
        yield f"{key} had no effect in {where} (with {because}): its values there do not matter."


def _last_fifth(curve: Sequence[float]) -> int:
    return max(1, len(curve) // 5)


def _still_rising(ledger: Ledger, winner: TrialRecord) -> float:
    """The gain over the last fifth of a full training, if it is large, and more than the curve's own scatter."""
    curve = winner.curve
    if winner.state != "done" or len(curve) < 3 or winner.best is None:
        return 0.0
    before = ledger.best_of(curve[: len(curve) - _last_fifth(curve)])
    gain = abs(winner.best - before) if ledger.better(winner.best, before) else 0.0
    if gain <= RISING * abs(winner.best):
        return 0.0
    sign = 1.0 if ledger.mode == "max" else -1.0
    return gain if p_rising([sign * value for value in curve]) < SIGNIFICANT else 0.0
