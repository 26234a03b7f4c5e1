"""The papers' settings: each number as the paper prints it, and the resolved text of every preset.

After a change that moves defaults on purpose, `make goldens` writes tests/presets/ anew.
"""

import json
import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
from support.printed_presets import PRINTED, ROOT, meant

import orchestrator.config.presets
from orchestrator.cli.main import main
from orchestrator.config.files import find_search, read_scalar, read_yaml, shipped_searches
from orchestrator.config.presets import (
    FOLDER,
    find_preset,
    preset_text,
    presets,
    presets_of,
    read_presets,
    to_yaml,
)
from orchestrator.config.resolve import beneath, resolve_search, single_training
from orchestrator.config.search import Search
from orchestrator.config.training import Experiment, resolve_experiment
from orchestrator.errors import InputError

PAGE = ROOT / "docs" / "presets.md"
GOLDEN = ROOT / "tests" / "presets"
METHODS = sorted({name.split("/")[0] for name in presets()})


def experiment(name: str) -> Experiment:
    return resolve_experiment(find_preset(name).settings, name)


# Every preset ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", presets())
def test_a_preset_resolves(name: str) -> None:
    preset = find_preset(name)
    resolved = experiment(name).flat()
    assert [resolved[key] for key in ("method", "dataset", "backbone")] == name.split("/")[:3]
    assert preset.readings.keys() <= preset.settings.keys()
    assert preset.unstated.keys() <= resolved.keys() - preset.settings.keys()
    assert all(isinstance(why, str) and why for why in (*preset.readings.values(), *preset.unstated.values()))
    assert preset.source
    # a photograph needs a recipe of its size, whatever else a paper leaves open
    assert preset.settings["augmentation"].endswith(("crop_224", "crop_227"))
    assert single_training("x", preset.settings, preset=preset).preset == name


def golden(method: str) -> str:
    """The method's defaults, then each preset: what it states and what else is not the default."""
    defaults = resolve_experiment({"method": method}, method).flat()
    content: dict[str, Any] = {"defaults": defaults}
    for name in presets_of(method):
        stated = find_preset(name).settings
        resolved = experiment(name).flat()
        content[name] = {key: value for key, value in resolved.items() if key in stated or value != defaults[key]}
    return to_yaml(content, flow=None)


@pytest.mark.parametrize("method", METHODS)
def test_the_resolved_text_is_the_one_checked_in(method: str, request: pytest.FixtureRequest) -> None:
    if request.config.getoption("--update-goldens"):
        (GOLDEN / f"{method}.yaml").write_text(golden(method), encoding="utf-8")
    assert golden(method) == (GOLDEN / f"{method}.yaml").read_text(encoding="utf-8")


def test_nothing_else_is_checked_in() -> None:
    assert [path.stem for path in sorted(GOLDEN.iterdir())] == METHODS


def test_the_text_of_a_preset_reads_back() -> None:
    name = "ccp/cub200/bn_inception/multi_similarity"
    read = read_scalar(preset_text(find_preset(name)))
    assert read["name"] == name and read["source"].startswith("Gurbuz")
    assert read["settings"]["epsilon"] is None and read["defaults"]["freeze_batch_norm"] is True
    assert resolve_experiment(read["settings"], "x") == experiment(name)
    assert resolve_experiment(read["settings"] | read["defaults"], "x") == experiment(name)


def expand(pattern: str) -> list[str]:
    """`a/{b,{c,d}/e}` -> `a/b`, `a/c/e`, `a/d/e`."""
    inner = re.search("{([^{}]*)}", pattern)
    if inner is None:
        return [pattern]
    before, after = pattern[: inner.start()], pattern[inner.end() :]
    return list(dict.fromkeys(end for one in inner[1].split(",") for end in expand(before + one + after)))


def test_the_page_has_them_all() -> None:
    cells = [line.split("|")[1] for line in PAGE.read_text(encoding="utf-8").splitlines() if line.startswith("| `")]
    listed = [name for cell in cells for pattern in re.findall("`(.*?)`", cell) for name in expand(pattern)]
    assert sorted(listed) == list(presets())


def test_the_files_are_in_the_wheel() -> None:
    packages = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["hatch"]["build"]["targets"]["wheel"]
    assert FOLDER.parent.relative_to(ROOT).as_posix() in packages["packages"]
    assert len(list(FOLDER.glob("*.yaml"))) == 17


