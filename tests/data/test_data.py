"""The store, the drawn data sets, the catalog and the splits."""

import io
import json
import multiprocessing
import os
import pickle
import shutil
import signal
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from multiprocessing.synchronize import Barrier, Event
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch
from PIL import Image

from orchestrator.data import catalog
from orchestrator.data.catalog import datasets, open_dataset
from orchestrator.data.glyphs import FACES, GlyphSettings, build_glyphs, characters
from orchestrator.data.locks import only_one
from orchestrator.data.manifest import IMAGES, MANIFEST
from orchestrator.data.splits import class_split, train_labels, unused_split
from orchestrator.data.store import Row, Store, write_store
from orchestrator.errors import DataError

# --- a small made set: 6 classes of 3 images


def encode(pixels: np.ndarray[Any, Any], kind: str = "png") -> bytes:
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, kind)
    return buffer.getvalue()


def pixels_of(row: int) -> np.ndarray[Any, Any]:
    return np.random.default_rng(row).integers(0, 256, (8, 9, 3), dtype=np.uint8)


def made_rows(split_of: Callable[[int], str] = lambda label: "train" if label < 3 else "test") -> Iterator[Row]:
    for row in range(18):
        yield Row(encode(pixels_of(row)), row // 3, split_of(row // 3))


def write_made(path: Path, rows: Iterator[Row] | None = None, seed: int = 7, **changes: Any) -> Store:
    arguments: dict[str, Any] = {"name": "made", "channels": 3, "class_names": list("abcdef"), "settings": {"x": 1}}
    return write_store(path, rows=rows or made_rows(), seed=seed, **(arguments | changes))


@pytest.fixture
def made(tmp_path: Path) -> Store:
    return write_made(tmp_path / "made")


# --- store


def test_store_returns_what_was_written(made: Store) -> None:
    assert (made.name, len(made), made.num_classes, made.channels) == ("made", 18, 6, 3)
    assert made.labels.dtype == np.int64
    np.testing.assert_array_equal(made.labels, np.repeat(np.arange(6), 3))
    np.testing.assert_array_equal(made.splits, ["train"] * 9 + ["test"] * 9)
    assert made.class_names == list("abcdef")
    for row in (0, 7, 17):
        np.testing.assert_array_equal(made.image(row), pixels_of(row))
    rows = np.array([17, 3, 3, 0])
    images = made.images(rows)
    assert images.dtype == torch.uint8 and images.shape == (4, 3, 8, 9)
    np.testing.assert_array_equal(images.numpy(), np.stack([pixels_of(row).transpose(2, 0, 1) for row in rows]))


@pytest.mark.parametrize("names", [b'["a", "\xff\xfe", "c"]', b'["a", 5678, "c"]', b'["a", "bb", "c" '])
def test_class_names_that_were_damaged_are_refused(tmp_path: Path, names: bytes) -> None:
    rows = [Row(encode(pixels_of(n)), n, "train") for n in range(3)]
    store = write_made(tmp_path / "set", iter(rows), class_names=["a", "bb", "c"])
    path = store.path / IMAGES
    whole = path.read_bytes()
    assert len(names) == len(b'["a", "bb", "c"]') and whole.count(b'["a", "bb", "c"]') == 2
    path.write_bytes(whole.replace(b'["a", "bb", "c"]', names))
    with pytest.raises(DataError, match=r"images.arrow: damaged \(.*\); delete the folder"):
        Store.open(store.path)


def test_manifest_records_the_set(made: Store) -> None:
    manifest = json.loads((made.path / MANIFEST).read_text())
    assert manifest == made.manifest
    expected = {
        "format_version": 1,
        "name": "made",
        "images": 18,
        "classes": 6,
        "splits": {"train": 9, "test": 9},
        "channels": 3,
        "seed": 7,
        "settings": {"x": 1},
    }
    assert {key: manifest[key] for key in expected} == expected
    assert len(manifest["digest"]) == 64
    assert set(manifest["versions"]) == {"pillow", "matplotlib"}
    assert manifest["created"].endswith("+00:00")


def test_rows_beyond_one_record_batch(tmp_path: Path) -> None:
    rows = (Row(encode(np.full((1, 1), i % 251, np.uint8)), i % 2, "train") for i in range(2500))
    store = write_made(tmp_path / "many", rows, channels=1, class_names=["a", "b"])
    assert [int(store.image(i)[0, 0, 0]) for i in (0, 1023, 1024, 2499)] == [i % 251 for i in (0, 1023, 1024, 2499)]
    for row in (0, 1, 1023, 1024, 2047, 2048, 2499):
        mapped, again = store.mapped_bytes(row), np.frombuffer(store.mapped_bytes(row), np.uint8)
        assert bytes(mapped) == store.image_bytes(row)
        assert np.shares_memory(np.frombuffer(mapped, np.uint8), again), "a copy"
    store.verify()


@pytest.mark.parametrize("cache_bytes", [0, 2**20])
def test_cached_images_are_the_decoded_ones(made: Store, cache_bytes: int) -> None:
    store = Store.open(made.path, cache_bytes=cache_bytes)
    first = store.images([4, 2])
    first.zero_()  # the caller's own copy
    np.testing.assert_array_equal(store.images([2, 4, 5])[1].numpy(), pixels_of(4).transpose(2, 0, 1))
    (store.path / IMAGES).unlink()
    store._images = pa.chunked_array([], pa.binary())  # nothing left to decode
    if cache_bytes:
        assert torch.equal(store.images([2, 4]), made.images([2, 4]))
    with pytest.raises(IndexError):
        store.images([2, 6])
    if not cache_bytes:
        with pytest.raises(IndexError):
            store.images([2, 4])


def test_store_pickles_as_its_path(made: Store) -> None:
    made.images(np.arange(18))
    pickled = pickle.dumps(made)
    assert len(pickled) < 1000
    copy = pickle.loads(pickled)
    assert copy.path == made.path
    assert torch.equal(copy.images([3]), made.images([3]))


def test_images_are_converted_to_the_channels_of_the_set(tmp_path: Path) -> None:
    grey = np.arange(0, 64, dtype=np.uint8).reshape(8, 8)
    cmyk = io.BytesIO()
    Image.new("CMYK", (8, 8)).save(cmyk, "jpeg")
    store = write_made(
        tmp_path / "mixed", iter([Row(encode(grey), 0, "train"), Row(cmyk.getvalue(), 0, "train")]), class_names=["a"]
    )
    np.testing.assert_array_equal(store.image(0), np.repeat(grey[:, :, None], 3, axis=2))
    assert store.image(1).shape == (8, 8, 3)


def test_different_sizes_need_single_reads(tmp_path: Path) -> None:
    rows = [Row(encode(np.zeros((size, 5, 3), np.uint8)), 0, "train") for size in (5, 6)]
    store = write_made(tmp_path / "sizes", iter(rows), class_names=["a"])
    assert store.image(1).shape == (6, 5, 3)
    with pytest.raises(DataError, match="image 1 is 6 x 5, others are 5 x 5"):
        store.images([0, 1])


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"rows": made_rows(lambda label: "tain")}, "image 0 has split 'tain'.*did you mean 'train'"),
        ({"class_names": list("abc")}, "image 9 has label 3, but there are 3 class names"),
        ({"class_names": list("abcdefg")}, "no image of class 6 \\('g'\\)"),
        ({"channels": 4}, "channels is 4, not 1"),
    ],
)
def test_bad_rows_are_refused_and_leave_nothing(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(DataError, match=message):
        write_made(tmp_path / "bad", **changes)
    assert list(tmp_path.iterdir()) == []


def test_unwritable_folder(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(DataError, match=r"cannot be written.*choose another"):
        write_made(tmp_path / "file" / "made")


# --- damage


def edit_manifest(**changes: Any) -> Callable[[Path], None]:
    def edit(path: Path) -> None:
        manifest = json.loads((path / MANIFEST).read_text()) | changes
        (path / MANIFEST).write_text(json.dumps({k: v for k, v in manifest.items() if v is not None}))

    return edit


def truncate_images(path: Path) -> None:
    data = (path / IMAGES).read_bytes()
    (path / IMAGES).write_bytes(data[: len(data) // 2])


def other_columns(path: Path) -> None:
    table = pa.table({"picture": pa.array([b""])})
    with pa.OSFile(str(path / IMAGES), "wb") as file, pa.ipc.new_file(file, table.schema) as writer:
        writer.write_table(table)


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda path: (path / MANIFEST).unlink(), "manifest.json: no such file"),
        (lambda path: (path / MANIFEST).write_text('{"name":'), "manifest.json: not readable as JSON"),
        (lambda path: (path / MANIFEST).write_text("[]"), "manifest.json: a list, not an object"),
        (edit_manifest(format_version=9), "format_version 9, this version reads 1"),
        (edit_manifest(digest=None), "digest is 'missing', not of type str"),
        (edit_manifest(images="18"), "images is '18', not of type int"),
        (edit_manifest(images=17), "images is 18, but manifest.json says 17"),
        (edit_manifest(classes=5), "classes is 6, but manifest.json says 5"),
        (edit_manifest(splits={"train": 18}), "splits is {'train': 9, 'test': 9}, but"),
        (edit_manifest(channels=2), "channels is 2"),
        (lambda path: (path / IMAGES).unlink(), "images.arrow: no such file"),
        (truncate_images, "images.arrow: not a complete Arrow file"),
        (other_columns, r"columns \['picture'\], not those of this format"),
    ],
)
def test_damage_is_named_with_the_remedy(made: Store, damage: Callable[[Path], object], message: str) -> None:
    damage(made.path)
    with pytest.raises(DataError, match=message) as caught:
        Store.open(made.path)
    assert "\n" not in str(caught.value)
    assert f"delete the folder {made.path}" in str(caught.value)


def test_verify_finds_a_changed_byte(made: Store) -> None:
    made.verify()
    data = bytearray((made.path / IMAGES).read_bytes())
    data[data.index(made.image_bytes(4)) + 60] ^= 1
    changed = made.path.with_name("changed")
    shutil.copytree(made.path, changed)
    (changed / IMAGES).write_bytes(data)
    with pytest.raises(DataError, match="the data were changed"):
        Store.open(changed).verify()


def test_verify_finds_a_changed_digest(made: Store) -> None:
    edit_manifest(digest="0" * 64)(made.path)
    with pytest.raises(DataError, match="the data were changed"):
        Store.open(made.path).verify()


def test_undecodable_image(tmp_path: Path) -> None:
    store = write_made(tmp_path / "broken", iter([Row(b"not an image", 0, "train")]), class_names=["a"])
    with pytest.raises(DataError, match="image 0 cannot be decoded"):
        store.image(0)


# --- interruption and races; in processes of their own, forked from one that has the imports


@pytest.fixture(scope="module")
def processes() -> multiprocessing.context.ForkServerContext:
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["orchestrator.data.store"])
    return context


