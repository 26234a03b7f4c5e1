"""The commands for results: reports, comparisons, MLflow's pages."""

import contextlib
import errno
import os
import signal
import socket
import subprocess
import threading
import time
import webbrowser
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated

import typer

from orchestrator.cli.options import (
    DEFAULT_STORAGE,
    PORT,
    Format,
    Json,
    SearchName,
    Storage,
    TrackingUri,
    benchmark_of,
    check_format,
    local_path,
    places_of,
    refuse_benchmark,
)
from orchestrator.cli.output import print_json, show_across, show_comparison, tell_notes, write_html
from orchestrator.cli.terminal import Terminal, echo, has_screen
from orchestrator.errors import InputError, missing_part, redact
from orchestrator.storage import paths


def compare(
    names: Annotated[list[str], typer.Argument(help="Searches, or one benchmark.", metavar="NAME...")],
    storage: Storage = DEFAULT_STORAGE,
    format_: Format = "table",
    html: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Write the comparison as one page that needs no network.", parser=local_path),
    ] = None,
    margin: Annotated[
        float | None,
        typer.Option(
            metavar="DIFFERENCE", help="Test whether two are equal within this difference too, by two one-sided tests."
        ),
    ] = None,
    json_: Json = False,
) -> None:
    """Compare searches by the tests of their winners: which is better, by how much, and how sure that is.

    Searches with another protocol or another selection cannot be compared. On several data sets, with one search of
    each method on each, methods are compared on each, and summarised over the data sets.

    - `orchestrator compare pfml-a proxy_anchor-b`

    - `orchestrator compare my-benchmark --html comparison.html`
    """
    from orchestrator.report.across import Across, compare_searches, data_sets_of
    from orchestrator.report.formats import format_of
    from orchestrator.search.benchmark import benchmark_comparison, find_benchmark
    from orchestrator.search.models import read_search

    check_format(format_, as_json=json_)
    if margin is not None and not 0 < margin < 1:
        raise InputError(f"--margin: {margin:g}: need a difference between 0 and 1, such as 0.01")
    places = places_of(storage)
    benchmark = find_benchmark(places, names[0]) if len(names) == 1 else None
    if benchmark is not None:
        comparison, searches = (
            benchmark_comparison(benchmark, places, margin),
            {label: benchmark.member(label) for label in benchmark.labels},
        )
    else:
        if len(set(names)) < 2:
            what = "is named twice" if len(names) > 1 else "is one search"
            raise InputError(f"NAME: {names[0]} {what}; name two or more searches, or one benchmark")
        for name in names:
            refuse_benchmark(name, storage, "compare it alone, or name searches of it")
        ledgers = {name: read_search(name, storage)[0] for name in names}
        for ledger in ledgers.values():
            tell_notes(ledger)
        if (number := len(data_sets_of(ledgers))) > 1 and (html is not None or format_ != "table"):
            only = "--html" if html is not None else "--format"
            raise InputError(f"{only}: is for searches on one data set; these are on {number}")
        result = compare_searches(" and ".join(names), ledgers, paths.option(storage), margin)
        if isinstance(result, Across):
            show_across(result, as_json=json_)
            return
        comparison, searches = result, {name: name for name in names}
    if html is not None:
        from orchestrator.report.html.comparison_page import write_comparison

        pages = places.pages_seen_from(html.parent, searches)
        write_html("--html", html, lambda path: write_comparison(comparison, path, pages), "comparison")
    if format_ != "table":
        print(format_of(format_).comparison(comparison), end="")
    elif json_ or html is None:
        show_comparison(comparison, as_json=json_)


