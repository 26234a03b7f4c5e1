"""Trials on a Ray cluster. The door to ray.tune.

Tune runs the trials and nothing else: it holds no state that matters. Points, early stops and records are the
conductor's, which folds them from the search's journal.
"""

import contextlib
import json
import logging
import os
import signal
import threading
import time
import uuid
from collections.abc import Generator, Iterator, Mapping
from dataclasses import dataclass
from importlib.metadata import entry_points
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import ray
from ray import tune
from ray._private import ray_constants
from ray.exceptions import AuthenticationError, RayError
from ray.tune.search import Searcher
from ray.tune.stopper import Stopper
from ray.util.placement_group import PlacementGroup, placement_group_table, remove_placement_group
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from orchestrator import objects, ray_start
from orchestrator.errors import ClusterFailed, InputError
from orchestrator.lost import ENDED, cause, keep, last_words, quoted, stuck_at
from orchestrator.provenance import versions
from orchestrator.ray_start import keep_secrets, keep_token, unnamed
from orchestrator.trial import ATTEMPTS, own_results, release, train_results

if TYPE_CHECKING:
    # trials import this file too, and need neither
    from orchestrator.conductor import Conductor
    from orchestrator.spec import Search

# silence, our own signal handling, and none of Tune's own records: the journal is the record
ENVIRONMENT = {
    "TUNE_DISABLE_AUTO_CALLBACK_LOGGERS": "1",
    "TUNE_DISABLE_SIGINT_HANDLER": "1",
    "TUNE_GLOBAL_CHECKPOINT_S": "86400",
    "TUNE_WARN_EXCESSIVE_EXPERIMENT_CHECKPOINT_SYNC_THRESHOLD_S": "0",
    "TUNE_DISABLE_STRICT_METRIC_CHECKING": "1",
    "RAY_AIR_NEW_OUTPUT": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
}


WATCH_SECONDS = 2.0
"""How often the driver looks whether its own node still lives."""
LOOK_SECONDS = 0.5
"""How often it looks for trials that take too long."""
NODE_SECONDS = 300.0
"""How long a node may take to get the code and answer; it may have to start its first worker."""


