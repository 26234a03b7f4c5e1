"""Models in other forms: each gives what the trained model gives, and what does not is refused."""

import json
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from support.recorded import record
from torch import nn

from orchestrator.config.training import resolve_experiment
from orchestrator.data.store import Store
from orchestrator.errors import InputError
from orchestrator.search.export import (
    ABOUT,
    SUFFIXES,
    description,
    export,
    mlflow_form,
    require_packages,
)
from orchestrator.search.source import TOLERANCE, ModelSource
from orchestrator.storage.journal import Journal
from orchestrator.storage.trial_folder import MODEL
from orchestrator.tracking.models import register_model
from orchestrator.tracking.trackers import MLflowTracker
from orchestrator.training.checkpoint import save_checkpoint
from orchestrator.training.embed import embed_split
from orchestrator.training.model_file import build_learner, model_state

SETTINGS: dict[str, Any] = {"method": "idml", "dataset": "glyphs-small", "embedding_dim": 8, "mixup": False}


@pytest.fixture(scope="module")
def model(glyphs: Store, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A saved model of a tiny network, with a head besides the embedding."""
    torch.manual_seed(0)
    experiment = resolve_experiment(SETTINGS, "test")
    learner = build_learner(experiment, glyphs, num_classes=5)
    path = tmp_path_factory.mktemp("model") / MODEL
    save_checkpoint(path, model_state(experiment, glyphs, learner))
    return path


@pytest.fixture(scope="module")
def source(model: Path, glyphs: Store) -> ModelSource:
    return ModelSource.of(model, glyphs, {"search": "s", "trial": "final", "metrics": {"test/map_at_r": 0.5}})


def test_a_source_gives_the_embeddings_of_the_evaluation(model: Path, source: ModelSource, glyphs: Store) -> None:
    from orchestrator.training.model_file import load_learner
    from orchestrator.training.splits import new_reader, rows_to_test

    learner, experiment = load_learner(model, glyphs)
    rows = rows_to_test(experiment.training, glyphs)
    chosen = rows[np.linspace(0, len(rows) - 1, len(source.images)).astype(np.int64)]
    with new_reader(glyphs, experiment.training) as reader:
        wanted = embed_split(learner, glyphs, chosen, torch.device("cpu"), reader).outputs["embedding"]
    assert source.images.dtype == torch.uint8 and source.images.shape[3] == glyphs.channels
    torch.testing.assert_close(source.embeddings, wanted, rtol=0, atol=1e-6)
    assert source.about["dataset_digest"] == glyphs.manifest["digest"]
    assert "digest " + glyphs.manifest["digest"] in description(source) and "map_at_r 0.5000" in description(source)


@pytest.mark.parametrize("form", [form for form in SUFFIXES if form != "hub"])  # tests/search/test_hub.py
def test_every_form_gives_the_same(form: Any, source: ModelSource, tmp_path: Path) -> None:
    found = export(source, form, tmp_path / "deep" / f"model{SUFFIXES[form]}")
    assert 0 <= found.difference < 1e-5 and found.path.exists()
    left = {found.path} if form == "mlflow" else {found.path, found.path.with_name(f"{found.path.name}.md")}
    assert set((tmp_path / "deep").iterdir()) == left == {found.path} | ({found.page} - {None})
    images, wanted = source.images[2:7], source.embeddings[2:7].numpy()
    if form == "onnx":
        import onnx
        import onnxruntime

        session = onnxruntime.InferenceSession(found.path, providers=["CPUExecutionProvider"])
        (given,) = session.run(["embedding"], {"images": images.numpy()})
        kept = {entry.key: entry.value for entry in onnx.load(found.path).metadata_props}
    elif form == "pt2":
        files = {ABOUT: ""}
        given = torch.export.load(found.path, extra_files=files).module()(images).numpy()
        kept = json.loads(files[ABOUT])
    elif form == "torchscript":
        files = {ABOUT: ""}
        given = torch.jit.load(found.path, _extra_files=files)(images).numpy()  # type: ignore[no-untyped-call]
        kept = json.loads(files[ABOUT])
    else:
        import mlflow
        from mlflow.models import Model

        loaded = mlflow.pyfunc.load_model(str(found.path))
        given = loaded.predict(images.numpy())
        kept = Model.load(str(found.path)).metadata
        assert loaded.metadata.signature.inputs.inputs[0].shape == (-1, *images.shape[1:])
        assert not [path for path in found.path.rglob("*") if path.suffix in (".pkl", ".pth", ".pt")]
        requirements = (found.path / "requirements.txt").read_text()
        assert "torch==" in requirements and "mlflow==" in requirements
        with pytest.MonkeyPatch.context() as patch:  # where MLflow would ask for a GPU
            patch.setattr(torch.cuda, "is_available", lambda: True)
            again = mlflow.pyfunc.load_model(str(found.path)).predict(images.numpy())
        assert np.array_equal(again, given)
    np.testing.assert_allclose(given, wanted, rtol=0, atol=1e-5)
    assert kept["dataset_digest"] == source.about["dataset_digest"] and kept["input"] == source.about["input"]


@pytest.mark.slow
def test_the_page_beside_a_model_has_lines_that_run(source: ModelSource, tmp_path: Path) -> None:
    """In a process that has none of this package, and no library that the page does not name."""
    (tmp_path / "photos").mkdir()
    paths, programs = [tmp_path / "photos" / f"{row}.jpg" for row in range(len(source.images))], []
    for path, pixels in zip(paths, source.images, strict=True):
        Image.fromarray(pixels[:, :, 0].numpy()).save(path)
    for form in ("onnx", "pt2", "torchscript"):
        found = export(source, form, tmp_path / f"my model{SUFFIXES[form]}")
        assert found.page is not None
        text = found.page.read_text()
        assert source.about["input"] in text and "trial final of the search s" in text
        programs += re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    absent = ("orchestrator", "methods", "ray", "mlflow", "timm", "optuna")
    head = f"import sys\nsys.modules.update(dict.fromkeys({absent}))\n"
    done = subprocess.run(
        [sys.executable, "-I", "-c", head + "\n".join(programs)], cwd=tmp_path, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    images = torch.stack([torch.from_numpy(np.array(Image.open(path)))[:, :, None] for path in paths])
    rows = source.encoder(images)
    nearest = torch.cdist(rows, rows).fill_diagonal_(torch.inf).argmin(1).tolist()
    lines = [f"photos/{row}.jpg looks like photos/{other}.jpg" for row, other in enumerate(nearest)]
    assert done.stdout.splitlines() == 3 * lines and len(set(nearest)) > 1


def test_other_embeddings_are_refused_and_nothing_is_written(source: ModelSource, tmp_path: Path) -> None:
    other = replace(source, embeddings=source.embeddings + 2 * TOLERANCE)
    with pytest.raises(InputError, match="differ by 0.0002 .* more than 0.0001: nothing was written"):
        export(other, "pt2", tmp_path / "model.pt2")
    wrong = replace(source, embeddings=source.embeddings[:, :3])
    with pytest.raises(InputError, match="differ by inf"):
        export(wrong, "pt2", tmp_path / "model.pt2")
    not_finite = replace(source, embeddings=source.embeddings * float("nan"))
    with pytest.raises(InputError, match="differ by nan"):
        export(not_finite, "torchscript", tmp_path / "model.pt2")
    assert list(tmp_path.iterdir()) == []


def test_what_cannot_be_exported_is_told_in_a_line(source: ModelSource, tmp_path: Path) -> None:
    class Stubborn(nn.Module):
        def forward(self, images: torch.Tensor) -> torch.Tensor:
            raise ValueError("not so\nand not so")

    stubborn: Any = Stubborn()
    with pytest.raises(InputError) as refused:
        export(replace(source, encoder=stubborn), "pt2", tmp_path / "model.pt2")
    assert str(refused.value).startswith("--to pt2: this model cannot be exported so (") and "\n" not in str(
        refused.value
    )
    assert list(tmp_path.iterdir()) == []


def test_missing_packages_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def absent(name: str) -> None:
        raise ImportError(name)

    monkeypatch.setattr("importlib.import_module", absent)
    require_packages("pt2")
    with pytest.raises(InputError, match=r"needs the package onnx: uv pip install onnx onnxruntime onnxscript"):
        require_packages("onnx")


@pytest.mark.slow
def test_a_model_is_logged_once_and_registered(
    source: ModelSource, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Through the journal, as a search does it, and by the command line's door."""
    import mlflow
    from mlflow import MlflowClient

    export(source, "mlflow", tmp_path / "trials" / "final" / "mlflow")
    uri = f"sqlite:///{tmp_path / 'mlflow.db'}"
    with Journal(tmp_path / "journal.jsonl") as journal:
        tags = {"dataset.digest": "ab" * 32, "git.commit": "c0ffee", "command": "orchestrator search"}
        record(journal, "search_started", method="idml", tags=tags)
        record(journal, "trial_started", trial_id="final", kind="final")
        record(journal, "result", trial_id="final", metrics={"test/map_at_r": 0.5, "test/recall_at_1": 0.7})
        for _ in range(2):  # said twice, it is logged once
            record(journal, "model", trial_id="final", path="trials/final/mlflow")
        tracker = MLflowTracker(journal.path, uri, tmp_path / "artifacts")
        assert tracker.close(120), tracker.problem
        run_id = tracker.run_id("final")
        assert run_id is not None
    client = MlflowClient(uri)
    run = client.get_run(run_id)
    assert len(run.outputs.model_outputs) == 1
    (dataset,) = run.inputs.dataset_inputs
    assert (dataset.dataset.name, dataset.dataset.digest) == ("glyphs", ("ab" * 32)[:36])
    model = client.get_logged_model(run.outputs.model_outputs[0].model_id)
    assert model.name == "s-idml"
    (score,) = model.metrics  # what the model's own file knows, and not once more
    assert (score.key, score.value, score.run_id) == ("test/map_at_r", 0.5, run_id)
    assert (score.dataset_name, score.dataset_digest) == (dataset.dataset.name, dataset.dataset.digest)
    assert len(client.get_metric_history(run_id, "test/map_at_r")) == 1
    assert (model.params["method"], model.params["embedding_dim"]) == ("idml", "8")
    code = {"mlflow.source.git.commit": "c0ffee", "mlflow.source.name": "orchestrator search"}
    assert code.items() <= model.tags.items() and code.items() <= run.data.tags.items()
    assert model.tags["mlflow.note.content"] == description(source)
    with mlflow_form(source, tmp_path / "trials" / "final") as folder:
        known = (uri, tmp_path / "artifacts", run_id, folder, "glyphs")
        assert register_model(*known, "champion", description(source)) == "1"
        assert register_model(*known, "champion", description(source)) == "1", "the same model has one version"
    version = client.get_model_version_by_alias("glyphs", "champion")
    assert version.run_id == run_id and "Input: images: uint8" in version.description
    monkeypatch.setenv("MLFLOW_TRACKING_URI", uri)  # set_tracking_uri would leave it to all tests that follow
    loaded = mlflow.pyfunc.load_model("models:/glyphs@champion")
    given = loaded.predict(source.images.numpy())
    np.testing.assert_allclose(given, source.embeddings.numpy(), rtol=0, atol=1e-5)
    assert not Path("mlflow.db").exists() and not Path("mlruns").exists()
