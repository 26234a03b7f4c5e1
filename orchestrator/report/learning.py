"""Whether trainings learned anything: the rule, and the lines that report its result.

    search_started (sizes, chance) ─┐
    result (untrained/...)          ├──> ledger ──> `judge` a trial ──> terminal, report, page, note, comparison
    validation (metrics, loss)     ─┘

A trial **diverged** if its last mean training loss is more than `GROWN` times the first one and more than `GROWN`.

A trial **did not learn** if the best value of its objective (or of the default, where the objective is no retrieval
metric) is not above both
- the untrained network's on the same set, by more than one query's weight in a recall; known of searches since this is
  measured;
- the chance level, by more than two standard errors of a random ranking, 2 sqrt(p (1 - p) / queries), which is the
  maximum for values between 0 and 1; known wherever the sizes of the sets are.

A trial is **no surer than chance of the classes** to have learned if it is above, but inside the untrained network's
interval over classes, or if both are within one query of 1, so that the set is too easy to tell. A search did not learn
if its best trial did not.
"""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import PlainSerializer

from orchestrator.config.shaping import SHAPING, untrained_key
from orchestrator.data.measured import Measured
from orchestrator.evaluation.claims import FEWEST_CLASSES, Ends, too_few
from orchestrator.evaluation.measures import DEFAULT_OBJECTIVE, HEADLINES, YARDSTICK
from orchestrator.report.limits import INFEASIBLE
from orchestrator.report.selection import selection_text, selection_warning, unlike_text
from orchestrator.report.tested import is_held_out
from orchestrator.storage.events import Excess, Gain
from orchestrator.storage.ledger import Ledger
from orchestrator.storage.outputs import Output
from orchestrator.storage.trial_record import FINISHED, TrialRecord
from orchestrator.text import capitalize_first, join_names, pluralize, value_text

GROWN = 10.0
"""Losses grow by less than this while a memory fills or the weight of a term rises."""

Verdict = Literal["learned", "unsure", "did not learn", "unknown"]


class Learning(Output):
    """Whether a trial learned: better than its untrained network and than chance."""

    verdict: Verdict
    why: str | None
    diverged: str | None


class Untrained(Output):
    """The scores of the network before the training."""

    split: str
    metrics: dict[str, float]
    intervals: dict[str, Ends | None]


EvaluationSet = Annotated[Measured, PlainSerializer(lambda measured: measured.plain)]


class Numbers(Output):
    """What the numbers of a search are measured on."""

    held_out_set: EvaluationSet | None
    test_set: EvaluationSet | None
    untrained: Untrained | None
    verdict: Verdict
    selection_warning: str | None
    expected_excess: Excess | None
    """How much too high the best value is, as the best of several on the classes that chose it."""
    gain: Gain | None
    """Of the winner over its untrained network, paired by class, on the held-out classes."""
    test_gain: Gain | None
    """The same on the test classes."""


@dataclass(frozen=True)
class Judgement:
    """The result of the rule for a trial, and why, in words without a full stop; `diverged` is independent of it."""

    verdict: Verdict
    why: str = ""
    diverged: str = ""

    @property
    def output(self) -> Learning:
        """For JSON."""
        return Learning(verdict=self.verdict, why=self.why or None, diverged=self.diverged or None)

    @property
    def bad(self) -> bool:
        """Whether its numbers are of a network that learned nothing."""
        return self.verdict == "did not learn"


def held_out_set(ledger: Ledger, trial: TrialRecord | None = None) -> Measured | None:
    """The set of a trial's validations; without a trial, of the search's first point."""
    score = untrained_score(ledger, trial) if trial is not None else None
    if score is not None and score["split"] == "validation":
        return Measured.read(score["of"])
    return Measured.read(ledger.sizes.get("validation"))


def test_set(ledger: Ledger) -> Measured | None:
    """The set of a search's tests."""
    return Measured.read(ledger.sizes.get("test"))


def untrained_score(ledger: Ledger, trial: TrialRecord) -> Mapping[str, Any] | None:
    """What the network of a trial had before its training (`untrained.measure`); None if that was not measured."""
    if not ledger.untrained:  # called for each trial, and there may be ten thousand
        return None
    return ledger.untrained.get(untrained_key(trial.settings, str(ledger.tags.get("dataset.digest"))))


def untrained_on_test(ledger: Ledger, trial: TrialRecord) -> Mapping[str, Any] | None:
    """The score of a tested run's network before its training, on the test classes."""
    digest = str(ledger.tags.get("dataset.digest"))
    score = ledger.untrained.get(untrained_key(trial.settings, digest, on_test=True)) or untrained_score(ledger, trial)
    return score if score is not None and score["split"] == "test" else None


