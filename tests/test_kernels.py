"""The Triton kernels, in Triton's interpreter and compiled for a GPU that is not there; and who may ask for them."""

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from pydantic import ValidationError

from orchestrator.config.training import Training, resolve_experiment
from orchestrator.data.catalog import open_dataset
from orchestrator.data.splits import class_split
from orchestrator.errors import InputError
from orchestrator.method import Task, find_method
from orchestrator.training.model_file import new_learner

ROOT = Path(__file__).parents[1]
pytest.importorskip("triton")


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What tests/kernels.py finds: the interpreter is chosen when triton is imported, so in a process of its own."""
    environment = os.environ | {"TRITON_INTERPRET": "1", "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-W", "ignore", "tests/kernels.py", str(tmp_path_factory.mktemp("planted"))]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert not done.returncode, done.stderr
    answer: dict[str, Any] = json.loads(done.stdout)
    return answer


def test_values_and_gradients_are_those_of_float64(found: dict[str, Any]) -> None:
    errors = found["errors"]
    assert len(errors) == 48
    assert {name: error for name, error in errors.items() if not error <= 1} == {}


def test_planted_bugs_are_seen(found: dict[str, Any]) -> None:
    planted = found["planted"]
    assert len(planted) == 11
    assert {name: error for name, error in planted.items() if not error > 10} == {}


def test_no_matrix_of_all_pairs_is_made(found: dict[str, Any]) -> None:
    """Of 48 x 48 pairs; the most is a tile of 16 x 16 numbers for each of 3 blocks."""
    assert found["facts"]["largest tensor"] == 3 * 16 * 16 * 4


def test_what_is_no_number_or_has_no_force_or_is_asked_twice(found: dict[str, Any]) -> None:
    facts = found["facts"]
    assert (facts["not a number"], facts["without force"], facts["second derivatives"]) == (True, True, [])


# Compiled ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "rows"),
    [
        ("energy._pairs", 64),
        pytest.param("energy._pairs", 128, marks=pytest.mark.slow),
        ("log_sums._sums", 128),
        ("log_sums._weighted", 128),
    ],
)
def test_it_compiles_for_a_gpu_without_atomics_and_tf32(
    name: str, rows: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Triton compiles without a GPU. Products are fused multiplications and additions of float32 numbers. The
    energy's is compiled for its own tiles in the slow tests; for smaller ones it takes a third of the time."""
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    from triton.backends.compiler import GPUTarget  # type: ignore[import-not-found,unused-ignore]
    from triton.compiler import ASTSource, compile

    from methods.kernels import energy, log_sums, tiles

    kernel = {"energy": energy, "log_sums": log_sums}[name.split(".")[0]].__dict__[name.split(".")[1]]
    tile = replace(tiles.TILE, rows=rows, others=rows, width=rows)
    options = tile.options()
    constants = {"POWER": True, "GRADIENT": True, "ANCHORS": False, "OWN_LABELS": 1, "LABELS": 1} | options
    constants = {key: value for key, value in constants.items() if key in kernel.arg_names}
    kinds = {"labels": "*i64", "own_labels": "*i64", "other_labels": "*i64", "energies": "*fp64"}
    kinds |= dict.fromkeys(("count", "other_count", "dimensions", "first", "last", "part_size", "stride"), "i32")
    numbers = "near far radius alpha attraction repulsion slope core close rounding positive_slope negative_slope"
    kinds |= dict.fromkeys(numbers.split(), "fp32") | dict.fromkeys(constants, "constexpr")
    source = ASTSource(kernel, {key: kinds.get(key, "*fp32") for key in kernel.arg_names}, constants)
    made = compile(
        source,
        target=GPUTarget("cuda", 90, 32),
        options={key: value for key, value in options.items() if key not in constants},
    )
    assert made.asm["ptx"].count("fma.rn.f32") > 500 and made.asm["cubin"]
    for absent in ("atom.", "red.", "mma", "tf32"):
        assert absent not in made.asm["ptx"].replace("shared", "")
    assert made.metadata.shared <= 48 * 1024


# Who may ask for them ------------------------------------------------------------------------------------------------


def refusal(**settings: Any) -> str:
    with pytest.raises(ValidationError) as error:
        Training(**settings)
    return str(error.value.errors()[0]["msg"])


def test_kernels_need_a_gpu_and_float32() -> None:
    assert Training().kernels is None
    assert "kernels: 'triton': needs device: cuda, not auto" in refusal(kernels="triton")
    assert "not cpu" in refusal(kernels="triton", device="cpu")
    assert "not in precision: float64" in refusal(kernels="triton", device="cuda", precision="float64")
    Training(kernels="triton", device="cuda", precision="bf16")


def test_what_cannot_be_computed_is_refused_before_a_training(
    data_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = open_dataset("glyphs-small", data_folder)
    split = class_split(store, validation_share=0.3, seed=0)

    def learner(method: str) -> Any:
        settings = {"method": method, "kernels": "triton", "device": "cuda", "embedding_dim": 4}
        return new_learner(resolve_experiment(settings, "test"), store, split)

    assert learner("pfml").method._kernels == "triton"
    with pytest.raises(InputError, match="kernels: 'triton': triplet has none: leave it out"):
        learner("triplet")
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(InputError, match="kernels: 'triton' is not installed here: pip install triton, or leave"):
        learner("pfml")


@pytest.mark.parametrize(
    ("name", "config", "message"),
    [
        ("contrastive", {}, "kernels: 'triton': contrastive has none: leave it out"),
        ("soft_triple", {}, "soft_triple has none"),
        ("idml", {}, "idml has none"),
        ("proxy_nca", {"references": "batch"}, "references: proxies and metric: cosine or squared_euclidean, not for"),
        ("proxy_anchor", {"metric": "euclidean"}, "not for references: proxies and metric: euclidean"),
        ("pfml", {"delta": 1e-6, "alpha": 6.0}, "delta: 1e-06 and alpha: 6.0 give 1.0e+36, too much for float32"),
    ],
)
def test_methods_without_kernels_say_so(name: str, config: dict[str, Any], message: str) -> None:
    method = find_method(name)
    with pytest.raises(InputError) as error:
        method(method.Config(**config), Task(3, 4, 4)).use_kernels("triton")
    assert message in str(error.value)


def test_the_kernels_of_a_name_that_is_none_are_refused() -> None:
    from methods.pfml import potential_energy

    none = torch.zeros(0, 2), torch.zeros(0, dtype=torch.long)
    with pytest.raises(ValueError, match="kernels must be None or 'triton', got 'cuda'"):
        potential_energy(*none, *none, delta=0.2, alpha=4, kernels="cuda")
