"""Whoever adds a part touches two files: its own, and the table (or the search space) that names it.

The package is copied, a part of each kind is added to the copy, and one process uses all of them as a user would.
"""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

from orchestrator.tracking.projection import Projection, Update

ROOT = Path(__file__).parents[2]
PACKAGES = ("orchestrator", "methods", "search_spaces")


class Part(NamedTuple):
    """A new file with its text; the table's file, and the import and the entry that make its line, after another one's.

    Without a table, `entry` is the text of the second file.
    """

    file: str
    text: str
    table: str
    entry: str
    after: str = ""
    imported: str = ""


PARTS = {
    "method": Part(
        "methods/pull.py",
        '''
"""A method."""

from pydantic import Field
from torch import Generator, Tensor

from methods.distances import cosine_similarity, pair_masks
from orchestrator.method import Batch, Method, MethodConfig, Network


class Pull(Method):
    """Pulls positives together."""

    name = "pull"
    paper = "none"

    class Config(MethodConfig):
        strength: float = Field(1.0, gt=0, description="how strongly")

    config: Config

    def step(self, batch: Batch, network: Network, rng: Generator) -> dict[str, Tensor]:
        z = network(batch.images)["embedding"]
        positive, negative = pair_masks(batch.labels, batch.labels, same=True)
        similarity = cosine_similarity(z, z)
        return {"pull": self.config.strength * ((similarity * negative).mean() - (similarity * positive).mean())}
''',
        "search_spaces/pull.yaml",
        """
method: pull
dataset: dots
settings:
  epochs: 3
  embedding_dim: 4
  classes_per_batch: 2
  images_per_class: 2
  device: cpu
  backbone: patches
  augmentation: flipped
  optimizer: plain
  lr_schedule: root
  batches: in_order
space:
  strength: {low: 0.5, high: 2.0}
num_trials: 2
scheduler: {name: threshold, least: 1000.0}
objective: val/first_place
final: false
""",
    ),
    "scheduler": Part(
        "orchestrator/config/schedulers/threshold.py",
        '''
"""A scheduler."""

from types import ModuleType
from typing import Any, ClassVar

from orchestrator.config.schedulers.base import Scheduler


class Threshold(Scheduler):
    """Stops a trial that is below a value, from its second validation on."""

    name: ClassVar[str] = "threshold"
    least: float = 0.0

    @property
    def first_stop(self) -> int:
        return 2

    def pruners(self, optuna: ModuleType, validations: int | None) -> list[Any]:
        return [optuna.ThresholdPruner(lower=self.least, n_warmup_steps=self.first_stop)]
''',
        "orchestrator/config/schedulers/__init__.py",
        "        Threshold,",
        "        Hyperband,",
        "from orchestrator.config.schedulers.threshold import Threshold\n",
    ),
    "algorithm": Part(
        "orchestrator/config/algorithms/forest.py",
        '''
"""An algorithm."""

from types import ModuleType
from typing import Any, ClassVar

from orchestrator.config.algorithms.base import Algorithm, Draw


class Separate(Algorithm):
    """Each setting by itself."""

    name: ClassVar[str] = "separate"
    objectives: ClassVar[tuple[int, ...]] = (1,)

    def sampler(self, optuna: ModuleType, draw: Draw) -> Any:
        return optuna.TPESampler(seed=draw.seed, multivariate=False)
''',
        "orchestrator/config/algorithms/__init__.py",
        "        Separate(),",
        "        Random(),",
        "from orchestrator.config.algorithms.forest import Separate\n",
    ),
    "backbone": Part(
        "orchestrator/networks/backbones/patches.py",
        '''
"""A backbone."""

from typing import TYPE_CHECKING

from orchestrator.networks.backbones.base import Architecture

if TYPE_CHECKING:
    from orchestrator.networks.backbones.network import Backbone


def patches(channels: int, class_token: bool = False) -> "Backbone":
    from torch import nn

    from orchestrator.networks.backbones.network import Backbone

    body = nn.Conv2d(channels, 6, 4, stride=4)
    return Backbone(body, feature_dim=6, channels=channels, mean=[0.5] * channels, std=[0.5] * channels, layers=None)


PATCHES = Architecture(name="patches", about="patches, 6 features", build=patches)
''',
        "orchestrator/networks/backbones/__init__.py",
        "        PATCHES,",
        "        SMALL_CNN,",
        "from orchestrator.networks.backbones.patches import PATCHES\n",
    ),
    "importer": Part(
        "orchestrator/data/archives/dots.py",
        '''
"""An archive."""

from pathlib import Path

from orchestrator.data.archives.listing import Archive, Count, Counts, Listing, Picture, archive_root


def read_dots(source: Path) -> Listing:
    import numpy as np

    root = archive_root(source, ["dots.npy"], "dots")
    pixels = np.load(root / "dots.npy")
    pictures = [Picture(f"{row:02d}", row // 8 + 1, pixels=image) for row, image in enumerate(pixels)]
    return Listing(root, {label: f"dot {label}" for label in range(1, 9)}, pictures)


DOTS = Archive("dots", "dots, for a test", "https://dots.example", read_dots, Counts(Count(64, 8)), pixels=True)
''',
        "orchestrator/data/archives/catalog.py",
        "        DOTS,",
        "        CUB200,",
        "from orchestrator.data.archives.dots import DOTS\n",
    ),
    "metric": Part(
        "orchestrator/evaluation/measures/first_place.py",
        '''
"""A metric."""

from orchestrator.evaluation.measures.base import Floats, Metric, Ranked


def _first_place(ranked: Ranked) -> Floats:
    import numpy as np

    first = np.full(len(ranked.relevant_Q), float(ranked.gallery))
    np.minimum.at(first, ranked.query_H, ranked.place_H)
    return first


FIRST_PLACE = Metric(
    name="first_place",
    label="first place",
    about="place of the nearest item of the same class, from 0",
    share=False,
    larger_is_better=False,
    headline=True,
    beside=True,
    by_class=True,
    by_query=_first_place,
)
''',
        "orchestrator/evaluation/measures/__init__.py",
        "    FIRST_PLACE,",
        "    MAP_AT_1000,",
        "from orchestrator.evaluation.measures.first_place import FIRST_PLACE\n",
    ),
    "augmentation": Part(
        "orchestrator/data/augmentations/flipped.py",
        '''
"""An augmentation."""

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor


def apply(images: Tensor, draws: NDArray[np.float64]) -> Tensor:
    """Half of the images upside down."""
    chosen = torch.from_numpy(draws[:, 0] < 0.5)
    return torch.where(chosen[:, None, None, None], images.flip(2), images)
''',
        "orchestrator/data/augmentations/__init__.py",
        '    "flipped",',
        '    "affine",',
    ),
    "optimiser": Part(
        "orchestrator/config/optimizers/plain.py",
        '''
"""An optimiser."""

from typing import TYPE_CHECKING, Any

from orchestrator.config.optimizers.base import Optimizer, Settings

if TYPE_CHECKING:
    import torch


def build(groups: list[dict[str, Any]], settings: Settings, fused: bool) -> "torch.optim.Optimizer":
    import torch

    return torch.optim.SGD(groups, weight_decay=settings.weight_decay)


PLAIN = Optimizer("plain", "SGD without momentum", build)
''',
        "orchestrator/config/optimizers/__init__.py",
        "        PLAIN,",
        "        ADAMW,",
        "from orchestrator.config.optimizers.plain import PLAIN\n",
    ),
    "schedule": Part(
        "orchestrator/config/lr_schedules/root.py",
        '''
"""A schedule."""

from orchestrator.config.lr_schedules.base import LRSchedule, Moment, Settings


def factor(settings: Settings, moment: Moment) -> float:
    """1 / sqrt(step)"""
    return float((1 + moment.step) ** -0.5)


ROOT = LRSchedule("root", "one over the root of the step", factor)
''',
        "orchestrator/config/lr_schedules/__init__.py",
        "        ROOT,",
        "        PLATEAU,",
        "from orchestrator.config.lr_schedules.root import ROOT\n",
    ),
    "batches": Part(
        "orchestrator/data/batches/in_order.py",
        '''
"""Batches."""

from typing import TYPE_CHECKING

from orchestrator.data.batches.base import Batching, Sampler, Settings, Source

if TYPE_CHECKING:
    from orchestrator.data.batches.base import Centres, Positions


class InOrder:
    """The images in their order."""

    def __init__(self, images: int, size: int) -> None:
        self.size, self.steps_per_epoch = size, images // size

    def batches(self, epoch: int, centres: "Centres | None" = None) -> "Positions":
        import numpy as np

        return np.arange(self.steps_per_epoch * self.size).reshape(-1, self.size)


def build(source: Source, settings: Settings) -> Sampler:
    return InOrder(len(source.labels), settings.classes_per_batch * settings.images_per_class)


IN_ORDER = Batching("in_order", "images in their order", build)
''',
        "orchestrator/data/batches/__init__.py",
        "        IN_ORDER,",
        "        SHUFFLED,",
        "from orchestrator.data.batches.in_order import IN_ORDER\n",
    ),
    "format": Part(
        "orchestrator/report/formats/lines.py",
        '''
"""A format of reports."""

from orchestrator.report.comparison import Comparison
from orchestrator.report.findings import Findings
from orchestrator.report.formats.base import Format
from orchestrator.report.formats.leaders import leaders
from orchestrator.storage.ledger import Ledger


def _leaderboard(ledger: Ledger) -> str:
    heads, rows = leaders(Findings.of(ledger))
    return "".join(f"{heads[0]}={cells[0]} {heads[1]}={cells[1]}\\n" for _, cells, _ in rows)


FORMAT = Format(_leaderboard, lambda comparison: comparison.name)
''',
        "orchestrator/report/formats/__init__.py",
        '    "lines",',
        '    "latex",',
    ),
}

