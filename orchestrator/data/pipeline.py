"""From rows of a store to batches for the network, read ahead of the training by a few threads.

Equal-sized images come from the store's memory, inline. Photographs are decoded at every use: in memory they would
take several times their size on disk. A thread decodes and crops a part of a batch in one call (`compiled`) without the
interpreter's lock, so that one process can use all cores. The content of a batch does not depend on the threads: each
fills its own places in the batch. Pixels stay bytes, a quarter of float32's size, until they are where the network is;
`as_float` converts them there.

Photographs that cannot be decoded are found before a training begins, by trying all of them once; the store's folder
keeps the result. So every process knows them, and none is discovered only after an hour.
"""

import contextlib
import json
import os
import re
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from itertools import islice, pairwise
from types import TracebackType
from typing import TYPE_CHECKING, NamedTuple, Self

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import UnidentifiedImageError
from torch import Tensor
from torch.jit import optimized_execution  # type: ignore[attr-defined]

from orchestrator.data.augmentations import Degradation
from orchestrator.data.augmentations.crops import CROP_DRAWS, CROPS, crop_of
from orchestrator.data.augmentations.extra import DRAW, change_of
from orchestrator.data.compiled import cut_of, program
from orchestrator.data.encoding import as_mode, open_image
from orchestrator.data.manifest import MODES
from orchestrator.data.pace import FIRST, Pace, usable_cores
from orchestrator.data.splits import Split
from orchestrator.data.store import Store
from orchestrator.data.transforms import augment, degrade, uniforms
from orchestrator.errors import DataError
from orchestrator.storage.files import read_json

if TYPE_CHECKING:
    from orchestrator.data.augmentations.extra import Change

AHEAD = 2
"""Batches that are being read while one is used."""
CHECKED = "unreadable.json"
"""The file that `find_unreadable` leaves in the store's folder."""
TOLERATED = 0.01
"""The share of images that may be unreadable."""
GLANCES = 16
PPM = re.compile(rb"P6\n(\d{1,9}) (\d{1,9})\n255\n")
"""How `encoding.decoded` begins an image."""
EVALUATION = -1
"""The epoch of images that are read for evaluation: nothing about them is random."""

Rows = NDArray[np.int64]


class Request(NamedTuple):
    """A batch to be read: images by their rows in the store, (n,), as they look in `epoch`, or in evaluation.

    `positions`, for the caller: the global batch of which the samples are this process's block. Another `view` of
    the same samples is augmented anew.
    """

    samples: Rows
    epoch: int = EVALUATION
    positions: Rows = np.empty(0, np.int64)
    view: int = 0


