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
from typing import Any

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
COLOURS: dict[str, Any] = {"cmap": "tab10", "vmin": 0, "vmax": 9}


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

    @property
    def worst_covered(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Lines from each class's worst covered image to its nearest proxy, x and y (2, classes): the covering radius
        is their mean length."""
        ends = []
        for label in self.labels.unique():
            own, centres = self.points[self.labels == label], self.converged[self.proxy_labels == label]
            distance, nearest = torch.cdist(own, centres).min(1)
            ends.append(torch.stack([own[distance.argmax()], centres[nearest[distance.argmax()]]]))
        x, y = torch.stack(ends).permute(2, 1, 0)
        return x, y


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
    """One panel per problem, two in a row."""
    rows = -(-len(solved) // 2)
    figure, axes = plt.subplots(rows, 2, figsize=(9, 4.8 * rows + 0.6), squeeze=False, layout="constrained")
    for axis in axes.flat[len(solved) :]:
        axis.remove()
    for number, (axis, problem) in enumerate(zip(axes.flat, solved, strict=False), start=1):
        axis.add_patch(plt.Circle((0, 0), 1, fill=False, color="0.8", linewidth=1))
        axis.plot(*problem.worst_covered, color="0.2", linewidth=1.2, solid_capstyle="round")
        axis.scatter(*problem.points.T.tolist(), c=problem.labels, s=9, alpha=0.45, linewidths=0, **COLOURS)
        squares = {"marker": "s", "s": 70, "edgecolors": "black", "linewidths": 1.2, "zorder": 3}
        axis.scatter(*problem.converged.T.tolist(), c=problem.proxy_labels, **squares, **COLOURS)
        rings = {"marker": "o", "s": 60, "edgecolors": "black", "linewidths": 1.2, "zorder": 4}
        axis.scatter(*problem.following.T.tolist(), c=problem.proxy_labels, **rings, **COLOURS)
        axis.set_title(
            f"problem {number}: {problem.steps} steps\ncovering radius {problem.radius:.3f}, MAP@R {problem.score:.3f}",
            fontsize=13,
        )
        axis.set(aspect="equal", xticks=[], yticks=[], xlim=(-1.06, 1.06), ylim=(-1.06, 1.06))
        axis.axis("off")
    black = {"color": "0.6", "markeredgecolor": "black", "linestyle": "none"}
    handles = [
        plt.Line2D(
            [], [], marker=".", color="0.6", linestyle="none", markersize=8, label="image, coloured by its class"
        ),
        plt.Line2D([], [], marker="s", markersize=9, label="converged proxy", **black),
        plt.Line2D([], [], marker="o", markersize=9, label="proxy of the next problem", **black),
        plt.Line2D([], [], color="0.2", linewidth=1.5, label="a class's worst covered image, and its nearest proxy"),
    ]
    figure.legend(handles=handles, loc="outside lower center", ncols=2, fontsize=12, frameon=False)
    figure.savefig(picture, dpi=90)


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
