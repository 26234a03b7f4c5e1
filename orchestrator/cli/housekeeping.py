"""The commands that keep a storage in order: delete, rename, tag, note."""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from orchestrator.cli.options import DEFAULT_STORAGE, SEARCH_NAMES, Json, SearchName, Storage, TrackingUri, places_of
from orchestrator.cli.output import print_json
from orchestrator.cli.terminal import echo
from orchestrator.errors import InputError
from orchestrator.storage import paths
from orchestrator.storage.outputs import Output


class DeletedRuns(Output):
    """What became of a search's runs at one address of MLflow."""

    address: str
    deleted: int
    problem: str | None


class DeletedSearches(Output):
    deleted: list[str]
    runs: list[DeletedRuns]


class Renamed(Output):
    renamed: str
    name: str


class LabelsOutput(Output):
    """The tags of a search, in the order in which they were added, and its note."""

    tags: list[str]
    note: str


def delete(
    name: Annotated[str, typer.Argument(help=SEARCH_NAMES[1], metavar="NAME")],
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    keep_runs: Annotated[bool, typer.Option("--keep-runs", help="Leave its runs in MLflow as they are.")] = False,
    storage: Storage = DEFAULT_STORAGE,
    tracking_uri: TrackingUri = None,
    json_: Json = False,
) -> None:
    """Delete a search, with its models and its runs in MLflow; or a benchmark with its searches.

    A running one is refused. MLflow can restore the runs until `mlflow gc`; the files cannot be restored.

    - `orchestrator delete my-search`

    - `orchestrator delete my-search --yes --keep-runs`
    """
    from orchestrator.search.housekeeping import delete as delete_search
    from orchestrator.search.housekeeping import to_delete
    from orchestrator.text import pluralize

    places = places_of(storage)
    names = to_delete(name, places)
    what = (
        f"search '{name}'"
        if names == [name]
        else f"benchmark '{name}' and {pluralize(len(names), 'search', 'searches')}"
    )
    if not yes:
        if not sys.stdin.isatty():
            raise InputError(f"delete: removes {what} and all its models for good: confirm it with --yes")
        runs = "" if keep_runs else " and runs in MLflow"
        if not typer.confirm(f"Delete {what}, with all models{runs}, from {paths.display_path(storage)}?", err=True):
            echo("nothing is deleted", err=True)
            raise typer.Exit(1)
    done = delete_search(name, places, tracking_uri=tracking_uri, keep_runs=keep_runs)
    if json_:
        gone = [DeletedRuns(address=one.address, deleted=one.runs, problem=one.problem) for one in done.runs]
        print_json(DeletedSearches(deleted=done.searches, runs=gone))
        return
    echo(f"deleted {what}")
    for one in done.runs:
        if one.problem is not None:
            echo(f"its {'other ' if one.runs else ''}runs in MLflow at {one.address} stay: {one.problem}", err=True)
        if one.runs or one.problem is None:
            echo(
                f"{pluralize(one.runs, 'run')} deleted in MLflow at {one.address}; mlflow gc frees their files",
                err=True,
            )


def rename(
    name: SearchName,
    new: Annotated[str, typer.Argument(help="Its new name.", metavar="NEW")],
    storage: Storage = DEFAULT_STORAGE,
    json_: Json = False,
) -> None:
    """Give a search another name. Its runs in MLflow keep the old one.

    - `orchestrator rename demo-20261122-171816 first-look`
    """
    from orchestrator.search.housekeeping import rename as rename_search

    rename_search(name, new, places_of(storage))
    if json_:
        print_json(Renamed(renamed=name, name=new))
        return
    echo(f"{name} is called {new}; its runs in MLflow keep the name {name}")


def tag(
    name: SearchName,
    tags: Annotated[list[str] | None, typer.Argument(help="Tags to add.", metavar="TAG...")] = None,
    remove: Annotated[list[str], typer.Option("--remove", metavar="TAG", help="Remove a tag; repeat as needed.")] = [],  # noqa: B006 (typer reads the default)
    storage: Storage = DEFAULT_STORAGE,
    json_: Json = False,
) -> None:
    """Tag a search, to find it by `list --tag`; without tags, show those that it has.

    - `orchestrator tag my-search paper baseline`

    - `orchestrator tag my-search --remove baseline`

    - `orchestrator list --tag paper`
    """
    _label(name, storage, add=tags or [], remove=remove, as_json=json_)


def note(
    name: SearchName,
    text: Annotated[str | None, typer.Argument(help='The note; "" removes it.', metavar="TEXT")] = None,
    storage: Storage = DEFAULT_STORAGE,
    json_: Json = False,
) -> None:
    """Write a note to a search, which `status` shows; without TEXT, show it.

    - `orchestrator note my-search "the learning rate was too high"`
    """
    _label(name, storage, note=text, as_json=json_)


def _label(
    name: str,
    storage: Path,
    *,
    add: Sequence[str] = (),
    remove: Sequence[str] = (),
    note: str | None = None,
    as_json: bool,
) -> None:
    from orchestrator.search.housekeeping import label

    labels = label(name, places_of(storage), add=add, remove=remove, note=note)
    if as_json:
        print_json(LabelsOutput(tags=labels.tags, note=labels.note))
        return
    echo(f"tags: {', '.join(labels.tags) or 'none'}")
    echo(f"note: {labels.note or 'none'}")
