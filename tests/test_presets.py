"""The papers' settings: each number as the paper prints it, and the resolved text of every preset.

After a change that moves defaults on purpose: `.venv/bin/python tests/test_presets.py` writes tests/presets/ anew.
"""

import json
import re
import tomllib
from pathlib import Path
from typing import Any

import pytest

from orchestrator.cli.main import main
from orchestrator.config.files import find_search, read_scalar, read_yaml, shipped_searches
from orchestrator.config.presets import FOLDER, describe_preset, find_preset, preset_text, presets, presets_of, to_yaml
from orchestrator.config.resolve import beneath, resolve_search, single_training
from orchestrator.config.search import Search
from orchestrator.config.training import Experiment, resolve_experiment
from orchestrator.errors import InputError

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "docs" / "presets.md"
GOLDEN = ROOT / "tests" / "presets"
METHODS = sorted({name.split("/")[0] for name in presets()})


def experiment(name: str) -> Experiment:
    return resolve_experiment(find_preset(name).settings, name)


def holds(name: str, **numbers: Any) -> None:
    """The preset states these settings, and they are these."""
    stated = describe_preset(find_preset(name))["settings"]
    assert {key: stated.get(key, "not stated") for key in numbers} == numbers, name


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
    assert preset.settings["augmentation"] in ("random_crop_224", "random_resized_crop_227")
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
def test_the_resolved_text_is_the_one_checked_in(method: str) -> None:
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
    """`a/{b,c}` -> `a/b`, `a/c`."""
    before, brace, rest = pattern.partition("{")
    if not brace:
        return [pattern]
    choices, _, after = rest.partition("}")
    return [before + choice + end for choice in choices.split(",") for end in expand(after)]


def test_the_page_has_them_all() -> None:
    cells = [line.split("|")[1] for line in PAGE.read_text(encoding="utf-8").splitlines() if line.startswith("| `")]
    listed = [name for cell in cells for pattern in re.findall("`(.*?)`", cell) for name in expand(pattern)]
    assert sorted(listed) == list(presets())


def test_the_files_are_in_the_wheel() -> None:
    packages = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["hatch"]["build"]["targets"]["wheel"]
    assert FOLDER.parent.relative_to(ROOT).as_posix() in packages["packages"]
    assert len(list(FOLDER.glob("*.yaml"))) == 4


# The papers' numbers ---------------------------------------------------------------------------------------

# PFML, supplement, Table 8: lr, weight decay, batch size, BN freeze, warm-up, lr for proxies
TABLE_8 = {
    ("cub200", "resnet50"): (1e-4, 5e-4, 100, True, 1, 0.01),
    ("cub200", "bn_inception"): (1e-4, 5e-4, 180, True, 1, 0.01),
    ("cars196", "resnet50"): (1e-4, 1e-4, 100, True, 1, 0.01),
    ("cars196", "bn_inception"): (1e-4, 1e-4, 180, True, 1, 0.01),
    ("sop", "resnet50"): (1e-4, 5e-4, 100, False, 0, 0.01),
    ("sop", "bn_inception"): (1e-4, 5e-4, 180, False, 0, 0.01),
}


@pytest.mark.parametrize("method", ["pfml", "cpml"])
@pytest.mark.parametrize(("column", "numbers"), TABLE_8.items())
def test_table_8_of_pfml(method: str, column: tuple[str, str], numbers: tuple[Any, ...]) -> None:
    name = f"{method}/{'/'.join(column)}"
    lr, weight_decay, batch_size, frozen, warmup, proxy_lr = numbers
    holds(name, optimizer="adam", lr=lr, weight_decay=weight_decay, freeze_batch_norm=frozen, warmup_epochs=warmup)
    # Section 4.1: 200 epochs, M = 15 on CUB and Cars, 2 on SOP; Table 1: 512 dimensions
    holds(name, epochs=200, proxies_per_class=2 if column[0] == "sop" else 15, embedding_dim=512)
    resolved: Any = experiment(name)
    assert resolved.training.batch_size == batch_size
    assert resolved.training.lr * resolved.config.proxy_lr_multiplier == pytest.approx(proxy_lr)


@pytest.mark.parametrize("dataset", ["cub200", "cars196", "sop"])
@pytest.mark.parametrize("backbone", ["vit_small", "dino_small"])
def test_table_1_of_pfml_has_transformers(dataset: str, backbone: str) -> None:
    name = f"pfml/{dataset}/{backbone}"
    holds(name, embedding_dim=384, lr=1e-4, epochs=200, proxies_per_class=2 if dataset == "sop" else 15)
    assert {"weight_decay", "warmup_epochs", "classes_per_batch"} <= find_preset(name).unstated.keys()


IDML_OBJECTIVES = ["proxy_anchor", "proxy_nca", "multi_similarity", "contrastive", "triplet", "margin", "fast_ap"]


