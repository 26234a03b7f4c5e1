"""What a user meant by words that a command does not take: a problem whose advice is what to write instead."""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from orchestrator.errors import InputError
from orchestrator.problems import Problem, Suggestion, suggestion
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
    ("search", "--method"): ("search takes a search file, or the name of a shipped search", "orchestrator search {}"),
    ("search", "--methods"): ("several methods are compared by", "orchestrator benchmark --methods {}"),
    ("search", "--space"): ("the search file is an argument", "orchestrator search {}"),
    ("search", "--file"): ("the search file is an argument", "orchestrator search {}"),
    ("search", "--config"): ("the search file is an argument", "orchestrator search {}"),
    ("benchmark", "--method"): ("benchmark takes methods, with commas between: --methods {}", ""),
    ("train", "--num-trials"): ("train makes one training; several points are tried by", "orchestrator search"),
    ("resume", "--set"): (
        "a started search keeps its settings; a new search can start from its points: search --start-from NAME",
        "",
    ),
    ("report", "--output"): ("print to a file with > FILE, or write a page with --html {}", ""),
}
"""What is meant by an option that a command does not have, and the command line to type."""


def option_hint(
    command: str, option: str, known: Sequence[str], words: Sequence[str], settings: Sequence[str]
) -> Problem:
    """The problem of an option that `command` does not have; `words` are its command line's. Its advice is what to
    type."""
    value, bare = _after(option, words), option.lstrip("-")
    if (command, option) in OPTIONS:
        rule, advice = (text.format(value) for text in OPTIONS[command, option])
        return Problem((option,), rule=rule, advice=advice and f": {advice}")
    key = bare.replace("-", "_")
    other = key if key in settings else suggestion(key, settings).name
    candidate = suggestion(bare, _bare(known)).name
    if "--set" in known and other in settings and candidate is None:
        advice = f": orchestrator {command} ... --set {other}={value}"
        return Problem((option,), rule="settings are given by --set", advice=advice)
    if command == "orchestrator":
        rule, advice = "options follow the command", f": orchestrator COMMAND {option} ..."
        return Problem((option,), rule=rule, advice=advice)
    return Problem((option,), rule="no such option", suggestion=(candidate and Suggestion((f"--{candidate}",))) or None)


def argument_hint(command: str, extra: Sequence[str], words: Sequence[str]) -> Problem:
    """The problem of words that are too many; `extra` are these, and `words` those of the command line."""
    for place, word in enumerate(words[:-2]):
        key, value = words[place + 1 : place + 3]
        if word == "--set" and "=" not in key and value in extra:
            return Problem((f"--set {key} {value}",), rule="should read KEY=VALUE", advice=f": --set {key}={value}")
    usual = f": did you mean {ARGUMENTS[command].format(extra[0])}?" if command in ARGUMENTS else ""
    return Problem(value=" ".join(extra), rule=f"unexpected extra argument of {command}", advice=usual)


def command_hint(name: str, commands: Mapping[str, Any]) -> Problem:
    """The problem of a command that does not exist, with an example of the one that is meant."""
    rule, hint = f"no such command '{name}'", suggestion(name, commands)
    if not hint.names:
        return Problem(rule=rule)
    examples = [
        example
        for candidate in hint.names
        for example in re.findall(rf"`(orchestrator {candidate}\b[^`]*)`", commands[candidate].help or "")[:1]
    ]
    return Problem(rule=rule, suggestion=hint, advice=f": {' or '.join(examples)}" if examples else "")


def missing_name_hint(name: str, storage: Path | None) -> Problem:
    """The problem of a search's name that is missing: which could be meant, the newest first, if that can be told."""
    from orchestrator.cli.options import DEFAULT_STORAGE, places_of
    from orchestrator.storage.places import JOURNAL

    places = places_of(storage or DEFAULT_STORAGE)
    where = paths.display_path(storage or DEFAULT_STORAGE)
    try:
        everything = places.names()
        journals = places.journals(places.without_claims(everything) or everything)
        journals.sort(key=lambda path: -path.stat().st_mtime)
    except (InputError, OSError):
        return Problem((name,), rule="missing")
    if not journals:
        rule = f"missing; there is no search under {where} yet"
        return Problem((name,), rule=rule, advice=": orchestrator search demo")
    names = [path.parent.name for path in journals if path.name == JOURNAL]
    newest = ", ".join(names[:NEWEST])
    more = "" if len(names) <= NEWEST else ", the newest; all: orchestrator list"
    rule = f"missing: under {where} there {'is' if len(names) == 1 else 'are'} {newest}"
    return Problem((name,), rule=rule, advice=more)


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
