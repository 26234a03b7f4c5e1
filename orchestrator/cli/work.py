"""The command of a process that joins searches: work."""

import time
from pathlib import Path
from typing import Annotated

import typer

from orchestrator.cli import completing
from orchestrator.cli.options import DEFAULT_STORAGE, disk_folder, not_empty, places_of
from orchestrator.cli.terminal import echo
from orchestrator.errors import InputError
from orchestrator.storage import paths

WAIT_SECONDS = 2.0
"""How often a process that waits for a search looks for one."""


class _Over(InputError):
    """The search has ended, however long one waits."""


def work(
    storage: Annotated[
        Path,
        typer.Argument(
            help="Folder of data sets, searches and runs, which all machines share.",
            envvar=paths.VARIABLE,
            parser=disk_folder("processes join through a folder that all machines share; an object store is none"),
            metavar="STORAGE",
        ),
    ] = DEFAULT_STORAGE,
    search: Annotated[
        str | None,
        typer.Option(
            help="Only this search; by default each that can be joined.",
            metavar="NAME",
            callback=not_empty,
            autocompletion=completing.searches,
        ),
    ] = None,
    idle: Annotated[
        float | None,
        typer.Option(
            min=0, metavar="SECONDS", help="Wait so long for a search or a trial, then end; by default until it ends."
        ),
    ] = None,
    lost_after: Annotated[
        float,
        typer.Option(
            min=5,
            max=86400,
            metavar="SECONDS",
            help="It counts as lost after so long without a sign of life.",
        ),
    ] = 60.0,
) -> None:
    """Train trials of a search that was begun with `--address storage`, and drive it if nobody else does; without Ray.

    Start it as often as trials should run at once, on any machine that sees the storage, at any time.

    - `orchestrator search pfml --address storage --name my-search`, and then on each machine

    - `orchestrator work /shared/runs --search my-search`
    """
    from orchestrator.execution.joiner import Joiner, Silent, find_closure, open_searches

    places = places_of(storage)
    since = time.monotonic()
    ended: set[str] = set()
    refused: list[str] = []

    def next_search() -> str | None:
        """The search to join; None if it may come. InputError if there is none."""
        if not places.storage.is_dir():
            raise InputError(f"STORAGE: there is no folder {places.storage}: name that of a search's --storage")
        if not (places.storage / "searches").is_dir():
            raise InputError(f"STORAGE: {places.storage} holds no search: name the folder of a search's --storage")
        if search is None:
            names = [name for name in open_searches(places) if name not in ended]
            return names[0] if names else None
        if (end := find_closure(places.journal(search).parent)) is None:
            return search
        if not end.resumable:
            raise _Over(f"search '{search}' {end.reason}")
        again = f"orchestrator resume {search}{paths.in_command(places.storage)} --address storage"
        raise InputError(f"search '{search}' {end.reason}; go on with: {again}")

    announced = False
    while True:
        waits = idle is not None and time.monotonic() - since < idle
        try:
            name = next_search()
        except InputError as error:
            if not waits or isinstance(error, _Over):
                raise
            name = None
        if name is None:
            if waits:
                if not announced:
                    announced = True
                    wanted = f"search '{search}'" if search is not None else "a search"
                    echo(f"waits for {wanted} in {places.storage} (--idle {idle:g})", err=True)
                time.sleep(WAIT_SECONDS)
                continue
            if ended and len(refused) == len(ended):
                raise InputError(f"no search under {places.storage} can be joined: {', '.join(refused)}: see above")
            if not ended:
                advice = "begin one with: orchestrator search ... --address storage"
                raise InputError(f"no search under {places.storage} can be joined: {advice}")
            break
        try:
            joiner = Joiner(places, name, lost_after, idle, say=lambda line: echo(line, err=True))
            echo(f"joined {name}", err=True)
            ending = joiner.serve()
        except Silent:
            echo(f"{name}: no sign of life for {lost_after:g} s, as of a suspended process: joining again", err=True)
            continue
        except InputError as error:
            if search is not None:
                raise
            echo(f"cannot join {name}: {error}", err=True)
            ended.add(name)
            refused.append(name)
            continue
        ended.add(name)
        echo(f"left {name}: {ending.reason}; trained {ending.trained} of its trials", err=True)
        if search is not None or ending.reason == "idle":
            break
        since = time.monotonic()
