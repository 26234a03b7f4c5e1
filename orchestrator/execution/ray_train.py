"""One experiment in a group of workers. The only module that uses ray.train, apart from `ray_private`."""

import asyncio
import contextlib
import os
import re
import threading
import time
from collections.abc import Generator, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from orchestrator.config.workers import Workers
from orchestrator.errors import storage_fault
from orchestrator.execution.group_size import Groups
from orchestrator.execution.preemption import DrainWatch, announce_end_of
from orchestrator.execution.protocol import Failed, Interrupted, Result, Validated, Work
from orchestrator.execution.worker import own_results
from orchestrator.storage.folder import Folder

if TYPE_CHECKING:
    from ray.train.torch import TorchConfig, TorchTrainer

CONTROLLER_FAILURES = 2
"""How often Ray Train's own process may fail."""
POLL_SECONDS = 1.0
"""How often a trial that waits for its workers checks that they are still alive."""
JUDGEMENT_SECONDS = 10.0
"""How long a failed rank waits for the others to fail too; see `Mailbox.fail`."""
STOP_SECONDS = 120.0
"""How long a stopped trial waits for its workers to be gone."""
PLACEMENT_GROUP = "placement_group"

# set where the trainer runs: Ray Train passes them on to its workers
TRAIN_ENVIRONMENT = {
    "RAY_TRAIN_V2_ENABLED": "1",  # before Ray 2.51 it must be asked for
    "RAY_TRAIN_HEALTH_CHECK_INTERVAL_S": "0.2",
    "RAY_TRAIN_WORKER_GROUP_START_TIMEOUT_S": "300",  # other jobs may use the cluster too
    "RAY_TRAIN_ENABLE_PREEMPTION_WATCHER": "0",
    "RAY_TRAIN_METRICS_ENABLED": "0",
    "RAY_TRAIN_ENABLE_PRINT_PATCH": "0",
}


def train_results(work: Work) -> Generator[Result, None, None]:
    """The same results, trained by `work.workers` processes under Ray Train.

    The workers wait at each validation until the next result is requested, so closing this generator stops them
    there; it returns when they and their placement group are gone. A worker that is killed costs a restart: the
    group starts again from the trial's last checkpoint, and known results are repeated. If the number of workers may
    change, it starts with as many as there are.
    """
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    from orchestrator.training.notice import pending_notice

    os.environ.update(TRAIN_ENVIRONMENT)
    folder = work.trial_folder
    release(folder)
    here = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)
    stays = ray.remote(num_cpus=0)(Mailbox).options(scheduling_strategy=here)  # another node may vanish
    mailbox = stays.remote(work.trial_id)
    reasons: list[str] = []
    faults: list[str] = []
    groups = None if isinstance(work.workers, int) else Groups(work, mailbox, partial(fit_workers, work, mailbox))

    def train() -> None:
        try:
            if isinstance(work.workers, int):
                fit_workers(work, mailbox, work.workers)
            elif groups is not None:
                groups.train()
        except Exception as error:
            text = re.sub(r"\x1b\[[0-9;]*m", "", str(error)).strip()
            reasons.append(" ".join(text.rpartition("\n")[2].split())[:300])  # a remote traceback ends with the reason
            fault = storage_fault(error, folder) or Folder(folder).fault()
            faults.extend(filter(None, [fault]))

    thread = threading.Thread(target=train, daemon=True)
    thread.start()
    try:
        done, told, begun, drains = False, False, Validated(work.trial_id, 0), DrainWatch()
        while not done:
            incoming, alive = mailbox.take.remote(), True
            while not ray.wait([incoming], timeout=POLL_SECONDS)[0] and alive:
                alive = thread.is_alive()
                if (pending_notice() and not told) or drains.leaving(time.monotonic(), partial(workers_of, mailbox)):
                    told = True
                    announce_end_of_first(mailbox)
            result: Result
            if alive:
                result = ray.get(incoming)
            elif faults:
                result = Interrupted(work.trial_id, faults[0])
            else:
                why = f"{reasons[0] if reasons else 'they ended early'}; max_restarts: {work.max_restarts}"
                reason = f"its workers could not be kept alive ({why})"
                lost = Failed(work.trial_id, reason, failure="lost")
                result = failure_of_workers(mailbox, work.trial_id, folder) or lost
            if isinstance(result, Interrupted):  # the other workers wait for the one that says it
                mailbox.stop.remote()
                with contextlib.suppress(OSError):
                    release(folder)
            yield result
            done = result.done
            if isinstance(result, Validated) and not done and result != begun:
                mailbox.answer.remote(result.number, groups is not None and groups.may_grow())
    finally:
        if groups is not None:
            groups.over.set()
        mailbox.stop.remote()
        thread.join(STOP_SECONDS)
        if not thread.is_alive():
            ray.kill(mailbox)
            with contextlib.suppress(OSError):
                release(folder)  # a controller that failed leaves its placement group


