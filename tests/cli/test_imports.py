"""Which heavy libraries each command loads: a look and a refusal load none, so that they take half a second.

They run one after the other in a process that was forked from one that has imported the command line only; what each
adds to `sys.modules` counts. The slow test holds what the commands that compute may load, each in a process of its own.
"""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]

HEAVY = (
    *(
        "torch",
        "torch._dynamo",
        "ray",
        "mlflow",
        "faiss",
        "pyarrow",
        "numpy",
        "pandas",
        "optuna",
        "boto3",
        "plotly",
        "scipy",
        "sklearn",
    ),
    *("torchvision", "timm", "PIL", "matplotlib", "jinja2", "triton", "methods.kernels.tiles"),
    "pytorch_metric_learning",
)
MAX_MEMORY = 150
"""Megabytes, of a command that loads none of these."""

LIGHT = {
    "search --help": 0,
    "list": 0,
    "best nope --budget hours=1": 2,
    "best glyphs-small": 2,
    "list --sort best": 0,
    "list --tag nope": 0,
    "tag golden": 0,
    "note golden": 0,
    "rename golden golden": 2,
    "delete golden": 2,
    "delete nope --yes": 2,
    "status golden": 0,
    "status nope": 2,
    "stop golden": 2,
    "pause nope": 2,
    "report today": 0,
    "report today --json": 0,
    "report golden --format csv": 0,
    "report today --format markdown": 0,
    "report today --format latex": 0,
    "report nope": 2,
    "report golden --format nope": 2,
    "compare golden nope": 2,
    "presets": 0,
    "presets pfml/cub200/resnet50": 0,
    "presets nope": 2,
    "datasets": 0,
    "datasets cub200": 0,
    "datasets nope": 2,
    "methods": 0,
    "methods idml": 0,
    "methods pml/TripletMarginLoss": 0,
    "methods nope": 2,
    "check nope": 2,
    "new-method 1": 2,
    "nope": 2,
    "best": 2,
    "--version": 0,
    "settings": 0,
    "schema": 0,
    "schema --of outputs": 0,
    "init --method pfml --dataset glyphs": 0,
    "init --method nope": 2,
    "embed nope nowhere": 2,
    "query nope nope.png --among nowhere": 2,
    "settings nope": 2,
    "status": 2,
    "train proxy_anchor": 2,
    "search pfml --lr=1e-4": 2,
    "search pfml --set lr 1e-4": 2,
    "search pfml --set backbone=resnet34": 2,
    "datasets prepare imagenet": 2,
    "list --nope": 2,
    "search nope": 2,
    "search nope.yaml": 2,
    "search wrong.yaml": 2,
    "search demo --preset nope": 2,
    "search demo --scheduler nope --set lr=-1": 2,
    "search demo --set delta=-1 --set nope=1": 2,
    "search demo --dataset cub200": 2,
    "search demo --start-from nope": 2,
    "train --method nope --dataset glyphs-small": 2,
    "train --preset pfml/cub200/resnet50": 2,
    "benchmark --methods nope,pfml --dataset glyphs-small --num-trials 2": 2,
    "resume nope": 2,
    "sync nope": 2,
    "sync nope --to wandb": 2,
    "rename golden golden --json": 2,
    "evaluate nope --dataset glyphs-small": 2,
    "export nope --to onnx": 2,
    "ui nope": 2,
    "watch nope": 2,
    "work": 2,
    "work nope": 2,
    "work --search golden": 2,
    "work --search nope": 2,
}
"""The commands that load none of the heavy libraries, and their exit codes."""

COMPLETED = {
    "TAB orchestrator search pf": "pfml",
    "TAB orchestrator methods proxy_a": "proxy_anchor",
    "TAB orchestrator train --dataset glyphs-": "glyphs-small",
    "TAB orchestrator search pfml --set del": "delta=",
    "TAB orchestrator search --preset pfml/cub200/resnet50/": "pfml/cub200/resnet50/text",
    "TAB orchestrator status gol": "golden",
}
"""Of each unfinished command, the first of the words that the shell offers."""