USE = """
import contextlib, io, json
from pathlib import Path

import orchestrator.cli.search
import orchestrator.search.driver
from orchestrator.cli.main import main
from orchestrator.execution.inline import InlineRunner
from support.memory_tracking import MemoryTracker

orchestrator.cli.search.runner_at = lambda *_: InlineRunner()  # the rest is as a user has it, but for MLflow
orchestrator.cli.search.beside_ray = lambda resolve, *_: contextlib.nullcontext(resolve())
orchestrator.search.driver.MLflowTracker = lambda path, uri, artifacts: MemoryTracker(path)
said = {"package": [0, orchestrator.search.driver.__file__, ""]}
for name, line in json.loads(Path("commands.json").read_text()).items():
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            main(line.split())
        except SystemExit as ended:
            code = ended.code
    said[name] = [code, out.getvalue(), err.getvalue()]
print(json.dumps(said))
"""

COMMANDS = {
    "help": "search --help",
    "report help": "report --help",
    "method": "methods pull",
    "archives": "datasets",
    "prepare": "datasets prepare dots --source archive --storage runs --workers 1",
    "search": "search pull --name one --storage runs",
    "report": "report one --storage runs",
    "json": "report one --storage runs --json",
    "lines": "report one --storage runs --format lines",
    "separate": "search pull --name two --storage runs --algorithm separate --scheduler none --num-trials 1",
    "no such scheduler": "search pull --scheduler treshold --storage runs --dry-run",
    "unlisted scheduler": "search pull --scheduler unlisted --storage runs --dry-run",
    "key of another": "search wrong.yaml --storage runs --dry-run",
    "no such format": "report one --storage runs --format line",
}