def announce_end_of_first(mailbox: Any) -> None:
    """Announce the end of the worker that writes the checkpoints."""
    with contextlib.suppress(Exception):
        announce_end_of(*workers_of(mailbox)[0])


def workers_of(mailbox: Any) -> list[tuple[str, int]]:
    """The node and the process of each worker, by rank; empty where they do not answer."""
    import ray

    with contextlib.suppress(Exception):
        return [process for _, process in sorted(ray.get(mailbox.who.remote(), timeout=POLL_SECONDS).items())]
    return []


def failure_of_workers(mailbox: Any, trial_id: str, folder: Path) -> Failed | None:
    """Why workers were lost, from their last lines, which are kept; None if these give no reason."""
    import ray

    from orchestrator.execution.lost import SECONDS, cause, keep_log, last_output, lines_of

    words: dict[int, str] = {}
    with contextlib.suppress(Exception):
        for rank, (node_id, pid) in ray.get(mailbox.who.remote(), timeout=SECONDS).items():
            words[rank] = lines_of(node_id, pid, trial_id)
    keep_log(folder, "\n".join(f"rank {rank}:\n{lines}" for rank, lines in sorted(words.items()) if lines))
    for rank, lines in sorted(words.items()):
        if why := cause(lines):
            # a crash, too, was tried again
            return Failed(trial_id, f"rank {rank}: {why.reason}{last_output(lines, folder)}", failure="code")
    return None


def fit_workers(work: Work, mailbox: Any, count: int) -> None:
    """The Ray Train run of one trial by so many workers; where this Ray's inner parts are others than `lean_trainer`
    expects, by Ray's own trainer."""
    from ray.train.torch import TorchTrainer

    from orchestrator.execution.ray_private import OTHER_RAY, lean_trainer

    lean = lean_trainer()
    try:
        build_trainer(work, mailbox, lean, count).fit()
    except Exception as error:
        fault = getattr(error, "controller_failure", error)  # those of the training come in Ray Train's own errors
        if lean is TorchTrainer or not isinstance(fault, OTHER_RAY):
            raise
        build_trainer(work, mailbox, TorchTrainer, count).fit()


def build_trainer(work: Work, mailbox: Any, trainer: "type[TorchTrainer]", count: int) -> "TorchTrainer":
    """The Ray Train run of one trial, by a class of trainers. All its retries are limited; there are none with a number
    of workers that may change, for they would be as many again."""
    from ray.train import FailureConfig, RunConfig, ScalingConfig

    retries = work.max_restarts if isinstance(work.workers, int) else 0
    return trainer(
        train_worker,
        train_loop_config={"work": work, "mailbox": mailbox},
        torch_config=own_interface(),
        scaling_config=ScalingConfig(
            num_workers=count,
            resources_per_worker=dict(work.resources),
            use_gpu="GPU" in work.resources,
            **({"label_selector": dict(work.node_labels)} if work.node_labels else {}),
        ),
        run_config=RunConfig(
            name="train",
            storage_path=str(work.trial_folder),
            failure_config=FailureConfig(
                max_failures=retries, controller_failure_limit=min(retries, CONTROLLER_FAILURES)
            ),
        ),
    )