# The papers' numbers ---------------------------------------------------------------------------------------


def resolved_values(name: str) -> dict[str, Any]:
    """All settings, and what papers print in other terms."""
    found: Any = experiment(name)
    rates: dict[str, Any] = {"proxy_lr": found.training.lr * getattr(found.config, "proxy_lr_multiplier", 1)}
    return {**found.flat(), **rates, "batch_size": found.training.batch_size}


def differences(group: dict[str, Any]) -> list[str]:
    """The presets that do not have what is printed, with the setting and both values."""
    found = []
    for name in meant(group["presets"]):
        values = resolved_values(name)
        for key, printed in group["values"].items():
            same = values[key] == (pytest.approx(printed) if isinstance(printed, float) else printed)
            found += [] if same else [f"{name}: {key} {values[key]!r}, printed {printed!r}"]
    return found


@pytest.mark.parametrize("group", PRINTED, ids=lambda group: group["where"])
def test_presets_have_what_is_printed(group: dict[str, Any]) -> None:
    assert differences(group) == []


def test_a_wrong_value_is_seen() -> None:
    wrong = {"presets": "pfml/*/resnet50 -pfml/sop/*", "values": {"lr": 2e-4, "epochs": 200, "pooling": "max"}}
    assert differences(wrong) == [
        f"pfml/{dataset}/resnet50: {told}"
        for dataset in ("cars196", "cub200")
        for told in ("lr 0.0001, printed 0.0002", "pooling 'average', printed 'max'")
    ]


def test_all_that_presets_state_is_held_against_print() -> None:
    """But for the decisions, and for what a preset's name says."""
    held = {(name, key) for group in PRINTED for name in meant(group["presets"]) for key in group["values"]}
    words = {"classes_per_batch": "batch_size", "proxy_lr_multiplier": "proxy_lr"}
    assert [
        (name, key)
        for name, preset in presets().items()
        for key in preset.settings.keys() - {"method", "dataset", "backbone", "objective"} - preset.readings.keys()
        if not held & {(name, key), (name, words.get(key))}
    ] == []


@pytest.mark.parametrize("name", presets())
def test_a_preset_says_where_each_setting_stands(name: str) -> None:
    preset = find_preset(name)
    assert preset.settings.keys() - preset.where.keys() - preset.readings.keys() == {"method", "dataset", "backbone"}
    assert preset.where.keys() <= preset.settings.keys()
    lines = preset_text(preset).splitlines()
    for key, place in preset.where.items():
        assert any(line.startswith(f"  {key}: ") and line.endswith(f"# {place}") for line in lines), key


def test_a_place_goes_with_the_value_that_it_is_for(tmp_path: Path) -> None:
    file = tmp_path / "paper.yaml"
    file.write_text(
        "source: a\nlr: 1\nepochs: 2\nwhere: {text: [lr, epochs, nu, weight_decay]}\nmethods: {pfml: }\n"
        "datasets: {sop: {nu: 3}}\nbackbones: {resnet50: {weight_decay: 4}}\n"
        "variants: {null: , b: {lr: 5, weight_decay: 6, where: {table: [lr]}}}\n"
    )
    plain, changed = read_presets(file)
    assert plain.where == dict.fromkeys(["lr", "epochs", "nu", "weight_decay"], "text")
    assert changed.where == {"lr": "table", "epochs": "text", "nu": "text"}, "nothing is said of the new weight_decay"


@pytest.mark.parametrize(
    ("name", "metric"),
    [
        ("idml/cars196/resnet50/margin", "val/recall_at_1"),
        ("proxy_nca/sop/resnet50", "val/recall_at_1"),
        ("anti_collapse/cub200/resnet50/proxy_anchor", "val/recall_at_1"),
        ("ccp/cub200/bn_inception/c2", "val/map_at_r"),
        ("pfml/cub200/resnet50", "val/map_at_r"),
    ],
)
def test_a_preset_s_training_chooses_its_epoch_as_the_paper_does(name: str, metric: str) -> None:
    assert single_training("x", find_preset(name).settings).objective.metric == metric
    assert experiment(name).training.selection_metric in (metric, None)


