"""A trained model for other places: ONNX, TorchScript, torch.export's pt2, MLflow.

In every format, a model takes uint8 images (batch, H, W, channels), as image libraries give them, of the size used in
the evaluation, and gives float32 embeddings (batch, D) as the evaluation compares them; or, where the method has a
`retrieval` of its own, each image's rows (batch, 2, K), as a query and as an item; or another of the embeddings that
the method offers, (batch, K). A model is only written if it gives
the same as the trained model, and never with pickled code.
"""

import contextlib
import importlib
import json
import shutil
import tempfile
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn

from orchestrator.config.training import Experiment
from orchestrator.data.augmentations.crops import crop_of
from orchestrator.data.pipeline import Request, as_float
from orchestrator.data.store import Store
from orchestrator.errors import InputError, suggestion
from orchestrator.evaluation.measures import HEADLINES
from orchestrator.method import Method
from orchestrator.networks.lora import merge
from orchestrator.storage.files import output_place
from orchestrator.storage.ledger import Ledger, TrialRecord
from orchestrator.storage.provenance import versions
from orchestrator.tracking.models import load_mlflow_model, save_mlflow_model
from orchestrator.training.learner import Learner
from orchestrator.training.model_file import load_learner, saved_model
from orchestrator.training.splits import new_reader, rows_to_test

Form = Literal["onnx", "torchscript", "pt2", "mlflow"]
SUFFIXES: dict[str, str] = {"onnx": ".onnx", "torchscript": ".torchscript", "pt2": ".pt2", "mlflow": "-mlflow"}
PACKAGES = {"onnx": ("onnx", "onnxscript", "onnxruntime")}
"""Packages that a format needs beyond the tool's own dependencies: the extra `export`."""
TOLERANCE = 1e-4
"""The largest allowed difference of an embedding's coordinate, as a share of the largest where that is above 1;
rounding causes about 1e-6."""
EXAMPLES = 8
TOLD = tuple(f"{split}/{name}" for split in ("test", "val") for name in HEADLINES)
ABOUT = "about.json"
"""The file in a pt2 or TorchScript archive that describes the model."""
REQUIREMENTS = ("torch", "numpy", "mlflow")


GIT = ("git.commit", "git.branch", "git.dirty")
MLFLOW_MODEL = "mlflow"
"""The folder of a final model in MLflow's format, beside it."""


def facts(ledger: Ledger, trial: TrialRecord) -> dict[str, Any]:
    """What a search knows about one of its models: its origin, its code, its scores."""
    known: dict[str, Any] = {key: ledger.tags[key] for key in GIT if key in ledger.tags}
    scores = {f"test/{name}": value for name, value in trial.test.items()} or trial.best_metrics
    scores = {n: v for n, v in scores.items() if not n.endswith(("_low", "_high")) and "diagnostics/" not in n}
    return {"search": ledger.name, "trial": trial.trial_id, "metrics": scores, **known}


class Encoder(nn.Module):
    """uint8 images (B, H, W, channels) -> embeddings (B, D) in float32, normalised as the method does; or what its own
    `retrieval` makes of them, (B, 2, K) in float32: each image's row as a query, and its row as an item; or the `named`
    one of the method's `embeddings`, (B, K) in float32."""

    def __init__(self, learner: Learner, named: str | None = None) -> None:
        super().__init__()
        self.named, self.ranked = named, named is None and type(learner.method).retrieval is not Method.retrieval
        if self.ranked or named is not None:
            self.learner = learner
            return
        self.network = learner.network
        self.network.heads = nn.ModuleDict()  # only the embedding is needed
        self.normalize = learner.method.normalize

    def forward(self, images: Tensor) -> Tensor:
        scaled = images.permute(0, 3, 1, 2).to(torch.float32) / 255
        if self.named is not None:
            return self.learner.method.embeddings(self.learner.outputs(scaled))[self.named].to(torch.float32)
        if self.ranked:
            rows = self.learner.method.retrieval(self.learner.outputs(scaled))
            return torch.stack(list(rows), dim=1).to(torch.float32)
        embedding: Tensor = self.network(scaled)["embedding"]
        return self.normalize(embedding)


@dataclass(frozen=True)
class Exported:
    """An exported model, and the largest difference of its embeddings from the trained model's."""

    path: Path
    difference: float


