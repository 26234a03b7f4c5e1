"""What many numbers are drawn from: on the CPU the step's own generator, on another device one of its own."""

from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import Pair
from support.training_loops import train, weights
from torch import Generator

import orchestrator.method
from orchestrator.check.subject import NETWORK, Run, Subject
from orchestrator.method import generator_on, registry
from orchestrator.training import engine
from orchestrator.training.distributed import rank

MANY: dict[str, dict[str, Any]] = {
    "hier": {"hierarchical_proxies": 20, "triplets": 5},
    "hib": {},
    "vmf_softmax": {},
    "pel": {},
    "idml": {"objective": "contrastive", "random_uncertainty": True},
    "dada": {},
}
"""Methods that draw many numbers in a step."""


def seeded(seed: int) -> Generator:
    return Generator().manual_seed(seed)


def other_generator(rng: Generator, device: torch.device) -> Generator:
    """As `generator_on` makes one on another device."""
    return Generator().manual_seed(int(torch.randint(2**62, (), generator=rng)))


def test_on_the_cpu_the_draws_are_those_of_the_step_s_own_generator() -> None:
    rng = seeded(0)
    before = rng.get_state()
    assert generator_on(rng, torch.device("cpu")) is rng and torch.equal(rng.get_state(), before)


def test_elsewhere_a_generator_is_seeded_by_it(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[torch.device] = []

    def generator(device: torch.device) -> Generator:
        made.append(device)
        return Generator()

    monkeypatch.setattr(orchestrator.method, "Generator", generator)
    first, again, later = seeded(0), seeded(0), seeded(1)
    gpu = torch.device("cuda", 1)
    drawn = [torch.rand(4, generator=generator_on(rng, gpu)) for rng in (first, again, later, first)]
    assert made == [gpu] * 4
    assert torch.equal(drawn[0], drawn[1]), "every rank draws the same"
    assert not torch.equal(drawn[0], drawn[2]) and not torch.equal(drawn[0], drawn[3])
    assert torch.equal(seeded(0).get_state(), again.get_state()) is False, "the seed is drawn"


@pytest.mark.parametrize("name", MANY)
def test_the_numbers_come_from_the_device_s_generator(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every large draw of a step is from the generator that `generator_on` gave, on that generator's device."""
    own: list[Generator] = []

    def given(rng: Generator, device: torch.device) -> Generator:
        own.append(other_generator(rng, device))
        return own[-1]

    drawn: list[tuple[int, bool]] = []
    for function in ("rand", "randn"):
        draw = getattr(torch, function)

        def recorded(*shape: Any, _draw: Any = draw, **more: Any) -> torch.Tensor:
            found: torch.Tensor = _draw(*shape, **more)
            generator = more.get("generator")
            placed = any(generator is one for one in own) and more.get("device") == own[-1].device
            drawn.append((found.numel(), placed))
            return found

        monkeypatch.setattr(torch, function, recorded)
    run = Run(Subject(registry()[name], MANY[name]))
    run.method.generator_on = given
    run.step()
    drawn.clear()  # of what was made for the first step
    run.step()
    assert drawn and all(placed for _, placed in drawn), drawn


@pytest.mark.parametrize("name", MANY)
def test_resumed_they_go_on(name: str, data_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With generators as on a GPU: each step's seed comes from the generator that is in the checkpoint."""
    monkeypatch.setattr(orchestrator.method, "generator_on", other_generator)
    settings = {"method": name, "backbone": NETWORK.name, "precision": "float32"} | MANY[name]
    whole = train(tmp_path / "whole", data_folder, settings, stop_after=2)
    train(tmp_path / "cut", data_folder, settings, stop_after=2, take=1)
    assert train(tmp_path / "cut", data_folder, settings, stop_after=2) == whole
    first, second = weights(tmp_path / "whole"), weights(tmp_path / "cut")
    assert all(torch.equal(first[key], second[key]) for key in first)


def as_on_a_gpu(folder: Path, data: Path, settings: dict[str, Any]) -> list[Any]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(orchestrator.method, "generator_on", other_generator)
        return train(folder, data, settings)


@pytest.mark.parametrize("name", MANY)
def test_two_processes_draw_what_one_does(name: str, data_folder: Path, tmp_path: Path, pair: Pair) -> None:
    settings = {"method": name, "backbone": NETWORK.name} | MANY[name]
    as_on_a_gpu(tmp_path / "one", data_folder, settings)
    first, second = pair.run(as_on_a_gpu, tmp_path / "two", data_folder, settings)
    one, two = weights(tmp_path / "one"), weights(tmp_path / "two")
    assert all(torch.allclose(one[key], two[key], rtol=0, atol=1e-10) for key in one)
    assert first == second


def on_the_cpu(names: tuple[str, str]) -> bool:
    """Whether a rank draws from the step's own generator where the two ranks' GPUs have these names."""
    device = torch.device("meta")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(engine, "name_of", lambda device: names[rank()])
        run = Run(Subject(registry()["hib"], {}))
        rng = seeded(0)
        return run.method.generator_on(rng, device) is rng


def test_unlike_gpus_draw_on_the_cpu(pair: Pair) -> None:
    """A GPU's generator gives other numbers on another type of GPU, and every rank must draw the same."""
    assert pair.run(on_the_cpu, ("an H100", "an A100")) == [True, True]
