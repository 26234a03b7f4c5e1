"""Parts that other packages announce beside methods: backbones, augmentations, optimisers and metrics.

A package announces a part as an entry point of the group `orchestrator.KIND`, under the part's name. It cannot take the
name of a built-in one.
"""

from collections.abc import Iterable
from typing import TypeVar

from orchestrator.contract import entries
from orchestrator.errors import InputError, is_interrupt

KINDS = ("augmentations", "backbones", "metrics", "optimizers")

Part = TypeVar("Part")
problems: list[str] = []
"""Why an announced part was left out."""


def group(kind: str) -> str:
    """The group of the entry points of a kind."""
    return f"orchestrator.{kind}"


def names(kind: str, built_in: Iterable[str] = ()) -> tuple[str, ...]:
    """Of the announced parts of a kind, sorted, without those that are called like a built-in one."""
    return tuple(sorted({entry.name for entry in entries(group(kind))} - set(built_in)))


def load(kind: str, name: str, wanted: type[Part]) -> Part:
    """The announced part of this name. InputError if it cannot be imported, is something else than `wanted`, or calls
    itself otherwise; or two packages announce it."""
    candidates = sorted(entries(group(kind)), key=lambda entry: entry.name)
    entry, *more = (entry for entry in candidates if entry.name == name)
    packages = [each.dist.name if each.dist else each.value for each in (entry, *more)]
    where = f"{name}: announced under {group(kind)} by {' and '.join(packages)}"
    if more:
        raise InputError(f"{where}: only one of them may be installed")
    try:
        part = entry.load()
    except (Exception, SystemExit, KeyboardInterrupt) as error:  # of any package
        if is_interrupt(error):
            raise
        reason = " ".join(f"{type(error).__name__}: {error}".split())
        raise InputError(f"{where}: {entry.value} cannot be imported: {reason}") from None
    if not isinstance(part, wanted):
        raise InputError(f"{where}: {entry.value} is a {type(part).__name__}, it should be a {wanted.__name__}")
    part_name = getattr(part, "name", name)
    if part_name != name:
        raise InputError(f"{where}: {entry.value} calls itself '{part_name}': announce it by that name")
    return part


def load_all(kind: str, built_in: Iterable[str], wanted: type[Part]) -> tuple[Part, ...]:
    """All announced parts of a kind that can be used; a line for each other one is added to `problems`."""
    loaded = []
    for name in names(kind, built_in):
        try:
            loaded.append(load(kind, name, wanted))
        except InputError as error:
            problems.append(f"{error}; it was left out")
    return tuple(loaded)
