"""Searches after their end: their tags and notes, another name, and their deletion. A search that runs is refused.

A name is that of the search's folder, so that a search is renamed by renaming the folder. To delete one, its runs in
the tracker are deleted first and its folder last: after a kill in between, the same command does the rest.
"""

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from orchestrator.errors import InputError
from orchestrator.problems import Operand, Option, Problem
from orchestrator.storage.folder import Folder, faults_as_input_errors
from orchestrator.storage.journal import JournalError, hold, refresh
from orchestrator.storage.labels import Labels, read_labels, write_labels
from orchestrator.storage.ledger import BENCHMARK
from orchestrator.storage.paths import address_of, display_path
from orchestrator.storage.places import JOURNAL, Places, check_name, has_started, writable
from orchestrator.storage.presence import driver, living_driver
from orchestrator.storage.reading import read_journal
from orchestrator.tracking.trackers import Deletion, delete_runs


def label(
    name: str, places: Places, *, add: Sequence[str] = (), remove: Sequence[str] = (), note: str | None = None
) -> Labels:
    """Add and remove tags of a search, or replace its note ("" removes it); also while it runs."""
    folder = places.journal(name).parent
    before = read_labels(folder)
    if unknown := [tag for tag in remove if tag not in before.tags]:
        has = f"its tags are {', '.join(before.tags)}" if before.tags else "it has none"
        raise InputError(
            Problem((Option("remove"), Operand(f"{unknown[0]}")), rule=f"'{name}' has no such tag ({has})")
        )
    tags = [tag for tag in dict.fromkeys([*before.tags, *add]) if tag not in remove]
    after = Labels.of(tags, before.note if note is None else note)
    if after != before:
        _check_writable(folder)
        with faults_as_input_errors():
            write_labels(folder, after)
    return after


def rename(name: str, new: str, places: Places) -> None:
    """Give a search another name. InputError if it runs, if it is one of a benchmark's, or if the name is taken.

    In an object store its objects are copied and then deleted; after a kill in between, the same call goes on.
    """
    check_name(new, "NEW")
    if new == name:
        raise InputError(f"NEW: '{name}' is its name already")
    old, there = places.search(name), places.search(new)
    refresh(there / JOURNAL)
    is_begun = has_started(there / JOURNAL) and _same_search(places.journal(name), there / JOURNAL)
    if (has_started(there / JOURNAL) and not is_begun) or places.has_benchmark(new):
        raise InputError(f"NEW: '{new}' exists in {display_path(places.storage)}: choose another name")
    journal = places.journal(name)
    if (benchmark := read_journal(journal)[1].tags.get(BENCHMARK)) is not None:
        raise InputError(
            f"NAME: '{name}' is part of the benchmark '{benchmark}', which finds its searches by their names"
        )
    _check_writable(old.parent)
    with _idle(old, "rename"), faults_as_input_errors():
        Folder(old).move(there)


@dataclass(frozen=True)
class Deleted:
    """What `delete` did: the names of the deleted searches, and what became of their runs in MLflow."""

    searches: list[str] = field(default_factory=list)
    runs: list[Deletion] = field(default_factory=list)


def to_delete(name: str, places: Places) -> list[str]:
    """The searches that `delete` deletes: a search, what is left of one, or a benchmark's searches. InputError if there
    is none of this name, or if it belongs to a benchmark."""
    from orchestrator.search.benchmark import find_benchmark

    folder = places.search(name)
    _refresh_quietly(folder / JOURNAL)
    if not Folder(folder).is_empty():
        part_of = None
        with contextlib.suppress(InputError):  # a damaged one can be deleted
            if has_started(folder / JOURNAL):
                benchmark = read_journal(folder / JOURNAL)[1].tags.get(BENCHMARK)
                part_of = benchmark if benchmark is not None and places.has_benchmark(str(benchmark)) else None
        if part_of is not None:
            raise InputError(
                f"NAME: '{name}' is part of the benchmark '{part_of}': delete that: orchestrator delete {part_of}"
            )
        return [name]
    if places.has_benchmark(name) and (found := find_benchmark(places, name)) is not None:
        members = map(found.member, found.labels)
        return [member for member in members if not Folder(places.search(member)).is_empty()]
    places.journal(name)  # refuses it, with the names that there are
    raise AssertionError


def delete(name: str, places: Places, *, tracking_uri: str | None = None, keep_runs: bool = False) -> Deleted:
    """Delete a search, or a benchmark and its searches: its files, and (unless `keep_runs`) its runs in MLflow, where
    they can be restored. InputError, before anything is deleted, if one of them runs."""
    done = Deleted()
    names = to_delete(name, places)
    home = places.benchmark(name)
    benchmark = places.has_benchmark(name) and name not in names
    with contextlib.ExitStack() as stack:
        if benchmark and driver(home):
            raise InputError(f"delete: benchmark '{name}' is running: stop it first: orchestrator stop {name}")
        for one in names:
            stack.enter_context(_idle(places.search(one), "delete"))
        _check_writable(places.storage)  # before its runs are deleted
        for one in names:
            if not keep_runs:
                done.runs.extend(delete_runs(places.search(one) / JOURNAL, places, tracking_uri))
            with faults_as_input_errors():
                Folder(places.search(one)).delete()
            done.searches.append(one)
        if benchmark:
            if not keep_runs:
                done.runs.extend(delete_runs(home / JOURNAL, places, tracking_uri))
            with faults_as_input_errors():
                Folder(home).delete()
    return done


def _check_writable(folder: Path) -> None:
    """InputError if a folder of a disk cannot be written; an object store says so itself."""
    if address_of(folder) is None:
        writable(folder, remedy="do this from an account and a machine that can write there")


def _refresh_quietly(journal: Path) -> None:
    """Update the working copy of a journal, as far as it can be read."""
    with contextlib.suppress(InputError, JournalError):
        refresh(journal)


@contextlib.contextmanager
def _idle(folder: Path, doing: str) -> Iterator[None]:
    """While this holds, no process can begin to drive the search in a folder. InputError if one drives it now."""
    name = folder.name
    with faults_as_input_errors():
        alive = driver(folder) or living_driver(folder)
    running = InputError(f"{doing}: search '{name}' is running: stop it first: orchestrator stop {name}")
    if alive is not None:
        raise running
    with hold(folder / JOURNAL) as free:
        if not free:
            raise running
        yield


def _same_search(one: Path, other: Path) -> bool:
    return read_journal(one)[1].search_id == read_journal(other)[1].search_id