@dataclass(frozen=True)
class Source:
    """A model to be exported: the encoder in evaluation mode on the CPU, `images` to test it with (N, H, W, channels),
    their `embeddings`, and the facts `about` it."""

    encoder: Encoder
    images: Tensor
    embeddings: Tensor
    about: dict[str, Any]

    @classmethod
    def of(
        cls, model: Path, store: Store, facts: Mapping[str, Any] | None = None, *, embedding: str | None = None
    ) -> "Source":
        """A saved model, tested on images of a data set as its evaluation sees them; or one of the other embeddings
        that its method offers, InputError if it has none of this name."""
        learner, experiment = load_learner(model, store)
        learner = learner.float().eval().requires_grad_(False)
        merge(learner.network)
        images = example_images(store, experiment)
        if embedding is not None:
            with torch.no_grad():
                offered = learner.method.embeddings(learner.outputs(as_float(images.permute(0, 3, 1, 2))))
            if embedding not in offered:
                known = suggestion(embedding, offered) if offered else ": it has none but its own; leave it out"
                raise InputError(f"--embedding: {embedding}: {model} has no such embedding{known}")
        encoder = Encoder(learner, embedding).eval()
        with torch.no_grad():
            embeddings = encoder(images)
        height, width, channels = images.shape[1:]
        size = embeddings.shape[-1]
        output = f"{embedding or 'embedding'}: float32 (batch, {size}), compared by Euclidean distance"
        if encoder.ranked:
            output = (
                f"retrieval: float32 (batch, 2, {size}), each image's row as a query and its row as an item; items are "
                "ranked by the inner product of the query's first row and their second rows, the largest first"
            )
        saved = saved_model(model)
        about = {
            "method": experiment.method,
            "dataset": saved["experiment"]["dataset"],
            "dataset_digest": saved["dataset_digest"],
            "input": f"images: uint8 (batch, {height}, {width}, {channels}), as the evaluation of augmentation "
            f"'{experiment.training.augmentation}' sees them",
            "preprocessing": preprocessing(experiment),
            "output": output,
            "settings": experiment.flat(),
            "versions": versions(),
        }
        return cls(encoder, images, embeddings, about | dict(facts or {}))


def preprocessing(experiment: Experiment) -> dict[str, Any]:
    """What the evaluation does to an image before the network: to a photograph, in this order; to others nothing."""
    crop = crop_of(experiment.training.augmentation, experiment.training.image_size)
    if crop is None:
        return {}
    return {"resize_shorter_side": crop.shorter, "interpolation": "bilinear, antialiased", "center_crop": crop.size}


def example_images(store: Store, experiment: Experiment, count: int = EXAMPLES) -> Tensor:
    """Some test images as the evaluation sees them, but as integers: uint8 (count, H, W, channels)."""
    rows = rows_to_test(experiment.training, store)
    chosen = rows[np.linspace(0, len(rows) - 1, count).astype(np.int64)]
    with new_reader(store, experiment.training) as reader:
        ((_, images),) = reader.read([Request(chosen)])
    return (as_float(images) * 255).round().to(torch.uint8).permute(0, 2, 3, 1).contiguous()


def check_packages(form: str) -> None:
    """InputError if a format's packages are not installed."""
    for package in PACKAGES.get(form, ()):
        try:
            importlib.import_module(package)
        except ImportError:
            raise InputError(
                f"--to {form}: needs the package {package}: uv pip install 'dml-orchestrator[export]'"
            ) from None


def export(source: Source, form: Form, path: Path) -> Exported:
    """Write a model to `path` in this format, completely or not at all, and test it there.

    Raises InputError if a package is missing, if the model cannot be converted or gives other embeddings, or if
    `path` cannot be written.
    """
    check_packages(form)
    path = path.absolute()
    again = form == "mlflow" and (path / "MLmodel").is_file() and not path.is_symlink()
    if not again and path.parent.is_dir():
        path = output_place("--output", path, [SUFFIXES[form]])
    with _beside(path) as folder:
        made = Path(folder) / f"model{SUFFIXES[form]}"
        try:
            with quiet():
                run = WRITERS[form](source, made)
                difference = parity(source, run)
        except (InputError, OSError):
            raise
        except Exception as error:  # exporters raise all kinds of errors
            reason = " ".join(str(error).split())[:200] or type(error).__name__
            raise InputError(f"--to {form}: this model cannot be exported so ({reason})") from None
        if not difference <= TOLERANCE:
            raise InputError(
                f"--to {form}: the exported model's embeddings differ by {difference:.2g} from the trained model's, "
                f"more than {TOLERANCE:g}: nothing was written; try another form"
            )
        if again:
            shutil.rmtree(path)
        made.replace(path)
    return Exported(path, difference)


