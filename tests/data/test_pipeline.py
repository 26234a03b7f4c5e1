"""Photographs on their way to the network: crops, decoding, reading ahead, damage; and labels made wrong on purpose."""

import csv
import io
import json
import re
import warnings
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
import torchvision
from conftest import Pair
from PIL import Image
from support.image_pipelines import (
    CLASSES,
    DAMAGED,
    IMAGES,
    SAVED,
    SETTINGS,
    encoded,
    loader_threads,
    photograph,
    told,
    train,
    weights,
    write_photographs,
)
from support.image_pipelines import damaged as damaged
from support.image_pipelines import photographs as photographs
from torch import Tensor
from torchvision.transforms import v2

from orchestrator.config.resolve import single_training
from orchestrator.config.training import Training, resolve_experiment
from orchestrator.data import encoding, pipeline
from orchestrator.data.augmentations import Degradation
from orchestrator.data.augmentations.crops import CROP_DRAWS, CROPS, DRAWS, Crop, crop_of
from orchestrator.data.pipeline import (
    AHEAD,
    EVALUATION,
    Reader,
    Request,
    as_float,
    check_images,
    decode_pixels,
    find_unreadable,
)
from orchestrator.data.prepare import prepare
from orchestrator.data.samplers import UniformSampler, rank_block
from orchestrator.data.splits import class_split, noisy_labels, train_labels
from orchestrator.data.store import Store
from orchestrator.data.transforms import uniforms
from orchestrator.errors import DataError
from orchestrator.method import Diagnostics, Embedded, Method, registry
from orchestrator.search.preflight import check_data
from orchestrator.storage.places import Places
from orchestrator.storage.trial_folder import BEST
from orchestrator.training.distributed import rank, world_size
from orchestrator.training.embed import evaluate_model
from orchestrator.training.loop import fit
from orchestrator.training.splits import UNREADABLE, enlargement

# torchvision 0.29 says so at every image
pytestmark = pytest.mark.filterwarnings("ignore:The image decoding:DeprecationWarning")


def read(store: Store, rows: Any, epoch: int = 0, **how: Any) -> Tensor:
    with Reader(store, **({"augmentation": "random_crop_224"} | how)) as reader:
        ((_, images),) = reader.read([Request(np.asarray(rows), epoch)])
    return as_float(images)


# --- crops


@pytest.mark.parametrize("name", CROPS)
def test_windows_lie_inside_and_are_spread_as_torchvision_spreads_them(name: str) -> None:
    crop, (height, width) = CROPS[name], (300, 400)
    draws = uniforms(np.arange(4000), seed=0, epoch=0, draws=CROP_DRAWS)
    found = np.array([crop.window(height, width, one) for one in draws])
    top, left, tall, wide = found.T
    assert (found[:, :2] >= 0).all() and (top + tall <= height).all() and (left + wide <= width).all()
    if crop.scale is None:
        assert (tall == crop.size).all() and (wide == crop.size).all()
        assert set(top) == set(range(height - crop.size + 1)) and set(left) == set(range(width - crop.size + 1))
        return
    torch.manual_seed(0)
    image = torch.empty(3, height, width)
    transform = v2.RandomResizedCrop(9, crop.scale, crop.ratio)
    params = [transform.make_params([image]) for _ in range(4000)]
    theirs = np.array([[p["top"], p["left"], p["height"], p["width"]] for p in params])
    for ours, reference in ((tall * wide, theirs[:, 2] * theirs[:, 3]), (wide / tall, theirs[:, 3] / theirs[:, 2])):
        quantiles = np.linspace(0.05, 0.95, 7)
        np.testing.assert_allclose(np.quantile(ours, quantiles), np.quantile(reference, quantiles), rtol=0.06)
    np.testing.assert_allclose(found[:, :2].mean(0), theirs[:, :2].mean(0), rtol=0.08)


@pytest.mark.parametrize(("height", "width"), [(10, 400), (400, 10), (1, 1)])
def test_an_image_that_no_draw_fits_gives_its_largest_window(height: int, width: int) -> None:
    crop = Crop(224, resize=False, scale=(0.9, 1.0))
    _, _, tall, wide = crop.window(height, width, np.full(CROP_DRAWS, 0.5))
    assert min(tall, wide) == min(height, width)
    assert max(tall, wide) == min(max(height, width), round(min(height, width) * 4 / 3))