def build_and_wait(path: Path, begun: Event) -> None:
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell may have it ignored for what it runs behind

    def rows() -> Iterator[Row]:
        yield from list(made_rows())[:9]
        begun.set()
        time.sleep(600)

    write_made(path, rows())


@pytest.mark.parametrize("signal_number", [signal.SIGINT, signal.SIGKILL])
def test_interrupted_write_leaves_nothing_broken(
    tmp_path: Path, processes: multiprocessing.context.ForkServerContext, signal_number: signal.Signals
) -> None:
    path = tmp_path / "made"
    begun = processes.Event()
    process = processes.Process(target=build_and_wait, args=(path, begun))
    process.start()
    assert begun.wait(60)
    assert process.pid is not None
    assert len(list(tmp_path.iterdir())) == 1  # the draft
    live = write_made(tmp_path / "other")  # another set's draft is not its business, nor is that of a live process
    write_made(path, seed=8)
    assert len(list(tmp_path.iterdir())) == 3
    shutil.rmtree(path)
    os.kill(process.pid, signal_number)
    process.join(60)
    assert process.exitcode is not None
    assert not path.exists()
    assert len(list(tmp_path.iterdir())) == (2 if signal_number == signal.SIGKILL else 1)
    store = write_made(path)
    store.verify()
    assert {child.name for child in tmp_path.iterdir()} == {"made", live.path.name}


