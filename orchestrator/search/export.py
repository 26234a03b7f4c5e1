"""A trained model for other places: ONNX, TorchScript, torch.export's pt2, MLflow, a folder as on the Hugging Face hub.

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
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from orchestrator.data.catalog import open_dataset
from orchestrator.errors import InputError, missing_for
from orchestrator.evaluation.claims import recorded_claim
from orchestrator.evaluation.measures import HEADLINES
from orchestrator.problems import Operand, Option, Problem
from orchestrator.report.claims import protocol_of
from orchestrator.search.hub import write_folder
from orchestrator.search.models import owner_of
from orchestrator.search.source import TOLERANCE, ModelSource, parity
from orchestrator.search.using import example_page as usage
from orchestrator.storage.atomic import write_whole
from orchestrator.storage.files import output_place
from orchestrator.storage.ledger import Ledger
from orchestrator.storage.places import Places
from orchestrator.storage.provenance import versions
from orchestrator.storage.trial_record import TrialRecord
from orchestrator.tracking.models import load_mlflow_model, save_mlflow_model
from orchestrator.training.model_file import saved_model

Form = Literal["onnx", "torchscript", "pt2", "mlflow", "hub"]
SUFFIXES: dict[str, str] = {
    "onnx": ".onnx",
    "torchscript": ".torchscript",
    "pt2": ".pt2",
    "mlflow": "-mlflow",
    "hub": "-hub",
}
FOLDERS = ("mlflow", "hub")
"""The formats that are folders."""
PACKAGES = {"onnx": ("onnx", "onnxscript", "onnxruntime")}
"""Packages that a format needs beyond the tool's own dependencies: the extra `export`."""
TOLD = tuple(f"{split}/{name}" for split in ("test", "val") for name in HEADLINES)
ABOUT = "about.json"
"""The file in a pt2 or TorchScript archive that describes the model."""
REQUIREMENTS = ("torch", "numpy", "mlflow")


GIT = ("git.commit", "git.branch", "git.dirty")
MLFLOW_MODEL = "mlflow"
"""The folder of a final model in MLflow's format, beside it."""


def facts(ledger: Ledger, trial: TrialRecord) -> dict[str, Any]:
    """What a search knows about one of its models: its origin, its code, its scores."""
    values: dict[str, Any] = {key: ledger.tags[key] for key in GIT if key in ledger.tags}
    scores = {f"test/{name}": value for name, value in trial.test.items()} or trial.best_metrics
    scores = {n: v for n, v in scores.items() if not n.endswith(("_low", "_high")) and "diagnostics/" not in n}
    claims = {name: recorded_claim(trial.test, name, protocol_of(ledger)) for name in trial.test}
    intervals = {name: (claim.low, claim.high) for name, claim in claims.items() if claim and claim.low is not None}
    ends = {f"test/{name}": list(pair) for name, pair in intervals.items()}
    return {"search": ledger.name, "trial": trial.trial_id, "metrics": scores, "intervals": ends, **values}


@dataclass(frozen=True)
class Exported:
    """An exported model, the largest difference of its embeddings from the trained model's, and the page beside a file
    that shows how it is used (a folder has its own)."""

    path: Path
    difference: float
    page: Path | None = None


def require_packages(form: str) -> None:
    """InputError if a format's packages are not installed."""
    for package in PACKAGES.get(form, ()):
        try:
            importlib.import_module(package)
        except ImportError:
            raise InputError(missing_for(Option("to"), form, package, "export")) from None


def model_source(
    models: Sequence[Path],
    named: str,
    places: Places,
    *,
    dataset: str | None = None,
    embedding: str | None = None,
    say: Callable[[str], None] | None = None,
) -> ModelSource:
    """What is exported of the model files that a name stands for (`find_models`), with what its search knows about it,
    tried on images of `dataset`, by default the training's. InputError for several models."""
    if len(models) > 1:
        raise InputError(f"RUN: {named} has one model per fold; name one, such as {models[0]}")
    owner = owner_of(models[0])
    store = open_dataset(dataset or saved_model(models[0])["experiment"]["dataset"], places.data, say=say)
    about = facts(owner.ledger, owner.trial) if owner is not None else None
    return ModelSource.of(models[0], store, about, embedding=embedding)


