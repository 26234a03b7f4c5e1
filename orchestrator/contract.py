"""The part of the Method contract that needs no torch: a method's configuration, and where methods are announced."""

import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from importlib import import_module
from importlib.metadata import EntryPoint, EntryPoints, entry_points
from importlib.util import find_spec
from pathlib import Path
from typing import Any, ClassVar, cast

from pydantic import BaseModel, ConfigDict

from orchestrator.errors import InputError, missing_part
from orchestrator.problems import suggestion

ENTRY_POINTS = "orchestrator.methods"
PACKAGES = ("orchestrator", "methods")
BUILT_IN = EntryPoint("builtin", "methods", ENTRY_POINTS)


@dataclass(frozen=True)
class Family:
    """Methods that a module makes of another library when one is asked for by its name, `PREFIX/NAME`.

    Attributes:
        module: of a package of methods; its `names()` are theirs, `build_method(name)` makes one, `REFUSED` says why
            others cannot be made.
        package: what must be installed.
        example: the name of one.
    """

    prefix: str
    module: str
    package: str
    example: str

    def require(self) -> None:
        """InputError if the package is not installed."""
        if find_spec(self.package) is None:
            raise InputError(missing_part(self.package))

    def build(self, name: str) -> Any:
        """The method of this name; InputError if there is none, with the reason, or not its library."""
        module = self._module()
        if name in (names := module.names()):
            return module.build_method(name)
        if reason := module.REFUSED.get(name.partition("/")[2]):
            raise InputError(f"{name} cannot be a method: {reason}")
        raise InputError(f"unknown method '{name}'{suggestion(name, names)}")

    def build_all(self) -> dict[str, Any]:
        """All its methods by name; InputError without its library."""
        module = self._module()
        return {name: module.build_method(name) for name in module.names()}

    def _module(self) -> Any:
        self.require()
        try:
            import_module(self.package)
            return import_module(self.module)
        except ImportError as error:
            raise InputError(f"{self.package} cannot be imported: {' '.join(str(error).split())}") from None


FAMILIES = (Family("pml", "methods.pml", "pytorch_metric_learning", "pml/TripletMarginLoss"),)


def family_of(name: str) -> Family | None:
    """The family that a method's name asks for; None without one, and for a path such as `pml/search.yaml`."""
    prefix, _, rest = name.partition("/")
    return next((family for family in FAMILIES if family.prefix == prefix and rest.isidentifier()), None)


class MethodConfig(BaseModel):
    """A method's hyperparameters: frozen, unknown keys refused, defaults from the paper."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)

    dependent: ClassVar[Mapping[str, frozenset[str]]] = {}
    """Hyperparameters that only have an effect for one value of another hyperparameter, keyed by the latter."""
    earlier: ClassVar[Mapping[str, Any]] = {}
    """Defaults that were others before `defaults: 2` of a search, and what stood for hyperparameters added with it."""

    schedulable: ClassVar[frozenset[str]] = frozenset()
    """Hyperparameters, numbers, that may change during a training: each step reads them from `self.config` anew, or
    `parameter_groups` does. Not one that a validation, a retrieval or a part made at the start depends on."""

    def idle(self) -> dict[str, tuple[str, ...]]:
        """Hyperparameters without effect, each with the ones that disable it; setting such a one is reported."""
        return {}

    def idle_within(self, steps: int) -> dict[str, tuple[str, ...]]:
        """Hyperparameters without effect because a training of `steps` steps is too short, each with the ones whose
        values lie beyond its end."""
        return {}


@lru_cache(1)
def _entries(path: tuple[str, ...]) -> EntryPoints:
    """Of all packages on this path, read once."""
    return cast(EntryPoints, entry_points())  # Python 3.11's other class selects as well


def entries(group: str) -> EntryPoints:
    """What the installed packages announce under a group."""
    return _entries(tuple(sys.path)).select(group=group)


def method_entry_points() -> tuple[EntryPoint, ...]:
    """The packages of methods: the built-in one first, so that no plugin can take its methods' names; it is there
    without an installation too."""
    plugins = (entry for entry in entries(ENTRY_POINTS) if entry.value != BUILT_IN.value)
    return BUILT_IN, *sorted(plugins, key=lambda entry: entry.name)


def unknown_method(name: str, known: Iterable[str], problems: Iterable[str]) -> InputError:
    """The error for a name of no method; `problems` of plugins may be why."""
    reasons = "".join(f"; {problem}" for problem in problems)
    if (Path(name) / "pyproject.toml").is_file():
        reasons += f"; the project in ./{name} is not installed: uv pip install -e ./{name}"
    return InputError(f"unknown method '{name}'{suggestion(name, known, 'orchestrator methods')}{reasons}")


def shadows(folder: Path) -> list[Path]:
    """What in a folder would be imported in place of this tool's packages if Python looked there first."""
    root = Path(__file__).resolve().parents[1]
    names = ((package, name) for package in PACKAGES for name in (Path(package, "__init__.py"), f"{package}.py"))
    modules = ((package, folder / name) for package, name in names)
    return [path for package, path in modules if path.exists() and path.resolve() != root / package / "__init__.py"]
