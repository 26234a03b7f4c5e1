"""What the README shows is true: its plugin trains, its commands and files are accepted."""

import importlib
import re
import runpy
import shlex
import tomllib
from pathlib import Path
from types import ModuleType
from typing import Any

import click
import pytest
import typer

from orchestrator.check import CHECKS, verdicts
from orchestrator.cli.main import program
from orchestrator.cli.options import WrongOptions
from orchestrator.cli.starting import given_keys, read_request
from orchestrator.config.files import read_yaml
from orchestrator.config.resolve import resolve_search
from orchestrator.config.search import Search
from orchestrator.config.training import resolve_experiment
from orchestrator.data.catalog import open_dataset
from orchestrator.data.splits import class_split
from orchestrator.errors import InputError
from orchestrator.method import registry
from orchestrator.training.loop import fit

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "examples"
SEARCHING = [ROOT / "docs" / f"{name}.md" for name in ("search_files", "algorithms", "recipes")]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
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


def typed() -> list[str]:
    """What the pages tell to type, without its remarks; of a submitted job also the command that it runs."""
    lines = [line for page in PAGES for block in blocks(page, "bash") for line in block.splitlines()]
    lines = [line.split(" #")[0].split(" > ")[0].strip() for line in lines]
    return sorted({*lines, *(line.partition(" -- ")[2] for line in lines if line.startswith("ray job submit "))} - {""})


def context(command: str) -> typer.Context:
    """A line as the command line takes it; UsageError if it does not."""
    _, name, *arguments = shlex.split(command)
    subcommand = typer.main.get_command(program()).commands[name]  # type: ignore[attr-defined]
    return subcommand.make_context(name, arguments, resilient_parsing=False)  # type: ignore[no-any-return]


COMMANDS = [line for line in typed() if line.startswith("orchestrator ")]
HERE = "my-search|my_loss|my_search|NAME"
"""In searches that name what only their reader has."""
REFUSED = (typer.BadParameter.__mro__[1], click.UsageError, InputError, WrongOptions)
"""What a command line, Typer's or click's, and a search raise."""


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_shown_is_accepted(command: str) -> None:
    context(command)


def resolves(command: str, folder: Path) -> Search:
    parsed = context(command.replace("--dataset mine", "--dataset cub200"))  # a name that is known
    given: Any = parsed.params
    with parsed:
        return read_request(
            given["space"],
            given["name"],
            given["preset"],
            given["epochs"],
            given["set_"],
            given_keys(parsed),
            folder,
            ranges=given["range_"],
            prepared=False,
        )


