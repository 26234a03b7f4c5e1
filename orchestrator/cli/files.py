"""The commands for writing search files: `init` and `schema`."""

import json
import shlex
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from orchestrator.cli import completing
from orchestrator.cli.options import Json, local_path, not_empty
from orchestrator.cli.output import plain, print_json, say, write_output
from orchestrator.cli.terminal import echo
from orchestrator.cli.written import Written
from orchestrator.errors import DataError, InputError, Problems
from orchestrator.search.lab import in_force
from orchestrator.storage.paths import DEFAULT_STORAGE

ENDINGS = (".yaml", ".yml")
SCALES: dict[str, Any] = {"lr": {"low": 1e-4, "high": 1e-2, "log": True}}
"""What a search of a method without a shipped one searches."""


def init(
    file: Annotated[
        Path | None,
        typer.Argument(help="The file to write; METHOD.yaml by default.", metavar="FILE", parser=local_path),
    ] = None,
    method: Annotated[
        str | None,
        typer.Option(
            help="Name of the method; asked for otherwise.",
            metavar="NAME",
            callback=not_empty,
            autocompletion=completing.methods,
        ),
    ] = None,
    dataset: Annotated[
        str | None,
        typer.Option(
            help="Name of the data set; asked for otherwise.",
            metavar="NAME",
            callback=not_empty,
            autocompletion=completing.datasets,
        ),
    ] = None,
    json_: Json = False,
) -> None:
    """Write a search file to begin with, each line with its meaning, and beside it the schema for editors.

    - `orchestrator init pfml --dataset glyphs`

    - `orchestrator init my_search.yaml --method pfml --dataset glyphs`

    - `orchestrator search my_search.yaml --dry-run`
    """
    from orchestrator.config.schema import SCHEMA_FILE
    from orchestrator.plugins import find_installed, is_method

    if method is None and file is not None and is_method(str(file)):
        method, file = str(file), None
    missing = [name for name, value in (("--method", method), ("--dataset", dataset)) if value is None]
    if missing and not sys.stdin.isatty():
        problems = Problems()
        with problems.collect():
            raise InputError(f"{', '.join(missing)}: missing (see orchestrator init --help)")
        with problems.collect():
            if method is not None:
                find_installed(method)
        problems.tell()
    method = method or _ask("Which method", "proxy_anchor")
    find_installed(method)
    dataset = dataset or _ask("Which data set", "glyphs")
    path = file or Path(f"{method.rpartition('/')[2]}.yaml")
    if path.suffix.lower() not in ENDINGS:
        raise InputError(f"FILE: {path}: should end in .yaml")
    if path.exists():
        raise InputError(f"FILE: {path}: exists; name another file, or remove it")
    in_force("storage")  # a wrong file of defaults is refused before anything is written
    text = search_text(method, dataset, path.name)
    write_output("FILE", path, lambda place: _write(place, text), "search")
    _note_unknown(dataset)
    beside = path.parent / SCHEMA_FILE
    if not beside.exists():
        schema(beside)
    if json_:
        print_json(Written(path=str(path), editor_schema=str(beside), method=method, dataset=dataset))
        return
    echo(f"look at it, then:  orchestrator search {in_command(str(path))} --dry-run", err=True)


def _note_unknown(dataset: str) -> None:
    """Say that a data set is not there; it may be prepared after the file is written."""
    from orchestrator.data.catalog import check_known
    from orchestrator.storage.address import is_address

    storage = in_force("storage") or str(DEFAULT_STORAGE)
    if is_address(dataset) or is_address(storage):
        return
    try:
        check_known(dataset, Path(storage).expanduser().resolve() / "data")
    except DataError as error:
        say(f"note: {error}; prepare it before the search: orchestrator datasets prepare --help")


