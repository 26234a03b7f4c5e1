"""What the files of a trial are called, and which of its folders hold a model."""

from collections.abc import Iterable
from pathlib import Path

CHECKPOINT = "checkpoint.pt"
"""Everything needed to go on exactly; written at each validation."""
BEST = "best.pt"
"""The model at its best validation, without the optimiser."""
DIAGNOSTICS = "diagnostics"
"""The folder of a method's arrays and tables, of the best validation."""
INSIGHT = "insight"
"""The folder of what the best validation, or the test, shows of a model: tables; of the best few a page too."""
IMAGES = "model.html"
"""The page of a model: what it makes of images."""
SAMPLE = "sample.npz"
"""A sample of the embeddings that the insight is of, to draw it from; kept as long as the model."""
MODEL = "model.pt"
"""The model at the end of a training without held-out classes."""


def fold_folder(folder: Path, fold: int) -> Path:
    """Where one fold of a trial keeps its files."""
    return folder / f"fold-{fold}"


def model_folders(folder: Path) -> list[Path]:
    """Where a trial's models lie: in its folder, or in one per fold."""
    return sorted(folder.glob("fold-*")) or [folder]


def remove_unfinished(folder: Path, names: Iterable[str] = (CHECKPOINT, BEST, MODEL, SAMPLE)) -> None:
    """What a killed process left of `write_atomically` of these files in a folder."""
    for name in names:
        for path in folder.glob(f".{name}.*"):
            path.unlink(missing_ok=True)