def gain_text(gain: Gain) -> str:
    """`+0.1550 paired by class (95%: 0.0730 to 0.2360, 15 of 18 classes up)`"""
    ends = "" if gain.low is None else f"95%: {gain.low:.4f} to {gain.high:.4f}, "
    return f"{gain.difference:+.4f} paired by class ({ends}{gain.up} of {gain.classes} classes up)"


def untrained_test_text(ledger: Ledger, trial: TrialRecord | None) -> str:
    """What the network of a trial had on the test classes before its training, and the gain; of several tests, whose
    gain it is. Empty if not measured."""
    runs = ledger.tests_of(trial)
    for run in runs:
        if (score := untrained_on_test(ledger, run)) is not None:
            gain = run.gain
            name = YARDSTICK if gain is None else gain.metric
            text = f"untrained {name} {score['metrics'][name]:.4f}"
            if gain is not None and len(runs) > 1:
                text += f" (seed {run.settings.get('seed', 0)}: {run.test[name]:.4f} trained)"
            return text if gain is None else f"{text}, so {gain_text(gain)}"
    return ""


def better_untrained(ledger: Ledger) -> str:
    """That a network of this search has more before its training than the best trial after its own, on the same
    held-out classes, as a sentence; empty if none has."""
    winner = ledger.winner()
    if winner is None or winner.best is None or ledger.mode != "max":
        return ""
    name, of = ledger.metric.removeprefix("val/"), held_out_set(ledger, winner)
    digest, shaping, better = str(ledger.tags.get("dataset.digest")), (*SHAPING, "image_size"), []
    shapes = {}
    if len(ledger.untrained) > 1:
        shapes = {repr([trial.settings.get(key) for key in shaping]): trial for trial in ledger.trials.values()}
    for trial in shapes.values():
        score = ledger.untrained.get(untrained_key(trial.settings, digest))
        if score is None or score["split"] != "validation" or of is None or Measured.read(score["of"]) != of:
            continue
        if score["metrics"].get(name, -math.inf) >= winner.best:
            better.append((score["metrics"][name], trial))
    if not better:
        return ""
    value, trial = max(better, key=lambda one: one[0])
    keys = [key for key in shaping if trial.settings.get(key) != winner.settings.get(key)]
    with_ = ", ".join(f"{key}={value_text(trial.settings.get(key))}" for key in keys)
    return (
        f"No training is above an untrained network: that of trial {trial.trial_id}{f' ({with_})' if with_ else ''} "
        f"has {name} {value:.4f} before its training, the best trial {winner.best:.4f} after it."
    )


def judge(ledger: Ledger, trial: TrialRecord) -> Judgement:
    """The result of the rule for a trial so far."""
    diverged = _diverged_text(trial)
    if trial.kind == "final" or not trial.best_metrics or (trial.test and not is_held_out(ledger.metric)):
        return _judge_test(ledger, trial, diverged)
    metric = ledger.metric if ledger.metric.startswith("val/") and ledger.mode == "max" else DEFAULT_OBJECTIVE
    name, value = metric.removeprefix("val/"), trial.best_metrics.get(metric)
    of = held_out_set(ledger, trial)
    if value is None or of is None:
        return Judgement("unknown", diverged=diverged)
    if (why := not_above_chance(name, value, of)) is not None:
        return Judgement("did not learn", why, diverged)
    score = untrained_score(ledger, trial)
    if score is None or score["split"] != "validation" or name not in score["metrics"]:
        return Judgement("unknown", diverged=diverged)
    untrained = score["metrics"][name]
    text = f"{name} {value:.4f}, untrained {untrained:.4f}"
    if min(value, untrained) + of.one_query >= 1:
        return Judgement("unsure", f"{text}, and 1 is the most there is", diverged)
    if value <= untrained + of.one_query:
        return Judgement("did not learn", text, diverged)
    if (gain := trial.gain) is not None and gain.metric == name and not trial.test and gain.low is not None:
        text += f", {gain_text(gain)}"
        return Judgement("learned" if gain.low > 0 else "unsure", text, diverged)
    ends = score["intervals"].get(name)
    if ends is not None and value <= ends[1]:
        return Judgement("unsure", f"{text} (95% over {of.classes} classes: {ends[0]:.4f} to {ends[1]:.4f})", diverged)
    return Judgement("learned", text, diverged)


def _judge_test(ledger: Ledger, trial: TrialRecord, diverged: str) -> Judgement:
    """Judge a training that holds nothing out, by its test."""
    of, value = test_set(ledger), trial.test.get(YARDSTICK)
    if of is None or value is None:
        return Judgement("unknown", diverged=diverged)
    if (why := not_above_chance(YARDSTICK, value, of)) is not None:
        return Judgement("did not learn", f"test {why}", diverged)
    score = untrained_on_test(ledger, trial)
    if score is None:
        return Judgement("unknown", diverged=diverged)
    untrained = score["metrics"][YARDSTICK]
    verdict: Verdict = "did not learn" if value <= untrained + of.one_query else "learned"
    return Judgement(verdict, f"test {YARDSTICK} {value:.4f}, untrained {untrained:.4f}", diverged)


