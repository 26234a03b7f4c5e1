"""A lab's MLflow: five searches in one experiment, found by a setting that each fixes, as its users look for them.

    python benchmarks/versions.py --only "mlflow 3.5"      # a row of docs/versions.md

The searches are made once, in the scratch folder, and sent to the server. What its client and its page (in a browser)
answer is compared with the journals.
"""

import json
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from playwright.sync_api import Page, expect, sync_playwright

from orchestrator.storage.journal import Journal
from orchestrator.tracking.trackers import sync

EXPERIMENT = "lab"
COMMON = {"embedding_dim": 16, "classes_per_batch": 8, "images_per_class": 4, "epochs": 1, "device": "cpu"}
RESNET = {"backbone": "timm/resnet10t", "weights": "random"}
SEARCHES: dict[str, dict[str, Any]] = {
    "pfml-fast": {"method": "pfml", "settings": {"lr": 0.003}, "space": {"delta": [0.1, 0.3]}},
    "pfml-slow": {"method": "pfml", "settings": {"lr": 1e-5}, "space": {"delta": [0.1, 0.3]}},
    "anchor-fast": {"method": "proxy_anchor", "settings": {"lr": 0.003}, "space": {"alpha": [16, 32]}},
    "anchor-resnet": {"method": "proxy_anchor", "settings": RESNET, "space": {"alpha": [16, 32]}},
    "margin-resnet": {"method": "margin", "settings": RESNET, "space": {"lr": [0.001, 0.003]}},
}
"""Each with what it fixes: `lr` in three, the default of `backbone` or another; the last searches `lr`."""
WIDTH, HEIGHT = 1400, 900
SECONDS = 180
"""How long a page may take on a machine that does other things."""
TRIALS = "tags.`orchestrator.kind` = 'trial'"
SEARCH_RUNS = "tags.`orchestrator.kind` = 'search'"
QUERIES: dict[str, dict[str, Any]] = {
    "params.lr = '0.003'": {"lr": 0.003},
    "params.lr = '1e-05'": {"lr": 1e-05},
    "params.backbone = 'timm/resnet10t'": {"backbone": "timm/resnet10t"},
    "params.backbone = 'small_cnn' and params.lr = '0.003'": {"backbone": "small_cnn", "lr": 0.003},
}
"""What a user asks for, and the settings that are meant."""
ORCHESTRATOR = [sys.executable, "-P", "-m", "orchestrator"]


def make_searches(scratch: Path) -> Path:
    """The storage with the five searches; those that are there already are kept. One process here trains for all."""
    storage = scratch / "lab"
    missing = {name: search for name, search in SEARCHES.items() if not is_done(storage, name)}
    if not missing:
        return storage
    storage.mkdir(parents=True, exist_ok=True)
    joiner = subprocess.Popen(
        [*ORCHESTRATOR, "work", str(storage), "--idle", "900"], cwd=storage, stderr=subprocess.DEVNULL
    )
    try:
        for name, search in missing.items():
            shutil.rmtree(storage / "searches" / name, ignore_errors=True)
            whole = {"dataset": "glyphs-small", "algorithm": "grid", "scheduler": "none"} | search
            space = storage / f"{name}.yaml"
            space.write_text(json.dumps(whole | {"settings": COMMON | search["settings"]}))
            words = ["search", str(space), "--name", name, "--experiment", EXPERIMENT, "--address", "storage"]
            subprocess.run([*ORCHESTRATOR, *words, "--storage", str(storage)], cwd=storage, check=True, timeout=900)
    finally:
        joiner.terminate()
        joiner.wait(60)
    return storage


def is_done(storage: Path, name: str) -> bool:
    journal = storage / "searches" / name / "journal.jsonl"
    return journal.exists() and any(
        event["event"] == "search_ended" and event["state"] == "done" for event in Journal.read(journal)
    )


def trials_with(storage: Path, settings: dict[str, Any]) -> list[str]:
    """`SEARCH TRIAL` of all trials that trained with these settings, by the journals."""
    trials = []
    for name in SEARCHES:
        for event in Journal.read(storage / "searches" / name / "journal.jsonl"):
            if event["event"] == "trial_started" and event["kind"] == "trial":
                whole = event["config"] | event["params"]
                if all(whole[key] == value for key, value in settings.items()):
                    trials.append(f"{name} {event['trial_id']}")
    return sorted(trials)


