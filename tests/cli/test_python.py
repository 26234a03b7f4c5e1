"""The Python interface: the same searches, results and messages as the command line's."""

import csv
import io
import re
import subprocess
import sys
from pathlib import Path
from typing import Any, cast

import pytest

import orchestrator as dml
from orchestrator.cli.main import main
from orchestrator.cli.starting import read_request
from orchestrator.config.search import Search as Resolved
from orchestrator.errors import in_python
from orchestrator.problems import SET, Option, Problem
from orchestrator.search import beginning, driver
from orchestrator.storage.leaderboard import write_csv

ROOT = Path(__file__).parents[2]
TINY = {"embedding_dim": 8, "classes_per_batch": 8, "images_per_class": 2, "validate_every": "20 steps"}


@pytest.fixture(scope="module")
def storage(tmp_path_factory: pytest.TempPathFactory, data_folder: Path) -> Path:
    storage = tmp_path_factory.mktemp("storage")
    (storage / "data").symlink_to(data_folder)
    return storage


@pytest.fixture(scope="module")
def events() -> list[Any]:
    return []


@pytest.fixture(scope="module")
def trained(storage: Path, events: list[Any]) -> dml.Search:
    """A training that ran in the background."""
    run = dml.train(
        "proxy_anchor",
        dataset="glyphs-small",
        epochs=1,
        settings=TINY,
        name="trained",
        storage=storage,
        wait=False,
        progress=False,
        on_event=events.append,
    )
    assert run.state in ("starting", "running", "done", "lost")
    return run.wait()


def test_a_training_in_the_background_tells_what_happens(trained: dml.Search, events: list[Any]) -> None:
    assert trained.state == "done"
    kinds = [event["event"] for event in events]
    assert kinds[0] == "started" and kinds[-1] == "ended" and "validated" in kinds
    assert events[-1]["best"] == trained.ledger.trials["0000"].best


def test_its_results_are_those_of_the_command_line(trained: dml.Search) -> None:
    text = io.StringIO()
    write_csv(trained.ledger, text)
    (expected,) = csv.DictReader(io.StringIO(text.getvalue()))
    table = trained.leaderboard()
    assert table.column_names == list(expected) and len(table) == 1
    frame = table.to_pandas()
    assert float(frame["val/map_at_r"][0]) == float(expected["val/map_at_r"])
    assert trained.best is not None and trained.best["objective"] == float(expected["val/map_at_r"])
    assert trained.best == trained.summary()["best"]
    assert dml.load("trained", storage=trained.storage).best == trained.best


def test_what_has_ended_cannot_be_stopped(trained: dml.Search) -> None:
    with pytest.raises(dml.InputError, match=r"^stop: 'trained' is not running \(it is done\)$"):
        trained.stop()


def test_its_model_and_its_page(trained: dml.Search, storage: Path, tmp_path: Path) -> None:
    model = trained.model()
    found = model.evaluate("glyphs-small", storage=storage, device="cpu")
    test = trained.ledger.trials["0000"].test
    assert found["metrics"]["map_at_r"] == pytest.approx(test["map_at_r"])
    low, high = found["intervals_over_classes"]["map_at_r"]
    assert low <= found["metrics"]["map_at_r"] <= high
    with pytest.raises(dml.InputError, match="'trained/0009': no such trial"):
        trained.model("0009")
    page = trained.report()
    assert "trained" in page.html and page._repr_html_().startswith('<iframe srcdoc="&lt;!doctype html')
    assert page.write(tmp_path / "report.html").read_text() == page.html


