"""The page that gives each row of the papers' tables its command, and the commands of both pages, which resolve to the
settings that are printed."""

import itertools
import re
import runpy
import shlex
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support.printed_presets import PRINTED, meant

import orchestrator.report.published
from orchestrator.config.files import read_scalar
from orchestrator.config.presets import find_preset
from orchestrator.config.resolve import beneath, single_training
from orchestrator.config.training import resolve_experiment
from orchestrator.report.published import PublishedRow, beside, every_row, papers

ROOT = Path(__file__).parents[2]
PAGE = runpy.run_path(str(ROOT / "docs" / "write_tables_page.py"))
FILES = {paper: file for file, paper in PAGE["_names"]().items()}
EVERY = [result for paper in papers() for name in paper.tables for result in PAGE["results"](FILES[paper.paper], name)]
METRICS = sorted({metric for result in EVERY for metric in result.row.values})


def options(command: str) -> tuple[str, str | None, dict[str, Any], dict[str, str]]:
    """A command's verb, its preset, what it sets, and its other options."""
    words = shlex.split(command)
    preset, sets, others = None, {}, {}
    for key, value in itertools.pairwise(words):
        if key == "--set":
            name, _, text = value.partition("=")
            sets[name] = read_scalar(text)
        elif key == "--epochs":
            sets["epochs"] = int(value)
        elif key == "--preset":
            preset = value
        elif key.startswith("--"):
            others[key] = value
    return words[1], preset, sets, others


def settings_of(preset: str, sets: dict[str, Any]) -> dict[str, Any]:
    """What `train --preset ... --set ...` trains with."""
    fixed = beneath(find_preset(preset).settings, sets)
    return resolve_experiment(single_training("x", fixed | sets, preset=find_preset(preset)).settings, "x").flat()


def shown(page: str) -> list[str]:
    lines = (ROOT / "docs" / page).read_text(encoding="utf-8").splitlines()
    return list(
        dict.fromkeys(line.split("  #")[0].strip() for line in lines if line.startswith("orchestrator train --pre"))
    )


def test_the_page_is_up_to_date() -> None:
    """`make tables-page` writes it anew."""
    assert (ROOT / "docs" / "tables.md").read_text(encoding="utf-8") == PAGE["page"]()


def test_the_tables_of_a_released_code_are_run_by_its_presets() -> None:
    found = [result for result in EVERY if result.row.paper == "Proxy-Anchor"]
    assert len(found) == 6
    for result in found:
        preset = f"proxy_anchor/{result.row.dataset}/{result.row.backbone}/released"
        assert f"train --preset {preset} --set selection=test" in result.commands[0] and result.note == ""


def test_every_result_has_a_command_or_a_reason() -> None:
    assert len(EVERY) == len(every_row())
    assert all(bool(result.commands) != bool(result.reason) for result in EVERY)


# Commands and printed settings -----------------------------------------------------------------------------

DIVIDED = {"batch_size": {"classes_per_batch", "images_per_class"}, "proxy_lr": {"lr", "proxy_lr_multiplier"}}


def unprinted(command: str) -> list[str]:
    """What a command's training does not have as it is printed of its preset, but for what the command sets."""
    _, preset, sets, _ = options(command)
    assert preset is not None
    found = settings_of(preset, sets)
    found["batch_size"] = found["classes_per_batch"] * found["images_per_class"]
    found["proxy_lr"] = found["lr"] * found.get("proxy_lr_multiplier", 1)
    own = {key for key in sets if key != "weights"}
    wrong = []
    for group in (group for group in PRINTED if preset in meant(group["presets"])):
        for key, value in group["values"].items():
            if key in own or DIVIDED.get(key, set()) & own or (key not in found and "objective" in own):
                continue
            if found[key] != (pytest.approx(value) if isinstance(value, float) else value):
                wrong.append(f"{key} {found[key]!r}, printed {value!r}")
    return wrong


@pytest.mark.parametrize("page", ["protocols.md", "tables.md"])
def test_commands_resolve_to_the_printed_settings(page: str) -> None:
    commands = shown(page)
    assert len(commands) > 40
    assert {command: wrong for command in commands if (wrong := unprinted(command))} == {}


def test_a_command_with_another_value_would_be_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    command = "orchestrator train --preset pfml/cub200/resnet50 --set selection=test"
    assert unprinted(command) == [] and unprinted(command + " --set lr=1") == []
    changed = find_preset("pfml/cub200/resnet50")
    changed = replace(changed, settings=changed.settings | {"lr": 2e-4, "warmup_epochs": 0})
    monkeypatch.setattr(sys.modules[__name__], "find_preset", lambda _: changed)
    assert sorted(unprinted(command)) == [
        "lr 0.0002, printed 0.0001",
        "proxy_lr 0.02, printed 0.01",
        "warmup_epochs 0, printed 1",
    ]


# Commands and rows -----------------------------------------------------------------------------------------


def unlike_row(row: PublishedRow, command: str, monkeypatch: pytest.MonkeyPatch) -> set[str]:
    """The settings in which the command's training differs from its row, as `report` would say beside its numbers."""
    _, preset, sets, _ = options(command)
    assert preset is not None
    (paper,) = (one for one in papers() if one.paper == row.paper)
    alone = paper.model_copy(update={"tables": {row.table: paper.tables[row.table]}})
    rows = tuple(alone.rows())
    with monkeypatch.context() as patched:
        patched.setattr(orchestrator.report.published, "every_row", lambda: rows)
        found = [near for near in beside(settings_of(preset, sets), METRICS) if near.row == row and near.same_method]
    if not found:
        return {"method"}
    unsaid = {"selection", "condition"} | ({"embedding_dim"} if row.dimension is None else set())
    return {difference.setting for difference in found[0].differences} - unsaid - sets.keys()


