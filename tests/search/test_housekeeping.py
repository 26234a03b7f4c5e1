"""Searches are tagged, renamed, listed, watched and deleted; one that runs is refused, and a kill leaves no half."""

import errno
import json
import os
import shutil
import time
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
from support.kept_searches import places as places
from support.kept_searches import search
from support.memory_tracking import MemoryStore
from support.recorded import record
from support.s3 import moto

from orchestrator.cli.main import main
from orchestrator.cli.serving import Shelf
from orchestrator.report.html.storage_page import storage_page
from orchestrator.search.control import status
from orchestrator.search.housekeeping import delete, label, rename, to_delete
from orchestrator.storage import folder as folders
from orchestrator.storage.buckets import find_bucket
from orchestrator.storage.folder import Folder
from orchestrator.storage.journal import Journal
from orchestrator.storage.labels import LABELS, read_labels
from orchestrator.storage.ledger import BENCHMARK
from orchestrator.storage.paths import in_command, working_copy
from orchestrator.storage.places import JOURNAL, Places
from orchestrator.storage.presence import DRIVER
from orchestrator.storage.reading import read_journal
from orchestrator.storage.s3 import S3Bucket
from orchestrator.tracking import trackers
from orchestrator.tracking.address import tracking_address
from orchestrator.tracking.sender import Sender, cursor_name
from orchestrator.tracking.store import TrackingError

SERVER = "http://host:5000"


def drive(folder: Path) -> None:
    """Another machine drives the search in a folder."""
    beat = {"by": "me@there", "host": "there", "pid": 7, "time": time.time() * 1000}
    Folder(folder).write(DRIVER, json.dumps(beat).encode())


def names(places: Places) -> list[str]:
    return [path.parent.name for path in places.journals()]


def run(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as leaving:
        main(words)
    printed = capsys.readouterr()
    return int(leaving.value.code or 0), printed.out, printed.err


def test_tags_and_a_note_are_kept_and_changed(places: Places) -> None:
    folder = search(places, "one")
    label("one", places, add=["paper", "x=1", "paper"], note=" too high ")
    assert read_labels(folder).model_dump() == {"tags": ["paper", "x=1"], "note": "too high"}
    label("one", places, add=["b"], remove=["x=1"])
    assert read_labels(folder).tags == ["paper", "b"] and read_labels(folder).note == "too high"
    label("one", places, note="")
    assert read_labels(folder).note == ""
    shown = status(read_journal(folder / JOURNAL)[1], folder).plain
    assert (shown["tags"], shown["dataset"], shown["method"]) == (["paper", "b"], "glyphs", "pfml")


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["tag", "one", "two words"], "TAG: 'two words' should be up to 50 letters"),
        (["tag", "one", "--remove", "x"], "--remove x: 'one' has no such tag (it has none)"),
        (["note", "one", "x" * 3000], "TEXT: 3,000 characters; at most 2,000"),
        (["tag", "won", "x"], "no search 'won'"),
        (["rename", "one", "two"], "NEW: 'two' exists"),
        (["rename", "one", "a b"], "NEW: 'a b' should be letters"),
        (["rename", "one", "one"], "NEW: 'one' is its name already"),
        (["rename", "won", "three"], "no search 'won'"),
        (["delete", "one"], "delete: removes search 'one' and all its models for good: confirm it with --yes"),
        (["delete", "won", "--yes"], "no search 'won'"),
        (["list", "--dataset", "glyps"], "--dataset: no search with dataset 'glyps' (did you mean 'glyphs'?)"),
        (["list", "--state", "dune"], "--state: no search with state 'dune' (did you mean 'done'?)"),
        (["list", "--sort", "size"], "--sort: 'size' is unknown"),
    ],
)
def test_what_is_refused_is_one_line_and_changes_nothing(
    words: list[str], says: str, places: Places, capsys: pytest.CaptureFixture[str]
) -> None:
    search(places, "one")
    search(places, "two")
    before = sorted(places.storage.rglob("*"))
    code, out, said = run(capsys, *words, "--storage", str(places.storage))
    assert (code, out) == (2, "") and says in said and said.count("\n") == 1
    assert sorted(places.storage.rglob("*")) == before


