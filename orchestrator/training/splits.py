"""Which images a training reads: splits, readers, unreadable images, batches."""

import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from orchestrator.config.training import Experiment, Training
from orchestrator.data.augmentations import Degradation
from orchestrator.data.augmentations.crops import crop_of
from orchestrator.data.batches import BATCHES
from orchestrator.data.batches.base import Sampler, Source
from orchestrator.data.batches.class_balanced import CLASS_BALANCED
from orchestrator.data.pipeline import Reader, Request, as_float, check_images, describe_unreadable, find_unreadable
from orchestrator.data.samplers import UniformSampler
from orchestrator.data.splits import (
    Split,
    class_folds,
    class_split,
    image_split,
    noisy_labels,
    rows_for_testing,
    share_of_each_class,
    train_labels,
)
from orchestrator.data.store import Store
from orchestrator.errors import InputError
from orchestrator.method import Method
from orchestrator.text import join_names
from orchestrator.training.distributed import broadcast_object, max_world_size, rank
from orchestrator.training.learner import Learner
from orchestrator.training.model_file import save_table

UNREADABLE = "unreadable.csv"
"""The list of images that a training or a test left out."""


def data_splits(training: Training, store: Store, *, hold_out: bool = True) -> list[Split]:
    """The split that a training asks for, or the folds of MLRC. Without `hold_out` the whole training half trains
    (folds hold out in any case). With `selection: test` it is too, and validations use the test classes."""
    if training.protocol == "mlrc":
        return class_folds(store, class_subset=training.class_subset)
    on_test = training.selection == "test"
    share = training.validation_share if hold_out and not on_test else 0.0
    cut = image_split if training.protocol == "classification" else class_split
    split = cut(store, validation_share=share, seed=training.seed, class_subset=training.class_subset)
    return [replace(split, validation=split.test, validation_classes=split.test_classes) if on_test else split]


class LabelledImages(NamedTuple):
    """Images by their rows in the data set, and the label of each in this training, from 0 on; both (N,) int64."""

    samples: np.ndarray[Any, Any]
    labels: np.ndarray[Any, Any]


def training_images(experiment: Experiment, store: Store, split: Split) -> tuple[Split, LabelledImages, LabelledImages]:
    """The images that a method trains on, and those of its clean second batch, the share `meta_share` of its config;
    the split without these.

    The labels of the first have the training's label noise, those of the second have none. InputError for a share that
    is none, or that holds nothing back."""
    training = experiment.training
    clean = train_labels(store, split.train)
    held_back = np.zeros(len(clean), bool)
    if share := getattr(experiment.config, "meta_share", 0.0):
        if not 0 < share < 1:
            raise InputError(f"meta_share: {share!r}: should be at least 0 and below 1")
        held_back = share_of_each_class(clean, share, seed=training.seed)
        if not held_back.any():
            raise InputError(f"meta_share: {share!r}: holds back no image: no class has enough of them: raise it")
    rest = replace(split, train=split.train[~held_back])
    labels = noisy_labels(clean[~held_back], share=training.label_noise, seed=training.label_noise_seed)
    return rest, LabelledImages(rest.train, labels), LabelledImages(split.train[held_back], clean[held_back])


def few_left(experiment: Experiment, store: Store, split: Split) -> str:
    """Which classes `meta_share` leaves with fewer images than are drawn of each, "" if there are none.

    InputError as `training_images`."""
    images_per_class, share = experiment.training.images_per_class, getattr(experiment.config, "meta_share", 0.0)
    whole = np.bincount(train_labels(store, split.train))
    remaining = np.bincount(
        train_labels(store, training_images(experiment, store, split)[0].train), minlength=len(whole)
    )
    few = (remaining < images_per_class) & (whole >= images_per_class)
    if not few.any():
        return ""
    return (
        f"meta_share: {share!r}: leaves {remaining[few].min()} images for training in {few.sum()} of {len(whole)} "
        f"classes, fewer than images_per_class ({images_per_class}): batches repeat images; lower one of them"
    )


def enlargement(training: Training, store: Store) -> str:
    """That photographs are kept smaller than this `image_size` needs, "" if they are not, or it is not known."""
    crop = crop_of(training.augmentation, training.image_size)
    stored_size = store.manifest.get("settings", {}).get("size")
    if crop is None or training.image_size is None or not isinstance(stored_size, int) or stored_size >= crop.shorter:
        return ""
    return (
        f"image_size: {training.image_size}: {store.name} keeps images with a shorter side of {stored_size} "
        f"pixels, which are enlarged to {crop.shorter}: prepare it with --size {crop.shorter}"
    )


