"""The record of the installed methods: it says what they say, and a changed file ends it."""

import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from orchestrator import plugins
from orchestrator.cli.describe import describe_method
from orchestrator.method import registry
from orchestrator.plugins import Installed, installed_methods
from orchestrator.problems import complaints


@pytest.fixture
def record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A record of the installed methods and of one more file, read as a process does that has not imported them."""
    watched = tmp_path / "plugin.py"
    watched.write_text("one = 1\n")
    os.utime(watched, (1, 1))
    monkeypatch.setenv("ORCHESTRATOR_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(plugins, "_watched_files", lambda: {str(watched)})
    own = installed_methods()
    plugins._record(own, began=2 * 10**9)
    monkeypatch.setattr(plugins, "_is_imported", lambda: False)
    plugins._read_record.cache_clear()
    yield watched
    plugins._read_record.cache_clear()


def answer(kind: Any, values: dict[str, Any]) -> Any:
    try:
        return kind(**values).model_dump()
    except ValidationError as error:
        return list(complaints(error))


WRONG = (-1, 0, 1e12, "x", None, True, [1], float("nan"))


def test_a_record_says_what_the_methods_say(record: Path) -> None:
    found = plugins._read_record()
    assert found is not None and list(found) == sorted(registry())
    exact = []
    for name, known in found.items():
        own = registry()[name]
        asked = Installed(known.name, own.__module__, own.paper, known.documentation, known.latex, own.needs_validation,
                          own.sampler, own.Config, True)  # fmt: skip
        assert describe_method(known) == describe_method(asked)
        assert known.fields.dependent == own.Config.dependent
        if known.exact:
            exact.append(name)
            for key in own.Config.model_fields:
                for value in WRONG:
                    assert answer(known.fields, {key: value}) == answer(own.Config, {key: value}), (name, key, value)
            assert known.fields().idle() == own.Config().idle()
            assert isinstance(plugins.own_config(name, known.fields()), own.Config)
    assert {"pfml", "contrastive", "proxy_anchor"} <= set(exact)
    assert {"idml", "ccp"}.isdisjoint(exact), "their checks are not in a record"


def test_a_changed_file_ends_a_record(record: Path) -> None:
    assert plugins._read_record() is not None
    record.write_text("one = 2\n")
    plugins._read_record.cache_clear()
    assert plugins._read_record() is None


def test_a_process_with_another_path_keeps_a_record_of_its_own(record: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As a trial's has, to which Ray gives a path."""
    with monkeypatch.context() as other:
        other.setattr("sys.path", ["/elsewhere", *sys.path])
        assert plugins._read_record() is None
        plugins._record(installed_methods(), began=2 * 10**9)
        plugins._read_record.cache_clear()
        assert plugins._read_record() is not None
    plugins._read_record.cache_clear()
    assert plugins._read_record() is not None


def test_another_set_of_plugins_ends_a_record(record: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plugins, "method_entry_points", lambda: ())
    assert plugins._read_record() is None


def test_a_damaged_record_is_none(record: Path) -> None:
    plugins._place().write_text(json.dumps({"key": plugins._key(), "files": {}}))
    assert plugins._read_record() is None


def test_a_file_that_was_changed_during_the_import_is_not_recorded(record: Path) -> None:
    methods = installed_methods()
    plugins._place().unlink()
    plugins._record(methods, began=0)
    assert not plugins._place().exists()
