"""Links in a folder of classes, and the names that classes may have."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from orchestrator.data.archives.own import read_folder
from orchestrator.data.prepare import prepare
from orchestrator.data.store import Store
from orchestrator.errors import DataError


def pictures(folder: Path, count: int, seed: int = 0) -> None:
    folder.mkdir(parents=True)
    for number in range(count):
        pixels = np.random.default_rng((seed, number)).integers(0, 256, (8, 9, 3), np.uint8)
        Image.fromarray(pixels).save(folder / f"{number}.png")


@pytest.fixture
def animals(tmp_path: Path) -> Path:
    """Twelve pictures of three classes."""
    source = tmp_path / "animals"
    for seed, name in enumerate(("ant", "bee", "cat")):
        pictures(source / name, 4, seed)
    return source


def made(source: Path, told: list[str] | None = None) -> Store:
    said = [] if told is None else told
    return prepare("folder", source, source.parent / "data", name="made", say=said.append)


LOOPS: dict[str, Callable[[Path], tuple[Path, str]]] = {
    # where the link is and what it says
    "to the parent": lambda s: (s / "ant" / "up", ".."),
    "to the parent, absolute": lambda s: (s / "bee" / "up", str(s)),
    "to the parent's parent": lambda s: (s / "cat" / "up", "../.."),
    "to the root": lambda s: (s / "ant" / "root", "/"),
    "to itself": lambda s: (s / "bee" / "again", "."),
    "to its own class, from below": lambda s: (s / "cat" / "deep" / "again", ".."),
    "a chain": lambda s: (s / "ant" / "a", "b"),
}


@pytest.mark.parametrize("name", LOOPS)
def test_a_link_upwards_gives_no_class_other_classes_pictures(animals: Path, name: str) -> None:
    """Followed 40 times, as a system allows, one such link made 492 pictures out of 12, of all classes."""
    plain = [picture[:3] for picture in read_folder(animals).pictures]
    link, target = LOOPS[name](animals)
    link.parent.mkdir(exist_ok=True)
    if name == "a chain":
        (animals / "ant" / "b").symlink_to("..")
    link.symlink_to(target)
    assert [picture[:3] for picture in read_folder(animals).pictures] == plain
    said: list[str] = []
    store = made(animals, said)
    assert (len(store), store.class_names) == (12, ["ant", "bee", "cat"])
    where = link.relative_to(animals).as_posix()
    start = "links not followed, as their folder is above them or read already:"
    assert any(line.startswith(start) and where in line for line in said)


def test_two_links_between_each_other_end(animals: Path) -> None:
    outside = animals.parent / "outside"
    pictures(outside / "one", 2, seed=9)
    (outside / "one" / "other").symlink_to("../two")
    (outside / "two").mkdir()
    (outside / "two" / "one").symlink_to("../one")
    (animals / "ant" / "more").symlink_to(outside / "one")
    assert np.bincount(made(animals).labels).tolist() == [6, 4, 4]


def test_links_to_elsewhere_are_followed(animals: Path) -> None:
    """A class may be a link itself, hold links to files, and reach a folder by two names."""
    outside = animals.parent / "outside"
    pictures(outside / "dogs", 3, seed=7)
    (animals / "dog").symlink_to(outside / "dogs")
    pictures(outside / "bees", 2, seed=8)
    (animals / "bee" / "x").symlink_to(outside / "bees")
    (animals / "bee" / "y").symlink_to(outside / "bees")
    (animals / "ant" / "link.png").symlink_to(outside / "bees" / "none.png")
    with pytest.raises(DataError, match=r"1 of 18 images are missing .*: ant/link\.png"):
        made(animals)
    (animals / "ant" / "link.png").unlink()
    assert np.bincount(made(animals).labels).tolist() == [4, 6, 4, 3]


SAME: dict[str, tuple[Callable[[Path], None], str]] = {
    "a class": (
        lambda s: (s / "bug").symlink_to("bee"),
        "bee/0.png (class 'bee') and bug/0.png (class 'bug') are the same file, through a link; so are 3 more",
    ),
    "a sibling in a class": (
        lambda s: (s / "ant" / "bees").symlink_to("../bee"),
        "ant/bees/0.png (class 'ant') and bee/0.png (class 'bee') are the same file",
    ),
    "a file": (
        lambda s: (s / "cat" / "z.png").symlink_to("../ant/1.png"),
        "ant/1.png (class 'ant') and cat/z.png (class 'cat') are the same file, through a link; every image",
    ),
    "the source": (lambda s: (s / "all").symlink_to("."), "all/ant/0.png (class 'all') and ant/0.png (class 'ant')"),
}


@pytest.mark.parametrize("name", SAME)
def test_a_picture_in_two_classes_is_refused(animals: Path, name: str) -> None:
    link, message = SAME[name]
    link(animals)
    with pytest.raises(DataError) as caught:
        made(animals)
    assert message in str(caught.value)
    assert not (animals.parent / "data" / "made").exists()


def test_a_picture_in_two_parts_is_refused(tmp_path: Path) -> None:
    """The same pictures to train and to test on: the score would be of what was learnt by heart."""
    for part in ("train", "test"):
        pictures(tmp_path / "s" / part / "ant", 2, seed=len(part))
    (tmp_path / "s" / "test" / "bee").symlink_to("../train/ant")
    with pytest.raises(DataError, match=r"test/bee/0\.png \(class 'bee', test\) and train/ant/0\.png .* train\)"):
        made(tmp_path / "s")


def test_hard_links_are_files_of_their_own(animals: Path) -> None:
    """Tools that save room make them of equal files, wherever these lie: they are copies as others."""
    (animals / "cat" / "z.png").hardlink_to(animals / "ant" / "1.png")
    with pytest.raises(DataError, match="exact cop"):
        made(animals)
    assert len(prepare("folder", animals, animals.parent / "data", name="made", allow_duplicates=True)) == 13


def test_a_list_with_one_picture_by_two_names_is_refused(animals: Path) -> None:
    (animals / "other").symlink_to("bee")
    (animals / "list.csv").write_text("path,label\nbee/0.png,b\nother/0.png,c\n")
    with pytest.raises(
        DataError, match=r"list\.csv: bee/0\.png \(class 'b'\) and other/0\.png \(class 'c'\) are the same"
    ):
        prepare("csv", animals / "list.csv", animals.parent / "data", name="made")


BAD_NAMES = ["a\nb", "a\u2028b", "a\u2029b", "a\x0bb", "a\x1cb", "a\x85b", "a\tb", "a\x1b[31mb", "a\rb", "a\x7fb"]


@pytest.mark.parametrize("name", [*BAD_NAMES, " ", "\u2003", "\n"])
def test_a_class_has_a_name_of_one_line(tmp_path: Path, name: str) -> None:
    pictures(tmp_path / "s" / name, 1)
    with pytest.raises(DataError, match="a class name must (be one line|not be blank)") as caught:
        made(tmp_path / "s")
    assert repr(name) in str(caught.value)
    assert len(str(caught.value).splitlines()) == 1


@pytest.mark.parametrize("name", BAD_NAMES)
def test_a_label_of_several_lines_is_named_with_its_own(tmp_path: Path, name: str) -> None:
    pictures(tmp_path / "s", 2)
    rows = f'path,label\n0.png,good\n1.png,"{name}"\n'
    (tmp_path / "s" / "list.csv").write_text(rows, newline="")
    with pytest.raises(DataError, match=r"list\.csv line [34]: label .*a class name must be one line") as caught:
        prepare("csv", tmp_path / "s" / "list.csv", tmp_path / "data", name="made")
    assert len(str(caught.value).splitlines()) == 1


@pytest.mark.parametrize("name", ["two words", "Ä é 漢字", "a, b", 'it\'s "so"', "50%", "-1", "[x]", "<b>&amp;"])
def test_other_names_stay_as_they_are(tmp_path: Path, name: str) -> None:
    pictures(tmp_path / "s" / name, 1)
    assert made(tmp_path / "s").class_names == [name]


@pytest.mark.parametrize(
    ("header", "message"),
    [
        ("path,label,label", "line 1: column 'label' is there 2 times"),
        ("path,label, label ", "line 1: column 'label' is there 2 times"),
        ("path,path,label", "line 1: column 'path' is there 2 times"),
        ("path,label,split,split,split", "line 1: column 'split' is there 3 times"),
    ],
)
def test_a_column_stands_there_once(tmp_path: Path, header: str, message: str) -> None:
    """Of two columns `label` the second won, without a word."""
    pictures(tmp_path / "s", 1)
    (tmp_path / "s" / "list.csv").write_text(f"{header}\n0.png{',train' * header.count(',')}\n")
    with pytest.raises(DataError, match=message):
        prepare("csv", tmp_path / "s" / "list.csv", tmp_path / "data", name="made")
