"""The schema of search files against those that the program accepts and refuses; `init`; what the shell completes."""

import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import typer
from support.wrong_inputs import CASES, Case

from orchestrator.cli import completing
from orchestrator.cli.files import search_text
from orchestrator.cli.main import main
from orchestrator.config.files import read_yaml, shipped_searches
from orchestrator.config.resolve import resolve_search
from orchestrator.config.schema import COMMENT, search_schema
from orchestrator.config.search import FILE_KEYS
from orchestrator.config.training import Training
from orchestrator.errors import InputError
from orchestrator.plugins import installed_methods

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def validator() -> Any:
    schema = search_schema(installed_methods())
    jsonschema.Draft7Validator.check_schema(schema)
    return jsonschema.Draft7Validator(schema)


def run(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as leaving:
        main(words)
    printed = capsys.readouterr()
    return int(leaving.value.code or 0), printed.out, printed.err


def test_every_shipped_search_keeps_the_schema(validator: Any) -> None:
    for name, path in shipped_searches().items():
        assert [error.message for error in validator.iter_errors(dict(read_yaml(path)))] == [], name


def test_every_key_and_setting_is_described(validator: Any) -> None:
    schema = validator.schema
    assert set(schema["properties"]) == set(FILE_KEYS)
    assert all(key["description"] for key in schema["properties"].values())
    training = schema["definitions"]["training"]["properties"]
    assert set(training) == set(Training.model_fields)
    assert all(setting["description"] for setting in training.values())
    assert len(schema["allOf"]) - 3 == len(installed_methods())


WRONG: list[Case] = [case for case in CASES if case.command == "search {file}"]
UNSAYABLE = ("nan", "inf", "999", "e999", "60000", "1: 2")
"""What JSON cannot say: numbers that are not finite, integers of hundreds of digits, several values together, names
that are no text."""


def test_what_the_program_refuses_the_schema_refuses_where_it_can_say_it(validator: Any, tmp_path: Path) -> None:
    refused, accepted = 0, []
    for case in WRONG:
        path = tmp_path / "search.yaml"
        path.write_bytes(case.text if isinstance(case.text, bytes) else case.text.encode())
        try:
            content = dict(read_yaml(path))
        except InputError:
            continue  # an editor's parser refuses it
        if validator.is_valid(content):
            accepted.append(str(case.text).rstrip().rpartition("\n")[2])
        else:
            refused += 1
    assert refused >= 200
    assert [text for text in accepted if not any(word in text for word in UNSAYABLE)] == []


@pytest.mark.parametrize(
    "text",
    [
        "space: {lr: [0.1]}\nnum_trials: 1",  # no method
        "method: pfml\nspace: {lr: [0.1]}",  # no end
        "method: pfml\nnum_trials: 1\nspace: {margin: [0.1]}",  # of another method
        "method: pfml\nnum_trials: 1\nspace: {delta: {low: 0.1, high: 3}}",
        "num_trials: 1\nspace: {method: {choices: {pfml: {margin: [0.1]}}}}",
        "method: pfml\nnum_trials: 1\nspace: {lr: [0.1]}\nobjective: train/loss\n"
        "objectives: [train/loss, val/map_at_r]",
    ],
)
def test_what_is_wrong_among_several_keys(text: str, validator: Any, tmp_path: Path) -> None:
    (tmp_path / "search.yaml").write_text(text)
    content = read_yaml(tmp_path / "search.yaml")
    with pytest.raises(InputError):
        resolve_search(content, name="x", source="file")
    assert not validator.is_valid(dict(content))


def test_good_files_in_other_forms_keep_the_schema(validator: Any, tmp_path: Path) -> None:
    for text in (
        "method: pfml\nalgorithm: grid\nspace: [{delta: [0.1]}, {alpha: [1, 2]}]",
        "space: {method: [pfml, proxy_anchor], lr: {low: 1e-4, high: 1e-2, log: true}}\nbudget: {hours: 1.5}",
        "settings: {method: pfml, backbone: timm/resnet34}\nspace: {delta: {low: 0.1, high: 0.3, step: 0.1}}\n"
        "num_trials: 3\nscheduler: {name: asha}\nobjective: {metric: val/map_at_r, mode: max}\n"
        "start_from: [{delta: 0.2}]",
    ):
        (tmp_path / "search.yaml").write_text(text)
        content = read_yaml(tmp_path / "search.yaml")
        resolve_search(content, name="x", source="file")
        assert [error.message for error in validator.iter_errors(dict(content))] == []


def test_the_schema_is_printed_and_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, "schema")
    assert code == 0 and "method" in json.loads(out)["properties"]
    run(capsys, "schema", "--output", str(tmp_path / "s.json"))
    assert json.loads((tmp_path / "s.json").read_text()) == json.loads(out)


