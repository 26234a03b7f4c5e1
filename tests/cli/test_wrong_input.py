"""Wrong search files and command lines: each is refused in one line for each problem, whatever stands in it."""

import contextlib
import copy
import math
import os
import re
import shlex
from pathlib import Path
from typing import Any

import pytest
from support.wrong_inputs import CASES, GOOD, HEAD, SPACE, Case

from orchestrator.cli.main import COMMANDS, main
from orchestrator.config.files import read_scalar, read_yaml, yaml_text
from orchestrator.config.resolve import resolve_search
from orchestrator.config.search import FILE_KEYS, VALIDATION_METRICS
from orchestrator.config.space import Parameter
from orchestrator.config.training import Training
from orchestrator.errors import InputError
from orchestrator.problems import SYNONYMS


def identity(case: Case) -> str:
    text = case.text if isinstance(case.text, str) else repr(case.text)
    shown = case.command if case.command != "search {file}" else text.removeprefix(HEAD).removeprefix(SPACE)
    return re.sub(r"[^\w=.,:{}-]+", " ", shown)[:60]


def run(line: str, capsys: pytest.CaptureFixture[str]) -> tuple[int, str]:
    with pytest.raises(SystemExit) as leaving:
        main(shlex.split(line))
    printed = capsys.readouterr()
    assert printed.out == ""
    return int(leaving.value.code or 0), printed.err


