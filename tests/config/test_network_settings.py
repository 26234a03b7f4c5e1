"""Layer normalisation, first weights and a frozen patch embedding: of the network, whatever its method."""

from typing import Any

import pytest
import timm
import torch
from pydantic import ValidationError
from torch import Tensor, nn

from orchestrator.check.subject import NETWORK
from orchestrator.config.shaping import untrained_key
from orchestrator.config.training import Experiment, Training, resolve_experiment
from orchestrator.errors import InputError
from orchestrator.networks.embedding import EmbeddingNetwork
from orchestrator.training.model_file import FileImages, build_learner
from orchestrator.training.optimizer import build_optimizer

IMAGES = torch.rand(5, 1, 12, 12, generator=torch.Generator().manual_seed(0))


def network(**settings: Any) -> EmbeddingNetwork:
    torch.manual_seed(0)
    return EmbeddingNetwork(NETWORK.build(1, False), 6, "average", **settings)


def by_hand(rows: Tensor) -> Tensor:
    return torch.stack([(row - row.mean()) / (row.var(unbiased=False) + 1e-5).sqrt() for row in rows])


@pytest.mark.parametrize("training", [True, False])
def test_layer_normalisation_is_of_each_image_in_training_and_at_test(training: bool) -> None:
    plain = network().train(training)
    features = plain.backbone(IMAGES).mean((2, 3))
    plain.heads["other"] = nn.Linear(16, 2)
    for layer_norm, wanted in (
        (None, plain.head(features)),
        ("features", plain.head(by_hand(features))),
        ("embedding", by_hand(plain.head(features))),
    ):
        made = network(layer_norm=layer_norm).train(training)
        made.heads["other"] = plain.heads["other"]
        outputs = made(IMAGES)
        torch.testing.assert_close(outputs["embedding"], wanted)
        seen = by_hand(features) if layer_norm == "features" else features
        torch.testing.assert_close(outputs["other"], plain.heads["other"](seen))
        assert made.state_dict().keys() == plain.state_dict().keys(), "it has no parameters"
    with pytest.raises(InputError, match="layer_norm: 'embedding': with embedding_dim: 1 it leaves a zero"):
        EmbeddingNetwork(NETWORK.build(1, False), 1, "average", layer_norm="embedding")


def test_the_first_weights_of_the_embedding_layer() -> None:
    orthogonal, kaiming, own = (network(head_init=name).head for name in ("orthogonal", "kaiming", None))
    torch.testing.assert_close(orthogonal.weight @ orthogonal.weight.T, torch.eye(6))
    wide = EmbeddingNetwork(NETWORK.build(1, False), 4096, "average", head_init="kaiming").head.weight
    assert float(wide.detach().std()) == pytest.approx((2 / 4096) ** 0.5, rel=0.05)
    assert not orthogonal.bias.any() and not kaiming.bias.any() and own.bias.any()


def experiment(**settings: Any) -> Experiment:
    return resolve_experiment({"method": "proxy_anchor", "embedding_dim": 8, "weights": "random"} | settings, "test")


def test_a_frozen_patch_embedding_is_in_no_group_and_keeps_its_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    tiny = timm.create_model("vit_tiny_patch16_224", depth=1, embed_dim=24, num_heads=2, img_size=32, num_classes=0)
    monkeypatch.setattr(timm, "create_model", lambda *_, **__: tiny)
    given = {"backbone": "timm/vit_tiny_patch16_224", "freeze_patch_embedding": True, "image_size": 32}
    chosen = experiment(**given)
    learner = build_learner(chosen, FileImages(3), num_classes=3)
    patches = {id(parameter) for parameter in learner.network.backbone.network.patch_embed.parameters()}  # type: ignore[union-attr]
    optimizer = build_optimizer(learner, chosen.training)
    trained = {id(parameter) for group in optimizer.param_groups for parameter in group["params"]}
    assert patches and not patches & trained and {id(learner.network.head.weight)} <= trained
    with pytest.raises(InputError, match="freeze_patch_embedding: true: this backbone embeds no patches"):
        build_learner(experiment(freeze_patch_embedding=True), FileImages(1), num_classes=3)


def test_the_untrained_networks_score_depends_on_them_and_old_scores_keep_their_keys() -> None:
    plain = experiment().flat()
    without = {key: value for key, value in plain.items() if key not in ("layer_norm", "head_init")}
    assert untrained_key(plain, "d") == untrained_key(without, "d")
    keys = {
        untrained_key(experiment(**given).flat(), "d")
        for given in ({"layer_norm": "features"}, {"head_init": "kaiming"})
    }
    assert len(keys | {untrained_key(plain, "d")}) == 3
    with pytest.raises(ValidationError):
        Training(layer_norm="both")  # type: ignore[arg-type]


def test_a_model_is_evaluated_with_its_layer_normalisation() -> None:
    chosen = experiment(layer_norm="embedding")
    learner = build_learner(chosen, FileImages(1), num_classes=3).eval()
    rows = learner.outputs(torch.rand(4, 1, 32, 32))["embedding"]
    torch.testing.assert_close(rows.mean(1), torch.zeros(4), rtol=0, atol=1e-6)
    torch.testing.assert_close(rows.norm(dim=1), torch.ones(4))
