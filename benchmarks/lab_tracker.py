"""A lab's MLflow: five searches in one experiment, found by a setting that each fixes, as its users look for them.

    python benchmarks/lab_tracker.py http://127.0.0.1:5000 --scratch /tmp/lab      # a server that runs

The searches are made once, in the scratch folder, and sent to the server. What its client and its page (in a browser)
answer is compared with the journals.
"""

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

from orchestrator.storage.journal import Journal

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
TRIALS = "tags.`orchestrator.kind` = 'trial'"
QUERIES = {
    f"params.lr = '0.003' and {TRIALS}": {"lr": 0.003},
    f"params.lr = '1e-05' and {TRIALS}": {"lr": 1e-05},
    f"params.backbone = 'timm/resnet10t' and {TRIALS}": {"backbone": "timm/resnet10t"},
    f"params.backbone = 'small_cnn' and params.lr = '0.003' and {TRIALS}": {"backbone": "small_cnn", "lr": 0.003},
}
"""What a user asks for, and the settings of the trials that are meant."""
SECONDS = 120_000


def make_searches(scratch: Path) -> Path:
    """The storage with the five searches; those that are there already are kept."""
    storage = scratch / "lab"
    storage.mkdir(parents=True, exist_ok=True)
    for name, search in SEARCHES.items():
        if (storage / "searches" / name / "report" / "search.html").exists():
            continue
        shutil.rmtree(storage / "searches" / name, ignore_errors=True)
        whole = {"dataset": "glyphs-small", "algorithm": "grid", "scheduler": "none"} | search
        space = storage / f"{name}.yaml"
        space.write_text(json.dumps(whole | {"settings": COMMON | search["settings"]}))
        words = ["search", str(space), "--name", name, "--experiment", EXPERIMENT, "--storage", str(storage)]
        orchestrator(*words)
    return storage


def orchestrator(*words: str) -> None:
    command = [sys.executable, "-m", "orchestrator", *words]
    done = subprocess.run(command, capture_output=True, text=True, timeout=900, cwd=Path(__file__).parent)
    if done.returncode:
        raise RuntimeError(f"{' '.join(words)}: {done.stderr.strip() or done.stdout.strip()}")


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
