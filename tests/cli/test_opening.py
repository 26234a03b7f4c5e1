"""Links in a storage: those of its owner lead to it, and none in a search's folder is followed."""

import errno
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from support.kept_searches import search
from support.memory_tracking import MemoryTracker
from support.recorded import record
from support.watched_storages import asked, served

from orchestrator.errors import InputError
from orchestrator.evaluation.intervals import of_class_tables
from orchestrator.report.confused import read_table
from orchestrator.report.model_view import read_insight
from orchestrator.search.housekeeping import delete
from orchestrator.storage.atomic import write_whole
from orchestrator.storage.cursors import Cursor, recorded_runs
from orchestrator.storage.folder import Folder
from orchestrator.storage.journal import Journal, JournalError
from orchestrator.storage.opening import border, open_file, remove_file
from orchestrator.storage.places import JOURNAL, MODEL_PAGE, Places
from orchestrator.storage.reading import read_journal
from orchestrator.storage.trial_folder import CHECKPOINT, DIAGNOSTICS, SAMPLE, remove_unfinished
from orchestrator.training.checkpoint import load_checkpoint, save_checkpoint

SECRET = "class,queries,map_at_r\n" + "".join(f"secret {n},1,{n / 40}\n" for n in range(40))


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


@pytest.fixture
def outside(tmp_path: Path) -> Path:
    """A folder of the user's, with a file that no search may read, change or delete."""
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / "secret").write_text(SECRET)
    return tmp_path / "home"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A search of one trial, without the trial's files."""
    folder = search(Places(tmp_path / "runs"), "one")
    shutil.rmtree(folder / "trials")
    return folder


READS: dict[str, Callable[[Path], object]] = {
    "text": read_table,
    "intervals": lambda path: of_class_tables([path], "map_at_r"),
    "file": lambda path: open_file(path).read(),
    "small": lambda path: Folder(path.parent).read(path.name),
}


@pytest.mark.parametrize("read", READS)
def test_no_linked_file_is_read(folder: Path, outside: Path, read: str) -> None:
    (folder / "trials" / "0000").mkdir(parents=True)
    (folder / "trials" / "0001").symlink_to(outside)
    (folder / "trials" / "0000" / "secret").symlink_to(outside / "secret")
    for trial in ("0000", "0001"):
        content, told = None, "is a link"
        try:
            content = READS[read](folder / "trials" / trial / "secret")
        except InputError as error:
            told = str(error)
        assert content is None and "is a link" in told
    assert READS[read](outside / "secret") is not None, "so it would have been"


def test_no_linked_array_or_checkpoint_is_read(folder: Path, outside: Path) -> None:
    np.savez(outside / "sample.npz", a=np.zeros(2))
    save_checkpoint(outside / CHECKPOINT, {"a": 1})
    place = folder / "trials" / "0000"
    place.mkdir(parents=True)
    (place / SAMPLE).symlink_to(outside / "sample.npz")
    (place / CHECKPOINT).symlink_to(outside / CHECKPOINT)
    assert read_insight(place) is None
    with pytest.raises(InputError, match="is a link"):
        load_checkpoint(place / CHECKPOINT, mapped=True)
    assert load_checkpoint(outside / CHECKPOINT) == {"a": 1}


def test_nothing_is_written_or_deleted_over_a_link(folder: Path, outside: Path) -> None:
    (folder / "trials").symlink_to(outside)
    (folder / "trials2").symlink_to(outside)
    writes: list[Callable[[], object]] = [
        lambda: save_checkpoint(folder / "trials" / "0000" / CHECKPOINT, {}),
        lambda: write_whole(folder / "trials" / "secret", b"x"),
        lambda: Folder(folder / "trials").write("secret", b"x"),
        lambda: Folder(folder / "trials").remove("secret"),
        lambda: remove_file(folder / "trials2" / "secret"),
        lambda: open_file(folder / "trials2" / "secret", "wb"),
        lambda: Folder(folder).output("trials/page.html").__enter__(),
    ]
    (outside / f".{CHECKPOINT}.x").touch()
    writes.append(lambda: remove_unfinished(folder / "trials"))
    for write in writes:
        with pytest.raises(InputError, match="is a link"):
            write()
    assert names(outside) == [f".{CHECKPOINT}.x", "secret"] and (outside / "secret").read_text() == SECRET


def test_a_cursor_is_not_written_over_a_link(folder: Path, outside: Path) -> None:
    for name in ("tracking-1.json", "tracking-1.part"):
        (folder / name).symlink_to(outside / "secret")
    assert Cursor.load(folder / "tracking-1.json") == Cursor()
    assert recorded_runs(folder / JOURNAL).tracking_uri is None
    Cursor("id", 1, 2, "3").save(folder / "tracking-1.json", "address")
    assert (outside / "secret").read_text() == SECRET
    assert Cursor.load(folder / "tracking-1.json").experiment_id == "3"


def test_a_linked_journal_is_neither_read_nor_continued(folder: Path, outside: Path) -> None:
    (folder / JOURNAL).rename(outside / JOURNAL)
    before = (outside / JOURNAL).read_bytes()
    (folder / JOURNAL).symlink_to(outside / JOURNAL)
    with pytest.raises(InputError, match="is a link, and none is followed"):
        read_journal(folder / JOURNAL)
    with pytest.raises(JournalError, match="is a link, and none is followed"):
        Journal(folder / JOURNAL)
    assert (outside / JOURNAL).read_bytes() == before and Places(folder.parents[1]).journals() == [folder / JOURNAL]