class Reader:
    """Reads batches of a store with one augmentation; a context manager that ends its threads.

    `augmentation`: one of RECIPES for images of one size, or of CROPS for photographs, which it cuts to `image_size`
    pixels, or the size of its name; `extra_augmentations`: torchvision's, of bytes: after that cut, before a recipe;
    `degrade_tests`: whether the `degradation` applies to the images of evaluations too; `threads`: how many prepare
    photographs, 0 for only the caller's, None for FIRST and more while the caller waits, up to one for each core;
    `pinned`: whether photographs are written to pinned memory, from which a GPU copies while it computes (torch uses
    such memory again once the copy has ended).
    """

    def __init__(
        self,
        store: Store,
        *,
        augmentation: str = "none",
        image_size: int | None = None,
        extra_augmentations: str | None = None,
        seed: int = 0,
        degradation: Degradation | None = None,
        degrade_tests: bool = False,
        threads: int | None = 0,
        pinned: bool = False,
    ) -> None:
        self.store = store
        self.augmentation = augmentation
        self.seed = seed
        self.degradation = degradation
        self.degrade_tests = degrade_tests
        self.crop = crop_of(augmentation, image_size)
        self._extra = None if extra_augmentations is None else change_of(extra_augmentations)
        self._program = None if self.crop is None else program()
        if self.crop is not None and self._program is None:
            _import_torchvision()
        self._most = usable_cores() if threads is None else threads
        self._threads = min(FIRST, self._most) if threads is None else threads
        self._pinned = pinned
        self._pool = self._new_pool() if self.crop is not None and self._threads else None
        self._before: ThreadPoolExecutor | None = None
        """The threads before their number was changed, which end what they have begun."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def is_plain(self) -> bool:
        """Whether it gives images as they are in the store, whatever the epoch."""
        changes = self.crop, self._extra, self.degradation
        return self.augmentation == "none" and changes == (None, None, None)

    def close(self) -> None:
        """Discard the batches being read ahead, and end the threads."""
        for pool in filter(None, (self._pool, self._before)):
            pool.shutdown(wait=True, cancel_futures=True)

    def read(self, requests: Iterable[Request]) -> Iterator[tuple[Request, Tensor]]:
        """Each request with its images (n, C, H, W), in order: uint8, or float32 in [0, 1] where floats were changed
        (degraded, or by a recipe other than "none").

        `requests` may be endless; no more than AHEAD of them are taken before they are due. Raises DataError if an
        image cannot be decoded, when its batch is due.
        """
        if self._pool is None:
            for request in requests:
                yield request, self._read(request)
            return
        requests = iter(requests)
        pace = Pace(self._most)
        waiting = deque(map(self._submit, islice(requests, AHEAD)))
        while waiting:
            request, images, parts = waiting.popleft()
            start = time.perf_counter()
            for part in parts:
                part.result()
            ready = time.perf_counter()
            self._use(pace.threads(self._threads, ready - start, ready))
            waiting.extend(map(self._submit, islice(requests, 1)))
            yield request, images

    def _new_pool(self) -> ThreadPoolExecutor:
        return ThreadPoolExecutor(self._threads, "images")

    def _use(self, threads: int) -> None:
        """From here on, prepare with so many threads."""
        if threads == self._threads:
            return
        if self._before is not None:
            self._before.shutdown(wait=True)
        self._before, self._threads = self._pool, threads
        self._pool = self._new_pool()
        if self._before is not None:
            self._before.shutdown(wait=False)

    def _read(self, request: Request) -> Tensor:
        """Read one batch, in the calling thread."""
        if self.crop is not None:
            images = self._batch(request)
            self._fill(images, request)
            return images
        images = self.store.images(request.samples)
        recipe = "none" if request.epoch == EVALUATION else self.augmentation
        if self._extra is not None and request.epoch != EVALUATION:
            images = torch.stack(list(map(self._extra, images, self._seeds(request))))
        degradation = self._degradation(request)
        if recipe == "none" and degradation is None:
            return images
        return augment(
            images,
            request.samples,
            recipe=recipe,
            seed=self.seed,
            epoch=request.epoch,
            view=request.view,
            degradation=degradation,
        )

    def _seeds(self, request: Request) -> list[int]:
        """Of each sample's generator."""
        draws = uniforms(request.samples, seed=self.seed, epoch=request.epoch, view=request.view, draws=DRAW + 1)
        return [int(draw * 2.0**53) for draw in draws[:, DRAW]]

    def _degradation(self, request: Request) -> Degradation | None:
        return self.degradation if self.degrade_tests or request.epoch != EVALUATION else None

    def _batch(self, request: Request) -> Tensor:
        assert self.crop is not None
        shape = len(request.samples), self.store.channels, self.crop.size, self.crop.size
        dtype = torch.uint8 if self._degradation(request) is None else torch.float32
        return torch.empty(shape, dtype=dtype, pin_memory=self._pinned)

    def _submit(self, request: Request) -> tuple[Request, Tensor, list[Future[None]]]:
        """Submit a batch to the threads, one part to each."""
        assert self._pool is not None
        images = self._batch(request)
        edges = np.linspace(0, len(images), self._threads + 1).astype(int).tolist()
        parts = [
            self._pool.submit(self._fill, images[start:stop], request._replace(samples=request.samples[start:stop]))
            for start, stop in pairwise(edges)
            if start < stop
        ]
        return request, images, parts

    def _fill(self, images: Tensor, request: Request) -> None:
        """Decode photographs into `images`, uint8 or float32 (n, C, size, size)."""
        assert self.crop is not None
        evaluated = request.epoch == EVALUATION
        draws = uniforms(request.samples, seed=self.seed, epoch=request.epoch, view=request.view, draws=CROP_DRAWS)
        extra = None if evaluated else self._extra
        seeds = [0] * len(images) if extra is None else self._seeds(request)
        if not self._fill_at_once(images, request.samples, [] if evaluated else draws.tolist(), extra, seeds):
            for image, row, numbers, seed in zip(images, request.samples.tolist(), draws, seeds, strict=True):
                pixels = self._decode(row, decode_pixels)
                view = self.crop.evaluation(pixels) if evaluated else self.crop.training(pixels, numbers)
                _write(image, view if extra is None else extra(view, seed))
        if (degradation := self._degradation(request)) is not None:
            images.copy_(degrade(images, draws, degradation))

    def _fill_at_once(
        self, images: Tensor, rows: Rows, draws: list[list[float]], extra: "Change | None", seeds: list[int]
    ) -> bool:
        """Decode and crop in one compiled call. False if there is none, or if it fails: step by step, Pillow may know
        the image, or the message says which it is."""
        if self._program is None or self.crop is None:
            return False
        encoded, cut = [self._decode(row, compiled_input) for row in rows.tolist()], cut_of(self.crop)
        try:
            with optimized_execution(False):  # nothing to optimise, and it would take longer at first
                if extra is None:
                    self._program.fill(images, encoded, draws, cut)
                    return True
                views = self._program.views(encoded, draws, cut)
        except (RuntimeError, torch.jit.Error):
            return False
        for image, view, seed in zip(images, views, seeds, strict=True):
            _write(image, extra(view, seed))
        return True

    def _decode(self, row: int, how: Callable[[memoryview, int], Tensor]) -> Tensor:
        try:
            return how(self.store.mapped_bytes(row), self.store.channels)
        except ValueError as error:
            raise DataError(f"{self.store.path}: image {row} cannot be decoded ({error})") from None


