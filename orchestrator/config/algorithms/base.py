"""What every algorithm has."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import TYPE_CHECKING, Any, ClassVar

if TYPE_CHECKING:
    from orchestrator.config.space import Parameter


@dataclass(frozen=True)
class Draw:
    """What a sampler is made for: one suggestion of a search.

    Attributes:
        seed: of this suggestion.
        search_seed: of the whole search.
        trials: planned for the search.
        conditional: some choices open a space of their own.
        comparable: stopped trials can be compared by their last values.
        constraints: reads a trial's, for samplers of a version before Optuna 5; None where there are none, or trials
            hold them.
    """

    seed: int
    search_seed: int
    trials: int
    conditional: bool
    comparable: bool
    constraints: Callable[[Any], Sequence[float]] | None = None

    @property
    def constrained(self) -> dict[str, Any]:
        """The argument of such a sampler."""
        return {} if self.constraints is None else {"constraints_func": self.constraints}

    @property
    def startup(self) -> int:
        """Trials before a sampler begins to learn: a quarter, but 3 to 10."""
        return max(3, min(10, self.trials // 4))


class Algorithm:
    """How points are chosen."""

    name: ClassVar[str]
    objectives: ClassVar[tuple[int, ...]] = (1, 2)
    """How many objectives it can have."""
    conditional: ClassVar[bool] = True
    """It can search choices that open a space of their own."""
    exhaustive: ClassVar[bool] = False
    """It tries every point of a finite space in order, and needs no number of trials."""
    learns: ClassVar[bool] = True
    """Its points depend on the results before them."""
    remembers: ClassVar[bool] = False
    """Its samplers have state beyond the reported trials."""
    kept: ClassVar[bool] = False
    """One sampler serves the whole search: after a stop it is asked again for all that it was asked for before."""

    sees_stopped: ClassVar[bool] = True
    """Its samplers learn from trials that were stopped early."""
    max_replacements: ClassVar[int] = 19
    """How often a suggestion that is known to break a constraint is replaced by another one."""

    thins: ClassVar[bool] = False
    """After hundreds of trials its samplers get the best, the newest and some of the others."""

    def problem(self, parameters: "Sequence[Parameter]") -> str | None:
        """Why it cannot search a space of these parameters, besides what the attributes say."""
        return None

    def digest(self) -> str | None:
        """Of its code, if that is no installed package's; a search goes on with the same only."""
        return None

    def sampler(self, optuna: ModuleType, draw: Draw) -> Any:
        """A sampler of Optuna's module `optuna.samplers`, which only the study imports."""
        raise NotImplementedError