@pytest.mark.parametrize("name", CROPS)
def test_evaluation_is_what_torchvision_does_to_a_pillow_image(name: str) -> None:
    rng = np.random.default_rng(1)
    for height, width in ((375, 500), (500, 333), (100, 130), (256, 300)):
        image = Image.fromarray(photograph(rng, height, width))
        reference = v2.Compose([v2.Resize(256), v2.CenterCrop(CROPS[name].size), v2.PILToTensor()])(image)
        found = CROPS[name].evaluation(decode_pixels(encoded(np.asarray(image), "png"), 3))
        assert found.dtype == torch.uint8 and found.shape == reference.shape
        assert (found.int() - reference.int()).abs().max() <= 1


def test_a_view_is_the_window_resized_and_flipped() -> None:
    rng, draws = np.random.default_rng(2), np.full(CROP_DRAWS, 0.5)
    picture = photograph(rng, 256, 340)
    image = torch.from_numpy(picture.copy()).permute(2, 0, 1)
    plain = CROPS["random_crop_224"].training(image, draws)
    assert torch.equal(plain, image[:, 16 : 16 + 224, 58 : 58 + 224])
    draws[2] = 0.4
    assert torch.equal(CROPS["random_crop_224"].training(image, draws), plain.flip(-1))
    draws[2], draws[DRAWS : DRAWS + 2] = 0.6, (0.3, 0.7)
    top, left, tall, wide = CROPS["random_resized_crop_227"].window(256, 340, draws)
    box = (left, top, left + wide, top + tall)
    reference = np.asarray(Image.fromarray(picture).crop(box).resize((227, 227), Image.Resampling.BILINEAR))
    found = CROPS["random_resized_crop_227"].training(image, draws).permute(1, 2, 0).numpy()
    assert np.abs(found.astype(int) - reference.astype(int)).max() <= 1


# --- reading


@pytest.mark.parametrize("name", CROPS)
def test_a_photograph_is_the_same_in_every_batch_and_with_any_threads_bit_for_bit(
    name: str, photographs: Store
) -> None:
    how = {"augmentation": name, "seed": 3, "degradation": Degradation("blur", 0.5, 0.01)}
    rows = np.random.default_rng(0).permutation(len(photographs))[:14]
    together = read(photographs, rows, 2, **how)
    assert together.shape == (14, 3, CROPS[name].size, CROPS[name].size)
    assert together.dtype == torch.float32 and together.min() >= 0 and together.max() <= 1
    assert torch.equal(read(photographs, rows, 2, **how, threads=3), together)
    for part in (np.arange(7), np.arange(7, 14), np.array([5, 5, 2])):
        assert torch.equal(read(photographs, rows[part], 2, **how, threads=2), together[part])


def test_photographs_differ_by_seed_epoch_and_sample_in_training_only(photographs: Store) -> None:
    first = read(photographs, [3, 4])
    assert not torch.equal(first, read(photographs, [3, 4], epoch=1))
    assert not torch.equal(first, read(photographs, [3, 4], seed=1))
    evaluated = read(photographs, [3, 4], EVALUATION, degradation=Degradation("occlusion", 1.0, None))
    assert torch.equal(evaluated, read(photographs, [3, 4], EVALUATION, seed=1))
    assert torch.equal(
        evaluated[0], CROPS["random_crop_224"].evaluation(decode_pixels(photographs.image_bytes(3), 3)) / 255
    )


@pytest.mark.parametrize("name", CROPS)
def test_photographs_are_cut_to_another_size_in_proportion(name: str, photographs: Store) -> None:
    own, size = CROPS[name].size, 3 * CROPS[name].size // 2
    assert crop_of(name, own) == crop_of(name) == CROPS[name]
    crop = crop_of(name, size)
    assert crop == replace(CROPS[name], size=size, shorter=round(256 * size / own)) and crop_of("affine", size) is None
    rows = [3, 4]
    for epoch in (0, EVALUATION):
        found = read(photographs, rows, epoch, augmentation=name, image_size=size)
        assert found.shape == (2, 3, size, size)
        assert not torch.equal(found, F.interpolate(read(photographs, rows, epoch, augmentation=name), size=size))
    image = decode_pixels(photographs.image_bytes(3), 3)
    seen = (as_float(read(photographs, [3], EVALUATION, augmentation=name, image_size=size)) * 255).round()
    resized = v2.functional.resize(image, [round(256 * size / own)], antialias=True)
    assert torch.equal(seen[0].to(torch.uint8), v2.functional.center_crop(resized, [size, size]))


