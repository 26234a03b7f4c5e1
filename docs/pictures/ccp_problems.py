"""CCP's problems in the plane, as in the paper's Figure 2, on the small set of embedded glyphs.

    python docs/pictures/ccp_problems.py [PICTURE] [--data FOLDER] [--problems N] [--proxies M]

One panel per problem: the training images of eight classes, embedded in two dimensions by the problem's best network;
squares are its converged proxies, circles the next ones, chosen by k-center. Embeddings are shortened to length 1, so
that what is left of the plane is an angle: it is drawn along a line per class. As in the paper's figure, MAP@R is that
of other images of the same classes: a plane has no room for classes never seen. Takes a minute or two on a CPU.
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
from orchestrator.config.training import resolve_experiment
from orchestrator.data.catalog import open_dataset
from orchestrator.data.splits import class_split, train_labels
from orchestrator.storage.trial_folder import CHECKPOINT
from orchestrator.training.embed import run_network
from orchestrator.training.loop import fit
from orchestrator.training.model_file import load_learner

mpl.use("agg")
import matplotlib.pyplot as plt
from matplotlib.lines import Line2D

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


def solve(data: Path, problems: int, proxies: int) -> tuple[list[Problem], list[str]]:
    """Train CCP, and look at it whenever a problem ends: the checkpoint then holds its best, and the next proxies.

    Returns the problems and the classes' characters.
    """
    store = open_dataset("glyphs-small", data)
    split = class_split(store, validation_share=0, seed=0)
    classes = np.unique(store.labels[split.train])[:CLASSES]
    few = split.train[np.isin(store.labels[split.train], classes)]
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
    return solved, [store.class_names[label].split()[0] for label in classes]


def draw(solved: list[Problem], characters: list[str], picture: Path) -> None:
    """One panel per problem, two in a row: each class has a line, and along it goes the angle."""
    rows = -(-len(solved) // 2)
    figure, axes = plt.subplots(rows, 2, figsize=(10, 3.9 * rows + 0.7), squeeze=False, layout="constrained")
    for axis in axes.flat[len(solved) :]:
        axis.remove()
    for number, (axis, problem) in enumerate(zip(axes.flat, solved, strict=False), start=1):
        middle = problem.points.mean(0)  # of the images: 0 degrees
        points, converged, following = (
            degrees(part, middle) for part in (problem.points, problem.converged, problem.following)
        )
        for label in range(CLASSES):
            own, its = points[problem.labels == label], problem.proxy_labels == label
            lane, colour = -label, f"C{label}"
            worst, nearest = worst_covered(own, converged[its])
            axis.plot([worst, nearest], [lane, lane], color="0.25", linewidth=2, solid_capstyle="butt", zorder=1)
            axis.scatter(own, np.full(len(own), lane), s=70, marker="|", color=colour, alpha=0.5, linewidths=1.5)
            style = {"edgecolors": "black", "linewidths": 1}
            axis.scatter(converged[its], np.full(its.sum(), lane + 0.2), s=42, marker="s", color=colour, **style)
            axis.scatter(following[its], np.full(its.sum(), lane - 0.2), s=42, marker="o", color=colour, **style)
        axis.set_title(
            f"problem {number}: {problem.steps} steps, MAP@R {problem.score:.2f}, covering radius {problem.radius:.2f}",
            fontsize=11.5,
        )
        axis.set_yticks(-np.arange(CLASSES), characters, fontsize=13)
        axis.tick_params(axis="x", labelsize=10)
        axis.xaxis.set_major_formatter("{x:.0f}°")
        axis.grid(axis="y", color="0.9")
        axis.set_axisbelow(True)
        axis.spines[["top", "right", "left"]].set_visible(False)
    marker: dict[str, Any] = {"color": "0.6", "markeredgecolor": "black", "linestyle": "none", "markersize": 8}
    handles = [
        Line2D([], [], marker="|", color="0.5", linestyle="none", markersize=10, label="training image"),
        Line2D([], [], marker="s", label="converged proxy", **marker),
        Line2D([], [], marker="o", label="proxy of the next problem", **marker),
        Line2D([], [], color="0.25", linewidth=2, label="from a class's worst covered image to its nearest proxy"),
    ]
    figure.legend(handles=handles, loc="outside lower center", ncols=2, fontsize=11, frameon=False)
    figure.savefig(picture, dpi=90)


def degrees(points: torch.Tensor, middle: torch.Tensor) -> torch.Tensor:
    """Angles (N,) of points (N, 2) to a direction (2,), from -180 to 180."""
    angle = torch.atan2(points[:, 1], points[:, 0]) - torch.atan2(middle[1], middle[0])
    return torch.rad2deg(torch.remainder(angle + torch.pi, 2 * torch.pi) - torch.pi)


def worst_covered(points: torch.Tensor, proxies: torch.Tensor) -> tuple[float, float]:
    """Of one class's angles, that of the image farthest from all proxies, and that of its nearest proxy."""
    apart = (points[:, None] - proxies).abs()
    distance, nearest = torch.minimum(apart, 360 - apart).min(1)
    worst = int(distance.argmax())
    return points[worst].item(), proxies[nearest[worst]].item()


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("picture", nargs="?", type=Path, default=Path("ccp_problems.png"))
    parser.add_argument("--data", type=Path, default=Path("runs/data"), help="folder of the data sets")
    parser.add_argument("--problems", type=int, default=4)
    parser.add_argument("--proxies", type=int, default=4, help="proxies per class M")
    given = parser.parse_args()
    solved, characters = solve(given.data, given.problems, given.proxies)
    for number, problem in enumerate(solved, start=1):
        print(f"problem {number}: {problem.steps} steps, covering radius {problem.radius:.4f}, {problem.score:.4f}")
    draw(solved, characters, given.picture)


if __name__ == "__main__":
    main()
