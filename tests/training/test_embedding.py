"""`embed` and `query`: the same embeddings as the evaluation has, from files."""

import io
import json
import os
import sys
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from pyarrow import parquet
from support.archive_trees import photo
from support.embedding_models import model_of
from support.output_schemas import conforms

from orchestrator.cli.main import main
from orchestrator.data.catalog import open_dataset
from orchestrator.data.prepare import prepare
from orchestrator.method import Outputs
from orchestrator.training.device import flushes_subnormals
from orchestrator.training.embed import embed_model
from orchestrator.training.embed_files import embed_files
from orchestrator.training.learner import Learner

ROWS = 6


@pytest.fixture(scope="module")
def glyphs(tmp_path_factory: pytest.TempPathFactory, data_folder: Path) -> tuple[Path, Path, np.ndarray[Any, Any]]:
    """A model, a folder with the first images of the glyphs as files, and their embeddings in an evaluation."""
    folder = tmp_path_factory.mktemp("glyphs")
    store = open_dataset("glyphs-small", data_folder)
    model = model_of(store, folder / "model.pt")
    images = folder / "images" / "deep"
    images.mkdir(parents=True)
    for row in range(ROWS):
        with Image.open(io.BytesIO(store.image_bytes(row))) as image:
            image.save(images / f"{row}.png")
    embedded = embed_model(model, store, np.arange(ROWS), "cpu")[1]
    return model, folder / "images", embedded.outputs["embedding"].numpy()


def run(capsys: pytest.CaptureFixture[str], *words: object) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as leaving:
        main([str(word) for word in words])
    printed = capsys.readouterr()
    return int(leaving.value.code or 0), printed.out, printed.err


