"""What the program says and writes, held as text in tests/goldens: a moved default, message or number shows there.

`make goldens` writes the files anew; the difference is then what a review has to agree with. Numbers are rounded to six
digits; clocks, ids, versions and sums of files are left out.
"""

import json
import math
import re
import runpy
import shutil
import tomllib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from support.golden_files import GOLDENS, Golden, check, patterns
from support.golden_files import golden as golden
from support.insight_views import NAMES, seen
from support.made_pages import made, spread
from support.memory_tracking import MemoryTracker
from support.recorded import PLAIN
from typer import rich_utils

from orchestrator.cli.main import COMMANDS, command_of
from orchestrator.cli.main import main as command_line
from orchestrator.config.files import read_yaml, shipped_searches
from orchestrator.config.presets import presets
from orchestrator.config.resolve import resolve_search
from orchestrator.config.training import Experiment, resolve_experiment
from orchestrator.data.store import Store
from orchestrator.execution.inline import InlineRunner
from orchestrator.method import find_method, registry
from orchestrator.report.comparison import Comparison
from orchestrator.report.findings import Findings
from orchestrator.report.formats import format_of
from orchestrator.report.html.comparison_page import comparison_page
from orchestrator.report.html.model_page import model_page
from orchestrator.report.html.search_page import page
from orchestrator.report.model_view import View
from orchestrator.report.note import search_note
from orchestrator.report.summary import summary
from orchestrator.search.driver import resume, start
from orchestrator.search.finish import Outcome
from orchestrator.storage.journal import Journal
from orchestrator.tracking.projection import TRIAL

ROOT = Path(__file__).parents[2]


def rounded(value: Any) -> Any:
    """The same with six digits of each number."""
    if isinstance(value, float):
        return float(f"{value:.6g}") if math.isfinite(value) else str(value)
    if isinstance(value, Mapping):
        return {str(key): rounded(inner) for key, inner in value.items()}
    if isinstance(value, set | frozenset):
        return sorted(value)
    if isinstance(value, list | tuple):
        return [rounded(inner) for inner in value]
    return value


def plain(value: Any, depth: int = 2) -> str:
    """JSON with a line for each entry down to a depth, so that a difference is one line."""

    def text(value: Any, level: int) -> str:
        pad, end = "  " * (level + 1), "  " * level
        if isinstance(value, dict) and value and level < depth:
            inner = [f"{pad}{json.dumps(key)}: {text(part, level + 1)}" for key, part in value.items()]
            return "{\n" + ",\n".join(inner) + f"\n{end}}}"
        if isinstance(value, list) and value and level < depth:
            return "[\n" + ",\n".join(pad + text(part, level + 1) for part in value) + f"\n{end}]"
        return json.dumps(value, ensure_ascii=False)

    return text(rounded(value), 0)


LONG = re.compile(r"(?<![\w.])-?\d+\.\d{6,}(?:e-?\d+)?(?![\w.])")


def shortened(text: str) -> str:
    """A text with six digits of each long number."""
    return LONG.sub(lambda found: f"{float(found[0]):.6g}", text)


# Searches, presets, commands ----------------------------------------------------------------------------------


def defaults(method: str) -> dict[str, Any]:
    return resolve_experiment({"method": method, "dataset": "glyphs-small"}, "golden").flat()


def beside_defaults(experiment: Experiment) -> dict[str, Any]:
    """What is not the method's default; a default itself stands in defaults.json."""
    usual = defaults(experiment.method)
    return {key: value for key, value in experiment.flat().items() if key == "dataset" or value != usual[key]}


def test_defaults(golden: Golden) -> None:
    golden("defaults.json", plain({name: defaults(name) for name in sorted(registry())}))


def test_shipped_searches(golden: Golden) -> None:
    found = {}
    for name, path in shipped_searches().items():
        search = resolve_search(read_yaml(path), name=name, source=path.name)
        found[name] = search.model_dump(mode="json") | {"example": beside_defaults(search.example())}
    golden("searches.json", plain(found))


def test_presets(golden: Golden) -> None:
    found = {name: beside_defaults(resolve_experiment(preset.settings, name)) for name, preset in presets().items()}
    golden("presets.json", plain(found, depth=1))