def add(root: Path, part: Part) -> None:
    for name, text in ((part.file, part.text), *(() if part.after else ((part.table, part.entry),))):
        path = root / name
        assert not path.exists()
        path.write_text(text.lstrip(), encoding="utf-8")
    if part.after:
        table = root / part.table
        text = table.read_text(encoding="utf-8")
        first = text.index("from orchestrator.")
        assert text.count(part.after) == 1
        text = f"{text[:first]}{part.imported}{text[first:]}".replace(part.after, f"{part.after}\n{part.entry}")
        table.write_text(text, encoding="utf-8")


def contents(root: Path) -> dict[str, str]:
    return {
        str(path.relative_to(root)): path.read_text(encoding="utf-8")
        for package in PACKAGES
        for path in (root / package).rglob("*")
        if path.suffix in (".py", ".yaml")
    }


@pytest.fixture(scope="module")
def copied(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, list[str]]]:
    """A copy of the package with the parts, and the files that each part changed."""
    root = tmp_path_factory.mktemp("copy")
    for package in PACKAGES:
        shutil.copytree(ROOT / package, root / package, ignore=shutil.ignore_patterns("__pycache__"))
    changed, before = {}, contents(root)
    for kind, part in PARTS.items():
        add(root, part)
        after = contents(root)
        changed[kind] = [name for name in after if after[name] != before.get(name)]
        before = after
    for name, line, new in (  # a key of a search file is a description and a field
        ("keys", "KEYS = {\n", '    "patience": Key("how long", "how long", bounds={"ge": 1}),\n'),
        (
            "search",
            '    seed: Annotated[int, _field("seed")] = 0\n',
            '    patience: Annotated[int, _field("patience")] = 1\n',
        ),
    ):
        file = root / f"orchestrator/config/{name}.py"
        text = file.read_text(encoding="utf-8")
        assert line in text
        file.write_text(text.replace(line, line + new), encoding="utf-8")
    unlisted = PARTS["scheduler"].text.replace("threshold", "unlisted")  # the mistake: a file without its line
    (root / "orchestrator/config/schedulers/unlisted.py").write_text(unlisted.lstrip(), encoding="utf-8")
    return root, changed


