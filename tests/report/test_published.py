"""The papers' tables: how many numbers there are, some of them by heart, and which are put beside a run."""

from functools import cache
from pathlib import Path
from typing import Any

import pytest

import orchestrator.report.published
from orchestrator.config.presets import FOLDER, read_presets
from orchestrator.config.training import Training, resolve_experiment
from orchestrator.errors import InputError
from orchestrator.method import find_method
from orchestrator.networks.backbones import architecture_of
from orchestrator.report.published import PublishedRow, Value, beside, every_row, in_percent, papers, read_paper

NUMBERS = {
    "Anti-Collapse": {"I": 204, "II": 101, "III": 12, "IV": 18, "V": 42, "VI": 26},
    "CCP": {"1": 38, "2": 47, "S1": 162, "S2": 168, "S3": 4},
    "IDML": dict(
        zip(map(str, range(1, 17)), [230, 82, 35, 10, 30, 144, 120, 90, 48, 36, 36, 24, 36, 36, 24, 6], strict=True)
    ),
    "HAPPIER": {"Results": 2},
    "Multi-Similarity": {"CUB-200-2011": 36},
    "Proxy-Anchor": {"CUB-200-2011": 8, "Cars-196": 8, "In-Shop": 5, "SOP": 4},
    "ProxyNCA++": {"Abstract": 4},
    "ROADMAP": {"Results": 2},
    "S2SD": {"Results": 3},
    "Smooth-AP": {"Results": 1},
    "PFML": {"1": 276, "2": 24, "3": 5, "4": 84, "5": 33, "6": 102, "7": 102, "8": 30, "9": 5},
}
"""Numbers per table; each was counted on the page."""


def rows(**wanted: Any) -> list[PublishedRow]:
    everything = every_row()
    return [row for row in everything if all(getattr(row, key) == value for key, value in wanted.items())]


def test_every_table_is_there() -> None:
    found = {
        paper.paper: {name: sum(len(r.values) for r in paper.rows() if r.table == name) for name in paper.tables}
        for paper in papers()
    }
    assert found == NUMBERS


@pytest.mark.parametrize(
    "where, metric, value",
    [
        (("PFML", "1", "Potential Field (Ours)", "cub200", "resnet50", 512, None), "recall_at_1", Value(0.734, 0.003)),
        (("PFML", "1", "HIER", "sop", "vit_small", 384, None), "recall_at_100", Value(0.98)),
        (("PFML", "2", "PA", "cars196", "resnet50", 512, None), "recall_at_2", Value(0.831)),
        (("PFML", "3", "Ours", "cub200", "resnet50", None, None), "proxy_wasserstein_distance", Value(0.16, 0.03)),
        (("PFML", "4", "Ours", "cars196", "resnet50", 64, None), "recall_at_8", Value(0.971, 0.001)),
        (("PFML", "7", "Ours", "cub200", "bn_inception", 128, None), "concatenated_map_at_r", Value(0.294, 0.003)),
        (("PFML", "6", "FastAP", "cars196", "bn_inception", 128, None), "map_at_r", Value(0.159, 0.003)),
        (("PFML", "8", "Potential Field (Ours)", "cars196", "bn_inception", 512, None), "weight_decay", Value(1e-4)),
        (("IDML", "1", "IDML-PA", "cars196", "resnet50", 512, None), "map_at_r", Value(0.338, 0.004)),
        (("IDML", "2", "IDML-MS", "sop", "resnet50", 512, None), "normalized_mutual_information", Value(0.912, 0.001)),
        (("IDML", "4", "IDML", "cifar100", None, None, "out of distribution: cifar10"), "auroc", Value(0.586)),
        (("IDML", "8", "IDML", "cars196", "resnet50", 512, "Blur + ISM (p=0.5)"), "uncertainty_trained", Value(5.99)),
        (("IDML", "10", "IDML", "sop", "resnet50", 1024, None), "recall_at_1", Value(0.817)),
        (("CCP", "1", "C2-CCP-L", "inshop", "bn_inception", 512, None), "recall_at_1", Value(0.9172)),
        (("CCP", "2", "C1-XBM", "sop", "resnet50", 128, None), "recall_at_1", Value(0.806)),
        (("CCP", "S2", "MS-CCP-L", "cars196", "bn_inception", 128, None), "concatenated_map_at_r", Value(0.2914)),
        (("Anti-Collapse", "II", "HSE", "sop", "resnet50", 512, None), "recall_at_10", Value(0.914)),
        (("Anti-Collapse", "III", "Anti-Collapse", "cub200", "bn_inception", 512, None), "coding_rate", Value(119.5)),
        (("Anti-Collapse", "V", "pair", "cars196", "resnet50", 512, None), "clustering_f1", Value(0.112)),
    ],
    ids=lambda value: "-".join(str(part) for part in value[:4]) if isinstance(value, tuple) else "",
)
def test_some_numbers(where: tuple[Any, ...], metric: str, value: Value) -> None:
    keys = ("paper", "table", "method", "dataset", "backbone", "dimension", "condition")
    (row,) = rows(**dict(zip(keys, where, strict=True)))
    found = row.values[metric]
    assert found.value == pytest.approx(value.value, abs=1e-12)
    assert found.deviation == (None if value.deviation is None else pytest.approx(value.deviation, abs=1e-12))