def _write(image: Tensor, view: Tensor) -> None:
    """Write a view, uint8, into its place in a batch, uint8 or float32."""
    if image.dtype == torch.uint8:
        image.copy_(view)
    else:
        torch.div(view, 255, out=image)


def as_float(images: Tensor, dtype: torch.dtype = torch.float32, layout: torch.memory_format | None = None) -> Tensor:
    """A reader's images in [0, 1], on whatever device they are: the same bits on each.

    They are divided in float32, by a tensor: on a GPU torch multiplies by the reciprocal of a plain number instead, and
    its last bit differs.
    """
    if images.dtype == torch.uint8:
        images = images.to(torch.float32, memory_format=layout or torch.preserve_format)
        images.div_(torch.full((), 255.0, device=images.device))
    return images.to(dtype, memory_format=layout or torch.preserve_format)


def decode_pixels(data: bytes | memoryview, channels: int) -> Tensor:
    """An image's pixels, uint8 (channels, H, W), in their stored orientation. ValueError gives the reason in one line.

    PPM, of stores of decoded images, is taken as it is. JPEG in colour goes to torchvision, which decodes the same bits
    as Pillow, a little faster; all else to Pillow.
    """
    # a copy, since torch warns about read-only memory
    if PPM.match(data) is not None and (pixels := _pixels(bytearray(data), channels)) is not None:
        return pixels
    if _is_jpeg(data, channels):
        # torchvision plans to drop its decoders; and where it fails, Pillow knows more formats and says what is wrong
        with contextlib.suppress(ImportError, RuntimeError):
            from torchvision.io import ImageReadMode, decode_jpeg

            # a copy, since torch warns about read-only memory
            coded = torch.frombuffer(bytearray(data), dtype=torch.uint8)
            return decode_jpeg(coded, ImageReadMode.RGB)  # type: ignore[no-any-return]
    try:
        with open_image(data) as image:
            levels = np.array(as_mode(image, MODES[channels]))
    except UnidentifiedImageError:
        raise ValueError("not an image") from None  # Pillow's message contains a memory address
    except Exception as error:  # a damaged file makes Pillow raise many kinds
        raise ValueError(" ".join(str(error).split()) or type(error).__name__) from None
    return torch.from_numpy(levels.reshape(*levels.shape[:2], channels)).permute(2, 0, 1)


def compiled_input(data: memoryview, channels: int) -> Tensor:
    """An image for the compiled functions: a JPEG in colour as its bytes, uint8 (n,), and the pixels of a PPM, both
    where they are and not to be written; other images decoded. ValueError as `decode`."""
    if _is_jpeg(data, channels):
        return torch.frombuffer(data, dtype=torch.uint8)
    pixels = _pixels(data, channels)
    return decode_pixels(data, channels) if pixels is None else pixels


def _is_jpeg(data: bytes | memoryview, channels: int) -> bool:
    return channels == 3 and data[:3] == b"\xff\xd8\xff"


def _pixels(data: bytearray | memoryview, channels: int) -> Tensor | None:
    """A PPM's pixels, (3, H, W), where they are; None if it is none."""
    if channels != 3 or (header := PPM.match(data)) is None:
        return None
    width, height = int(header[1]), int(header[2])
    if len(data) != header.end() + 3 * width * height:
        return None
    return torch.frombuffer(data, dtype=torch.uint8, offset=header.end()).view(height, width, 3).permute(2, 0, 1)