def build_together(path: Path, seed: int, barrier: Barrier, results: Any) -> None:
    def rows() -> Iterator[Row]:
        yield from made_rows()
        barrier.wait(60)  # both are done drawing before either can rename

    store = write_made(path, rows(), seed=seed)
    store.verify()
    results.put(store.manifest["seed"])


def test_race_of_two_processes_keeps_one_store(
    tmp_path: Path, processes: multiprocessing.context.ForkServerContext
) -> None:
    path = tmp_path / "made"
    barrier, results = processes.Barrier(2), processes.Queue()
    racers = [processes.Process(target=build_together, args=(path, seed, barrier, results)) for seed in (1, 2)]
    for racer in racers:
        racer.start()
    seeds = [results.get(timeout=60) for _ in racers]
    for racer in racers:
        racer.join(60)
    assert [racer.exitcode for racer in racers] == [0, 0]
    assert seeds[0] == seeds[1] == Store.open(path).manifest["seed"]
    assert [child.name for child in tmp_path.iterdir()] == ["made"]


def test_something_else_in_the_place_of_the_store(tmp_path: Path) -> None:
    (tmp_path / "made").write_text("mine")
    with pytest.raises(DataError, match="in the way"):
        write_made(tmp_path / "made")
    assert (tmp_path / "made").read_text() == "mine"
    assert [child.name for child in tmp_path.iterdir()] == ["made"]


