"""What weight decay is to the gradient of the methods' own parameters, by the papers' settings at their start.

Adam adds weight_decay * w to the gradient before it takes the gradient's size out: a loss that is divided by a large
number then moves its proxies by the decay alone. AdamW keeps the two apart.
"""

import pytest
import torch
import torch.nn.functional as F
from torch import Generator, Tensor

from methods.ccp import CCP
from methods.pfml import CPML, PFML
from orchestrator.config.presets import presets
from orchestrator.config.training import Experiment, resolve_experiment
from orchestrator.method import Batch, Method, Outputs, Task, find_method
from orchestrator.training.optimizer import LearningRates

CLASSES = 100  # those of CUB's training half


def experiment(name: str) -> Experiment:
    return resolve_experiment(presets()[name].settings, name)


def with_adam() -> list[str]:
    """CUB's presets whose decay is coupled, one of those that differ in the backbone or in the protocol alone."""
    found: dict[tuple[str, int, str], str] = {}
    for name in presets():
        resolved = experiment(name)
        if resolved.training.dataset == "cub200" and resolved.training.optimizer == "adam":
            found.setdefault((resolved.method, resolved.training.embedding_dim, str(resolved.config)), name)
    return sorted(found.values())


def decay_over_gradient(kind: type[Method], resolved: Experiment) -> float | None:
    """||weight_decay w|| / ||dL/dw|| over the method's own parameters, on random unit embeddings; None without any."""
    training, size = resolved.training, resolved.training.batch_size
    torch.manual_seed(0)
    method = kind(resolved.config, Task(CLASSES, training.embedding_dim, 2048, batch_size=size))
    own = [parameter for parameter in method.parameters() if parameter.numel()]
    if not own:
        return None
    if isinstance(method, CCP):  # it starts from embeddings
        with torch.no_grad():
            own[0].copy_(F.normalize(own[0], dim=1))
    labels = torch.arange(training.classes_per_batch).repeat_interleave(training.images_per_class)
    z = F.normalize(torch.randn(size, training.embedding_dim)).requires_grad_()

    def network(images: Tensor) -> Outputs:
        return {"embedding": z}

    batch = Batch(torch.zeros(size, 1), labels[:, None], torch.arange(size))
    loss = torch.stack([term.double() for term in method.step(batch, network, Generator().manual_seed(0)).values()])
    gradients = torch.autograd.grad(loss.sum(), own)
    by_group = {
        p: g.get("weight_decay", training.weight_decay) for g in method.parameter_groups(1.0) for p in g["params"]
    }
    decayed = [by_group[parameter] * parameter for parameter in own]
    decay, gradient = (torch.cat([part.flatten() for part in parts]).norm().item() for parts in (decayed, gradients))
    ratio: float = decay / gradient
    return ratio


def test_the_gradient_of_a_paper_s_proxies_outweighs_their_weight_decay() -> None:
    ratios = {name: decay_over_gradient(find_method(name.split("/")[0]), experiment(name)) for name in with_adam()}
    found = {name: ratio for name, ratio in ratios.items() if ratio is not None}
    assert {"pfml", "cpml", "ccp", "anti_collapse", "proxy_anchor", "soft_triple"} <= {n.split("/")[0] for n in found}
    assert {name: ratio for name, ratio in found.items() if not ratio < 0.5} == {}


@pytest.mark.parametrize(("kind", "ratio"), [(PFML, 104), (CPML, 26)])
def test_a_division_by_the_number_of_points_would_be_seen(kind: type[PFML | CPML], ratio: float) -> None:
    class Divided(kind):  # type: ignore[misc,valid-type]
        def loss(self, outputs: Outputs, labels: Tensor) -> dict[str, Tensor]:
            points = len(labels) + len(self.proxies.labels)
            return {name: term / points for name, term in super().loss(outputs, labels).items()}

    resolved = experiment(f"{kind.name}/cub200/resnet50")
    divided, whole = decay_over_gradient(Divided, resolved), decay_over_gradient(kind, resolved)
    assert divided is not None and whole is not None
    assert divided == pytest.approx(ratio, rel=0.1) and whole == pytest.approx(divided / 1600, rel=1e-4)


if __name__ == "__main__":
    for preset in with_adam():
        if (measured := decay_over_gradient(find_method(preset.split("/")[0]), experiment(preset))) is not None:
            print(f"{preset:50} {measured:.3f}")


def test_learning_rates_fall_in_steps_of_whole_epochs() -> None:
    given = {"method": "pfml", "dataset": "cub200", "lr_step_epochs": 2, "lr_gamma": 0.5}
    training = resolve_experiment(given, "steps").training
    optimizer = torch.optim.SGD([{"params": [torch.zeros(1)], "lr": lr, "base_lr": lr} for lr in (0.8, 0.4)])
    seen = []
    for epoch in (0, 1, 2, 3, 4, 5, 1):  # of the epoch alone: one that is trained again has its own
        LearningRates(optimizer, training, steps_per_epoch=3).set(3 * epoch, epoch)
        seen.append([group["lr"] for group in optimizer.param_groups])
    assert seen == [[rate, rate / 2] for rate in (0.8, 0.8, 0.4, 0.4, 0.2, 0.2, 0.8)]