@pytest.mark.parametrize("command", [c for c in COMMANDS if c.split()[1] == "search" and not re.search(HERE, c)])
def test_every_search_shown_resolves(command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    assert resolves(command, tmp_path).parameters()


@pytest.mark.parametrize("wrong", ["--set imagesper_class=4", "--scheduler ashe", "--epochs 0", "--nmae x"])
def test_a_search_that_is_shown_wrongly_is_refused(wrong: str, tmp_path: Path) -> None:
    with pytest.raises(REFUSED):
        resolves(f"orchestrator search demo {wrong}", tmp_path)


def accepts(line: str) -> None:
    """Raises if the program that a line begins with has no such command, option or extra."""
    program, *words = shlex.split(line)
    words = words[: words.index("--")] if "--" in words else words
    if program in ("ray", "mlflow"):
        module, name = {"ray": ("ray.scripts.scripts", "cli"), "mlflow": ("mlflow.cli", "cli")}[program]
        group = getattr(importlib.import_module(module), name)
        while hasattr(group, "commands"):
            group = group.commands[words.pop(0)]
        group.make_context(line, [*words, *(["x"] if "--" in line.split() else [])], resilient_parsing=False)
    if program == "sbatch":  # a script of ours, the search's name, and what `orchestrator search` takes
        place = next(place for place, word in enumerate(words) if word.startswith("deploy/"))
        assert (ROOT / words[place]).is_file()
        context(shlex.join(["orchestrator", "search", *words[place + 2 :]]))
    for wheel in re.findall(r"(dml_\w+-[\w.]+-py3-none-any\.whl)", line):
        assert wheel.split("-")[1] == PROJECT["version"], wheel
    extras = re.findall(r"\.whl\[([\w,]+)\]|--extra (\w+)", line)
    assert {extra for pair in extras for extra in "".join(pair).split(",")} <= PROJECT["optional-dependencies"].keys()
    from_index = "pip install" in line and "--no-index" not in line
    installs = from_index and re.search(r"[\s'](dml[-_]orchestrator[-_\w]*)(?![-\w]*\.whl)", line)
    assert not installs, f"{line}: that name is nobody's at the public index, or somebody else's"


OTHERS = [line for line in typed() if not line.startswith("orchestrator ")]
PROGRAMS = {"make", "python", "pip", "uv", "source", "export", "pytest", "ray", "mlflow", "scp", "chmod", "hf", "curl"}
PROGRAMS |= {"sbatch"}


@pytest.mark.parametrize("line", OTHERS)
def test_every_other_line_is_accepted(line: str) -> None:
    assert line.split()[0] in PROGRAMS
    accepts(line)


@pytest.mark.parametrize(
    "wrong",
    [
        "pip install dml-orchestrator",
        "uv pip install 'dml-orchestrator-review'",
        "uv pip install 'dml-orchestrator[export]'",
        "pip install ./dml_orchestrator-0.0.1-py3-none-any.whl",
        "uv sync --extra exports",
        "ray start --heads",
        "ray job submitt -- x",
        "sbatch deploy/joins.slurm my-search pfml",
        "sbatch deploy/join.slurm my-search pfml --num-trails 3",
        "mlflow server --allow-hosts x",
    ],
)
def test_a_line_that_is_wrong_is_told(wrong: str) -> None:
    with pytest.raises((AssertionError, KeyError, *REFUSED)):
        accepts(wrong)


def test_nowhere_is_our_unregistered_name_installed_from_the_index() -> None:
    for page in PAGES:
        for line in re.findall(r"`([^`\n]*pip install[^`\n]*)`", page.read_text(encoding="utf-8")):
            accepts(line)


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


@pytest.mark.parametrize("text", [text for page in SEARCHING for text in blocks(page, "yaml")])
def test_the_spaces_of_the_docs_resolve(text: str) -> None:
    from ruamel.yaml import YAML

    space = {"delta": {"low": 0.1, "high": 0.35}, "alpha": {"low": 0, "high": 6}}
    raw = {"space": space} | YAML(typ="safe", pure=True).load(text) | {"num_trials": 2}
    if "method" not in raw["space"]:
        raw["method"] = "pfml"
    resolve_search(
        raw, name="x", source="docs", find_settings=lambda name: [], find_expected=lambda name: [{"alpha": 1}]
    )


def anchors(page: Path) -> set[str]:
    """What a link can name in a page: its headings, as GitHub and the site write them."""
    text = re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
    headings = (heading.replace("`", "").lower() for heading in re.findall(r"^#+ (.+)$", text, re.MULTILINE))
    ids = re.findall(r'<a id="([^"]+)"', text)
    return {re.sub(r"[^\w\- ]", "", heading).strip().replace(" ", "-") for heading in headings} | set(ids)


def dead_links(text: str, place: Path) -> list[str]:
    """The links of a page's text that lead nowhere: no such file, or no such heading in it."""
    dead = []
    for target, anchor in re.findall(r"\]\(([^)#\s]*)(?:#([^)\s]+))?\)", text):
        file = (place.parent / target) if target else place
        if "://" not in target and (
            not file.exists() or (anchor and file.suffix == ".md" and anchor not in anchors(file))
        ):
            dead.append(f"{target}#{anchor}")
    return dead


@pytest.mark.parametrize("page", [*PAGES, ROOT / "CHANGELOG.md"], ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    assert dead_links(page.read_text(encoding="utf-8"), page) == []


def test_a_link_that_leads_nowhere_is_told() -> None:
    text = "[a](gpu.md) [b](gone.md) [c](gpu.md#precision) [d](gpu.md#the-file) [e](#words) [f](https://x.org/#y)"
    assert dead_links(text, ROOT / "docs" / "vocabulary.md") == ["gone.md#", "gpu.md#the-file"]


@pytest.mark.parametrize("name", ["own_photographs", "new_method", "cluster", "install"])
def test_the_pages_for_those_who_come_begin_with_what_to_type(name: str) -> None:
    """Within a screen of text, and the README leads to them before anything else."""
    page = (ROOT / "docs" / f"{name}.md").read_text(encoding="utf-8")
    assert len(page.partition("```bash\n")[0].split()) < 120 and len(page.split()) < 800
    door = (ROOT / "README.md").read_text(encoding="utf-8")
    assert f"docs/{name}.md" in door.partition("## Two commands")[0]