def test_a_search_chooses_by_its_objective() -> None:
    found = search("idml", "idml/cars196/resnet50/triplet")
    assert found.objective.metric == "val/map_at_r" and "selection_metric" not in found.settings
    with pytest.raises(
        InputError, match=r"--set: selection_metric: 'val/recall_at_1': a search chooses by its objective"
    ):
        search("idml", "idml/cars196/resnet50/triplet", overrides={"selection_metric": "val/recall_at_1"})
    file = {"method": "pfml", "space": {"selection_metric": ["val/recall_at_1"]}}
    with pytest.raises(InputError, match="file: space: selection_metric: a search chooses by its objective"):
        resolve_search(file, name="x", source="file")


# Layers ----------------------------------------------------------------------------------------------------


def search(space: str, preset: str, **more: Any) -> Any:
    path = find_search(space)
    return resolve_search(read_yaml(path), name="x", source=path.name, preset=find_preset(preset), **more)


def test_a_preset_goes_over_the_file_and_beneath_the_options() -> None:
    assert read_yaml(find_search("pfml"))["settings"]["epochs"] == 20
    resolved = search("pfml", "pfml/sop/resnet50", overrides={"weight_decay": 0.0}, num_trials=3)
    training = resolved.example().training
    assert (training.epochs, training.weight_decay, training.warmup_epochs) == (200, 0.0, 0)
    assert (resolved.dataset, training.backbone, resolved.preset) == ("sop", "resnet50", "pfml/sop/resnet50")
    other = search("pfml", "pfml/sop/resnet50", dataset="glyphs", overrides={"epochs": 2})
    assert (other.dataset, other.example().training.epochs) == ("glyphs", 2)
    assert type(resolved).model_validate(resolved.model_dump()) == resolved


def test_what_is_searched_stays_searched() -> None:
    resolved = search("pfml", "pfml/sop/resnet50")
    assert {parameter.key for parameter in resolved.space.parameters()} == {"proxies_per_class", "delta", "alpha"}
    assert "proxies_per_class" not in resolved.settings
    pinned = search("pfml", "pfml/sop/resnet50", overrides={"proxies_per_class": 3})
    assert {parameter.key for parameter in pinned.space.parameters()} == {"delta", "alpha"}
    assert pinned.example().config.model_dump()["proxies_per_class"] == 3


def test_a_union_of_grids_takes_the_preset_where_it_does_not_search() -> None:
    resolved = search("pfml_grid", "pfml/sop/resnet50")
    points = resolved.space.grid()
    assert {point["proxies_per_class"] for point in points if "delta" in point} == {2}
    assert {point["proxies_per_class"] for point in points} == {0, 1, 2, 5, 10, 15, 20, 25, 30}
    # Figure 3: mean and deviation over five runs
    repeated = search("pfml_grid", "pfml/sop/resnet50", seeds=5).space.grid()
    assert [{k: v for k, v in point.items() if k != "seed"} for point in repeated if point["seed"] == 3] == points


def test_hyperparameters_stay_with_their_objective() -> None:
    # the space searches the objective: what the preset says of its own is not for the others
    resolved = search("idml", "idml/cars196/resnet50/proxy_nca")
    assert not {"objective", "metric"} & resolved.settings.keys()
    pinned = search("idml", "idml/cars196/resnet50/proxy_nca", overrides={"objective": "proxy_nca"})
    assert pinned.settings["metric"] == "euclidean"
    keys = {parameter.key for parameter in pinned.space.parameters()}
    assert {"tau", "gamma"} <= keys and not {"objective", "scale"} & keys
    # the options name another one
    other = search("idml", "idml/cars196/resnet50/triplet", overrides={"objective": "margin"})
    assert "mining" not in other.settings
    assert beneath(find_preset("idml/cars196/resnet50/triplet").settings, {"objective": "margin"}) == {
        key: value
        for key, value in find_preset("idml/cars196/resnet50/triplet").settings.items()
        if key not in ("mining", "margin")
    }
    # the file fixes another objective than the preset
    changed = search("ccp_grid", "ccp/cub200/bn_inception/multi_similarity")
    assert changed.example().config.model_dump()["beta"] == 40
    assert "neg_margin" not in changed.settings
    same = search("ccp_grid", "ccp/cars196/bn_inception/c2")
    assert same.example().config.model_dump()["neg_margin"] == 0.5409


