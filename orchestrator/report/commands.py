"""Commands that a reader can run, from settings and ranges."""

import json
import shlex
from collections.abc import Mapping
from typing import Any

from orchestrator.config.training import resolve_experiment
from orchestrator.errors import InputError
from orchestrator.plugins import earlier_defaults


def train_words(settings: Mapping[str, Any]) -> list[str] | None:
    """`orchestrator train` with every setting that is not the default; None for a method that is not installed here."""
    changed = changed_words(settings)
    if changed is None:
        return None
    named = ["--method", str(settings["method"]), "--dataset", str(settings.get("dataset"))]
    return ["orchestrator", "train", *named, *changed]


def changed_words(settings: Mapping[str, Any]) -> list[str] | None:
    """`--set` for every setting that is not the default, but method and data set; None as for `train_words`."""
    if "method" not in settings:
        return None
    try:
        default = resolve_experiment({"method": settings["method"]}, "default").flat()
    except InputError:
        return None
    settings = {**earlier_defaults(settings), **settings}  # an earlier version's record lacks what was added since
    others = {key: value for key, value in settings.items() if key not in ("method", "dataset")}
    return set_words({key: value for key, value in others.items() if value != default.get(key)})


def set_words(settings: Mapping[str, Any]) -> list[str]:
    """`--set` for each setting."""
    words: list[str] = []
    for key, value in settings.items():
        plain = json.dumps(value) if value is None or isinstance(value, bool) else value
        words += ["--set", f"{key}={plain}"]
    return words


def train_command(settings: Mapping[str, Any]) -> str | None:
    """The same as one line."""
    words = train_words(settings)
    return None if words is None else shlex.join(words)


def range_words(ranges: Mapping[str, Any]) -> list[str]:
    """`--range` for each setting, whose range or choices are as in a search file."""
    words = []
    for key, value in ranges.items():
        if isinstance(value, Mapping):
            text = "{" + ", ".join(f"{name}: {json.dumps(one)}" for name, one in value.items()) + "}"
        else:
            text = json.dumps(list(value))
        words += ["--range", f"{key}={text}"]
    return words
