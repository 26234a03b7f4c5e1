"""Population-based training: settings that change while a population trains, by what the best of it have."""

import math
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

from pydantic import Field

from orchestrator.config.limits import MAX_EPOCHS
from orchestrator.config.schedulers.base import Bracket, Scheduler
from orchestrator.storage.events import Copied
from orchestrator.text import pluralize

if TYPE_CHECKING:
    from orchestrator.config.space import Parameter


def changeable(parameters: Iterable["Parameter"], keys: Container[str]) -> list["Parameter"]:
    """The searched settings that may change while a training runs, if these may, and whose values are numbers."""
    return [one for one in parameters if one.key in keys and all(map(_is_number, one.choices)) and one.count() > 1]


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


class Population(Scheduler):
    """All trials train side by side. After every so many validations the worst ones end, and copies of the best take
    their places, from the same checkpoint on with other values of the settings that may change while a training runs.

    Source: Jaderberg et al., Population Based Training of Neural Networks, 2017, with truncation selection.
    """

    name: ClassVar[str] = "population"
    promotes: ClassVar[bool] = True
    copies: ClassVar[bool] = True
    by_last: ClassVar[bool] = True
    every: Annotated[int, Field(ge=1, le=MAX_EPOCHS, description="validations between comparisons")] = 1
    share: Annotated[float, Field(gt=0, le=0.5, description="share of the trials that are replaced each time")] = 0.25
    factor: Annotated[float, Field(gt=1, le=100, description="a copy's settings are multiplied or divided by it")] = 1.2
    resample: Annotated[float, Field(ge=0, le=1, description="chance of a random value instead")] = 0.25

    @property
    def first_stop(self) -> int:
        """The first comparison."""
        return self.every

    def count_worst(self, trials: int) -> int:
        """How many of so many trials are replaced at a comparison, those that failed included where they are fewer."""
        return min(max(1, int(trials * self.share)), trials // 2)

    def count_copies(self, trials: int, validations: int) -> int:
        """How many copies a population has, if no trial fails."""
        return self.count_worst(trials) * ((validations - 1) // self.every)

    def problem(self, validations: int | None) -> str | None:
        """A trial has to go on after a comparison."""
        if validations is not None and validations <= self.every:
            trains = pluralize(validations, "validation")
            return f"every: {self.every}: a trial has {trains}, so nothing would be compared: it needs more"
        return None

    def make_brackets(self, validations: int | None, objectives: int = 1, trials: float = math.inf) -> list[Bracket]:
        """One, of all trials."""
        return [PopulationBracket(self, trials)]


@dataclass
class Member:
    """A trial of a population."""

    age: int
    """Of its last comparison, 0 before the first."""
    loss: float = 0.0
    """After its last validation."""
    waits: bool = False
    """It has come to the next comparison."""
    may_go_on: bool = False
    """It has, and was compared."""


class PopulationBracket(Bracket):
    """A population. Trials wait for each other at each comparison, so what comes of it does not depend on their speed:
    the worst `share`, and those that failed, are replaced, the worst by a copy of the best, the next by one of the
    second best, and so on."""

    def __init__(self, scheduler: Population, trials: float) -> None:
        super().__init__(lambda age, reached, done: None)
        self.scheduler, self.trials = scheduler, trials
        self.entered = 0
        self.members: dict[str, Member] = {}
        self.failed: list[str] = []
        """Those that ended otherwise than planned since the last comparison."""
        self.due: list[Copied] = []
        """The copies that are to begin before anyone goes on."""

    def enter(self, trial_id: str, place: Sequence[float]) -> None:
        """Add a trial of the first generation."""
        self.entered += 1
        self.members[trial_id] = Member(0)

    def enter_copy(self, trial_id: str) -> None:
        """The copy that is due begins, as this trial."""
        copied = self.due.pop(0)
        self.members[trial_id] = Member(copied.validation, self.members[copied.trial_id].loss)

    def validate(self, age: int, loss: float, trial_id: str = "") -> tuple[float, str] | None:
        """A trial waits at every comparison."""
        if (member := self.members.get(trial_id)) is None:
            return None
        member.loss = loss
        return None if age % self.scheduler.every else (loss, "a comparison")

    def finish(self, course: Mapping[int, float], trial_id: str = "") -> None:
        """A trial that came to its end takes part no more."""
        self.members.pop(trial_id, None)

    def wait(self, trial_id: str, age: int, loss: float, may_pass: Callable[[int], bool]) -> list[str]:
        """A trial has come to a comparison; those that are replaced, if it was the last one."""
        member = self.members[trial_id]
        member.age, member.waits = age, True
        return self._compare()

    def leave(self, trial_id: str) -> list[str]:
        """A trial ended; those that are replaced, if all others wait."""
        if self.members.pop(trial_id, None) is not None:
            self.failed.append(trial_id)
        return self._compare()

    def _compare(self) -> list[str]:
        members = self.members.values()
        if self.entered < self.trials or self.due or any(not one.waits or one.may_go_on for one in members):
            return []
        ranked = sorted(self.members, key=lambda name: (self.members[name].loss, name))
        best = self.scheduler.count_worst(len(ranked) + len(self.failed))
        worst = ranked[::-1][: max(0, best - len(self.failed))]
        sources = ranked[: max(1, best)]
        for place, former in enumerate([*self.failed, *worst] if ranked else []):
            source = sources[place % len(sources)]
            self.due.append(Copied(trial_id=source, validation=self.members[source].age, replaces=former))
        for name in worst:
            del self.members[name]
        for member in self.members.values():
            member.may_go_on = True
        self.failed = []
        return worst

    def copy_due(self) -> Copied | None:
        """The next copy that is to begin."""
        return self.due[0] if self.due else None

    def promotion(self) -> str | None:
        """The first trial that may go on, once no copy is due."""
        return None if self.due else next((name for name, one in self.members.items() if one.may_go_on), None)

    def resume(self, trial_id: str) -> None:
        """A trial goes on."""
        member = self.members[trial_id]
        member.waits = member.may_go_on = False
