"""Checkpoints: files that hold no code."""

import warnings
import zipfile
from pathlib import Path
from typing import Any, BinaryIO

import torch

from orchestrator.errors import InputError, storage_fault
from orchestrator.storage.atomic import write_atomically
from orchestrator.storage.opening import check_regular, open_file, remove_file
from orchestrator.storage.trial_folder import BEST, CHECKPOINT, MODEL, TrialPaths


def save_checkpoint(path: Path, state: dict[str, Any]) -> None:
    """Save `state` (tensors, numbers, strings, lists, dicts) as one file; OSError if the disk refuses it."""

    def write(file: BinaryIO) -> None:
        try:
            torch.save(state, file)
        except RuntimeError as error:
            if isinstance(error.__context__, OSError):  # torch hides a full disk
                raise error.__context__ from None
            raise

    write_atomically(path, write)


def load_checkpoint(path: Path, device: torch.device | str = "cpu", *, mapped: bool = False) -> dict[str, Any]:
    """Load what `save_checkpoint` wrote; never unpickles code. InputError if the file is missing or damaged.

    `mapped`: tensors are read when they are used, so that reading only the rest costs nothing."""
    check_regular(path)
    try:
        with warnings.catch_warnings(action="ignore"):  # e.g. of sparse tensors, which no checkpoint holds
            state = torch.load(path, map_location=device, weights_only=True, mmap=mapped)
    except FileNotFoundError:
        raise InputError(f"{path}: no such checkpoint") from None
    except Exception:  # torch raises many kinds for a damaged file
        raise InputError(f"{path}: not a checkpoint of this tool, or damaged") from None
    if not isinstance(state, dict):
        raise InputError(f"{path}: not a checkpoint of this tool (it holds a {type(state).__name__})")
    return state


def damage(path: Path) -> str | None:
    """What is wrong with a file of `save_checkpoint`, in a few words; None if nothing. Compares the checksums;
    torch does not, and would load a flipped bit as a weight."""
    try:
        with open_file(path) as file, zipfile.ZipFile(file) as archive:
            if archive.testzip() is not None:
                return "is damaged"
        load_checkpoint(path, mapped=True)
    except FileNotFoundError:
        return "is missing"
    except OSError as error:  # the disk's fault, not the file's
        if storage_fault(error, path):
            raise
        return "is damaged"
    except (InputError, zipfile.BadZipFile, ValueError, EOFError, NotImplementedError, RuntimeError):
        return "is damaged"
    return None


def discard_damaged(folder: Path) -> str | None:
    """Remove what is saved of a training in a folder, or of one of its folds, if it cannot be resumed exactly, so that
    it starts again. Returns the reason, None if all is well.

    Raises OSError if the disk cannot be read."""
    messages: list[str] = []
    for trial in TrialPaths(folder).models:
        place = trial.folder
        if not trial.checkpoint.exists():
            continue
        # in this order: an unreadable checkpoint does not say whether there should be a model
        if (wrong := damage(trial.checkpoint)) is not None:
            message = f"{CHECKPOINT} {wrong}"
        else:
            best_is_needed = load_checkpoint(trial.checkpoint, mapped=True).get("best") is not None
            models = [name for name in (BEST, MODEL) if (name == BEST and best_is_needed) or (place / name).exists()]
            message = next((f"{name} {wrong}" for name in models if (wrong := damage(place / name)) is not None), "")
        if message:
            messages.append(message if place == folder else f"{place.name}/{message}")
            for name in (CHECKPOINT, BEST, MODEL):
                remove_file(place / name)
    return ", ".join(messages) or None
