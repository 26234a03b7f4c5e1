"""Photographs prepared in one compiled call: the bits of the steps that it stands for, and no lock held meanwhile."""

import sys
import threading
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from support.augmentation_settings import GIVEN
from support.image_pipelines import SAVED, encoded, photograph
from torch import Tensor

from orchestrator.data import compiled, pipeline
from orchestrator.data.augmentations import Degradation
from orchestrator.data.augmentations.crops import CROP_DRAWS, CROPS, Crop
from orchestrator.data.augmentations.extra import EXTRAS, text_of
from orchestrator.data.compiled import cut_of, program
from orchestrator.data.encoding import Encoded, to_ppm
from orchestrator.data.pipeline import EVALUATION, Reader, Request, decode_pixels
from orchestrator.data.store import Row, Store, write_store
from orchestrator.data.transforms import uniforms

# torchvision 0.29 says so at every image
pytestmark = pytest.mark.filterwarnings("ignore:The image decoding:DeprecationWarning")

SIZE = 48  # of most crops: nothing depends on it but the time
CALLS = 25
"""Calls of and from Python per photograph; step by step there are some hundred and fifty."""


def write(path: Path, images: list[bytes]) -> Store:
    rows = [Row(data, number % 2, "train") for number, data in enumerate(images)]
    return write_store(path, name="mixed", channels=3, class_names=["a", "b"], rows=rows, seed=0, settings={})


@pytest.fixture(scope="module")
def mixed(tmp_path_factory: pytest.TempPathFactory) -> Store:
    """Photographs in all the ways in which a store may hold them, and in odd sizes."""
    rng, images = np.random.default_rng(5), []
    for name, mode, size, options in SAVED:
        pixels = photograph(rng, *size)
        images.append(encoded(pixels, Path(name).suffix[1:].replace("jpg", "jpeg"), mode, **options))
        images.append(to_ppm(Encoded(encoded(pixels, "png"), 0, 0)).image)
    odd = ((1, 1), (3, 200), (200, 3), (256, 300), (224, 224))
    images += [encoded(photograph(rng, *size)) for size in odd]
    return write(tmp_path_factory.mktemp("mixed") / "mixed", images)


def read(store: Store, epoch: int, view: int = 0, **how: Any) -> Tensor:
    with Reader(store, **how) as reader:
        ((_, images),) = reader.read([Request(np.arange(len(store)), epoch, view=view)])
    return images


