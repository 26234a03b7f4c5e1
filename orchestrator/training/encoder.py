"""The part of a trained network that gives embeddings, as it is exported, and what it costs."""

import time
import warnings
from statistics import median

import torch
from torch import Tensor, nn

from orchestrator.config.training import Experiment
from orchestrator.data.pipeline import Request, as_float
from orchestrator.data.splits import Split
from orchestrator.data.store import Store
from orchestrator.method import Method
from orchestrator.networks.lora import merge
from orchestrator.storage.costs import MEGABYTES, MILLISECONDS
from orchestrator.training.device import choose_device, memory_faults
from orchestrator.training.learner import Learner
from orchestrator.training.model_file import new_learner
from orchestrator.training.splits import leave_out, new_reader

WARM_UP, PASSES = 5, 20
"""Passes of one image before its time is taken, and those whose median it is."""


class Encoder(nn.Module):
    """uint8 images (B, H, W, channels) -> embeddings (B, D) in float32, normalised as the method does; or what its own
    `retrieval` makes of them, (B, 2, K) in float32: each image's row as a query, and its row as an item; or the `named`
    one of the method's `embeddings`, (B, K) in float32."""

    def __init__(self, learner: Learner, named: str | None = None) -> None:
        super().__init__()
        self.named, self.ranked = named, named is None and type(learner.method).retrieval is not Method.retrieval
        if self.ranked or named is not None:
            self.learner = learner
            return
        self.network = learner.network
        self.network.heads = nn.ModuleDict()  # only the embedding is needed
        self.normalize = learner.method.normalize

    def forward(self, images: Tensor) -> Tensor:
        scaled = images.permute(0, 3, 1, 2).to(torch.float32) / 255
        if self.named is not None:
            return self.learner.method.embeddings(self.learner.outputs(scaled))[self.named].to(torch.float32)
        if self.ranked:
            rows = self.learner.method.retrieval(self.learner.outputs(scaled))
            return torch.stack(list(rows), dim=1).to(torch.float32)
        embedding: Tensor = self.network(scaled)["embedding"]
        return self.normalize(embedding)


def measure_costs(experiment: Experiment, store: Store, split: Split) -> dict[str, float]:
    """The megabytes of a training's network as it would be exported, and the milliseconds that an image takes through
    it on the training's device, one at a time (`storage.costs.COSTS`).

    The training is the same whether or not this runs before it: it seeds all that it draws.
    """
    training = experiment.training
    torch.set_num_threads(training.threads)
    torch.manual_seed(training.seed)
    device = choose_device(training.device)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the training reports them
        leave_out(store, training)
    learner = new_learner(experiment, store, split).float().eval().requires_grad_(False)
    merge(learner.network)
    encoder = Encoder(learner).eval()
    size = sum(tensor.numel() * tensor.element_size() for tensor in [*encoder.parameters(), *encoder.buffers()])
    with new_reader(store, training) as reader:
        ((_, images),) = reader.read([Request(split.train[:1])])
    image = (as_float(images) * 255).round().to(torch.uint8).permute(0, 2, 3, 1).contiguous().to(device)
    encoder.to(device)
    times = []
    with memory_faults(training, validating=True), torch.no_grad():
        for _ in range(WARM_UP + PASSES):
            began = time.perf_counter()
            encoder(image).cpu()  # waits for a GPU
            times.append(time.perf_counter() - began)
    return {MEGABYTES: size / 1e6, MILLISECONDS: 1000 * median(times[WARM_UP:])}