def test_the_search_that_init_writes_is_good_for_every_method(validator: Any, tmp_path: Path) -> None:
    for method in installed_methods():
        path = tmp_path / f"{method}.yaml"
        path.write_text(search_text(method, "glyphs", path.name))
        assert path.read_text().startswith(COMMENT)
        content = read_yaml(path)
        search = resolve_search(content, name="x", source=path.name)
        assert (search.dataset, search.settings["method"]) == ("glyphs", method)
        assert [error.message for error in validator.iter_errors(dict(content))] == [], method


ODD_NAMES = [
    "own: data", "#1", "- a", "yes", "null", "1e3", "it's", '"quoted"', "a # b", "{a}", "*x", "!tag", "a\nmethod: pml",
    "\udcff", "  lead", "%x", "@x", "a:", "[", "0x10", "~", "\x07", "\u2028", "naïve", "x" * 300,
]  # fmt: skip


@pytest.mark.parametrize("name", ODD_NAMES, ids=ascii)
def test_any_name_is_one_in_the_file_that_init_writes(tmp_path: Path, name: str) -> None:
    path = tmp_path / "odd.yaml"
    path.write_text(search_text("pfml", name, name))
    content = read_yaml(path)
    assert content["dataset"] == name and content["method"] == "pfml" and "space" in content
    assert len(path.read_text().splitlines()) == len(search_text("pfml", "glyphs", "x.yaml").splitlines())


def test_init_writes_the_file_and_the_schema_and_replaces_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    code, out, said = run(capsys, "init", "--method", "pfml", "--dataset", "glyphs")
    assert (code, out) == (0, "") and "orchestrator search pfml.yaml --dry-run" in said
    assert sorted(path.name for path in tmp_path.iterdir()) == ["pfml.yaml", "search.schema.json"]
    for words, says in {
        ("init", "--method", "pfml", "--dataset", "glyphs"): "FILE: pfml.yaml: exists",
        ("init", "--method", "pmfl", "--dataset", "glyphs"): "unknown method 'pmfl' (did you mean 'pfml'?)",
        ("init", "--dataset", "glyphs"): "--method: missing",
        ("init",): "--method, --dataset: missing",
        ("init", "pfml"): "error: --dataset: missing",
        ("init", "pfml", "--dataset", "glyphs"): "FILE: pfml.yaml: exists",
        ("init", "x.txt", "--method", "pfml", "--dataset", "glyphs"): "FILE: x.txt: should end in .yaml",
    }.items():
        code, _, said = run(capsys, *words)
        assert code == 2 and says in said and said.count("\n") == 1
    code, _, said = run(capsys, "init", "--method", "pmfl")
    assert code == 2 and "--dataset: missing" in said and "(did you mean 'pfml'?)" in said


def test_init_says_that_a_data_set_is_not_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """It writes the file all the same: the data set may be prepared later."""
    monkeypatch.chdir(tmp_path)
    code, _, said = run(capsys, "init", "pfml", "--dataset", "glyfs")
    assert code == 0 and (tmp_path / "pfml.yaml").exists()
    assert "note: unknown data set 'glyfs' (did you mean 'glyphs'?); prepare it before the search" in said
    for known in ("glyphs", "s3://bucket/mine"):
        code, _, said = run(capsys, "init", f"{known[:2]}.yaml", "--method", "pfml", "--dataset", known)
        assert code == 0 and "note" not in said


def test_the_shell_completes_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "pf_mine.yaml").touch()
    (tmp_path / "searches" / "first").mkdir(parents=True)
    (tmp_path / "searches" / "first" / "journal.jsonl").write_text("{}\n")
    context = typer.Context(typer.main.get_command(typer.Typer(callback=lambda: None)))
    context.params["storage"] = tmp_path
    monkeypatch.setenv("COMP_WORDS", "orchestrator search pfml --set de")

    def found(complete: completing.Complete, begun: str) -> list[str]:
        return complete(context, [], begun)

    assert found(completing.searches, "fi") == ["first"]
    assert found(completing.spaces, "pf") == ["pfml", "pfml_grid", "pf_mine.yaml"]
    assert found(completing.methods, "proxy_a") == ["proxy_anchor"]
    assert found(completing.datasets, "glyphs-s") == ["glyphs-small"]
    assert found(completing.presets, "pfml/cub200/resnet50/") == ["pfml/cub200/resnet50/text"]
    assert found(completing.settings, "del") == ["delta=", "delta_rep="]
    assert found(completing.settings, "lr_sch") == ["lr_schedule="]
    context.params["storage"] = tmp_path / "none"
    assert found(completing.searches, "") == []


def test_a_schedule_may_be_a_list_or_a_text(validator: Any) -> None:
    file: dict[str, Any] = {"method": "pfml", "space": {"lr": [0.1]}, "num_trials": 1}
    for schedule, sound in (
        ([{"from": 2, "alpha": 3.0}], True),
        ("from 2 alpha=3", True),
        (None, True),
        ([], False),
        ([{"alpha": 3.0}], False),
        ([{"from": 0, "alpha": 3.0}], False),
        ([{"from": 2, "alpha": "3"}], False),
        ([{"from": 2}], False),
    ):
        assert validator.is_valid(file | {"settings": {"schedule": schedule}}) == sound, schedule