def test_a_linked_page_is_not_served(folder: Path, outside: Path) -> None:
    (folder / MODEL_PAGE).parent.mkdir()
    (folder / MODEL_PAGE).symlink_to(outside / "secret")
    (folder / "trials").mkdir()
    (folder / "trials" / "0000").symlink_to(outside)
    (outside / "insight").mkdir()
    (outside / "insight" / "model.html").write_text(SECRET)
    with served(folder.parents[1]) as server:
        for path in ("model", "trials/0000"):
            status, text, _ = asked(server, f"/searches/one/{path}")
            assert status == 404 and "is a link" in text and "secret" not in text.replace(str(folder), "")
        (folder / MODEL_PAGE).unlink()
        (folder / MODEL_PAGE).write_text("a page")
        assert asked(server, "/searches/one/model")[:2] == (200, "a page")


@pytest.mark.parametrize("kind", ["file", "folder", "inside", "fifo"])
def test_no_linked_artifact_is_sent(folder: Path, outside: Path, kind: str) -> None:
    place = folder / "trials" / "0000" / DIAGNOSTICS
    place.parent.mkdir(parents=True)
    if kind == "folder":
        place.symlink_to(outside)
    else:
        place.mkdir()
        name = place / "secret"
        os.mkfifo(name) if kind == "fifo" else name.symlink_to(outside / "secret")
    path = str(place.relative_to(folder) / "secret") if kind == "file" else str(place.relative_to(folder))
    (folder / JOURNAL).unlink()
    with Journal(folder / JOURNAL) as journal:
        record(journal, "search_started")
        record(journal, "trial_started", trial_id="0000")
        record(journal, "artifact", trial_id="0000", path=path)
    tracker = MemoryTracker(folder / JOURNAL)
    tracker.notify()
    sent = {name for run in tracker.runs.values() for name in run["artifacts"]}
    assert "secret" not in sent and DIAGNOSTICS not in sent
    assert tracker.problem is not None and "artifact trials/0000/diagnostics" in tracker.problem


def test_what_is_no_file_is_refused_at_once(folder: Path) -> None:
    os.mkfifo(folder / "pipe")
    (folder / "device").symlink_to("/dev/zero")
    for name, told in (("pipe", "a device or a pipe"), ("trials", "a folder"), ("device", "is a link")):
        (folder / "trials").mkdir(exist_ok=True)
        with pytest.raises(InputError, match=told):
            open_file(folder / name)
    with pytest.raises(InputError, match="is a device or a pipe, and should be a file"):
        open_file(Path("/dev/zero"))


def test_a_linked_folder_of_deleted_ones_takes_nothing(folder: Path, outside: Path) -> None:
    storage = folder.parents[1]
    (storage / ".deleted").symlink_to(outside)
    delete("one", Places(storage), keep_runs=True)
    assert not folder.exists() and names(outside) == ["secret"] and not (storage / ".deleted").exists()


def test_the_owners_links_are_followed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """To the storage, to its searches on another disk, and to one search; deleting the last leaves what it leads to."""
    search(Places(tmp_path / "real"), "moved")
    (tmp_path / "disk" / "searches").mkdir(parents=True)
    (tmp_path / "behind").mkdir()
    (tmp_path / "behind" / "searches").symlink_to(tmp_path / "disk" / "searches")
    (tmp_path / "runs").symlink_to("behind")
    places = Places(tmp_path / "runs")
    search(places, "one")
    (tmp_path / "runs" / "searches" / "two").symlink_to(tmp_path / "real" / "searches" / "moved")
    for name in ("one", "two"):
        assert read_journal(places.journal(name))[1].state == "done"
        save_checkpoint(places.search(name) / "trials" / "0000" / CHECKPOINT, {"a": 1})
    assert load_checkpoint(tmp_path / "disk" / "searches" / "one" / "trials" / "0000" / CHECKPOINT) == {"a": 1}
    delete("two", places, keep_runs=True)
    assert (tmp_path / "real" / "searches" / "moved" / JOURNAL).exists()

    def other_disk(path: Path, to: Path) -> Path:
        raise OSError(errno.EXDEV, os.strerror(errno.EXDEV), str(path))

    monkeypatch.setattr(Path, "rename", other_disk)
    delete("one", places, keep_runs=True)
    assert names(tmp_path / "disk" / "searches") == []


@pytest.mark.parametrize(
    ("path", "folder"),
    [
        ("/s/searches/one/trials/0000/best.pt", "/s/searches/one"),
        ("/s/benchmarks/b/report.html", "/s/benchmarks/b"),
        ("/home/searches/me/runs/searches/one/journal.jsonl", "/home/searches/me/runs/searches/one"),
        ("/s/searches/searches/trials/0000/best.pt", "/s/searches/searches"),
        ("/s/searches/one/trials/searches/insight/classes.csv", "/s/searches/one"),
        ("/s/searches/one", None),
        ("/s/data/cub200/images", None),
    ],
)
def test_where_the_border_is(path: str, folder: str | None) -> None:
    assert border(Path(path)) == (None if folder is None else Path(folder))
