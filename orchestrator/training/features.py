"""The pooled features of a backbone that is never trained: computed once for each image, and kept on this machine.

    ~/.cache/orchestrator/data/features/<key>/<block>.npy    those of BLOCK images, (BLOCK, F)

The key is a digest of all that the numbers depend on, so that trainings with other methods, seeds and heads share them.
A block is computed in one way, whoever needs it first. The files are bounded together with the copies of data sets
(`data/copies.py`). A method still gets the images. Only where the network is given images of the step's batch as they
are, whole or a slice, it reads their features instead; images that were changed pass the backbone.
"""

import contextlib
import hashlib
import json
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from orchestrator.config.frozen import varying_setting
from orchestrator.config.training import Training
from orchestrator.data.copies import copies_folder, make_room, note_use
from orchestrator.data.pipeline import Reader, as_float
from orchestrator.data.store import Store
from orchestrator.method import Batch
from orchestrator.networks.embedding import EmbeddingNetwork
from orchestrator.storage.atomic import write_atomically
from orchestrator.training.learner import Learner, layers_that_draw
from orchestrator.training.precision import arithmetic

FORMAT = 1
BLOCK = 256
"""Images of a file."""
PASS = 32
"""Images that pass the backbone at once: from 16 on each gets the same bits in every batch."""
MAX_BYTES = 4 * 10**9
"""Of all features in memory; a larger data set passes the backbone."""


def keep_features(
    learner: Learner, training: Training, store: Store, reader: Reader, device: torch.device, *, trains: bool = False
) -> None:
    """Let a learner read kept features if they are constant: if its backbone is never trained and draws nothing, and
    the images are not changed and of one size. `cache_features: false` leaves it as it is. `trains`: it is used in
    training mode too, with its batch norm frozen."""
    backbone = learner.network.backbone
    if (
        training.cache_features is not False
        and not varying_setting(training)
        and device.type == "cpu"
        and reader.is_plain
        and type(learner.network) is EmbeddingNetwork
        and not layers_that_draw(backbone)
        and 8 * len(store) * backbone.feature_dim <= MAX_BYTES
    ):
        features = FrozenFeatures(learner, store)
        if not trains or features.ignore_the_mode():
            learner.features = features