def test_idml_s_figure_7_is_one_setting_at_a_time_with_seeds() -> None:
    """Figure 7: gamma 0 and tau 1, 3, 5, 7, 9; tau 5 and gamma 0 to 4; also on Cars196, whose preset has gamma 2."""
    resolved = search("idml_grid", "idml/cars196/resnet50/proxy_anchor", seeds=5)
    points = resolved.space.grid()
    shown = {(point["tau"], point["gamma"]) for point in points}
    assert shown == {(tau, 0) for tau in (1, 3, 5, 7, 9)} | {(5, gamma) for gamma in range(5)}
    assert len(points) == 9 * 5 and {point["seed"] for point in points} == set(range(5))
    assert all(resolved.experiment(point).flat()["gamma"] == point["gamma"] for point in points)


SPACES = {
    "ccp": ["ccp_bayesian", "ccp_grid", "ccp_batch_size"],
    "idml": ["idml", "idml_grid"],
    "pfml": ["pfml", "pfml_grid"],
}


@pytest.mark.parametrize("method", METHODS)
def test_the_shipped_searches_take_the_presets_of_their_method(method: str) -> None:
    names = [name for name in presets_of(method) if name.split("/")[1] == "cars196"]
    for space in SPACES.get(method, [method]):
        assert space in shipped_searches()
        for name in names:
            assert search(space, name).dataset == "cars196"


# The command line ------------------------------------------------------------------------------------------