@pytest.mark.parametrize(
    ("size", "kept", "told"), [(448, 256, True), (448, 512, False), (224, 64, True), (None, 64, False)]
)
def test_photographs_that_are_kept_too_small_are_told(size: int | None, kept: int, told: bool) -> None:
    store = SimpleNamespace(name="mine", manifest={"settings": {"size": kept}})
    training = Training(augmentation="random_crop_224", image_size=size)
    found = enlargement(training, store)  # type: ignore[arg-type]
    needed = 256 if size == 224 else 512
    line = f"image_size: {size}: mine keeps images with a shorter side of {kept} pixels, which are enlarged to {needed}"
    assert found == (f"{line}: prepare it with --size {needed}" if told else "")
    store.manifest = {"settings": {"importer": "folder", "encoding": "original"}}
    assert enlargement(training, store) == ""  # type: ignore[arg-type]


def test_degradations_apply_after_the_crop(photographs: Store) -> None:
    hidden = read(photographs, [3, 4], degradation=Degradation("occlusion", 1.0, 0.5)) == 0.5
    assert (hidden.all(1).sum((1, 2)) >= 112 * 112).all()
    how = {"degradation": Degradation("occlusion", 1.0, 0.5), "degrade_tests": True}
    tested = read(photographs, [3, 4], EVALUATION, **how)
    shown = tested != 0.5
    assert torch.equal(tested[shown], read(photographs, [3, 4], EVALUATION)[shown])
    assert ((~shown).all(1).sum((1, 2)) >= 112 * 112).all()


def test_reading_ahead_is_bounded_in_order_and_ends_with_its_threads(photographs: Store) -> None:
    taken: list[int] = []

    def endless() -> Iterator[Request]:
        while True:
            taken.append(len(taken))
            yield Request(np.array([taken[-1] % len(photographs)]), 0)

    with Reader(photographs, augmentation="random_crop_224", threads=2) as reader:
        for number, (request, images) in enumerate(reader.read(endless())):
            assert len(taken) <= number + 1 + AHEAD
            assert request.samples.tolist() == [number]
            assert torch.equal(as_float(images), read(photographs, [number]))
            if number == 3:
                break
        assert loader_threads()
    assert not loader_threads()


@pytest.mark.parametrize("threads", [0, 2])
def test_an_error_comes_with_the_batch_that_it_is_in(damaged: Store, threads: int) -> None:
    wanted = [Request(np.arange(start, start + 4), 0) for start in (0, 4, 8)]
    with Reader(damaged, augmentation="random_crop_224", threads=threads) as reader:
        batches = reader.read(wanted)
        next(batches)
        with pytest.raises(DataError, match=f"image {DAMAGED} cannot be decoded"):
            next(batches)
    assert not loader_threads()


# --- decoding


@pytest.mark.parametrize(
    ("kind", "mode", "tolerance"),
    [("jpeg", None, 0), ("jpeg", "L", 0), ("jpeg", "CMYK", 0), ("png", None, 0), ("png", "P", 0), ("png", "RGBA", 0)],
)
@pytest.mark.parametrize("channels", [1, 3])
def test_decoding_agrees_with_pillow(kind: str, mode: str | None, tolerance: int, channels: int) -> None:
    data = encoded(photograph(np.random.default_rng(0), 41, 57), kind, mode)
    reference = np.asarray(Image.open(io.BytesIO(data)).convert("L" if channels == 1 else "RGB"))
    found = decode_pixels(data, channels)
    assert found.dtype == torch.uint8 and found.shape == (channels, 41, 57)
    difference = found.permute(1, 2, 0).numpy().astype(int) - reference.reshape(41, 57, channels)
    assert np.abs(difference).max() <= tolerance


def decoded_store(folder: Path) -> tuple[Store, Store, list[str]]:
    """A store of JPEG and one of decoded images from the same files, and what was told before writing."""
    rng = np.random.default_rng(11)
    for name, mode, size, options in SAVED:
        path = folder / "source" / name[0] / name
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(photograph(rng, *size)).convert(mode).save(path, **options)
    told: list[str] = []
    plain = prepare("folder", folder / "source", folder, name="plain", expect=told.append)
    assert told == []
    return plain, prepare("folder", folder / "source", folder, name="pixels", decoded=True, expect=told.append), told


