"""The states of searches as the terminal shows them; it imports nothing heavy, so that a look is quick."""

import math
import shlex
import time
from collections.abc import Mapping, Sequence
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Group
from rich.table import Table
from rich.text import Text

from orchestrator.storage.ledger import ENDED
from orchestrator.text import counted

STYLES = {"done": "green", "pruned": "yellow", "failed": "red", "interrupted": "magenta", "running": "cyan"}


def short(metric: str) -> str:
    """`val/map_at_r` -> `map@r`, as the head of a narrow column."""
    return metric.removeprefix("val/").replace("_at_", "@")


def planned_trials(most: float, limits: Mapping[str, float]) -> str:
    """`40 trials`, `40 trials, at most 8 hours`, `trials for at most 100 epochs`"""
    ends = " and ".join(f"{limit:g} {key.replace('_', ' ')}" for key, limit in limits.items())
    if math.isinf(most):
        return f"trials until {ends}"
    return counted(int(most), "trial") + (f", until {ends} at most" if ends else "")


def status_text(found: Mapping[str, Any], storage: str) -> Group:
    """A search in a few lines: its state, its budget, the best so far, what runs."""
    counts = "   ".join(f"{count} {state}" for state, count in found["counts"].items() if count)
    head = Text.assemble((found["name"], "bold"), ": ", (found["state"], STYLES.get(found["state"], "")))
    if found["reason"]:
        head.append(f" ({found['reason']})")
    if found["driver"]:
        head.append(f", driven by {found['driver']} (process {found['pid']})")
    if found["asked_to"]:
        head.append(f", asked to {found['asked_to']}")
    lines = [head, Text(f"  trials   {counts or 'none yet'}")]
    used = []
    for key, amount in found["budget"].items():
        of = "" if amount["of"] is None else f" of {amount['of']:g}"
        used.append(f"{amount['used']:.4g}{of} {key.replace('_', ' ')}")
    lines.append(Text(f"  used     {', '.join(used)}"))
    if found["best"]:
        lines.append(
            Text(f"  best     {found['objective']} {found['best']['objective']:.4f} by {found['best']['trial_id']}")
        )
    for trial in found["running"]:
        best = "" if trial["best"] is None else f", best {trial['best']:.4f}"
        word = "running" if found["driver"] else "was at "
        lines.append(Text(f"  {word}  {trial['trial_id']}: {counted(trial['validations'], 'validation')}{best}"))
    if found["state"] in ("lost", "interrupted"):
        why = "its driver is gone; " if found["state"] == "lost" else ""
        lines.append(
            Text(f"  {why}continue with:  orchestrator resume {found['name']} --storage {shlex.quote(storage)}")
        )
    return Group(*lines)


def status_table(found: Sequence[Mapping[str, Any]]) -> Table:
    """One row per search, newest first; searches that have not begun come last."""
    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    several = len({one["benchmark"] for one in found}) > 1
    for head in ("search", *(["benchmark"] if several else []), "state", "trials", "best", "began"):
        table.add_column(head, justify="right" if head in ("trials", "best") else "left", overflow="fold")
    for one in sorted(found, key=lambda one: -one["started"]):
        ended = sum(one["counts"][state] for state in ENDED)
        of = one["budget"]["trials"]["of"]
        best = "-" if one["best"] is None else f"{short(one['objective'])} {one['best']['objective']:.4f}"
        began = time.strftime("%Y-%m-%d %H:%M", time.localtime(one["started"] / 1000)) if one["started"] else "-"
        trials = f"{ended}" + ("" if of is None else f" of {of}")
        state = Text(one["state"], style=STYLES.get(one["state"], ""))
        table.add_row(one["name"], *([one["benchmark"] or ""] if several else []), state, trials, best, began)
    return table
