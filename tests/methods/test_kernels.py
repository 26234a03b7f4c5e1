"""The Triton kernels in Triton's interpreter, and who may ask for them."""

import json
import os
import subprocess
import sys
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

ROOT = Path(__file__).parents[2]
pytest.importorskip("triton")


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What support/kernels.py finds: the interpreter is chosen when triton is imported, so in a process of its own."""
    environment = os.environ | {"TRITON_INTERPRET": "1", "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-W", "ignore", "tests/support/kernels.py", str(tmp_path_factory.mktemp("planted"))]
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