CHECK = {"torch", "numpy", "pyarrow", "PIL", "faiss", "scipy", "pandas", "sklearn", "torchvision", "triton"}
HEAVIER = {
    "report golden": {"torch", "numpy"},
    "report golden --json": {"torch", "numpy"},
    "report golden --format markdown": {"torch", "numpy"},
    "report golden --html page.html": {
        "torch",
        "numpy",
        "jinja2",
        "plotly",
        "faiss",
        "pandas",
        "pyarrow",
        "PIL",
        "scipy",
    },
    "search demo --dry-run": {*CHECK, "optuna", "matplotlib"},
    "check contrastive": CHECK,
}
"""What the others may load; torchvision loads triton, the methods' kernels none of these."""

WRONG = "method: pfml\ndataset: glyphs-small\nsead: 1\nspace:\n  delta: {low: -5, high: 0.3}\nnum_trials: 2\n"

RUN = """
import json, os, resource, sys, tempfile
from orchestrator.cli.main import main

def run(command):
    code, shown, before = 0, tempfile.TemporaryFile(), set(sys.modules)
    os.dup2(shown.fileno(), 1)
    arguments = command.split()
    if completed := arguments[:1] == ["TAB"]:
        words, arguments = arguments[1:], []
        asked = {"_ORCHESTRATOR_COMPLETE": "complete_bash", "COMP_WORDS": " ".join(words)}
        os.environ.update(asked, COMP_CWORD=str(len(words) - 1))
    try:
        main(arguments)
    except SystemExit as ended:
        code = ended.code
    if completed:
        del os.environ["_ORCHESTRATOR_COMPLETE"]
    sys.stdout.flush()
    shown.seek(0)
    line = shown.readline().decode().strip()
    loaded = [name for name in heavy if name in sys.modules and name not in before]
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
    os.write(answers, (json.dumps([command, code, loaded, memory, line]) + "\\n").encode())

heavy, alone, commands = json.loads(sys.argv[1])
answers = os.dup(1)
os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
for together in [[command] for command in commands] if alone else [commands]:
    if child := os.fork():
        os.waitpid(child, 0)
    else:
        for command in together:
            run(command)
        os._exit(0)
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder to work in, with a search, a wrong file, and a record of the installed methods."""
    folder = tmp_path_factory.mktemp("imports")
    shutil.copytree(ROOT / "tests" / "goldens" / "begun", folder / "runs" / "searches" / "golden")
    shutil.copytree(ROOT / "tests" / "goldens" / "begun", folder / "runs" / "searches" / "today")
    journal = folder / "runs" / "searches" / "today" / "journal.jsonl"
    events = [json.loads(line) for line in journal.read_text("utf-8").splitlines()]
    for event in events:
        del event["sum"]  # a journal without checksums may be changed
        event |= {"idle": {}} if event["event"] == "trial_started" else {}
    journal.write_text("".join(json.dumps(event) + "\n" for event in events), encoding="utf-8")
    (folder / "wrong.yaml").write_text(WRONG, encoding="utf-8")
    assert list(answers(folder, ["methods pml/TripletMarginLoss"]))  # writes both records
    return folder


def answers(folder: Path, commands: list[str], *, alone: bool = False) -> dict[str, Any]:
    """Of each command: its exit code, the heavy libraries that it loaded, the peak memory in megabytes, its first
    line; `alone`, of each in a process of its own."""
    environment = os.environ | {"ORCHESTRATOR_CACHE": str(folder / "cache"), "PYTHONDONTWRITEBYTECODE": "1"}
    command = [sys.executable, "-P", "-c", RUN, json.dumps([HEAVY, alone, commands])]
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=True)
    return {name: found for name, *found in map(json.loads, done.stdout.splitlines())}


def test_a_look_and_a_refusal_load_nothing_heavy(folder: Path) -> None:
    found = answers(folder, list(LIGHT))
    assert {name: one for name, one in found.items() if one[1] or one[2] > MAX_MEMORY} == {}
    assert {name: one[0] for name, one in found.items()} == LIGHT


def test_completion_loads_nothing_heavy(folder: Path) -> None:
    found = answers(folder, list(COMPLETED))
    assert {name: one for name, one in found.items() if one[1] or one[2] > MAX_MEMORY} == {}
    assert {name: one[3] for name, one in found.items()} == COMPLETED


@pytest.mark.slow
def test_what_computes_loads_what_it_needs_only(folder: Path) -> None:
    found = answers(folder, list(HEAVIER), alone=True)
    assert {name: extra for name, one in found.items() if (extra := set(one[1]) - HEAVIER[name])} == {}
    assert {one[0] for one in found.values()} == {0}
