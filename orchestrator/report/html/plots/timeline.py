"""When which trial ran, and where."""

import itertools
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from markupsafe import Markup

from orchestrator.config.schedulers import restored_scheduler
from orchestrator.errors import InputError
from orchestrator.report.findings import Findings
from orchestrator.report.html.elements import Figure, Plot, Table, number_cell
from orchestrator.report.html.figures import DRAWN, SYMBOLS
from orchestrator.storage.ledger import Ledger
from orchestrator.storage.trial_record import TrialRecord
from orchestrator.text import pluralize, span

UNITS = ((86_400e3, "days"), (3_600e3, "hours"), (60e3, "minutes"), (1e3, "seconds"))
"""Of the axis, in milliseconds: the largest that is at most half of the whole."""


@dataclass(frozen=True)
class Bar:
    """A trial in its slot, in milliseconds of the clock."""

    trial: TrialRecord
    slot: int
    begin: int
    end: int


def bars(trials: Sequence[TrialRecord], last: int) -> list[Bar]:
    """Each trial from its start to its end (`last`, if it has none) in the first slot that was free then: the number of
    slots is the largest number of trials that ran at once."""
    free: list[int] = []
    result = []
    for trial in sorted(trials, key=lambda one: (one.started, one.kind, one.number)):
        end = max(trial.started, trial.ended if trial.ended is not None else last)
        slot = next((place for place, until in enumerate(free) if until <= trial.started), len(free))
        free[slot : slot + 1] = [end]
        result.append(Bar(trial, slot, trial.started, end))
    return result


def trials_wait(ledger: Ledger) -> bool:
    """Whether its scheduler lets stopped trials wait."""
    try:
        return restored_scheduler(ledger.config.get("scheduler") or {}).promotes
    except InputError:
        return False


def only_final(all_bars: Sequence[Bar]) -> list[tuple[int, int]]:
    """When final runs trained and no trial did: there are no more of them than asked for, however many slots."""
    changes: dict[int, Counter[str]] = {}
    for bar in all_bars:
        changes.setdefault(bar.begin, Counter())[bar.trial.kind] += 1
        changes.setdefault(bar.end, Counter())[bar.trial.kind] -= 1
    spans, now = [], Counter[str]()
    for begin, end in itertools.pairwise(sorted(changes)):
        now.update(changes[begin])
        if now["final"] and not now["trial"]:
            spans.append((begin, end))
    return spans


def idle_time(all_bars: Sequence[Bar], slot: int, began: int, last: int, alone: Sequence[tuple[int, int]]) -> int:
    """For how long nothing ran in a slot, without the time in which only final runs trained."""
    intervals = [(bar.begin, bar.end) for bar in all_bars if bar.slot == slot]
    busy = sum(end - begin for begin, end in intervals)
    passed = sum(end - begin for begin, end in alone)
    both = sum(max(0, min(end, stop) - max(begin, start)) for begin, end in intervals for start, stop in alone)
    return last - began - busy - (passed - both)


def timeline(findings: Findings) -> Plot | None:
    """Trials and final runs over the clock, a row per slot; gaps are idle time, a mark shows where one began again.
    None where stopped trials wait: a journal does not say since when."""
    ledger = findings.ledger
    everyone = ledger.everyone()
    if not everyone or trials_wait(ledger):
        return None
    began = min(trial.started for trial in everyone)
    times = [time for trial in everyone for time in (trial.started, trial.ended or 0, *trial.restarted)]
    last = max(*times, ledger.ended or 0)
    if last == began:
        return None
    all_bars = bars(everyone, last)
    slots = max(bar.slot for bar in all_bars) + 1
    alone = only_final(all_bars)
    unused = [idle_time(all_bars, place, began, last, alone) for place in range(slots)]
    all_taken = sum(bar.end - bar.begin for bar in all_bars)
    size, unit = next(((s, u) for s, u in UNITS if last - began >= 2 * s), UNITS[-1])
    sample = all_bars[:: -(-len(all_bars) // DRAWN)]
    data: list[Figure] = []
    for state in SYMBOLS:
        of_state = [bar for bar in sample if bar.trial.state == state]
        if of_state:
            data.append(
                {
                    "type": "bar",
                    "orientation": "h",
                    "name": state,
                    "base": [(bar.begin - began) / size for bar in of_state],
                    "x": [(bar.end - bar.begin) / size for bar in of_state],
                    "y": [f"slot {bar.slot + 1}" for bar in of_state],
                    "text": [
                        f"trial {bar.trial.trial_id}, {state}, {span((bar.end - bar.begin) / 1e3)}" for bar in of_state
                    ],
                    "customdata": [bar.trial.trial_id for bar in of_state],
                    "textposition": "none",
                    "marker": {"color": f"var(--{state})", "line": {"color": "var(--paper)", "width": 1}},
                    "hovertemplate": Markup("%{text}<extra></extra>"),
                }
            )
    again = [(time, bar) for bar in all_bars for time in bar.trial.restarted]
    if again:
        data.append(
            {
                "type": "scatter",
                "mode": "markers",
                "name": "began again",
                "x": [(time - began) / size for time, _ in again],
                "y": [f"slot {bar.slot + 1}" for _, bar in again],
                "text": [f"trial {bar.trial.trial_id} began again" for _, bar in again],
                "marker": {"symbol": "line-ns-open", "size": 22, "color": "var(--ink)", "line": {"width": 3}},
                "hovertemplate": Markup("%{text}<extra></extra>"),
            }
        )
    idle = sum(unused) / 1e3
    busy = all_taken / (all_taken + sum(unused))
    restarts = f"; {pluralize(len(again), 'restart')}" if again else ""
    finals = " While only final runs train, the other slots do not count as idle." if alone else ""
    caption = (
        f"{pluralize(slots, 'slot')} over {span((last - began) / 1e3)}: taken {busy:.0%} of the time, "
        f"{span(idle)} idle "
        f"in all{restarts}. A slot is the first that was free; the time between a stop and a resume counts too.{finals}"
    )
    names = [f"slot {place + 1}" for place in range(slots)]
    layout = {
        "height": max(340, min(640, 150 + 26 * slots)),
        "barmode": "overlay",
        "xaxis": {"title": {"text": f"{unit} since the first start"}},
        "yaxis": {"type": "category", "categoryorder": "array", "categoryarray": names[::-1]},
    }
    rows = []
    for place in range(slots):
        of_state = [bar for bar in all_bars if bar.slot == place]
        busy_seconds = sum(bar.end - bar.begin for bar in of_state) / 1e3
        free = unused[place] / 1e3
        rows.append(
            [place + 1, len(of_state), number_cell(span(busy_seconds), busy_seconds), number_cell(span(free), free)]
        )
    table = Table("timeline", ["slot", "trials", "taken", "idle"], rows)
    return Plot("timeline", "Trials over the clock", caption, data, layout, table)