@pytest.mark.parametrize("case", CASES, ids=identity)
def test_wrong_input_is_one_line(
    case: Case, tmp_path: Path, data_folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("ORCHESTRATOR_STORAGE", "MLFLOW_TRACKING_URI", "RAY_ADDRESS"):
        monkeypatch.delenv(name, raising=False)
    storage = tmp_path / "storage"
    storage.mkdir()
    (storage / "data").symlink_to(data_folder)
    path = tmp_path / "search.yaml"
    path.write_bytes(case.text if isinstance(case.text, bytes) else case.text.encode())
    line = f"{case.command.replace('{file}', str(path))} --storage {storage}"
    code, said = run(line + ("" if case.command.startswith("datasets") else " --dry-run"), capsys)
    assert code == 2, said
    assert said.startswith("error: ") and len(said.splitlines()) == 1, said
    assert len(said) < 2500
    assert "Traceback" not in said
    for words in case.says:
        assert words in said
    assert [child.name for child in storage.iterdir()] == ["data"]


def test_there_are_at_least_150_of_them() -> None:
    assert len(CASES) >= 150


def test_the_good_file_is_good(tmp_path: Path) -> None:
    """Otherwise the others would say nothing."""
    path = tmp_path / "search.yaml"
    for text in (GOOD.encode(), GOOD.encode("utf-8-sig"), GOOD.replace("\n", "\r\n").encode(), f"---\n{GOOD}".encode()):
        path.write_bytes(text)
        assert read_yaml(path) == {
            "method": "pfml",
            "dataset": "glyphs-small",
            "num_trials": 2,
            "space": {"delta": {"low": 0.1, "high": 0.3}},
        }


def test_all_problems_of_a_file_and_of_the_options_are_told_at_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "search.yaml"
    path.write_text(
        "method: pfml\ndataset: glyphs-small\nnum_trials: many\nsettings:\n  lr: -1\n  detla: 3\n\n  epochs: 1.5\n"
        "space:\n  delta: {low: 0.4, high: 0.2}\n  alpha:\n    choices: 3\nscheduler: {name: asha, grace: 3}\n"
        "algorithm: tpee\nworkers: 5000\n"
    )
    code, said = run(f"search {path} --dry-run --storage {tmp_path / 'none'} --set clip_norm=-1 --set beta2=x", capsys)
    assert code == 2
    places = [
        "search.yaml, line 3: num_trials: 'many' should be a whole number",
        "--set: beta2: 'x': should be a number",
        "--set: clip_norm: -1: should be above 0",
        "search.yaml, line 6: settings: detla: no such setting of 'pfml' (did you mean 'delta'?)",
        "search.yaml, line 8: settings: epochs: 1.5: should be a whole number",
        "search.yaml, line 5: settings: lr: -1: should be above 0",
        "search.yaml, line 10: space.delta: low 0.4 is above high 0.2",
        "search.yaml, line 12: space.alpha: choices: 3: should be a list of values",
        "search.yaml, line 13: scheduler: grace: no such key",
        "search.yaml, line 14: algorithm: 'tpee' is unknown (did you mean 'tpe'?)",
        "search.yaml, line 15: workers: 5000: should be at most 1024",
    ]
    lines = [line.removeprefix("error: ") for line in said.splitlines()]
    assert len(lines) == len(places), said
    for place in places:
        assert any(line.startswith(place) for line in lines), place


def test_a_misspelt_data_set_and_bad_words_hide_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """In the order of the command line's words, the file's lines, and then the rest."""
    path = tmp_path / "search.yaml"
    path.write_text("num_trials: 0\nepoch: 3\nmethod: pfml\nspace: {delta: {low: 3, high: 1}}\ndataset: glyphs-smal\n")
    line = f"search {path} --storage {tmp_path} --set embeding_dim=1 --set oops --set lr=1 --set lr=2 --dry-run"
    code, said = run(line, capsys)
    assert code == 2
    begins = ["--set oops: should", "--set lr=2: lr is set twice", "search.yaml, line 1: num_trials: 0"]
    begins += ["search.yaml, line 2: epoch", "search.yaml, line 4: space.delta", "--set: embeding_dim: no such setting"]
    begins += ["unknown data set 'glyphs-smal' (did you mean"]
    lines = said.splitlines()
    assert len(lines) == len(begins)
    assert all(line.startswith(f"error: {begin}") for line, begin in zip(lines, begins, strict=True)), said


def test_all_wrong_options_are_told_at_once(capsys: pytest.CaptureFixture[str]) -> None:
    code, said = run("search demo --num-trials 0 --epochs x --seed -1 --final-protocol y", capsys)
    assert code == 2
    named = {line.split(":")[1].strip() for line in said.splitlines()}
    assert named == {"--num-trials", "--epochs", "--seed", "--final-protocol"}


MEANT = {
    "search pfml --set learning_rate=1e-4": "--set: learning_rate: no such setting of 'pfml' (did you mean 'lr'?)",
    "search pfml --set batch_size=64": "--set: batch_size: no such setting of 'pfml' (did you mean 'classes_per_batch' "
    "or 'images_per_class'?)",
    "search pfml --set zzz=1": "--set: zzz: no such setting of 'pfml' (see orchestrator settings, orchestrator methods "
    "pfml)",
    "search pfml --set lr 1e-4": "--set lr 1e-4: should read KEY=VALUE: --set lr=1e-4",
    "search pfml --lr=1e-4": "--lr: settings are given by --set: orchestrator search ... --set lr=1e-4",
    "search pfml --learning-rate 1e-4": "--learning-rate: settings are given by --set: orchestrator search "
    "... --set lr=1e-4",
    "search pfml --nmae x": "--nmae: no such option (did you mean '--name'?) (see orchestrator search --help)",
    "search pfml cub200": "'cub200': unexpected extra argument of search: did you mean orchestrator search SPACE "
    "--dataset cub200?",
    "train proxy_anchor": "'proxy_anchor': unexpected extra argument of train: did you mean orchestrator train "
    "--method proxy_anchor --dataset NAME?",
    "search --method pfml": "--method: search takes a search file, or the name of a shipped search: orchestrator "
    "search pfml",
    "search pfml --objective recall@1": "--objective: metric: 'recall@1': not a metric of a validation (did you mean "
    "'val/recall_at_1'?)",
    "--storage runs list": "--storage: options follow the command: orchestrator COMMAND --storage ...",
    "leaderboard": "no such command 'leaderboard' (did you mean 'report'?): orchestrator report my-search",
    "serch demo": "no such command 'serch' (did you mean 'search'?): orchestrator search demo",
    "frob": "no such command 'frob' (see orchestrator --help)",
    "search pfml --set backbone=resnet34": "--set: backbone: unknown backbone 'resnet34'; timm's is written "
    "timm/resnet34",
    "search pfml --algorithm bayes": "--algorithm: 'bayes' is unknown (known: auto, cmaes, gp, grid, nsga2, "
    "qmc, random, tpe)",
    "search pfml --range gamma=[1,2]": "--range.gamma: no such setting of 'pfml' (did you mean 'lr_gamma'?)",
    "search nope": "unknown search 'nope' (see orchestrator methods: most have a search of their name, and there are "
    "demo and method_comparison)",
    "datasets prepare imagenet": "NAME: no data set 'imagenet' to prepare (known: cars196, cifar10, cifar100, csv, "
    "cub200, emoji, folder, icons, inshop, nabirds, sop); images of your own: orchestrator datasets prepare "
    "folder --source DIR --name imagenet (see orchestrator datasets prepare --help)",
    "settings zzz": "WORD: no setting has 'zzz' in its name or meaning (all: orchestrator settings)",
}
"""What people type, and the first line of the answer."""


@pytest.mark.parametrize("line", MEANT)
def test_what_was_meant_is_told(line: str, capsys: pytest.CaptureFixture[str]) -> None:
    code, said = run(line, capsys)
    assert code == 2
    assert said.splitlines()[0] == f"error: {MEANT[line]}"
    assert all(line.startswith("error: --source: missing") for line in said.splitlines()[1:])


@pytest.mark.parametrize(
    ("written", "says"),
    [
        ("method: [proxy_anchor]", "method: ['proxy_anchor'] should be text: write method: proxy_anchor"),
        ("method: [a, b]", "method: ['a', 'b'] should be text; several methods are searched in space: method: [a, b]"),
        ("objective: [a, b]", "objective: ['a', 'b'] should be a name or a mapping; two objectives are written "
         "objectives: [a, b]"),
    ],
)  # fmt: skip
def test_a_list_in_place_of_a_word(written: str, says: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    key = written.partition(":")[0]
    kept = [line for line in GOOD.splitlines() if not line.startswith(f"{key}:")]
    (tmp_path / "search.yaml").write_text("\n".join([written, *kept]))
    code, said = run(f"search {tmp_path / 'search.yaml'} --dry-run", capsys)
    assert (code, said) == (2, f"error: search.yaml, line 1: {says}\n")


def test_a_missing_name_names_the_searches(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, said = run(f"status --storage {tmp_path}", capsys)
    assert said == f"error: NAME: missing; there is no search under {tmp_path} yet: orchestrator search demo\n"
    for age, name in enumerate(["newest", "older"]):
        (tmp_path / "searches" / name).mkdir(parents=True)
        path = tmp_path / "searches" / name / "journal.jsonl"
        path.write_text("{}\n")
        os.utime(path, (1e9 - age, 1e9 - age))
    code, said = run(f"stop --storage {tmp_path}", capsys)
    assert code == 2
    assert said == f"error: NAME: missing: under {tmp_path} there are newest, older (see orchestrator stop --help)\n"


@pytest.mark.parametrize("command", ["delete", "export --to onnx", "embed", "evaluate --dataset glyphs-small", "sync"])
def test_a_missing_search_names_the_searches(command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "searches" / "mine").mkdir(parents=True)
    (tmp_path / "searches" / "mine" / "journal.jsonl").write_text("{}\n")
    code, said = run(f"{command} --storage {tmp_path}", capsys)
    assert code == 2
    assert f": missing: under {tmp_path} there is mine" in said.splitlines()[0]


@pytest.mark.parametrize(
    ("key", "says"),
    [
        ("lr", "lr: no such key of a search: it is a setting, and belongs under settings"),
        (
            "learning_rate",
            "learning_rate: no such key of a search (did you mean 'lr'?); settings belong under settings",
        ),
        ("datset", "datset: no such key of a search (did you mean 'dataset'?)"),
    ],
)
def test_a_setting_among_the_keys_is_sent_to_its_place(
    key: str, says: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "search.yaml").write_text(GOOD + f"{key}: 1\n")
    code, said = run(f"search {tmp_path / 'search.yaml'} --dry-run", capsys)
    assert (code, said) == (2, f"error: search.yaml, line 5: {says}\n")


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("my.yam", "unknown search 'my.yam' (did you mean 'my.yaml'?)"),
        ("my", "unknown search 'my' (did you mean 'my.yaml'?)"),
        ("images", "images: is a folder, not a search file; name the file in it"),
        ("notes", "notes: a search file is named so that it ends in .yaml"),
    ],
)
def test_a_file_near_the_name_of_a_search_is_told(
    name: str, says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "my.yaml").write_text(GOOD)
    (tmp_path / "images").mkdir()
    (tmp_path / "notes").write_text(GOOD)
    code, said = run(f"search {name} --dry-run", capsys)
    assert (code, said) == (2, f"error: {says}\n")


def test_every_other_word_leads_to_something_that_exists() -> None:
    known = {*Training.model_fields, *FILE_KEYS, *VALIDATION_METRICS, *COMMANDS}
    meant = {word for words in SYNONYMS.values() for word in words}
    assert meant <= known
    assert not set(SYNONYMS) & (known)


@pytest.mark.parametrize(
    ("low", "high", "step", "values"),
    [
        (1e-13, 5e-13, 1e-13, [1e-13, 2e-13, 3e-13, 4e-13, 5e-13]),
        (0.1, 0.35, 0.05, [0.1, 0.15, 0.2, 0.25, 0.3, 0.35]),
        (0.0, 1e-15, 5e-16, [0.0, 5e-16, 1e-15]),
        (1.23456789012345, 3.5, 1.0, [1.23456789012345, 2.23456789012345, 3.23456789012345]),
        (1e9, 1e9 + 0.3, 0.1, [1e9, 1e9 + 0.1, 1e9 + 0.2, 1e9 + 0.3]),
    ],
)
def test_a_grid_has_its_decimals(low: float, high: float, step: float, values: list[float]) -> None:
    """Rounded to 12 places, steps of 1e-13 were five times 0."""
    parameter = Parameter("lr", "lr", "float", low=low, high=high, step=step)
    assert parameter.values() == values
    assert [parameter.take(value) for value in values] == values
    with pytest.raises(InputError, match="is not a step"):
        parameter.take(low + step / 2)


@pytest.mark.parametrize(
    "value", [{"lr": 1e-4, "a": [1, {"b": None}], "c": "no", "d": "2024-01-01"}, {"x": "é\u2028y"}]
)
def test_what_is_written_reads_the_same(tmp_path: Path, value: dict[str, Any]) -> None:
    (tmp_path / "a.yaml").write_text(yaml_text(value), "utf-8")
    assert read_yaml(tmp_path / "a.yaml") == value


def test_a_date_is_text_and_references_may_be_used(tmp_path: Path) -> None:
    assert read_scalar("2024-01-01") == "2024-01-01"
    (tmp_path / "a.yaml").write_text("a: &a {x: 1}\nb: *a\nc:\n  <<: *a\n  y: 2\n")
    assert read_yaml(tmp_path / "a.yaml") == {"a": {"x": 1}, "b": {"x": 1}, "c": {"x": 1, "y": 2}}


WHOLE: list[dict[str, Any]] = [
    {
        "method": "pfml",
        "settings": {"lr": 1e-3, "epochs": 3, "validate_every": "1 epoch"},
        "space": {"delta": {"low": 0.1, "high": 0.3, "step": 0.1}, "alpha": [1, 2]},
        "num_trials": 3,
        "budget": {"hours": 1},
        "start_from": [{"delta": 0.2, "alpha": 1}],
        "scheduler": {"name": "asha", "reduction_factor": 3},
        "objective": {"metric": "val/map_at_r", "mode": "max"},
        "seed": 3,
    },
    {
        "space": {"method": {"choices": {"pfml": {"delta": {"low": 0.1, "high": 0.3}}, "proxy_anchor": None}}},
        "num_trials": 3,
        "objectives": ["val/map_at_r", {"metric": "cost/seconds"}],
    },
    {"method": "pfml", "space": [{"delta": [0.1]}, {"alpha": [1, 2]}], "algorithm": "grid"},
]
ODD: list[Any] = [None, True, 0, -1, 10**30, 1e300, math.nan, math.inf, "", "x", "pfml", "delta", [], [1], [[]], [None]]
ODD += [{}, {"a": 1}, {1: 2}, {None: None}, {"choices": 3}, {"choices": {}}, {"choices": {"pfml": {"delta": 3}}}, b"x"]
ODD += [{"low": -1e308, "high": 1e308}, {"low": 1, "high": 2, "step": 1e-300}, {"type": "int", "low": 0, "high": 1e15}]


def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [path, *(place for key, item in inner for place in places(item, (*path, key)))]


def at(content: Any, path: tuple[Any, ...]) -> Any:
    for key in path:
        content = content[key]
    return content


@pytest.mark.parametrize("whole", range(len(WHOLE)))
def test_no_value_in_any_place_is_more_than_an_input_error(whole: int) -> None:
    """Every odd value, and every odd key, in each place of a search file."""
    tried = 0
    for path in places(WHOLE[whole]):
        for odd in ODD:
            changed: list[dict[str, Any]] = []
            if path:
                changed.append(copy.deepcopy(WHOLE[whole]))
                at(changed[-1], path[:-1])[path[-1]] = odd
            if isinstance(at(WHOLE[whole], path), dict) and not isinstance(odd, list | dict):
                changed.append(copy.deepcopy(WHOLE[whole]))
                at(changed[-1], path)[odd] = 3
            for content in changed:
                with contextlib.suppress(InputError):
                    resolve_search(content, name="x", source="file")
                tried += 1
    assert tried > 100