def same_views(plain: Store, pixels: Store) -> bool:
    rows = np.arange(len(plain))
    return all(
        torch.equal(read(plain, rows, epoch, augmentation=name), read(pixels, rows, epoch, augmentation=name))
        for name in CROPS
        for epoch in (EVALUATION, 0, 1)
    )


def test_a_store_of_decoded_images_gives_the_same_pixels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plain, pixels, told = decoded_store(tmp_path)
    assert same_views(plain, pixels)
    assert all(np.array_equal(plain.image(row), pixels.image(row)) for row in range(len(plain)))
    size = (tmp_path / "pixels" / "images.arrow").stat().st_size
    found = re.fullmatch(r"decoded: about ([\d.]+) GB, judged by 6 of 6 images, and twice .* GB are free", told[0])
    assert found is not None and float(found[1]) * 1e9 == pytest.approx(size, rel=0.02)
    pixels.verify()
    assert pixels.manifest["settings"]["encoding"] == "JPEG, decoded"
    with pytest.raises(DataError, match="already exists, with encoding JPEG, decoded, not JPEG"):
        prepare("folder", tmp_path / "source", tmp_path, name="pixels")
    monkeypatch.setattr(Image, "open", None)
    assert read(plain, np.flatnonzero(plain.labels == 0)).shape == (1, 3, 224, 224)  # JPEG does not go to Pillow
    monkeypatch.setattr(torchvision.io, "decode_jpeg", None)
    assert read(pixels, np.arange(6), augmentation="random_crop_224").shape == (6, 3, 224, 224)  # nothing is decoded


def test_other_pixels_in_a_store_of_decoded_images_are_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A planted bug: what is kept was not JPEG in between."""
    written = encoding._write
    monkeypatch.setattr(encoding, "_write", lambda image, kind: written(image, "PNG"))
    _, pixels, _ = decoded_store(tmp_path / "bug")
    monkeypatch.undo()
    plain = prepare("folder", tmp_path / "bug" / "source", tmp_path, name="plain")
    assert not same_views(plain, pixels)


def test_images_are_not_turned() -> None:
    picture = Image.fromarray(photograph(np.random.default_rng(0), 40, 60))
    exif = picture.getexif()
    exif[0x0112] = 6  # to be shown turned by 90 degrees
    buffer = io.BytesIO()
    picture.save(buffer, "jpeg", exif=exif)
    assert decode_pixels(buffer.getvalue(), 3).shape == (3, 40, 60)


def test_what_is_damaged_gives_one_line() -> None:
    jpeg, png = (encoded(photograph(np.random.default_rng(0), 40, 60), kind) for kind in ("jpeg", "png"))
    for data in (
        b"",
        b"text",
        jpeg[:300],
        jpeg[:10],
        jpeg[: len(jpeg) // 2],
        png[: len(png) // 2],
        jpeg[:3] + bytes(99),
    ):
        with pytest.raises(ValueError, match=r"^[^\n]+$") as error:
            decode_pixels(data, 3)
        assert "0x" not in str(error.value), "the same words in every process"


# --- damage


def test_damage_is_looked_for_once(damaged: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    record = damaged.path / pipeline.CHECKED
    record.unlink(missing_ok=True)
    assert find_unreadable(damaged, "affine", threads=2) == {}
    found = find_unreadable(damaged, "random_crop_224", threads=2, say=said.append)
    assert list(found) == [DAMAGED] and "truncated" in found[DAMAGED]
    assert len(said) == 1 and f"the {CLASSES * IMAGES} images of photographs" in said[0]

    monkeypatch.setattr(pipeline, "decode_pixels", lambda data, channels: pytest.fail("looked again"))
    assert find_unreadable(damaged, "random_resized_crop_227", threads=0, say=said.append) == found
    assert len(said) == 1
    monkeypatch.undo()

    record.write_text(json.dumps({"digest": "of other data", "unreadable": {"3": "wrong"}}), "utf-8")
    assert find_unreadable(damaged, "random_crop_224", threads=0) == found
    record.unlink()
    record.mkdir()  # cannot be written
    assert find_unreadable(damaged, "random_crop_224", threads=0) == found
    record.rmdir()
    assert not [path for path in damaged.path.iterdir() if path.suffix == ".tmp"]


def test_too_much_damage_is_refused(photographs: Store, glyphs: Store) -> None:
    check_images(photographs, "random_crop_224", {5: "why"})
    with pytest.raises(
        DataError, match=r"2 of 120 images cannot be decoded, more than 1% \(the first is image 5: why\)"
    ):
        check_images(photographs, "random_crop_224", {6: "other", 5: "why"})
    members = np.flatnonzero(glyphs.labels == 2).tolist()
    assert len(members) <= 0.01 * len(glyphs)
    with pytest.raises(DataError, match=r"no image of class 2 \('.*'\) can be decoded"):
        check_images(glyphs, "random_crop_224", dict.fromkeys(members, "why"))
    check_images(glyphs, "random_crop_224", dict.fromkeys(members[1:], "why"))


def test_recipes_for_equal_sizes_refuse_photographs(photographs: Store, glyphs: Store) -> None:
    check_images(glyphs, "affine", {})
    with pytest.raises(DataError, match=r"'affine' is for images of one size, but .* use one of random_crop_224, "):
        check_images(photographs, "affine", {})


# --- trainings


def test_resuming_in_the_middle_of_an_epoch_is_exact_with_threads(
    photographs: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An epoch has ten steps; the interruption comes after the third. It goes on where nothing can be compiled."""
    whole = train(tmp_path / "whole", photographs.path, {})
    broken = train(tmp_path / "broken", photographs.path, {}, take=1)
    assert whole[0].step == 3 and whole[0].epoch == 0.3
    assert not loader_threads(), "closed early"
    monkeypatch.setattr(pipeline, "program", lambda: None)
    resumed = train(tmp_path / "broken", photographs.path, {"loader_threads": 0})
    assert told(broken) == told(whole[:1]) and told(resumed) == told(whole)
    first, second = weights(tmp_path / "whole"), weights(tmp_path / "broken")
    assert all(torch.equal(first[name], second[name]) for name in first)
    assert not loader_threads()


