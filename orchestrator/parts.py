"""Parts that other packages announce beside methods: backbones, augmentations, optimisers, metrics, and the algorithms
and schedulers of searches.

A package announces a part as an entry point of the group `orchestrator.KIND`, under the part's name. It cannot take the
name of a built-in one.
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, TypeVar, cast

from orchestrator.contract import entries
from orchestrator.errors import InputError, is_interrupt

KINDS = ("algorithms", "augmentations", "backbones", "metrics", "optimizers", "schedulers")

CLASSES = ("schedulers",)
"""Kinds whose parts are classes: of a scheduler each search makes its own."""

Part = TypeVar("Part")
problems: list[str] = []
"""Why an announced part was left out."""


def group(kind: str) -> str:
    """The group of the entry points of a kind."""
    return f"orchestrator.{kind}"


def names(kind: str, built_in: Iterable[str] = ()) -> tuple[str, ...]:
    """Of the announced parts of a kind, sorted, without those that are called like a built-in one."""
    return tuple(sorted({entry.name for entry in entries(group(kind))} - set(built_in)))


def load_part(kind: str, name: str, wanted: type[Part]) -> Part:
    """The announced part of this name: a `wanted`, of schedulers a class that is one. InputError if it cannot be
    imported, is something else, or calls itself otherwise; or two packages announce it."""
    candidates = sorted(entries(group(kind)), key=lambda entry: entry.name)
    entry, *more = (entry for entry in candidates if entry.name == name)
    packages = [each.dist.name if each.dist else each.value for each in (entry, *more)]
    where = f"{name}: announced under {group(kind)} by {' and '.join(packages)}"
    if more:
        raise InputError(f"{where}: only one of them may be installed")
    try:
        part: Any = entry.load()
    except (Exception, SystemExit, KeyboardInterrupt) as error:  # of any package
        if is_interrupt(error):
            raise
        reason = " ".join(f"{type(error).__name__}: {error}".split())
        raise InputError(f"{where}: {entry.value} cannot be imported: {reason}") from None
    if kind in CLASSES:
        if not (isinstance(part, type) and issubclass(part, wanted)):
            raise InputError(f"{where}: {entry.value} should be a subclass of {wanted.__name__}")
    elif not isinstance(part, wanted):
        raise InputError(f"{where}: {entry.value} is a {type(part).__name__}, it should be a {wanted.__name__}")
    part_name = getattr(part, "name", name)
    if part_name != name:
        raise InputError(f"{where}: {entry.value} calls itself '{part_name}': announce it by that name")
    return cast(Part, part)


def load_all(kind: str, built_in: Iterable[str], wanted: type[Part]) -> tuple[Part, ...]:
    """All announced parts of a kind that can be used; a line for each other one is added to `problems`."""
    loaded = []
    for name in names(kind, built_in):
        try:
            loaded.append(load_part(kind, name, wanted))
        except InputError as error:
            problems.append(f"{error}; it was left out")
    return tuple(loaded)


class PartTable(Mapping[str, Any]):
    """The parts of a kind by name: the built-in ones, then those that installed packages announce, which are imported
    when they are asked for. Of these, `table[name]` raises InputError for one that cannot be used; going through the
    table leaves it out, with a line in `problems`."""

    def __init__(self, kind: str, built_in: Mapping[str, Any], wanted: type[Any]) -> None:
        self.kind, self.built_in, self.wanted = kind, built_in, wanted
        self.announced = names(kind, built_in)
        self._loaded: tuple[Any, ...] | None = None

    def __getitem__(self, name: str) -> Any:
        if name in self.built_in:
            return self.built_in[name]
        if name not in self.announced:
            raise KeyError(name)
        return load_part(self.kind, name, self.wanted)

    def __contains__(self, name: object) -> bool:
        return name in self.built_in or name in self.announced

    def __iter__(self) -> Iterator[str]:
        if self._loaded is None:
            self._loaded = load_all(self.kind, self.built_in, self.wanted)
        return iter([*self.built_in, *(part.name for part in self._loaded)])

    def __len__(self) -> int:
        return sum(1 for _ in self)  # `list` would ask for the length
