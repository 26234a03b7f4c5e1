"""Journals with right checksums and absurd fields: a line that names the field, or a page, and never a fault."""

import copy
import io
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.made_searches import MadeSearch
from support.recorded import record

from orchestrator.errors import InputError
from orchestrator.report.comparison import Comparison
from orchestrator.report.findings import Findings
from orchestrator.report.html.comparison_page import comparison_page
from orchestrator.report.html.search_page import page
from orchestrator.report.html.storage_page import storage_page
from orchestrator.search.control import status
from orchestrator.storage.journal import Journal, JournalError
from orchestrator.storage.leaderboard import leaderboard_table, write_csv
from orchestrator.storage.places import Places
from orchestrator.storage.reading import read_journal
from orchestrator.storage.records import Position, encode_record
from orchestrator.tracking.projection import Projection

Event = dict[str, Any]
ABSURD: list[Any] = [1e308, -1, 10**30, 10**400, [], {"a": [1]}, "x\ud800", None]


@pytest.fixture(scope="module")
def events(tmp_path_factory: pytest.TempPathFactory) -> list[Event]:
    """A search that has everything: early stops, a budget, final runs, a resume, an untrained score."""
    with MadeSearch(tmp_path_factory.mktemp("made"), scheduler="asha", budget={"hours": 3}) as made:
        config = made.search.experiment({"delta": 0.2}).flat()
        untrained = {"key": "k", "split": "validation", "metrics": {"map_at_r": 0.1}}
        for number in range(4):
            curve = [0.3 + 0.02 * number, 0.4 + 0.01 * number]
            made.trial(
                curve, interval=(0.3, 0.5), test={"map_at_r": 0.4}, untrained=untrained, beside={"epoch": [1, 9]}
            )
        start = {"trial_id": "0004", "params": {"delta": 0.2}, "config": config, "resources": {"CPU": 1.0, "GPU": 0.5}}
        record(made.journal, "trial_started", **start)
        record(made.journal, "search_resumed", config=made.search.model_dump())
        record(made.journal, "trial_started", **start)
        record(made.journal, "trial_ended", trial_id="0004", state="failed", reason="x")
        for seed in (1, 2, 3):
            made.final("0003", seed, {"map_at_r": 0.4 + seed * 0.01})
        record(made.journal, "note", text="n", important=["delta"], least=0.1)
        record(made.journal, "search_ended", best={"trial_id": "0003", "objective": 0.43}, elapsed=100.0)
    return Journal.read(made.path)


INSIDE = " > "
"""Between the keys of a place: metrics have a slash in their names."""


def written(folder: Path, events: list[Event]) -> Path:
    """Their journal, with right checksums."""
    lines, end = [], Position()
    for event in events:
        line, _, end = encode_record(event, end)
        lines.append(line)
    path = folder / "searches" / "made" / "journal.jsonl"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"".join(lines))
    return path


def look(path: Path) -> None:
    """Every reader of a journal."""
    events, ledger = read_journal(path)
    state = status(ledger, path.parent)
    storage_page([state], "runs", waiting=0, problems=[], benchmarks=[])
    leaderboard_table(ledger)
    write_csv(ledger, io.StringIO())
    page(Findings.of(ledger, "", "", path.parent))
    comparison_page(Comparison.of("both", {"a": ledger, "b": ledger}))
    projection = Projection()
    for event in events:
        projection.fold(event, {})


def changed(events: list[Event], kind: str, place: str, value: Any) -> list[Event]:
    """The events with another value in the first event of a kind that has this place."""
    *folders, last = place.split(INSIDE)
    for number, event in enumerate(events):
        inner: Any = event
        for key in folders:
            inner = inner.get(key) if isinstance(inner, dict) else None
        if event["event"] == kind and isinstance(inner, dict) and last in inner:
            found = copy.deepcopy(events)
            inner = found[number]
            for key in folders:
                inner = inner[key]
            inner[last] = value
            return found
    raise AssertionError(f"no {kind} has {place}")