# Images that cannot be read ----------------------------------------------------------------------------------


def find_unreadable(
    store: Store, augmentation: str, *, threads: int | None, say: Callable[[str], None] | None = None
) -> dict[int, str]:
    """The rows of a store that cannot be decoded, each with the reason. For recipes of CROPS; else there are none.

    The first call tries all images; later ones read its result from a file in the store's folder, if it can be written.
    `say` receives one line before the first. `threads`: how many try them, None for one for each core.
    """
    if augmentation not in CROPS:
        return {}
    record = store.path / CHECKED
    try:
        saved = read_json(record)
        if saved["digest"] == store.manifest["digest"]:
            return {int(row): str(reason) for row, reason in saved["unreadable"].items()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        pass  # missing or not in this form: try them all
    _import_torchvision()
    if say is not None:
        say(f"checking that the {len(store)} images of {store.name} can be decoded (once)")

    def look(rows: Rows) -> dict[int, str]:
        unreadable = {}
        for row in rows.tolist():
            try:
                decode_pixels(store.image_bytes(row), store.channels)
            except ValueError as error:
                unreadable[row] = str(error)
        return unreadable

    with ThreadPoolExecutor(usable_cores() if threads is None else max(1, threads)) as pool:
        parts = pool.map(look, np.array_split(np.arange(len(store)), max(1, len(store) // 64)))
        unreadable = {row: reason for part in parts for row, reason in part.items()}
    draft = record.with_name(f".{CHECKED}.{os.getpid()}.tmp")
    try:
        draft.write_text(json.dumps({"digest": store.manifest["digest"], "unreadable": unreadable}), "utf-8")
        draft.replace(record)
    except OSError:  # a read-only folder: the next process tries them again
        with contextlib.suppress(OSError):
            draft.unlink()
    return unreadable


def check_images(store: Store, augmentation: str, unreadable: dict[int, str]) -> None:
    """DataError if the augmentation is not for images like these, or if too many of them cannot be decoded."""
    if augmentation not in CROPS:
        _check_sizes(store, augmentation)
    if not unreadable:
        return
    first = _first(unreadable)
    if len(unreadable) > TOLERATED * len(store):
        raise DataError(
            f"{store.path}: {len(unreadable)} of {len(store)} images cannot be decoded, more than {TOLERATED:.0%} "
            f"({first}); make the data set again from undamaged files"
        )
    remaining = np.delete(store.labels, list(unreadable))
    for label in np.setdiff1d(store.labels, remaining)[:1]:
        raise DataError(
            f"{store.path}: no image of class {label} ({store.class_names[label]!r}) can be decoded ({first}); "
            "make the data set again from undamaged files"
        )


def describe_unreadable(store: Store, unreadable: dict[int, str]) -> str:
    """One line about training or testing without them."""
    count = f"{len(unreadable)} of {len(store)} images"
    return f"{store.path}: {count} cannot be decoded and are left out ({_first(unreadable)})"


def without(split: Split, unreadable: dict[int, str]) -> Split:
    """The split without these rows."""
    gone = np.array(sorted(unreadable), np.int64)
    return replace(
        split,
        train=np.setdiff1d(split.train, gone),
        validation=np.setdiff1d(split.validation, gone),
        test=np.setdiff1d(split.test, gone),
    )


def _import_torchvision() -> None:
    """Import torchvision: only photographs pay its second, and one thread does it before several do at once."""
    import torchvision.transforms.v2.functional

    with contextlib.suppress(ImportError):
        import torchvision.io  # noqa: F401


def _first(unreadable: dict[int, str]) -> str:
    row = min(unreadable)
    return f"the first is image {row}: {unreadable[row]}"


def _check_sizes(store: Store, augmentation: str) -> None:
    """Check a few images, since the store finds a wrong size only in the batch that contains it."""
    first: tuple[int, tuple[int, int]] | None = None
    for row in np.unique(np.linspace(0, len(store) - 1, GLANCES).astype(int)).tolist() if len(store) else ():
        try:
            with open_image(store.image_bytes(row)) as image:
                size = image.size
        except (OSError, ValueError):
            return  # the store reports it when the image is read
        if first is not None and size != first[1]:
            raise DataError(
                f"augmentation: '{augmentation}' is for images of one size, but in {store.name} image {first[0]} is "
                f"{first[1][0]} x {first[1][1]} and image {row} is {size[0]} x {size[1]}: use one of {', '.join(CROPS)}"
            )
        first = row, size
