"""What a model's page shows, read from its files."""

import base64
import contextlib
import io
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from orchestrator.evaluation.confusions import Table
from orchestrator.evaluation.insight import Insight, neighbour_map
from orchestrator.evaluation.measures import HEADLINES
from orchestrator.report.claims import test_texts
from orchestrator.report.confused import DAMAGED, read_table
from orchestrator.report.learning import data_lines, held_out_set, judge, test_set
from orchestrator.storage.events import Event, Validation
from orchestrator.storage.ledger import Ledger
from orchestrator.storage.opening import open_file
from orchestrator.storage.trial_folder import TrialPaths
from orchestrator.storage.trial_record import TrialRecord
from orchestrator.text import params_text

if TYPE_CHECKING:
    from orchestrator.data.store import Store

CURVES = "diagnostics/"
THUMBNAIL, TILE = 64, 40
"""Pixels of the longer side: in the gallery, and of a point of the map."""
WEIGHT_COLUMNS = ("axis", "value", "weight", "deviation")
"""Of a table `gradient_weights_...`: an axis, and of each bin the mean on it, the mean weight, the deviation."""
PAIR_COLUMNS = ("sample_1", "sample_2", "label_1", "label_2", "level_1", "level_2", "uncertainty")
"""Of a table `certain_pairs`."""
SHOWN_PAIRS = 12


@dataclass(frozen=True)
class View:
    """What a model's page is made of.

    `told` are the lines under the title, the most important first; `image` returns an image's pixels, uint8
    (H, W, channels), by its row in the data set; `curves` are numbers per validation, by name; `proxies` the
    similarities of all pairs of proxies. `gradient_weights` has for each set of images, by its name, the columns
    WEIGHT_COLUMNS; `certain_pairs` has the columns PAIR_COLUMNS: rows of the data set, classes and
    levels of both, and the pair's uncertainty.
    """

    title: str
    facts: Sequence[str]
    told: Sequence[str]
    insight: Insight
    names: Sequence[str]
    image: Callable[[int], NDArray[np.uint8]]
    curves: Mapping[str, Sequence[float]] = field(default_factory=dict)
    proxies: NDArray[np.floating[Any]] | None = None
    gradient_weights: Mapping[str, Table] = field(default_factory=dict)
    certain_pairs: Table | None = None
    neighbour_map: bool = True
    """Whether t-SNE, which takes seconds, is among its maps."""

    @cached_property
    def near(self) -> NDArray[np.floating[Any]] | None:
        """The sample's places by t-SNE, computed once; see `neighbour_map`."""
        return neighbour_map(self.insight.embedding_PD) if self.neighbour_map else None

    @cached_property
    def thumbnails(self) -> dict[int, Image.Image]:
        """Thumbnails of all images of the gallery and of the pairs that are shown, by row."""
        rows = {*self.insight.query_K.tolist(), *self.insight.neighbour_KN.ravel().tolist()}
        if self.certain_pairs is not None:
            rows |= {row for side in PAIR_COLUMNS[:2] for row in self.certain_pairs[side][:SHOWN_PAIRS]}
        return {row: thumbnail(self.image(row), THUMBNAIL) for row in sorted(rows)}