def schema(
    output: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write it to this file.", parser=local_path)
    ] = None,
    of: Annotated[
        Literal["searches", "outputs"],
        typer.Option("--of", help="Of search files, or of what commands print with --json.", show_choices=True),
    ] = "searches",
    json_: Json = False,
) -> None:
    """The JSON schema of search files with the installed methods, by which editors check and complete them.

    Its name goes into the first line of a search file: `# yaml-language-server: $schema=search.schema.json`.

    `--of outputs`: the schema of what each command prints with `--json`, for scripts.

    - `orchestrator schema --output search.schema.json`

    - `orchestrator schema --of outputs --output outputs.schema.json`
    """
    if of == "outputs":
        from orchestrator.cli.outputs import outputs_schema

        text = json.dumps(outputs_schema())
    else:
        from orchestrator.config.schema import search_schema
        from orchestrator.plugins import installed_methods

        text = json.dumps(search_schema(installed_methods()))
    if output is None:
        print(text)
    else:
        write_output("--output", output, lambda place: _write(place, text + "\n"), "schema", (".json",))
        if json_:
            print_json(Written(path=str(output)))


def search_text(method: str, dataset: str, name: str) -> str:
    """A search file for a method: its shipped space, or one over the learning rate, with a meaning in each line."""
    from orchestrator.config.algorithms import ALGORITHMS
    from orchestrator.config.files import quote, read_yaml, shipped_searches
    from orchestrator.config.keys import KEYS
    from orchestrator.config.limits import AUTO
    from orchestrator.config.schedulers import SCHEDULERS
    from orchestrator.config.schema import COMMENT
    from orchestrator.config.search import VALIDATION_METRICS
    from orchestrator.config.training import Training
    from orchestrator.plugins import find_installed

    shipped = shipped_searches()
    raw: Mapping[str, Any] = read_yaml(shipped[method]) if method in shipped else {}
    fields = {**Training.model_fields, **find_installed(method).fields.model_fields}
    settings = {"epochs": 20} | dict(raw.get("settings", {}))
    space = raw["space"] if isinstance(raw.get("space"), dict) and raw["space"] else SCALES
    settings = {key: value for key, value in settings.items() if key not in space}
    others = [key for key in find_installed(method).fields.model_fields if key not in {*space, *settings}]
    rest = {key: raw[key] for key in ("scheduler", "objective") if key in raw}
    lines: list[tuple[str, str]] = [
        (f"description: {quote(f'A search over the hyperparameters of {method}.')}", ""),
        (f"method: {quote(method)}", "orchestrator methods"),
        (f"dataset: {quote(dataset)}", "orchestrator datasets"),
        ("settings:", f"fixed; all: orchestrator settings, orchestrator methods {method}"),
        *((f"  {key}: {plain(value)}", fields[key].description or "") for key, value in settings.items()),
        *(
            (f"  # {key}: {plain(fields[key].default)}", fields[key].description or "")
            for key in others
            if not fields[key].is_required()
        ),
        ("space:", "searched: a range {low: 0.1, high: 1, log: true} or a list of choices [1, 2, 4]"),
        *((f"  {key}: {plain(value)}", fields[key].description or "") for key, value in space.items()),
        (f"algorithm: {AUTO}", f"or {', '.join(ALGORITHMS)}"),
        ("num_trials: 40", KEYS["num_trials"].meaning),
        ("# budget: {hours: 8}", "or epochs, gpu_hours, cpu_hours, trials_without_improvement"),
        (f"scheduler: {plain(rest.get('scheduler', AUTO))}", f"early stops: {', '.join((AUTO, *SCHEDULERS))}"),
        (f"objective: {plain(rest.get('objective', 'val/map_at_r'))}", f"or {', '.join(VALIDATION_METRICS[1:])}"),
        ("# final_trials: 3", "how many of the best trials are trained again and tested"),
        ("# final_seeds: 5", "how often each of them, with consecutive seeds"),
        ("seed: 0", KEYS["seed"].meaning),
    ]
    head = f"# What it resolves to, and what it will cost: orchestrator search {in_command(name)} --dry-run"
    commented = [f"{line}  # {comment}" if comment else line for line, comment in lines]
    return "\n".join([COMMENT.rstrip(), head, *commented, ""])


def in_command(path: str) -> str:
    """A path as a word of a printed command, in one line."""
    return shlex.quote(path) if path.isprintable() else ascii(path)


def _ask(question: str, default: str) -> str:
    return str(typer.prompt(question, default=default, err=True))


def _write(path: Path, text: str) -> None:
    from orchestrator.storage.atomic import write_whole

    write_whole(path, text.encode())
