"""How soon each search algorithm comes to 99% of the best value, from `benchmarks/algorithms.json`.

    python docs/pictures/algorithms.py [PICTURE]

One panel per task of the tabular benchmark, one line per algorithm, without early stops: the median over seeds, and the
quartiles. An algorithm that cannot search a task has no mark there.
"""

import argparse
import json
import statistics
from pathlib import Path
from typing import Any

import matplotlib as mpl

mpl.use("svg")
import matplotlib.pyplot as plt

HERE = Path(__file__).resolve()
SHARES = HERE.parents[2] / "benchmarks" / "algorithms.json"
TASKS = {
    "proxy_anchor": "ProxyAnchor",
    "margin": "margin",
    "multi_similarity": "multi-similarity",
    "contrastive": "contrastive",
}
WAYS = {"gp": "Gaussian process", "tpe": "TPE", "cmaes": "CMA-ES", "random": "random points", "qmc": "Sobol points"}
SLOTS = {1: ("#0b5394", "o", "one at a time"), 8: ("#e07b00", "s", "eight at a time")}


def draw(rows: list[dict[str, Any]], path: Path) -> None:
    shares = {(row["task"], row["way"], row["slots"]): row["shares"] for row in rows}
    plt.rcParams.update({"font.size": 11, "svg.fonttype": "path", "svg.hashsalt": "algorithms"})
    figure, panels = plt.subplots(2, 2, figsize=(7.2, 5.6), sharex=True, sharey=True, layout="constrained")
    for panel, (task, title) in zip(panels.flat, TASKS.items(), strict=True):
        for place, way in enumerate(WAYS):
            for slots, (colour, marker, label) in SLOTS.items():
                if (task, way, slots) not in shares:
                    continue
                low, middle, high = statistics.quantiles(shares[task, way, slots], n=4)
                height = place + (0.15 if slots > 1 else -0.15)
                panel.plot([low, high], [height, height], color=colour, linewidth=2)
                panel.plot(middle, height, marker, color=colour, markersize=6, label=label if place == 0 else None)
            if not any((task, way, slots) in shares for slots in SLOTS):
                panel.text(0.02, place, "cannot search it", va="center", color="#666666", fontsize=9)
        panel.set_title(title, fontsize=11)
        panel.set_xlim(0, 1)
        panel.grid(axis="x", color="#dddddd")
        panel.set_axisbelow(True)
    panels[0, 0].set_yticks(range(len(WAYS)), WAYS.values())
    panels[0, 0].invert_yaxis()
    figure.supxlabel("epochs until 99% of the best, as a share of those of all points", fontsize=11)
    panels[0, 0].legend(loc="upper right", fontsize=9)
    figure.savefig(path, metadata={"Date": None})


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("picture", nargs="?", type=Path, default=HERE.with_suffix(".svg"))
    draw(json.loads(SHARES.read_text("utf-8")), parser.parse_args().picture)