def test_names_are_this_project_s() -> None:
    for row in rows():
        if row.ours:
            settings = {"method": row.ours["method"], **row.ours, **row.settings}
            resolve_experiment(settings, f"{row.paper}, {row.method}")
            assert find_method(row.ours["method"])
        if row.backbone not in (None, "googlenet"):
            architecture_of(str(row.backbone))


def test_rows_of_a_paper_are_named_once() -> None:
    for paper in papers():
        printed = {row.method for row in paper.rows()}
        assert set(paper.methods) <= printed, "a method that no row has"


def run_settings(**changes: Any) -> dict[str, Any]:
    from orchestrator.config.presets import find_preset

    preset = find_preset("pfml/cub200/resnet50")
    return resolve_experiment({**preset.settings, **changes}, "test").flat()


def test_a_run_finds_its_paper() -> None:
    best = beside(run_settings(selection="test"), ["recall_at_1"])[0]
    assert (best.row.paper, best.row.table, best.row.method) == ("PFML", "1", "Potential Field (Ours)")
    assert [(d.setting, d.paper, d.run) for d in best.differences] == [("selection", "unstated", "test")]


def test_what_differs_is_said() -> None:
    found = beside(run_settings(embedding_dim=64, lr=1e-3, label_noise=0.1), ["recall_at_1"])
    by_table = {b.row.table: {d.setting: (d.paper, d.run) for d in b.differences} for b in found if b.same_method}
    assert by_table["4"] == {
        "selection": ("unstated", "validation"),
        "label_noise": (0, 0.1),
        "lr": (1e-4, 1e-3),
    }
    assert by_table["2"]["label_noise"] == (0.2, 0.1)
    closest = next(b for b in found if b.same_method and b.row.table == "1")
    assert (closest.row.backbone, closest.row.dimension) == ("resnet50", 512)


def test_other_methods_stand_beside_only_under_the_same_setup() -> None:
    others = [b.row for b in beside(run_settings(), ["recall_at_1"]) if not b.same_method]
    assert {"HIST", "IDML-PA", "MS+Metrix"} <= {row.method for row in others}
    setup = {(row.dataset, row.backbone, row.dimension, row.protocol, row.condition) for row in others}
    assert setup == {("cub200", "resnet50", 512, "conventional", None)}


def test_nothing_is_published_of_a_data_set_of_one_s_own() -> None:
    settings = resolve_experiment({"method": "pfml"}, "test").flat()
    assert settings["dataset"] == Training.model_fields["dataset"].default
    assert beside(settings, ["recall_at_1"]) == []


FILE = """\
paper: P
citation: c
source: s
methods: {}
tables:
  "1":
    title: t
    protocol: null
    selection: test
    dataset: cub200
    columns: [method, auroc]
    rows:
      - [A, 1.0]
"""


@pytest.mark.parametrize(
    "change, named",
    [
        (("[A, 1.0]", "[A, 1.0, 2.0]"), "tables.1: rows: row 1: 3 cells for 2 columns"),
        (("[A, 1.0]", "[A, about 1]"), "'about 1': neither a number"),
        (("    dataset: cub200\n", ""), "auroc: of which data set"),
        (("selection: test", "selection: tests"), "selection: 'tests'"),
        (("title: t", "tilte: t"), "tables.1.tilte: no such key"),
    ],
)
def test_a_broken_file_names_the_place(tmp_path: Path, change: tuple[str, str], named: str) -> None:
    path = tmp_path / "p.yaml"
    path.write_text(FILE)
    (row,) = read_paper(path).rows()
    assert row.values == {"auroc": Value(0.01)}
    read_paper.cache_clear()
    path.write_text(FILE.replace(*change))
    with pytest.raises(InputError, match="p.yaml") as caught:
        read_paper(path)
    assert named in str(caught.value)


def test_shares_are_shares() -> None:
    for row in rows():
        for metric, found in row.values.items():
            if in_percent(metric):
                assert 0 < found.value < 1 and (found.deviation is None or found.deviation < 0.05), (row, metric)


# Rows and presets ------------------------------------------------------------------------------------------

PAPER_OF = {"anti_collapse": "Anti-Collapse", "ccp": "CCP", "idml": "IDML", "pfml": "PFML"}
SETUP = ("backbone", "embedding_dim", "protocol", "label_noise", "condition")


@cache
def presets_by_paper() -> list[tuple[str, str, dict[str, Any]]]:
    """Each preset's paper, name and resolved settings; not those with another learning rate, which rows do not have."""
    return [
        (PAPER_OF[path.stem], preset.name, resolve_experiment(preset.settings, preset.name).flat())
        for path in sorted(FOLDER.glob("*.yaml"))
        if path.stem in PAPER_OF  # the others have released code alone
        for preset in read_presets(path)
        if not preset.name.endswith("/text")
    ]