@pytest.fixture(scope="module")
def said(copied: tuple[Path, dict[str, list[str]]]) -> Mapping[str, Any]:
    """What the commands answer: code, stdout, stderr."""
    root, _ = copied
    rng = np.random.default_rng(0)
    (root / "archive" / "dots").mkdir(parents=True)
    colours = rng.integers(0, 200, (8, 1, 1, 1, 3)) + rng.integers(0, 56, (8, 8, 8, 8, 3))
    np.save(root / "archive" / "dots" / "dots.npy", colours.reshape(64, 8, 8, 3).astype(np.uint8))
    wrong = PARTS["method"].entry.replace("least: 1000.0", "reduction_factor: 2, least: many")
    (root / "wrong.yaml").write_text(f"{wrong.strip()}\npatience: 0\n", encoding="utf-8")
    (root / "commands.json").write_text(json.dumps(COMMANDS), encoding="utf-8")
    paths = os.pathsep.join([str(root), str(ROOT / "tests")])
    environment = os.environ | {"PYTHONPATH": paths, "COLUMNS": "200", "PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run(
        [sys.executable, "-c", USE], cwd=root, env=environment, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    answers: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    assert Path(answers["package"][1]).is_relative_to(root)
    return answers


def answer(said: Mapping[str, Any], name: str, code: int = 0) -> str:
    found, out, err = said[name]
    assert found == code, f"{name}: {out}\n{err}"
    return str(out if code == 0 else err)


def test_no_part_takes_more_than_two_files(copied: tuple[Path, dict[str, list[str]]]) -> None:
    for kind, files in copied[1].items():
        assert sorted(files) == sorted([PARTS[kind].file, PARTS[kind].table]), kind


@pytest.mark.slow
def test_help_names_the_parts(said: Mapping[str, Any]) -> None:
    shown = " ".join(answer(said, "help").replace("│", " ").split())
    assert (
        "asha, promotion, forecast, median, hyperband, threshold, population or none, in place of the file's." in shown
    )
    assert "tpe, gp, cmaes, nsga2, qmc, random, separate or grid, in place of the file's." in shown
    assert "<table|markdown|csv|latex|lines>" in answer(said, "report help")
    assert "strength" in answer(said, "method")
    assert "dots, for a test" in answer(said, "archives")


@pytest.mark.slow
def test_the_parts_work_in_a_search(said: Mapping[str, Any], copied: tuple[Path, dict[str, list[str]]]) -> None:
    assert "64 images of 8 classes" in answer(said, "prepare")
    answer(said, "search")
    journal = (copied[0] / "runs/searches/one/journal.jsonl").read_text(encoding="utf-8")
    events = [json.loads(line) for line in journal.splitlines()]
    assert events[0]["config"]["scheduler"]["least"] == 1000.0
    assert events[0]["objective"] == {"metric": "val/first_place", "mode": "min"}
    assert [event["state"] for event in events if event["event"] == "trial_ended"] == ["pruned", "pruned"]
    updates: dict[str | None, Update] = {}
    projection = Projection()
    for event in events:
        projection.take(event, updates)
    for trial_id in ("0000", "0001"):  # MLflow compares trials at the scheduler's first stop
        points = {point.key: point.value for point in updates[trial_id].points}
        curve = [
            event["metrics"]["val/first_place"]
            for event in events
            if event.get("trial_id") == trial_id and "validation" in event
        ]
        assert points["best_at_2/val_first_place"] == min(curve)
    trials = json.loads(answer(said, "json").splitlines()[-1])["trials"]
    assert [trial["validations"] for trial in trials] == [2, 2]
    assert all(0 <= trial["objective"] < 30 for trial in trials)
    head = next(line for line in answer(said, "report").splitlines() if "trial" in line and "state" in line)
    assert "first_place" in head and "first place" in head
    assert answer(said, "lines") == "".join(f"trial={trial['trial_id']} state=pruned\n" for trial in trials)
    answer(said, "separate")


@pytest.mark.slow
def test_what_has_no_line_is_refused_by_name(said: Mapping[str, Any]) -> None:
    assert "'treshold' is unknown (did you mean 'threshold'?)" in answer(said, "no such scheduler", 2)
    refused = answer(said, "unlisted scheduler", 2)
    known = "asha, auto, forecast, hyperband, median, none, population, promotion, threshold"
    assert f"'unlisted' is unknown (known: {known})" in refused
    refused = answer(said, "key of another", 2)
    assert (
        "reduction_factor: has no meaning for 'threshold' (it is for asha, promotion, forecast, hyperband)" in refused
    )
    assert "scheduler: least: 'many': should be a number" in refused
    assert "wrong.yaml, line 20: patience: 0: should be at least 1" in refused
    assert "--format: 'line' is unknown (did you mean 'lines'?)" in answer(said, "no such format", 2)
