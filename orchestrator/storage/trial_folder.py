"""The files of a trial: their names, and their paths in its folder."""

from collections.abc import Iterable
from dataclasses import dataclass
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


@dataclass(frozen=True)
class TrialPaths:
    """The paths of a trial's folder, or of one of its folds."""

    folder: Path

    @property
    def checkpoint(self) -> Path:
        """The complete state for an exact resume."""
        return self.folder / CHECKPOINT

    @property
    def best(self) -> Path:
        """The model at its best validation."""
        return self.folder / BEST

    @property
    def model(self) -> Path:
        """The model at the end of a training without held-out classes."""
        return self.folder / MODEL

    @property
    def trained_model(self) -> Path:
        """The model that is tested: of the end where the training held nothing out, else of the best validation."""
        return self.model if self.model.exists() else self.best

    @property
    def diagnostics(self) -> Path:
        """The folder of the method's arrays and tables."""
        return self.folder / DIAGNOSTICS

    @property
    def insight(self) -> Path:
        """The folder of tables on a model."""
        return self.folder / INSIGHT

    @property
    def class_table(self) -> Path:
        """The measurements of each class."""
        return self.insight / "classes.csv"

    @property
    def sample(self) -> Path:
        """The sample of the embeddings."""
        return self.folder / SAMPLE

    def fold(self, number: int) -> "TrialPaths":
        """Those of one fold."""
        return TrialPaths(self.folder / f"fold-{number}")

    @property
    def models(self) -> "list[TrialPaths]":
        """Those of each of its models: the trial's own, or one per fold."""
        return [TrialPaths(folder) for folder in sorted(self.folder.glob("fold-*"))] or [self]

    @property
    def all(self) -> "list[TrialPaths]":
        """The trial's own, and then those of its folds."""
        return list(dict.fromkeys([self, *self.models]))


def remove_unfinished(folder: Path, names: Iterable[str] = (CHECKPOINT, BEST, MODEL, SAMPLE)) -> None:
    """Remove temporary files of `write_atomically` for these names that a killed process left in a folder."""
    for name in names:
        for path in folder.glob(f".{name}.*"):
            remove_file(path)


def unneeded_files(kept: bool) -> tuple[str, ...]:
    """The files of an ended trial to delete, with its model kept or not."""
    return (CHECKPOINT,) if kept else (CHECKPOINT, BEST, SAMPLE)