@dataclass
class RayRunner:
    """Trials in parallel on a cluster of our own on this machine, or on the one at `address`."""

    address: str | None = None
    ray_output: bool = False
    trial: "type[Trial] | None" = None
    """Another training than ours, to measure what is left of a search without it."""

    @contextlib.contextmanager
    def ready(self, search: "Search", storage: Path) -> Iterator[int]:
        """Start or join the cluster; InputError if there is none, a trial cannot fit it, or a node is not like us."""
        os.environ.update(ENVIRONMENT)
        keep_secrets()
        if not self.ray_output:
            for name in ("ray", "ray.tune", "ray.train"):
                logging.getLogger(name).setLevel(logging.CRITICAL)  # a lost process is an ERROR with a traceback
        if ray.is_initialized():  # whoever did it also ends it
            yield self.slots(search)
            return
        if self.address is None:
            keep_token()
            # 127.0.0.1 is a node's address, and where its servers listen, only where Ray needs no nodes beside it
            os.environ[ray_constants.ENABLE_RAY_CLUSTERS_ENV_VAR] = "0"
        ray_constants.ENABLE_RAY_CLUSTER = self.address is not None
        options = {
            "log_to_driver": self.ray_output,
            "logging_level": "INFO" if self.ray_output else "ERROR",
            "include_dashboard": False if self.address is None else None,
            "_node_ip_address": "127.0.0.1" if self.address is None else None,  # its servers listen there only
        }
        if self.address is None:
            try:
                ray_start.start(**options)
            except ClusterFailed:
                os.environ.pop(ray_constants.ENABLE_RAY_CLUSTERS_ENV_VAR, None)
                raise
        else:
            self.join(self.address, **options)
        with self.quiet():
            try:
                if self.address is not None:
                    check_nodes(storage)
                yield self.slots(search)
            finally:
                ray.shutdown()
                os.environ.pop(ray_constants.ENABLE_RAY_CLUSTERS_ENV_VAR, None)

    def join(self, address: str, **options: Any) -> None:
        """Become a driver of the cluster at an address; InputError if there is none, or it does not let us in."""
        try:
            with unnamed():
                ray.init(address=address, runtime_env=None if shipped() else {"py_modules": code()}, **options)
        except (AuthenticationError, ConnectionError, ValueError, RuntimeError) as error:
            reason = " ".join(str(error).split())[:300]
            if isinstance(error, AuthenticationError | ConnectionError):  # to whom it does not know Ray says no more
                reason += "; if it asks for a token, set RAY_AUTH_MODE=token, and RAY_AUTH_TOKEN_PATH to its token"
            raise InputError(f"--address: no Ray cluster to use at '{address}' ({reason})") from None

    @contextlib.contextmanager
    def quiet(self) -> Iterator[None]:
        """Ray's news of its processes goes to our stdout, which is for results, whatever its loggers are told."""
        if self.ray_output:
            yield
            return
        with open(os.devnull, "w") as nowhere, contextlib.redirect_stdout(nowhere):
            yield

    def slots(self, search: "Search") -> int:
        """How many trials run at once; InputError if a trial or the final run never can."""
        runs = [("--workers", "a trial", search.workers)]
        if search.final:
            runs.append(("--final-workers", "the final run", search.workers_of_final))
        for option, run, workers in runs:
            each = resources(search, workers)
            if workers > (room := places(each)):
                wanted = ", ".join(f"{amount:g} {kind}" for kind, amount in each.items())
                found = ", ".join(f"{ray.cluster_resources().get(kind, 0):g} {kind}" for kind in each)
                remedy = f"give {option} {room}" if room else "lower threads"
                raise InputError(
                    f"{option}: {workers}: {run} asks for {workers} x ({wanted}), the cluster has {found}: "
                    f"{remedy} or name a larger cluster"
                )
        return trials_at_once(search, resources(search, search.workers))

    def resources(self, search: "Search") -> dict[str, float]:
        """What a trial holds: of each of its workers' resources the sum."""
        return {kind: amount * search.workers for kind, amount in resources(search, search.workers).items()}

    def run(self, conductor: "Conductor") -> None:
        """Give the conductor's trials to Tune, until there are no more or the user interrupts."""
        os.environ["TUNE_MAX_PENDING_TRIALS_PG"] = str(conductor.slots)
        points = Points(conductor)
        tuner = tune.Tuner(
            self.trial or Trial,
            tune_config=tune.TuneConfig(
                search_alg=points,
                num_samples=-1,
                reuse_actors=True,
                trial_dirname_creator=lambda trial: trial.trial_id,
                trial_name_creator=lambda trial: trial.trial_id,
            ),
            run_config=tune.RunConfig(
                name="tune",
                storage_path=str(conductor.folder),
                stop=Reports(conductor),
                verbose=0,
                checkpoint_config=tune.CheckpointConfig(checkpoint_at_end=False),
                failure_config=tune.FailureConfig(max_failures=ATTEMPTS - 1),
                callbacks=[Processes(points)],
            ),
        )
        before = placement_groups()
        try:
            # quiet once more, for the live display has taken hold of stdout in between
            with self.quiet(), watched(conductor, points.resources[conductor.search.workers]):
                tuner.fit()
        finally:
            # Tune kills a trial that takes long to stop, and its workers' placement group would outlive it
            if conductor.fault is None:  # nobody would answer on a machine that is gone
                for group in placement_groups() - before:
                    remove_placement_group(PlacementGroup(ray.PlacementGroupID.from_hex(group)))


@contextlib.contextmanager
def watched(conductor: "Conductor", each: Mapping[str, float]) -> Iterator[None]:
    """Follows the cluster while a search runs: as many trials at once as its nodes hold now, of workers of this size.

    Where the Ray node of this machine has died Tune waits for ever: the search ends then, to be resumed.
    """
    here, main, over = ray.get_runtime_context().get_node_id(), threading.current_thread(), threading.Event()

    def watch() -> None:
        while not over.wait(WATCH_SECONDS):
            with contextlib.suppress(Exception):  # the cluster may be ending
                if not node_lives(here):
                    conductor.stopping, conductor.fault = True, "the Ray node of this machine has died"
                    if not over.wait(WATCH_SECONDS) and main is threading.main_thread() and main.ident:
                        signal.pthread_kill(main.ident, signal.SIGINT)  # as a second Ctrl-C
                    return
                conductor.slots = trials_at_once(conductor.search, each)

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join(WATCH_SECONDS)