@pytest.mark.parametrize("dataset", ["cub200", "cars196", "sop"])
@pytest.mark.parametrize("objective", IDML_OBJECTIVES)
def test_section_4_1_of_idml(objective: str, dataset: str) -> None:
    name = f"idml/{dataset}/resnet50/{objective}"
    for preset in (name, f"{objective}/{dataset}/resnet50"):  # starred rows: "under the same settings"
        holds(preset, embedding_dim=512, optimizer="adamw", lr=1e-5, augmentation="random_crop_224")
        assert experiment(preset).training.batch_size == 120
        # the released code
        holds(preset, weight_decay=1e-4, epochs=60, lr_step_epochs=10, lr_gamma=0.5, warmup_epochs=1, clip_value=10)
        holds(preset, freeze_batch_norm=True, pooling="average+max")
    holds(name, objective=objective, tau=5, gamma=2 if dataset == "cars196" else 0, uncertainty_dim=512, mixup=True)
    if objective in ("proxy_anchor", "proxy_nca"):
        holds(name, proxy_lr_multiplier=100)
    if objective == "triplet":
        holds(name, mining="semihard")
    if objective == "proxy_nca":
        holds(name, metric="euclidean")  # Equation 15


@pytest.mark.parametrize(
    ("dataset", "lr", "every", "factor"),
    [("cub200", 6e-4, 5, 0.5), ("cars196", 2.5e-4, 10, 0.5), ("sop", 6e-4, 10, 0.25)],
)
def test_the_released_commands_of_idml(dataset: str, lr: float, every: int, factor: float) -> None:
    name = f"idml/{dataset}/resnet50/proxy_anchor_released"
    holds(
        name, objective="proxy_anchor", lr=lr, warmup_epochs=5, lr_step_epochs=every, lr_gamma=factor, weight_decay=1e-4
    )


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


# CCP: batches, number of proxies, pool (Section 5.1), validation interval; supplement: margins and so on
CCP_DATA = {
    "cub200": (8, 12, "25 steps"),
    "cars196": (8, 12, "25 steps"),
    "inshop": (4, 7, "250 steps"),
    "sop": (4, 7, "250 steps"),
}
C1 = {dataset: {"pos_margin": 0, "neg_margin": 0.5} for dataset in CCP_DATA}
C2 = {
    "cub200": {"pos_margin": 0, "neg_margin": 0.3841},
    "cars196": {"pos_margin": 0.2652, "neg_margin": 0.5409},
    "inshop": {"pos_margin": 0.2858, "neg_margin": 0.5130},
    "sop": {"pos_margin": 0.2858, "neg_margin": 0.5130},
}
TRIPLET = {
    "cub200": {"margin": 0.0961},
    "cars196": {"margin": 0.1190},
    "inshop": {"margin": 0.0451},
    "sop": {"margin": 0.0451},
}
MULTI_SIMILARITY = {
    "cub200": {"alpha": 2, "beta": 40, "base": 0.5, "epsilon": None},
    "cars196": {"alpha": 14.35, "beta": 75.83, "base": 0.66, "epsilon": None},
    "inshop": {"alpha": 8.49, "beta": 57.38, "base": 0.41, "epsilon": None},
    "sop": {"alpha": 2, "beta": 40, "base": 0.5, "epsilon": None},
}
SOFT_TRIPLE = {
    "cub200": {"proxies_per_class": 10, "la": 20, "gamma": 0.1, "tau": 0.2, "margin": 0.01},
    "cars196": {"proxies_per_class": 10, "la": 17.69, "gamma": 19.18, "tau": 0.0669, "margin": 0.3588},
    "inshop": {"proxies_per_class": 4, "la": 20, "gamma": 0.1, "tau": 0.2, "margin": 0.01},
    "sop": {"proxies_per_class": 4, "la": 100, "gamma": 47.9, "tau": 0.2, "margin": 0.3145},
}
VARIANTS: dict[str, tuple[str, str | None, dict[str, dict[str, Any]]]] = {
    "c1": ("contrastive", "euclidean", C1),
    "c1_cosine": ("contrastive", "cosine", C1),
    "c2": ("contrastive", "euclidean", C2),
    "multi_similarity": ("multi_similarity", None, MULTI_SIMILARITY),
    "triplet": ("triplet", None, TRIPLET),
}
ADAM: dict[str, Any] = {"optimizer": "adam", "lr": 1e-5, "weight_decay": 1e-4, "beta2": 0.99}
MLRC: dict[str, Any] = ADAM | {
    "embedding_dim": 128,
    "pooling": "average",
    "augmentation": "random_resized_crop_227",
    "protocol": "mlrc",
}