@pytest.fixture
def step_by_step(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Calls a function without the compiled program."""

    def call(function: Any, *arguments: Any, **how: Any) -> Any:
        with monkeypatch.context() as patch:
            patch.setattr(pipeline, "program", lambda: None)
            return function(*arguments, **how)

    return call


WAYS: list[dict[str, Any]] = [
    {},
    {"image_size": 2 * SIZE, "seed": 9},
    {"image_size": SIZE, "threads": 3},
    {"image_size": SIZE, "degradation": Degradation("blur", 0.5, 0.05), "degrade_tests": True},
    {"image_size": SIZE, "degradation": Degradation("occlusion", 0.5, None), "threads": 2},
]


@pytest.mark.parametrize("name", CROPS)
@pytest.mark.parametrize("way", WAYS, ids=str)
def test_batches_have_the_bits_of_the_single_steps(
    name: str, way: dict[str, Any], mixed: Store, step_by_step: Any
) -> None:
    for epoch, view in ((0, 0), (3, 1), (EVALUATION, 0)):
        how = way | {"augmentation": name}
        found, expected = read(mixed, epoch, view, **how), step_by_step(read, mixed, epoch, view, **how)
        assert found.dtype == expected.dtype and torch.equal(found, expected)
    mixed.verify()


@pytest.mark.parametrize("name", EXTRAS)
def test_extra_augmentations_have_the_same_bits(name: str, mixed: Store, step_by_step: Any) -> None:
    how: dict[str, Any] = {"augmentation": "random_resized_crop_224", "image_size": SIZE}
    extra: dict[str, Any] = {"extra_augmentations": text_of([(name, GIVEN.get(name, {}))])}
    assert torch.equal(read(mixed, 1, **how, **extra), step_by_step(read, mixed, 1, **how, **extra))
    evaluated = read(mixed, EVALUATION, **how, **extra, threads=2)
    assert torch.equal(evaluated, step_by_step(read, mixed, EVALUATION, **how))


@pytest.mark.parametrize("scale", [(0.08, 1.0), (0.9, 1.0), None])
def test_windows_are_the_same_in_images_of_all_shapes(scale: tuple[float, float] | None) -> None:
    crop, rng = Crop(6, resize=False, scale=scale, shorter=7), np.random.default_rng(3)
    sizes = [(int(h), int(w)) for h, w in rng.integers(6 if scale is None else 1, 60, (1500, 2))]
    images = [torch.arange(h * w, dtype=torch.int32).remainder(251).to(torch.uint8).view(1, h, w) for h, w in sizes]
    draws = uniforms(np.arange(len(images)), seed=0, epoch=0, draws=CROP_DRAWS)
    found = torch.empty(len(images), 1, 6, 6, dtype=torch.uint8)
    compiled_program = program()
    assert compiled_program is not None
    compiled_program.fill(found, images, draws.tolist(), cut_of(crop))
    assert torch.equal(found, torch.stack(list(map(crop.training, images, draws))))
    compiled_program.fill(found, images, [], cut_of(crop))
    assert torch.equal(found, torch.stack(list(map(crop.evaluation, images))))


def test_a_processor_without_vectors_resizes_as_torchvision_does_there(
    mixed: Store, step_by_step: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    how: dict[str, Any] = {"augmentation": "random_resized_crop_224", "image_size": SIZE}
    usual = read(mixed, 0, **how)
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: "DEFAULT")
    monkeypatch.setattr("platform.machine", lambda: "x86_64")
    found = read(mixed, 0, **how)
    assert torch.equal(found, step_by_step(read, mixed, 0, **how)) and not torch.equal(found, usual)


# --- the lock


def calls_of_threads(store: Store) -> float:
    """Calls of and from Python in loader threads, per photograph."""
    counts: list[int] = []

    def count(frame: Any, event: str, argument: Any) -> None:
        if event in ("call", "c_call"):
            counts.append(1)

    rows = np.resize(np.arange(len(store)), 128)
    read(store, 0, augmentation="random_crop_224")  # imports and the like
    threading.setprofile(count)
    try:
        with Reader(store, augmentation="random_crop_224", threads=1) as reader:
            list(reader.read([Request(rows, 0)]))
    finally:
        threading.setprofile(None)
    return len(counts) / len(rows)


@pytest.fixture(scope="module")
def jpegs(tmp_path_factory: pytest.TempPathFactory) -> Store:
    rng = np.random.default_rng(6)
    images = [encoded(photograph(rng, 256, 300)) for _ in range(16)]
    return write(tmp_path_factory.mktemp("jpegs") / "jpegs", images)


@pytest.mark.parametrize(("size", "middle"), [((1, 4000), np.s_[:, 1992:2008]), ((400, 5), np.s_[160:240])])
def test_of_a_strange_size_the_middle_is_resized(
    tmp_path: Path, step_by_step: Any, size: tuple[int, int], middle: Any
) -> None:
    """1 x 4,000 pixels, resized whole, take 0.8 GB."""
    pixels = np.random.default_rng(0).integers(0, 256, (*size, 3), dtype=np.uint8)
    whole, part = (
        write(tmp_path / name, [encoded(image, "png")] * 2) for name, image in (("a", pixels), ("b", pixels[middle]))
    )
    for epoch in (0, EVALUATION):
        how: dict[str, Any] = {"augmentation": "random_crop_224", "image_size": SIZE}
        expected = read(part, epoch, **how)
        assert torch.equal(read(whole, epoch, **how), expected)
        assert torch.equal(step_by_step(read, whole, epoch, **how), expected)


def test_a_thread_runs_few_python_steps_for_a_photograph(jpegs: Store, step_by_step: Any) -> None:
    """A planted bug: the program is not used."""
    assert calls_of_threads(jpegs) < CALLS
    assert step_by_step(calls_of_threads, jpegs) > 2 * CALLS


def test_the_lock_is_free_while_photographs_are_prepared(jpegs: Store) -> None:
    """Without a switch on demand another thread runs once the lock is given back: in the call, or after its end."""
    found = program()
    assert found is not None
    images = [pipeline.compiled_input(jpegs.mapped_bytes(row % len(jpegs)), 3) for row in range(600)]
    batch, cut = torch.empty(len(images), 3, 224, 224, dtype=torch.uint8), cut_of(CROPS["random_crop_224"])
    begins, ended = threading.Event(), []

    def prepare() -> None:
        begins.set()
        found.fill(batch, images, [], cut)
        ended.append(True)

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1000)
    try:
        thread = threading.Thread(target=prepare)
        thread.start()
        begins.wait()
        assert not ended
    finally:
        sys.setswitchinterval(interval)
        thread.join()
    assert ended


# --- where it cannot be used


def test_without_the_compiler_it_is_told_once_and_the_bits_are_the_same(
    mixed: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    how: dict[str, Any] = {"augmentation": "random_crop_224", "image_size": SIZE, "threads": 2}
    expected = read(mixed, 0, **how)
    compiled._compile.cache_clear()
    try:
        monkeypatch.setattr(torch.jit, "script", lambda function: 1 / 0)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            assert torch.equal(read(mixed, 0, **how), expected)
            assert torch.equal(read(mixed, 0, **how), expected)
    finally:
        compiled._compile.cache_clear()
    told = [str(warning.message) for warning in caught if "step by step" in str(warning.message)]
    assert len(told) == 1 and "(division by zero)" in told[0]


def test_an_image_that_only_pillow_can_decode_is_read(mixed: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    how: dict[str, Any] = {"augmentation": "random_crop_224", "image_size": SIZE}
    expected = read(mixed, 0, **how)

    def fails(*arguments: Any) -> None:
        raise torch.jit.Error("the decoder does not know it")

    monkeypatch.setattr(pipeline, "program", lambda: compiled.Program(fails, fails))
    assert torch.equal(read(mixed, 0, **how), expected)


def test_a_jpeg_in_a_store_of_grey_images_is_decoded_as_one(tmp_path: Path) -> None:
    picture = Image.fromarray(photograph(np.random.default_rng(0), 60, 80))
    data = encoded(np.asarray(picture))
    store = write_store(
        tmp_path / "grey", name="grey", channels=1, class_names=["a"], rows=[Row(data, 0, "train")], seed=0, settings={}
    )
    found = read(store, EVALUATION, augmentation="random_crop_224")
    assert torch.equal(found[0], CROPS["random_crop_224"].evaluation(decode_pixels(data, 1)))