def report(
    name: SearchName,
    storage: Storage = DEFAULT_STORAGE,
    format_: Format = "table",
    html: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="Write the whole report as one page that needs no network.", parser=local_path
        ),
    ] = None,
    json_: Json = False,
) -> None:
    """Show what a search found out, also while it runs.

    - `orchestrator report my-search`

    - `orchestrator report my-search --html report.html`

    - `orchestrator report my-search --format csv > leaderboard.csv`
    """
    from orchestrator.cli.tables import first_and_last, leaderboard
    from orchestrator.report.formats import format_of
    from orchestrator.report.summary import summary
    from orchestrator.search.models import read_search

    check_format(format_, as_json=json_)
    if benchmark_of(name, storage) is not None:
        compare([name], storage, format_, html, json_=json_)
        return
    ledger, journal = read_search(name, storage)
    tell_notes(ledger)
    if html is not None:
        from orchestrator.report.confused import confused_classes
        from orchestrator.report.findings import Findings
        from orchestrator.report.html.search_page import write_page

        findings = Findings.of(ledger, confused_classes(ledger, journal.parent), paths.option(storage), journal.parent)
        write_html("--html", html, lambda path: write_page(findings, path), f"report of {name}")
    if json_:
        print_json(summary(ledger, journal))
    elif format_ != "table":
        print(format_of(format_).leaderboard(ledger), end="")
    elif html is None:
        terminal = Terminal()
        first, last = first_and_last(ledger, storage, terminal.width, journal.parent)
        terminal.print(first, soft_wrap=True)
        terminal.print(leaderboard(ledger))
        terminal.print(last, soft_wrap=True)


def ui(
    name: Annotated[str | None, typer.Argument(help="Open on this search.", metavar="NAME")] = None,
    storage: Storage = DEFAULT_STORAGE,
    tracking_uri: TrackingUri = None,
    port: Annotated[int, typer.Option(min=1, max=65535, help="Port on this machine.")] = PORT,
    browser: Annotated[bool, typer.Option("--browser/--no-browser", help="Open a browser, where there is one.")] = True,
    json_: Json = False,
) -> None:
    """Look at the searches in MLflow, on this machine only; of NAME, at its leaderboard.

    - `orchestrator ui`

    - `orchestrator ui my-search`
    """
    from orchestrator.cli.tables import landing
    from orchestrator.tracking.address import (
        SQLITE,
        check_tracking_uri,
        database_path,
        default_tracking_uri,
        ui_command,
        ui_environment,
    )
    from orchestrator.tracking.own_database import follow
    from orchestrator.tracking.ui_output import ServedTracker

    if find_spec("mlflow") is None:
        raise InputError(f"{missing_part('mlflow')}; pages without it: orchestrator watch")
    places = places_of(storage)
    uri = check_tracking_uri(tracking_uri) if tracking_uri else default_tracking_uri(places.storage)
    if tracking_uri is None and not (places.storage / "mlflow.db").exists():
        raise InputError(_no_runs(places.storage))
    if uri.startswith(SQLITE):
        follow(database_path(uri), places.artifacts)
    command = ui_command(uri, places.artifacts, port)
    address = f"http://127.0.0.1:{port}"
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError as error:
            hint = f"another ui may be running at {address}; else " if error.errno == errno.EADDRINUSE else ""
            raise InputError(
                f"--port: {port} cannot be used ({error.strerror}): {hint}name another, such as {port + 1}"
            ) from None
    if name is not None:
        refuse_benchmark(name, storage, "name a search of it")
        address = landing(places.journal(name), uri, port)
    if json_:
        print_json(ServedTracker(tracking_uri=redact(uri), address=address))
    echo(f"MLflow on {redact(uri)}: {address} (takes some seconds; Ctrl-C ends it)", err=True)
    # the server's lines about requests are no part of the JSON: who reads that alone would let the pipe fill up
    lines = 2 if json_ else None  # 2: stderr
    with subprocess.Popen(command, env=os.environ | ui_environment(uri), stdout=lines, process_group=0) as server:
        try:
            if browser:
                threading.Thread(target=_open_browser, args=(address, port, server), daemon=True).start()
            code = server.wait()
        except (KeyboardInterrupt, SystemExit):  # perhaps of this process only: end the server's processes too
            with contextlib.suppress(ProcessLookupError):
                os.killpg(server.pid, signal.SIGTERM)
            code = 0
    raise typer.Exit(code)


def _no_runs(storage: Path) -> str:
    if paths.address_of(storage) is None:
        return f"--storage: {storage} holds no runs yet; start with: orchestrator search demo"
    return f"--storage: this machine tracked no search of {paths.display_path(storage)}: orchestrator sync NAME does it"


def _open_browser(address: str, port: int, server: "subprocess.Popen[bytes]") -> None:
    """Open a browser once the server answers; not without a screen, since a text browser would occupy the terminal."""
    if not has_screen():
        return
    while server.poll() is None:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
            webbrowser.open(address)
            return
        time.sleep(0.5)