def test_a_search_tells_of_damage_before_anything_is_trained(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    places = Places(tmp_path)
    write_photographs(places.data / "glyphs-small", (DAMAGED,))
    settings = SETTINGS | {"dataset": "glyphs-small"}
    for _ in range(2):
        check_data(single_training("one", settings), places)
    looked, *told = capsys.readouterr().err.splitlines()
    assert looked.startswith("checking that the 120 images of")
    damage = [line for line in told if "cannot be decoded" in line]
    assert [f"the first is image {DAMAGED}: " in line for line in damage] == [True, True]
    with pytest.raises(DataError, match="'none' is for images of one size"):
        check_data(single_training("two", settings | {"augmentation": "none"}), places)
    with pytest.raises(DataError, match=r"label_noise is 0.95"):
        check_data(single_training("three", settings | {"label_noise": 0.95}), places)


@pytest.mark.slow
def test_one_process_equals_two_without_a_damaged_image(damaged: Store, tmp_path: Path, pair: Pair) -> None:
    settings = {"precision": "float64"}
    with pytest.warns(UserWarning, match=rf"1 of 120 .* left out \(the first is image {DAMAGED}: ") as caught:
        one = train(tmp_path / "one", damaged.path, settings, 1)
    assert sum("left out" in str(warning.message) for warning in caught) == 1
    two = pair.run(train, tmp_path / "two", damaged.path, settings, 1)
    for ours, theirs in zip(one, two[0], strict=True):
        assert ours.metrics == pytest.approx(theirs.metrics, abs=1e-9)
    assert told(two[0]) == told(two[1])
    first, second = weights(tmp_path / "one"), weights(tmp_path / "two")
    assert all(torch.allclose(first[name], second[name], rtol=0, atol=1e-10) for name in first)
    for folder in ("one", "two"):
        with (tmp_path / folder / UNREADABLE).open() as file:
            (row,) = csv.DictReader(file)
        assert (row["image"], row["class"], row["split"]) == (str(DAMAGED), "class 0", "train")
    rows = np.arange(12)
    with warnings.catch_warnings(record=True):
        metrics = evaluate_model(tmp_path / "one" / BEST, damaged, rows)
        rest = evaluate_model(tmp_path / "one" / BEST, damaged, np.delete(rows, DAMAGED))
    assert metrics.pop("images_left_out") == 1
    assert metrics == rest


def epoch_of(path: Path, epoch: int) -> list[tuple[int, Tensor]]:
    """The rows that this process reads in an epoch, with their images."""
    store = Store.open(path)
    split = class_split(store, validation_share=0.0, seed=0)
    sampler = UniformSampler(len(split.train), 12, seed=1)
    with Reader(store, augmentation="random_crop_224", threads=2) as reader:
        blocks = (rank_block(positions, rank(), world_size()) for positions in sampler.batches(epoch))
        wanted = (Request(split.train[block], epoch) for block in blocks)
        return [
            (int(row), image.double().sum())
            for request, images in reader.read(wanted)
            for row, image in zip(request.samples, images, strict=True)
        ]


def test_two_processes_read_every_photograph_of_an_epoch_once(photographs: Store, pair: Pair) -> None:
    one = epoch_of(photographs.path, 1)
    assert sorted(row for row, _ in one) == list(range(60))
    first, second = pair.run(epoch_of, photographs.path, 1)
    assert len(first) == len(second) == 30
    assert dict(first + second) == dict(one)


class Judging(Method):
    """Says which labels it is given."""

    name, paper = "judging", "none"
    truth: Any = None

    def loss(self, outputs: dict[str, Tensor], labels: Tensor) -> dict[str, Tensor]:
        return {"loss": outputs["embedding"].square().mean()}

    def diagnostics(self, trained: Embedded | None, held_out: Embedded | None) -> Diagnostics:
        assert trained is not None and held_out is not None
        wrong = {
            int(s) for s, label in zip(trained.samples, trained.labels, strict=True) if self.truth[int(s)] != label
        }
        seen = set(trained.samples.tolist())
        return Diagnostics(scalars={"wrong": len(wrong) / len(seen), "held_out": float(held_out.labels.sum())})


def test_only_training_labels_are_noisy(glyphs: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    split = class_split(glyphs, validation_share=0.3, seed=0)
    monkeypatch.setitem(registry(), "judging", Judging)
    monkeypatch.setattr(Judging, "truth", dict(zip(split.train, train_labels(glyphs, split.train), strict=True)))
    base = {"method": "judging", "dataset": "glyphs-small", "embedding_dim": 4, "epochs": 1, "device": "cpu"}
    found = {}
    for share in (0.0, 0.25):
        experiment = resolve_experiment(base | {"label_noise": share, "label_noise_seed": 3}, "test")
        (found[share],) = fit(experiment, glyphs, split)
    assert found[0.0].metrics["diagnostics/wrong"] == 0
    assert found[0.25].metrics["diagnostics/wrong"] == pytest.approx(0.25, abs=0.03)
    truth = glyphs.labels[split.validation].sum()
    assert all(validation.metrics["diagnostics/held_out"] == truth for validation in found.values())


# --- labels and classes


def test_label_noise_is_the_share_and_uniform_over_the_others() -> None:
    labels = np.repeat(np.arange(5), 2000)
    noisy = noisy_labels(labels, share=0.2, seed=1)
    assert (noisy != labels).sum() == 2000
    for label in range(5):
        counts = np.bincount(noisy[(labels == label) & (noisy != label)], minlength=5)
        others = np.delete(counts, label)
        assert counts[label] == 0
        np.testing.assert_allclose(others, others.sum() / 4, rtol=0.25)
    assert np.array_equal(noisy, noisy_labels(labels, share=0.2, seed=1))
    assert not np.array_equal(noisy, noisy_labels(labels, share=0.2, seed=2))
    assert np.array_equal(noisy_labels(labels, share=0.0, seed=1), labels)


def test_no_class_loses_all_its_images_to_label_noise() -> None:
    labels = np.repeat(np.arange(40), 2)
    for seed in range(10):
        noisy = noisy_labels(labels, share=0.5, seed=seed)
        assert (noisy != labels).sum() == 40
        assert len(np.unique(labels[noisy == labels])) == 40
    with pytest.raises(
        DataError, match=r"label_noise is 0.6, but 40 of 80 training images keep their label.* give 0.50 or less"
    ):
        noisy_labels(labels, share=0.6, seed=0)


def test_a_subset_takes_the_first_classes_of_either_half(photographs: Store) -> None:
    split = class_split(photographs, validation_share=0.0, seed=0, class_subset=4)
    assert split.train_classes.tolist() == [0, 1, 2, 3] and split.test_classes.tolist() == [6, 7, 8, 9]
    assert len(split.train) == len(split.test) == 4 * IMAGES
    searched = class_split(photographs, validation_share=0.5, seed=0, class_subset=4)
    assert sorted([*searched.train_classes, *searched.validation_classes]) == [0, 1, 2, 3]
    with pytest.raises(
        DataError, match=r"class_subset is 7, but there are 6 training and 6 test classes; .* from 2 to 6"
    ):
        class_split(photographs, validation_share=0.0, seed=0, class_subset=7)