def own_interface() -> "TorchConfig":
    """Makes gloo and NCCL connect the workers by the addresses of their nodes in the cluster.

    By default gloo uses the address that the host's name resolves to: often the loopback, which reaches no other node.
    NCCL takes the first interface that is up: often a container's bridge.
    """
    from dataclasses import dataclass

    from ray.train.torch import TorchConfig

    from orchestrator.training.notice import heed_sigterm

    class Backend(TorchConfig().backend_cls):  # type: ignore[misc]
        def on_start(self, worker_group: Any, backend_config: Any) -> None:
            if not worker_group.get_resources_per_worker().get("GPU"):
                worker_group.execute(hide_gpus)
            worker_group.execute(name_interface)
            worker_group.execute(heed_sigterm)  # in the thread that gets signals: the training has another
            super().on_start(worker_group, backend_config)

    @dataclass
    class Configuration(TorchConfig):  # type: ignore[misc]
        @property
        def backend_cls(self) -> type:
            return Backend

    return Configuration()


def name_interface() -> None:
    """Runs on a worker: select the network interface with its node's address."""
    import psutil
    import ray

    here = ray.util.get_node_ip_address()
    for name, addresses in psutil.net_if_addrs().items():
        if any(address.address == here for address in addresses):
            os.environ.setdefault("GLOO_SOCKET_IFNAME", name)
            os.environ.setdefault("NCCL_SOCKET_IFNAME", f"={name}")  # without "=" also what begins like it


def hide_gpus() -> None:
    """Runs in a process without a GPU of its own, before its first use of CUDA: it sees none. Ray would leave it all
    GPUs of the node, of which it would take the first."""
    os.environ["CUDA_VISIBLE_DEVICES"] = ""


def train_worker(config: Mapping[str, Any]) -> None:
    """What each rank of a worker group does: the whole loop; only rank 0 reports results."""
    from orchestrator.training.distributed import membership

    work: Work = config["work"]
    with membership(None if isinstance(work.workers, int) else work.workers.high):
        _take_part(work, config["mailbox"])


def _take_part(work: Work, mailbox: Any) -> None:
    import ray

    from orchestrator.training.distributed import broadcast_object, notes, rank, world_size

    group = ray.util.get_current_placement_group()
    if rank() == 0 and group is not None:
        Folder(work.trial_folder).write(PLACEMENT_GROUP, group.id.hex().encode())
    context = ray.get_runtime_context()
    mailbox.arrive.remote(rank(), context.get_node_id(), os.getpid())
    attempt = broadcast_object(ray.get(mailbox.begin.remote()) if rank() == 0 else None)
    if attempt is None:
        return
    training = own_results(work)
    for result in training:
        if isinstance(result, Interrupted):  # one rank is enough: it concerns the disk
            ray.get(mailbox.put.remote(result))
            return
        if isinstance(result, Failed):
            if ray.get(mailbox.fail.remote(attempt, world_size(), result)):
                return
            if result.repeats:  # its GPU has less free memory than the others: the group would fail again
                ray.get(mailbox.put.remote(result))
            raise RuntimeError(result.reason)
        if isinstance(work.workers, Workers):
            result = replace(result, system={**result.system, "workers": world_size()})
        result = replace(result, notes=notes())
        if broadcast_object(ray.get(mailbox.put.remote(result)) if rank() == 0 else None):
            return


