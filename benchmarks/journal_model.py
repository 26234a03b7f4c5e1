"""What a journal may say: the life of a search and of its trials as rules, written without the code that keeps them.

    python benchmarks/journal_model.py runs/searches/my-search/journal.jsonl

A search is driven from `search_started` or `search_resumed` on, until `search_ended` or until its driver dies, which no
event says. Exit code 1, and a line for each event that breaks a rule.
"""

import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

Record = Mapping[str, Any]
OVER = ("done", "pruned")
"""Ends of trials that may win. Only one that was stopped early starts again, where the scheduler promotes."""
PROMOTING = ("promotion", "forecast", "population")
"""The schedulers that do."""
MAY_PASS = ("device", "lost", "stall")
"""Failures that `retry` counts."""


@dataclass
class Life:
    """One trial so far."""

    kind: str
    params: dict[str, Any]
    state: str = "running"
    failure: str | None = None
    validations: list[Record] = field(default_factory=list)
    failures: int = 0
    copied: bool = False
    replaced: bool = False

    @property
    def finished(self) -> bool:
        """Whether its last validation was reported."""
        return bool(self.validations) and bool(self.validations[-1].get("finished"))


@dataclass
class JournalModel:
    """Takes the events one by one; `broken` has a line for each rule that one of them broke.

    Attributes:
        slots: trials that may run at once; None: not checked.
        goal: the metric that is to be the largest (`max`) or smallest.
    """

    slots: int | None = None
    broken: list[str] = field(default_factory=list)
    lives: dict[str, Life] = field(default_factory=dict)
    config: dict[str, Any] = field(default_factory=dict)
    started: bool = False
    driven: bool = False
    count: int = 0

    @classmethod
    def of(cls, events: Iterable[Record], slots: int | None = None) -> "JournalModel":
        """The model after these events."""
        model = cls(slots)
        for event in events:
            model.take(event)
        return model

    def take(self, event: Record) -> None:
        """One more event."""
        kind = event["event"]
        self._rule(event, event["seq"] == self.count, f"is number {event['seq']}, not {self.count}")
        self.count += 1
        if kind == "search_started":
            self._rule(event, not self.started, "a second beginning")
            self.started = self.driven = True
            self.config = dict(event["config"])
        elif not self.started:
            self._rule(event, False, "before the beginning")
        elif kind == "search_resumed":
            self._resume(event)
        elif kind == "search_ended":
            self._end_search(event)
        elif kind in ("trial_started", "validation", "trial_ended"):
            self._rule(event, self.driven, "in a search that has ended")
            getattr(self, f"_{kind}")(event)
        elif (trial := event.get("trial_id")) is not None:
            self._rule(event, trial in self.lives, "of no trial")

    def _rule(self, event: Record, holds: bool, otherwise: str) -> None:
        if not holds:
            self.broken.append(f"{event['seq']} {event['event']} {event.get('trial_id') or ''}: {otherwise}")

    @property
    def _promotes(self) -> bool:
        return dict(self.config.get("scheduler") or {}).get("name") in PROMOTING

    def _running(self) -> list[str]:
        return [name for name, life in self.lives.items() if life.state == "running"]

    def _resume(self, event: Record) -> None:
        if event.get("config"):
            self.config = dict(event["config"])
        for name in self._running():  # its driver died
            self.lives[name].state = "cut off"
        self.driven = True

    def _trial_started(self, event: Record) -> None:
        name, life = event["trial_id"], self.lives.get(event["trial_id"])
        if life is None:
            life = self.lives[name] = Life(event["kind"], dict(event["params"]))
            trials = [one for one in self.lives.values() if one.kind == "trial"]
            if life.kind == "trial":
                self._rule(event, name == f"{len(trials) - 1:04d}", f"is the trial number {len(trials) - 1}")
                same = sum(one.params == life.params for one in trials)
                self._rule(event, same == 1, "a point that was tried before")
                if event.get("copied"):
                    self._copy(event, life)
            else:
                open_trials = [one for one in trials if one.state in ("running", "cut off", "interrupted")]
                self._rule(event, not open_trials, "a final run before all trials have ended")
                source = self.lives.get(event["source"])
                self._rule(event, source is not None and source.state in OVER, "of a trial that cannot have won")
        else:
            anew = "begun anew" in (event.get("note") or "")
            again = life.state == "failed" and life.failure == "device"
            promoted = life.state == "pruned" and self._promotes and not life.replaced
            may = life.state in ("cut off", "interrupted") or again or promoted or (life.state == "running" and anew)
            self._rule(event, may, f"it is {life.state}")
            self._rule(event, life.params == event["params"], "it has another point")
        life.state = "running"
        busy = len(self._running())
        self._rule(event, self.slots is None or busy <= self.slots, f"{busy} run, there is room for {self.slots}")

    def _copy(self, event: Record, life: Life) -> None:
        """It has what the other one had, which waits; a third one ended for it."""
        copied, nobody = event["copied"], Life("", {}, "unknown")
        other, third = (self.lives.get(copied[key], nobody) for key in ("trial_id", "replaces"))
        self._rule(event, other.state == "pruned" and not other.replaced, f"a copy of one that is {other.state}")
        at = len(other.validations)
        self._rule(event, copied["validation"] == at, f"a copy after validation {copied['validation']}, not {at}")
        self._rule(event, third.state in ("pruned", "failed"), f"it replaces one that is {third.state}")
        self._rule(event, third is not other and not third.replaced, "it replaces one that was replaced, or its source")
        life.copied, life.validations, third.replaced = True, list(other.validations), True

    def _validation(self, event: Record) -> None:
        life = self.lives.get(event["trial_id"])
        if life is None or life.state != "running":
            self._rule(event, False, f"it is {'unknown' if life is None else life.state}")
            return
        number = len(life.validations) + 1
        self._rule(event, event["validation"] == number, f"is number {event['validation']}, not {number}")
        self._rule(event, not life.finished, "after its last one")
        life.validations.append(event)

    def _trial_ended(self, event: Record) -> None:
        life, state = self.lives.get(event["trial_id"]), event["state"]
        if life is None:
            self._rule(event, False, "of no trial")
            return
        decided = life.state == "cut off" and state == "pruned"  # its driver died before this was recorded
        self._rule(event, life.state == "running" or decided, f"it is {life.state}")
        self._rule(event, state != "done" or life.finished, "done before its last validation")
        self._rule(event, state != "pruned" or bool(life.validations), "stopped before its first validation")
        self._rule(event, state != "pruned" or life.kind == "trial", "a final run is not stopped early")
        life.state, life.failure = state, event.get("failure")
        if life.failure in MAY_PASS:
            life.failures += 1
            retry = int(self.config.get("retry", 0))
            self._rule(event, state == "failed" or life.failures <= retry, f"tried again more than {retry} times")

    def _end_search(self, event: Record) -> None:
        self._rule(event, self.driven, "in a search that has ended")
        self._rule(event, not self._running(), f"while {self._running()} run")
        self.driven = False
        trials = [life for life in self.lives.values() if life.kind == "trial" and not life.copied]
        if event["state"] == "interrupted":
            return
        unfinished = [name for name, life in self.lives.items() if life.state in ("cut off", "interrupted")]
        self._rule(event, not unfinished, f"{event['state']}, but {unfinished} have not ended")
        planned = self.config.get("num_trials")
        complete = planned is None or len(trials) >= planned or bool(event.get("reason"))
        self._rule(event, complete, f"{event['state']} after {len(trials)} of {planned} trials")


def main() -> int:
    """Check the journals that are named."""
    from orchestrator.storage.journal import Journal

    broken = {path: JournalModel.of(Journal.read(Path(path))).broken for path in sys.argv[1:]}
    for path, lines in broken.items():
        print(f"{path}: {'; '.join(lines) or 'accepted'}")
    return int(any(broken.values()))


if __name__ == "__main__":
    sys.exit(main())