def test_each_command_trains_its_row(monkeypatch: pytest.MonkeyPatch) -> None:
    trained = [
        (result.row, result.commands[0])
        for result in EVERY
        if result.commands and "train --preset" in result.commands[0] and not result.row.commands
    ]
    assert len(trained) > 300
    wrong = {}
    for row, command in trained:
        if "method" in (row.condition_settings or {}):
            continue  # Mixup over ProxyAnchor, which is another method here
        if differing := unlike_row(row, command, monkeypatch):
            wrong[row.paper, row.table, row.method, row.dataset] = differing
    assert wrong == {}


def test_a_command_of_another_row_would_be_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    row = next(result.row for result in EVERY if result.row.method == "C2-CCP-L" and result.row.dataset == "cars196")
    right = PAGE["result_of"](row, "ccp").commands[0]
    assert unlike_row(row, right, monkeypatch) == set()
    assert unlike_row(row, right.replace("c2_", "c1_"), monkeypatch) == {"method"}
    assert unlike_row(row, right.replace("bn_inception/", "resnet50/"), monkeypatch) == {"backbone"}


IDML_CARS = "idml/cars196/resnet50/proxy_anchor selection=test"
ANTI = "anti_collapse/cars196/resnet50/proxy_anchor selection=test"
LOW = "degradation=low_resolution degradation_probability=1 degradation_extent=0.446"


@pytest.mark.parametrize(
    ("where", "expected"),
    [
        (("PFML", "2", "Ours", None, "sop"), None),
        (("PFML", "2", "Ours", None, "cars196"), "pfml/cars196/resnet50 --repeats 5 selection=test label_noise=0.2"),
        (("PFML", "5", "ProxyNCA", None, "sop"), "proxy_nca/sop/resnet50 selection=test embedding_dim=64"),
        (("PFML", "6", "Ours", None, "cars196"), "pfml/cars196/bn_inception/mlrc --repeats 5 weights=bn_inception.pth"),
        (("PFML", "8", "Potential Field (Ours)", None, "sop"), "orchestrator presets pfml/sop/resnet50"),
        (
            ("PFML", "9", "Potential Field (Ours) M=20", None, "cars196"),
            "pfml/cars196/resnet50 --epochs 20 validation_share=0 proxies_per_class=20",
        ),
        (("IDML", "6", "Mixup-MDW", None, "sop"), "idml/sop/resnet50/margin selection=test tau=1000000000.0"),
        (("IDML", "8", "IDML", "Low-res + ISM (100×100)", "cars196"), f"{IDML_CARS} mixup=false {LOW}"),
        (("IDML", "7", "ProxyAnchor", "Mixup", "cars196"), f"{IDML_CARS} tau=1000000000.0"),
        (("IDML", "9", "IDML", "batch of 40", "cars196"), f"{IDML_CARS} classes_per_batch=10"),
        (("IDML", "11", "IDML", "uncertainty size 512", "cars196"), IDML_CARS),
        (
            ("CCP", "S1", "SoftTriple-S", None, "sop"),
            "soft_triple/sop/bn_inception proxies_per_class=1 weights=bn_inception.pth",
        ),
        (
            ("CCP", "1", "C1-CCP-L", None, "sop"),
            "ccp/sop/bn_inception/c1_conventional selection=test weights=bn_inception.pth",
        ),
        (("Anti-Collapse", "V", "pair", None, "cars196"), f"{ANTI} form=pair proxy_loss=false"),
        (
            ("Anti-Collapse", "III", "PA", None, "cub200"),
            "anti_collapse/cub200/bn_inception/proxy_anchor selection=test form=none weights=bn_inception.pth",
        ),
    ],
)
def test_some_commands(where: tuple[Any, ...], expected: str | None) -> None:
    keys = ("paper", "table", "method", "condition", "dataset")
    found = [one.commands for one in EVERY if tuple(getattr(one.row, key) for key in keys) == where]
    short = [
        [command.replace("orchestrator train --preset ", "").replace("--set ", "") for command in of] for of in found
    ]
    assert short[:1] == ([] if expected is None else [[expected]])


def test_the_commands_of_the_other_page_are_those_of_its_tables() -> None:
    """Two lists, each by its own rule: what protocols.md has for a table is what a row of that table is run with."""
    text = (ROOT / "docs" / "protocols.md").read_text(encoding="utf-8")
    sections = re.findall(r"^## ([\w-]+) \(.*?$(.*?)(?=^## |\Z)", text, re.MULTILINE | re.DOTALL)
    compared, missing = 0, []
    for paper, section in sections:
        for line, comment in re.findall(r"^(orchestrator train --preset .*?)  +# Tables? (.*)$", section, re.MULTILINE):
            tables = re.findall(r"[\dIVS]+\b", comment.split(":")[0])
            of = [one for one in EVERY if one.row.paper == paper and one.row.table in tables and one.commands]
            _, preset, sets, _ = options(line)
            assert preset is not None
            runs = {command for result in of for command in result.commands}
            same = [options(command) for command in runs if f" {preset} " in f"{command} "]
            wanted = settings_of(preset, sets)
            compared += 1
            if not any(settings_of(preset, more) == wanted for _, _, more, _ in same):
                missing.append((comment, preset))
    assert compared > 50
    assert missing == [
        ("8", "idml/cars196/resnet50/proxy_anchor"),  # the model whose uncertainties are the levels
        ("16", "idml/cub200/resnet50/proxy_anchor"),  # its data set is not said
        ("I, II", "anti_collapse/cub200/resnet50/proxy_anchor"),  # whose marks are not legible
        ("I, II", "anti_collapse/cub200/bn_inception/proxy_anchor"),
    ]