def node_lives(node_id: str) -> bool:
    """Whether this machine's Ray node lives. Of one that we started we see it at once; the cluster may take minutes to
    notice, and trials go on meanwhile."""
    started = ray._private.worker._global_node
    mortal = (ray_constants.PROCESS_TYPE_RAYLET, ray_constants.PROCESS_TYPE_GCS_SERVER)
    if started is not None and any(kind in mortal for kind, _ in started.dead_processes()):
        return False
    return any(node["NodeID"] == node_id and node["Alive"] for node in ray.nodes())


COMPARED = ("ray", "torch", "torchvision", "timm", "numpy", "faiss-gpu", "faiss-cpu")
"""What a node must have in the driver's version, lest its trainings be others."""


def code() -> list[str]:
    """What the nodes of a cluster need of us, as Ray's `py_modules`: this package, the methods, and every plugin with
    the metadata by which it is found. So all trials run the driver's code, whatever the nodes have installed."""
    from orchestrator.method import ENTRY_POINTS  # with torch

    folders: dict[str, None] = {}
    names = {"orchestrator": None, "methods": None, "search_spaces": None}
    for entry in entry_points(group=ENTRY_POINTS):
        names[entry.module.partition(".")[0]] = None
        for file in (entry.dist.files or []) if entry.dist else []:
            if file.name == "entry_points.txt":
                folders[str(Path(str(file.locate())).resolve().parent)] = None
    for name in names:
        found = find_spec(name)
        if found is not None:  # a broken plugin is told of elsewhere
            folders |= dict.fromkeys(found.submodule_search_locations or filter(None, [found.origin]))
    return list(folders)


def shipped() -> bool:
    """Whether this process is itself a job of the cluster, begun with code of its own (`ray job submit`)."""
    job = json.loads(os.environ.get("RAY_JOB_CONFIG_JSON_ENV_VAR") or "{}")
    return "py_modules" in job.get("runtime_env", {})


SHARED = "name a --storage that all nodes share"


def living_nodes() -> list[dict[str, Any]]:
    """The nodes of the cluster that can run trials."""
    return [node for node in ray.nodes() if node["Alive"] and node["Resources"].get("CPU", 0) > 0]


def check_nodes(storage: Path) -> None:
    """InputError naming the first node that lacks the storage, or has other versions than this process; one that dies
    while it is asked is none of the cluster's."""
    probe = storage / f".node-probe-{uuid.uuid4().hex}"
    objects.write(probe, b"")
    here = versions(COMPARED)
    try:
        nodes = living_nodes()
        answers = [
            ray.remote(num_cpus=0, max_retries=0)(describe_node)
            .options(scheduling_strategy=NodeAffinitySchedulingStrategy(node["NodeID"], soft=False))
            .remote(objects.portable(probe))
            for node in nodes
        ]
        for node, answer in zip(nodes, answers, strict=True):
            where = f"--address: node {node['NodeManagerAddress']}"
            try:
                there, sees = ray.get(answer, timeout=NODE_SECONDS)
            except RayError as error:
                if node["NodeID"] not in {one["NodeID"] for one in living_nodes()}:  # it died meanwhile
                    continue
                reason = " ".join(str(error).split())[:300]
                raise InputError(f"{where} cannot run this version's code ({reason})") from None
            if not sees:
                seen = "its AWS_* variables or files must say how" if objects.address_of(storage) else SHARED
                raise InputError(f"{where} does not see {objects.shown(storage)}: {seen}")
            for name in here.keys() | there.keys():
                mine, its = (found.get(name, "none").partition("+")[0] for found in (here, there))
                if mine != its and not name.startswith("faiss"):
                    raise InputError(f"{where}: {name} {its}, here {mine}: install the same version on both")
            if not any(name.startswith("faiss") for name in there):
                raise InputError(f"{where}: faiss is missing: install the same packages as here")
    finally:
        objects.remove(probe)


def describe_node(probe: str) -> tuple[dict[str, str], bool]:
    """On a node: its versions, and whether it sees a file."""
    seen = False
    with contextlib.suppress(OSError):
        seen = objects.read(objects.place(probe), objects.IMPATIENCE_SECONDS) is not None
    return versions(COMPARED), seen


