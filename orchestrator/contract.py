"""The part of the Method contract that needs no torch: a method's configuration, and where methods are announced."""

import sys
from collections.abc import Iterable, Mapping
from functools import lru_cache
from importlib.metadata import EntryPoint, EntryPoints, entry_points
from pathlib import Path
from typing import Any, ClassVar, cast

from pydantic import BaseModel, ConfigDict

from orchestrator.errors import InputError
from orchestrator.problems import suggestion

ENTRY_POINTS = "orchestrator.methods"
PACKAGES = ("orchestrator", "methods")
BUILT_IN = EntryPoint("builtin", "methods", ENTRY_POINTS)


class MethodConfig(BaseModel):
    """A method's hyperparameters: frozen, unknown keys refused, defaults from the paper."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)

    dependent: ClassVar[Mapping[str, frozenset[str]]] = {}
    """Hyperparameters that only have an effect for one value of another hyperparameter, keyed by the latter."""
    earlier: ClassVar[Mapping[str, Any]] = {}
    """Defaults that were others before `defaults: 2` of a search, and what stood for hyperparameters added with it."""

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
