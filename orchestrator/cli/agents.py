"""The command for programs that speak the Model Context Protocol: mcp."""

import contextlib
import inspect
import io
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from orchestrator.cli import results, searches
from orchestrator.cli.options import DEFAULT_STORAGE, Storage, places_of
from orchestrator.errors import FULL, REVIEW, InputError
from orchestrator.problems import complaints, suggestion

if TYPE_CHECKING:
    from mcp.server import MCPServer

CONSENT = ("start", "stop")
"""The tools that start or stop work."""
REFUSED = "refused: this server was started without --allow-start, which is the consent to start and stop work"
START_SECONDS = 120.0
"""How long `start` waits for a search to show that it runs."""
DRIVE = """
import json, sys
import orchestrator as dml

try:
    dml.search(**json.loads(sys.argv[1]), progress=False)
except (dml.InputError, dml.TrainingFailed) as error:
    with open(sys.argv[2], "w", encoding="utf-8") as file:
        json.dump(getattr(error, "problems", [str(error)]), file)
    sys.exit(f"error: {error}")
"""
"""A process that drives a search beyond the server's end; into the file that is given it writes why it refuses."""

_one_at_a_time = threading.Lock()


def mcp(
    allow_start: Annotated[
        bool, typer.Option("--allow-start", help="Also offer tools that start and stop searches.")
    ] = False,
    storage: Storage = DEFAULT_STORAGE,
) -> None:
    """Offer the searches of a storage to a program that speaks the Model Context Protocol (MCP), over stdin and stdout.

    The program starts this command itself; its tools are list, status and report, and with --allow-start also start
    and stop. Their answers are those of the commands with --json.

    - `orchestrator mcp --storage runs`

    - `orchestrator mcp --allow-start`
    """
    _server(storage, allow_start=allow_start).run("stdio")


def _server(storage: Path, *, allow_start: bool) -> "MCPServer":
    """The server with its tools."""
    from mcp.server import MCPServer
    from mcp.server.mcpserver.exceptions import ToolError
    from mcp.types import ToolAnnotations
    from pydantic import ValidationError

    from orchestrator.storage.provenance import versions

    class Server(MCPServer):
        """Says why a tool is not offered."""

        async def call_tool(self, name: str, arguments: dict[str, Any], *more: Any, **keywords: Any) -> Any:
            """Calls a tool. ToolError without the consent that it needs, for an argument that it does not have, and for
            one that is missing or of a wrong type."""
            if name in CONSENT and not allow_start:
                raise ToolError(f"{name}: {REFUSED}")
            if (keys := schemas.get(name)) is not None:
                known_keys, required = keys
                problems = [
                    f"no argument '{key}'{suggestion(key, known_keys)}; it has: {', '.join(known_keys) or 'none'}"
                    for key in arguments
                    if key not in known_keys
                ]
                problems += [f"argument '{key}' is missing" for key in required if key not in arguments]
                if problems:
                    raise ToolError(f"{name}: {'; '.join(problems)}")
            try:
                return await super().call_tool(name, arguments, *more, **keywords)
            except ToolError as error:
                if isinstance(wrong := error.__cause__, ValidationError):
                    raise ToolError(f"{name}: {'; '.join(map(str, complaints(wrong)))}") from None
                raise

    @contextlib.contextmanager
    def refusals() -> Iterator[None]:
        try:
            yield
        except InputError as error:
            raise ToolError("; ".join(str(error).splitlines())) from None

    def answer(command: Callable[..., None], *args: Any) -> str:
        with refusals():
            return _answer(command, *args, storage=storage)

    def list_() -> str:
        """The searches and trainings of the storage, the newest first, each with its state, data set and best value."""
        return answer(searches.list_)

    def status(name: str) -> str:
        """The progress of a search or a benchmark: state, trials, the best so far, seconds left."""
        return answer(searches.status, name)

    def report(name: str) -> str:
        """What a search or a benchmark found out, also while it runs: its trials, the best one, the tests of the final
        runs, and the next steps that its results suggest, each with a command."""
        return answer(results.report, name)

    def start(
        search: str | dict[str, Any],
        name: str | None = None,
        dataset: str | None = None,
        preset: str | None = None,
        epochs: int | None = None,
        num_trials: int | None = None,
        settings: dict[str, Any] | None = None,
        space: dict[str, Any] | None = None,
    ) -> str:
        """Start a search, and answer with its status once it runs. It goes on when this server ends.

        Args:
            search: a shipped search or a method by name, a search file, or a file's content.
            space: what is searched, in place of the file's.
            settings: fixed settings of each training.
        """
        arguments: dict[str, Any] = {"dataset": dataset, "preset": preset, "epochs": epochs, "num_trials": num_trials}
        arguments |= {"what": search, "settings": settings, "space": space}
        arguments = {key: value for key, value in arguments.items() if value is not None}
        with refusals():
            started = _start(arguments, name, storage)
        return answer(searches.status, started)

    def stop(name: str) -> str:
        """Stop a running search or benchmark; `orchestrator resume` continues from each trial's last validation."""
        return answer(searches.stop, name)

    server = Server("orchestrator", version="".join([*versions([FULL, REVIEW]).values()][:1]), log_level="WARNING")
    schemas: dict[str, tuple[list[str], list[str]]] = {}
    offered: list[Callable[..., str]] = [list_, status, report, *((start, stop) if allow_start else ())]
    for tool in offered:
        name, about = tool.__name__.rstrip("_"), inspect.cleandoc(tool.__doc__ or "")
        note = ToolAnnotations(read_only_hint=name not in CONSENT)
        server.add_tool(tool, name, description=about, annotations=note, structured_output=False)
        parameters = inspect.signature(tool).parameters.values()
        schemas[name] = [one.name for one in parameters], [one.name for one in parameters if one.default is one.empty]
    return server


def _answer(command: Callable[..., None], *args: Any, **options: Any) -> str:
    """What a command prints with `--json`; what it says beside that goes to standard error."""
    output = io.StringIO()
    with _one_at_a_time, contextlib.redirect_stdout(output):
        command(*args, **options, json_=True)
    return output.getvalue().splitlines()[-1]


def _start(search_arguments: dict[str, Any], name: str | None, storage: Path) -> str:
    """Start a search in a process of its own, and wait until it runs. Its name; InputError with what is wrong."""
    from orchestrator.search.beginning import fresh_name
    from orchestrator.storage.places import JOURNAL, has_started

    what = search_arguments["what"]
    name = name or fresh_name(Path(what).stem if isinstance(what, str) else "search")
    places = places_of(storage)
    places.new_journal(name)
    folder = places.search(name)
    arguments = json.dumps(search_arguments | {"name": name, "storage": str(places.storage)})
    with tempfile.TemporaryFile() as log, tempfile.NamedTemporaryFile() as refusal:
        driver = subprocess.Popen(
            [sys.executable, "-c", DRIVE, arguments, refusal.name],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
            env=os.environ | {"PYTHONUNBUFFERED": "1"},
        )
        end = time.monotonic() + START_SECONDS
        while not has_started(folder / JOURNAL) and time.monotonic() < end:
            if driver.poll() is not None:
                if problems := refusal.read():
                    raise InputError(*json.loads(problems))
                log.seek(0)
                lines = log.read().decode(errors="replace").strip().splitlines()
                raise InputError(*(lines or [f"the search ended with code {driver.returncode}"]))
            time.sleep(0.2)
    return name