def placement_groups() -> set[str]:
    """The placement groups of this process's Ray job that hold, or wait for, something on the cluster."""
    job = ray.get_runtime_context().get_job_id()  # the end of the ids of all that a job makes
    held = {key for key, group in placement_group_table().items() if group["state"] != "REMOVED"}
    return {key for key in held if key.endswith(job)}


def resources(search: "Search", workers: int) -> dict[str, float]:
    """What each of so many workers of a trial occupies: its CPU threads, and a GPU where the cluster has any (of a
    single worker the share that the search gives). InputError if it must have one and there is none."""
    training = search.example().training
    each: dict[str, float] = {"CPU": training.threads}
    if training.device != "cpu" and ray.cluster_resources().get("GPU", 0) >= 1:
        each["GPU"] = 1 if workers > 1 else search.gpus_per_trial or 1
    elif training.device == "cuda":
        raise InputError("device: 'cuda': no machine of the cluster has a GPU: use 'auto' or 'cpu', or another cluster")
    elif search.gpus_per_trial is not None and training.device == "cpu":
        raise InputError(f"gpus_per_trial: {search.gpus_per_trial:g}: device is 'cpu'; drop one of the two")
    return each


def trials_at_once(search: "Search", each: Mapping[str, float]) -> int:
    """How many trials, of workers of this size, the cluster holds now, as far as the search wants so many."""
    fit = places(each) // search.workers
    return min(fit, search.max_concurrent or fit)


def places(each: Mapping[str, float]) -> int:
    """How many workers of this size the cluster holds."""
    nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
    # a third of a GPU, three times, is one: Ray counts in ten-thousandths
    return sum(min(int(node.get(kind, 0) / amount + 1e-4) for kind, amount in each.items()) for node in nodes)


class Trial(tune.Trainable):  # type: ignore[misc]
    """The loop inside the Tune trial's own process (the `trial` backend), or by workers of its own (`train`).

    One `step` is one validation; the process is used again by later trials. Tune keeps no checkpoints: the loop's
    own files in the trial's folder are the state, so a trial that starts where an earlier attempt left files goes
    on from them.
    """

    @classmethod
    def default_resource_request(cls, config: dict[str, Any]) -> tune.PlacementGroupFactory:
        """A trial with workers leaves the machines to them: they have a placement group of their own, which on
        a full cluster would wait for ever for what the trial holds. A trial must hold something: a byte."""
        return tune.PlacementGroupFactory([config["resources"] if config["workers"] == 1 else {"memory": 1}])

    def setup(self, config: dict[str, Any]) -> None:
        if config.get("over"):
            self.results = nothing_more(config)
        else:
            self.results = own_results(config) if config["workers"] == 1 else train_results(config)

    def reset_config(self, new_config: dict[str, Any]) -> bool:
        self.cleanup()
        self.setup(new_config)
        return True

    def step(self) -> dict[str, Any]:
        return next(self.results)

    def cleanup(self) -> None:
        self.results.close()

    def save_checkpoint(self, checkpoint_dir: str) -> None:
        """Nothing: the loop keeps its own."""

    def load_checkpoint(self, checkpoint: Any) -> None:
        """Nothing: the loop finds its own."""


def nothing_more(work: Mapping[str, Any]) -> Generator[dict[str, Any], None, None]:
    """Of a trial that Tune begins again, and that has ended."""
    yield {"orchestrator_trial": work["trial_id"], "failed": "it has ended", "done": True}


class _InThisProcess:
    """Tune copies and pickles what it is given; a copy of these is the thing itself, and a pickle holds nothing."""

    def __copy__(self) -> Self:
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        return self

    def __getstate__(self) -> dict[str, Any]:
        return {}


class Points(_InThisProcess, Searcher):  # type: ignore[misc]
    """Tune asks for a trial, the conductor answers."""

    def __init__(self, conductor: "Conductor") -> None:
        super().__init__(metric="objective", mode="max")
        self.conductor = conductor
        search = conductor.search
        # as `slots` found them: a trial asks for what its place was counted by
        self.resources = {workers: resources(search, workers) for workers in (search.workers, search.workers_of_final)}
        self.works: dict[str, dict[str, Any]] = {}

    def suggest(self, trial_id: str) -> Any:
        if self.conductor.finished:
            return Searcher.FINISHED
        work = None
        with contextlib.suppress(OSError):  # the journal's disk: the conductor is stopping then
            work = self.conductor.next()
        if work is None:
            return None
        self.works[trial_id] = work
        return work | {"resources": self.resources[work["workers"]]}

    def on_trial_complete(self, trial_id: str, result: Mapping[str, Any] | None = None, error: bool = False) -> None:
        if error and trial_id in self.works:
            release(objects.place(self.works[trial_id]["arguments"]["folder"]))

    def save(self, checkpoint_path: str) -> None:
        """Nothing: the journal is the record."""

    def restore(self, checkpoint_path: str) -> None:
        """Nothing: the journal is the record."""


