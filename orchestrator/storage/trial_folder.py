"""The names of a trial's files, and the folders that contain its models."""

from collections.abc import Iterable
from pathlib import Path

from orchestrator.storage.opening import remove_file

CHECKPOINT = "checkpoint.pt"
"""The complete state for an exact resume; written at each validation."""
BEST = "best.pt"
"""The model at its best validation, without the optimiser."""
DIAGNOSTICS = "diagnostics"
"""The folder of a method's arrays and tables, of the best validation."""
INSIGHT = "insight"
"""The folder of tables on a model from the best validation or the test; for the best few trials also a page."""
IMAGES = "model.html"
"""The page of a model: its results on images."""
SAMPLE = "sample.npz"
"""A sample of the embeddings behind the insight, used to draw it; kept as long as the model."""
MODEL = "model.pt"
"""The model at the end of a training without held-out classes."""

HUB_WEIGHTS = "model.safetensors"
"""The weights in a folder that a model was exported to, in Hugging Face's layout."""


def fold_folder(folder: Path, fold: int) -> Path:
    """The folder with the files of one fold of a trial."""
    return folder / f"fold-{fold}"


def model_folders(folder: Path) -> list[Path]:
    """The folders of a trial's models: its own folder, or one per fold."""
    return sorted(folder.glob("fold-*")) or [folder]


def remove_unfinished(folder: Path, names: Iterable[str] = (CHECKPOINT, BEST, MODEL, SAMPLE)) -> None:
    """Remove temporary files of `write_atomically` for these names that a killed process left in a folder."""
    for name in names:
        for path in folder.glob(f".{name}.*"):
            remove_file(path)


def unneeded_files(kept: bool) -> tuple[str, ...]:
    """The files of an ended trial to delete, with its model kept or not."""
    return (CHECKPOINT,) if kept else (CHECKPOINT, BEST, SAMPLE)