def rows_to_test(training: Training, store: Store) -> np.ndarray[Any, Any]:
    """The images of any data set on which a model trained this way is tested: those of all its test classes, or, for
    classification, its test images."""
    if training.protocol == "classification":
        return image_split(store, validation_share=0.0, seed=0).test
    return rows_for_testing(store)


def new_reader(
    store: Store,
    training: Training,
    degradation: Degradation | None = None,
    *,
    device: torch.device | None = None,
) -> Reader:
    """A reader of images as this training and its evaluations see them, for a network on `device`; with a
    `degradation`, as tests on degraded images see them."""
    return Reader(
        store,
        augmentation=training.augmentation,
        image_size=training.image_size,
        extra_augmentations=training.extra_augmentations,
        seed=training.seed,
        degradation=degradation or training.image_degradation,
        degrade_tests=degradation is not None,
        threads=training.loader_threads,
        pinned=device is not None and device.type != "cpu",
    )


def leave_out(store: Store, training: Training, folder: Path | None = None) -> dict[int, str]:
    """The rows that cannot be decoded, with the reasons: the same on all ranks, reported once, listed in the `folder`.

    Raises DataError if there are too many, or the images are not of the kind that the augmentation is for.
    """
    reasons = find_unreadable(store, training.augmentation, threads=training.loader_threads) if rank() == 0 else None
    unreadable: dict[int, str] = broadcast_object(reasons)
    check_images(store, training.augmentation, unreadable)
    if unreadable and rank() == 0:
        warnings.warn(describe_unreadable(store, unreadable), stacklevel=2)
        if folder is not None:
            rows = list(unreadable)
            names = [store.class_names[label] for label in store.labels[rows]]
            table = {
                "image": rows,
                "class": names,
                "split": store.splits[rows].tolist(),
                "reason": list(unreadable.values()),
            }
            save_table(folder / UNREADABLE, table)
    return unreadable


def check_image_size(learner: Learner, store: Store, split: Split, training: Training) -> None:
    """InputError if the network cannot take images of the size that the training's augmentation produces."""
    with new_reader(store, training) as reader:
        ((_, images),) = reader.read([Request(split.train[:1])])
    try:
        with torch.no_grad():
            learner.eval().network(as_float(images))
    except RuntimeError as error:
        size = " x ".join(map(str, images.shape[2:]))
        raise InputError(
            f"backbone: {training.backbone} cannot take images of {size} pixels, which augmentation "
            f"'{training.augmentation}' makes of {store.name} ({' '.join(str(error).split())[:100]})"
        ) from None


def build_sampler(method: Method, labels: np.ndarray[Any, Any], training: Training) -> Sampler:
    """Batches as the training says; else of P classes x K images, or plain ones for a method that must not see classes.

    InputError if the method, the data or the number of processes does not allow them."""
    share_of = "images" if method.batch_parts is None else "undivided parts"
    count = training.batch_size if method.batch_parts is None else method.batch_parts
    if count < (workers := max_world_size()) > 1:
        raise InputError(
            f"a batch of {count} {share_of} cannot be shared by {workers} workers: "
            f"take fewer workers, or more {share_of}"
        )
    # a misspelled name must not give classes to a label-free method
    if method.sampler not in ("class_balanced", "uniform"):
        raise InputError(f"method '{method.name}': sampler {method.sampler!r} must be 'class_balanced' or 'uniform'")
    if training.batches is not None and type(method).batches is not Method.batches:
        raise InputError(f"batches: {training.batches}: method '{method.name}' makes its own batches: leave it out")
    if training.batches is None and method.sampler == "uniform":
        return UniformSampler(len(labels), batch_size=training.batch_size, seed=training.seed)
    kind = BATCHES[training.batches or CLASS_BALANCED.name]
    if kind.reads_labels and method.sampler == "uniform":
        raise InputError(
            f"batches: {kind.name}: method '{method.name}' trains without labels, and these batches are made by them: "
            f"take {join_names([other.name for other in BATCHES.values() if not other.reads_labels])}, or leave it out"
        )
    return kind.build(Source(labels, method.task.super_classes), training)
