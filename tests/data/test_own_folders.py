"""A user's own folder, as it is: parts in capitals, a folder around the classes, the storage inside, one image."""

import json
from pathlib import Path

import pytest
from support.archive_trees import photo, run, text
from support.own_folders import classes

from orchestrator.data.archives.listing import images_of
from orchestrator.data.archives.own import read_csv, read_folder
from orchestrator.data.manifest import MANIFEST
from orchestrator.data.store import Store
from orchestrator.errors import DataError


def tree(folder: Path, *files: str) -> Path:
    for number, file in enumerate(files):
        photo(folder / file, number)
    return folder


def test_parts_of_a_split_are_known_in_capitals(tmp_path: Path) -> None:
    listing = read_folder(tree(tmp_path, "Train/auk/1.png", "TEST/bee/2.png"))
    assert [(picture.source, picture.split) for picture in listing.pictures] == [
        ("TEST/bee/2.png", "test"),
        ("Train/auk/1.png", "train"),
    ]
    with pytest.raises(DataError, match="folders TEST, Train, train: merge those of one part"):
        read_folder(tree(tmp_path, "train/auk/1.png"))


@pytest.mark.parametrize(
    ("files", "message"),
    [
        (("photos/train/auk/1.png", "photos/test/bee/2.png"), r"Then --source \S*/photos$"),
        (("Train/auk/1.png", "Val/bee/2.png"), "folders Train, Val: parts are called train, test, query, gallery"),
        (("a/b/auk/1.png", "a/b/bee/2.png"), r"one folder, a, which has 1 folder and no image .* --source \S*/a$"),
    ],
)
def test_another_layout_is_refused_with_what_would_be_right(
    tmp_path: Path, files: tuple[str, ...], message: str
) -> None:
    with pytest.raises(DataError, match=message):
        read_folder(tree(tmp_path, *files))


def test_the_storage_in_a_source_is_no_class(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """As `--source .` has it with the default storage, `runs`: also before and after it has pictures in it."""
    classes(tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("ORCHESTRATOR_STORAGE", raising=False)
    command = ["datasets", "prepare", "folder", "--source=."]
    assert run(*command, "--name=one") == 0 and capsys.readouterr().err == ""
    photo(tmp_path / "runs" / "mlartifacts" / "figure.png", 9)
    assert run(*command, "--name=two") == 0
    told = "note: 1 folder has searches and data sets in it and is left out: runs"
    assert capsys.readouterr().err.splitlines() == [told]
    assert Store.open(tmp_path / "runs" / "data" / "two").class_names == ["a", "b", "c", "d"]
    assert run(*command, "--name=one") == 0  # still made of the same images
    assert run(*command, "--name=three", "--storage=.") == 0  # the folders of a storage beside the classes
    (tmp_path / "searches" / "x").mkdir(parents=True)
    photo(tmp_path / "searches" / "x" / "figure.png", 9)
    assert run(*command, "--name=four", "--storage=.") == 0
    told = "3 folders have searches and data sets in them and are left out: data, runs, searches"
    assert told in capsys.readouterr().err
    assert len(images_of(tmp_path)) == 12 + 1  # of `embed`: that of a search without a journal


@pytest.mark.parametrize("what", [f"data/birds/{MANIFEST}", "searches/first/journal.jsonl"])
def test_another_storage_is_no_class_at_any_depth(tmp_path: Path, what: str) -> None:
    classes(tmp_path)
    for place in ("old", "a/old"):
        photo(tmp_path / place / "mlartifacts" / "figure.png", 9)
        text(tmp_path / place / what, "{}")
    listing = read_folder(tmp_path)
    assert listing.storages == ["old", "a/old"] and len(listing.pictures) == 12
    assert len(images_of(tmp_path)) == 12


def test_classes_of_one_image_are_told_before_a_training(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = classes(tmp_path / "source", images=1)
    command = ["datasets", "prepare", "folder", f"--source={source}", f"--storage={tmp_path}"]
    assert run(*command, "--name=own") == 0
    assert capsys.readouterr().err.splitlines() == [
        "note: own: 4 of 4 classes have one image: no image of the training and test classes has another of its class "
        "to be found, so nothing can be measured on them"
    ]
    photo(source / "a" / "9.png", 99)
    photo(source / "c" / "9.png", 98)
    assert run(*command, "--name=more", "--json") == 0
    out, err = capsys.readouterr()
    assert err == "" and json.loads(out)["card"]["single"] == 2


def test_paths_of_another_machine_are_refused_and_those_of_this_one_read(tmp_path: Path) -> None:
    text(tmp_path / "list.csv", "path,label", f"{tmp_path}/a/1.png,auk", "b/2.png,bee")
    assert [picture.source for picture in read_csv(tmp_path).pictures] == ["a/1.png", "b/2.png"]
    text(tmp_path / "list.csv", "path,label", "/home/ann/1.png,auk")
    with pytest.raises(DataError, match="line 2: path '/home/ann/1.png' is absolute; give one relative to the table"):
        read_csv(tmp_path)


def test_utf_16_without_its_mark_is_named(tmp_path: Path) -> None:
    (tmp_path / "list.csv").write_bytes("path,label\n1.png,a\n".encode("utf-16-le"))
    with pytest.raises(DataError, match="list.csv: has bytes of 0, as UTF-16 without its mark; save it as 'CSV UTF-8'"):
        read_csv(tmp_path)