# --- glyphs


def test_small_glyphs(glyphs: Store) -> None:
    info = datasets()["glyphs-small"]
    assert (len(glyphs), glyphs.num_classes) == (info.images, info.classes) == (120 * 16 * 2, 120)
    assert len(set(glyphs.class_names)) == 120
    np.testing.assert_array_equal(np.bincount(glyphs.labels), np.full(120, 32))
    np.testing.assert_array_equal(glyphs.splits == "train", glyphs.labels < 60)
    images = glyphs.images(np.arange(len(glyphs)))
    assert images.shape[1:] == (1, 32, 32)
    bright = images.flatten(1).float().amax(1)
    assert bright.min() > 130  # ink in every drawing, the full stop's too: noise alone ends near 4.5 x 25
    glyphs.verify()


def test_both_halves_of_the_classes_hold_every_script(glyphs: Store) -> None:
    for half in (glyphs.class_names[:60], glyphs.class_names[60:]):
        assert all(any(script in name for name in half) for script in ("LATIN", "GREEK", "CYRILLIC", "BOX DRAWINGS"))


def test_drawing_is_a_function_of_the_settings(tmp_path: Path, glyphs: Store) -> None:
    settings = GlyphSettings(classes=4, draws=2)
    store = build_glyphs(tmp_path / "a", "a", settings)
    assert store.class_names == glyphs.class_names[:4]
    assert all(store.image_bytes(row) == glyphs.image_bytes(row) for row in range(len(store)))
    again = build_glyphs(tmp_path / "b", "b", settings)
    assert again.manifest["digest"] == store.manifest["digest"]
    other = build_glyphs(tmp_path / "c", "c", replace(settings, seed=1))
    assert other.class_names != store.class_names
    assert store.manifest["settings"]["faces"] == list(FACES) and len(FACES) == 16


def test_faces_and_draws_of_a_character_differ(glyphs: Store) -> None:
    assert len({glyphs.image_bytes(row) for row in range(32)}) == 32


def test_progress_is_told_by_class(tmp_path: Path) -> None:
    told: list[tuple[int, int]] = []
    build_glyphs(tmp_path / "a", "a", GlyphSettings(classes=3, draws=1), lambda *numbers: told.append(numbers))
    assert told == [(1, 3), (2, 3), (3, 3)]