REFUSED: list[tuple[str, str, list[Any]]] = [
    ("validation", "seconds", [1e308, 1e12, -1, "1", [1], None, 10**400]),
    ("validation", "elapsed", [1e308, -1, []]),
    ("validation", "metrics", [[], 3, {"val/map_at_r": [1]}, {"val/map_at_r": "x"}]),
    ("validation", "validation", [0, 1e308, [], 10**30]),
    ("search_started", "tags", [[], "x", 3, None]),
    ("search_started", "sizes", [[], 3, {"test": [1]}, {"validation": 5}, {"remarks": 3}]),
    ("search_started", "sizes > training_classes", [[], {}, -1, 10**30]),
    (
        "search_started",
        "sizes > test",
        [{"queries": -1}, {"one_query": 1e308}, {"chance": {"map_at_r": 7}}, {"folds": []}],
    ),
    ("search_started", "config > scheduler", [[], {"grace_validations": []}, {"name": []}]),
    ("search_resumed", "config > final_seeds", [1e308, [], {}, "3", None]),
    ("search_resumed", "config > final_trials", [1e308, [], -1]),
    ("search_resumed", "config > settings", [[], {"method": []}, {"method": 1e308}, None]),
    ("search_resumed", "config > raw_space", [3, [3], "x"]),
    ("search_resumed", "config > algorithm", [[], 3]),
    ("trial_started", "params", [[], {"delta": []}, {"delta": {"a": 1}}]),
    ("trial_started", "resources", [[], {"CPU": 1e308}, {"CPU": -1}, {"CPU": []}]),
    ("result", "best_interval", [[1], [1, "x"], {}, 3]),
    ("search_ended", "elapsed", [1e308, [], -1]),
    ("note", "important", [3, [3]]),
]


@pytest.mark.parametrize(("kind", "place", "values"), REFUSED, ids=lambda part: part if isinstance(part, str) else "")
def test_a_field_that_is_computed_with_has_its_type(
    events: list[Event], tmp_path: Path, kind: str, place: str, values: list[Any]
) -> None:
    field = place.split(INSIDE)[-1]
    whole = [{**event, "elapsed": 1.0} if event["event"] == "validation" else event for event in events]
    whole = [{**e, "resources": {"CPU": 1.0}} if e["event"] == "trial_started" else e for e in whole]
    for value in values:
        path = written(tmp_path, changed(whole, kind, place, value))
        with pytest.raises(
            InputError, match=rf"journal\.jsonl:\d+: corrupt: '{kind}' is not as it should be: .*{field}"
        ):
            read_journal(path)


def places_of(value: Any, above: str = "") -> Iterator[str]:
    for key, inner in value.items() if isinstance(value, dict) else ():
        yield above + key
        yield from places_of(inner, f"{above}{key}{INSIDE}")


def test_no_value_of_any_field_breaks_a_page(events: list[Event], tmp_path: Path) -> None:
    """A sample of all places and values, with those that once did."""
    look(written(tmp_path, events))
    cases = [
        (event["event"], place, value)
        for event in events
        for place in places_of({key: inner for key, inner in event.items() if key not in ("event", "seq")})
        for value in ABSURD
        if "." not in place
    ]
    chosen = random.Random(0).sample(cases, 25)
    chosen += [("trial_ended", "reason", "x\ud800"), ("search_started", "objective > metric", "x\ud800")]
    for seed in (10**30, "x\ud800"):
        chosen.append(("trial_started", "params", {"delta": 0.2, "seed": seed}))
    taken, refused = 0, []
    for kind, place, value in chosen:
        try:
            look(written(tmp_path, changed(events, kind, place, value)))
            taken += 1
        except (InputError, JournalError) as error:
            refused.append(str(error))
    assert not [line for line in refused if "\n" in line or len(line) > 800]
    assert taken >= 5


def test_a_torn_first_line_is_told(tmp_path: Path) -> None:
    path = tmp_path / "searches" / "torn" / "journal.jsonl"
    path.parent.mkdir(parents=True)
    places = Places(tmp_path)
    for content, told in (
        (b'{"event": "search_st', "its first line is incomplete .* start the search 'torn' anew"),
        (b"", "no search 'torn'"),
    ):
        path.write_bytes(content)
        with pytest.raises(InputError, match=told):
            places.journal("torn")
        assert places.new_journal("torn") == path
