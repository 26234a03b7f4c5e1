"""What every scheduler has."""

import bisect
import math
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from types import ModuleType
from typing import Annotated, Any, ClassVar

from pydantic import BaseModel, ConfigDict, Field

from orchestrator.config.limits import MAX_EPOCHS, MAX_TRIALS
from orchestrator.storage.events import Copied

Grace = Annotated[int, Field(ge=1, le=MAX_EPOCHS, description="validations before a trial may be stopped")]
Factor = Annotated[int, Field(ge=2, le=MAX_TRIALS, description="1 / this is the share of trials that pass a rung")]

Requirement = Callable[[int, Sequence[float], Sequence[float]], tuple[float, str] | None]
"""As `Scheduler.requirement`."""


class Scheduler(BaseModel):
    """Which trials are stopped early. All schedulers count validations.

    Its fields are the keys of `scheduler` in a search file, besides `name`.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    name: ClassVar[str]
    orders_trials: ClassVar[bool] = True
    """It has to know which of two trials is better."""
    by_fronts: ClassVar[bool] = False
    """It can tell that with two objectives too."""
    comparable: ClassVar[bool] = False
    """Trials are stopped at the same validations, so a sampler may learn from the last value of a stopped one."""
    promotes: ClassVar[bool] = False
    """A stopped trial waits with its checkpoint, and goes on once it meets what is then required at its age."""
    copies: ClassVar[bool] = False
    """Trials begin as copies of others."""
    by_last: ClassVar[bool] = False
    """It compares trials by their last values, not their best so far."""

    @property
    def first_stop(self) -> int | None:
        """The first validation after which a trial may be stopped: all trials that end reach it, so they are compared
        there. None if no trial is stopped."""
        return 1

    @property
    def whole_trial(self) -> int | None:
        """Validations of a whole trial, where the file gives them."""
        return None

    def problem(self, validations: int | None) -> str | None:
        """Why it cannot schedule trials of so many validations (None: not known)."""
        return None

    def brackets(self, validations: int | None) -> int:
        """How many groups of trials it compares only among themselves."""
        return 1

    def sizes(self, brackets: int) -> Sequence[int]:
        """How many trials each bracket gets in turn."""
        return [1] * brackets

    def requirement(self, age: int, reached: Sequence[float], done: Sequence[float]) -> tuple[float, str] | None:
        """What a trial had to have after `age` validations to go on, and what that is; None where it does not follow
        from what the journal holds.

        Args:
            reached: the best losses so far, at this age, of the trials that had come to it by then, its own included;
                sorted, less is better.
            done: the same, sorted, of the trials that had trained to their end by then, without its own.
        """
        return None

    def may_pass(self, place: int, trials: float) -> bool:
        """Whether the trial of this place (from 1) at some age may still go on, if so many come there at most."""
        return True

    def requirements(self, validations: int | None) -> list[Requirement]:
        """What each bracket requires of its trials."""
        return [self.requirement] * self.brackets(validations)

    def make_brackets(self, validations: int | None, objectives: int = 1, trials: float = math.inf) -> list["Bracket"]:
        """Its brackets, without trials, of a search that tries so many points at most."""
        return [Bracket(rule) for rule in self.requirements(validations)]

    def pruners(self, optuna: ModuleType, validations: int | None) -> list[Any]:
        """A pruner for each bracket, of Optuna's module `optuna.pruners`, which only the study imports; none where
        `requirements` decide. A pruner looks at all trials at each validation, so it costs more the more there are."""
        return []


class Bracket:
    """The trials that a requirement compares, each reported once per validation, in the order of the journal."""

    def __init__(self, requirement: Requirement) -> None:
        self.requirement = requirement
        self.reached: defaultdict[int, list[float]] = defaultdict(list)
        self.done: defaultdict[int, list[float]] = defaultdict(list)
        self.waiting: defaultdict[int, list[tuple[float, str]]] = defaultdict(list)
        """By age the trials that were stopped and may go on, best first: loss and id."""

    def enter(self, trial_id: str, place: Sequence[float]) -> None:
        """Add a trial with its point's place in the unit cube."""

    def validate(self, age: int, loss: float, trial_id: str = "") -> tuple[float, str] | None:
        """Add the best loss of a trial after `age` validations; what it had to have, if that is less."""
        bisect.insort(self.reached[age], loss)
        required = self.requirement(age, self.reached[age], self.done[age])
        return required if required is not None and loss > required[0] else None

    def finish(self, course: Mapping[int, float], trial_id: str = "") -> None:
        """Add a trial that came to its own end: its best loss so far after each validation."""
        for age, loss in course.items():
            bisect.insort(self.done[age], loss)

    def wait(self, trial_id: str, age: int, loss: float, may_pass: Callable[[int], bool]) -> list[str]:
        """Add a trial that was stopped at this age, and may go on. Gives those that no longer wait there, as `may_pass`
        denies it to their places."""
        waiting, gone = self.waiting[age], []
        bisect.insort(waiting, (loss, trial_id))
        while waiting and not may_pass(1 + bisect.bisect_left(self.reached[age], waiting[-1][0])):
            gone.append(waiting.pop()[1])
        return gone

    def leave(self, trial_id: str) -> list[str]:
        """A trial ended, and does not wait. Gives those that no longer wait either."""
        return []

    def enter_copy(self, trial_id: str) -> None:
        """The copy that is due begins, as this trial."""
        raise NotImplementedError

    def copy_due(self) -> Copied | None:
        """The copy of a waiting trial that is to begin next, if one is."""
        return None

    def promotion(self) -> str | None:
        """The waiting trial that meets what is required now: of several the oldest, of these the best."""
        for age in sorted(self.waiting, reverse=True):
            if self.waiting[age]:
                loss, trial_id = self.waiting[age][0]
                required = self.requirement(age, self.reached[age], self.done[age])
                if required is not None and loss <= required[0]:
                    return trial_id
        return None

    def resume(self, trial_id: str) -> None:
        """A waiting trial goes on."""
        for age, waiting in self.waiting.items():
            self.waiting[age] = [one for one in waiting if one[1] != trial_id]