def searches_with(storage: Path, settings: dict[str, Any]) -> list[str]:
    """The searches that have them fixed."""
    names = {trial.split()[0] for trial in trials_with(storage, settings)}
    return sorted(name for name in names if settings.keys().isdisjoint(SEARCHES[name]["space"]))


def lab_faults(uri: str, storage: Path, pictures: Path) -> list[str]:
    """What a server's client or page answers otherwise than the journals, after it got the searches."""
    from mlflow.tracking import MlflowClient

    faults = []
    for name in SEARCHES:
        refused = sync(storage / "searches" / name / "journal.jsonl", uri, None).refused
        faults += [reason for reason in refused if "this server has no" not in reason]
    client = MlflowClient(uri)
    experiment = client.get_experiment_by_name(EXPERIMENT).experiment_id
    runs = {run.info.run_id: run.data.tags for run in client.search_runs([experiment])}
    for query, settings in QUERIES.items():
        answer = [runs[run.info.run_id] for run in client.search_runs([experiment], f"{query} and {TRIALS}")]
        names = sorted(f"{tags['orchestrator.search']} {tags['orchestrator.trial_id']}" for tags in answer)
        if names != trials_with(storage, settings):
            faults.append(f"{query}: the client has {names}")
        answer = [runs[run.info.run_id] for run in client.search_runs([experiment], f"{query} and {SEARCH_RUNS}")]
        if (names := sorted(tags["orchestrator.search"] for tags in answer)) != searches_with(storage, settings):
            faults.append(f"{query}: the client has the searches {names}")
    pictures.mkdir(parents=True, exist_ok=True)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": WIDTH, "height": HEIGHT})
        page.set_default_timeout(1000 * SECONDS)
        page.goto(f"{uri}/#/experiments/{experiment}/runs?workflowType=machine_learning")
        faults += page_faults(
            page, {run_id: tags["orchestrator.search"] for run_id, tags in runs.items()}, storage, pictures
        )
        browser.close()
    return faults


def page_faults(page: Page, search_of: dict[str, str], storage: Path, pictures: Path) -> list[str]:
    """What MLflow's list of runs shows otherwise, where a query is typed and where runs are grouped."""
    faults = []
    links = page.locator("[role=row] a[href*='/runs/']")
    expect(links.first).to_be_visible(timeout=1000 * SECONDS)
    page.screenshot(path=pictures / "all.png")
    box = page.locator("input[placeholder*='metrics.rmse']").first
    for number, (query, settings) in enumerate(QUERIES.items()):
        trials = trials_with(storage, settings)
        names = {trial.split()[0] for trial in trials}
        box.fill(f"{query} and {TRIALS}")
        box.press("Enter")
        # MLflow adds the searches of the trials, above them; it shows what was there until it has the answer
        expected, answer = (len(trials) + len(names), sorted(names)), None
        end = time.monotonic() + SECONDS / 3
        while answer != expected and time.monotonic() < end:
            page.wait_for_timeout(500)
            addresses = links.evaluate_all("nodes => nodes.map(node => node.getAttribute('href'))")
            runs = [address.rpartition("/runs/")[2][:32] for address in addresses]
            count = re.search(r"(\d+)\s+matching runs?", page.inner_text("body"))
            answer = (int(count[1]) if count else 0, sorted({search_of[run] for run in runs}))
        page.screenshot(path=pictures / f"query-{number}.png")
        if answer != expected:
            faults.append(f"{query}: the page has {answer}, not {expected}")
    box.fill(TRIALS)
    box.press("Enter")
    page.get_by_text("Group by").first.click()
    page.get_by_placeholder("Search", exact=True).last.fill("backbone")
    page.get_by_text("backbone", exact=True).last.click()
    page.keyboard.press("Escape")
    for backbone in ("small_cnn", "timm/resnet10t"):
        try:
            expect(page.get_by_text(re.compile(f"Group:? *{backbone}")).first).to_be_visible(timeout=1000 * SECONDS / 3)
        except AssertionError:
            faults.append(f"grouped by backbone: the page has no group {backbone}")
    if page.get_by_text("Additional runs").count():  # MLflow's name for those that have no backbone
        faults.append("grouped by backbone: searches are left apart")
    page.screenshot(path=pictures / "groups.png")
    return faults
