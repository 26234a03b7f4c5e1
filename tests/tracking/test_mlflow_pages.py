"""What a reviewer sees in MLflow: its own pages over a search, opened in a real browser from a real server."""

import base64
import collections
import contextlib
import json
import math
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.request
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from PIL import Image
from playwright.sync_api import Browser, ConsoleMessage, Error, Page, expect, sync_playwright
from support.benchmark_journals import described as benchmark_told
from support.benchmark_journals import journals_of as benchmark_searches
from support.made_pages import CHROMIUM, bowl, made, spread
from support.memory_tracking import MemoryTracker
from support.output_schemas import conforms
from support.recorded import record

from orchestrator.cli.main import main
from orchestrator.data.store import Store
from orchestrator.report.findings import Findings
from orchestrator.report.html.search_page import write_page
from orchestrator.report.note import search_note
from orchestrator.search.source import ModelSource
from orchestrator.storage.cursors import Cursor, recorded_runs
from orchestrator.storage.events import SearchStarted
from orchestrator.storage.journal import Journal
from orchestrator.storage.ledger import Ledger
from orchestrator.storage.places import MODEL_PAGE, PAGE, Places
from orchestrator.storage.trial_folder import MODEL
from orchestrator.tracking.benchmarks import publish_benchmark
from orchestrator.tracking.trackers import delete_runs, sync
from orchestrator.tracking.views import TAG, comparison_path, report_path, run_path, saved_views, view_path

SECONDS = 120_000
"""Milliseconds that a page may take on a machine that does other things."""
SPACE = {"delta": {"low": 0.1, "high": 0.35}, "alpha": {"choices": {"a": {"nu": [1, 2]}, "b": None}}}


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


# The views themselves ----------------------------------------------------------------------------------------------


def started(**changes: Any) -> SearchStarted:
    objective = {"metric": "val/map_at_r", "mode": "max"}
    config = {"raw_space": changes.pop("raw_space", SPACE)}
    event = {"name": "s", "search_id": "0123456789abcdef0123", "dataset": "d", "time": 7, "objective": objective}
    return SearchStarted.model_validate(
        {**event, "method": "pfml", "params": {}, "tags": {}, "config": config, **changes}
    )


