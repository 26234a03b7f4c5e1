"""What a page knows of its records, once for all figures, the filter and the panel: a search's of its trials, a
comparison's of its searches."""

from collections.abc import Mapping, Sequence
from typing import Any

from orchestrator.report.comparison import Comparison
from orchestrator.report.findings import Findings
from orchestrator.storage.leaderboard import chosen_value
from orchestrator.storage.trial_folder import INSIGHT
from orchestrator.storage.trial_record import TrialRecord
from orchestrator.text import span

NUMBERS = 60_000
"""The maximum number of values in the curves of a page; those of the best trials are kept."""
LONGEST = 100
"""The maximum number of values in a curve."""
REASON = 300
"""The maximum number of characters of a reason."""


def trials_data(findings: Findings, pages: Mapping[str, str]) -> dict[str, Any]:
    """The trials as rows of `columns`, the settings from `first` on, and `more` of those whose curves fit."""
    ledger = findings.ledger
    keys = [setting.key for setting in findings.searched]
    names = {setting.key: setting.full_label for setting in findings.searched if setting.label}
    second = [] if ledger.second is None else [ledger.second]
    columns = ["trial", "state", ledger.metric, *second, "validations", "seconds"]
    rows = [
        [
            trial.trial_id,
            trial.state,
            trial.best,
            *([trial.second] if second else []),
            trial.validations,
            round(trial.seconds, 1),
            *(_plain(trial.params.get(key)) for key in keys),
        ]
        for trial in ledger.trials.values()
    ]
    per, budget, more = findings.epochs_per_validation or 1.0, NUMBERS, {}
    for trial in ledger.ranking():
        about: dict[str, Any] = {"page": pages[trial.trial_id]} if trial.trial_id in pages else {}
        if budget > 0:
            about |= _about(trial, per)
            budget -= 3 * len(about.get("curve", ()))
        if about:
            more[trial.trial_id] = about
    winner = findings.winner
    return {
        "noun": "trial",
        "plural": "trials",
        "leads": "Its images: worst queries, confused classes",
        "names": names,
        "framed": f"in the folder {INSIGHT} of the trial's own run",
        "metric": ledger.metric,
        "winner": None if winner is None else winner.trial_id,
        "unit": "epoch" if findings.epochs_per_validation else "validation",
        "columns": [*columns, *keys],
        "first": len(columns),
        "seconds": len(columns) - 1,
        "rows": rows,
        "more": more,
    }


def searches_data(comparison: Comparison, pages: Mapping[str, str]) -> dict[str, Any]:
    """The searches of a comparison in the same form: the best point of each, and its best value over epochs spent."""
    members = comparison.members
    keys = list(dict.fromkeys(key for member in members if member.winner for key in member.winner.params))
    searched = {setting.key: setting for member in members for setting in member.findings.searched}
    names = {key: searched[key].full_label for key in keys if key in searched and searched[key].label}
    metrics = dict.fromkeys(member.ledger.metric for member in members)
    held_out = next(iter(metrics)) if len(metrics) == 1 else "held-out"
    columns = ["search", "state", f"test/{comparison.metric}", "seeds", held_out, "trials", "epochs", "seconds"]
    rows, more = [], {}
    for member in members:
        winner, seconds = member.winner, 3600 * member.hours
        best = None if winner is None else chosen_value(member.ledger, winner)
        params = {} if winner is None else winner.params
        cells = [
            member.label,
            member.ledger.state,
            member.mean,
            len(member.tests),
            best,
        ]
        cells += [len(member.ledger.trials), member.ledger.epochs, round(seconds, 1)]
        rows.append([*cells, *(_plain(params.get(key)) for key in keys)])
        about: dict[str, Any] = {"time": span(seconds)}
        about |= {"page": pages[member.label]} if member.label in pages else {}
        if steps := member.progress():
            places = thin(len(steps))
            about |= {"at": [steps[place][0] for place in places], "curve": [steps[place][1] for place in places]}
            about |= {"thinned": True} if len(places) < len(steps) else {}
        more[member.label] = about
    return {
        "noun": "search",
        "plural": "searches",
        "leads": "Its page",
        "names": names,
        "framed": "the link is in the note of this page's run",
        "metric": f"best {held_out} so far",
        "winner": members[0].label if members[0].tests else None,
        "unit": "epochs spent",
        "columns": [*columns, *keys],
        "first": len(columns),
        "seconds": len(columns) - 1,
        "rows": rows,
        "more": more,
    }


def thin(length: int, most: int = LONGEST) -> Sequence[int]:
    """At most `most` places of so many, evenly, with the first and the last."""
    if length <= most:
        return range(length)
    return [place * (length - 1) // (most - 1) for place in range(most)]


def _about(trial: TrialRecord, per: float) -> dict[str, Any]:
    resources = ", ".join(f"{amount:g} {kind}" for kind, amount in trial.resources.items() if amount)
    about: dict[str, Any] = {"time": span(trial.seconds)}
    about |= {"resources": resources} if resources else {}
    if reason := trial.remark[:REASON]:
        about["reason"] = reason
    if trial.curve:
        places = thin(len(trial.curve))
        about |= {"at": [per * (place + 1) for place in places], "curve": [trial.curve[place] for place in places]}
        about["loss"] = [trial.losses[place] for place in places]
        about |= {"thinned": True} if len(places) < len(trial.curve) else {}
    return about


def _plain(value: Any) -> Any:
    """A value that a filter compares: numbers, texts; others as texts."""
    return value if value is None or type(value) in (int, float, str) else str(value)
