"""A benchmark in the tracker: its run leads to its searches, and these lead back."""

import json
from pathlib import Path
from typing import Any

import pytest
from support.benchmark_journals import LABELS, WINNER, describe, described, journals_of
from support.memory_tracking import MemoryStore

from orchestrator.errors import InputError
from orchestrator.report.leading import final_of
from orchestrator.search.models import find_models
from orchestrator.storage.cursors import Cursor
from orchestrator.storage.journal import Journal
from orchestrator.storage.ledger import Ledger
from orchestrator.storage.places import BENCHMARK_RECORD, Places
from orchestrator.storage.trial_folder import MODEL
from orchestrator.tracking.benchmarks import publish_to
from orchestrator.tracking.projection import NOTE
from orchestrator.tracking.sender import Sender, cursor_name
from orchestrator.tracking.store import TrackingError

ADDRESS = "memory"


def send(store: MemoryStore, path: Path) -> None:
    sender = Sender(path, store, path.parent / cursor_name(ADDRESS), ADDRESS)
    sender.send()
    assert sender.refused == []


def test_a_benchmark_stands_for_the_model_of_its_best_search(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """`export mine --to onnx` is what a reader of its table types next."""
    places, models = Places(tmp_path), []
    for label, path in journals_of(tmp_path).items():
        final = final_of(Ledger.of(Journal.read(path)))
        assert final is not None
        models.append(path.parent / "trials" / final.trial_id / MODEL)
        models[-1].parent.mkdir(parents=True)
        models[-1].write_bytes(label.encode())
    with pytest.raises(InputError, match="'mine' is no model file"):
        find_models("mine", places)
    record = {"name": "mine", "methods": list(LABELS), "overrides": {}, "changes": {}}
    places.benchmark("mine").mkdir(parents=True)
    (places.benchmark("mine") / BENCHMARK_RECORD).write_text(json.dumps(record))
    assert find_models("mine", places) == models[:1]
    told = "note: 'mine' is a benchmark: the model of its best search, mine-pfml, is taken\n"
    assert capsys.readouterr().err == told


def test_the_run_leads_to_the_searches_and_back(tmp_path: Path) -> None:
    store, journals = MemoryStore(), journals_of(tmp_path)
    for path in journals.values():
        send(store, path)
    searches = {run["name"]: run_id for run_id, run in store.runs.items()}
    of = {label: store.runs[searches[f"mine-{label}"]] for label in LABELS}
    assert all("Part of the benchmark [mine]." in run["tags"][NOTE] for run in of.values()), "it has no run yet"
    benchmark, folder = described(tmp_path, journals), Places(tmp_path).benchmark("mine")
    assert publish_to(store, ADDRESS, benchmark, folder, journals) is None
    (run_id,) = (key for key, run in store.runs.items() if run["tags"].get("orchestrator.kind") == "benchmark")
    run = store.runs[run_id]
    assert (run["name"], run["status"], run["end_time"], run["artifacts"]) == (
        "mine",
        "FINISHED",
        9,
        {"report/report.html"},
    )
    told = run["tags"][NOTE]
    assert told.startswith("Ahead: pfml, map\\_at\\_r 0.5"), "three seeds of queries alike decide nothing"
    for label in LABELS:
        link = f"[{label.replace('_', chr(92) + '_')}](#/experiments/1/runs/{searches[f'mine-{label}']})"
        assert f"| {link} | done | 0." in told
        back = of[label]["tags"][NOTE]
        assert f"Part of the benchmark [mine](#/experiments/1/runs/{run_id})." in back
        winner = Cursor.load(journals[label].parent / cursor_name(ADDRESS)).runs[WINNER]
        assert f"[{WINNER}](#/experiments/1/runs/{winner})" in back
    assert store.notes["1"].startswith(
        f"**[mine](#/experiments/1/runs/{run_id})**, the benchmark described last\n\nAhead: pfml"
    )
    assert "](search:" not in told and "**" not in store.notes["1"].partition("\n\n")[2]

    assert publish_to(store, ADDRESS, benchmark, folder, journals) is None
    assert sum(run["tags"].get("orchestrator.kind") == "benchmark" for run in store.runs.values()) == 1
    describe(journals["pfml"])  # a search that was resumed
    send(store, journals["pfml"])
    assert f"[mine](#/experiments/1/runs/{run_id})" in of["pfml"]["tags"][NOTE]

    store.delete(run_id)
    assert publish_to(store, ADDRESS, benchmark, folder, journals) is None
    (again,) = (key for key, run in store.runs.items() if run["tags"].get("orchestrator.kind") == "benchmark")
    assert store.runs[again]["status"] == "FINISHED" and f"runs/{again})" in of["proxy_anchor"]["tags"][NOTE]


def test_what_was_not_sent_has_no_link(tmp_path: Path) -> None:
    store, journals = MemoryStore(), journals_of(tmp_path)
    benchmark, folder = described(tmp_path, journals), Places(tmp_path).benchmark("mine")
    assert publish_to(store, ADDRESS, benchmark, folder, journals) is None and store.runs == {}
    send(store, journals["pfml"])
    assert publish_to(store, ADDRESS, benchmark, folder, journals) is None
    (run,) = (run for run in store.runs.values() if run["tags"].get("orchestrator.kind") == "benchmark")
    assert "[pfml](#/experiments/1/runs/" in run["tags"][NOTE] and "| [proxy\\_anchor] |" in run["tags"][NOTE]


def test_a_tracker_that_fails_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store, journals = MemoryStore(), journals_of(tmp_path)
    send(store, journals["pfml"])

    def refuse(*_: Any) -> None:
        raise TrackingError("it is\nfull")

    monkeypatch.setattr(store, "log", refuse)
    benchmark, folder = described(tmp_path, journals), Places(tmp_path).benchmark("mine")
    assert publish_to(store, ADDRESS, benchmark, folder, journals) == "it is full"