def test_distinct_characters() -> None:
    kept = characters(GlyphSettings())
    assert 300 < len(kept) < 420  # 376 with Pillow 13.0 and matplotlib 3.11
    assert "A" in kept and not {"Α", "А"} & set(kept)  # Greek and Cyrillic letters that look the same
    with pytest.raises(DataError, match="1000 classes requested"):
        characters(GlyphSettings(classes=1000))


def test_hard_for_pixels(glyphs: Store) -> None:
    """Nearest neighbours by raw pixels on the test half: R@1 0.65, MAP@R 0.11 when the settings were chosen."""
    rows = np.flatnonzero(glyphs.splits == "test")
    pixels = glyphs.images(rows).flatten(1).float()
    labels = torch.from_numpy(glyphs.labels[rows])
    distances = torch.cdist(pixels, pixels).fill_diagonal_(torch.inf)
    right = (labels[distances.topk(31, largest=False).indices] == labels[:, None]).float()
    recall_at_1 = right[:, 0].mean().item()
    map_at_r = (right * right.cumsum(1) / torch.arange(1, 32)).mean().item()
    assert 0.5 < recall_at_1 < 0.75
    assert 0.07 < map_at_r < 0.15


# --- catalog


def test_open_dataset_draws_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:

    info = datasets()["glyphs-small"]

    def build(path: Path, say: Callable[[str], None]) -> Store:
        say("made")
        return write_made(path)

    tiny = replace(info, build=build)
    monkeypatch.setitem(catalog._CATALOG, "glyphs-small", tiny)
    said: list[str] = []
    first = open_dataset("glyphs-small", tmp_path, say=said.append)
    second = open_dataset("glyphs-small", tmp_path, say=said.append)
    assert said == ["made"]
    assert first.path == second.path == tmp_path / "glyphs-small"