def model_view(
    ledger: Ledger,
    trial: TrialRecord,
    folder: Path,
    store: "Store",
    events: Sequence[Event],
    *,
    neighbour_map: bool = True,
) -> View | None:
    """The view of a trial's model, from the files in the search's `folder` and its journal; None if the trial left
    nothing to see."""
    place = folder / "trials" / trial.trial_id
    insight = read_insight(place)
    if insight is None:
        return None
    settings = trial.settings
    what = "final model" if trial.kind == "final" else f"trial {trial.trial_id}"
    if trial.test:
        where = "Test (selection: test)" if ledger.selection == "test" else "Test on classes never seen before"
        scores = {name: value for name, value in trial.test.items() if name in HEADLINES}
    else:
        where = f"Held-out classes, validation {trial.best_validation} of {trial.validations}"
        scores = {name: v for name, v in trial.best_metrics.items() if name.removeprefix("val/") in HEADLINES}
    texts = {name: f"{value:.4f}" for name, value in scores.items()}
    texts |= {name: text for name, text in test_texts(ledger, trial.test).items() if name in texts}
    lines = [f"{where}: {', '.join(f'{name} {text}' for name, text in texts.items())}."]
    if (judgement := judge(ledger, trial)).bad:
        lines.insert(0, f"It learned nothing: {'; '.join(filter(None, (judgement.why, judgement.diverged)))}.")
    if (of := test_set(ledger) if trial.test else held_out_set(ledger, trial)) is not None:
        lines.append(f"These are {of.size_text}; chance is {of.chance_text()}.")
    lines += data_lines(ledger)
    lines.append(f"{what.capitalize()} of {ledger.name}" + (f": {params_text(trial.params)}." if trial.params else "."))
    facts = [str(settings.get(key)) for key in ("method", "dataset", "backbone")]
    facts += [
        f"{settings.get('embedding_dim')}-D",
        f"{len(insight.classes['class'])} classes",
        f"{insight.images} images",
    ]
    curves: dict[str, list[float]] = {}
    numbers = set()
    for event in events:
        if isinstance(event, Validation) and event.trial_id == trial.trial_id and event.validation not in numbers:
            numbers.add(event.validation)
            for name, value in event.metrics.items():
                if name.startswith(CURVES):
                    curves.setdefault(name.removeprefix(CURVES), []).append(value)
    return View(
        title=f"{ledger.name}: {what}",
        facts=facts,
        told=lines,
        insight=insight,
        names=store.class_names,
        image=store.image,
        curves=curves,
        proxies=_proxy_similarity(place),
        gradient_weights=read_weights(place),
        certain_pairs=read_pairs(place),
        neighbour_map=neighbour_map,
    )


def _proxy_similarity(place: Path) -> NDArray[np.floating[Any]] | None:
    """The proxy similarities that the method saved, of the test or else of the best validation."""
    for model in TrialPaths(place).all:
        for prefix in ("test_", ""):
            with contextlib.suppress(*DAMAGED):
                with open_file(model.diagnostics / f"{prefix}proxy_similarity.npy") as file:
                    matrix = np.load(file, allow_pickle=False)
                if matrix.ndim == 2 and matrix.shape[0] == matrix.shape[1]:
                    return np.asarray(matrix, np.float64)
    return None


def read_weights(place: Path) -> dict[str, Table]:
    """The gradients' weights that the method saved, by the images whose pairs they are of."""
    trained = _method_table(place, WEIGHT_COLUMNS, "gradient_weights_trained")
    tested = _method_table(place, WEIGHT_COLUMNS, "test_gradient_weights_held_out")
    held_out = None if tested else _method_table(place, WEIGHT_COLUMNS, "gradient_weights_held_out")
    by_images = {"training images": trained, "test images": tested, "held-out images": held_out}
    return {images: table for images, table in by_images.items() if table is not None}


def read_pairs(place: Path) -> Table | None:
    """The certain pairs that the method saved, of the test or else of the best validation."""
    return _method_table(place, PAIR_COLUMNS, "test_certain_pairs", "certain_pairs")


def _method_table(place: Path, columns: Sequence[str], *names: str) -> Table | None:
    """The first of these tables that the method saved, with rows and these columns at least."""
    for model in TrialPaths(place).all:
        for name in names:
            with contextlib.suppress(*DAMAGED):
                table = read_table(model.diagnostics / f"{name}.csv")
                if all(table[column] and None not in table[column] for column in columns):
                    return table
    return None


def read_insight(folder: Path) -> Insight | None:
    """The insight that lies beside a model; of a training over folds, that of the folds together, else of the first.
    None if there is none, or only a part of it."""
    for model in TrialPaths(folder).all:
        try:
            with open_file(model.sample) as file, np.load(file, allow_pickle=False) as arrays:
                tables = {name: read_table(model.insight / f"{name}.csv") for name in Insight.TABLES}
                return Insight.of(tables, dict(arrays))
        except DAMAGED:
            continue
    return None


def thumbnail(pixels: NDArray[np.uint8], side: int) -> Image.Image:
    """An image whose longer side has at most `side` pixels; (H, W, 1) is grey, (H, W, 3) coloured."""
    image = Image.fromarray(pixels[..., 0] if pixels.shape[2] == 1 else pixels).convert("RGB")
    image.thumbnail((side, side), Image.Resampling.LANCZOS)
    return image


def image_source(image: Image.Image, quality: int = 80) -> str:
    file = io.BytesIO()
    image.save(file, "WEBP", quality=quality)
    return "data:image/webp;base64," + base64.b64encode(file.getvalue()).decode("ascii")
