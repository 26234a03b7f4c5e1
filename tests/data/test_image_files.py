"""What lies among images and is none: pipes, devices, files without an end; none is waited for, or read whole."""

import json
import os
import signal
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from support.archive_trees import run

import orchestrator.data.encoding
from orchestrator.config.training import resolve_experiment
from orchestrator.data.encoding import IMAGE_BYTES, read_image
from orchestrator.data.preparation import Preparation
from orchestrator.data.prepare import prepare
from orchestrator.data.store import Store
from orchestrator.errors import DataError, InputError
from orchestrator.report.html.query_page import Shown
from orchestrator.training.checkpoint import save_checkpoint
from orchestrator.training.model_file import build_learner, model_state

pytestmark = pytest.mark.timeout(120)
STRANGE = ("device.jpg", "endless.jpg", "pipe.jpg")


@pytest.fixture(scope="module")
def model(glyphs: Store, tmp_path_factory: pytest.TempPathFactory) -> Path:
    experiment = resolve_experiment({"method": "triplet", "dataset": "glyphs-small", "embedding_dim": 8}, "test")
    path = tmp_path_factory.mktemp("model") / "model.pt"
    save_checkpoint(path, model_state(experiment, glyphs, build_learner(experiment, glyphs, num_classes=5)))
    return path


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    """Two classes of four images, and what is none among those of the first."""
    for label, name in enumerate(("ant", "bee")):
        (tmp_path / "photos" / name).mkdir(parents=True)
        for number in range(4):
            pixels = np.random.default_rng(4 * label + number).integers(0, 256, (32, 32), np.uint8)
            Image.fromarray(pixels).save(tmp_path / "photos" / name / f"{number}.png")
    strange = tmp_path / "photos" / "ant"
    (strange / "device.jpg").symlink_to("/dev/zero")
    os.mkfifo(strange / "pipe.jpg")
    with (strange / "endless.jpg").open("wb") as file:
        file.truncate(1 << 40)  # sparse: it takes no room
    return tmp_path / "photos"


def test_embed_leaves_them_out(model: Path, photos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("embed", str(model), str(photos), f"--output={tmp_path / 'e.parquet'}", "--json") == 0
    out, err = capsys.readouterr()
    left_out = {Path(path).name: reason for path, reason in json.loads(out)["left_out"].items()}
    assert left_out == {
        "device.jpg": "is a device or a pipe, not an image file",
        "pipe.jpg": "is a device or a pipe, not an image file",
        "endless.jpg": "has more than 512 MiB, the most that is read of an image file",
    }
    assert json.loads(out)["images"] == 8 and "left out: is a device or a pipe" in err
    one = str(photos / "bee" / "0.png")
    assert run("query", str(model), one, f"--among={photos}", f"--html={tmp_path / 'page.html'}") == 0
    capsys.readouterr()
    os.mkfifo(tmp_path / "pipe.parquet")
    for image, among in ((photos / "ant" / "pipe.jpg", photos), (one, tmp_path / "pipe.parquet")):
        assert run("query", str(model), str(image), f"--among={among}") == 2
        (line,) = capsys.readouterr().err.splitlines()
        assert "pipe" in line and line.startswith("error: ")


def test_prepare_names_them_all(photos: Path, tmp_path: Path) -> None:
    for names, what in ((("device.jpg", "pipe.jpg"), "replace or remove"), (("endless.jpg",), "more than 512 MiB")):
        with pytest.raises(DataError, match=what) as refused:
            prepare("folder", photos, tmp_path / "data", name="own")
        for name in names:
            assert name in str(refused.value) and Shown.of(photos / "ant" / name, name).source is None
            (photos / "ant" / name).unlink()
    assert len(prepare("folder", photos, tmp_path / "data", name="own")) == 8


def test_a_data_sets_own_files_are_files(model: Path, photos: Path, tmp_path: Path) -> None:
    for name in STRANGE:
        (photos / "ant" / name).unlink()
    store = prepare("folder", photos, tmp_path / "data", name="own")
    for name in ("images.arrow", "manifest.json"):
        (store.path / name).rename(tmp_path / name)
        os.mkfifo(store.path / name)
        with pytest.raises(InputError, match="a device or a pipe"):
            Store.open(store.path)
        os.replace(tmp_path / name, store.path / name)
    assert len(Store.open(store.path)) == 8


def test_the_largest_image_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As large as the most pixels that Pillow takes, three bytes each."""
    assert Image.MAX_IMAGE_PIXELS is not None and 0 <= IMAGE_BYTES - 3 * 2 * Image.MAX_IMAGE_PIXELS < 10
    monkeypatch.setattr(orchestrator.data.encoding, "IMAGE_BYTES", 10)
    (tmp_path / "ten").write_bytes(bytes(10))
    (tmp_path / "eleven").write_bytes(bytes(11))
    assert read_image(tmp_path / "ten") == bytes(10)
    with pytest.raises(ValueError, match="has more than"):
        read_image(tmp_path / "eleven")


def test_a_signal_ends_embed(
    model: Path, photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Also while files are read, among them a pipe into which nobody writes."""
    prepared, calls = Preparation.__call__, []

    def signalled(self: Preparation, file: Path) -> object:
        calls.append(file)
        if file.parts[-2:] == ("bee", "3.png"):  # the last: the pipe is being read, or was refused
            os.kill(os.getpid(), signal.SIGTERM)
        return prepared(self, file)

    monkeypatch.setattr(Preparation, "__call__", signalled)
    before = signal.signal(signal.SIGTERM, signal.SIG_DFL)
    try:
        assert run("embed", str(model), str(photos), f"--output={tmp_path / 'e.npy'}") == 130
    finally:
        signal.signal(signal.SIGTERM, before)
    assert calls and not (tmp_path / "e.npy").exists()
    assert capsys.readouterr().err.splitlines()[-1] == "interrupted"