def test_a_moved_default_is_seen(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    check(tmp_path / "defaults.json", plain({"pfml": defaults("pfml")}), update=True)
    fields = find_method("pfml").Config.model_fields
    monkeypatch.setattr(fields["proxy_lr_multiplier"], "default", 101.0)
    find_method("pfml").Config.model_rebuild(force=True)
    try:
        with pytest.raises(pytest.fail.Exception, match=r'\+ +"proxy_lr_multiplier": 101\.0'):
            check(tmp_path / "defaults.json", plain({"pfml": defaults("pfml")}), update=False)
    finally:
        monkeypatch.undo()
        find_method("pfml").Config.model_rebuild(force=True)


def helped(words: Sequence[str], capsys: pytest.CaptureFixture[str]) -> str:
    with pytest.raises(SystemExit) as ended:
        command_line([*words, "--help"])
    assert ended.value.code == 0
    lines = capsys.readouterr().out.strip("\n").splitlines()
    return "\n".join(re.sub("─+", "─", line).removesuffix("│").rstrip() for line in lines)


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    """One of 100 columns, without colours."""
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.setattr(rich_utils, "MAX_WIDTH", 100)  # from TERMINAL_WIDTH, once, when it is imported
    for name in ("FORCE_COLOR", "PY_COLORS", "GITHUB_ACTIONS", "ORCHESTRATOR_STORAGE", "RAY_ADDRESS"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setenv("TERM", "dumb")


@pytest.mark.usefixtures("terminal")
def test_help(golden: Golden, capsys: pytest.CaptureFixture[str]) -> None:
    commands = [[], *([name] for name in COMMANDS), ["datasets", "prepare"], ["datasets", "publish"]]
    shown = [f"$ orchestrator {' '.join([*words, '--help'])}\n{helped(words, capsys)}" for words in commands]
    golden("help.txt", "\n\n".join(shown))


@pytest.mark.usefixtures("terminal")
def test_another_word_of_help_is_seen(
    golden: Golden, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    check(tmp_path / "help.txt", helped(["stop"], capsys), update=True)
    monkeypatch.setattr(command_of("stop"), "__doc__", "Another sentence.")
    with pytest.raises(pytest.fail.Exception, match=r"\+ *Another sentence"):
        check(tmp_path / "help.txt", helped(["stop"], capsys), update=False)


def test_methods_page() -> None:
    """What the script writes; the table of the checks behind it is long to compute and left to `make methods-page`."""
    written = runpy.run_path(str(ROOT / "docs" / "write_methods_page.py"))
    held = (ROOT / "docs" / "methods.md").read_text(encoding="utf-8")
    check_page = written["documentation"]().rstrip("\n")
    assert held.startswith(check_page), "docs/methods.md is not what the methods say: make methods-page"
    assert held.removeprefix(check_page).lstrip("\n").startswith(written["CONFORMANCE"])


def test_files_of_the_wheel(golden: Golden) -> None:
    """The packages, and what is in them beside modules."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    lines = [f"{name} = {value}" for name, value in project["project"]["scripts"].items()]
    for group, entries in project["project"]["entry-points"].items():
        lines += [f"{group}: {name} = {value}" for name, value in entries.items()]
    for package in project["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"]:
        lines.append(f"{package}/")
        for path in sorted((ROOT / package).rglob("*"), key=lambda path: (path.suffix, path.parent.name, path.name)):
            if path.is_file() and path.suffix not in (".py", ".pyc"):
                inner = f"{path.parent.name}/" if path.suffix == ".yaml" and path.parent.name != package else ""
                lines.append(f"  {inner}{path.name}")
    golden("wheel.txt", "\n".join(lines))


# A search that trains ------------------------------------------------------------------------------------------

SEARCH = {
    "method": "pfml",
    "dataset": "patterns",
    "settings": {
        "epochs": 2,
        "embedding_dim": 8,
        "precision": "float64",
        "device": "cpu",
        "classes_per_batch": 4,
        "images_per_class": 3,
        "loader_threads": 1,
    },
    "space": {
        "delta": {"low": 0.1, "high": 0.35},
        "alpha": {"low": 0.5, "high": 6.0, "log": True},
        "proxies_per_class": {"low": 0, "high": 4},
    },
    "num_trials": 3,
    "scheduler": {"name": "asha", "grace_validations": 1, "reduction_factor": 2},
    "algorithm": "tpe",
}


@pytest.fixture(scope="module")
def searched(tmp_path_factory: pytest.TempPathFactory) -> tuple[Outcome, MemoryTracker]:
    """A search with trials and final runs, trained here one by one."""
    storage = tmp_path_factory.mktemp("goldens")
    patterns(storage / "data" / "patterns")
    search = resolve_search(SEARCH, name="golden", source="golden.yaml")
    return run(lambda: start(search, InlineRunner(), storage=storage))


def run(search: Callable[[], Outcome]) -> tuple[Outcome, MemoryTracker]:
    """To its end, without MLflow."""
    trackers: list[MemoryTracker] = []

    def tracker(path: Path, uri: str, artifacts: Path) -> MemoryTracker:
        trackers.append(MemoryTracker(path))
        return trackers[-1]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("orchestrator.search.driver.MLflowTracker", tracker)
        patch.setattr("orchestrator.search.finish.write_mlflow_model", lambda *_: None)  # MLflow's own, and slow
        threads = torch.get_num_threads()
        outcome = search()
        torch.set_num_threads(threads)
    assert outcome.state == "done", outcome
    return outcome, trackers[0]


CLOCKS = {"time", "seconds", "elapsed", "timestamp", "start_time", "end_time"}
CLOCKS |= {"search_id", "experiment_id", "tracking_uri", "seconds_of_training", "system"}
KEPT_TAGS = re.compile(r"orchestrator\.(?!search_id|best|sent_from)|selection|mlflow\.(parentRunId|loggedArtifacts)")


def without_clocks(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: without_clocks(inner) for key, inner in value.items() if key not in CLOCKS}
    if isinstance(value, list):
        return [without_clocks(inner) for inner in value]
    if isinstance(value, str):
        value = re.sub(r"\b(?=[0-9a-f]*\d)[0-9a-f]{16,}\b", "SUM", value)
        value = re.sub(r"\b[\d.]+ (s|min|h|d)(?: \d+ (s|min|h))? (of training|on the clock)", r"N \3", value)
        return shortened(re.sub(r"--storage \S+", "--storage PLACE", value))
    return value


def tags_of(tags: Mapping[str, str]) -> dict[str, str]:
    return {key: value for key, value in sorted(tags.items()) if KEPT_TAGS.match(key)}


def event_of(event: Mapping[str, Any], usual: Mapping[str, Any]) -> dict[str, Any]:
    """An event without its clocks; of a trial's settings only what differs from the first one's."""
    kept = dict(without_clocks(event))
    if "tags" in kept:
        kept["tags"] = tags_of(kept["tags"])
    if event["event"] == "trial_started":
        kept["config"] = {key: value for key, value in event["config"].items() if usual.get(key) != value}
    return kept


def journal_text(events: Sequence[Mapping[str, Any]]) -> str:
    usual: dict[str, Any] = {}
    lines = []
    for event in events:
        lines.append(plain(event_of(event, usual), depth=1))
        if event["event"] == "trial_started":
            usual = usual or dict(event["config"])
    return "\n".join(lines)


def test_journal(golden: Golden, searched: tuple[Outcome, MemoryTracker]) -> None:
    events = Journal.read(searched[0].journal)
    used = [event["system"]["memory_usage_megabytes"] for event in events if event["event"] == "validation"]
    assert used and min(used) > 100  # differs each time, so that it is not in the text
    golden("journal.txt", journal_text(events))


def test_made_events_have_the_fields_of_real_ones(searched: tuple[Outcome, MemoryTracker]) -> None:
    """Those that `recorded` fills in; what an event must have is checked as it is written."""
    real: dict[str, set[str]] = {}
    for event in Journal.read(searched[0].journal):
        real.setdefault(event["event"], set()).update(event)
    unknown = {f"{kind}.{name}" for kind in real for name in PLAIN[kind] if name not in real[kind]}
    assert len(real) == 8 and not unknown


def decided(events: Sequence[Mapping[str, Any]]) -> str:
    """What was measured and decided, without numbers of lines, what depends on files of models, and causes in words;
    with what stood for settings that version 0.1.0 had not."""
    kinds = ("trial_started", "validation", "trial_ended", "search_ended")
    left_out = ("seq", "idle")
    kept = [dict(event) for event in events if event["event"] in kinds]
    for event in kept:
        if "config" in event:
            event["config"] = dict(sorted(({"proxy_init": "randn"} | event["config"]).items()))
    return journal_text([{k: v for k, v in event.items() if k not in left_out} for event in kept])


def test_a_search_begun_by_an_earlier_version_goes_on(searched: tuple[Outcome, MemoryTracker], tmp_path: Path) -> None:
    """Version 0.1.0 wrote goldens/begun and was killed as the second trial began: resumed, it ends as if it had not
    been. These files are never recorded anew."""
    patterns(tmp_path / "data" / "patterns")
    shutil.copytree(GOLDENS / "begun", tmp_path / "searches" / "golden")
    outcome, _ = run(lambda: resume("golden", InlineRunner(), storage=tmp_path))
    events = list(Journal.read(outcome.journal))
    again = next(number for number, event in enumerate(events) if event["event"] == "search_resumed")
    assert [event["event"] for event in events[:again]].count("trial_ended") == 1
    begun = [event for event in events[again:] if event["event"] == "trial_started" and event["trial_id"] == "0001"]
    events = [event for event in events if event not in begun]  # it is given out twice
    assert decided(events) == decided(Journal.read(searched[0].journal))


def test_a_moved_number_is_seen(searched: tuple[Outcome, MemoryTracker], tmp_path: Path) -> None:
    events = Journal.read(searched[0].journal)
    check(tmp_path / "journal.txt", journal_text(events), update=True)
    validation = next(event for event in events if event["event"] == "validation")
    validation["metrics"]["train/loss"] *= 1 + 1e-4
    with pytest.raises(pytest.fail.Exception, match="train/loss"):
        check(tmp_path / "journal.txt", journal_text(events), update=False)


def test_runs_of_the_tracker(golden: Golden, searched: tuple[Outcome, MemoryTracker]) -> None:
    runs = {}
    for run in searched[1].runs.values():
        kept = without_clocks({key: value for key, value in run.items() if key not in ("dataset", "models")})
        kept["metrics"] = {
            key: [(step, value) for step, _, value in points]
            for key, points in sorted(run["metrics"].items())
            if not re.search("seconds|hours|elapsed|^system/", key)
        }
        config = kept.pop("config") or {}
        runs[run["tags"].get(TRIAL, run["name"])] = kept | {"tags": tags_of(kept["tags"]), "config": sorted(config)}
    golden("runs.json", plain(runs, depth=3))


def test_summary(golden: Golden, searched: tuple[Outcome, MemoryTracker]) -> None:
    outcome, _ = searched
    golden("summary.json", plain(without_clocks(summary(outcome.ledger, outcome.journal).plain), depth=3))


# What is made of searches --------------------------------------------------------------------------------------


def lean(html: str) -> str:
    """A page without its libraries, styles and moments, a line for each element, with six digits of each number."""
    html = re.sub(r"<style>.*?</style>", "<style></style>", html, flags=re.DOTALL)
    html = re.sub(
        r'<script(?: type="text/plain" id="plotly")?>.*?</script>', "<script></script>", html, flags=re.DOTALL
    )
    html = re.sub(r">\s*\n\s*<", "><", html)  # templates are indented
    html = re.sub(r"data:image/[a-z]+;base64,[A-Za-z0-9+/=]+", "data:image", html)
    html = re.sub(r"(?:<circle[^>]*>){9,}", lambda found: f"{found[0].count('<circle')} circles", html)
    html = re.sub(r"\d{4}-\d\d-\d\d[ T]\d\d:\d\d(:\d\d)?", "MOMENT", html)
    html = re.sub(r'(<script type="application/json"[^>]*>)(.*?)(</script>)', figures, html, flags=re.DOTALL)
    blocks = r"(?<!\n)(<(?:h\d|p|table|tr|section|details|div|svg|ul|li|article|main|nav)\b)"
    return shortened(re.sub(blocks, r"\n\1", html))


def figures(found: re.Match[str]) -> str:
    return f"{found[1]}\n{plain(told(json.loads(found[2])), depth=4)}\n{found[3]}"


def told(value: Any) -> Any:
    """Long lists of numbers as their count and sums."""
    if isinstance(value, dict):
        return {key: told(inner) for key, inner in value.items()}
    if not isinstance(value, list):
        return value
    flat = [inner for row in value for inner in (row if isinstance(row, list) else [row])]
    numbers = [number for number in flat if isinstance(number, int | float)]
    if len(flat) < 60 or not all(number is None or isinstance(number, int | float) for number in flat):
        return [told(inner) for inner in value]
    return {"length": len(flat), "numbers": len(numbers), "sum": sum(numbers), "squares": sum(n * n for n in numbers)}


@pytest.fixture(scope="module")
def findings(tmp_path_factory: pytest.TempPathFactory) -> Findings:
    """A made search of 13 trials, some of them stopped early, its two best tested over seeds."""
    finals = {"0005": [0.55, 0.56, 0.57], "0001": [0.51, 0.5, 0.52]}
    folder = tmp_path_factory.mktemp("made")
    ledger = made(folder, spread(13), epochs=4, pruned=lambda number: number % 5 == 4, finals=finals)
    ledger.started = 10**12
    for number, trial in enumerate(ledger.everyone()):  # one after the other, a minute apart
        trial.started = ledger.started + 60_000 * number
        trial.ended = trial.started + 50_000
        ledger.ended = trial.ended + 5_000
    return Findings.of(ledger)


@pytest.fixture(scope="module")
def comparison(tmp_path_factory: pytest.TempPathFactory, findings: Findings) -> Comparison:
    """The made search, and another one with lower values."""
    other = made(
        tmp_path_factory.mktemp("other"),
        spread(7),
        lambda params: 0.4 - params["delta"] / 10,
        epochs=3,
        finals={"0003": [0.41, 0.43, 0.4], "0006": [0.39, 0.4, 0.41]},
    )
    return Comparison.of("compared", {"first": findings.ledger, "second": other})


def test_reports(golden: Golden, findings: Findings) -> None:
    golden("report.md", shortened(format_of("markdown").leaderboard(findings.ledger)))
    golden("report.tex", shortened(format_of("latex").leaderboard(findings.ledger)))
    golden("report.csv", shortened(format_of("csv").leaderboard(findings.ledger)))
    golden("note.md", shortened(search_note(findings)))


def test_page(golden: Golden, findings: Findings) -> None:
    golden("page.html", lean(page(findings)))


def test_comparison(golden: Golden, comparison: Comparison) -> None:
    golden("comparison.md", shortened(format_of("markdown").comparison(comparison)))
    golden("comparison.tex", shortened(format_of("latex").comparison(comparison)))
    golden("comparison.html", lean(comparison_page(comparison)))


def test_model_page(golden: Golden) -> None:
    def image(row: int) -> np.ndarray[Any, Any]:
        return np.full((8, 8, 1), row % 256, np.uint8)

    view = View(
        title="Model of made",
        facts=["dataset made", "backbone small_cnn"],
        told=["map_at_r 0.5", "recall_at_1 0.6"],
        insight=seen(),
        names=NAMES,
        image=image,
        curves={"train/loss": [3.0, 2.0, 1.5], "val/map_at_r": [0.1, 0.2, 0.25]},
        proxies=np.cos(np.subtract.outer(np.arange(4.0), np.arange(4.0))),
        neighbour_map=False,
    )
    golden("model.html", lean(model_page(view)))


def test_another_message_is_seen(findings: Findings, tmp_path: Path) -> None:
    html = lean(page(findings))
    check(tmp_path / "page.html", html, update=True)
    with pytest.raises(pytest.fail.Exception, match=r"\+.*The most recent trial"):
        check(tmp_path / "page.html", html.replace("trial 0", "The most recent trial 0", 1), update=False)


def test_drawing_of_the_glyphs(golden: Golden, glyphs: Store) -> None:
    """What is drawn depends on the versions of the libraries that draw, which the file names."""
    text = plain({key: glyphs.manifest[key] for key in ("versions", "classes", "images", "digest")}, depth=1)
    held = GOLDENS / "glyphs.json"
    if held.exists() and json.loads(held.read_text("utf-8"))["versions"] != glyphs.manifest["versions"]:
        pytest.skip(f"drawn by {glyphs.manifest['versions']}, which draw otherwise")
    golden("glyphs.json", text)