def test_a_data_set_is_known_without_a_look_at_the_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each trial asks: a thousand that begin at once would read all manifests of a lab."""
    looks: list[Path] = []

    def look(path: Path) -> dict[str, Any]:
        looks.append(path)
        return {}

    monkeypatch.setattr(catalog, "_manifest", look)
    for name in ("mine", "yours", "theirs", ".mine"):
        (tmp_path / "data" / name).mkdir(parents=True)
        (tmp_path / "data" / name / "manifest.json").write_text("{}")
    catalog.check_known("mine", tmp_path / "data")
    assert looks == []
    for name in ("mien", ".mine", "../data/mine", "mine/", ""):
        with pytest.raises(DataError, match="unknown data set"):
            catalog.check_known(name, tmp_path / "data")
    assert len(looks) == 5 * 3


def test_unknown_data_set_suggests(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"unknown data set 'glyphs-smal'.*did you mean 'glyphs-small'"):
        open_dataset("glyphs-smal", tmp_path)
    with pytest.raises(DataError, match="known: .*glyphs, glyphs-hard, glyphs-small"):
        open_dataset("imagenet", tmp_path)


def test_catalog_entries_are_complete() -> None:
    assert {"glyphs", "glyphs-small"} <= set(datasets())
    for name, info in datasets().items():
        assert info.name == name
        assert info.summary and info.how_to_get
        assert info.images > info.classes > 1


# --- splits


def test_split_without_validation(glyphs: Store) -> None:
    split = class_split(glyphs, validation_share=0, seed=0)
    np.testing.assert_array_equal(split.train, np.flatnonzero(glyphs.splits == "train"))
    np.testing.assert_array_equal(split.test, np.flatnonzero(glyphs.splits == "test"))
    assert len(split.validation) == len(split.validation_classes) == 0
    assert split.validation.dtype == np.int64


def test_validation_is_held_out_of_the_training_half(glyphs: Store) -> None:
    split = class_split(glyphs, validation_share=0.2, seed=0)
    assert len(split.validation_classes) == 12 and len(split.train_classes) == 48
    parts = [split.train, split.validation, split.test]
    np.testing.assert_array_equal(np.sort(np.concatenate(parts)), np.arange(len(glyphs)))
    classes = [split.train_classes, split.validation_classes, split.test_classes]
    np.testing.assert_array_equal(np.sort(np.concatenate(classes)), np.arange(120))
    for rows, ids in zip(parts, classes, strict=True):
        np.testing.assert_array_equal(np.unique(glyphs.labels[rows]), ids)
    assert split.test_classes.min() == 60
    assert split.validation_classes.max() < 60


def test_split_depends_on_the_seed_alone(glyphs: Store) -> None:
    one, same, other = (class_split(glyphs, validation_share=0.2, seed=seed) for seed in (3, 3, 4))
    np.testing.assert_array_equal(one.validation, same.validation)
    assert set(one.validation_classes) != set(other.validation_classes)
    np.testing.assert_array_equal(one.test, other.test)


@pytest.mark.parametrize(
    ("split_of", "training"),
    [
        (lambda label: "test" if label in (0, 2) else "train", [1, 3, 4, 5]),  # its own, class-disjoint
        (lambda label: ("train", "query", "gallery")[label % 3], [0, 3]),
        (lambda label: "train", [0, 1, 2]),  # no test part: the first half trains
    ],
)
def test_own_split_is_taken_if_it_is_class_disjoint(
    tmp_path: Path, split_of: Callable[[int], str], training: list[int]
) -> None:
    split = class_split(write_made(tmp_path / "made", made_rows(split_of)), validation_share=0, seed=0)
    assert split.train_classes.tolist() == training
    assert split.test_classes.tolist() == [label for label in range(6) if label not in training]


def test_own_split_that_shares_classes_is_not_taken(tmp_path: Path) -> None:
    rows = (row._replace(split=("train", "test")[i % 2]) for i, row in enumerate(made_rows()))
    split = class_split(write_made(tmp_path / "made", rows), validation_share=0, seed=0)
    assert split.train_classes.tolist() == [0, 1, 2]


SPLIT_OF: dict[str, Callable[[Row, bool], str]] = {
    "no class is for training": lambda row, first: "test",
    "1 of 6 classes are on both sides": lambda row, first: "train" if row.label < 3 or first else "test",
    "taken": lambda row, first: "train" if row.label < 3 else "test",
    "by image": lambda row, first: "train" if first else "test",
    "none": lambda row, first: "train",
}


@pytest.mark.parametrize("case", SPLIT_OF)
def test_a_split_that_is_not_taken_is_told(tmp_path: Path, case: str) -> None:
    seen: set[int] = set()
    rows = []
    for row in made_rows():
        first = row.label not in seen and (row.label == 5 or case == "by image")
        seen.add(row.label)
        rows.append(row._replace(split=SPLIT_OF[case](row, first)))
    told = unused_split(write_made(tmp_path / "made", iter(rows)))
    assert told is None if case in ("taken", "by image", "none") else case in str(told)


@pytest.mark.parametrize(("share", "message"), [(-0.1, "at least 0"), (1.0, "below 1"), (0.5, "more classes")])
def test_impossible_shares(made: Store, share: float, message: str) -> None:
    with pytest.raises(DataError, match=message):
        class_split(made, validation_share=share, seed=0)


def test_train_labels_are_contiguous(glyphs: Store) -> None:
    split = class_split(glyphs, validation_share=0.2, seed=0)
    labels = train_labels(glyphs, split.train)
    assert labels.dtype == np.int64
    np.testing.assert_array_equal(split.train_classes[labels], glyphs.labels[split.train])
    assert labels.max() == len(split.train_classes) - 1


def test_a_folder_is_held_by_one_and_removed(tmp_path: Path) -> None:
    """Also in the moment in which the one before removes it."""
    inside: list[int] = []
    most: list[int] = []

    def hold(number: int) -> None:
        for _ in range(40):
            with only_one(tmp_path / "new" / "held", lambda: None):
                inside.append(number)
                most.append(len(inside))
                inside.remove(number)

    with ThreadPoolExecutor(6) as pool:
        list(pool.map(hold, range(6)))
    assert len(most) == 240 and max(most) == 1
    assert not list((tmp_path / "new").iterdir())
