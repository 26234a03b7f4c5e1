"""One preparation of an image for a model: `embed` gets from a file what the evaluation gets from a store."""

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from support.embedding_models import model_of
from torch import Tensor

from orchestrator import api
from orchestrator.config.training import resolve_experiment
from orchestrator.data.augmentations.crops import CROPS, Crop, crop_of
from orchestrator.data.encoding import UnreadableImage
from orchestrator.data.pipeline import Request, as_float
from orchestrator.data.preparation import Preparation, kept_settings
from orchestrator.data.prepare import prepare
from orchestrator.data.store import Store
from orchestrator.search.hub import write_folder
from orchestrator.search.retrieval import query
from orchestrator.search.source import ModelSource, example_images
from orchestrator.training.checkpoint import load_checkpoint, save_checkpoint
from orchestrator.training.embed import embed_model
from orchestrator.training.embed_files import embed_files
from orchestrator.training.hub_folder import WEIGHTS
from orchestrator.training.model_file import saved_model
from orchestrator.training.splits import new_reader

SIZES = {"tall": (90, 150), "small": (60, 50), "large": (400, 280), "strip": (501, 22)}


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Photographs of four shapes, one longer than is seen, turned and with transparency too, in two classes each."""
    folder = tmp_path_factory.mktemp("photos")
    random = np.random.default_rng(0)
    exif = Image.Exif()
    exif[0x0112] = 6
    for name, size in SIZES.items():
        for number, (suffix, options) in enumerate({"jpg": {"exif": exif}, "png": {}, "webp": {}}.items()):
            pixels = random.integers(0, 256, (size[1] // 20, size[0] // 20, 4), dtype=np.uint8)
            picture = Image.fromarray(pixels).resize(size)
            (folder / name).mkdir(exist_ok=True)
            picture = picture.convert("RGB") if suffix == "jpg" else picture
            picture.save(folder / name / f"{number}.{suffix}", **options)  # type: ignore[arg-type]
    return folder


def store_of(photos: Path, root: Path, **options: Any) -> Store:
    return prepare("folder", photos, root, name="photos", **options)


def evaluated(store: Store, settings: dict[str, Any]) -> torch.Tensor:
    training = resolve_experiment({"method": "proxy_anchor", **settings}, "test").training
    with new_reader(store, training) as reader:
        ((_, images),) = reader.read([Request(np.arange(len(store)))])
    return images


KEPT: dict[str, dict[str, Any]] = {
    "at 256": {},
    "at 64": {"size": 64},
    "decoded": {"size": 128, "decoded": True},
    "original": {"original": True},
    "as earlier": {"orientation": "stored", "transparency": "dropped"},
}


@pytest.mark.parametrize("kept", KEPT)
def test_a_file_has_the_pixels_of_the_evaluation(photos: Path, tmp_path: Path, kept: str) -> None:
    """For every way to keep photographs, to cut them, and every size."""
    store = store_of(photos, tmp_path, **KEPT[kept])
    files = [photos / name for name in store.column("source")]
    saved = {"channels": store.channels, "kept": kept_settings(store.manifest)}
    for augmentation in CROPS:
        for image_size in (None, 96):
            settings = {"augmentation": augmentation, "image_size": image_size, "backbone": "resnet18"}
            wanted = evaluated(store, settings)
            prepared = Preparation.of(saved, augmentation, image_size)
            for row, file in enumerate(files):
                assert torch.equal(prepared(file), wanted[row]), (augmentation, image_size, file.name)
            names: dict[str, Any] = {}
            exec(prepared.example, names)
            shown = [names["prepare"](file)[0].permute(2, 0, 1) for file in files]
            assert all(one.dtype == torch.uint8 and one.shape == wanted[0].shape for one in shown)
            off = [(one - row).float().abs().mean() for one, row in zip(shown, wanted.to(torch.int16), strict=True)]
            assert max(off) < 0.1, off


def test_only_an_image_that_cannot_be_read_is_its_own_fault(photos: Path, tmp_path: Path) -> None:
    """A failure of the cut is one of this program's: not "left out"."""

    class Broken(Crop):
        def evaluation(self, image: Tensor) -> Tensor:
            raise RuntimeError("no memory")

    file = next(photos.rglob("*.jpg"))
    prepared = Preparation(3, None, Broken(*vars(crop_of("random_crop_224", None)).values()))
    with pytest.raises(RuntimeError, match="no memory"):
        prepared(file)
    (tmp_path / "x.jpg").write_bytes(b"no image")
    for path, why in ((tmp_path / "x.jpg", "not an image"), (tmp_path / "none.jpg", "No such file")):
        with pytest.raises(UnreadableImage, match=why):
            prepared(path)