def export(source: ModelSource, form: Form, path: Path) -> Exported:
    """Write a model to `path` in this format, completely or not at all, and test it there. Beside a file, `path.md`
    says how it is used.

    Raises InputError if a package is missing, if the model cannot be converted or gives other embeddings, or if
    `path` cannot be written.
    """
    require_packages(form)
    path = path.absolute()
    again = form == "mlflow" and (path / "MLmodel").is_file() and not path.is_symlink()
    if not again and path.parent.is_dir():
        path = output_place(Option("output"), path, [SUFFIXES[form]])
    with _beside(path) as folder:
        target = Path(folder) / f"model{SUFFIXES[form]}"
        try:
            with quiet_exporters():
                run = WRITERS[form](source, target)
                difference = parity(source, run)
        except (InputError, OSError):
            raise
        except Exception as error:  # exporters raise all kinds of errors
            reason = " ".join(str(error).split())[:200] or type(error).__name__
            raise InputError(
                Problem((Option("to"), Operand(f"{form}")), rule=f"this model cannot be exported so ({reason})")
            ) from None
        if not difference <= TOLERANCE:
            apart = f"differ by {difference:.2g} from the trained model's, more than {TOLERANCE:g}"
            rule = f"the exported model's embeddings {apart}: nothing was written; try another form"
            raise InputError(Problem((Option("to"), Operand(form)), rule=rule))
        if again:
            shutil.rmtree(path)
        target.replace(path)
        if form in FOLDERS:
            return Exported(path, difference)
        page = path.with_name(f"{path.name}.md")
        write_whole(page, usage(source, form, path.name).encode())
    return Exported(path, difference, page)


@contextlib.contextmanager
def _beside(path: Path) -> Iterator[str]:
    """A temporary folder on the same disk; InputError for a disk error."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=f".{path.name}.", dir=path.parent) as folder:
            yield folder
    except OSError as error:
        reason = error.strerror or error
        raise InputError(
            Problem((Option("output"),), rule=f"{path} cannot be written ({reason}): name another file")
        ) from None


@contextlib.contextmanager
def mlflow_form(source: ModelSource, folder: Path) -> Iterator[Path]:
    """The folder of a model in MLflow's format: the one beside it, else a temporary one."""
    if (folder / MLFLOW_MODEL).exists():
        yield folder / MLFLOW_MODEL
        return
    with tempfile.TemporaryDirectory() as scratch:
        yield export(source, "mlflow", Path(scratch) / MLFLOW_MODEL).path


def description(source: ModelSource) -> str:
    """The description of a version in the registry: its origin, data and code."""
    about = source.about
    scores = ", ".join(f"{name} {value:.4f}" for name, value in about.get("metrics", {}).items() if name in TOLD)
    commit = f", commit {about['git.commit']}" if "git.commit" in about else ""
    lines = [f"Trial {about.get('trial')} of search {about.get('search')}" + (f": {scores}" if scores else "")]
    lines += [f"Method {about['method']}, data set {about['dataset']} (digest {about['dataset_digest']}){commit}"]
    return "\n".join([*lines, f"Input: {about['input']}", f"Output: {about['output']}"])


@contextlib.contextmanager
def quiet_exporters() -> Iterator[None]:
    """Hide exporters' warnings, which are of no use to a user, and run torch.export without gradients."""
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")
        yield


Run = Callable[[Tensor], Any]


def _program(source: ModelSource) -> Any:
    batch = {0: torch.export.Dim("batch")}
    return torch.export.export(source.encoder, (source.images,), dynamic_shapes=(batch,))


def _write_pt2(source: ModelSource, path: Path) -> Run:
    torch.export.save(_program(source), path, extra_files={ABOUT: json.dumps(source.about)})
    module: Run = torch.export.load(path).module()
    return module


def _write_torchscript(source: ModelSource, path: Path) -> Run:
    traced = torch.jit.trace(source.encoder, (source.images,))  # type: ignore[no-untyped-call]
    torch.jit.save(traced, path, _extra_files={ABOUT: json.dumps(source.about)})
    module: Run = torch.jit.load(path)  # type: ignore[no-untyped-call]
    return module


def _write_onnx(source: ModelSource, path: Path) -> Run:
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


def _write_hub(source: ModelSource, path: Path) -> Run:
    return write_folder(source, path, _write_pt2)


def _write_mlflow(source: ModelSource, path: Path) -> Run:
    requirements = [f"{name}=={version}" for name, version in versions(REQUIREMENTS).items()]
    about = source.about | {"description": description(source)}
    save_mlflow_model(source.encoder, source.images.numpy(), source.embeddings.numpy(), path, about, requirements)
    predict = load_mlflow_model(path)
    return lambda images: predict(images.numpy())


WRITERS: dict[str, Callable[[ModelSource, Path], Run]] = {
    "onnx": _write_onnx,
    "torchscript": _write_torchscript,
    "pt2": _write_pt2,
    "mlflow": _write_mlflow,
    "hub": _write_hub,
}