def found_by_presets(of: str = "") -> dict[tuple[str, ...], set[str]]:
    """Each row of any paper that a preset finds as its own, under the row's setup and without a difference, and these
    presets; of each preset its own paper's rows."""
    metrics = sorted({metric for row in rows() for metric in row.values})
    found: dict[tuple[str, ...], set[str]] = {}
    for paper, name, settings in presets_by_paper():
        if of not in f"{paper}: {name}":
            continue
        found[name,] = set()
        for near in beside(settings, metrics):
            row, differing = near.row, {difference.setting for difference in near.differences}
            if not near.same_method or differing & set(SETUP):
                continue
            assert row.paper != paper or differing <= {"selection"}, (name, row, differing)
            if differing <= {"selection"}:
                key = (row.paper, row.table, row.method, row.dataset, str(row.backbone), str(row.dimension))
                found.setdefault(key, set()).add(name)
                found[name,] |= {row.method} if row.paper == paper else set()
    return found


def variants_of(names: set[str]) -> set[str]:
    """What the names do not have in common, without the protocol, which their setup has."""
    return {name.split("/")[-1].removesuffix("_conventional") for name in names}


def check_rows(found: dict[tuple[str, ...], set[str]]) -> set[str]:
    """Each row has one preset, but for those that a paper leaves open; the presets that have no row, by kind."""
    by_row = {key: names for key, names in found.items() if len(key) > 1}
    for (paper, _, method, *_), names in by_row.items():
        if method in ("C1", "C1-CCP-L"):  # of two readings
            assert variants_of(names) == {"c1", "c1_cosine"}, (method, names)
        elif any(name.endswith("_released") for name in names):  # text and released code differ
            assert variants_of(names) == {"proxy_anchor", "proxy_anchor_released"}, (method, names)
        else:
            assert len(names) == 1, (paper, method, names)
    assert {key[2] for key, names in by_row.items() if any(name.endswith("_released") for name in names)} >= {"IDML-PA"}
    wanted = {"c2": ("C2", "C2-CCP-L"), "c1_xbm_large": ("C1-XBM-L",), "c2_xbm_large": ("C2-XBM-L",)}
    alone = set()
    for (name,), methods in ((key, methods) for key, methods in found.items() if len(key) == 1):
        kind = name.split("/")[-1].removesuffix("_conventional")
        if kind in wanted:
            assert methods == {wanted[kind][-1 if name.startswith("ccp") else 0]}, name
        if not methods:
            alone.add(
                "/".join(
                    part if part not in ("cub200", "cars196", "inshop", "sop") else "*" for part in name.split("/")
                )
            )
    return alone


def test_every_row_that_a_preset_is_of_is_found_by_it_and_by_no_other() -> None:
    assert check_rows(found_by_presets()) == {
        "anti_collapse/*/bn_inception/proxy_anchor",  # Cars; Tables I and II do not tell which row
        "anti_collapse/*/bn_inception/proxy_anchor_released",
        "anti_collapse/*/resnet50/proxy_anchor_released",
        "anti_collapse/*/bn_inception/proxy_nca",  # an example of the paper's equations
        "anti_collapse/*/resnet50/proxy_anchor",  # SOP
        "anti_collapse/*/resnet50/proxy_nca",
        "ccp/*/bn_inception/c1_conventional_released",  # another margin than the supplement's, which the rows have
        "ccp/*/resnet50/c1_conventional_released",
        "contrastive/*/bn_inception/c1_xbm_small",  # in a figure only
        "contrastive/*/bn_inception/c2_xbm_small",
        "cpml/*/bn_inception",  # the paper has it with another backbone
        "soft_triple/*/bn_inception",  # SOP and In-Shop, whose rows have one centre
    }


@pytest.mark.parametrize(
    ("paper", "method", "mapped", "presets"),
    [
        ("CCP", "C2-CCP-L", {"method": "ccp", "objective": "contrastive", "metric": "cosine"}, "CCP: ccp/cub200"),
        ("CCP", "C1-XBM-L", {"method": "contrastive", "references": "batch+memory"}, "CCP: contrastive/cub200"),
        ("CCP", "MS-CCP-L", {"method": "ccp"}, "CCP: ccp/cub200"),
        ("PFML", "Contrastive", {"method": "contrastive"}, "CCP: contrastive/cub200"),
        ("PFML", "Contrastive", {"method": "contrastive", "references": "batch"}, "CCP: contrastive/cub200"),
        ("Anti-Collapse", "AntiCo", {"method": "anti_collapse"}, "Anti-Collapse: anti_collapse/cub200/resnet50"),
    ],
)
def test_a_row_mapped_too_widely_or_wrongly_would_be_seen(
    paper: str, method: str, mapped: dict[str, Any], presets: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def wrong(of: Any) -> Any:
        return of.model_copy(update={"methods": of.methods | {method: mapped}}) if method in of.methods else of

    changed = [
        wrong(known.model_copy(update={"tables": {name: wrong(table) for name, table in known.tables.items()}}))
        if known.paper == paper
        else known
        for known in papers()
    ]
    rows = tuple(row for known in changed for row in known.rows())
    monkeypatch.setattr(orchestrator.report.published, "every_row", lambda: rows)
    with pytest.raises(AssertionError):
        check_rows(found_by_presets(presets))
