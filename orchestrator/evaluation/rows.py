"""Rows and labels as they are given: their types, and checks that name what is wrong."""

from collections.abc import Iterator

import numpy as np
import torch
from numpy.typing import NDArray

Floats = NDArray[np.floating]
Integers = NDArray[np.int64]
ArrayLike = torch.Tensor | np.ndarray
CHUNK = 2048  # rows looked at, and queries searched, at once


def parts_of(*arrays: Floats) -> Iterator[Floats]:
    """All rows of the arrays, some at a time."""
    for array in arrays:
        for start in range(0, len(array), CHUNK):
            yield array[start : start + CHUNK]


def checked_rows(values: ArrayLike, name: str) -> tuple[Floats, torch.device]:
    """Rows as a float32 or float64 array, and the device on which to search them."""
    device = torch.device("cpu")
    if isinstance(values, torch.Tensor):
        if values.is_cuda:
            device = values.device
        values = values.detach().cpu()
        values = (values.float() if values.dtype in (torch.bfloat16, torch.float16) else values).numpy()
    array = np.asarray(values)
    if array.ndim != 2 or array.size == 0:
        raise ValueError(f"{name}: need a non-empty matrix (rows, dimensions), got shape {array.shape}")
    if array.dtype.kind not in "fiu":
        raise ValueError(f"{name}: need real numbers, got {array.dtype}")
    if array.dtype not in (np.float32, np.float64):
        array = array.astype(np.float32 if array.dtype == np.float16 else np.float64)
    bad = sum(int((~np.isfinite(part)).any(axis=1).sum()) for part in parts_of(array))
    if bad:
        raise ValueError(f"{name}: {bad} of {len(array)} rows hold NaN or infinity")
    return array, device


def checked_labels(values: ArrayLike, name: str, rows_name: str, count: int) -> Integers:
    array = values.detach().cpu().numpy() if isinstance(values, torch.Tensor) else np.asarray(values)
    if array.shape != (count,):
        raise ValueError(f"{name}: need one per row of {rows_name}, shape ({count},), got {array.shape}")
    if array.dtype.kind not in "iu":
        raise ValueError(f"{name}: need integers, got {array.dtype}")
    return array.astype(np.int64)


def check_same_width(queries: Floats, gallery: Floats, name: str) -> None:
    if queries.shape[1] != gallery.shape[1]:
        raise ValueError(f"gallery: its rows have {gallery.shape[1]} dimensions, those of {name} {queries.shape[1]}")


def check_positive(value: int, name: str) -> None:
    if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < 1:
        raise ValueError(f"{name}: need whole numbers from 1, got {value!r}")
