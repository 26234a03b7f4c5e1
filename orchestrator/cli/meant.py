"""What a user meant by words that a command does not take: a line that says what to write instead."""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from orchestrator.errors import InputError, shown, suggestion
from orchestrator.storage import paths

NEWEST = 5
"""Searches that a message names where a name is missing."""

ARGUMENTS = {
    "train": "orchestrator train --method {} --dataset NAME",
    "search": "orchestrator search SPACE --dataset {}",
    "benchmark": "orchestrator benchmark --methods {} --dataset NAME",
    "evaluate": "orchestrator evaluate NAME --dataset {}",
    "export": "orchestrator export NAME --to {}",
    "report": "orchestrator compare NAME {}",
    "list": "orchestrator status {}",
    "methods": "orchestrator methods {}",
    "presets": "orchestrator presets {}",
    "datasets": "orchestrator datasets {}",
}
"""What is often meant by a word that is one too many."""

OPTIONS = {
    ("search", "--method"): "search takes a search file, or the name of a shipped search: orchestrator search {}",
    ("search", "--methods"): "several methods are compared by: orchestrator benchmark --methods {}",
    ("search", "--space"): "the search file is an argument: orchestrator search {}",
    ("search", "--file"): "the search file is an argument: orchestrator search {}",
    ("search", "--config"): "the search file is an argument: orchestrator search {}",
    ("benchmark", "--method"): "benchmark takes methods, with commas between: --methods {}",
    ("train", "--num-trials"): "train makes one training; several points are tried by: orchestrator search",
    ("resume", "--set"): "a started search keeps its settings; a new search can start from its points: "
    "search --start-from NAME",
    ("report", "--output"): "print to a file with > FILE, or write a page with --html {}",
}
"""What is meant by an option that a command does not have."""


def of_option(command: str, option: str, known: Sequence[str], words: Sequence[str], settings: Sequence[str]) -> str:
    """The line for an option that `command` does not have; `words` are its command line's."""
    value = _after(option, words)
    if (command, option) in OPTIONS:
        return f"{option}: {OPTIONS[command, option].format(value)}"
    key = option.lstrip("-").replace("-", "_")
    other = key if key in settings else _only(suggestion(key, settings))
    if "--set" in known and other in settings and _only(suggestion(option.lstrip("-"), _bare(known))) is None:
        return f"{option}: settings are given by --set: orchestrator {command} ... --set {other}={value}"
    if command == "orchestrator":
        return f"{option}: options follow the command: orchestrator COMMAND {option} ..."
    candidate = _only(suggestion(option.lstrip("-"), _bare(known)))
    return f"{option}: no such option" + (f" (did you mean '--{candidate}'?)" if candidate else "")


def of_arguments(command: str, extra: str, words: Sequence[str]) -> str:
    """The line for words that are too many; `extra` are these, and `words` those of the command line."""
    for place, word in enumerate(words[:-2]):
        key, value = words[place + 1 : place + 3]
        if word == "--set" and "=" not in key and value in extra.split():
            return f"--set {key} {value}: should read KEY=VALUE: --set {key}={value}"
    first = extra.split()[0]
    usual = f": did you mean {ARGUMENTS[command].format(first)}?" if command in ARGUMENTS else ""
    return f"{shown(extra)}: unexpected extra argument of {command}{usual}"


def of_command(name: str, commands: Mapping[str, Any]) -> str:
    """The line for a command that does not exist, with an example of the one that is meant."""
    hint = suggestion(name, commands)
    if "did you mean" not in hint:
        return f"no such command '{name}'"
    examples = [
        example
        for candidate in re.findall(r"'([\w-]+)'", hint)
        for example in re.findall(rf"`(orchestrator {candidate}\b[^`]*)`", commands[candidate].help or "")[:1]
    ]
    return f"no such command '{name}'{hint}" + (f": {' or '.join(examples)}" if examples else "")


def of_missing_name(storage: Path | None) -> str:
    """Which searches could be meant where a search's name is missing, the newest first; "" if that cannot be told."""
    from orchestrator.cli.options import DEFAULT_STORAGE, places_of
    from orchestrator.storage.places import JOURNAL

    places = places_of(storage or DEFAULT_STORAGE)
    where = paths.display_path(storage or DEFAULT_STORAGE)
    try:
        journals = sorted(places.journals(), key=lambda path: -path.stat().st_mtime)
    except (InputError, OSError):
        return ""
    if not journals:
        return f"; there is no search under {where} yet: orchestrator search demo"
    names = [path.parent.name for path in journals if path.name == JOURNAL]
    newest = ", ".join(names[:NEWEST])
    more = "" if len(names) <= NEWEST else ", the newest; all: orchestrator list"
    return f": under {where} there {'is' if len(names) == 1 else 'are'} {newest}{more}"


def _after(option: str, words: Sequence[str]) -> str:
    """The value of an option on the command line."""
    for place, word in enumerate(words):
        if word == option and place + 1 < len(words) and not words[place + 1].startswith("-"):
            return words[place + 1]
        if word.startswith(f"{option}="):
            return word.partition("=")[2]
    return "VALUE"


def _bare(options: Sequence[str]) -> list[str]:
    return [option.lstrip("-") for option in options if option.startswith("--")]


def _only(hint: str) -> str | None:
    """The name that a suggestion gives."""
    match = re.search(r"did you mean '([^']*)'", hint)
    return None if match is None else match[1]