def test_images_of_one_size_have_the_pixels_of_the_evaluation(tmp_path: Path) -> None:
    """Without a crop too: those larger than the store's are reduced as it reduces them."""
    random = np.random.default_rng(0)
    for label in "ab":
        (tmp_path / "source" / label).mkdir(parents=True)
        for number in range(2):
            pixels = random.integers(0, 256, (50, 60, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(tmp_path / "source" / label / f"{number}.png")
    store = store_of(tmp_path / "source", tmp_path / "data", size=32)
    wanted = evaluated(store, {"augmentation": "affine"})
    prepared = Preparation.of({"channels": 3, "kept": kept_settings(store.manifest)}, "affine", None)
    for row, name in enumerate(store.column("source")):
        assert torch.equal(as_float(prepared(tmp_path / "source" / name)), as_float(wanted[row]))


@pytest.mark.parametrize(
    ("backbone", "settings"),
    [
        ("resnet18", {"augmentation": "random_crop_224", "image_size": 96}),
        ("small_cnn", {"augmentation": "random_resized_crop_227"}),
        ("timm/test_vit", {"augmentation": "random_resized_crop_224", "image_size": 64}),
    ],
)
def test_every_way_to_use_a_model_gives_the_embeddings_of_its_evaluation(
    photos: Path,
    tmp_path: Path,
    backbone: str,
    settings: dict[str, Any],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """`evaluate`, `embed`, `query`, Python, and what an export is tested on and describes."""
    store = store_of(photos, tmp_path, size=72)
    model = model_of(store, tmp_path / "model.pt", backbone=backbone, weights="random", **settings)
    wanted = embed_model(model, store, np.arange(len(store)), "cpu")[1].outputs["embedding"].numpy()
    files = [photos / name for name in store.column("source")]
    found = embed_files(model, files, "cpu")
    assert not found.left_out
    np.testing.assert_allclose(found.embedding, wanted, atol=1e-5)
    np.testing.assert_allclose(api.Model(model).embed(files[:3], "cpu").embedding, wanted[:3], atol=1e-5)
    nearest, _ = query(model, files[0], photos, 3, "cpu")
    distance = np.linalg.norm(wanted - wanted[0], axis=1)
    order = [row for row in np.argsort(distance, kind="stable") if row != 0][:3]
    assert [one.path for one in nearest] == [files[row] for row in order]

    source = ModelSource.of(model, store)
    assert source.about["preprocessing"]["reduce_shorter_side_to_at_most"].startswith("72 ")
    experiment = resolve_experiment(saved_model(model)["experiment"], "test")
    shown = example_images(store, experiment)
    prepared = Preparation.of(saved_model(model), experiment.training.augmentation, experiment.training.image_size)
    own = torch.stack([prepared(file).permute(1, 2, 0) for file in files])
    assert all(any(torch.equal(one, other) for other in own) for one in shown)

    if backbone != "small_cnn":  # one is enough: timm's networks take a while to be tried
        return

    def no_program(source: ModelSource, path: Path) -> Any:
        path.write_bytes(b"")
        return source.encoder

    write_folder(source, tmp_path / "hub", no_program)
    card = (tmp_path / "hub" / "README.md").read_text("utf-8")
    program = "".join(re.findall(r"```python\n(.*?)```", card, re.DOTALL)[1:])
    names: dict[str, Any] = {"torch": torch, "embed": lambda images: source.encoder(images).detach()}
    (tmp_path / "here").mkdir()
    (tmp_path / "here" / "photos").symlink_to(photos)
    monkeypatch.chdir(tmp_path / "here")
    exec(program, names)
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == len(list(Path("photos").glob("*/*.jpg"))) > 2 and all("looks like" in line for line in lines)
    again = embed_files(tmp_path / "hub" / WEIGHTS, files, "cpu")
    np.testing.assert_allclose(again.embedding, wanted, atol=1e-4)


def test_the_model_of_an_earlier_version_is_taken_to_be_of_a_default_data_set(photos: Path, tmp_path: Path) -> None:
    options = {"orientation": "stored", "transparency": "dropped"}  # as they were then
    store = store_of(photos, tmp_path, **options)
    settings = {"augmentation": "random_crop_224", "image_size": 64, "backbone": "resnet18", "weights": "random"}
    model = model_of(store, tmp_path / "model.pt", **settings)
    saved = load_checkpoint(model, mapped=True)
    saved.pop("kept")
    save_checkpoint(tmp_path / "old.pt", saved)
    wanted = embed_model(tmp_path / "old.pt", store, np.arange(len(store)), "cpu")[1].outputs["embedding"].numpy()
    found = embed_files(tmp_path / "old.pt", [photos / name for name in store.column("source")], "cpu")
    np.testing.assert_allclose(found.embedding, wanted, atol=1e-5)