@pytest.mark.parametrize("doing", ["delete", "rename"])
def test_a_running_search_is_refused(doing: str, places: Places) -> None:
    folder = search(places, "one")

    def act() -> None:
        if doing == "delete":
            delete("one", places)
        else:
            rename("one", "two", places)

    drive(folder)
    with pytest.raises(Exception, match=f"{doing}: search 'one' is running: stop it first: orchestrator stop one"):
        act()
    (folder / DRIVER).unlink()
    with Journal(folder / JOURNAL), pytest.raises(Exception, match="'one' is running"):  # before its first heartbeat
        act()
    assert names(places) == ["one"]
    act()
    assert names(places) == ([] if doing == "delete" else ["two"])


def test_a_tag_that_cannot_be_written_is_told_by_the_file_of_the_tags(
    places: Places, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = search(places, "one")
    full = OSError(errno.ENOSPC, "No space left on device", ".labels.json.x1")
    monkeypatch.setattr(Folder, "write", Mock(side_effect=full))
    code, said, told = run(capsys, "tag", "one", "paper", "--storage", str(places.storage))
    assert (code, said) == (
        2,
        "",
    ) and told == f"error: {folder / LABELS}: cannot be written (No space left on device)\n"


def test_printed_commands_name_a_storage_only_where_it_must_be(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("ORCHESTRATOR_STORAGE", raising=False)
    assert in_command(Path("runs")) == in_command(tmp_path / "runs") == ""
    assert in_command(Path("my runs")) == " --storage 'my runs'"
    assert in_command(working_copy("s3://bucket/runs")) == " --storage s3://bucket/runs"
    monkeypatch.setenv("ORCHESTRATOR_STORAGE", "other")  # it would be taken where none is named
    assert in_command(Path("runs")) == " --storage runs"


def test_a_renamed_search_is_the_same_under_another_name(places: Places) -> None:
    folder = search(places, "one", config={"num_trials": 4, "budget": {}, "name": "one"})
    before = read_journal(folder / JOURNAL)[1]
    rename("one", "two", places)
    after = read_journal(places.journal("two"))[1]
    assert (after.name, after.config["name"]) == ("two", "two")
    assert after.trials == before.trials and after.search_id == before.search_id
    assert (places.search("two") / "trials" / "0000" / "best.pt").read_bytes() == b"weights"
    assert not places.search("one").exists()


def test_a_kill_while_files_are_deleted_leaves_no_half(places: Places, monkeypatch: pytest.MonkeyPatch) -> None:
    search(places, "one")
    search(places, "two")

    def killed(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("orchestrator.storage.folder.shutil.rmtree", killed)
        with pytest.raises(KeyboardInterrupt):
            delete("one", places)
    assert names(places) == ["two"]
    assert (places.storage / folders.DELETED).exists()
    delete("two", places)
    assert names(places) == [] and not (places.storage / folders.DELETED).exists()


def test_a_damaged_search_and_what_is_left_of_one_can_be_deleted(places: Places) -> None:
    path = search(places, "one") / JOURNAL
    path.write_text("nonsense\n")
    delete("one", places)
    places.search("two").mkdir(parents=True)
    (places.search("two") / "trials").mkdir()
    assert to_delete("two", places) == ["two"]
    delete("two", places)
    assert not places.search("two").exists()


def test_a_search_of_a_benchmark_is_deleted_with_it(places: Places) -> None:
    home = places.benchmark("both")
    home.mkdir(parents=True)
    record = {"name": "both", "methods": ["pfml", "proxy_anchor"], "overrides": {}, "changes": {}}
    (home / "benchmark.json").write_text(json.dumps(record))
    for method in record["methods"]:
        search(places, f"both-{method}", tags={BENCHMARK: "both"})
    search(places, "other")
    with pytest.raises(Exception, match="'both-pfml' is part of the benchmark 'both': delete that"):
        delete("both-pfml", places)
    with pytest.raises(Exception, match="'both-pfml' is part of the benchmark 'both', which finds"):
        rename("both-pfml", "mine", places)
    drive(places.search("both-proxy_anchor"))
    with pytest.raises(Exception, match="'both-proxy_anchor' is running"):
        delete("both", places)
    assert len(names(places)) == 3
    (places.search("both-proxy_anchor") / DRIVER).unlink()
    assert delete("both", places).searches == ["both-pfml", "both-proxy_anchor"]
    assert names(places) == ["other"] and not home.exists()


def cursor(folder: Path, address: str) -> None:
    content = {"tracking_uri": address, "search_id": "id-one", "events": 1, "offset": 1, "experiment_id": "1"}
    (folder / "tracking-0.json").write_text(json.dumps(content | {"parent_run_id": "run0", "trials": {"0000": "run1"}}))


def test_its_runs_are_deleted_or_it_is_said_why_not(
    places: Places, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    store = MemoryStore()
    store.runs = {"run0": {}, "run1": {}, "run2": {}}
    monkeypatch.setattr(trackers, "MLflowStore", lambda uri, root: store)
    cursor(search(places, "one"), "http://host:5000")  # a stranger's record is not obeyed
    (kept,) = delete("one", places).runs
    assert kept.runs == 0 and "only this storage names that address" in str(kept.problem) and len(store.runs) == 3
    cursor(search(places, "one"), "http://host:5000")
    tracking_address("http://host:5000", places)
    code, out, said = run(capsys, "delete", "one", "--yes", "--storage", str(places.storage))
    assert (code, out) == (0, "deleted search 'one'\n")
    assert said == "2 runs deleted in MLflow at http://host:5000; mlflow gc frees their files\n"
    assert list(store.runs) == ["run2"]

    def silent() -> None:
        raise TrackingError("no MLflow server answers")

    monkeypatch.setattr(store, "connect", silent)
    cursor(search(places, "one"), "http://host:5000")
    code, out, said = run(capsys, "delete", "one", "--yes", "--storage", str(places.storage), "--json")
    assert json.loads(out) == {
        "deleted": ["one"],
        "runs": [{"address": "http://host:5000", "deleted": 0, "problem": "no MLflow server answers"}],
    }
    cursor(search(places, "one"), "http://***@host:5000")
    (found,) = delete("one", places).runs
    assert found.problem == "its secret parts are not recorded: give --tracking-uri"
    cursor(search(places, "one"), "http://host:5000")
    assert delete("one", places, keep_runs=True).runs == []


def send(folder: Path, store: MemoryStore) -> None:
    Sender(folder / JOURNAL, store, folder / cursor_name(SERVER), SERVER).send()


@pytest.fixture
def server(places: Places, monkeypatch: pytest.MonkeyPatch) -> MemoryStore:
    """A tracker that the user has given."""
    store = MemoryStore()
    monkeypatch.setattr(trackers, "MLflowStore", lambda uri, root: store)
    tracking_address(SERVER, places)
    return store


def test_a_copy_deletes_only_what_it_sent_itself(
    places: Places, server: MemoryStore, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = search(places, "one", ended=False)
    send(folder, server)
    elsewhere = Places(places.storage / "backup")
    for copy in (places.search("two"), elsewhere.search("one")):
        shutil.copytree(folder, copy)
    code, _, said = run(capsys, "delete", "one", "--yes", "--storage", str(elsewhere.storage))
    assert code == 0 and len(server.runs) == 2
    assert said == (
        f"its runs in MLflow at {SERVER} stay: 2 of them were sent by {folder}, of which this is a copy: they are "
        "deleted with that, or in MLflow\n"
    )
    with Journal(places.search("two") / JOURNAL) as journal:
        record(journal, "trial_started", trial_id="0001")
    send(places.search("two"), server)
    (done,) = delete("two", places).runs
    assert done.runs == 1 and "2 of them were sent by" in str(done.problem) and list(server.runs) == ["run0", "run1"]
    rename("one", "three", places)  # is the same search
    assert delete("three", places).runs == [trackers.Deletion(SERVER, 2)] and not server.runs


def test_a_search_on_a_shared_disk_is_known_on_every_machine(
    places: Places, server: MemoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By its inode; a copy on another machine has another one, also at the same place."""
    folder = search(places, "one")
    send(folder, server)
    copy = shutil.copytree(folder, places.storage / "copy")
    monkeypatch.setattr("orchestrator.tracking.origin.socket.gethostname", lambda: "another")
    folder.rename(places.storage / "away")
    copy.rename(folder)
    (kept,) = delete("one", places).runs
    assert kept.runs == 0 and f"sent by {folder} on " in str(kept.problem) and len(server.runs) == 2
    (places.storage / "away").rename(folder)
    rename("one", "two", places)
    assert delete("two", places).runs == [trackers.Deletion(SERVER, 2)]


def test_scores_of_several_data_sets_or_metrics_have_tables_of_their_own(
    places: Places, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "120")
    search(places, "low", 0.3)
    search(places, "high", 0.9, method="proxy_anchor")
    search(places, "other", 0.6, dataset="cub200")
    search(places, "loss", 0.1, objective={"metric": "train/loss", "mode": "min"})
    label("low", places, add=["paper"])

    def listed(*words: str) -> tuple[list[str], str]:
        code, out, _ = run(capsys, "list", *words, "--storage", str(places.storage))
        assert code == 0
        return [line.split()[0] for line in out.splitlines() if line.strip()], out

    heads, out = listed("--sort", "best")
    assert [line for line in out.splitlines() if line.count(",") == 1 and "/" in line] == [
        "glyphs, val/map_at_r", "cub200, val/map_at_r", "glyphs, train/loss"
    ]  # fmt: skip
    assert heads.index("high") < heads.index("low")
    assert listed("--dataset", "glyphs", "--method", "pfml", "--tag", "paper")[1].startswith("glyphs, val/map_at_r\n")
    _, out, _ = run(capsys, "list", "--tag", "paper", "--json", "--storage", str(places.storage))
    assert [one["name"] for one in json.loads(out)] == ["low"]
    _, out, _ = run(capsys, "list", "--tag", "none", "--storage", str(places.storage))
    assert out == "no match among 4 searches\n"
    monkeypatch.setenv("COLUMNS", "40")
    _, out = listed("--dataset", "cub200")
    assert " other    pfml     done    map@r 0.6000 \n" in out
    assert all(len(line) <= 40 for line in out.splitlines())
    search(places, "a-long-name-that-needs-more-than-a-line", 0.5, dataset="cars196")
    _, out = listed("--dataset", "cars196")
    assert "done" in out and "map@r 0.5000" in out, "the name is folded, not the others"
    assert all(len(line) <= 40 for line in out.splitlines())


def test_what_claims_train_is_listed_when_asked_for(places: Places, capsys: pytest.CaptureFixture[str]) -> None:
    search(places, "claim-of-mine")
    (places.storage / "claims" / "order-12ab").mkdir(parents=True)
    search(places, "claim-order-12ab-glyphs-pfml-seed31")
    storage = str(places.storage)

    def listed(*words: str) -> tuple[list[str], str]:
        code, out, err = run(capsys, "list", *words, "--json", "--storage", storage)
        assert code == 0
        return sorted(one["name"] for one in json.loads(out)), err

    assert listed() == (["claim-of-mine"], f"without 1 of claims: orchestrator list --claims --storage {storage}\n")
    assert listed("--claims") == (["claim-of-mine", "claim-order-12ab-glyphs-pfml-seed31"], "")
    assert run(capsys, "status", "--storage", storage)[2].count("there is claim-of-mine (see")
    shelf = Shelf(places)
    assert [one.name for one in shelf.states()] == ["claim-of-mine"] and shelf.of_claims == 1
    shelf.close()
    assert "0 searches, 0 running; without 1 of claims" in storage_page([], "runs", of_claims=1)
    shutil.rmtree(places.storage / "claims")
    assert listed() == (["claim-of-mine", "claim-order-12ab-glyphs-pfml-seed31"], ""), "no claim of this storage"


def test_times_are_listed_with_their_zone(
    places: Places, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    search(places, "one")
    began = read_journal(places.search("one") / JOURNAL)[1].started / 1000
    monkeypatch.setenv("TZ", "Asia/Tokyo")
    time.tzset()
    try:
        out = run(capsys, "list", "--storage", str(places.storage))[1]
    finally:
        monkeypatch.undo()
        time.tzset()
    assert out.count("began (UTC)") == 1 and time.strftime("%Y-%m-%d %H:%M", time.gmtime(began)) in out


@pytest.mark.parametrize("words", ["rename one two", "delete one --yes", "tag one paper", "note one text"])
def test_a_storage_that_cannot_be_written_is_told_with_what_would_be_right(
    words: str, places: Places, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    store = MemoryStore()
    store.runs = {"run0": {}, "run1": {}}
    monkeypatch.setattr(trackers, "MLflowStore", lambda uri, root: store)
    cursor(search(places, "one"), "http://host:5000")
    before = sorted(places.storage.rglob("*"))

    def refuse(path: Path) -> None:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS), str(path))

    monkeypatch.setattr(Path, "touch", refuse)
    code, out, said = run(capsys, *words.split(), "--storage", str(places.storage))
    assert (code, out) == (2, "") and said.count("\n") == 1
    assert said.startswith("error: --storage (or ORCHESTRATOR_STORAGE): ")
    right = "do this from an account and a machine that can write there\n"
    assert said.endswith(f" cannot be written (Read-only file system): {right}")
    assert sorted(places.storage.rglob("*")) == before and len(store.runs) == 2


def test_the_time_left_is_estimated_from_what_is_done(places: Places) -> None:
    folder = search(places, "one", ended=False)
    drive(folder)
    found = status(read_journal(folder / JOURNAL)[1], folder).plain
    assert found["state"] == "running"
    assert found["seconds_left"] == pytest.approx(180.0)  # one of four trials in 60 s
    (folder / DRIVER).unlink()
    assert status(read_journal(folder / JOURNAL)[1], folder).seconds_left is None


def test_hours_are_told_as_times(places: Places, capsys: pytest.CaptureFixture[str]) -> None:
    search(places, "one", config={"num_trials": 4, "budget": {"hours": 1.5}})
    code, out, _ = run(capsys, "status", "one", "--storage", str(places.storage))
    assert code == 0 and "1 of 4 trials, 0 epochs, 1 min of 1 h 30 min" in out


def test_watching_ends_with_the_search(
    places: Places, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = search(places, "one", ended=False)
    drive(folder)
    looks: list[float] = []

    def look(seconds: float) -> None:
        looks.append(seconds)
        if len(looks) == 2:
            (folder / DRIVER).unlink()

    monkeypatch.setattr("orchestrator.cli.searches.time.sleep", look)
    code, out, _ = run(capsys, "status", "one", "--watch", "--json", "--storage", str(places.storage))
    assert code == 0 and looks == [2.0, 2.0]
    assert [json.loads(line)["state"] for line in out.splitlines()] == ["running", "lost"]


def test_it_is_the_same_on_an_object_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("ORCHESTRATOR_CACHE", str(tmp_path / "here"))
    with moto(tmp_path) as server:
        for name, value in server.environment().items():
            monkeypatch.setenv(name, value)
        server.files().create_dir("bucket")
        places = Places(working_copy("s3://bucket/runs"))
        folder = search(places, "one")
        bucket, key = find_bucket(folder) or (None, "")
        assert bucket is not None
        bucket.put(f"{key}/trials/0000/best.pt", b"weights")
        label("one", places, add=["paper"])
        count = len(bucket.keys(f"{key}/"))

        copied = 0

        def killed(self: S3Bucket, one: str, new: str, copy: Any = S3Bucket.copy) -> None:
            nonlocal copied
            copied += 1
            if copied == count - 1:
                raise KeyboardInterrupt
            copy(self, one, new)

        with monkeypatch.context() as patch:
            patch.setattr(S3Bucket, "copy", killed)
            with pytest.raises(KeyboardInterrupt):
                rename("one", "two", places)
        rename("one", "two", places)  # goes on
        assert not bucket.keys(f"{key}/") and len(bucket.keys("runs/searches/two/")) == count
        monkeypatch.setenv("ORCHESTRATOR_CACHE", str(tmp_path / "there"))
        places = Places(working_copy("s3://bucket/runs"))
        ledger = read_journal(places.journal("two"))[1]
        assert (ledger.name, len(ledger.trials)) == ("two", 1)
        assert read_labels(places.search("two")).tags == ["paper"]
        with monkeypatch.context() as patch:
            patch.setattr(S3Bucket, "remove", lambda self, keys, patient=True: self.client.delete_object(
                Bucket=self.name, Key=next(iter(keys))
            ))  # fmt: skip
            delete("two", places)  # as if killed after one object
        assert bucket.keys("runs/searches/two/")
        delete("two", places)
        assert not bucket.keys("runs/searches/") and names(places) == []
