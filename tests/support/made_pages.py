"""Made searches, and what their pages hold."""

import itertools
import json
import math
import re
import shutil
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from support.recorded import begin, record

from orchestrator.config.resolve import resolve_search
from orchestrator.storage.journal import Journal
from orchestrator.storage.ledger import Ledger

HOSTILE = "<script>alert(1)</script>\"'&</script><b>%{y}"


CHROMIUM = shutil.which("chromium")


PFML_SPACE: dict[str, dict[str, Any]] = {
    "delta": {"low": 0.1, "high": 0.35},
    "alpha": {"low": 0.1, "high": 6, "log": True},
    "proxies_per_class": {"low": 0, "high": 30},
}


def bowl(params: Mapping[str, Any]) -> float:
    """Best at delta 0.22, alpha 3, many proxies; delta matters most."""
    delta, alpha, proxies = params["delta"], params["alpha"], params["proxies_per_class"]
    value: float = 0.6 - 8 * (delta - 0.22) ** 2 - 0.004 * math.log(alpha / 3) ** 2 + 0.0005 * proxies
    return value


def made(
    folder: Path,
    points: Sequence[Mapping[str, Any]],
    value: Callable[[Mapping[str, Any]], float] = bowl,
    *,
    raw: Mapping[str, Any] | None = None,
    epochs: int = 10,
    pruned: Callable[[int], bool] = lambda number: False,
    reason: str | None = None,
    finals: Mapping[str, Sequence[float]] | None = None,
    end: str | None = "done",
) -> Ledger:
    """The ledger of a search that never ran: its journal is written here, event by event, a millisecond each."""
    now = itertools.count(time.time_ns() - 100 * 10**9, 10**6)
    raw = raw or {"method": "pfml", "dataset": "cub200", "settings": {"backbone": "resnet50"}, "space": PFML_SPACE}
    raw = {**raw, "settings": {"epochs": epochs, **raw.get("settings", {})}}
    search = resolve_search({"num_trials": 100, **raw}, name="made", source="made.yaml")
    with Journal(folder / "journal.jsonl") as journal, pytest.MonkeyPatch.context() as patch:
        patch.setattr("orchestrator.storage.journal.time.time_ns", lambda: next(now))
        begin(journal, search, tags={"orchestrator.git_commit": "0123abc"})

        def start(trial_id: str, params: Mapping[str, Any], kind: str, source: str | None = None) -> None:
            known: dict[str, Any] = {
                "params": dict(params),
                "config": search.experiment(params).flat(),
                "source": source,
            }
            record(journal, "trial_started", trial_id=trial_id, kind=kind, **known)

        for number, params in enumerate(points):
            start(f"{number:04d}", params, "trial")
            if reason is not None and number == 0:
                record(journal, "trial_ended", trial_id="0000", state="failed", reason=reason)
                continue
            length = 3 if pruned(number) else epochs
            for validation in range(1, length + 1):
                score = value(params) * (1 - 0.5 * math.exp(-validation / 2))
                metrics = {"val/map_at_r": score, "val/recall_at_1": score + 0.2, "train/loss": 1 / validation}
                record(
                    journal,
                    "validation",
                    trial_id=f"{number:04d}",
                    validation=validation,
                    metrics=metrics,
                    seconds=30.0,
                    finished=validation == epochs,
                )
            state = "pruned" if pruned(number) else "done"
            if end is None and number == len(points) - 1:
                break
            record(journal, "trial_ended", trial_id=f"{number:04d}", state=state)
        for source, tests in (finals or {}).items():
            for seed, test in enumerate(tests):
                trial_id = f"final-{source}-seed-{seed}"
                point = {**points[int(source)], **({"seed": seed} if len(tests) > 1 else {})}
                start(trial_id, point, "final", source)
                ends = {"test/map_at_r_low": test - 0.01, "test/map_at_r_high": test + 0.01}
                metrics = {"test/map_at_r": test, "test/recall_at_1": test + 0.2, **ends}
                record(journal, "result", trial_id=trial_id, metrics=metrics)
                record(journal, "trial_ended", trial_id=trial_id)
        if end:
            record(journal, "search_ended", state=end)
    return Ledger.of(Journal.read(folder / "journal.jsonl"))


def spread(number: int) -> list[dict[str, Any]]:
    """Points all over PFML's space, low-discrepancy."""
    points = []
    for n in range(number):
        u, v, w = ((n + 1) * 0.7548776662 % 1, (n + 1) * 0.5698402910 % 1, (n + 1) * 0.3819660113 % 1)
        point = {"delta": 0.1 + 0.25 * u, "alpha": 0.1 * 60**v, "proxies_per_class": int(30 * w)}
        points.append(point)
    return points


class Elements(HTMLParser):
    """What a browser would see: tags, and text outside of scripts and styles."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text: list[str] = []
        self.inside = ""
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        self.inside = tag

    def handle_endtag(self, tag: str) -> None:
        self.inside = ""

    def handle_data(self, data: str) -> None:
        if self.inside not in ("script", "style"):
            self.text.append(data)


def figures(html: str) -> dict[str, Any]:
    (found,) = re.findall(r'<script type="application/json" id="figures">(.*?)</script>', html)
    return dict(json.loads(found))


def opened(address: str, *options: str, folder: Path) -> subprocess.CompletedProcess[str]:
    command = [str(CHROMIUM), "--headless", "--no-sandbox", "--hide-scrollbars", "--enable-logging=stderr"]
    command += [f"--user-data-dir={folder / 'profile'}", "--virtual-time-budget=40000", "--window-size=1280,9000"]
    done = subprocess.run([*command, *options, address], capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    return done


def complaints(log: str) -> list[str]:
    """What the page's console says, but for the notes of a browser without a graphics card."""
    return [line for line in log.splitlines() if "CONSOLE" in line and "WebGL" not in line]