def test_files_have_the_embeddings_of_the_evaluation(
    glyphs: tuple[Path, Path, np.ndarray[Any, Any]], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model, folder, expected = glyphs
    code, out, _ = run(capsys, "embed", model, folder, "--output", tmp_path / "e.parquet", "--device", "cpu", "--json")
    conforms("embed", json.loads(out))
    assert code == 0 and json.loads(out)["images"] == ROWS
    table = parquet.read_table(tmp_path / "e.parquet")
    assert table["path"].to_pylist() == [f"deep/{row}.png" for row in range(ROWS)]
    assert np.array_equal(np.stack(table["embedding"].to_numpy()), expected)
    code, *_ = run(capsys, "embed", model, folder, "--output", tmp_path / "e.npy", "--device", "cpu")
    assert code == 0 and np.array_equal(np.load(tmp_path / "e.npy"), expected)
    assert (tmp_path / "e.paths.txt").read_text().splitlines() == table["path"].to_pylist()


def test_whatever_embeds_takes_subnormal_numbers_for_zero(
    glyphs: tuple[Path, Path, np.ndarray[Any, Any]], data_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, folder, _ = glyphs
    flushed: list[bool] = []
    outputs = Learner.outputs

    def watched(learner: Learner, images: torch.Tensor) -> Outputs:
        flushed.append(flushes_subnormals())
        return outputs(learner, images)

    monkeypatch.setattr(Learner, "outputs", watched)
    embed_files(model, sorted(folder.rglob("*.png")), "cpu")
    embed_model(model, open_dataset("glyphs-small", data_folder), np.arange(ROWS), "cpu")
    assert flushed == [True, True] and not flushes_subnormals()


def test_photographs_are_cropped_as_in_the_evaluation(tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    for label, (width, height) in {"a": (400, 300), "b": (260, 500)}.items():
        (tmp_path / "photos" / label).mkdir(parents=True)
        for number in range(2):
            pixels = random.integers(0, 256, (height // 20, width // 20, 3), dtype=np.uint8)
            picture = Image.fromarray(pixels).resize((width, height))
            picture.save(tmp_path / "photos" / label / f"{number}.jpg")
    store = prepare("folder", tmp_path / "photos", tmp_path / "data", name="mine")
    settings = {"augmentation": "random_crop_224", "backbone": "resnet18", "weights": "random"}
    model = model_of(store, tmp_path / "model.pt", **settings)
    expected = embed_model(model, store, np.arange(len(store)), "cpu")[1].outputs["embedding"].numpy()
    found = embed_files(model, sorted((tmp_path / "photos").rglob("*.jpg")), "cpu")
    assert not found.left_out and np.array_equal(found.embedding, expected)


def test_the_nearest_are_found_in_a_folder_and_in_a_table(
    glyphs: tuple[Path, Path, np.ndarray[Any, Any]], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model, folder, rows = glyphs
    image = folder / "deep" / "2.png"
    distance = np.linalg.norm(rows - rows[2], axis=1)
    order = [row for row in np.argsort(distance, kind="stable") if row != 2]
    table = tmp_path / "e.parquet"
    run(capsys, "embed", model, folder, "--output", table, "--device", "cpu")
    for among in (folder, table):
        code, out, _ = run(capsys, "query", model, image, "--among", among, "--neighbours", 3, "--json")
        conforms("query", json.loads(out))
        found = json.loads(out)["neighbours"]
        assert code == 0 and [Path(one["path"]).stem for one in found] == [str(row) for row in order[:3]]
        assert [one["distance"] for one in found] == pytest.approx(distance[order[:3]], abs=1e-5)
    page = tmp_path / "found.html"
    code, out, said = run(capsys, "query", model, image, "--among", table, "--html", page)
    assert (code, said) == (0, f"page written to {page}\n")
    listed = [line.split() for line in out.splitlines() if ".png" in line]
    assert [words[2] for words in listed] == [f"deep/{row}.png" for row in order]
    text = page.read_text()
    assert text.count("data:image/webp;base64,") == ROWS and "<script src" not in text and f"deep/{order[0]}" in text


def test_what_cannot_be_read_is_left_out_and_told(
    glyphs: tuple[Path, Path, np.ndarray[Any, Any]], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model, folder, _ = glyphs
    (tmp_path / "photos").mkdir()
    good = (folder / "deep" / "0.png").read_bytes()
    (tmp_path / "photos" / "0.png").write_bytes(good)
    (tmp_path / "photos" / "1.png").write_bytes(b"no image")
    code, out, said = run(capsys, "embed", model, tmp_path / "photos", "--output", tmp_path / "e.npy", "--json")
    assert code == 0 and json.loads(out)["images"] == 1
    assert "1.png: left out: not an image" in said
    (tmp_path / "photos" / os.fsdecode(b"caf\xe9.png")).write_bytes(good)  # a name that is not in UTF-8
    code, _, _ = run(capsys, "embed", model, tmp_path / "photos", "--output", tmp_path / "e.parquet")
    assert code == 0 and parquet.read_table(tmp_path / "e.parquet")["path"].to_pylist() == ["0.png", "caf\\xe9.png"]
    Image.new("L", (7, 9)).save(tmp_path / "photos" / "2.png")
    code, _, said = run(capsys, "embed", model, tmp_path / "photos", "--output", tmp_path / "f.npy")
    assert code == 2 and "2.png: is 7 x 9 pixels, and " in said and not (tmp_path / "f.npy").exists()


DAMAGED_EXIF = b"Exif\0\0II*\0\x08\0\0\0\x05\0\x12\x01\x03\0\x01\0\0\0\x06\0\0\0\x0f\x01\x02\0\xff\0\0\0\xff\xff\0\0"


def test_damaged_exif_data_is_not_worth_a_warning(tmp_path: Path) -> None:
    """Pillow's names no file, and the pixels are read."""
    for number in range(4):
        folder = tmp_path / "source" / f"class{number}"
        folder.mkdir(parents=True)
        for part in range(2):
            pixels = np.random.default_rng([number, part]).integers(0, 256, (80, 90, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(folder / f"{part}.jpg", exif=DAMAGED_EXIF)
    store = prepare("folder", tmp_path / "source", tmp_path / "data", name="own", size=64)
    settings = {"backbone": "small_cnn", "augmentation": "random_crop_224", "image_size": 64, "dataset": "own"}
    model = model_of(store, tmp_path / "model.pt", **settings)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        assert len(embed_files(model, sorted((tmp_path / "source").rglob("*.jpg")), "cpu").paths) == 8
    assert [str(one.message) for one in caught if "PIL" in one.filename] == []


@pytest.mark.parametrize(
    "command", ["embed {model} {tmp}/none", "datasets prepare folder --name own --source {tmp}/none"]
)
def test_a_missing_folder_is_told_before_the_imports(
    command: str,
    glyphs: tuple[Path, Path, np.ndarray[Any, Any]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    for heavy in ("orchestrator.search.retrieval", "orchestrator.data.prepare"):
        monkeypatch.setitem(sys.modules, heavy, None)  # an import of it fails
    words = command.format(model=glyphs[0], tmp=tmp_path).split()
    code, out, said = run(capsys, *words)
    assert (code, out) == (2, "") and f"{tmp_path}/none" in said and ": no " in said


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["embed", "{model}", "{tmp}", "--output", "x.csv"], "--output: x.csv: should end in .parquet or .npy"),
        (["embed", "{model}", "{tmp}/none"], "FOLDER: "),
        (["embed", "{model}", "{tmp}"], "no images in it"),
        (["query", "{model}", "{tmp}/none.png", "--among", "{tmp}"], "none.png: no such file"),
        (["query", "{model}", "{image}", "--among", "{tmp}/none"], "none: no such folder or file"),
        (["query", "{model}", "{image}", "--among", "{image}"], "is no table of embeddings"),
        (["query", "{model}", "{image}", "--among", "{tmp}", "--html", "{tmp}"], "is a folder"),
    ],
)
def test_wrong_input_is_one_line(
    words: list[str],
    says: str,
    glyphs: tuple[Path, Path, np.ndarray[Any, Any]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    places = {"{model}": glyphs[0], "{tmp}": tmp_path, "{image}": glyphs[1] / "deep" / "0.png"}
    for place, path in places.items():
        words = [word.replace(place, str(path)) for word in words]
    code, out, said = run(capsys, *words)
    assert (code, out) == (2, "") and says in said and said.count("\n") == 1
    assert not list(tmp_path.iterdir())


def test_a_test_without_queries_is_refused_before_it_is_embedded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, count in {"a": 2, "b": 2, "c": 1, "d": 1}.items():
        for number in range(count):
            photo(tmp_path / "photos" / name / f"{number}.png", ord(name) + 9 * number, (32, 32))
    store = prepare("folder", tmp_path / "photos", tmp_path / "data", name="mine")
    model = model_of(store, tmp_path / "model.pt")
    for place in ("embed.embed_model", "embed.load_learner"):
        monkeypatch.setattr(f"orchestrator.training.{place}", None)  # a call of it fails
    command = ["evaluate", model, "--dataset", "mine", "--storage", tmp_path]
    for more, what in ([], "test classes"), (["--class-groups", "2,2"], "classes 2-3"):
        code, out, said = run(capsys, *command, *more)
        told = f"error: mine: no image of the {what} has another of its class to be found: there is nothing to measure"
        assert (code, out) == (2, "") and said.splitlines()[-1].startswith(told)


def test_a_table_of_another_model_is_refused(
    glyphs: tuple[Path, Path, np.ndarray[Any, Any]],
    data_folder: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    model, folder, _ = glyphs
    run(capsys, "embed", model, folder, "--output", tmp_path / "e.parquet")
    other = model_of(open_dataset("glyphs-small", data_folder), tmp_path / "other.pt", seed=1)
    code, _, said = run(capsys, "query", other, folder / "deep" / "0.png", "--among", tmp_path / "e.parquet")
    assert code == 2 and "was embedded by another model" in said
