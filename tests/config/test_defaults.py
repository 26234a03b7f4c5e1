"""A small set of one's own photographs, by the commands of the first page, without a setting."""

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from orchestrator.cli.main import main
from orchestrator.config.files import find_search, read_yaml, shipped_searches
from orchestrator.config.limits import cpus
from orchestrator.config.resolve import resolve_search, single_training
from orchestrator.data.store import Row, Store, write_store
from orchestrator.errors import InputError
from orchestrator.search.defaults import PHOTOGRAPHS, suit_defaults
from orchestrator.search.preflight import check_data
from orchestrator.storage.places import Places


def run(*words: object) -> int:
    with pytest.raises(SystemExit) as leaving:
        main([str(word) for word in words])
    return int(leaving.value.code or 0)


@pytest.fixture(scope="module")
def mine(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A storage with the data set `mine`: 8 classes of 6 JPEG pictures, no two of one size."""
    folder = tmp_path_factory.mktemp("mine")
    random = np.random.default_rng(0)
    for label in range(8):
        (folder / "photos" / f"class {label}").mkdir(parents=True)
        for number in range(6):
            colour = np.array([30 * label, 255 - 30 * label, 128], np.uint8)
            pixels = np.full((40 + 6 * label + number, 70 - number, 3), colour) + random.integers(0, 9, 3, np.uint8)
            Image.fromarray(pixels.astype(np.uint8)).save(folder / "photos" / f"class {label}" / f"{number}.jpg")
    prepared = run(
        "datasets", "prepare", "folder", "--source", folder / "photos", "--name=mine", f"--storage={folder / 'runs'}"
    )
    assert prepared == 0
    return folder / "runs"


def test_a_training_works_out_of_the_box(
    mine: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It failed twice in a row: `affine` is for images of one size, and 16 classes there were not."""

    def no_page(*_: Any) -> None:
        raise RuntimeError("no room")

    monkeypatch.setattr("orchestrator.search.finish.write_models", no_page)
    code = run("train", "--method=proxy_anchor", "--dataset=mine", "--name=first", "--epochs=1", f"--storage={mine}")
    said = capsys.readouterr().err
    assert code == 0, said
    assert "note: augmentation=random_crop_224: mine has images of 48 sizes\n" in said
    assert "note: classes_per_batch=2: mine has 2 classes to train on, besides those held out\n" in said
    assert "(no room); try again with: orchestrator evaluate first --dataset mine --gallery FILE" in said  # not None
    first = (mine / "searches" / "first" / "journal.jsonl").read_text().splitlines()[0]
    settings = json.loads(first)["config"]["settings"]
    assert (settings["augmentation"], settings["classes_per_batch"]) == ("random_crop_224", 2)


def test_a_dry_run_says_which_defaults_the_data_set_gave(mine: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["search", "pfml", "--dataset=mine", "--set=threads=1000", f"--storage={mine}", "--dry-run", "--json"]
    assert run(*words) == 0
    printed = capsys.readouterr()
    assert re.search(r"warning: threads: 1000: this machine has \d+ CPUs.*, or a cluster whose nodes", printed.err)
    assert torch.get_num_threads() <= cpus()  # which it was timed with
    planned = json.loads(printed.out)
    assert planned["defaults by the data set"] == {
        "augmentation": "mine has images of 48 sizes",
        "classes_per_batch": "mine has 2 classes to train on, besides those held out",
    }
    assert planned["settings"]["augmentation"] == "random_crop_224"
    assert planned["settings"]["classes_per_batch"] == 2
    assert planned["images"] == {"train": 12, "validation": 12, "test": 24}


def store_of(folder: Path, sizes: list[tuple[int, int]], classes: int, **settings: Any) -> Store:
    """A store as an importer writes one; nobody looks into its images here."""
    rows = [Row(b"image %d" % row, row % classes, "train") for row in range(2 * classes)]
    wide = np.resize(np.array(sizes, np.int32), (len(rows), 2))
    return write_store(
        folder / "own",
        name="own",
        channels=3,
        class_names=[f"class {label}" for label in range(classes)],
        rows=rows,
        seed=None,
        settings=settings,
        columns={"original_size": wide},
    )


@pytest.mark.parametrize(
    ("sizes", "settings", "augmentation"),
    [
        ([(28, 28)], {"encoding": "PNG"}, None),
        ([(105, 105)], {"size": 256}, None),
        ([(128, 128)], {"size": 256}, None),
        ([(129, 160)], {"size": 256}, "own has images of 129 x 160 pixels"),
        ([(640, 480)], {"size": 256}, "own has images of 341 x 256 pixels"),
        ([(640, 480)], {"size": 64}, None),
        ([(640, 480), (320, 240)], {"size": 64}, None),  # of one size when they are kept
        ([(640, 480), (480, 640)], {"size": 64}, "own has images of 2 sizes"),
        ([(60, 60), (61, 60)], {"encoding": "original"}, "own has images of 2 sizes"),
    ],
)
def test_photographs_are_known_by_their_sizes(
    tmp_path: Path, sizes: list[tuple[int, int]], settings: dict[str, Any], augmentation: str | None
) -> None:
    store = store_of(tmp_path, sizes, 60, **settings)
    search = single_training("x", {"method": "pfml", "dataset": "own"})
    found, because = suit_defaults(search, store)
    assert because == ({} if augmentation is None else {"augmentation": augmentation})
    assert found.settings.get("augmentation") == (None if augmentation is None else "random_crop_224")
    sized = single_training("x", {"method": "pfml", "dataset": "own", "image_size": 96})  # judged by what follows
    if augmentation is None:
        with pytest.raises(InputError, match="image_size: 96: is for photographs, and augmentation: affine cuts none"):
            suit_defaults(sized, store)
    else:
        assert suit_defaults(sized, store)[0].example().training.augmentation == PHOTOGRAPHS


@pytest.mark.parametrize(
    ("classes", "settings", "workers", "expected"),
    [
        (8, {}, 1, 2),
        (30, {}, 1, 11),
        (60, {}, 1, None),
        (8, {"selection": "test"}, 1, 4),
        (20, {"protocol": "mlrc"}, 1, 7),
        (8, {"classes_per_batch": 4}, 1, None),
        (30, {"images_per_class": 3}, 2, 11),  # the workers' shares are unequal
    ],
)
def test_a_batch_has_no_more_classes_than_there_are(
    tmp_path: Path, classes: int, settings: dict[str, Any], workers: int, expected: int | None
) -> None:
    store = store_of(tmp_path, [(28, 28)], classes)
    raw = {"method": "pfml", "dataset": "own", "settings": settings, "space": {"delta": [0.1, 0.2]}, "num_trials": 2}
    search = resolve_search(raw, name="x", source="x").model_copy(update={"workers": workers})
    found, because = suit_defaults(search, store)
    given = settings.get("classes_per_batch")
    assert found.settings.get("classes_per_batch") == (given if expected is None else expected)
    assert set(because) == (set() if expected is None else {"classes_per_batch"})


def test_what_is_searched_or_given_stays(tmp_path: Path) -> None:
    store = store_of(tmp_path, [(640, 480), (480, 640)], 8)
    raw = {"method": "pfml", "dataset": "own", "settings": {"augmentation": "affine"}, "num_trials": 2}
    search = resolve_search(raw | {"space": {"classes_per_batch": [2, 20]}}, name="x", source="x")
    assert suit_defaults(search, store) == (search, {})


@pytest.mark.parametrize("name", shipped_searches())
def test_shipped_searches_stay_as_they_are_on_the_drawn_sets(name: str, glyphs: Store) -> None:
    search = resolve_search(read_yaml(find_search(name)), name="x", source="x", dataset="glyphs-small")
    assert suit_defaults(search, glyphs) == (search, {})


def test_a_batch_that_no_memory_holds_is_refused(
    tmp_path: Path, data_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each of its two numbers is within its own bounds."""
    (tmp_path / "data").symlink_to(data_folder)
    search = single_training("x", {"method": "pfml", "dataset": "glyphs-small", "images_per_class": 64})
    monkeypatch.setattr("orchestrator.search.preflight.memory", lambda: 2**23)
    with pytest.raises(InputError, match="classes_per_batch: 16: with images_per_class: 64 the images of a batch take"):
        check_data(search, Places(tmp_path))
    monkeypatch.setattr("orchestrator.search.preflight.memory", lambda: 2**30)
    check_data(search, Places(tmp_path))