def not_above_chance(name: str, value: float, of: Measured) -> str | None:
    """Why a value is no better than a random ranking's; None if it is better, or its chance level is not known."""
    chance = of.chance.get(name)
    if chance is None or not of.queries:
        return None
    error = math.sqrt(max(0.0, chance * (1 - chance)) / of.queries)
    if value > chance + 2 * error:
        return None
    return f"{name} {value:.4f}, chance {chance:.4f} (a random ranking's standard error: {error:.4f})"


def _diverged_text(trial: TrialRecord) -> str:
    growth = _growth_text(trial)
    return f"its {growth}" if growth else ""


def _growth_text(trial: TrialRecord) -> str:
    first, last = trial.first_loss, trial.last_metrics.get("train/loss")
    if first is None or last is None or last <= GROWN * max(1.0, abs(first)):
        return ""
    return f"training loss grew from {value_text(first)} to {value_text(last)}"


def state_word(ledger: Ledger, trial: TrialRecord) -> str:
    """The state of a trial in a table; for one that breaks a constraint, or ended and learned nothing, that instead."""
    if trial.violations:
        return INFEASIBLE
    if trial.state in FINISHED and (judgement := judge(ledger, trial)).bad:
        return "diverged" if judgement.diverged else "learned nothing"
    return trial.state


# What is said ------------------------------------------------------------------------------------------------


def verdict_line(ledger: Ledger) -> str:
    """The first thing to say about a search whose best trial learned nothing, as a sentence; empty if it did learn."""
    winner = ledger.winner()
    if winner is None:
        return ""
    judgement = judge(ledger, winner)
    if judgement.bad:
        grew = f"; {judgement.diverged}" if judgement.diverged else ""
        return f"The {ledger.kind} did not learn: its best, trial {winner.trial_id}, is at {judgement.why}{grew}."
    return ""


def warnings_of(ledger: Ledger) -> Iterator[str]:
    """What a reader must know beside the verdict: trials that learned nothing, losses that grew, a selection on almost
    nothing."""
    winner, line = ledger.winner(), verdict_line(ledger)
    ended = [trial for trial in ledger.everyone() if trial.state in FINISHED]
    judgements = {trial.trial_id: judge(ledger, trial) for trial in ended}
    bad = [trial_id for trial_id, one in judgements.items() if one.bad]
    if bad and len(ended) > 1:
        yield f"{len(bad)} of {pluralize(len(ended), 'training')} did not learn: {_name_trials(bad)}."
    diverged = [trial for trial in ended if judgements[trial.trial_id].diverged]
    grown = [trial.trial_id for trial in diverged]
    if grown and not (line and winner is not None and grown == [winner.trial_id]):
        first = _growth_text(diverged[0])
        yield f"{pluralize(len(grown), 'training')} diverged ({_name_trials(grown)}); of the first the {first}."
    if winner is not None and winner.trial_id in judgements and judgements[winner.trial_id].verdict == "unsure":
        yield (
            f"The best trial cannot be told from the untrained network ({judgements[winner.trial_id].why}): on other "
            "classes it may be no better."
        )
    if small := small_selection(ledger):
        yield f"{capitalize_first(small)}."
    unordered = [trial for trial in ended if trial.unordered]
    if names := sorted({name for trial in unordered for name in trial.unordered}):
        yield (
            f"{pluralize(len(unordered), 'training')} cannot be repeated to the last bit: on their GPUs "
            f"{join_names(names, ' and ')} {'has' if len(names) == 1 else 'have'} no fixed order."
        )
    if free := sum(trial.settings.get("deterministic") is False for trial in ended):
        yield (
            f"{pluralize(free, 'training')} had deterministic: false: on a GPU the same settings and seed give "
            "slightly "
            "different numbers each time."
        )


def told_beside(ledger: Ledger) -> Iterator[str]:
    """What must be known about a search whose numbers are shown beside others'."""
    if line := verdict_line(ledger):
        yield line
    yield from warnings_of(ledger)
    yield from data_lines(ledger)


def data_lines(ledger: Ledger) -> list[str]:
    """What must be known about the data set that a search's numbers are of, as sentences."""
    return [f"{line}." for line in ledger.sizes.get("remarks", [])]  # it begins with the data set's name