@pytest.mark.parametrize("dataset", CCP_DATA)
@pytest.mark.parametrize("variant", VARIANTS)
def test_section_5_1_of_ccp(variant: str, dataset: str) -> None:
    proxies, pool, interval = CCP_DATA[dataset]
    objective, metric, numbers = VARIANTS[variant]
    own: dict[str, Any] = {"objective": objective, "proximal_weight": 2e-4, "proxies_per_class": proxies}
    own |= {"pool_size": pool, "validate_every": interval, "patience": 3, "stop_after": 60, "pair_weight": 0}
    own |= {"warmup_epochs": 0, "proxy_lr_multiplier": 1} | numbers[dataset]
    own |= {} if metric is None else {"metric": metric}
    own |= {"average": "query"} if variant == "c1_cosine" else {}
    own |= {"mining": "all"} if variant == "triplet" else {}
    name = f"ccp/{dataset}/bn_inception/{variant}"
    holds(name, **MLRC, **own, classes_per_batch=8, images_per_class=4)  # 32 images, 4 per class
    if variant == "triplet":  # not in Tables 1 and 2
        assert f"{name}_conventional" not in presets()
        return
    for backbone, batch_size in (("bn_inception", 128), ("resnet50", 96)):
        conventional = f"ccp/{dataset}/{backbone}/{variant}_conventional"
        holds(conventional, **ADAM, **own, embedding_dim=512, pooling="average+max")
        assert experiment(conventional).training.protocol == "conventional"
        assert experiment(conventional).training.batch_size == batch_size


@pytest.mark.parametrize("dataset", CCP_DATA)
def test_what_ccp_compares_with(dataset: str) -> None:
    interval = CCP_DATA[dataset][2]
    pairs = {"classes_per_batch": 8, "images_per_class": 4, "validate_every": interval}
    for variant in ("c1", "c1_cosine", "c2"):
        _, metric, numbers = VARIANTS[variant]
        holds(f"contrastive/{dataset}/bn_inception/{variant}", **MLRC, **pairs, **numbers[dataset], metric=metric)
    holds(f"multi_similarity/{dataset}/bn_inception", **MLRC, **pairs, **MULTI_SIMILARITY[dataset])
    holds(f"triplet/{dataset}/bn_inception", **MLRC, **pairs, **TRIPLET[dataset])
    # 32 classes x 1, proxies' learning rate x100, one warm-up epoch
    proxies: dict[str, Any] = {"classes_per_batch": 32, "images_per_class": 1, "proxy_lr_multiplier": 100}
    proxies |= {"warmup_epochs": 1, "validate_every": interval}
    holds(f"proxy_anchor/{dataset}/bn_inception", **MLRC, **proxies, margin=0.1, alpha=32)
    holds(f"proxy_nca_plus_plus/{dataset}/bn_inception", **MLRC, **proxies, scale=1 / 0.1, metric="cosine")
    holds(f"soft_triple/{dataset}/bn_inception", **MLRC, **proxies, **SOFT_TRIPLE[dataset])
    # cross-batch memory, in batches of 32: (small, large)
    sizes = {"cub200": (3, 25), "cars196": (3, 25), "inshop": (100, 400), "sop": (400, 1400)}[dataset]
    for variant, numbers in (("c1", C1), ("c2", C2)):
        for size, batches in zip(("small", "large"), sizes, strict=True):
            name = f"contrastive/{dataset}/bn_inception/{variant}_xbm_{size}"
            holds(name, **MLRC, **pairs, **numbers[dataset])
            holds(name, references="batch+memory", memory_start=1000, memory_size=batches * 32)


@pytest.mark.parametrize("dataset", ["cub200", "cars196", "sop"])
@pytest.mark.parametrize("backbone", ["resnet50", "bn_inception"])
def test_section_4_a_of_anti_collapse(dataset: str, backbone: str) -> None:
    name = f"anti_collapse/{dataset}/{backbone}"
    for objective in ("proxy_anchor", "proxy_nca"):
        preset = f"{name}/{objective}"
        holds(preset, optimizer="adam", lr=1e-5, epsilon=0.5, proxies_per_class=1, form="mini_batch")
        holds(preset, objective=objective, embedding_dim=512, augmentation="random_crop_224")
        assert experiment(preset).training.batch_size == 90
        if dataset == "cub200":
            holds(preset, nu=0.0035)  # Figure 6
        else:
            assert "nu" in find_preset(preset).unstated
    holds(f"{name}/proxy_anchor", margin=0.1, alpha=32)
    holds(f"{name}/proxy_nca", metric="cosine")


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
        if key not in ("mining",)
    }
    # the file fixes another objective than the preset
    changed = search("ccp_grid", "ccp/cub200/bn_inception/multi_similarity")
    assert changed.example().config.model_dump()["beta"] == 40
    assert "neg_margin" not in changed.settings
    same = search("ccp_grid", "ccp/cars196/bn_inception/c2")
    assert same.example().config.model_dump()["neg_margin"] == 0.5409


SPACES = {"ccp": ["ccp_bayesian", "ccp_grid"], "pfml": ["pfml", "pfml_grid"]}


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
        ("train --preset pfml/cub200/resnet50/c2", ["'c2' should be left out", "pfml/cub200/resnet50"]),
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
    monkeypatch.setattr("orchestrator.config.presets.FOLDER", tmp_path)
    with pytest.raises(InputError, match="b.yaml: pfml/cub200/resnet50: another file has"):
        presets.__wrapped__()


if __name__ == "__main__":
    GOLDEN.mkdir(exist_ok=True)
    for old in GOLDEN.iterdir():
        old.unlink()
    for written in METHODS:
        (GOLDEN / f"{written}.yaml").write_text(golden(written), encoding="utf-8")
