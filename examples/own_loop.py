"""PFML's energy in a PyTorch loop of one's own: trained on half of the characters, tested on the others.

The loss functions and the metrics are pure functions of tensors and arrays, the data set is images and labels: nothing
else of the orchestrator is needed.
"""

import tempfile

import torch
from torch import Tensor, nn
from torch.nn.functional import normalize

from methods.pfml import potential_energy
from orchestrator.data.catalog import open_dataset
from orchestrator.data.splits import class_split
from orchestrator.evaluation.metrics import evaluate_embeddings

CLASSES_PER_BATCH, IMAGES_PER_CLASS, DIMENSIONS, PROXIES_PER_CLASS = 16, 4, 32, 3


def map_at_r(network: nn.Module, images: Tensor, labels: Tensor) -> float:
    """MAP@R of these images among each other."""
    with torch.no_grad():
        embeddings = normalize(network(images), dim=1)
    return evaluate_embeddings(embeddings.numpy(), labels.numpy(), clustering=False)["map_at_r"]


def main(steps: int = 200) -> tuple[float, float]:
    """Train; the MAP@R of the test classes before and after."""
    torch.manual_seed(0)
    with tempfile.TemporaryDirectory() as folder:
        store = open_dataset("glyphs-small", folder)  # or a set that `orchestrator datasets prepare` made
        split = class_split(store, validation_share=0, seed=0)
        labels = torch.from_numpy(store.labels)
        images = store.images(range(len(store))).float() / 255
    train, test = torch.from_numpy(split.train), torch.from_numpy(split.test)
    side, classes = images.shape[-1], torch.unique(labels[train])
    network = nn.Sequential(
        *(nn.Conv2d(images.shape[1], 32, 3, stride=2, padding=1), nn.ReLU()),
        *(nn.Conv2d(32, 64, 3, stride=2, padding=1), nn.ReLU()),
        *(nn.Flatten(), nn.Linear(64 * (side // 4) ** 2, DIMENSIONS)),
    )
    proxies = nn.Parameter(torch.randn(len(classes) * PROXIES_PER_CLASS, DIMENSIONS))
    proxy_labels = classes.repeat_interleave(PROXIES_PER_CLASS)
    optimizer = torch.optim.AdamW([{"params": network.parameters(), "lr": 1e-3}, {"params": [proxies], "lr": 1e-1}])
    before = map_at_r(network, images[test], labels[test])
    rows_of = [train[labels[train] == label] for label in classes]
    for _ in range(steps):
        chosen = torch.randperm(len(classes))[:CLASSES_PER_BATCH]
        batch = torch.cat([rows_of[i][torch.randperm(len(rows_of[i]))[:IMAGES_PER_CLASS]] for i in chosen])
        embeddings = normalize(network(images[batch]), dim=1)
        energy = potential_energy(
            embeddings, labels[batch], normalize(proxies, dim=1), proxy_labels, delta=0.2, alpha=4
        )
        optimizer.zero_grad()
        energy.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    return before, map_at_r(network, images[test], labels[test])


if __name__ == "__main__":
    untrained, trained = main()
    print(f"MAP@R of characters that were not trained on: {untrained:.3f} untrained, {trained:.3f} trained")