def unlike(ledger: Ledger) -> str:
    """Why its held-out and its test values must not be compared; empty if they may be, or it is not known."""
    return "" if ledger.selection == "test" else unlike_text(held_out_set(ledger, ledger.winner()), test_set(ledger))


def _name_trials(trial_ids: list[str]) -> str:
    return ", ".join(trial_ids[:5]) + (f" and {len(trial_ids) - 5} more" if len(trial_ids) > 5 else "")


def small_selection(ledger: Ledger) -> str | None:
    """The warning about a selection on almost nothing."""
    held_out = held_out_set(ledger)
    if held_out is None:
        return None
    settings = next((trial.settings for trial in ledger.everyone()), ledger.config.get("settings", {}))
    return selection_warning(held_out, settings, int(ledger.sizes.get("training_classes", 0)))


def yardstick_lines(ledger: Ledger) -> list[str]:
    """What a search's numbers are measured on and compared with, as sentences: the selection, its interval, the
    untrained network, the test set."""
    lines = []
    winner = ledger.winner()
    held_out, test = held_out_set(ledger, winner), test_set(ledger)
    if held_out is not None and ledger.selection != "test" and is_held_out(ledger.metric):
        lines.append(f"{capitalize_first(selection_text(held_out))}.")
    lines += data_lines(ledger)
    if winner is not None:
        lines += _winner_lines(ledger, winner)
    if line := unlike(ledger):
        lines.append(line)
    elif test is not None:
        lines.append(f"The test is of {test.size_text}; chance is {test.chance_text()}.")
    return lines


def _winner_lines(ledger: Ledger, winner: TrialRecord) -> Iterator[str]:
    score = untrained_score(ledger, winner)
    if score is not None:
        where = "the held-out set" if score["split"] == "validation" else "the test set"
        names = [name for name in HEADLINES if name in score["metrics"]]
        scores = ", ".join(
            f"{name} {score['metrics'][name]:.4f}{_ends(score['intervals'].get(name))}" for name in names
        )
        yield f"The network before its training has {scores} on {where}."
    if winner.best_interval is not None and winner.best is not None:
        low, high = winner.best_interval
        yield (
            f"The best trial's {ledger.metric} {winner.best:.4f} has a 95% interval over held-out classes of "
            f"{low:.4f} to {high:.4f}; it was chosen on them, and is {excess_text(ledger, winner)}."
        )
        return
    of = held_out_set(ledger, winner)
    of_classes = is_held_out(ledger.metric) and winner.settings.get("protocol") != "classification"
    if winner.best is not None and of_classes and of is not None and of.classes < FEWEST_CLASSES:
        yield (
            f"The best trial's {ledger.metric} {winner.best:.4f} has {too_few(of.classes)}; nor can it be said how "
            "much too high it is as the best of several."
        )


def excess_text(ledger: Ledger, winner: TrialRecord) -> str:
    """How much too high a best value is, for the end of a sentence."""
    if winner.excess is None or winner.best is None:
        return "more likely too high than too low"
    value, best_of = winner.excess.value, f"as the {best_of_text(ledger, winner.excess)}"
    by = f"(by {winner.excess.classes} classes)"
    if not is_noticeable(winner.excess):
        return f"not seen to be too high, {best_of} {by}"
    return (
        f"too high by about {value:.4f}, {best_of} {by}: "
        f"{winner.best - value:.4f} is to be expected of it on other classes"
    )


def is_noticeable(excess: Excess) -> bool:
    """Whether it is seen in four digits."""
    return round(excess.value, 4) > 0


def best_of_text(ledger: Ledger, excess: Excess) -> str:
    """`best of 30`, or, where not the tables of all trials were read, `best of 500 (the first 500 of 2,000)`"""
    read, trials = excess.trials, len(ledger.candidates())
    part = f" (the first {read:,} of {trials:,})" if read < trials else ""
    return f"best of {read:,}{part}"


def _ends(ends: Any) -> str:
    return "" if ends is None else f" (95% over classes: {ends[0]:.4f} to {ends[1]:.4f})"


def numbers_of(ledger: Ledger) -> Numbers:
    """For JSON: what the numbers are measured on, the untrained network's, and the rule's result for the search."""
    winner = ledger.winner()
    score = None if winner is None else untrained_score(ledger, winner)
    return Numbers(
        held_out_set=held_out_set(ledger, winner),
        test_set=test_set(ledger),
        untrained=None
        if score is None
        else Untrained(split=score["split"], metrics=score["metrics"], intervals=score["intervals"]),
        verdict="unknown" if winner is None else judge(ledger, winner).verdict,
        selection_warning=small_selection(ledger),
        expected_excess=None if winner is None else winner.excess,
        gain=None if winner is None or winner.test else winner.gain,
        test_gain=next((run.gain for run in ledger.tests_of(winner) if run.gain is not None), None),
    )
