"""How one training step scales over processes with the same global batch, and what gathering the embeddings costs.

    python benchmarks/workers.py [--workers 1 2 4] [--backbones small_cnn resnet18] [--batch 64] [--pixels 64]
    python benchmarks/workers.py --device cuda --workers 1 2 4 8        # NCCL, a process per GPU; not run yet

The step is the training loop's: this package's learner (ProxyAnchor) under DDP, each process with one thread and its
block of the batch, embeddings gathered, the loss of the whole batch in every process, backward, optimiser. No images
are read, nothing is validated. Numbers of processes take turns, `--rounds` of `--steps` steps each.

Given are rank 0's median step; in it the gather, forward and backward, for which the ranks meet first, so that it is
the sending and not the waiting for the slowest; and what is left of a step that does not average gradients (`no_sync`).
"""

import argparse
import contextlib
import multiprocessing
import os
import queue
import statistics
import tempfile
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from orchestration import machine

CLASSES = 100
Seconds = tuple[list[float], list[float], list[float]]


def train(rank: int, world: int, folder: str, backbone: str, arguments: argparse.Namespace, answers: Any) -> None:
    """One process. Rank 0 answers with the seconds of its steps, of their gathers, and of steps under `no_sync`."""
    import torch
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel

    from orchestrator.method import Batch, Task, find_method
    from orchestrator.training.distributed import data_parallel, process_group
    from orchestrator.training.learner import Learner

    torch.set_num_threads(1)
    cuda = arguments.device == "cuda"
    device = torch.device("cuda", rank) if cuda else torch.device("cpu")
    gathers: list[float] = []

    def now() -> float:
        if cuda:
            torch.cuda.synchronize()
        return time.perf_counter()

    def timed(call: Callable[..., Any]) -> Callable[..., Any]:
        def between(*values: Any) -> Any:
            dist.barrier()
            began = now()
            answer = call(*values)
            gathers[-1] += now() - began
            return answer

        return between

    if cuda:
        torch.cuda.set_device(device)
    group = process_group(rank, world, Path(folder) / "meeting", "nccl" if cuda else "gloo")
    with group if world > 1 else contextlib.nullcontext():
        # what `gather` sends by; DDP has its own way
        dist.all_gather, dist.all_reduce = timed(dist.all_gather), timed(dist.all_reduce)
        torch.manual_seed(0)
        method = find_method("proxy_anchor")
        learner = Learner(
            method,
            method.Config(),
            Task(CLASSES, arguments.dimensions, 0, batch_size=arguments.batch),
            channels=3,
            backbone=backbone,
            weights="random",
            weights_sha256=None,
            pooling="average",
        ).to(device)
        module = data_parallel(learner, unsynchronised=learner.state_outside_synchronisation())
        unsent = module.no_sync if isinstance(module, DistributedDataParallel) else contextlib.nullcontext
        optimizer = torch.optim.AdamW(learner.parameters(), lr=1e-4)
        share = arguments.batch // world
        images = torch.rand(arguments.batch, 3, arguments.pixels, arguments.pixels)[rank * share : (rank + 1) * share]
        labels = torch.arange(arguments.batch).div(4, rounding_mode="floor").unsqueeze(1).to(device)
        batch = Batch(images.to(device), labels, torch.arange(arguments.batch).to(device))
        rng = torch.Generator().manual_seed(0)

        def step(averaged: bool) -> float:
            gathers.append(0.0)
            began = now()
            optimizer.zero_grad(set_to_none=True)
            with contextlib.nullcontext() if averaged else unsent():
                terms, _ = module(batch, rng)
                torch.autograd.backward(torch.stack([term.double() for term in terms.values()]).sum())
            optimizer.step()
            return now() - began

        for _ in range(3):
            step(True)
        whole, sent, alone = [], [], []
        for _ in range(arguments.steps):  # in turns, so that both see the same machine
            whole.append(step(True))
            sent.append(gathers[-1])
            alone.append(step(False))
        if rank == 0:
            answers.put((whole, sent, alone))


def measured(world: int, backbone: str, arguments: argparse.Namespace) -> Seconds:
    """A group of processes of its own."""
    context = multiprocessing.get_context("spawn")
    answers = context.Queue()
    with tempfile.TemporaryDirectory() as folder:
        work = [(rank, world, folder, backbone, arguments, answers) for rank in range(world)]
        processes = [context.Process(target=train, args=one) for one in work]
        for process in processes:
            process.start()
        found: Seconds | None = None
        try:
            while found is None:
                with contextlib.suppress(queue.Empty):
                    found = answers.get(timeout=1)
                if any(process.exitcode for process in processes):
                    raise SystemExit("a process failed")
        finally:
            for process in processes:
                process.join(10 if found else 0)
                process.kill()
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workers", type=int, nargs="+", default=[1, 2, 4])
    parser.add_argument("--backbones", nargs="+", default=["small_cnn", "resnet18"])
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--pixels", type=int, default=64)
    parser.add_argument("--dimensions", type=int, default=128)
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    arguments = parser.parse_args()
    os.environ["OMP_NUM_THREADS"] = "1"
    print(f"{datetime.now(UTC):%Y-%m-%d}, {machine()}; global batch {arguments.batch}, {arguments.pixels} pixels")
    for backbone in arguments.backbones:
        found: dict[int, list[Seconds]] = {world: [] for world in arguments.workers}
        for _ in range(arguments.rounds):
            for world in arguments.workers:
                found[world].append(measured(world, backbone, arguments))
        first = None
        for world, runs in found.items():
            step, sent, alone = (statistics.median(value for run in runs for value in run[i]) for i in range(3))
            first = first or step
            line = f"{backbone:10s} {world} processes: {1000 * step:7.1f} ms a step, {first / step:.2f} x as fast"
            if world > 1:
                share, more = sent / step, (step - alone) / step
                line += f"; gathering {1000 * sent:.2f} ms, {share:.1%} of the step; averaging gradients {more:.1%}"
            print(line, flush=True)


if __name__ == "__main__":
    main()
