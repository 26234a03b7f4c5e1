"""The batches of a training, in order: whose images, with which labels, in how many views."""

from collections.abc import Callable, Iterable, Iterator
from itertools import count, islice
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Generator, Tensor
from torch.nn import functional

from orchestrator.config.training import Training
from orchestrator.data.batches import BATCHES
from orchestrator.data.batches.class_balanced import CLASS_BALANCED
from orchestrator.data.pipeline import Reader, Request
from orchestrator.data.samplers import ClassBalancedSampler, rank_rows
from orchestrator.errors import InputError, TrainingFailed
from orchestrator.method import Batch, Method
from orchestrator.training.device import form_of_images
from orchestrator.training.distributed import rank, world_size
from orchestrator.training.feed import Arrays, feed
from orchestrator.training.learner import describe_value
from orchestrator.training.splits import LabelledImages, build_sampler

Positions = NDArray[np.int64]

CENTRED = 4
"""Images of a class whose mean embedding stands for it."""


class Batches:
    """The batches of `images`, of classes and images as the training or the method says.

    Args:
        meta: images of the clean second batch that a method may ask for; none without.
        class_embeddings: as of `Scope`, where batches depend on them.

    Raises InputError if the batch does not fit the images or the processes.
    """

    def __init__(
        self,
        method: Method,
        training: Training,
        images: LabelledImages,
        meta: LabelledImages,
        reader: Reader,
        device: torch.device,
        class_embeddings: Callable[[int, Generator], Tensor] | None = None,
    ) -> None:
        self.method, self.training, self.images, self.reader, self.device = method, training, images, reader, device
        self._sampler = build_sampler(method, images.labels, training)
        self._meta_sampler = self._for_meta(meta) if len(meta.samples) else None
        # what is beyond the training's own images is the clean batch's
        self._all = LabelledImages(*(np.concatenate(pair) for pair in zip(images, meta, strict=True)))
        self.steps_per_epoch = self._sampler.steps_per_epoch
        self.class_embeddings = class_embeddings
        self._own = type(method).batches is not Method.batches
        self._learnt = self._own or BATCHES[training.batches or CLASS_BALANCED.name].reads_centres
        """Whether an epoch's batches may depend on what was learnt before it."""
        self._drawn: tuple[int, Positions] | None = None
        """The epoch of such batches, and these."""

    def read(self, first: int, last: int) -> Iterator[tuple[int, Batch]]:
        """Each step's epoch and batch, from step `first` up to `last`."""
        if not self._learnt:
            yield from self._feed(self._steps(first, last), first)
            return
        while first < last:  # none is read ahead of its epoch's beginning
            end = min(last, (first // self.steps_per_epoch + 1) * self.steps_per_epoch)
            yield from self._feed(self._steps(first, end), first)
            first = end

    def state(self) -> dict[str, Any]:
        """What a checkpoint keeps: the batches of an epoch that has begun, if they depend on what was learnt."""
        if self._drawn is None:
            return {}
        epoch, positions = self._drawn
        return {"epoch": epoch, "positions": torch.from_numpy(positions)}

    def load(self, state: dict[str, Any]) -> None:
        """Go on from a `state`."""
        self._drawn = (state["epoch"], state["positions"].numpy()) if state else None

    def _steps(self, first: int, last: int) -> Iterator[tuple[int, Positions]]:
        """The epoch and the whole batch's positions of each step."""
        step = first
        while step < last:
            epoch, start = divmod(step, self.steps_per_epoch)
            batches = self.draw(epoch) if self._learnt else self._sampler.batches(epoch)
            for positions in batches[start : start + last - step]:
                yield epoch, positions
                step += 1

    def draw(self, epoch: int) -> Positions:
        """The epoch's batches, (steps, batch size), that the method makes, or that depend on the network."""
        if self._drawn is not None and self._drawn[0] == epoch:
            return self._drawn[1]
        seed = np.random.SeedSequence([self.training.seed, epoch]).generate_state(1, np.uint64)[0]
        rng = Generator().manual_seed(int(seed >> np.uint64(1)))
        if not self._own:
            self._drawn = epoch, self._sampler.batches(epoch, self._centres(rng))
            return self._drawn[1]
        labels, samples = (
            torch.from_numpy(part.astype(np.int64)) for part in (self.images.labels, self.images.samples)
        )
        positions = self.method.batches(epoch, labels, samples, rng)
        shape = self.steps_per_epoch, self.training.batch_size
        self._drawn = epoch, _check_positions(self.method, positions, shape, len(labels))
        return self._drawn[1]

    def _centres(self, rng: Generator) -> NDArray[np.float64]:
        """The classes' mean embeddings, by some images of each, of unit length; (C, D)."""
        assert self.class_embeddings is not None
        centres = functional.normalize(self.class_embeddings(CENTRED, rng).double(), dim=-1)
        return functional.normalize(centres.mean(1), dim=-1).cpu().numpy()

    def _for_meta(self, meta: LabelledImages) -> ClassBalancedSampler:
        training, classes = self.training, len(np.unique(meta.labels))
        if classes < training.classes_per_batch:
            raise InputError(
                f"meta_share holds back images of {classes} classes, fewer than classes_per_batch "
                f"({training.classes_per_batch}): raise the one or lower the other"
            )
        return ClassBalancedSampler(
            meta.labels,
            classes_per_batch=training.classes_per_batch,
            images_per_class=training.images_per_class,
            seed=training.seed,
        )

    def _requests(self, steps: Iterable[tuple[int, Positions]], first: int) -> Iterator[Request]:
        """For each step its views, then its clean batch."""
        clean = -1, np.empty((0, 0), np.int64)  # a turn through the clean images, and its batches
        for step, (epoch, positions) in enumerate(steps, first):
            for view in range(self.method.views):
                yield self._request(positions, epoch, view)
            if (sampler := self._meta_sampler) is not None:
                turn, index = divmod(step, sampler.steps_per_epoch)
                if turn != clean[0]:
                    clean = turn, sampler.batches(turn) + len(self.images.samples)
                yield self._request(clean[1][index], turn, 0)

    def _request(self, positions: Positions, epoch: int, view: int) -> Request:
        return Request(self._all.samples[positions[self._rows(positions)]], epoch, positions, view)

    def _rows(self, positions: Positions) -> slice:
        """This process's rows of a batch."""
        return rank_rows(len(positions), rank(), world_size(), self.method.batch_parts)

    def _beside(self, request: Request) -> Arrays:
        """The whole batch's labels and rows; the views of a batch share them."""
        if request.view:
            return ()
        return self._all.labels[request.positions][:, None], self._all.samples[request.positions]

    def _feed(self, steps: Iterable[tuple[int, Positions]], first: int) -> Iterator[tuple[int, Batch]]:
        dtype, layout = form_of_images(self.training)
        requests = self._requests(steps, first)
        stream = feed(self.reader, requests, self.device, dtype=dtype, layout=layout, beside=self._beside)
        views = self.method.views
        for step in count(first):
            parts = list(islice(stream, views + (self._meta_sampler is not None)))
            if not parts:
                return
            request, images, (labels, samples) = parts[0]
            rows = self._rows(request.positions)
            more = tuple(view for _, view, _ in parts[1:views])
            meta = None
            for _, clean, (its_labels, its_samples) in parts[views:]:
                meta = Batch(clean, its_labels, its_samples, rows, step)
            yield request.epoch, Batch(images, labels, samples, rows, step, more, meta)


def _check_positions(method: Method, raw_positions: Any, shape: tuple[int, int], images: int) -> Positions:
    """The batches that a method gives; TrainingFailed if they are none."""
    whole = (
        isinstance(raw_positions, Tensor)
        and not raw_positions.is_floating_point()
        and tuple(raw_positions.shape) == shape
    )
    if not whole:
        what = (
            f"{raw_positions.dtype} {tuple(raw_positions.shape)}"
            if isinstance(raw_positions, Tensor)
            else describe_value(raw_positions)
        )
        what = f"no batches, {what}" if isinstance(raw_positions, Tensor) and not raw_positions.numel() else what
        raise TrainingFailed(
            f"{method.name}: batches() returned {what}: it must be a tensor of whole numbers of shape {shape}, "
            "(task.steps_per_epoch, task.batch_size)"
        )
    positions: Positions = raw_positions.cpu().numpy().astype(np.int64)
    if positions.min() < 0 or positions.max() >= images:
        raise TrainingFailed(
            f"{method.name}: batches() returned positions from {positions.min()} to {positions.max()}: "
            f"they must be from 0 to {images - 1}; are they rows of the data set?"
        )
    return positions
