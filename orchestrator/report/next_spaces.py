"""Next steps that train on, or search elsewhere: longer, beyond an end of a range, or in a part of it."""

import math
from collections.abc import Iterator, Mapping
from typing import Any

from orchestrator.config.algorithms import is_exhaustive, learns
from orchestrator.config.resolve import with_ranges
from orchestrator.config.space import parse_space
from orchestrator.errors import InputError
from orchestrator.evaluation.forecasts import TOP, Tail, beyond, further_rise
from orchestrator.report.commands import range_words, train_words
from orchestrator.report.findings import Findings
from orchestrator.report.importance import ENOUGH_TRIALS
from orchestrator.report.ranges import narrow_range, shift_range
from orchestrator.report.settings import Searched
from orchestrator.report.standing import without_repeats
from orchestrator.report.steps import CONTENDERS, ProposedStep, count_final_runs, line, of_finals, of_trials
from orchestrator.report.widening import CORNER, crowd
from orchestrator.text import capitalize_first, join_names, pluralize, value_text

LONGER = 2
"""A longer training has this many times the epochs."""


def longer(findings: Findings) -> Iterator[ProposedStep]:
    """Train the best for longer."""
    ledger, winner, gain = findings.ledger, findings.winner, findings.rising
    if winner is None or not gain or winner.best_validation != winner.validations:
        return
    sign = 1.0 if ledger.mode == "max" else -1.0
    more = further_rise([sign * value for value in winner.curve], LONGER)
    epochs = LONGER * int(winner.settings.get("epochs", 0))
    why = f"The best score was at the last validation and still rose, by {gain:.4f} in the last fifth"
    if ledger.kind == "training":
        if epochs and (words := train_words({**winner.settings, "epochs": epochs})):
            cost = LONGER * winner.seconds
            yield ProposedStep("longer", f"Train it for {epochs} epochs", f"{why}.", line(findings, words), cost, more)
        return
    if ledger.over_seeds or ledger.is_population:
        words = ["orchestrator", "search", "--like", ledger.name, "--epochs", str(epochs)]
        again = f"{why}; after longer training another point may lead."
        yield ProposedStep(
            "longer",
            f"{'Search' if ledger.repeats or ledger.is_population else 'Train the grid'} for {epochs} epochs",
            again,
            line(findings, words),
            LONGER * findings.seconds,
            more,
        )
        return
    words, count = ["--epochs", str(epochs), "--scheduler", "none"], 1
    changes: dict[str, Any] = {"epochs": epochs}
    count = _starting(findings, {}, changes)
    if not epochs or not count:
        return
    words += ["--num-trials", str(count), "--start-from", f"{ledger.name}:{count}"]
    if is_exhaustive(ledger.config.get("algorithm")):
        words += ["--algorithm", "random"]  # a grid has no points of its own to begin with
    yield ProposedStep(
        "longer",
        f"Train the best {pluralize(count, 'trial')} for {epochs} epochs"
        if count > 1
        else f"Train it for {epochs} epochs",
        f"{why}; after longer training another may lead, so that all begin anew and are compared at one age.",
        line(findings, ["orchestrator", "search", "--like", ledger.name, *words]),
        LONGER * count * winner.seconds + of_finals(findings, LONGER * count_final_runs(ledger)),
        more,
    )


def _starting(findings: Findings, ranges: Mapping[str, Any], fixed: Mapping[str, Any] | None = None) -> int:
    """How many of the best trials, at most CONTENDERS, lie in the space with these ranges, so that it can begin with
    them."""
    config = findings.ledger.config
    raw = {"settings": config.get("settings", {}), "space": config.get("raw_space")}
    count = 0
    try:
        content = with_ranges(raw, ranges, {}) if ranges else raw
        values = dict(fixed or {})
        part = content["space"]
        if isinstance(part, dict):
            part = {key: value for key, value in part.items() if key not in values}
        space = parse_space(part, "next step", content["settings"] | values)
        for trial in without_repeats(findings.ledger)[:CONTENDERS]:
            space.point({**content["settings"], **trial.params})
            count += 1
    except InputError:
        pass
    return count


def _search(findings: Findings, ranges: Mapping[str, Any]) -> tuple[str, float | None]:
    """A search like this one with other ranges, and its cost: as many trials as this one had; of a grid the new values
    only."""
    ledger = findings.ledger
    words = ["orchestrator", "search", "--like", ledger.name, *range_words(ranges)]
    count = max(ENOUGH_TRIALS, len(ledger.trials))
    if is_exhaustive(ledger.config.get("algorithm")):
        values = [len(next(s.values for s in findings.searched if s.key == key)) for key in ranges]
        share = 1.0
        for old, new in zip(values, ranges.values(), strict=True):
            share *= len(new) / max(1, old)
        return line(findings, words), of_trials(findings, max(1, round(share * len(ledger.trials))))
    words += ["--num-trials", str(count)]
    if first := _starting(findings, ranges):
        words += ["--start-from", f"{ledger.name}:{first}"]
    return line(findings, words), of_trials(findings, count)