def run(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as ended:
        main(words)
    out, err = capsys.readouterr()
    return int(ended.value.code or 0), out, err


def test_train_takes_a_preset(
    tmp_path: Path, data_folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    trained: list[Search] = []
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "cub200").symlink_to(data_folder / "glyphs-small")  # not read: it is refused before

    def record(one: Search, *_: Any, **__: Any) -> None:
        trained.append(one)
        raise InputError("far enough")

    monkeypatch.setattr("orchestrator.search.driver.start", record)
    command = ["train", "--preset", "pfml/cub200/resnet50", "--storage", str(tmp_path)]
    assert run(capsys, *command)[2] == "error: far enough\n"
    assert run(capsys, *command, "--dataset", "glyphs", "--set", "lr=0.1", "--method", "pfml")[0] == 2
    stated = find_preset("pfml/cub200/resnet50").settings
    assert [(one.preset, one.settings) for one in trained] == [
        ("pfml/cub200/resnet50", stated),
        ("pfml/cub200/resnet50", stated | {"dataset": "glyphs", "lr": 0.1}),
    ]
    assert trained[0].name.startswith("train-pfml-")


@pytest.mark.parametrize("command", ["train", "search pfml"])
def test_a_dry_run_needs_no_images(command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = [*command.split(), "--preset", "pfml/cub200/resnet50", "--dry-run", "--json", "--storage", str(tmp_path)]
    code, out, _ = run(capsys, *words)
    planned = json.loads(out)
    assert (code, planned["preset"], planned["settings"]["epochs"]) == (0, "pfml/cub200/resnet50", 200)
    assert planned["data set"].startswith("cub200 is not prepared: orchestrator datasets prepare cub200 --source DIR")
    assert "cost" not in planned and not list(tmp_path.iterdir())


def test_search_takes_a_preset(tmp_path: Path, data_folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "data").symlink_to(data_folder)
    command = ["search", "pfml", "--preset", "pfml/sop/resnet50", "--dataset", "glyphs-small", "--dry-run", "--json"]
    for assignment in ("backbone=small_cnn", "augmentation=affine", "classes_per_batch=4", "embedding_dim=8"):
        command += ["--set", assignment]
    code, out, _ = run(capsys, *command, "--storage", str(tmp_path))
    planned = json.loads(out)
    assert (code, planned["preset"]) == (0, "pfml/sop/resnet50")
    assert (planned["settings"]["epochs"], planned["settings"]["freeze_batch_norm"]) == (200, False)
    assert planned["space"].keys() == {"proxies_per_class", "delta", "alpha"}


def test_the_lists(capsys: pytest.CaptureFixture[str]) -> None:
    for named, listed in (((), presets()), (("cpml",), presets_of("cpml"))):
        code, out, note = run(capsys, "presets", *named)
        assert (code, out.splitlines()) == (0, list(listed)) and note.startswith("METHOD/DATASET/BACKBONE")
    code, out, _ = run(capsys, "presets", "pfml/cub200/resnet50")
    assert code == 0 and out == preset_text(find_preset("pfml/cub200/resnet50"))
    assert "supplement, Table 8" in out and "weight_decay: 0.0005" in out
    described = json.loads(run(capsys, "presets", "pfml/cub200/resnet50", "--json")[1])
    assert described["settings"]["epochs"] == 200 and described["unstated"]["delta"]
    assert {entry["name"] for entry in json.loads(run(capsys, "presets", "--json")[1])} == set(presets())
    last = run(capsys, "methods", "pfml")[1].splitlines()[-1]
    assert last == "presets: " + ", ".join(presets_of("pfml"))
    assert "presets:" not in run(capsys, "methods", "normalized_softmax")[1]


@pytest.mark.parametrize(
    ("command", "says"),
    [
        ("train --preset pfm/cub200/resnet50", ["no presets with method 'pfm'", "did you mean 'pfml'?"]),
        ("train --preset pfml/cub20/resnet50", ["--preset", "of pfml with dataset 'cub20'", "did you mean 'cub200'?"]),
        ("train --preset pfml/nabirds/resnet50", ["'nabirds'", "known: cars196, cub200, sop"]),
        ("train --preset pfml/cub200/resnet5", ["of pfml/cub200 with backbone", "did you mean 'resnet50'?"]),
        ("train --preset cpml/cub200/vit_small", ["'vit_small'", "known: bn_inception, resnet50"]),
        ("train --preset pfml", ["should read METHOD/DATASET/BACKBONE, for example pfml/"]),
        ("train --preset pfml/cub200", ["should read METHOD/DATASET/BACKBONE, for example pfml/cub200/bn_inception"]),
        ("train --preset pfml//resnet50", ["should read METHOD/DATASET/BACKBONE"]),
        ("train --preset pfml/cub200/resnet50/c2", ["with variant 'c2'", "(known: text)", "pfml/cub200/resnet50"]),
        ("train --preset ccp/cub200/bn_inception", ["BACKBONE/VARIANT", "c1, c1_conventional"]),
        ("train --preset ccp/cub200/bn_inception/c3", ["variant 'c3'"]),
        ("train --preset ccp/cub200/bn_inception/c2/x/y", ["'x/y' should be left out"]),
        ("train --preset ''", ["--preset", "empty"]),
        ("train --preset", ["--preset"]),
        ("train --preset pfml/cub200/resnet50 --method cpml", ["--method cpml", "is for 'pfml'", "keep one"]),
        ("train --preset pfml/cub200/resnet50 --set detla=0.2", ["detla", "did you mean 'delta'?"]),
        ("train --preset pfml/cub200/resnet50 --epochs 2 --set epochs=3", ["--epochs 2", "keep one"]),
        ("train", ["--method: missing", "--preset"]),
        ("train --method pfml", ["--dataset: missing"]),
        ("search pfml --preset pmfl/cub200/resnet50 --dry-run", ["'pmfl'", "did you mean 'pfml'?"]),
        ("search pfml --preset cpml/cub200/resnet50 --dry-run", ["is for 'cpml'", "pfml.yaml searches 'pfml'"]),
        ("search ccp_grid --preset triplet/cub200/bn_inception", ["is for 'triplet'", "ccp_grid.yaml searches 'ccp'"]),
        ("search method_comparison --preset pfml/cub200/resnet50", ["is for one method", "searches over methods"]),
        ("presets pfml/cub20/resnet50", ["NAME: pfml/cub20/resnet50", "did you mean 'cub200'?"]),
        ("presets normalized_softmax", ["no presets with method 'normalized_softmax'"]),
    ],
)
def test_a_bad_preset_is_one_good_line(
    command: str, says: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["" if word == "''" else word for word in command.split()]
    storage = [] if command.startswith("presets") or command.endswith("--preset") else ["--storage", str(tmp_path)]
    code, out, err = run(capsys, *words, *storage)
    assert (code, out) == (2, "")
    assert err.startswith("error: ") and err.count("\n") == 1, err
    for text in says:
        assert text in err
    assert not list(tmp_path.iterdir())


def test_two_files_with_the_same_preset(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("a", "b"):
        (tmp_path / f"{name}.yaml").write_text("methods: {pfml: }\ndatasets: {cub200: }\nbackbones: {resnet50: }\n")
    monkeypatch.setattr(orchestrator.config.presets, "FOLDER", tmp_path)
    with pytest.raises(InputError, match="b.yaml: pfml/cub200/resnet50: another file has"):
        presets.__wrapped__()


def test_those_of_a_method_are_those_of_all() -> None:
    methods = {preset.settings["method"] for preset in presets().values()}
    assert {name: one for method in methods for name, one in presets_of(method).items()} == dict(presets())
    assert presets_of("None") == {}