@contextlib.contextmanager
def _beside(path: Path) -> Iterator[str]:
    """A temporary folder on the same disk; InputError for a disk error."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=f".{path.name}.", dir=path.parent) as folder:
            yield folder
    except OSError as error:
        reason = error.strerror or error
        raise InputError(f"--output: {path} cannot be written ({reason}): name another file") from None


@contextlib.contextmanager
def mlflow_form(source: Source, folder: Path) -> Iterator[Path]:
    """The folder of a model in MLflow's format: the one beside it, else a temporary one."""
    if (folder / MLFLOW_MODEL).exists():
        yield folder / MLFLOW_MODEL
        return
    with tempfile.TemporaryDirectory() as scratch:
        yield export(source, "mlflow", Path(scratch) / MLFLOW_MODEL).path


def description(source: Source) -> str:
    """The description of a version in the registry: its origin, data and code."""
    about = source.about
    scores = ", ".join(f"{name} {value:.4f}" for name, value in about.get("metrics", {}).items() if name in TOLD)
    commit = f", commit {about['git.commit']}" if "git.commit" in about else ""
    lines = [f"Trial {about.get('trial')} of search {about.get('search')}" + (f": {scores}" if scores else "")]
    lines += [f"Method {about['method']}, data set {about['dataset']} (digest {about['dataset_digest']}){commit}"]
    return "\n".join([*lines, f"Input: {about['input']}", f"Output: {about['output']}"])


def parity(source: Source, run: Callable[[Tensor], Any]) -> float:
    """The largest difference of an embedding's coordinate, over batches of one, three and all images; as a share of
    the largest coordinate, where that is above 1."""
    differences = []
    unit = max(1.0, float(source.embeddings.abs().max()))
    for count in (1, 3, len(source.images)):
        found = torch.as_tensor(np.asarray(run(source.images[:count])))
        if found.shape != source.embeddings[:count].shape:
            return float("inf")
        differences.append(float((found - source.embeddings[:count]).abs().max()) / unit)
    return max(differences)


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Hide exporters' warnings, which are of no use to a user, and run torch.export without gradients."""
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")
        yield


Run = Callable[[Tensor], Any]


def _program(source: Source) -> Any:
    batch = {0: torch.export.Dim("batch")}
    return torch.export.export(source.encoder, (source.images,), dynamic_shapes=(batch,))


def _write_pt2(source: Source, path: Path) -> Run:
    torch.export.save(_program(source), path, extra_files={ABOUT: json.dumps(source.about)})
    module: Run = torch.export.load(path).module()
    return module


def _write_torchscript(source: Source, path: Path) -> Run:
    traced = torch.jit.trace(source.encoder, (source.images,))  # type: ignore[no-untyped-call]
    torch.jit.save(traced, path, _extra_files={ABOUT: json.dumps(source.about)})
    module: Run = torch.jit.load(path)  # type: ignore[no-untyped-call]
    return module


def _write_onnx(source: Source, path: Path) -> Run:
    import onnxruntime

    name = "retrieval" if source.encoder.ranked else "embedding"
    with open("/dev/null", "w") as nowhere, contextlib.redirect_stdout(nowhere):
        program = torch.onnx.export(
            _program(source), (), input_names=["images"], output_names=[name], dynamo=True, verbose=False
        )
    assert program is not None
    texts = {key: value if isinstance(value, str) else json.dumps(value) for key, value in source.about.items()}
    program.model.metadata_props.update(texts)
    program.save(path, external_data=False)
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    return lambda images: session.run(None, {"images": images.numpy()})[0]


def _write_mlflow(source: Source, path: Path) -> Run:
    requirements = [f"{name}=={version}" for name, version in versions(REQUIREMENTS).items()]
    about = source.about | {"description": description(source)}
    save_mlflow_model(source.encoder, source.images.numpy(), source.embeddings.numpy(), path, about, requirements)
    predict = load_mlflow_model(path)
    return lambda images: predict(images.numpy())


WRITERS: dict[str, Callable[[Source, Path], Run]] = {
    "onnx": _write_onnx,
    "torchscript": _write_torchscript,
    "pt2": _write_pt2,
    "mlflow": _write_mlflow,
}
