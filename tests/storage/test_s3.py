"""Storages at s3:// addresses, against a real S3 server, and one in front of it that fails."""

import contextlib
import itertools
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import psutil
import pytest
from support.made_benchmarks import MadeRunner, asked_for
from support.memory_tracking import MemoryTracker
from support.object_storages import check_two_drivers, elsewhere, journal_of
from support.recorded import begin, events_of
from support.s3 import SECRET, Server, Unsteady, moto, unsteady
from support.serving import serving
from support.terminals import LONG, Terminal, alive, family, last_line, title, wait

from orchestrator.cli.main import main
from orchestrator.config.resolve import resolve_search
from orchestrator.config.training import resolve_experiment
from orchestrator.data.catalog import open_dataset
from orchestrator.data.remote import publish_store
from orchestrator.data.store import Store
from orchestrator.errors import DataError, InputError, storage_fault
from orchestrator.execution.protocol import Interrupted, Result, Validated, Work
from orchestrator.execution.worker import results
from orchestrator.search import benchmark, benchmark_searches, control
from orchestrator.search.conductor import Conductor
from orchestrator.search.control import driver_lease
from orchestrator.search.journal_repair import cut
from orchestrator.storage import buckets, object_store, presence, s3, segments
from orchestrator.storage.events import Event
from orchestrator.storage.folder import Folder
from orchestrator.storage.journal import Journal, refresh
from orchestrator.storage.leaderboard import leaderboard_rows
from orchestrator.storage.ledger import Ledger
from orchestrator.storage.paths import address_of, local, portable, working_copy
from orchestrator.storage.places import Places
from orchestrator.storage.presence import DRIVER, driver, living_driver, pending_request, send_request
from orchestrator.storage.trial_files import MANIFEST, TrialFiles, copy_files, drop, fetch_trial
from orchestrator.storage.trial_folder import CHECKPOINT
from orchestrator.training import untrained

SETTINGS = {
    "method": "proxy_anchor",
    "dataset": "glyphs-small",
    "epochs": 1,
    "validate_every": "8 steps",
    "classes_per_batch": 8,
    "images_per_class": 2,
    "device": "cpu",
    "embedding_dim": 4,
    "class_subset": 16,
    "threads": 1,
}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """An S3 server of this module's."""
    with moto(tmp_path_factory.mktemp("s3")) as server:
        yield server


@pytest.fixture
def front(server: Server) -> Iterator[Unsteady]:
    """What the tests' clients take for the server."""
    with unsteady(server) as front:
        yield front