def _one_space(findings: Findings) -> bool:
    """Whether it is a search over one mapping, whose ranges can be changed by their keys."""
    return findings.ledger.kind == "search" and isinstance(findings.ledger.config.get("raw_space"), dict)


def _unconditional(findings: Findings) -> list[Searched]:
    """The searched settings whose ranges `--range` changes: not those that a choice opens."""
    space = findings.ledger.config.get("raw_space") or {}
    return [setting for setting in findings.searched if setting.key in space]


def widen(findings: Findings) -> Iterator[ProposedStep]:
    """Search beyond the ends that the winner is at."""
    if findings.winner is None or not _one_space(findings):
        return
    edges = [s for s in _unconditional(findings) if s.edge and s.parameter is not None]
    grid = is_exhaustive(findings.ledger.config.get("algorithm"))
    shifted_ranges = {s.key: new for s in edges if (new := shift_range(s, findings.settings, grid=grid))}
    if grid:  # the new values of two settings would leave out their pairs with the old
        shifted_ranges = dict(list(shifted_ranges.items())[:1])
    if not shifted_ranges:
        return
    texts = [f"{s.key} = {value_text(s.best)} in {s.range_text}" for s in edges if s.key in shifted_ranges]
    command, seconds = _search(findings, shifted_ranges)
    sides = join_names(
        [f"{s.key} {'below' if s.edge == 'low' else 'above'} its range" for s in edges if s.key in shifted_ranges],
        " and ",
    )
    gain = sum(_gain_beyond(findings, s) for s in edges if s.key in shifted_ranges)
    why = f"The best point is at an end: {'; '.join(texts)}."
    yield ProposedStep("widen", f"Search {sides}", why, command, seconds, gain)


def _gain_beyond(findings: Findings, setting: Searched) -> float:
    """By how much the objective is expected to be better beyond the end of a range where the winner is, as far as
    `shifted` moves it."""
    ledger, compared, listed_ = findings.ledger, findings.comparable.values, setting.parameter
    assert listed_ is not None
    names = [name for name in compared if setting.key in ledger.trials[name].params and name not in setting.idle]
    values = [ledger.trials[name].params[setting.key] for name in names]
    if listed_.kind == "categorical":
        choices = sorted(listed_.choices)
        places, by = [choices.index(value) / (len(choices) - 1) for value in values], 1 / (len(choices) - 1)
    else:
        places, by = [setting.place(value) for value in values], 0.5
    sign = 1.0 if ledger.mode == "max" else -1.0
    ends = places if setting.edge == "high" else [1 - place for place in places]
    return beyond(ends, [sign * compared[name] for name in names], by)


def narrow(findings: Findings) -> Iterator[ProposedStep]:
    """Search where the best trials crowd."""
    if findings.winner is None or not _one_space(findings):
        return
    ledger = findings.ledger
    crowds = [
        crowd(ledger, s, findings.comparable, findings.evidence, findings.settings) for s in _unconditional(findings)
    ]
    narrower = {c.setting.key: (c, narrow_range(c)) for c in crowds if c is not None}
    if not narrower:
        return
    command, seconds = _search(findings, {key: new for key, (_, new) in narrower.items()})
    parts = [
        f"{key} to {value_text(new['low'])} to {value_text(new['high'])}{', in log scale' if new.get('log') else ''}"
        for key, (_, new) in narrower.items()
    ]
    why = "; ".join(
        f"the best {c.count} of {c.of} trials have {key} in the {'lowest' if c.end == 'low' else 'highest'} fifth of "
        f"{c.setting.range_text}"
        for key, (c, _) in narrower.items()
    )
    gain = expected_gain(findings, math.ceil(len(ledger.trials) / CORNER))
    text = f"{capitalize_first(why)}."
    yield ProposedStep("narrow", f"Narrow {' and '.join(parts)}", text, command, seconds, gain)


def tail_of(findings: Findings) -> tuple[Tail, float] | None:
    """The tail of the results of this space at equal age, and the best of all, with larger as better; None for too few
    results. Of an algorithm that learns from its trials those of the last half, whose points are like the next ones."""
    ledger, compared = findings.ledger, findings.comparable.values
    ended = sorted(
        (trial for trial in without_repeats(ledger) if trial.trial_id in compared), key=lambda trial: trial.number
    )
    sign = 1.0 if ledger.mode == "max" else -1.0
    results = [sign * compared[trial.trial_id] for trial in ended]
    last = results[len(results) // 2 :] if learns(ledger.config.get("algorithm")) else results
    return None if len(last) <= TOP else (Tail(last), max(results))


def expected_gain(findings: Findings, more: int) -> float | None:
    """By how much the best of so many more trials of this space is expected to be better than the best."""
    tail = tail_of(findings)
    return None if tail is None else tail[0].gain(tail[1], more)
