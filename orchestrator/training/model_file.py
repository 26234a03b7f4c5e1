"""A trained model's files: what they hold, how they are written and read."""

import csv
import importlib.util
import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO, Protocol

import numpy as np
import torch

from orchestrator.config.training import Experiment, resolve_experiment
from orchestrator.data.preparation import kept_settings
from orchestrator.data.protocol import steps_per_epoch
from orchestrator.data.splits import Split, super_classes
from orchestrator.data.store import Store
from orchestrator.errors import InputError
from orchestrator.method import Diagnostics, Task, find_method
from orchestrator.networks.lora import LoRA
from orchestrator.plugins import own_config
from orchestrator.storage.atomic import write_atomically
from orchestrator.training.checkpoint import load_checkpoint
from orchestrator.training.hub_folder import WEIGHTS, read_hub_folder
from orchestrator.training.learner import Learner
from orchestrator.training.model_schema import FORMAT, blame_file, check_model, load_weights


def new_learner(experiment: Experiment, store: Store, split: Split) -> Learner:
    """The learner of a new training; InputError if its weights, or what its method reads, cannot be loaded, or if there
    are no kernels such as it asks for."""
    training, classes = experiment.training, np.unique(store.labels[split.train])
    steps = steps_per_epoch(len(split.train), training.batch_size)
    learner = build_learner(
        experiment,
        store,
        num_classes=len(classes),
        num_samples=len(store),
        class_names=tuple(store.class_names[label] for label in classes),
        super_classes=super_classes(store, split.train),
        steps_per_epoch=steps,
        total_steps=steps * training.epochs,
    )
    if (kernels := experiment.training.kernels) is not None:
        if importlib.util.find_spec(kernels) is None:
            raise InputError(f"kernels: {kernels!r} is not installed here: pip install {kernels}, or leave kernels out")
        learner.method.use_kernels(kernels)
    return learner


class HasChannels(Protocol):
    """What a network needs to know of the images: a data set's, or others."""

    @property
    def channels(self) -> int: ...


@dataclass(frozen=True)
class FileImages:
    """Images that are in no data set."""

    channels: int


def build_learner(experiment: Experiment, store: HasChannels, *, num_classes: int, **facts: Any) -> Learner:
    """The module to train, for a data set's images. Only training needs the further facts of its Task."""
    training = experiment.training
    return Learner(
        find_method(experiment.method),
        own_config(experiment.method, experiment.config),
        Task(num_classes, training.embedding_dim, 0, batch_size=training.batch_size, **facts),
        channels=store.channels,
        backbone=training.backbone,
        weights=training.weights,
        weights_sha256=training.weights_sha256,
        pooling=training.pooling,
        input_convention=training.input_convention,
        image_size=training.image_size,
        lora=None
        if training.lora_rank is None
        else LoRA(training.lora_rank, training.lora_alpha, training.lora_layers or "all"),
        precision=training.precision,
        layer_norm=training.layer_norm,
        head_init=training.head_init,
        freeze_patch_embedding=bool(training.freeze_patch_embedding),
    )


def save_diagnostics(folder: Path, diagnostics: Diagnostics, prefix: str = "") -> None:
    """Save a method's arrays as `<prefix><name>.npy`, its tables as `<prefix><name>.csv`."""
    for name, array in diagnostics.arrays.items():
        write_atomically(folder / f"{prefix}{name}.npy", partial(np.save, arr=array))
    for name, table in diagnostics.tables.items():
        save_table(folder / f"{prefix}{name}.csv", table)


def save_table(path: Path, table: Mapping[str, Sequence[Any]]) -> None:
    """Save columns of equal length, by name, as CSV."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(table)
    writer.writerows(zip(*table.values(), strict=True))
    write_atomically(path, partial(_write, text.getvalue().encode()))


def _write(content: bytes, file: BinaryIO) -> None:
    file.write(content)


def model_state(
    experiment: Experiment, store: Store, learner: Learner, trained: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """What is needed to rebuild the learner and use it; `trained`: what it was trained on, of `trained_on`."""
    return {
        "format": FORMAT,
        "experiment": experiment.flat(),
        "dataset_digest": store.manifest["digest"],
        "channels": store.channels,
        "kept": kept_settings(store.manifest),
        **({} if trained is None else {"trained_on": dict(trained)}),
        "num_classes": learner.method.task.num_classes,
        "num_samples": learner.method.task.num_samples,
        "learner": learner.state_dict(),
    }


def saved_model(path: Path) -> dict[str, Any]:
    """The `model_state` of a model file, of a checkpoint, or of the weights in an exported folder; InputError if it is
    none (`model_schema`)."""
    if path.name == WEIGHTS:
        return read_hub_folder(path.parent)
    saved = load_checkpoint(path, mapped=True)
    return check_model(saved.get("model", saved), str(path))


@dataclass(frozen=True)
class BareNetwork:
    """A network that is evaluated without a training: a backbone with its weights and its pooling, and no head. The
    embeddings are the pooled features at unit length."""

    experiment: Experiment

    @property
    def plain(self) -> dict[str, Any]:
        """What it is, by settings."""
        training = self.experiment.training
        names = ("backbone", "weights", "pooling", "input_convention", "augmentation", "image_size")
        return {name: getattr(training, name) for name in names}

    def __str__(self) -> str:
        training = self.experiment.training
        return f"{training.backbone} (not trained, weights: {training.weights}, pooling: {training.pooling}, no head)"

    def learner(self, store: HasChannels) -> Learner:
        """The network, and a method that gives features unit length; InputError if its weights cannot be loaded."""
        torch.manual_seed(self.experiment.training.seed)
        learner = build_learner(self.experiment, store, num_classes=2)
        learner.network.head = torch.nn.Identity()  # type: ignore[assignment]
        return learner


def load_learner(path: "Path | BareNetwork", store: HasChannels | None = None) -> tuple[Learner, Experiment]:
    """The learner of a model file, of a checkpoint, or of a network without a training, on the CPU, for
    the images of a data set, or for any."""
    if isinstance(path, BareNetwork):
        if store is None:
            raise ValueError(f"{path.experiment.training.backbone} is not trained: it needs the images of a data set")
        return path.learner(store), path.experiment
    saved = saved_model(path)
    store = store or FileImages(saved["channels"])
    settings = saved["experiment"]
    settings = settings | {"weights": "random", "weights_sha256": None}  # the weights come from this file
    experiment = resolve_experiment(settings, str(path))
    if saved["channels"] != store.channels:
        raise InputError(
            f"{path}: trained on images of {saved['channels']} channels, the data set has {store.channels}"
        )
    samples = saved.get("num_samples", 0)  # older files do not tell it
    with blame_file(path, "its settings make no network"):
        learner = build_learner(experiment, store, num_classes=saved["num_classes"], num_samples=samples)
    if experiment.training.precision == "float64":
        learner.double()
    load_weights(learner, saved["learner"], str(path))
    return learner, experiment
