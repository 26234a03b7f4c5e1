"""Commands, functions and search files have the options of tests/goldens/options.json: names, types and defaults.

An option that is there cannot be taken back, and each is one more for a reader to understand. So a new one is added to
that file in the change that a reviewer reads (CONTRIBUTING.md), and one that changes or goes is found here.
"""

import inspect
import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args, get_type_hints

import pytest
import typer
from support.golden_files import Golden
from support.golden_files import golden as golden

import orchestrator as dml
from orchestrator.cli.main import program
from orchestrator.config.keys import KEYS, key_table
from orchestrator.config.search import FILE_KEYS, Search
from orchestrator.errors import InputError

PAGE = Path(__file__).parents[2] / "docs" / "search_files.md"
FUNCTIONS = {
    **{name: getattr(dml, name) for name in ("benchmark", "compare", "evaluate", "load", "search", "train", "Loss")},
    **{f"Search.{name}": getattr(dml.Search, name) for name in ("model", "wait", "resume")},
    **{f"Model.{name}": getattr(dml.Model, name) for name in ("embed", "evaluate")},
}
IN_FILES_AS = {"space": "raw_space"}
"""Keys whose field has another name; those without a field of their own have no default."""


def command_options(command: Any) -> list[str]:
    """`--num-trials: int | None = None`, in the order of `--help`."""
    kinds = get_type_hints(command.callback)
    parameters = inspect.signature(command.callback).parameters
    texts = []
    for option in command.params:
        names, kind = "/".join([*option.opts, *option.secondary_opts]), kinds[option.name]
        default = parameters[option.name].default
        text = f"{names}: {kind.__name__ if isinstance(kind, type) and not get_args(kind) else kind}"
        texts.append(text if default is inspect.Parameter.empty else f"{text} = {default}")
    return texts


def commands(of: Any, before: str = "") -> dict[str, list[str]]:
    """Each command's options in their order, those of a group's commands as `group command`."""
    found: dict[str, list[str]] = {}
    for name, command in of.commands.items():
        if hasattr(command, "commands"):
            found |= commands(command, f"{before}{name} ")
        else:
            found[f"{before}{name}"] = command_options(command)
    return found


def function_options(function: Any) -> list[str]:
    """`num_trials: int | None = None`, as Python writes them."""
    parameters = inspect.signature(function).parameters.values()
    return [str(parameter) for parameter in parameters if parameter.name != "self"]


def file_keys() -> dict[str, str]:
    """Each key of a search file, with the types of its values and its default."""
    fields = Search.model_fields
    keys = {}
    for key, kinds in FILE_KEYS.items():
        field = fields.get(IN_FILES_AS.get(key, key))
        names = "/".join(kind.__name__ for kind in (kinds if isinstance(kinds, tuple) else (kinds,)))
        keys[key] = names if field is None or field.is_required() else f"{names} = {field.default!r}"
    return keys


def public_options() -> dict[str, Any]:
    return {
        "commands": commands(typer.main.get_command(program())),
        "functions": {name: function_options(function) for name, function in FUNCTIONS.items()},
        "search file": file_keys(),
    }


def differences(one: Mapping[str, Any], other: Mapping[str, Any]) -> set[str]:
    """The options that only one of two has."""

    def lines(options: Mapping[str, Any]) -> set[str]:
        keys = {f"search file {key}: {text}" for key, text in options["search file"].items()}
        return keys | {
            f"{kind} {name} {text}"
            for kind in ("commands", "functions")
            for name, texts in options[kind].items()
            for text in texts
        }

    return lines(one) ^ lines(other)


def test_no_option_is_new_changed_or_gone(golden: Golden) -> None:
    options = public_options()
    assert min(len(options["commands"]), len(options["functions"]), len(options["search file"])) > 10
    golden("options.json", json.dumps(options, indent=1) + "\n")


def test_a_new_option_is_found() -> None:
    planted = typer.Typer()

    @planted.command()
    def one(steps: int = 3) -> None: ...

    @planted.command()
    def two(steps: int = 3, warm: bool = False) -> None: ...

    def of(name: str) -> dict[str, Any]:
        options = commands(typer.main.get_command(planted))
        return {"commands": {"one": options[name]}, "functions": {}, "search file": {}}

    assert {line.partition(":")[0] for line in differences(of("one"), of("two"))} == {"commands one --warm/--no-warm"}


def test_each_key_of_a_search_file_is_described_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """In `config.keys`, which the file's fields, the schema, `--help` and the page follow."""
    assert KEYS.keys() == FILE_KEYS.keys()
    parameters = typer.main.get_command(program()).commands["search"].params  # type: ignore[attr-defined]
    options = {option.name for option in parameters if option.opts[0].startswith("--")}
    assert {key for key, described in KEYS.items() if described.option} == options & KEYS.keys()
    fields = {key: Search.model_fields[key].description for key in KEYS.keys() & Search.model_fields.keys()}
    assert {key for key, text in fields.items() if text not in (None, KEYS[key].meaning)} == set()
    page = PAGE.read_text(encoding="utf-8")
    assert key_table() in page, f"the table of docs/search_files.md should be:\n{key_table()}"
    monkeypatch.setitem(KEYS, "seeds", replace(KEYS["seeds"], default="2"))
    assert key_table() not in page


@pytest.mark.parametrize("key", sorted(FILE_KEYS))
def test_python_takes_each_key_of_a_search_file(key: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By its name; what is wrong with the value here is told of that key."""
    monkeypatch.setattr("orchestrator.search.driver.start", lambda *_, **__: pytest.fail("it was accepted"))
    wrong: Any = object()
    with pytest.raises(InputError) as refused:
        dml.search("demo", storage=tmp_path, **{key: wrong})
    assert key in str(refused.value) and "no such key" not in str(refused.value)