class Processes(_InThisProcess, tune.Callback):  # type: ignore[misc]
    """Follows the trials' processes: those that are lost, those whose trial is begun again, and those that hang."""

    def __init__(self, points: Points) -> None:
        self.points, self.conductor = points, points.conductor
        self.actors: dict[str, Any] = {}
        """By Tune's name of a trial, for as long as it runs."""
        self.trials: dict[str, Any] = {}
        self.looked = time.monotonic()

    def on_trial_start(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
        if work := self.points.works.get(trial.trial_id):
            self.actors[trial.trial_id], self.trials[trial.trial_id] = trial.temporary_state.ray_actor, trial
            self.conductor.attended(work["trial_id"], time.monotonic())

    def on_trial_complete(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
        self.actors.pop(trial.trial_id, None)
        self.trials.pop(trial.trial_id, None)

    def on_trial_recover(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
        if work := self.points.works.get(trial.trial_id):
            words, folder = self.last_words(trial, work)
            reason = cause(words)
            again = reason is not None and reason in self.conductor.losses.get(work["trial_id"], ())
            if reason is not None and (again or reason.startswith(ENDED)):  # it would again
                self.end(work, f"{reason}{', twice' if again else ''}{quoted(words, folder)}", words)
                trial.config["over"] = True
            else:
                keep(folder, words)
                self.conductor.restarted(work["trial_id"], reason or "killed, or its node is gone")
            self.on_trial_complete(iteration, trials, trial)

    def on_trial_error(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
        if work := self.points.works.get(trial.trial_id):
            words, folder = self.last_words(trial, work)
            told = cause(words) or "out of memory, or killed; see Ray's logs"
            self.end(work, f"its process was lost {ATTEMPTS} times: {told}{quoted(words, folder)}", words)
        self.on_trial_complete(iteration, trials, trial)

    def on_step_end(self, iteration: int, trials: list[Any], **info: Any) -> None:
        if time.monotonic() - self.looked < LOOK_SECONDS:
            return
        self.looked = time.monotonic()
        late = self.conductor.overdue(self.looked)
        for name, trial in list(self.trials.items()) if late else ():
            work = self.points.works[name]
            if (reason := late.get(work["trial_id"])) is None:
                continue
            words, folder = self.last_words(trial, work)
            where = f", {found}" if (found := stuck_at(words)) else ""
            if losses := self.conductor.losses.get(work["trial_id"]):
                where += f"; a process of it was lost before that ({losses[-1]})"
            self.end(work, f"{reason}{where}{quoted(words, folder)}", words)
            trial.max_failures = 0  # it is not begun again
            with contextlib.suppress(Exception):
                ray.kill(self.actors[name])
            release(folder)  # of its workers: they may hang too

    def last_words(self, trial: Any, work: Mapping[str, Any]) -> tuple[str, Path]:
        """What a trial's process wrote last, and the trial's folder."""
        words = last_words(self.actors[trial.trial_id], work["trial_id"]) if trial.trial_id in self.actors else ""
        return words, objects.place(work["arguments"]["folder"])

    def end(self, work: Mapping[str, Any], reason: str, words: str) -> None:
        """A trial's end for a reason of its process's; its last lines are kept."""
        with contextlib.suppress(OSError):
            self.conductor.lost(work["trial_id"], reason)
        keep(objects.place(work["arguments"]["folder"]), words)


class Reports(_InThisProcess, Stopper):  # type: ignore[misc]
    """Every result comes here first, before anything else in Tune sees it."""

    def __init__(self, conductor: "Conductor") -> None:
        self.conductor = conductor

    def __call__(self, trial_id: str, result: dict[str, Any]) -> bool:
        try:
            return self.conductor.report(result)
        except OSError:  # the journal's disk: Tune would take it for the trial's fault
            return True

    def stop_all(self) -> bool:
        return self.conductor.stopping