def state(tag: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(
        zlib.decompress(base64.b64decode(json.loads(tag)["state"].removeprefix("deflate;")))
    )
    return found


def test_views_are_of_this_search_sorted_by_its_objective() -> None:
    views = saved_views(started(), ["nu"])
    assert set(views) == {f"{TAG}0123456789abcdef-{view}" for view in ("table", "charts", "methods")}
    table = state(views[f"{TAG}0123456789abcdef-table"])
    assert "'0123456789abcdef0123'" in table["searchFilter"]
    assert (table["orderByKey"], table["orderByAsc"]) == ("metrics.`best/val_map_at_r`", False)
    assert [c for c in table["selectedColumns"] if c.startswith("params")] == [
        "params.`nu`",
        "params.`delta`",
        "params.`alpha`",
    ]
    charts = state(views[f"{TAG}0123456789abcdef-charts"])["compareRunCharts"]
    assert [chart["type"] for chart in charts] == ["PARALLEL", "BAR", "LINE", "CONTOUR", *["SCATTER"] * 3, *["BAR"] * 3]
    assert [chart["deleted"] for chart in charts] == [False] * 7 + [True] * 3
    assert [charts[3][axis]["key"] for axis in ("xaxis", "yaxis", "zaxis")] == ["nu", "delta", "best/val_map_at_r"]
    lower = saved_views(started(objective={"metric": "train/loss", "mode": "min"}), least=1e-05)
    assert state(lower[f"{TAG}0123456789abcdef-table"])["orderByAsc"] is True
    assert "metrics.`best/train_loss` <= 1e-05" in state(lower[f"{TAG}0123456789abcdef-best"])["searchFilter"]


def test_charts_compare_trials_at_the_age_that_all_reach(tmp_path: Path) -> None:
    """A trial that was stopped early has a worse best for its age alone: charts have a metric of one age."""
    event = started()
    event.config["scheduler"] = {"name": "asha", "grace_validations": 3}
    charts = state(saved_views(event)[f"{TAG}0123456789abcdef-charts"])["compareRunCharts"]
    early = "best_at_3/val_map_at_r"
    assert [chart["type"] for chart in charts[:5]] == ["PARALLEL", "BAR", "BAR", "LINE", "CONTOUR"]
    assert charts[0]["selectedMetrics"] == [early] and charts[4]["zaxis"] == {"key": early, "type": "METRIC"}
    assert all(chart["yaxis"]["key"] == early for chart in charts if chart["type"] == "SCATTER")
    # where no trial becomes so old, none would have a point
    charts = state(saved_views(event, longest=2)[f"{TAG}0123456789abcdef-charts"])["compareRunCharts"]
    assert charts[0]["selectedMetrics"] == ["best/val_map_at_r"]
    assert saved_views(event, longest=3) == saved_views(event)
    raw = {"method": "pfml", "dataset": "cub200", "space": {"delta": {"low": 0.1, "high": 0.35}}}
    raw |= {"scheduler": {"name": "median", "grace_validations": 3}}
    made(tmp_path, [{"delta": 0.2}, {"delta": 0.3}], lambda p: p["delta"], raw=raw, pruned=lambda n: n == 1)
    tracker = MemoryTracker(tmp_path / "journal.jsonl")
    assert tracker.close(10)
    runs = [tracker.runs[str(tracker.run_id(trial_id))] for trial_id in ("0000", "0001")]
    found = [[value for *_, value in run["metrics"][early]] for run in runs]
    assert found == [[pytest.approx(value * (1 - 0.5 * math.exp(-1.5)))] for value in (0.2, 0.3)]


def test_a_tag_holds_the_views_of_a_large_space() -> None:
    space = {f"a_hyperparameter_with_a_long_name_{n}": {"low": 0, "high": 1} for n in range(60)}
    assert max(map(len, saved_views(started(raw_space=space)).values())) < 20_000  # MLflow's limit for a tag
    assert saved_views(started(raw_space={}))


# In the browser ----------------------------------------------------------------------------------------------------


LATE = "ResizeObserver loop completed with undelivered notifications"
"""A browser that is late tells MLflow's charts of their size in the next frame, and says so."""


@dataclass
class Reviewer:
    """A browser on MLflow, and what its pages complained of."""

    browser: Browser
    address: str
    ledger: Ledger
    runs: dict[str, str]
    experiment: str
    parent: str
    folder: Path
    complaints: list[str] = field(default_factory=list)

    def open(self, path: str) -> Page:
        """A page of its own, whose complaints are its own too."""
        self.complaints.clear()
        page = self.browser.new_page(viewport={"width": 1500, "height": 1300})
        page.on("console", self._hear)
        page.on("pageerror", self._fail)
        page.goto(f"{self.address}/{path}")
        return page

    def _fail(self, error: Error) -> None:
        if LATE not in str(error):
            self.complaints.append(str(error))

    def _hear(self, message: ConsoleMessage) -> None:
        # MLflow without accounts has no answer to who one is, and asks; its parallel coordinates are drawn before their
        # place has a size, on a slow machine, and then again: with numbers that are none, or below zero
        unsized = re.match(r"Error: <\w+> attribute \w+: ", message.text) or LATE in message.text
        if message.type == "error" and "users/current" not in message.location["url"] and not unsized:
            self.complaints.append(message.text)

    def picture(self, page: Page, name: str) -> int:
        """Take one, and say how many colours it has."""
        path = self.folder / f"{name}.png"
        page.screenshot(path=path)
        with Image.open(path) as image:
            return len(image.convert("RGB").getcolors(1 << 24) or [])


@pytest.fixture(scope="module")
def reviewer(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Reviewer]:
    """A search of 40 trials, made here, sent to MLflow and shown by `orchestrator ui`."""
    if CHROMIUM is None:
        pytest.skip("needs chromium")
    storage = tmp_path_factory.mktemp("storage")
    folder = storage / "searches" / "made"
    points = spread(40)
    best = max(range(40), key=lambda n: bowl(points[n]))
    finals = {f"{best:04d}": [0.52, 0.53]}
    ledger = made(folder, points, pruned=lambda n: n % 3 == 1, reason="the loss is NaN", finals=finals)
    findings = Findings.of(ledger)
    write_page(findings, folder / PAGE)
    with Journal(folder / "journal.jsonl") as journal:
        for trial in ledger.trials.values():
            if trial.best is not None:
                values = {"val_map_at_r": trial.best, "val_recall_at_1": trial.best_metrics["val/recall_at_1"]}
                best_values = {f"best/{name}": value for name, value in values.items()}
                record(journal, "result", trial_id=trial.trial_id, metrics=best_values)
        record(journal, "artifact", trial_id=None, path=PAGE, folder=str(Path(PAGE).parent))
        least = ledger.candidates()[9].best
        record(journal, "note", text=search_note(findings), important=list(findings.importances.shares), least=least)
    with pytest.raises(SystemExit) as ended:
        main(["sync", "made", "--storage", str(storage)])
    assert ended.value.code == 0
    runs = recorded_runs(folder / "journal.jsonl")
    assert runs.experiment_id is not None and runs.parent_run_id is not None
    port = free_port()
    command = [sys.executable, "-m", "orchestrator", "ui", "made", "--storage", str(storage), "--port", str(port)]
    with subprocess.Popen(
        [*command, "--json"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        start_new_session=True,
    ) as server:
        try:
            assert server.stdout is not None and server.stderr is not None
            conforms("ui", json.loads(server.stdout.readline()))
            told = next(filter(None, (re.search(r"(http://127\.0\.0\.1:\d+)/(\S+) ", line) for line in server.stderr)))
            assert told[2] == view_path(runs.experiment_id, ledger.search_id, "table")
            for line in server.stderr:
                if "Application startup complete" in line:
                    break
            # else the server waits, once its lines about requests have filled the pipe
            threading.Thread(target=collections.deque, args=(server.stderr, 0), daemon=True).start()
            expect.set_options(timeout=SECONDS)
            with sync_playwright() as playwright:
                browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
                trials = dict(runs.trials)
                yield Reviewer(browser, told[1], ledger, trials, runs.experiment_id, runs.parent_run_id, folder)
                browser.close()
        finally:
            os.killpg(server.pid, 15)


pages = pytest.mark.slow


@pages
def test_the_leaderboard_is_sorted_and_tells_states_apart(reviewer: Reviewer) -> None:
    page = reviewer.open(view_path(reviewer.experiment, reviewer.ledger.search_id, "table"))
    expect(page.get_by_text("42 matching runs").first).to_be_visible()
    for head in ("orchestrator.state", "best/val_map_at_r"):  # those further on are drawn where there is room
        expect(page.get_by_text(head).first).to_be_visible()
    names = page.locator("a[href*='/runs/']").all_inner_texts()
    ranking = [trial.trial_id for trial in reviewer.ledger.ranking() if trial.best is not None]
    shown = [word for name in names for word in name.split()[1:2] if word in reviewer.runs][:5]
    assert shown == ranking[:5]
    assert reviewer.picture(page, "table") > 100
    assert reviewer.complaints == []


@pages
def test_the_charts_are_drawn(reviewer: Reviewer) -> None:
    page = reviewer.open(view_path(reviewer.experiment, reviewer.ledger.search_id, "charts"))
    first, second, *_ = Findings.of(reviewer.ledger).importances.shares  # the most important settings come first
    for title in ("Parallel Coordinates", f"{first} vs. {second}", f"{first} vs. best/val_map_at_r"):
        expect(page.get_by_text(title).first).to_be_visible()
    expect(page.locator("svg.main-svg").nth(2)).to_be_visible()
    assert reviewer.picture(page, "charts") > 300
    assert reviewer.complaints == []


@pages
def test_methods_are_grouped(reviewer: Reviewer) -> None:
    page = reviewer.open(view_path(reviewer.experiment, reviewer.ledger.search_id, "methods"))
    expect(page.get_by_text("Group: pfml")).to_be_visible()
    assert reviewer.complaints == []


@pages
def test_the_searchs_run_begins_with_the_verdict(reviewer: Reviewer) -> None:
    page = reviewer.open(run_path(reviewer.experiment, reviewer.parent))
    winner = reviewer.ledger.winner()
    assert winner is not None
    expect(page.get_by_text(f"Best: trial {winner.trial_id}").first).to_be_visible()
    assert reviewer.complaints == []


@pages
def test_the_experiment_begins_with_the_verdict(reviewer: Reviewer) -> None:
    """What MLflow opens, before any view is chosen: the note, with a link to the search's run."""
    page = reviewer.open(f"#/experiments/{reviewer.experiment}/runs")
    winner = reviewer.ledger.winner()
    assert winner is not None
    expect(page.get_by_text(f"Best: trial {winner.trial_id}").first).to_be_visible()
    link = page.get_by_role("link", name=reviewer.ledger.name, exact=True).first
    assert str(link.get_attribute("href")).endswith(f"#/experiments/{reviewer.experiment}/runs/{reviewer.parent}")
    assert reviewer.complaints == []


@pages
def test_the_ten_best_have_their_charts(reviewer: Reviewer) -> None:
    page = reviewer.open(view_path(reviewer.experiment, reviewer.ledger.search_id, "best"))
    expect(page.get_by_text("10 matching runs").first).to_be_visible()
    best = [trial.trial_id for trial in reviewer.ledger.candidates()[:10]]
    expect(page.get_by_text(f" {best[-1]} ").first).to_be_visible()
    names = page.locator("a[href*='/runs/']").all_inner_texts()
    assert [word for name in names for word in name.split()[1:2] if word in reviewer.runs] == best
    expect(page.get_by_text("Parallel Coordinates").first).to_be_visible()
    expect(page.locator("svg.main-svg").nth(2)).to_be_visible()
    assert reviewer.picture(page, "best") > 300
    assert reviewer.complaints == []


@pages
def test_the_ten_best_are_compared(reviewer: Reviewer) -> None:
    best = [reviewer.runs[trial.trial_id] for trial in reviewer.ledger.candidates()[:10]]
    page = reviewer.open(comparison_path(reviewer.experiment, best))
    expect(page.get_by_text("Comparing 10 Runs from 1 Experiment")).to_be_visible()
    expect(page.locator("svg.main-svg").first).to_be_visible()
    assert reviewer.complaints == []


@pages
def test_the_report_works_in_mlflows_frame(reviewer: Reviewer) -> None:
    page = reviewer.open(report_path(reviewer.experiment, reviewer.parent, PAGE))
    frame = page.frame_locator("iframe").first
    expect(frame.get_by_role("heading", name="made")).to_be_visible()
    expect(frame.locator(".plot[data-drawn=yes]").first).to_be_visible()
    assert reviewer.picture(page, "report") > 100
    frame.get_by_role("navigation").get_by_role("link").last.click()
    expect(frame.locator("section").last).to_be_in_viewport()
    assert reviewer.complaints == []


@pages
def test_a_benchmark_and_its_searches_lead_to_each_other(reviewer: Reviewer, tmp_path: Path) -> None:
    """Its page, in MLflow's frame, says where the links are; they are in the notes of the runs."""
    journals = benchmark_searches(tmp_path)
    for path in journals.values():
        sync(path, reviewer.address, None)
    benchmark, folder = benchmark_told(tmp_path, journals), tmp_path / "benchmarks" / "mine"
    assert publish_benchmark(benchmark, folder, journals, reviewer.address, None) is None
    cursor = Cursor.load(next(folder.glob("tracking-*.json")))
    experiment, own = str(cursor.experiment_id), cursor.runs[None]
    page = reviewer.open(f"#/experiments/{experiment}/runs/{own}/artifacts/report/report.html")
    frame = page.frame_locator("iframe").first
    expect(frame.get_by_role("heading", name="mine", exact=True)).to_be_visible()
    expect(frame.get_by_text("This frame opens no links")).to_be_visible()
    expect(frame.locator("th.leads")).to_be_hidden()
    assert reviewer.picture(page, "benchmark") > 100
    page = reviewer.open(run_path(experiment, own))
    with page.expect_popup() as opened:
        page.get_by_role("link", name="proxy_anchor", exact=True).click()
    search = recorded_runs(journals["proxy_anchor"]).parent_run_id
    expect(opened.value).to_have_url(re.compile(f"/experiments/{experiment}/runs/{search}"))
    expect(opened.value.get_by_text("Part of the benchmark").first).to_be_visible()
    with opened.value.expect_popup() as back:
        opened.value.get_by_role("link", name="mine", exact=True).click()
    expect(back.value).to_have_url(re.compile(f"/experiments/{experiment}/runs/{own}"))
    assert reviewer.complaints == []
    (deleted,) = delete_runs(folder / "journal.jsonl", Places(tmp_path), reviewer.address)
    assert (deleted.runs, deleted.problem) == (1, None)


@pages
def test_the_server_is_light_and_on_this_machine_alone(reviewer: Reviewer) -> None:
    with urllib.request.urlopen(f"{reviewer.address}/version") as answer:
        assert answer.read().decode().startswith("3.17.")


# A model of a real search -------------------------------------------------------------------------------------------

REAL: dict[str, Any] = {
    "method": "idml",
    "dataset": "glyphs-small",
    "settings": {
        "epochs": 1,
        "validate_every": "60 steps",
        "embedding_dim": 8,
        "classes_per_batch": 8,
        "images_per_class": 2,
        "device": "cpu",
    },
    "space": {"lr": {"low": 1e-3, "high": 3e-3}},
    "num_trials": 1,
    "scheduler": "none",
    "seed": 3,
}
FEWER = """
import sys
import threading
from importlib.machinery import PathFinder


class Fewer(PathFinder):
    @classmethod
    def find_spec(cls, name, path=None, target=None):
        return None if name.partition(".")[0] in ABSENT else super().find_spec(name, path, target)


sys.meta_path[sys.meta_path.index(PathFinder)] = Fewer
"""


def orchestrator(*words: str) -> dict[str, Any]:
    """What a command prints as JSON."""
    command = [sys.executable, "-m", "orchestrator", *words, "--json"]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=400, check=False)
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    conforms(words[0], found)
    return found


@dataclass
class Searched:
    """A real search, recorded by the server, and its final run."""

    storage: Path
    experiment: str
    parent: str
    final: str


@pytest.fixture(scope="module")
def searched(reviewer: Reviewer, data_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Searched:
    storage = tmp_path_factory.mktemp("real")
    (storage / "data").symlink_to(data_folder)
    space = storage / "real.yaml"
    space.write_text(json.dumps(REAL))
    uri = ["--tracking-uri", reviewer.address]
    found = orchestrator("search", str(space), "--name", "real", "--storage", str(storage), *uri)
    runs = recorded_runs(storage / "searches" / "real" / "journal.jsonl")
    return Searched(storage, found["experiment_id"], found["parent_run_id"], runs.trials["final"])


@pages
def test_a_models_page_works_in_mlflows_frame(reviewer: Reviewer, searched: Searched) -> None:
    page = reviewer.open(f"#/experiments/{searched.experiment}/runs/{searched.parent}/artifacts/{MODEL_PAGE}")
    frame = page.frame_locator("iframe").first
    expect(frame.get_by_role("heading", name="real: final model")).to_be_visible()
    sizes = frame.locator("#gallery img").evaluate_all("images => images.map(image => image.naturalWidth)")
    assert len(sizes) == (16 + 8) * 9 and min(sizes) > 0
    expect(frame.locator("#point")).to_be_hidden()
    dot = frame.locator("#points-map circle").nth(100)
    dot.scroll_into_view_if_needed()
    dot.hover(force=True)  # others may lie over it
    expect(frame.locator("#point")).to_be_visible()
    expect(frame.locator("#point p")).to_contain_text(", uncertainty ")
    tile = frame.locator("#point .tile")
    assert tile.evaluate("tile => getComputedStyle(tile).backgroundImage").startswith('url("data:image/webp;base64,')
    assert reviewer.picture(page, "map") > 300
    frame.get_by_role("link", name="What it finds").click()
    expect(frame.locator("#gallery img").first).to_be_in_viewport()
    assert reviewer.picture(page, "model") > 300
    assert reviewer.complaints == []


@pages
def test_the_gallery_is_a_table_of_images(reviewer: Reviewer, searched: Searched) -> None:
    page = reviewer.open(f"#/experiments/{searched.experiment}/runs/{searched.final}/artifacts/insight/gallery.json")
    expect(page.get_by_text("View as table")).to_be_visible()
    images = page.locator("img[src*='get-artifact']")
    expect(images.nth(11)).to_be_visible()
    page.wait_for_function("[...document.images].every(image => image.complete)")
    sizes = images.evaluate_all("images => images.map(image => image.naturalWidth)")
    assert len(sizes) >= 12 and set(sizes) == {70}, sizes
    heads = [page.get_by_text(head, exact=True).bounding_box() for head in ("class", "query", "neighbour 1")]
    assert sorted(heads, key=lambda box: box["x"] if box else -1) == heads
    assert reviewer.picture(page, "gallery") > 100
    assert reviewer.complaints == []


@pytest.fixture(scope="module")
def registered(reviewer: Reviewer, searched: Searched) -> str:
    """The address of its final model in the registry."""
    words = ["--storage", str(searched.storage), "--register", "glyphs"]
    done = orchestrator("export", "real", *words)
    assert (done["registered"], done["version"], done["alias"]) == ("glyphs", "1", "champion")
    return "models:/glyphs@champion"


@pages
def test_a_model_is_linked_to_its_data_code_and_scores(reviewer: Reviewer, searched: Searched, registered: str) -> None:
    from mlflow import MlflowClient

    client = MlflowClient(reviewer.address)
    assert client.get_model_version_by_alias("glyphs", "champion").run_id == searched.final
    (output,) = client.get_run(searched.final).outputs.model_outputs
    page = reviewer.open(f"#/experiments/{searched.experiment}/models/{output.model_id}")
    for text in (re.compile(r"glyphs-small \(#[0-9a-f]{36}\)"), "orchestrator search", "test/map_at_r", "final"):
        expect(page.get_by_text(text).first).to_be_visible()
    expect(page.get_by_text("Trial final of search real: test/recall_at_1 0.").first).to_be_visible()
    expect(page.locator("a[href*='models/glyphs']").first).to_be_visible()
    assert reviewer.picture(page, "logged") > 100
    page = reviewer.open("#/models/glyphs/versions/1")
    expect(page.get_by_text("champion").first).to_be_visible()
    assert reviewer.picture(page, "version") > 100
    assert reviewer.complaints == []


def absent(requirements: str) -> set[str]:
    """The modules here that a machine lacks on which nothing but these requirements is installed."""
    wanted, known = [Requirement(line) for line in requirements.splitlines()], set()
    while wanted:
        one = wanted.pop()
        if (name := canonicalize_name(one.name)) not in known and (
            not one.marker or one.marker.evaluate({"extra": ""})
        ):
            try:
                wanted += map(Requirement, metadata.requires(name) or ())
            except metadata.PackageNotFoundError:
                continue
            known.add(name)
    provided = metadata.packages_distributions().items()
    others = {module for module, names in provided if known.isdisjoint(map(canonicalize_name, names))}
    return others | {"orchestrator", "methods", "search_spaces"}


@pages
def test_a_model_is_loaded_and_served(
    reviewer: Reviewer, searched: Searched, registered: str, glyphs: Store, tmp_path: Path, monkeypatch: Any
) -> None:
    """By its registered name, where nothing is installed but what it asks for."""
    import mlflow

    source = ModelSource.of(searched.storage / "searches" / "real" / "trials" / "final" / MODEL, glyphs)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", reviewer.address)
    model = mlflow.pyfunc.load_model(registered)
    example = model.input_example
    np.testing.assert_array_equal(example, source.images.numpy())
    np.testing.assert_allclose(model.predict(example), source.embeddings.numpy(), rtol=0, atol=1e-5)

    folder = Path(mlflow.artifacts.download_artifacts(registered, dst_path=str(tmp_path / "model")))
    lacking = absent((folder / "requirements.txt").read_text())
    assert {"ray", "timm", "torchvision", "faiss"} <= lacking and {"torch", "mlflow", "numpy"}.isdisjoint(lacking)
    (tmp_path / "sitecustomize.py").write_text(f"ABSENT = {lacking!r}\n{FEWER}")
    environment = os.environ | {"PYTHONPATH": str(tmp_path), "OMP_NUM_THREADS": "1"}
    environment["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{environment['PATH']}"
    port = free_port()
    command = [sys.executable, "-m", "mlflow", "models", "serve", "-m", registered, "--env-manager", "local"]
    with (tmp_path / "log").open("w+") as log:
        server = subprocess.Popen(
            [*command, "--host", "127.0.0.1", "--port", str(port)],
            stdout=log,
            stderr=log,
            env=environment,
            cwd=tmp_path,
            start_new_session=True,
        )
        try:
            for _ in range(240):
                assert server.poll() is None, (tmp_path / "log").read_text()
                with contextlib.suppress(OSError), urllib.request.urlopen(f"http://127.0.0.1:{port}/ping"):
                    break
                time.sleep(0.5)
            processes = [psutil.Process(server.pid), *psutil.Process(server.pid).children(recursive=True)]
            asked = json.dumps({"inputs": example.tolist()}).encode()
            request = urllib.request.Request(
                f"http://127.0.0.1:{port}/invocations", asked, {"Content-Type": "application/json"}
            )
            with urllib.request.urlopen(request, timeout=60) as answer:
                given = json.load(answer)["predictions"]
            np.testing.assert_allclose(given, source.embeddings.numpy(), rtol=0, atol=1e-5)
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(server.pid, signal.SIGTERM)
            server.wait(60)
    assert psutil.wait_procs(processes, timeout=30)[1] == []
