"""What a training step of each method costs: recorded for all, shown, and a warning of the dry run."""

import json
from pathlib import Path

import pytest

import orchestrator.cli.describe
from orchestrator.cli.main import main
from orchestrator.method import registry
from orchestrator.report import method_costs as module
from orchestrator.report.method_costs import Costs, MethodCost, cost_of, dear_method, method_costs


def run(*words: str) -> None:
    with pytest.raises(SystemExit) as leaving:
        main(words)
    assert not leaving.value.code


def cost(seconds: float, times: float, megabytes: int, gpu_seconds: float | None = None) -> MethodCost:
    return MethodCost(seconds=seconds, times=times, megabytes=megabytes, gpu_seconds=gpu_seconds)


MADE = Costs(
    "a machine",
    "2026-11-26",
    {
        "proxy_anchor": {100: cost(0.01, 1.0, 3, 0.006), 10_000: cost(0.1, 1.0, 160, 0.006)},
        "triplet": {100: cost(0.02, 2.0, 3, 0.001), 10_000: cost(0.02, 0.2, 3)},
        "hier": {100: cost(0.3, 30.0, 40, 0.024), 10_000: cost(0.5, 5.0, 200, 0.072)},
    },
    "a GPU, 2026-11-27",
)


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "method_costs", lambda: MADE)


def test_every_built_in_method_is_measured() -> None:
    built_in = {name for name, method in registry().items() if method.__module__.startswith("methods.")}
    assert method_costs().of.keys() == built_in, "run benchmarks/method_costs.py"
    for name, cost in method_costs().of.items():
        assert (
            cost.keys() == ({100} if name in ("pfml", "cpml") else {100, 10_000})
            and min(min(cost[size].seconds, cost[size].gpu_seconds or 0) for size in cost) > 0
        )
    assert all(0.5 < cost.times < 2 for cost in method_costs().of["proxy_anchor"].values())


@pytest.mark.usefixtures("made")
def test_the_dearest_of_a_search_is_told_from_ten_times_another_on() -> None:
    assert dear_method(["hier"], 120) == (
        "hier: a training step takes 30 times the seconds of one of proxy_anchor, without the backbone's "
        "(a machine, 2026-11-26; orchestrator methods --cost)"
    )
    assert "takes 15 times the seconds of one of triplet," in str(dear_method(["triplet", "hier"], 100))
    assert "takes 25 times the seconds of one of triplet," in str(dear_method(["triplet", "hier"], 11_318))
    assert dear_method(["hier"], 11_318) is None and dear_method(["triplet", "proxy_anchor"], 100) is None
    assert "one of proxy_anchor, without the backbone's (a GPU, 2026-11-27;" in str(
        dear_method(["hier"], 11_318, on_gpu=True)
    )
    assert "takes 24 times the seconds of one of triplet," in str(dear_method(["triplet", "hier"], 100, on_gpu=True))
    assert dear_method(["hier"], 100, on_gpu=True) is None, "30 times on a CPU, 4 times there"
    assert dear_method(["triplet"], 11_318, on_gpu=True) is None, "it was not measured"
    assert dear_method(["of_a_plugin"], 100) is None and cost_of("of_a_plugin", 100) is None


@pytest.mark.usefixtures("made")
def test_the_command_shows_them(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(orchestrator.cli.describe, "method_costs", lambda: MADE)
    run("methods", "--cost")
    said = capsys.readouterr().out
    lines = [
        line.split() for line in said.splitlines() if line.split()[:1] in (["hier"], ["triplet"], ["proxy_anchor"])
    ]
    assert lines[:3] == [
        ["hier", "100", "30", "0.3", "40", "0.024"],
        ["triplet", "100", "2", "0.02", "3", "0.001"],
        ["proxy_anchor", "100", "1", "0.01", "3", "0.006"],
    ]
    assert lines[3][:3] == ["hier", "10,000", "5"] and "without a backbone: a machine, 2026-11-26" in said
    run("methods", "hier", "--json")
    assert json.loads(capsys.readouterr().out)["costs"]["100"] == {
        "seconds": 0.3,
        "times": 30.0,
        "megabytes": 40,
        "gpu_seconds": 0.024,
    }


@pytest.mark.usefixtures("made")
def test_the_dry_run_tells_it_of_one_method_and_warns_of_several(
    data_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "data").symlink_to(data_folder)
    small = [
        "--dataset",
        "glyphs-small",
        "--storage",
        str(tmp_path),
        "--epochs",
        "1",
        "--set",
        "device=cpu",
        "--dry-run",
    ]
    small += ["--set", "classes_per_batch=4", "--set", "images_per_class=2"]
    few = ["--set", "hierarchical_proxies=8", "--set", "triplets=2"]
    run("train", "--method", "hier", *small, *few, "--json")
    shown = capsys.readouterr()
    said = "hier: a training step takes 30 times the seconds of one of proxy_anchor, without"
    assert json.loads(shown.out)["cost"]["of the method"].startswith(said) and "hier" not in shown.err
    file = tmp_path / "both.yaml"
    file.write_text("space: {method: [triplet, hier]}\nalgorithm: grid\n")
    run("search", str(file), *small)
    assert (
        "warning: method: hier: a training step takes 15 times the seconds of one of triplet,"
        in capsys.readouterr().err
    )
