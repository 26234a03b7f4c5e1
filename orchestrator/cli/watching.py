"""The command for pages that follow a search: watch."""

import errno
from typing import Annotated

import typer

from orchestrator.cli import completing
from orchestrator.cli.options import DEFAULT_STORAGE, Json, Storage, benchmark_of, places_of
from orchestrator.cli.output import print_json
from orchestrator.cli.terminal import echo, has_screen
from orchestrator.errors import InputError
from orchestrator.storage import paths
from orchestrator.storage.outputs import Output

WATCH_PORT = 5050
"""The port of the pages, beside MLflow's."""


class ServedPages(Output):
    address: str


def watch(
    name: Annotated[
        str | None,
        typer.Argument(
            help="A search or a benchmark; without a name, all searches of the storage.",
            metavar="NAME",
            autocompletion=completing.searches,
        ),
    ] = None,
    storage: Storage = DEFAULT_STORAGE,
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port on this machine; 0 takes a free one.")] = WATCH_PORT,
    browser: Annotated[bool, typer.Option("--browser/--no-browser", help="Open a browser, where there is one.")] = True,
    json_: Json = False,
) -> None:
    """Serve the page of a search or benchmark while it runs, or of all, to this machine only; Ctrl-C ends the serving.

    - `orchestrator watch my-search`

    - `orchestrator watch --storage s3://bucket/prefix`
    """
    from orchestrator.cli.serving import Server

    places = places_of(storage)
    places.check_exists()
    path = "/"
    if name is not None:
        if benchmark_of(name, storage) is not None:
            path = f"/benchmarks/{name}/"
        else:
            places.journal(name)
            path = f"/searches/{name}/"
    try:
        server = Server(places, port)
    except OSError as error:
        hint = "another watch may be running there; else " if error.errno == errno.EADDRINUSE else ""
        other = "name another, or 0 for a free one"
        raise InputError(f"--port: {port} cannot be used ({error.strerror}): {hint}{other}") from None
    address = f"http://127.0.0.1:{server.server_port}{path}"
    with server:
        echo(f"{name or paths.display_path(storage)}: {address} (Ctrl-C ends the serving, not the search)", err=True)
        if json_:
            print_json(ServedPages(address=address))
        if browser and has_screen():
            import webbrowser

            webbrowser.open(address)
        try:
            server.serve_forever(poll_interval=0.2)
        except KeyboardInterrupt:
            echo("no longer served", err=True)