class FrozenFeatures:
    """The features of a store's images under a learner's backbone and pooling; a learner that reads them has them as
    `features`."""

    def __init__(self, learner: Learner, store: Store) -> None:
        self.network, self.precision, self.store = learner.network, learner.precision, store
        self._seen: list[tuple[Tensor, int]] = []
        """The backbone's tensors, and torch's number of each one's last change, when they were last looked at."""
        self._digest = ""
        """That of their content when features were first read: then a checkpoint has been loaded."""
        shape, weight = (len(store), self.network.backbone.feature_dim), next(self.network.backbone.parameters())
        self._table = torch.empty(shape, dtype=weight.dtype)
        self._blocks = np.zeros(-(-len(store) // BLOCK), bool)
        self._folder: Path | None = None
        self._pictures: list[tuple[Tensor, int, Tensor]] = []

    def expect(self, batch: Batch | None) -> None:
        """From now on, the images of this batch are those that have features."""
        self._pictures = []
        while batch is not None:
            samples = batch.samples[batch.rows]
            self._pictures += [(images, images._version, samples) for images in batch.views]
            batch = batch.meta

    def of_images(self, images: Tensor) -> Tensor | None:
        """(n, F) of images that are the expected batch's, or a slice of them, unchanged; None of others, and if the
        backbone is not what it was."""
        if images.requires_grad or (samples := self._samples(images)) is None:
            return None
        return self.of_rows(samples.numpy())

    def of_rows(self, rows: np.ndarray[Any, Any]) -> Tensor | None:
        """(n, F) of these images of the store; None if the backbone is not what it was."""
        if self._is_changed():
            return None
        for block in np.unique(rows // BLOCK):
            if not self._blocks[block]:
                self._fill(int(block))
        return self._table[torch.from_numpy(np.ascontiguousarray(rows))]

    def ignore_the_mode(self) -> bool:
        """Whether the backbone computes the same in training and in evaluation mode, as two images show."""
        backbone, images = self.network.backbone, self._read(np.arange(min(2, len(self.store))))
        modes, buffers = _modes(backbone), [(buffer, buffer.clone()) for buffer in backbone.buffers()]
        with torch.random.fork_rng(devices=[]):
            trained = self._pool(images)
            backbone.eval()
            evaluated = self._pool(images)
        _set_modes(modes)
        for buffer, before in buffers:
            buffer.copy_(before)
        return torch.equal(trained, evaluated)

    def _samples(self, images: Tensor) -> Tensor | None:
        for own, version, samples in self._pictures:
            same = images.untyped_storage().data_ptr() == own.untyped_storage().data_ptr()
            if same and images._version == version and images.shape[1:] == own.shape[1:] and len(images):
                start, rest = divmod(int(images.storage_offset()) - int(own.storage_offset()), own.stride(0))
                if images.stride() == own.stride() and not rest and 0 <= start <= len(own) - len(images):
                    return samples[start : start + len(images)]
        return None

    def _is_changed(self) -> bool:
        backbone = self.network.backbone
        if any(module._forward_hooks or module._forward_pre_hooks for module in backbone.modules()):
            return True
        now = [(tensor, tensor._version) for _, tensor in _tensors(backbone)]
        if [(id(tensor), version) for tensor, version in now] == [(id(one), version) for one, version in self._seen]:
            return False
        digest = _digest(backbone)
        self._digest = self._digest or digest
        if digest == self._digest:  # written anew, and the same: as where a method goes back to its best weights
            self._seen = now
        return digest != self._digest

    def _fill(self, block: int) -> None:
        """Read a block from its file, or compute it and write that; a file that cannot be used is made anew."""
        if self._folder is None:
            self._folder = copies_folder() / "features" / self._key()
            note_use(self._folder)
        path = self._folder / f"{block}.npy"
        place = self._table[block * BLOCK : (block + 1) * BLOCK]
        with contextlib.suppress(OSError, ValueError, EOFError):
            kept = torch.from_numpy(np.load(path))
            if kept.shape == (BLOCK, place.shape[1]) and kept.dtype == place.dtype:
                place.copy_(kept[: len(place)])
                self._blocks[block] = True
        if not self._blocks[block]:
            rows = np.arange(block * BLOCK, (block + 1) * BLOCK) % len(self.store)  # the last block begins anew
            values = self._compute(rows)
            place.copy_(values[: len(place)])
            self._blocks[block] = True
            with contextlib.suppress(OSError):  # a full disk: this process has them
                self._folder.mkdir(parents=True, exist_ok=True)
                make_room(self._folder, values.nbytes, lambda line: None)
                write_atomically(path, partial(np.save, arr=values.numpy()))

    def _compute(self, rows: np.ndarray[Any, Any]) -> Tensor:
        modes = _modes(self.network.backbone)
        self.network.backbone.eval()
        parts = [self._pool(self._read(rows[start : start + PASS])) for start in range(0, len(rows), PASS)]
        _set_modes(modes)
        return torch.cat(parts)

    def _read(self, rows: np.ndarray[Any, Any]) -> Tensor:
        return as_float(self.store.images(rows), self._table.dtype)

    @torch.no_grad()
    def _pool(self, images: Tensor) -> Tensor:
        with arithmetic(self.precision, images.device):
            return self.network.pool(images)

    def _key(self) -> str:
        """The digest of all that the features depend on."""
        facts = {
            "format": FORMAT,
            "dataset": self.store.manifest["digest"],
            "weights": self._digest,
            "layers": repr(self.network.backbone).replace("LeanBatchNorm", "BatchNorm"),  # the same bits
            "pooling": self.network.pooling,
            "precision": self.precision,
            "torch": [torch.__version__, torch.backends.cpu.get_cpu_capability(), torch.get_num_threads()],
        }
        return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()[:32]


def _tensors(module: nn.Module) -> list[tuple[str, Tensor]]:
    return [*module.named_parameters(), *module.named_buffers()]


def _digest(module: nn.Module) -> str:
    """The digest of all tensors of a module."""
    digest = hashlib.sha256()
    for name, tensor in _tensors(module):
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        digest.update(tensor.detach().contiguous().view(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


def _modes(module: nn.Module) -> list[tuple[nn.Module, bool]]:
    return [(part, part.training) for part in module.modules()]


def _set_modes(modes: list[tuple[nn.Module, bool]]) -> None:
    for part, training in modes:
        part.training = training
