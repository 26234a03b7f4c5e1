"""CCP's problems in the plane, as in the paper's Figure 2, on the small set of embedded glyphs.

    python docs/pictures/ccp_problems.py [PICTURE] [--data FOLDER] [--problems N] [--proxies M]

One panel per problem: the training images of eight classes, embedded in two dimensions by the problem's best network;
squares are its converged proxies, circles the next ones, chosen by k-center. As in the paper's figure, MAP@R is that of
other images of the same classes: a plane has no room for classes never seen. Takes a minute or two on a CPU.
"""

import argparse
import dataclasses
import tempfile
from pathlib import Path

import matplotlib as mpl
import numpy as np
import torch

from methods.ccp import CCP, covering_radius, lipschitz_normalize
from orchestrator.checkpoint import CHECKPOINT
from orchestrator.data.catalog import open_dataset
from orchestrator.data.splits import class_split, train_labels
from orchestrator.loop import fit, load_learner, run_network
from orchestrator.spec import resolve_experiment

mpl.use("agg")
import matplotlib.pyplot as plt

CLASSES = 8


@dataclasses.dataclass(frozen=True)
class Problem:
    """What a problem ended with, all in the plane and normalised."""

    steps: int
    score: float
    points: torch.Tensor
    labels: torch.Tensor
    converged: torch.Tensor
    following: torch.Tensor
    proxy_labels: torch.Tensor

    @property
    def radius(self) -> float:
        """Covering radius of the training images by the converged proxies."""
        return covering_radius(self.points, self.labels, self.converged, self.proxy_labels)


def solve(data: Path, problems: int, proxies: int) -> list[Problem]:
    """Train CCP, and look at it whenever a problem ends: the checkpoint then holds its best, and the next proxies."""
    store = open_dataset("glyphs-small", data)
    split = class_split(store, validation_share=0, seed=0)
    few = split.train[np.isin(store.labels[split.train], np.unique(store.labels[split.train])[:CLASSES])]
    held_out = np.arange(len(few)) % 4 == 0
    split = dataclasses.replace(split, train=few[~held_out], validation=few[held_out])
    few = split.train
    settings = {
        "method": "ccp",
        "dataset": "glyphs-small",
        "embedding_dim": 2,
        "objective": "triplet",  # which learns in a plane
        "margin": 0.3,
        "proxies_per_class": proxies,
        "pool_size": 16,
        "problems": problems + 1,  # the last one draws no new proxies
        "classes_per_batch": CLASSES,
        "validate_every": "20 steps",
        "lr": 3e-3,
        "epochs": 1000,
        "device": "cpu",
    }
    solved: list[Problem] = []
    with tempfile.TemporaryDirectory() as folder:
        checkpoint = Path(folder) / CHECKPOINT
        scores: list[float] = []
        for validation in fit(resolve_experiment(settings, "picture"), store, split, folder=checkpoint.parent):
            scores.append(validation.metrics["val/map_at_r"])
            learner, _ = load_learner(checkpoint, store)
            method = learner.method
            assert isinstance(method, CCP)
            if int(method.problem) == len(solved) + 1:
                continue
            points = run_network(learner, store, few, torch.device("cpu"))["embedding"]
            (converged,) = method.best_proxies.buffers()
            solved.append(
                Problem(
                    int(validation.metrics["diagnostics/problem_steps"]),
                    max(scores),
                    points,
                    torch.from_numpy(train_labels(store, few)),
                    lipschitz_normalize(converged),
                    lipschitz_normalize(method.proxies.weight.detach()),
                    method.proxies.labels,
                )
            )
            scores = []
            if len(solved) == problems:
                break
    return solved


def draw(solved: list[Problem], picture: Path) -> None:
    """One panel per problem."""
    figure, axes = plt.subplots(1, len(solved), figsize=(4 * len(solved), 4.3), squeeze=False)
    for number, (axis, problem) in enumerate(zip(axes[0], solved, strict=True), start=1):
        for rows, labels, style in (
            (problem.points, problem.labels, {"marker": ".", "s": 12, "alpha": 0.5, "linewidths": 0}),
            (problem.converged, problem.proxy_labels, {"marker": "s", "s": 45, "edgecolors": "black"}),
            (problem.following, problem.proxy_labels, {"marker": "o", "s": 45, "edgecolors": "black"}),
        ):
            axis.scatter(*rows.T.tolist(), c=labels, cmap="tab10", **style)
        axis.set_title(
            f"problem {number}, {problem.steps} steps\ncovering radius {problem.radius:.3f}, MAP@R {problem.score:.3f}"
        )
        axis.set_aspect("equal")
        axis.set(xticks=[], yticks=[])
    figure.tight_layout()
    figure.savefig(picture, dpi=80)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("picture", nargs="?", type=Path, default=Path("ccp_problems.png"))
    parser.add_argument("--data", type=Path, default=Path("runs/data"), help="folder of the data sets")
    parser.add_argument("--problems", type=int, default=4)
    parser.add_argument("--proxies", type=int, default=4, help="proxies per class M")
    given = parser.parse_args()
    solved = solve(given.data, given.problems, given.proxies)
    for number, problem in enumerate(solved, start=1):
        print(f"problem {number}: {problem.steps} steps, covering radius {problem.radius:.4f}, {problem.score:.4f}")
    draw(solved, given.picture)


if __name__ == "__main__":
    main()