class Mailbox:
    """Between a trial and its workers: results go to the trial, go-ahead or stop to the workers. A Ray actor."""

    def __init__(self, trial_id: str | None = None) -> None:
        """With a trial's id its first group says that it trains, as a validation 0 without values."""
        self.trial_id = trial_id
        self.changed = asyncio.Condition()
        self.results: list[Result] = []
        self.failures: list[Failed] = []
        self.breaks: set[int] = set()
        """The attempts in which a rank could no longer use its GPU; the first is not the trial's end."""
        self.lost_workers: list[str] = []
        self.attempt = 0
        self.answered, self.furthest = -1, 0
        self.stopped = False
        self.giving_way = False
        """Whether the group ends so that a larger one goes on."""
        self.processes: dict[int, tuple[str, int]] = {}

    async def arrive(self, rank: int, node_id: str, pid: int) -> None:
        """A rank reports its node and process."""
        self.processes[rank] = node_id, pid

    async def who(self) -> dict[int, tuple[str, int]]:
        """Node and process of each rank."""
        return dict(self.processes)

    async def begin(self) -> int | None:
        """A worker group is ready. Returns the number of its attempt, None if it is no longer needed."""
        if self.attempt and not self.giving_way:
            failure = self._first_failure()
            self.lost_workers.append("it ended" if failure is None else failure.reason)
        self.attempt += 1
        self.giving_way = False
        self.failures.clear()
        if self.attempt == 1 and self.trial_id is not None:
            async with self.changed:
                self.results.append(Validated(self.trial_id, 0))
                self.changed.notify_all()
        return None if self.stopped else self.attempt

    async def put(self, result: Result) -> bool:
        """Store a result of rank 0, with the reasons of lost attempts. Returns when the trial asks for the next one, or
        True to end the group."""
        async with self.changed:
            if isinstance(result, Validated):
                result = replace(result, lost_workers=tuple(self.lost_workers))
            self.results.append(result)
            self.changed.notify_all()
            if isinstance(result, Validated) and not result.done and (result.number or result.costs):
                # by number: after a restart known validations are repeated and need no new answer
                number = result.number
                await self.changed.wait_for(lambda: self.stopped or self.answered >= number)
            return self.stopped or self.giving_way

    async def fail(self, attempt: int, workers: int, result: Failed) -> bool:
        """A rank cannot continue. True if that holds for all ranks: then it is the trial's result.

        Otherwise a rank was lost and the others noticed a broken connection, or only one rank failed and the others
        wait for it: the group has to be restarted. So it has where a rank can no longer use its GPU, once.
        """
        async with self.changed:
            self.failures.append(result)
            if result.failure == "device":
                self.breaks.add(attempt)
            first = self.breaks == {attempt}
            if len(self.failures) == workers and not first:
                self.results.append(self._first_failure() or result)
            self.changed.notify_all()
            with contextlib.suppress(TimeoutError):
                judged = self.changed.wait_for(lambda: len(self.failures) == workers or self.attempt != attempt)
                await asyncio.wait_for(judged, JUDGEMENT_SECONDS)
            everyone = self.attempt == attempt and len(self.failures) == workers
            if result.failure == "device" and not first and not everyone:  # the others wait for it, and would again
                self.results.append(result)
            return everyone and self.breaks != {attempt}

    def _first_failure(self) -> Failed | None:
        """The failure that says why an attempt ended: that of a GPU before what the others had of it."""
        return min(self.failures, key=lambda one: one.failure != "device", default=None)

    async def take(self) -> Result:
        """The next result, for the trial."""
        async with self.changed:
            await self.changed.wait_for(lambda: self.results)
            return self.results.pop(0)

    async def answer(self, validation: int, give_way: bool = False) -> None:
        """The trial continues after this validation; `give_way`: in a larger group."""
        async with self.changed:
            self.answered, self.giving_way = validation, give_way
            self.furthest = max(self.furthest, validation)
            self.changed.notify_all()

    async def last_validation(self) -> int:
        """The last one after which the trial continued."""
        return self.furthest

    async def gives_way(self) -> bool:
        """Whether a larger group goes on."""
        return self.giving_way and not self.stopped

    async def stop(self) -> None:
        """The trial needs no more results."""
        async with self.changed:
            self.stopped = True
            self.changed.notify_all()


def release(folder: Path) -> None:
    """Free the resources that an earlier attempt at this trial left on the cluster, including its workers.

    Only a killed trial or a failed controller leaves any: Ray keeps a placement group until its job ends.
    """
    import ray
    from ray.util.placement_group import PlacementGroup, remove_placement_group

    if (content := Folder(folder).read(PLACEMENT_GROUP)) is not None:
        with contextlib.suppress(ValueError):  # an incomplete note
            remove_placement_group(PlacementGroup(ray.PlacementGroupID.from_hex(content.decode("ascii"))))
        Folder(folder).remove(PLACEMENT_GROUP)