@pytest.mark.parametrize(
    ("call", "line"),
    [
        (
            lambda storage: dml.train(
                "pfml", dataset="glyphs-small", settings={"learning_rate": 1, "delta": 9}, storage=storage
            ),
            "train --method pfml --dataset glyphs-small --set learning_rate=1 --set delta=9",
        ),
        (lambda storage: dml.train("pmfl", dataset="glyphs", storage=storage), "train --method pmfl --dataset glyphs"),
        (lambda storage: dml.search("dmeo", storage=storage), "search dmeo"),
        (lambda storage: dml.search("demo", num_trials=0, dataset="glyps", storage=storage), None),
        (lambda storage: dml.load("nope", storage=storage), "status nope"),
    ],
)
def test_errors_have_the_messages_of_the_command_line(
    call: Any, line: str | None, storage: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(dml.InputError) as refused:
        call(storage)
    if line is None:
        assert len(refused.value.problems) == 2
        return
    with pytest.raises(SystemExit) as leaving:
        main([*line.split(), "--storage", str(storage)])
    assert leaving.value.code == 2
    said = capsys.readouterr().err
    assert said == "".join(f"error: {problem}\n" for problem in refused.value.problems)


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (
            lambda at: dml.search("pfml", dataset="glyphs-small", settings={"lr": -1}, storage=at),
            "settings: lr: -1: should be above 0",
        ),
        (lambda at: dml.train(storage=at), "method: missing, or preset (see orchestrator train --help)"),
        (
            lambda at: dml.train("pfml", dataset="glyphs-small", lr=1e-3, storage=at),  # type: ignore[call-arg]
            "train: lr: no such argument; a setting is given as settings={'lr': ...}",
        ),
        (
            lambda at: dml.train("pfml", datset="glyphs-small", storage=at),  # type: ignore[call-arg]
            "train: datset: no such argument (did you mean 'dataset'?)",
        ),
        (
            lambda at: dml.search("demo", lr=1e-3, storage=at),
            "lr: no such key of a search: it is a setting, and belongs under settings",
        ),
        (
            lambda at: dml.train("pfml", dataset="glyphs-small", settings=["lr"], storage=at),  # type: ignore[arg-type]
            "settings: ['lr'] should be a mapping, such as {'epochs': 20}",
        ),
        (
            lambda at: dml.benchmark(["pfml", "triplet"], budget=3, storage=at),  # type: ignore[arg-type]
            "budget: 3 should be a mapping, such as {'epochs': 20}",
        ),
        (
            lambda at: dml.search("demo", on_event=3, progress=False, storage=at),  # type: ignore[arg-type]
            "on_event: 3 should be a function of one event",
        ),
        (lambda at: dml.search("demo", storage=3), "storage: 3 should be text"),  # type: ignore[arg-type]
        (lambda at: dml.search("demo", address=3, storage=at), "address: 3 should be text"),  # type: ignore[arg-type]
        (lambda at: dml.search("demo", name=3, storage=at), "name: 3 should be text"),  # type: ignore[arg-type]
        (
            lambda at: dml.search("demo", experiment="", storage=at),
            "experiment: is empty; give a value, or leave it out",
        ),
        (lambda at: dml.train("pfml", dataset=" ", storage=at), "dataset: is empty; give a value, or leave it out"),
        (lambda at: dml.claim("pfml/label_noise", address=3, storage=at), "address: 3 should be text"),  # type: ignore[arg-type]
        (lambda at: dml.load("any", storage=__file__), f"storage: {__file__} is a file: name a folder"),
        (
            lambda at: dml.train("pfml", dataset="glyphs-small", repeats=0, storage=at),
            "repeats: 0: should be at least 1",
        ),
        (
            lambda at: dml.benchmark(["pfml"], num_trials=2, storage=at),
            "methods: pfml: give two or more to compare; for one: orchestrator search pfml",
        ),
        (
            lambda at: dml.search("demo", settings={"selection_metric": "val/recall_at_1"}, storage=at),
            "settings: selection_metric: 'val/recall_at_1': a search chooses by its objective, val/map_at_r: "
            "give objective val/recall_at_1",
        ),
    ],
)
def test_errors_name_arguments_and_no_options(
    call: Any, said: str, storage: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(driver, "start", None)
    with pytest.raises(dml.InputError) as refused:
        call(storage)
    assert str(refused.value) == "; ".join(refused.value.problems)
    assert str(refused.value).startswith(said)


def test_a_page_and_a_comparison_are_short_in_a_console() -> None:
    assert repr(dml.Page("x" * 2_100_000)) == "<page of 2.1 MB: .write(FILE) writes it, a notebook shows it>"
    assert repr(dml.Compared("a and b", cast(Any, None), None)) == "<comparison a and b>"


def test_commands_in_a_message_stay() -> None:
    @in_python
    def refuse() -> None:
        rule = ("none (orchestrator sync a --to wandb); give ", Option("num_trials"))
        raise dml.InputError(Problem((Option("final_seeds"),), rule=rule), Problem(("a--b",), rule=(SET,)))

    with pytest.raises(dml.InputError) as refused:
        refuse()
    said = "final_seeds: none (orchestrator sync a --to wandb); give num_trials"
    assert refused.value.problems == (said, "a--b: settings")


def test_a_search_is_the_one_that_the_command_line_resolves(storage: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    begun: list[Resolved] = []

    def start(search: Resolved, runner: object, **_: object) -> Any:
        begun.append(search)
        return type("Outcome", (), {"state": "done", "fault": None})()

    monkeypatch.setattr(driver, "start", start)
    monkeypatch.setattr(beginning, "runner_at", lambda address: None)
    dml.search("demo", name="a", epochs=3, settings={"delta": 0.2}, num_trials=5, storage=storage, progress=False)
    changes = {"num_trials": 5}
    expected = read_request("demo", "a", None, 3, ["delta=0.2"], changes, storage)
    assert begun[0] == expected
    space = {"delta": {"low": 0.1, "high": 0.35}, "lr": [1e-3, 1e-4]}
    dml.search("demo", name="b", space=space, storage=storage, progress=False)
    assert begun[1].raw_space == space and "lr" not in begun[1].settings and begun[1].settings["epochs"] == 12
    dml.search({"method": "pfml", "space": {"delta": [0.1]}, "num_trials": 1}, name="c", storage=storage)
    assert begun[2].settings["method"] == "pfml"
    with pytest.raises(dml.InputError, match="^names: one: name two or more searches$"):
        dml.compare("one")
    with pytest.raises(dml.InputError, match="nmu_trials: no such key of a search"):
        dml.search("demo", nmu_trials=3, storage=storage)


def test_to_import_it_is_to_import_nothing_heavy() -> None:
    code = (
        "import sys, orchestrator as dml\n"
        "assert callable(dml.search) and 'train' in dir(dml) and 'os' not in dir(dml)\n"
        "import orchestrator.search.control\n"
        "assert callable(dml.search)\n"
        "print([name for name in ('torch', 'ray', 'mlflow', 'pyarrow', 'numpy') if name in sys.modules])\n"
        "dml.train; dml.InputError\n"
        "print([name for name in ('torch', 'ray', 'mlflow', 'pyarrow', 'numpy') if name in sys.modules])\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n[]\n"


@pytest.mark.slow
def test_the_examples_of_the_page_run(
    tmp_path: Path, data_folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "runs").mkdir()
    (tmp_path / "runs" / "data").symlink_to(data_folder)
    page = (ROOT / "docs" / "python.md").read_text()
    names: dict[str, Any] = {}
    for block in re.findall(r"```python\n(.*?)```", page, re.DOTALL):
        exec(compile(block, "docs/python.md", "exec"), names)
    assert (tmp_path / "report.html").exists()
    assert len(names["search"].leaderboard()) == 4
