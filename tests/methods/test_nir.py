"""NIR: the flow against a slow one, its determinant against the Jacobian matrix, and the loss."""

import math
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from support import references
from torch import Generator, Tensor

from methods.nir import Coupling, NonIsotropy, non_isotropy
from orchestrator.errors import InputError
from orchestrator.method import Batch, Task

slow: Any = references

D, C = 5, 3
LABELS = torch.tensor([[0, -1], [0, 1], [1, -1], [2, -1]])
PAIRS = [(0, 0), (1, 0), (1, 1), (2, 1), (3, 2)]
"""Samples and their proxies."""


def build(**settings: Any) -> NonIsotropy:
    torch.manual_seed(0)
    method = NonIsotropy(NonIsotropy.Config(blocks=2, depth=3, width=6, **settings), Task(C, D, D)).double()
    with torch.no_grad():
        for parameter in method.flow.parameters():
            parameter.mul_(2)  # so that the clamp matters
    return method


def batch() -> Tensor:
    return F.normalize(torch.randn(4, D, dtype=torch.float64, generator=Generator().manual_seed(1)), dim=1)


def plain(method: NonIsotropy) -> list[Any]:
    """The blocks, as the reference reads them."""

    def layers(network: Any) -> list[tuple[Tensor, Tensor]]:
        return [(layer.weight, layer.bias) for layer in network if hasattr(layer, "weight")]

    blocks = [block for block in method.flow if isinstance(block, Coupling)]
    return [(block.order.tolist(), layers(block.from_first), layers(block.from_second), 2.0) for block in blocks]


def terms(method: NonIsotropy, z: Tensor, labels: Tensor = LABELS) -> dict[str, Tensor]:
    given = Batch(torch.empty(0), labels, torch.arange(len(z)))
    return method.step(given, lambda images: {"embedding": z}, Generator())


@pytest.mark.parametrize("form", ["exp", "log"])
def test_the_loss_is_that_of_the_slow_flow(form: str) -> None:
    """Each pair of a sample and a proxy of one of its labels; the determinant is that of the Jacobian matrix."""
    method, z = build(form=form, proxy_weight=0.3), batch().requires_grad_()
    proxies, blocks = method.base.proxies(), plain(method)
    wanted = []
    for sample, proxy in PAIRS:

        def latent(x: Tensor, proxy: int = proxy) -> Tensor:
            result: Tensor = slow.flow(x, proxies[proxy], blocks)
            return result

        jacobian = torch.autograd.functional.jacobian(latent, z[sample], create_graph=True)  # type: ignore[no-untyped-call]
        likelihood = (latent(z[sample]) ** 2).sum() / 2 - torch.log(abs(torch.linalg.det(jacobian)))
        wanted.append(torch.exp(likelihood) if form == "exp" else likelihood)
    sets = [{int(label) for label in row if label >= 0} for row in LABELS]
    anchored = slow.proxy_anchor(z @ proxies.T, *slow.masks(sets, [{0}, {1}, {2}], same=False))
    found = terms(method, z)
    assert found["non_isotropy"].item() == pytest.approx(slow.mean(wanted).item(), rel=1e-10)
    assert found["proxy"].item() == pytest.approx(0.3 * anchored.item(), rel=1e-10)
    leaves = [z, method.base.proxies.weight, *method.flow.parameters()]
    both = found["non_isotropy"] + found["proxy"], slow.mean(wanted) + 0.3 * anchored
    gradients = [torch.autograd.grad(value, leaves, retain_graph=True) for value in both]
    for mine, theirs in zip(*gradients, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-10, atol=1e-10 * max(1, float(gradients[1][0].abs().max())))
    assert all(mine.abs().sum() > 0 for mine in gradients[0][:3])


def test_the_regulariser_by_hand() -> None:
    latents, log_determinants = torch.tensor([[1.0, 1.0], [0.0, 2.0]]), torch.tensor([0.0, 1.0])
    assert non_isotropy(latents, log_determinants).item() == pytest.approx(math.e)
    assert non_isotropy(latents, log_determinants, form="log").item() == pytest.approx(1)
    with pytest.raises(ValueError, match="form must be"):
        non_isotropy(latents, log_determinants, form="sum")  # type: ignore[arg-type]


def test_samples_without_a_label_leave_an_attached_zero() -> None:
    z = batch().requires_grad_()
    found = terms(build(), z, torch.full((4, 1), -1))["non_isotropy"]
    (gradient,) = torch.autograd.grad(found, z)
    assert found == 0 and torch.equal(gradient, torch.zeros_like(z))


def test_an_embedding_of_one_number_has_no_halves() -> None:
    with pytest.raises(InputError, match="embedding_dim should be at least 2, not 1"):
        NonIsotropy(NonIsotropy.Config(), Task(C, 1, D))
