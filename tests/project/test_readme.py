"""What the README shows is true: its plugin trains, its commands and files are accepted."""

import importlib
import re
import runpy
import shlex
from pathlib import Path
from types import ModuleType

import pytest
import typer

from orchestrator.check import CHECKS, verdicts
from orchestrator.cli.main import app
from orchestrator.config.files import read_yaml
from orchestrator.config.resolve import resolve_search
from orchestrator.config.search import Search
from orchestrator.config.training import resolve_experiment
from orchestrator.data.catalog import open_dataset
from orchestrator.data.splits import class_split
from orchestrator.method import registry
from orchestrator.training.loop import fit

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "examples"
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")), FOLDER / "README.md"]


def blocks(page: Path, language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL)


def module_of(source: str, name: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """Code of a page as a module that other processes find too."""
    (folder / f"{name}.py").write_text(source, encoding="utf-8")
    monkeypatch.syspath_prepend(str(folder))
    return importlib.import_module(name)


def examples() -> list[str]:
    """The methods of docs/your_own_method.md."""
    return [source for source in blocks(ROOT / "docs" / "your_own_method.md", "python") if "(Method):" in source]


ON_THE_PAGE = ["BinomialDeviance", "ProxyHinge", "Hardest", "Doubt", "Surgery", "Misled", "WorstFirst"]
CHECKED = ["Misled"]
"""Not trained."""
EXAMPLES = [*ON_THE_PAGE, "SoftMargin", "Mirror"]


@pytest.mark.parametrize("name", EXAMPLES)
def test_the_methods_of_the_pages_conform_and_train(
    name: str, data_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plugin = (FOLDER / "mirror" / "mirror" / "__init__.py").read_text(encoding="utf-8")
    sources = [*examples(), *blocks(ROOT / "README.md", "python"), plugin]
    (source,) = (source for source in sources if f"class {name}(Method)" in source)
    method = getattr(module_of(source, f"example_{name.lower()}", tmp_path, monkeypatch), name)
    assert [verdict for verdict in verdicts(method) if verdict.state != "passed"] == []
    if name in CHECKED:
        return
    monkeypatch.setitem(registry(), method.name, method)
    store = open_dataset("glyphs-small", data_folder)
    experiment = resolve_experiment({"method": method.name, "validate_every": "5 steps"}, "docs")
    split = class_split(store, validation_share=0.3, seed=0)
    first, second = fit(experiment, store, split, stop_after=2)
    assert set(first.metrics) >= {"train/loss", "val/map_at_r"}
    assert second.metrics["train/loss"] < first.metrics["train/loss"]
    for space in FOLDER.glob(f"{method.name}/*.yaml"):
        assert {parameter.key for parameter in resolved(space).space.parameters()} == set(method.Config.model_fields)


def resolved(path: Path) -> Search:
    return resolve_search(read_yaml(path), name="x", source=path.name)


def test_the_example_of_two_objectives_resolves() -> None:
    search = resolved(FOLDER / "two_objectives.yaml")
    assert search.second_objective is not None and len(search.start_from) == 1


def test_the_example_of_an_own_loop_learns() -> None:
    before, after = runpy.run_path(str(FOLDER / "own_loop.py"))["main"](steps=25)
    assert after > 1.1 * before


def test_the_pages_test_names_every_check(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert len(examples()) == len(ON_THE_PAGE)
    (test,) = (block for block in blocks(ROOT / "docs" / "your_own_method.md", "python") if block not in examples())
    page = module_of("\n".join([*examples(), test]), "example_page", tmp_path, monkeypatch)
    (mark,) = page.test_conforms.pytestmark
    names = {parameter.id for parameter in mark.args[1]}
    assert names == {f"{method}-{check}" for method in ON_THE_PAGE for check in CHECKS}
    check = next(parameter.values[0] for parameter in mark.args[1] if parameter.id == "Doubt-permutation")
    page.test_conforms(check)


def test_the_page_of_all_methods_is_up_to_date() -> None:
    """`make methods-page` writes it anew."""
    page = runpy.run_path(str(ROOT / "docs" / "write_methods_page.py"))
    text = (ROOT / "docs" / "methods.md").read_text(encoding="utf-8")
    told, _, checked = text.partition(page["CONFORMANCE"])
    assert told == page["documentation"]()
    for name in CHECKS:
        assert f"\n| {name} |" in checked
    _, _, table = checked.partition("\n| method | passed | not passed |\n| --- | --- | --- |\n")
    assert [row.split(" | ")[0].removeprefix("| ") for row in table.splitlines()] == sorted(registry())


def commands() -> list[str]:
    lines = [line for page in PAGES for block in blocks(page, "bash") for line in block.splitlines()]
    return sorted({line.split(" #")[0].strip() for line in lines if line.startswith("orchestrator ")})


@pytest.mark.parametrize("command", commands())
def test_every_command_shown_is_accepted(command: str) -> None:
    click_app = typer.main.get_command(app)
    _, name, *arguments = shlex.split(command)
    subcommand = click_app.commands[name]  # type: ignore[attr-defined]
    subcommand.make_context(name, arguments, resilient_parsing=False)


@pytest.mark.parametrize(
    "target", sorted(set(re.findall(r"^make (\S+)", (ROOT / "README.md").read_text(), re.MULTILINE)))
)
def test_every_make_target_shown_exists(target: str) -> None:
    assert re.search(rf"^{target}:", (ROOT / "Makefile").read_text(), re.MULTILINE)


def test_the_search_file_of_the_readme_resolves() -> None:
    from ruamel.yaml import YAML

    (text,) = blocks(ROOT / "README.md", "yaml")
    search = resolve_search(YAML(typ="safe", pure=True).load(text), name="x", source="README.md")
    assert search.settings["lr"] == 1e-3


@pytest.mark.parametrize("text", blocks(ROOT / "docs" / "searching.md", "yaml"))
def test_the_spaces_of_the_docs_resolve(text: str) -> None:
    from ruamel.yaml import YAML

    space = {"delta": {"low": 0.1, "high": 0.35}, "alpha": {"low": 0, "high": 6}}
    raw = {"space": space} | YAML(typ="safe", pure=True).load(text) | {"num_trials": 2}
    if "method" not in raw["space"]:
        raw["method"] = "pfml"
    resolve_search(raw, name="x", source="docs", find_settings=lambda name: [])


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#]+)\)", page.read_text(encoding="utf-8")):
        if "://" not in target:
            assert (page.parent / target).exists(), target