@pytest.fixture
def storage(
    server: Server, front: Unsteady, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> str:
    """The address of a storage in an empty bucket of this test."""
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    for name, value in (server.environment() | {"AWS_ENDPOINT_URL": front.endpoint}).items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(object_store, "PATIENCE_SECONDS", 3.0)
    monkeypatch.setattr(object_store, "IMPATIENCE_SECONDS", 1.0)
    elsewhere(monkeypatch, tmp_path / "here")
    name = re.sub(r"[^a-z0-9]+", "-", request.node.name.lower())[:60].strip("-")
    server.files().create_dir(name)
    return f"s3://{name}/runs"


def keys(server: Server, address: str) -> list[str]:
    """The objects below an address, without it."""
    from pyarrow import fs

    root = address.removeprefix("s3://")
    found = server.files().get_file_info(fs.FileSelector(root, recursive=True, allow_not_found=True))
    return sorted(info.path.removeprefix(f"{root}/") for info in found if info.is_file)


def put(server: Server, address: str, data: bytes) -> None:
    """Write an object behind everybody's back."""
    with server.files().open_output_stream(address.removeprefix("s3://")) as file:
        file.write(data)


def run(*arguments: str) -> int:
    with pytest.raises(SystemExit) as leaving:
        main(arguments)
    return int(leaving.value.code or 0)


def test_a_working_copy_stands_for_an_address(storage: str, tmp_path: Path) -> None:
    folder = working_copy(storage + "/")
    trial = folder / "searches" / "x" / "trials" / "0003"
    assert folder.is_relative_to(tmp_path / "here") and not folder.exists() and "%" not in str(folder)
    assert address_of(folder) == storage and address_of(trial) == f"{storage}/searches/x/trials/0003"
    assert local(portable(trial)) == trial
    assert address_of(tmp_path) is None and local(portable(tmp_path)) == tmp_path
    with pytest.raises(InputError, match="should not hold '..'"):
        address_of(folder / "searches" / ".." / "..")


# Journals ---------------------------------------------------------------------------------------------------


def test_each_record_is_an_object(
    storage: str, server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Journal(journal_of(storage)) as journal:
        written = [journal.append("note", text=f"é{number}") for number in range(3)]
    assert keys(server, storage) == [f"searches/x/journal/{number:08d}.jsonl" for number in range(3)]
    elsewhere(monkeypatch, tmp_path / "there")
    path = journal_of(storage)
    refresh(path)
    assert events_of(path) == written
    with Journal(path) as journal:
        written.append(journal.append("note", text="from there"))
    elsewhere(monkeypatch, tmp_path / "here")
    path = journal_of(storage)
    with path.open("ab") as file:
        file.write(b'{"event": "torn')
    refresh(path)
    assert events_of(path) == written


def test_a_new_machine_reads_bundles(
    storage: str, server: Server, front: Unsteady, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(segments, "BUNDLE", 3)
    with Journal(journal_of(storage)) as journal:
        written = [journal.append("note", text=str(number)) for number in range(4)]
    with Journal(journal_of(storage)) as journal:
        written += [journal.append("note", text=str(number)) for number in range(4, 8)]
    bundles = [f"searches/x/journal/by-3/{first:08d}.jsonl" for first in (0, 3)]
    assert [key for key in keys(server, storage) if "by-3" in key] == bundles
    elsewhere(monkeypatch, tmp_path / "there")
    front.asked.clear()
    refresh(journal_of(storage))
    assert events_of(journal_of(storage)) == written
    assert len([path for method, path in front.asked if method == "GET" and path.endswith(".jsonl")]) == 4
    put(server, f"{storage}/{bundles[1]}", b"{}\n")
    elsewhere(monkeypatch, tmp_path / "farther")
    with pytest.raises(InputError, match=r"by-3/00000003.jsonl: damaged: not the journal's record 3: .*delete it"):
        refresh(journal_of(storage))


def test_a_copy_of_another_search_is_not_gone_on_with(storage: str, server: Server) -> None:
    path = journal_of(storage)
    with Journal(path) as journal:
        journal.append("note", text="old")
        journal.append("note", text="older")
    for key in keys(server, storage):
        server.files().delete_file(f"{storage.removeprefix('s3://')}/{key}")
    refresh(path)
    assert not path.parent.exists()
    with Journal(path) as journal:
        new = [journal.append("note", text="new")]
    path.write_text('{"event": "note", "seq": 0, "time": 1, "text": "old"}\n')
    refresh(path)
    assert events_of(path) == new


def test_two_drivers_never_write_one_number(storage: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    check_two_drivers(storage, tmp_path, monkeypatch)


@pytest.mark.parametrize("conditional", [True, False])
def test_a_record_whose_answer_was_lost_is_written_once(
    storage: str, front: Unsteady, conditional: bool, server: Server
) -> None:
    path = journal_of(storage)
    whims: Iterator[str | int | None] = iter(["late", 503, "cut", "late"])
    with Journal(path) as journal:
        assert journal._segments is not None
        journal._segments.bucket.conditional = conditional
        front.whim = lambda method, path: next(whims, None) if method == "PUT" else None
        try:
            assert [journal.append("note", text=text).seq for text in "ab"] == [0, 1]
        finally:
            journal._segments.bucket.conditional = True
    assert next(whims, None) is None and len(keys(server, storage)) == 2
    refresh(path)
    assert [event["text"] for event in Journal.read(path)] == ["a", "b"]


def test_missing_and_damaged_records_are_named(storage: str, server: Server, tmp_path: Path, monkeypatch: Any) -> None:
    with Journal(journal_of(storage)) as journal:
        for text in "abc":
            journal.append("note", text=text)
    elsewhere(monkeypatch, tmp_path / "there")
    object_ = f"{storage.removeprefix('s3://')}/searches/x/journal/00000001.jsonl"
    put(server, object_, b'{"event": "note", "seq": 7, "time": 1}\n')
    damage = "damaged: not the journal's record 1: its seq is 7, and should be 1; line 1 is intact"
    with pytest.raises(InputError, match=f"^s3://{object_}: {damage}"):
        refresh(journal_of(storage))
    server.files().delete_file(object_)
    with pytest.raises(InputError, match=r"/journal/: record 1 is missing, the next is 00000002.jsonl; line 1 is"):
        refresh(journal_of(storage))


@pytest.mark.parametrize("how", ["damaged", "missing"])
def test_a_damaged_journal_is_cut(
    storage: str, server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    """Here and for every other machine; what is cut off lies beside it."""
    with Journal(journal_of(storage)) as journal:
        conductor(journal, [])
        written = [*events_of(journal.path), journal.append("note", text="whole")]
        for text in "ab":
            journal.append("note", text=text)
    for trial in ("0000", "0001"):
        put(server, f"{storage.removeprefix('s3://')}/searches/x/trials/{trial}/manifest.json", b'{"files": {}}')
    object_ = f"{storage.removeprefix('s3://')}/searches/x/journal/00000002.jsonl"
    put(server, object_, b"{]\n") if how == "damaged" else server.files().delete_file(object_)
    elsewhere(monkeypatch, tmp_path / "there")
    with pytest.raises(InputError, match="lines 1 to 2 are intact: orchestrator resume x --cut-damaged"):
        refresh(journal_of(storage))
    said = cut(journal_of(storage))
    assert said is not None and said.startswith("2 records kept; ") and f"{storage}/searches/x/damaged-1" in said
    kept = [key.removeprefix("searches/x/") for key in keys(server, storage)]
    lost = ["00000002.jsonl", "00000003.jsonl"][how == "missing" :]
    assert [key for key in kept if "damaged" not in key] == ["journal/00000000.jsonl", "journal/00000001.jsonl"]
    assert [key for key in kept if "damaged-1/journal" in key] == [f"damaged-1/journal/{name}" for name in lost]
    assert len([key for key in kept if key.endswith("manifest.json")]) == 2
    elsewhere(monkeypatch, tmp_path / "farther")
    with Journal(journal_of(storage)) as journal:
        assert events_of(journal.path) == written
        assert journal.append("note", text="on").seq == 2


def conductor(journal: Journal, events: list[Event]) -> Conductor:
    """Of a search of two points, one at a time."""
    raw = {"method": "proxy_anchor", "settings": {"device": "cpu"}, "space": {"lr": [1e-3, 1e-2]}, "algorithm": "grid"}
    search = resolve_search(raw, name="s", source="test.yaml")
    if not events:
        events = [begin(journal, search)]
    folder = journal.path.parent
    return Conductor(search, folder, data=folder, journal=journal, events=events, slots=1)


def test_a_store_that_answers_503_for_ever_stops_the_search_in_order(
    storage: str, front: Unsteady, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Journal(journal_of(storage)) as journal:
        search = conductor(journal, [])
        refused: Iterator[str | int | None] = iter([503, "cut", 503])
        front.whim = lambda method, path: next(refused, None)
        assert search.next() is not None, "what passes is waited for"
        front.whim = lambda method, path: 503
        monkeypatch.setattr(object_store, "PATIENCE_SECONDS", 0.5)
        with pytest.raises(OSError, match="answers SlowDown, for . s") as raised:
            search.report(Validated("0000", 1, {"val/map_at_r": 0.1}, 1.0))
        assert (fault := storage_fault(raised.value, storage)) and fault.startswith(
            f"{storage}/searches/x/journal/00000002"
        )
        assert search.stopping and search.fault == fault and search.next() is None
        assert search.ledger.trials["0000"].validations == 0, "what is not recorded did not happen"
    front.whim = lambda method, path: None
    elsewhere(monkeypatch, tmp_path / "there")
    with Journal(journal_of(storage)) as journal:
        search = conductor(journal, events_of(journal.path))
        work = search.next()
        assert work is not None and work.trial_id == "0000"
        assert work.folder == f"{storage}//searches/x/trials/0000"


@pytest.mark.parametrize("kept", ["on a disk", "in a store"])
def test_a_folder_is_the_same_on_a_disk_and_in_a_store(
    storage: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kept: str
) -> None:
    """What one machine writes, the next reads; on a disk, both see the same folder."""

    def machine(name: str) -> Folder:
        elsewhere(monkeypatch, tmp_path / name)
        return Folder((tmp_path / "disk" if kept == "on a disk" else working_copy(storage)) / "searches")

    here = machine("one")
    assert here.folders() == [] and here.read("a") is None and here.fault() is None
    here.write("a", b"1")
    here.write("a", b"2")
    here.write("x/b", b"3")
    here.remove("missing")
    with here.output("x/report/page.html") as page:
        page.parent.mkdir(parents=True, exist_ok=True)
        page.write_text("page")
    with here.output("y/insight") as folder:
        (folder / "maps").mkdir(parents=True)
        for name in ("classes.csv", "maps/0.csv"):
            (folder / name).write_text(name)
    with pytest.raises(ZeroDivisionError), here.output("z/page.html") as page:
        page.write_text(str(1 / 0))
    there = machine("two")
    assert there.read("a") == b"2" and there.read("x/b") == b"3"
    assert [name for name in there.folders() if name != "z"] == ["x", "y"]
    for name in ("x/report/page.html", "y/insight", "nothing"):
        there.fetch(name)
    assert (there.path / "x/report/page.html").read_text() == "page"
    assert (there.path / "y/insight/maps/0.csv").read_text() == "maps/0.csv"
    there.remove("a")
    assert machine("one").read("a") is None
    assert str(here) == (str(here.path) if kept == "on a disk" else f"{storage}/searches")


def test_the_machines_of_a_store_share_the_scores_of_untrained_networks(
    storage: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, front: Unsteady
) -> None:
    score = {
        "split": "test",
        "metrics": {"map_at_r": 0.25},
        "intervals": {},
        "of": {"classes": 3, "images": 9, "queries": 9},
    }
    assert untrained.find_score(working_copy(storage), "a") is None
    untrained.save_score(working_copy(storage), "a", score)
    elsewhere(monkeypatch, tmp_path / "there")
    assert untrained.find_score(working_copy(storage), "a") == score
    front.whim = lambda method, path: 503
    assert untrained.find_score(working_copy(storage), "a") is None  # then it is measured again
    with pytest.warns(UserWarning, match=f"{storage}/untrained: the untrained score is not saved"):
        untrained.save_score(working_copy(storage), "b", score)


def unpublished(server: Server, storage: str) -> list[str]:
    """The files of this machine's working copy that no other machine can see, but for those that each keeps itself."""
    root, there = working_copy(storage), keys(server, storage)
    found = []
    for path in (*root.glob("searches/*/**/*"), *root.glob("benchmarks/*/**/*")):
        name = path.relative_to(root).as_posix()
        own = re.search(r"/(journal\.jsonl|study\.journal|tracking-[^/]*\.json)$", name)
        if path.is_file() and not own and not any(key == name or key.startswith(f"{name}.") for key in there):
            found.append(name)
    return found


# Trials -----------------------------------------------------------------------------------------------------


def trial(storage: str, name: str = "0000") -> str:
    return f"{storage}//searches/x/trials/{name}"


def mine(value: Any) -> Any:
    return value


def test_the_manifest_is_last(storage: str, front: Unsteady, server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever is cut, a reader takes all that was there before, and nothing else."""
    monkeypatch.setattr(object_store, "PATIENCE_SECONDS", 0.5)  # what is refused here stays so
    with TrialFiles(trial(storage)) as files:
        files.fetch(mine, leader=True)
        (files.folder / "fold-0").mkdir()
        (files.folder / "fold-0" / "best.pt").write_bytes(b"best 1")
        (files.folder / CHECKPOINT).write_bytes(b"checkpoint 1")
        (files.folder / ".checkpoint.pt.tmp").write_bytes(b"half")
        files.keep()
        asked = len(front.asked)
        files.keep()
        assert len(front.asked) == asked, "what has not changed costs nothing"
        for number, refused in enumerate((CHECKPOINT, MANIFEST), start=2):
            (files.folder / CHECKPOINT).unlink()
            (files.folder / CHECKPOINT).write_bytes(b"checkpoint %d" % number)
            front.whim = lambda method, path, refused=refused: "cut" if f"/{refused}" in path else None  # type: ignore[misc]
            with pytest.raises(OSError, match="no connection"):
                files.keep()
            front.whim = lambda method, path: None
            with TrialFiles(trial(storage)) as reader:
                reader.fetch(mine, leader=True)
                assert (reader.folder / CHECKPOINT).read_bytes() == b"checkpoint 1"
                assert (reader.folder / "fold-0" / "best.pt").read_bytes() == b"best 1"
                assert sorted(path.name for path in reader.folder.rglob("*")) == ["best.pt", CHECKPOINT, "fold-0"]
        files.keep()
    assert not files.folder.exists()
    folder = local(trial(storage))
    folder.mkdir(parents=True)
    (folder / "best.pt").write_bytes(b"of another time")
    fetch_trial(folder)
    assert (folder / CHECKPOINT).read_bytes() == b"checkpoint 3" and not (folder / "best.pt").exists()
    fetch_trial(folder, "insight")
    assert (folder / CHECKPOINT).exists(), "a part that is fetched later leaves the rest"
    drop(folder, [CHECKPOINT])
    left = keys(server, f"{storage}/searches/x/trials/0000")
    assert len(left) == 2 and left[0].startswith("fold-0/best.pt.") and left[1] == MANIFEST, "orphans go too"
    fetch_trial(folder)
    assert [path.name for path in folder.rglob("*.pt")] == ["best.pt"]


def test_a_copy_of_a_trial_has_its_files(storage: str, front: Unsteady, monkeypatch: pytest.MonkeyPatch) -> None:
    """All of them or, where one could not be copied, none; the other trial goes on without it."""
    monkeypatch.setattr(object_store, "PATIENCE_SECONDS", 0.5)
    with TrialFiles(trial(storage)) as files:
        for name in ("best.pt", CHECKPOINT):
            (files.folder / name).write_bytes(name.encode())
        files.keep()
        front.whim = lambda method, path: "cut" if f"0001/{CHECKPOINT}" in path else None
        with pytest.raises(OSError, match="no connection"):
            copy_files(local(trial(storage)), local(trial(storage, "0001")))
        front.whim = lambda method, path: None
        with TrialFiles(trial(storage, "0001")) as copy:
            copy.fetch(mine, leader=True)
            assert not list(copy.folder.iterdir())
        copy_files(local(trial(storage)), local(trial(storage, "0001")))
        for name in ("best.pt", CHECKPOINT):
            (files.folder / f".{name}").write_bytes(b"later")
            (files.folder / f".{name}").replace(files.folder / name)
        files.keep()
    copy_files(local(trial(storage)), local(trial(storage, "0001")))
    with TrialFiles(trial(storage, "0001")) as copy:
        copy.fetch(mine, leader=True)
        assert {path.name: path.read_bytes().decode() for path in copy.folder.iterdir()} == {
            name: name for name in ("best.pt", CHECKPOINT)
        }, "once it has files of its own, it keeps them"


def test_damage_and_escapes_are_refused(storage: str, server: Server, tmp_path: Path) -> None:
    with TrialFiles(trial(storage)) as files:
        (files.folder / "best.pt").write_bytes(b"best")
        files.keep()
    folder, root = local(trial(storage)), f"{storage.removeprefix('s3://')}/searches/x/trials/0000"
    (best,) = [key for key in keys(server, f"s3://{root}") if key != MANIFEST]
    put(server, f"{root}/{best}", b"beat")
    with pytest.raises(OSError, match="not what manifest.json says: missing or damaged"):
        fetch_trial(folder)
    assert not (folder / "best.pt").exists()

    def told() -> str | None:
        """Why a training of this trial would begin anew."""
        with TrialFiles(trial(storage)) as reader:
            reason = reader.fetch(lambda value: value, leader=True)
            assert not list(reader.folder.rglob("*.pt"))
            return reason

    assert told() == f"s3://{root}/{best}: not what manifest.json says: missing or damaged"
    entry = {"object": "best.pt", "size": 4, "sha256": "00"}
    bad: list[Any] = [{"../../escaped": entry}, {"a": entry | {"object": "../b"}}, {"a": {}}, [1], {"/etc/x": entry}]
    for files_ in bad:
        Folder(folder).write(MANIFEST, json.dumps({"files": files_}).encode())
        with pytest.raises(InputError, match=rf"^s3://{root}/{MANIFEST}: damaged"):
            fetch_trial(folder)
        assert str(told()).startswith(f"s3://{root}/{MANIFEST}: damaged")


def timeless(result: Result) -> Validated:
    assert isinstance(result, Validated), result
    return replace(result, seconds=0)


def test_a_training_goes_on_elsewhere(
    storage: str, front: Unsteady, data_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A store that fails is no fault of the trial; with nothing at hand it ends as an undisturbed one does."""
    work = Work("0", resolve_experiment(SETTINGS, "trial"), str(data_folder), str(tmp_path / "disk"), test=True)
    undisturbed = [timeless(result) for result in results(work)]
    assert len(undisturbed) > 2 and undisturbed[-1].test
    work = replace(work, folder=trial(storage))
    front.whim = lambda method, path: 503
    (only,) = results(work)
    assert isinstance(only, Interrupted) and only.reason.startswith(storage) and "SlowDown" in only.reason
    front.whim = lambda method, path: None
    disturbed = results(work)
    assert timeless(next(disturbed)) == undisturbed[0]
    front.whim = lambda method, path: "cut" if MANIFEST in path else None
    cut = next(disturbed)
    assert isinstance(cut, Interrupted) and "no connection" in cut.reason
    front.whim = lambda method, path: None
    elsewhere(monkeypatch, tmp_path / "there")
    assert [timeless(result) for result in results(work)] == undisturbed
    fetch_trial(local(trial(storage)))
    ours, theirs = (
        {path.relative_to(folder): path.name for path in folder.rglob("*") if path.is_file()}
        for folder in (local(trial(storage)), tmp_path / "disk")
    )
    assert ours == theirs


# Steering ---------------------------------------------------------------------------------------------------


def results_of(work: Work, environment: dict[str, str]) -> list[Result]:
    """On one of two processes: the results, as a worker of Ray Train has them."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in environment.items():
            patch.setenv(name, value)
        return list(results(work))


@pytest.mark.slow
def test_each_process_of_a_group_tests_what_the_first_has_written(
    storage: str, pair: Any, data_folder: Path, tmp_path: Path
) -> None:
    """Each has a folder of its own: that the model is there is not a matter of course."""
    work = Work("final", resolve_experiment(SETTINGS, "trial"), str(data_folder), trial(storage, "final"), test=True)
    environment = {name: value for name, value in os.environ.items() if name.startswith("AWS_")}
    one, other = pair.run(results_of, work, environment | {"ORCHESTRATOR_CACHE": str(tmp_path / "here")})
    assert one[-1].finished and 0 < one[-1].test["map_at_r"] <= 1
    assert other[-1].test.items() <= one[-1].test.items(), "the first process evaluates; it alone records the intervals"
    fetch_trial(local(trial(storage, "final")))
    assert (local(trial(storage, "final")) / "insight" / "classes.csv").exists()


def test_a_driver_is_seen_and_steered_through_the_store(
    storage: str, server: Server, front: Unsteady, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(control, "LOOK_SECONDS", 0.1)
    monkeypatch.setattr(presence, "LOOK_SECONDS", 0.1)
    folder = journal_of(storage).parent
    search: Any = SimpleNamespace(folder=folder, stopping=False, pausing=False, stopped_by=None)
    send_request(folder, "stop")  # meant for an earlier driver
    with driver_lease(search):
        while (found := driver(folder)) is None:
            pass
        assert found["pid"] == os.getpid() and not search.stopping
        assert (alive := living_driver(folder)) is not None and alive["by"] == found["by"]
        send_request(folder, "stop")
        while not search.stopping or pending_request(folder):
            pass
    assert keys(server, storage) == []
    gone = {"by": "me@far", "host": "far", "pid": 1, "time": 4e15}
    Folder(folder).write(DRIVER, json.dumps(gone).encode())
    assert living_driver(folder) is None, "it says nothing more"
    with driver_lease(search):
        front.whim = lambda method, path: 503 if method == "PUT" else None  # it says nothing more itself
        put(server, f"{storage}/searches/x/{DRIVER}", json.dumps(gone).encode())
    assert keys(server, storage) == [f"searches/x/{DRIVER}"], "another driver's is not taken away"


@pytest.mark.slow
def test_a_live_page_follows_a_search_of_another_machine(storage: str, tmp_path: Path) -> None:
    """The page of the store's search, served from a machine that has nothing of it, while it goes on here."""
    from urllib.request import urlopen

    def page(path: str) -> str:
        with urlopen(address + path, timeout=60) as answer:
            return str(answer.read().decode())

    with Journal(journal_of(storage)) as journal:
        search = conductor(journal, [])
        work = search.next()
        assert work is not None
        command = [sys.executable, "-m", "orchestrator", "watch", "x", "--storage", storage]
        command += ["--port=0", "--json", "--no-browser"]
        there = os.environ | {"ORCHESTRATOR_CACHE": str(tmp_path / "there")}
        pipe = subprocess.PIPE
        watching = subprocess.Popen(command, env=there, stdout=pipe, stderr=pipe, text=True)
        try:
            assert watching.stdout is not None
            address = str(json.loads(watching.stdout.readline())["address"])
            version, html = page("version"), page("")
            assert "val/map_at_r 0.4321" not in html
            search.report(Validated(work.trial_id, 1, {"val/map_at_r": 0.4321}, 1.0))
            end = time.monotonic() + 30
            while page("version") == version and time.monotonic() < end:
                time.sleep(0.2)
            assert f"So far trial {work.trial_id}: val/map_at_r 0.4321" in page("")
            watching.send_signal(signal.SIGINT)
            _, said = watching.communicate(timeout=60)
        finally:
            watching.kill()
            watching.wait()
    assert watching.returncode == 0 and "no longer served" in said and "Traceback" not in said


# Data sets and the command line -----------------------------------------------------------------------------


def test_data_sets_lie_beneath_the_storage(
    storage: str, server: Server, glyphs: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", server.endpoint)
    root = working_copy(storage) / "data"
    with pytest.raises(DataError, match=f"'mine' is not at {storage}/data/mine: .*datasets publish mine {storage}"):
        open_dataset("mine", root)
    publish_store(glyphs, f"{storage}/data/mine")
    assert open_dataset("mine", root).manifest == glyphs.manifest
    assert open_dataset("mine", root).path.is_relative_to(tmp_path / "here")


@pytest.mark.parametrize(
    ("change", "whim", "told"),
    [
        ({}, None, "no bucket 'no-such-bucket' at 127.0.0.1"),
        ({"AWS_ENDPOINT_URL": "http://127.0.0.1:1"}, None, "no connection to 127.0.0.1:1 (EndpointConnection"),
        ({"AWS_ACCESS_KEY_ID": "", "AWS_SECRET_ACCESS_KEY": ""}, None, "no credentials for 127.0.0.1"),
        ({}, 403, "access denied by 127.0.0.1"),
        ({}, 503, "answers SlowDown, for"),
    ],
)
def test_what_cannot_be_reached_is_one_line(
    storage: str,
    front: Unsteady,
    tmp_path: Path,
    change: dict[str, str],
    whim: int | None,
    told: str,
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(object_store, "PATIENCE_SECONDS", 0.5)  # what is refused here stays so
    monkeypatch.setattr(object_store, "IMPATIENCE_SECONDS", 0.3)
    for name, value in change.items():
        monkeypatch.setenv(name, value) if value else monkeypatch.delenv(name)
    front.whim = lambda method, path: whim
    buckets._bucket.cache_clear()
    address = storage if whim else "s3://no-such-bucket/runs"
    settings = [f"--set={key}={value}" for key, value in SETTINGS.items() if key not in ("method", "dataset", "epochs")]
    train = ["train", "--method=proxy_anchor", "--dataset=glyphs-small", "--name=x", *settings]
    for command in (train, ["status", "x"], ["list"], ["evaluate", "x", "--dataset=glyphs-small"]):
        assert run(*command, f"--storage={address}") == 2
        printed = capfd.readouterr()
        (line,) = printed.err.splitlines()
        assert line.startswith(("error: s3://", "error: --storage")) and told in line and SECRET not in line
        assert "benchmarks" not in line  # a search was asked for
    buckets._bucket.cache_clear()
    assert not [path for path in (tmp_path / "here").rglob("*") if path.is_file() and path.suffix != ".lock"]


def test_an_address_with_a_password_is_refused(storage: str, capfd: pytest.CaptureFixture[str]) -> None:
    assert run("list", f"--storage=s3://me:{SECRET}@{storage.removeprefix('s3://')}") == 2
    line = capfd.readouterr().err
    assert "--storage: 's3://***@" in line and "AWS_*, GOOGLE_* or AZURE_* variables" in line and SECRET not in line
    assert run("datasets", f"--storage={storage}") == 2
    assert "data sets are prepared on a disk" in capfd.readouterr().err


@pytest.mark.slow
def test_a_training_is_found_from_another_machine(
    storage: str,
    server: Server,
    glyphs: Store,
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Trained here; listed, reported, evaluated and sent to MLflow there; no object holds a secret."""
    monkeypatch.setenv("AWS_ENDPOINT_URL", server.endpoint)
    publish_store(glyphs, f"{storage}/data/mine")
    settings = {"embedding_dim": 4, "class_subset": 8, "classes_per_batch": 2, "validation_share": 0, "threads": 1}
    sets = [f"--set={key}={value}" for key, value in settings.items()]
    where = f"--storage={storage}"
    assert run("train", "--method=proxy_nca", "--dataset=mine", "--epochs=1", "--name=one", where, *sets) == 0
    printed = capfd.readouterr()
    assert "note: MLflow's database is on this machine" in printed.err and f"ui one --storage {storage}" in printed.out
    assert any(name.startswith("searches/one/report/model.html") for name in keys(server, storage))
    assert unpublished(server, storage) == []
    elsewhere(monkeypatch, tmp_path / "there")
    assert run("train", "--method=proxy_nca", "--dataset=mine", "--epochs=1", "--name=one", where, *sets) == 2
    assert f"'one' exists in {storage}/searches/one: continue it" in capfd.readouterr().err
    assert run("list", where, "--json") == 0
    assert [found["name"] for found in json.loads(capfd.readouterr().out)] == ["one"]
    assert run("status", "one", where) == 0 and "1 done" in capfd.readouterr().out
    assert run("status", "two", where) == 2 and f"no search 'two' under {storage}" in capfd.readouterr().err
    assert run("report", "one", where, "--html", str(tmp_path / "page.html")) == 0
    assert "one" in (tmp_path / "page.html").read_text() and capfd.readouterr()
    assert run("evaluate", "one", "--dataset=mine", where, "--json") == 0
    assert 0 < json.loads(capfd.readouterr().out.splitlines()[-1])["metrics"]["map_at_r"] < 1
    assert run("export", "one", where, "--to=torchscript", "--dataset=mine", "--output", str(tmp_path / "one.pt")) == 0
    assert (tmp_path / "one.pt").stat().st_size > 0 and "one.pt" in capfd.readouterr().out
    assert run("sync", "one", where) == 0
    assert "the search has 2 runs there" in (told := capfd.readouterr()).out and "refused" not in told.err
    assert (working_copy(storage) / "mlartifacts").exists()
    root = storage.removeprefix("s3://")
    names = keys(server, storage)
    assert any(name.startswith("searches/one/trials/0000/model.pt.") for name in names)
    assert not any(CHECKPOINT in name or DRIVER in name for name in names)
    for name in names:
        with server.files().open_input_stream(f"{root}/{name}") as file, contextlib.suppress(UnicodeDecodeError):
            assert SECRET not in file.read().decode()


@pytest.mark.slow
def test_a_benchmark_goes_on_elsewhere(
    storage: str,
    server: Server,
    data_folder: Path,
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Stopped in its first search here; ended, compared and asked for once more on other machines."""
    monkeypatch.setattr("orchestrator.search.driver.MLflowTracker", lambda path, uri, artifacts: MemoryTracker(path))
    monkeypatch.setattr(object_store, "PATIENCE_SECONDS", 60.0)  # nothing is refused here, and the machine may be slow
    monkeypatch.setattr(object_store, "IMPATIENCE_SECONDS", 60.0)

    def machine(name: str) -> Path:
        elsewhere(monkeypatch, tmp_path / name)
        place = working_copy(storage)
        place.mkdir(parents=True)
        (place / "data").symlink_to(data_folder)
        return place

    stopped = benchmark_searches.run_methods(
        asked_for("pfml", "proxy_anchor"), MadeRunner(stop_after=20), storage=machine("first")
    )
    assert stopped.stopped == "interrupted" and not stopped.fault
    place, runner = machine("second"), MadeRunner()
    chosen = benchmark.find_benchmark(Places(place), "b")
    assert chosen == asked_for("pfml", "proxy_anchor")
    ended = benchmark_searches.run_methods(chosen, runner, storage=place)
    assert ended.stopped is None and len(ended.comparison.members) == 2
    assert unpublished(server, storage) == [] and "benchmarks/b/report.html" in keys(server, storage)
    assert "pfml 0000" not in runner.ran  # it had ended on the first machine
    place, runner = machine("third"), MadeRunner()
    assert benchmark_searches.run_methods(chosen, runner, storage=place).comparison.verdict == ended.comparison.verdict
    assert runner.ran == []
    assert run("compare", "b", f"--storage={storage}", "--json") == 0
    assert json.loads(capfd.readouterr().out)["verdict"][0] == ended.comparison.verdict[0]


# A search ---------------------------------------------------------------------------------------------------


def recorded(storage: str, kind: str) -> list[dict[str, Any]]:
    """The events of the search that the store holds now, as a new machine sees them."""
    path = journal_of(storage)
    refresh(path)
    return [event for event in Journal.read(path) if event["event"] == kind] if path.exists() else []


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_a_search_loses_nothing_with_its_machine(
    storage: str, front: Unsteady, server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every ninth request is refused; the driver is killed, its machine's disk is lost, another goes on; it is stopped
    from a third, and goes on from there. The leaderboard is that of a search on a disk that nothing disturbs."""
    monkeypatch.setattr(object_store, "IMPATIENCE_SECONDS", 60.0)
    (tmp_path / "project").mkdir()
    space, one = LONG | {"final": True, "final_workers": 2}, ("--max-concurrent", "1")
    terminal, counter = Terminal(tmp_path / "runs", tmp_path / "project"), itertools.count(1)
    where, pace = f"--storage={storage}", [0.0]

    def whim(method: str, path: str) -> int | None:
        if method == "PUT" and MANIFEST in path:
            time.sleep(pace[0])  # a validation takes as long as its upload: time to type
        return 503 if next(counter) % 9 == 0 else None

    def finish(*words: str, code: int = 0) -> tuple[str, str]:
        return terminal.finish(terminal.begin(*words), code, seconds=900)

    def reach(process: subprocess.Popen[str], validations: int) -> None:
        elsewhere(monkeypatch, tmp_path / "watching")
        wait(lambda: process.poll() is not None or len(recorded(storage, "validation")) >= validations, 900)
        assert process.poll() is None, process.communicate()[1]

    try:
        terminal.finish(terminal.search(space, "x", *one), seconds=900)
        elsewhere(monkeypatch, tmp_path / "first")
        front.whim = whim
        process = terminal.search(space, "x", where, *one)
        reach(process, 2)
        pace[0] = 5.0
        elsewhere(monkeypatch, tmp_path / "second")
        assert json.loads(finish("status", "x", where, "--json")[0])["state"] == "running"
        assert "the search is running" in finish("resume", "x", where, code=2)[1]
        processes = [child for child in family(process) if not title(child).endswith("Agent")]
        process.kill()
        process.communicate()
        wait(lambda: not alive(processes), 120)
        shutil.rmtree(tmp_path / "first")
        assert json.loads(finish("status", "x", where, "--json")[0])["state"] == "lost"
        done_before = len(recorded(storage, "validation"))
        process = terminal.begin("resume", "x", where, "--json")
        reach(process, done_before + 1)
        elsewhere(monkeypatch, tmp_path / "third")
        stopped = json.loads(finish("stop", "x", where, "--json")[0])
        assert (stopped["state"], stopped["driver"], stopped["counts"]["interrupted"]) == ("interrupted", None, 1)
        assert f"orchestrator resume x --storage {storage}" in terminal.finish(process, code=130)[1]
        pace[0] = 0.0
        done = last_line(finish("resume", "x", where, "--json")[0])
        assert done["state"] == "done" and done["parent_run_id"] and all(trial["run_id"] for trial in done["trials"])
    finally:
        for process in terminal.started:
            if process.poll() is None:
                for child in [*family(process), psutil.Process(process.pid)]:
                    with contextlib.suppress(psutil.NoSuchProcess):
                        child.kill()
                process.communicate()
    refresh(journal_of(storage))
    rows = leaderboard_rows(Ledger.of(Journal.read(journal_of(storage))))
    assert [row | {"seconds": 0} for row in rows] == [row | {"seconds": 0} for row in terminal.leaderboard("x")]
    found = [(event["trial_id"], event["validation"]) for event in recorded(storage, "validation")]
    assert len(found) == len(set(found)), "no validation twice"
    left = keys(server, f"{storage}/searches/x")
    assert not [key for key in left if CHECKPOINT in key]
    assert not {DRIVER, "request.json"} & set(left)


# A store of a stranger ----------------------------------------------------------------------------------------------

KEY, SECRET_KEY = "MYOWNKEYID0000001", "its-secret-key"


class Redirecting(BaseHTTPRequestHandler):
    """Answers each request by a redirect to another address of its own, or refuses it with the key that asked."""

    status = 307
    asked: ClassVar[list[str]] = []

    def do_GET(self) -> None:
        self.asked.append(self.path)
        body = f"<Error><Code>Odd</Code><Message>{KEY} and AKIAABCDEFGHIJKLMNOP may not</Message></Error>".encode()
        self.send_response(self.status)
        self.send_header("Location", f"http://{self.headers['Host']}/again/{len(self.asked)}")
        self.send_header("x-amz-bucket-region", f"region-{len(self.asked)}")
        self.send_header("Content-Length", str(0 if self.command == "HEAD" else len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    do_HEAD = do_PUT = do_GET

    def log_message(self, format: str, *args: Any) -> None:
        pass


@pytest.mark.parametrize("status", [301, 302, 307, 308, 400])
def test_redirects_end_and_no_key_is_in_a_message(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, status: int) -> None:
    monkeypatch.setattr(Redirecting, "status", status)
    keys = f"[default]\naws_access_key_id = {KEY}\naws_secret_access_key = {SECRET_KEY}\n"
    (tmp_path / "credentials").write_text(keys)
    for name in s3.SECRETS:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "credentials"))
    with serving(ThreadingHTTPServer(("127.0.0.1", 0), Redirecting)) as server:
        monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{server.server_port}")
        monkeypatch.setenv("AWS_REGION", "us-east-1")
        bucket = buckets.open_bucket("s3", "strange")
        asks: list[Callable[[], object]] = [
            lambda: bucket.get("a"),
            lambda: bucket.keys("a"),
            lambda: bucket.put("a", b""),
        ]
        for ask in asks:
            Redirecting.asked.clear()
            with pytest.raises(OSError, match="strange/a") as refused:
                ask()
            told = str(refused.value)
            assert len(Redirecting.asked) <= 3 and "\n" not in told
            assert not [key for key in (KEY, SECRET_KEY, "AKIA") if key in told]
            assert ("redirects to another address; set AWS_ENDPOINT_URL" in told) == (status != 400)
