"""Trials on a Ray cluster. The only module that uses ray.tune, apart from `ray_private`."""

import contextlib
import os
import signal
import sys
import threading
import time
from collections.abc import Generator, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import ray
from ray import tune
from ray.exceptions import AuthenticationError
from ray.tune.search import Searcher
from ray.tune.stopper import Stopper
from ray.util.placement_group import PlacementGroup, remove_placement_group

from orchestrator.config.workers import fewest, in_group, most
from orchestrator.errors import InputError
from orchestrator.execution.group_size import Shortage
from orchestrator.execution.installed import code
from orchestrator.execution.lost import cause, keep_log, last_lines, last_output, stuck_at
from orchestrator.execution.preemption import DrainWatch, announce_end, announce_end_of, processes_of
from orchestrator.execution.protocol import Failed, Interrupted, Result, Validated, Work
from orchestrator.execution.ray_address import TOKEN
from orchestrator.execution.ray_cluster import (
    check_nodes,
    is_submitted_job,
    node_labels,
    node_lives,
    placement_groups,
    places,
    resources,
    there_is,
    trials_at_once,
)
from orchestrator.execution.ray_private import (
    expect_other_nodes,
    hide_command_line,
    no_environment,
    outlive_full_memory,
    skip_callback_count,
)
from orchestrator.execution.ray_start import own_cluster, quiet_ray, ray_environment, ray_options, shut_down
from orchestrator.execution.ray_train import hide_gpus, release, train_results
from orchestrator.execution.worker import own_results
from orchestrator.problems import Option, Problem
from orchestrator.text import pluralize
from orchestrator.training.notice import pending_notice, sigterm_heeded

if TYPE_CHECKING:
    from orchestrator.config.search import Search
    from orchestrator.execution.protocol import TrialSource
    from orchestrator.storage.events import Failure

WATCH_SECONDS = 2.0
"""How often the driver checks that its own node is alive."""
LOOK_SECONDS = 0.5
"""How often it checks for trials that take too long."""


@dataclass
class RayRunner:
    """Trials in parallel on our own cluster on this machine, or on the one at `address`."""

    address: str | None = None
    ray_output: bool = False
    trial: "type[Trial] | None" = None
    """A replacement for our trial class, to measure the overhead of a search without training."""
    own_processes: bool = True
    stage: str = "starting Ray"

    @contextlib.contextmanager
    def ready(self, search: "Search", storage: Path) -> Iterator[int]:
        """Start or join the cluster; InputError if there is none, a trial does not fit, or a node differs from us."""
        with ray_environment(self.ray_output), no_environment():
            if ray.is_initialized():  # the initializer also shuts it down
                yield self.slots(search)
            elif self.address is None:
                with own_cluster(self.ray_output):
                    yield self.slots(search)
            else:
                expect_other_nodes()
                self.join(self.address)
                with quiet_ray(self.ray_output):
                    try:
                        check_nodes(storage)
                        yield self.slots(search)
                    finally:
                        shut_down()

    def join(self, address: str) -> None:
        """Become a driver of the cluster at an address; InputError if there is none, or it refuses us."""
        try:
            with hide_command_line():
                environment = None if is_submitted_job() else {"py_modules": code()}
                ray.init(address=address, runtime_env=environment, **ray_options(self.ray_output))
        except (AuthenticationError, ConnectionError, ValueError, RuntimeError) as error:
            reason = " ".join(str(error).split())[:300]
            if isinstance(error, AuthenticationError | ConnectionError):  # Ray gives an unknown client no details
                reason += TOKEN
            rule = f"no Ray cluster to use at '{address}' ({reason})"
            raise InputError(Problem((Option("address"),), rule=rule)) from None

    def slots(self, search: "Search") -> int:
        """How many trials run at once; InputError if a trial or the final run never can."""
        runs = [(Option("workers"), "a trial", search.workers)]
        if search.final:
            runs.append((Option("final_workers"), "the final run", search.workers_of_final))
        for option, run, workers in runs:
            each, labels, least = resources(search, workers), node_labels(search), fewest(workers)
            if least > (room := places(each, labels)):
                request = ", ".join(f"{amount:g} {kind}" for kind, amount in each.items())
                request += "".join(f", {label}={value}" for label, value in labels.items())
                fewer = ("give ", option, f" {room} or ") if room else ("lower threads or ",) if each["CPU"] > 1 else ()
                rule = f"{run} asks for {least} x ({request}), the cluster has {there_is(each, least, labels)}"
                if least <= places(each):
                    raise InputError(Problem(("node_labels",), search.node_labels, rule))
                if least <= places({kind: amount for kind, amount in each.items() if kind in ("CPU", "GPU")}):
                    raise InputError(Problem(("resources",), search.resources, rule))
                raise InputError(Problem((option,), least, rule, advice=(": ", *fewer, "name a larger cluster")))
        return trials_at_once(search, resources(search, search.workers))

    def resources(self, search: "Search") -> dict[str, float]:
        """The CPUs and GPUs of a trial: the sum over its workers."""
        each = resources(search, search.workers)
        return {kind: each[kind] * most(search.workers) for kind in ("CPU", "GPU") if kind in each}

    def run(self, conductor: "TrialSource") -> None:
        """Pass the conductor's trials to Tune, until there are no more or the user interrupts."""
        searcher = ConductorSearcher(conductor)
        tuner = tune.Tuner(
            self.trial or Trial,
            tune_config=tune.TuneConfig(
                search_alg=searcher,
                num_samples=-1,
                reuse_actors=True,
                trial_dirname_creator=lambda trial: trial.trial_id,
                trial_name_creator=lambda trial: trial.trial_id,
            ),
            run_config=tune.RunConfig(
                name="tune",
                storage_path=str(conductor.folder),
                stop=ConductorStopper(searcher),
                verbose=0,
                checkpoint_config=tune.CheckpointConfig(checkpoint_at_end=False),
                failure_config=tune.FailureConfig(max_failures=conductor.search.max_restarts),
                callbacks=[ProcessCallback(searcher)],
            ),
        )
        before = placement_groups()
        try:
            # quiet again, because the live display has replaced stdout in the meantime
            with (
                quiet_ray(self.ray_output),
                ray_environment(self.ray_output, TUNE_MAX_PENDING_TRIALS_PG=str(conductor.slots)),
                skip_callback_count(),
                outlive_full_memory(),
                follow_cluster(conductor, searcher.resources[conductor.search.workers]),
            ):
                tuner.fit()
        finally:
            # workers of a trial that Tune had to kill leave their group behind; after a fault nothing would answer
            if conductor.fault is None:
                for group in placement_groups() - before:
                    remove_placement_group(PlacementGroup(ray.PlacementGroupID.from_hex(group)))


@contextlib.contextmanager
def follow_cluster(conductor: "TrialSource", each: Mapping[str, float]) -> Iterator[None]:
    """Follows the cluster while a search runs: as many concurrent trials as fit now, with workers of this size.

    If the Ray node of this machine dies, Tune would wait forever: then the search ends, and can be resumed.
    """
    short = Shortage(fewest(conductor.search.workers))
    here, main, over = ray.get_runtime_context().get_node_id(), threading.current_thread(), threading.Event()

    def watch() -> None:
        while not over.wait(WATCH_SECONDS):
            with contextlib.suppress(Exception):  # the cluster may be ending
                if not node_lives(here):
                    conductor.stopping, conductor.fault = True, "the Ray node of this machine has died"
                    if not over.wait(WATCH_SECONDS) and main is threading.main_thread() and main.ident:
                        signal.pthread_kill(main.ident, signal.SIGINT)  # like a second Ctrl-C
                    return
                conductor.slots = trials_at_once(conductor.search, each)
                short.tell(places(each, conductor.search.node_labels))

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    try:
        yield
    except Exception:
        if conductor.fault is None:  # else Tune reads at its end what it could not write
            raise
    finally:
        over.set()
        thread.join(WATCH_SECONDS)


class Trial(tune.Trainable):  # type: ignore[misc]
    """The loop inside the Tune trial's own process or in workers of its own, under Ray Train.

    One `step` is one validation; the process is used again by later trials. Tune keeps no checkpoints: the loop's
    own files in the trial's folder are the state, so a trial continues from the files of an earlier attempt.

    A process that can no longer use its GPU, or whose end was announced, ends itself at the step after the one that
    says so: no later trial is to begin in it.

    Tune's dicts hold ours: a trial's config a `Work` as `work` (and `over`, if the trial has ended), what `step` gives
    a `Result` as `result`, and as `broken` whether the process ends itself.
    """

    @classmethod
    def default_resource_request(cls, config: dict[str, Any]) -> tune.PlacementGroupFactory:
        """A trial with workers leaves the resources to them: they have their own placement group, which on a full
        cluster would wait forever for those of the trial. A trial must request something: one byte of memory."""
        work: Work = config["work"]
        if in_group(work.workers):
            return tune.PlacementGroupFactory([{"memory": 1}])
        labels = {"bundle_label_selector": [dict(work.node_labels)]} if work.node_labels else {}
        return tune.PlacementGroupFactory([dict(work.resources)], **labels)

    def setup(self, config: dict[str, Any]) -> None:
        work: Work = config["work"]
        self.work, self.broken = work, False
        if in_group(work.workers) or not work.resources.get("GPU"):
            hide_gpus()
        self.heeding = contextlib.ExitStack()
        self.heeding.enter_context(sigterm_heeded())
        self.results = nothing_more(work) if config.get("over") else self.results_of(work)

    def __repr__(self) -> str:
        """Its name in Ray's dashboard and state commands; of the search, since later trials use the process again."""
        work: Work | None = getattr(self, "work", None)
        return "trials" if work is None else f"trials of {work.trial_folder.parent.parent.name}"

    def results_of(self, work: Work) -> Generator[Result, None, None]:
        """The trial's results."""
        return train_results(work) if in_group(work.workers) else own_results(work)

    def reset_config(self, new_config: dict[str, Any]) -> bool:
        self.cleanup()
        self.setup(new_config)
        return True

    def step(self) -> dict[str, Any]:
        if self.broken:  # the driver has got the reason
            os.kill(os.getpid(), signal.SIGKILL)
        result = next(self.results)
        if isinstance(result, Interrupted):
            self.broken = pending_notice() is not None
        else:
            device_lost = isinstance(result, Failed) and result.failure == "device"
            self.broken = device_lost and not in_group(self.work.workers)
        return {"result": result, "done": result.done and not self.broken, "broken": self.broken}

    def cleanup(self) -> None:
        self.results.close()
        self.heeding.close()

    def save_checkpoint(self, checkpoint_dir: str) -> None:
        """Does nothing: the loop saves its own checkpoints."""

    def load_checkpoint(self, checkpoint: Any) -> None:
        """Does nothing: the loop finds its own checkpoints."""


def nothing_more(work: Work) -> Generator[Result, None, None]:
    """The result of an ended trial that Tune starts again."""
    yield Failed(work.trial_id, "it has ended")


class _InThisProcess:
    """Tune copies and pickles its arguments; a copy of these objects is the object itself, and a pickle is empty."""

    def __copy__(self) -> Self:
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        return self

    def __getstate__(self) -> dict[str, Any]:
        return {}


class ConductorSearcher(_InThisProcess, Searcher):  # type: ignore[misc]
    """Tune asks for a trial, the conductor answers."""

    def __init__(self, conductor: "TrialSource") -> None:
        super().__init__(metric="objective", mode="max")
        self.conductor = conductor
        search = conductor.search
        # as in `slots`: a trial requests the resources by which its slot was counted
        self.resources = {workers: resources(search, workers) for workers in (search.workers, search.workers_of_final)}
        self.works: dict[str, Work] = {}
        self.holders: dict[str, str] = {}
        """Which of Tune's trials has each trial: one that is begun again after a failure gets another."""
        self.broken: dict[str, list[str]] = {}
        """Of each of Tune's trials, why its processes could no longer use their GPU."""
        self.ending: set[str] = set()
        """Those whose process ends itself for that."""
        self.preempted: set[str] = set()
        """Those whose process ends itself as was announced; another one has the trial after that."""
        self.losses: dict[str, int] = {}
        """How often each trial lost its process without notice."""
        self.actors: dict[str, Any] = {}
        """The actors of Tune's running trials."""
        self.trials: dict[str, Any] = {}
        """These trials of Tune's themselves."""
        self.told = False

    def suggest(self, trial_id: str) -> Any:
        if self.conductor.is_finished:
            return Searcher.FINISHED
        work = None
        with contextlib.suppress(OSError):  # a fault of the journal's disk: then the conductor is stopping
            work = self.conductor.next()
        if work is None:
            return None
        self.works[trial_id], self.holders[work.trial_id] = work, trial_id
        labels = self.conductor.search.node_labels
        return {"work": replace(work, resources=self.resources[work.workers], node_labels=labels)}

    def on_trial_complete(self, trial_id: str, result: Mapping[str, Any] | None = None, error: bool = False) -> None:
        if error and trial_id in self.works and not self.is_replaced(trial_id):
            release(self.works[trial_id].trial_folder)

    def announce_stop(self) -> None:
        """Once, when the search stops: trainings write a checkpoint after the step in progress, instead of going on to
        their next validation."""
        if not self.told and self.conductor.fault is None:
            self.told = True
            for actor in self.actors.values():
                announce_end(actor)

    def is_replaced(self, trial_id: str) -> bool:
        """Whether another of Tune's trials has the trial now: what this one still says is of an earlier attempt."""
        return trial_id in self.works and self.holders[self.works[trial_id].trial_id] != trial_id

    def save(self, checkpoint_path: str) -> None:
        """Does nothing: the journal is the record."""

    def restore(self, checkpoint_path: str) -> None:
        """Does nothing: the journal is the record."""


class ProcessCallback(_InThisProcess, tune.Callback):  # type: ignore[misc]
    """Follows the trials' processes: lost ones, those whose trial is restarted, and hanging ones."""

    def __init__(self, searcher: ConductorSearcher) -> None:
        self.searcher, self.conductor = searcher, searcher.conductor
        self.actors, self.trials = searcher.actors, searcher.trials
        self.limited: set[str] = set()
        """The trials of Tune's whose own limit was set, by what the trial has lost in earlier ones."""
        self.looked, self.drains = time.monotonic(), DrainWatch()

    def on_trial_start(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
        work = None if trial.config.get("over") else self.searcher.works.get(trial.trial_id)
        if work is not None and not self.searcher.is_replaced(trial.trial_id):
            self.actors[trial.trial_id], self.trials[trial.trial_id] = trial.temporary_state.ray_actor, trial
            self.conductor.process_started(work.trial_id, time.monotonic())
            if trial.trial_id not in self.limited:
                self.limited.add(trial.trial_id)
                trial.max_failures = max(0, work.max_restarts - self.searcher.losses.get(work.trial_id, 0))

    def on_trial_complete(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
        self.actors.pop(trial.trial_id, None)
        self.trials.pop(trial.trial_id, None)

    def on_trial_recover(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
        if self.searcher.is_replaced(trial.trial_id):
            trial.config["over"] = True
            self.on_trial_complete(iteration, trials, trial)
        elif work := self.searcher.works.get(trial.trial_id):
            if trial.trial_id in self.searcher.ending:
                self.searcher.ending.remove(trial.trial_id)
                reasons = self.searcher.broken[trial.trial_id]
                if len(reasons) > 1:
                    trial.config["over"] = True
                else:
                    self.conductor.report_restart(work.trial_id, reasons[0])
                self.on_trial_complete(iteration, trials, trial)
                return
            words, folder = self.last_lines(trial, work)
            why = cause(words)
            again = why is not None and why.reason in self.conductor.lost_workers.get(work.trial_id, ())
            if why is not None and (again or why.by_own_code):
                self.end(work, f"{why.reason}{', twice' if again else ''}{last_output(words, folder)}", words, "code")
                trial.config["over"] = True
            else:
                keep_log(folder, words)
                self.searcher.losses[work.trial_id] = self.searcher.losses.get(work.trial_id, 0) + 1
                reason = "killed, or its node is gone" if why is None else why.reason
                self.conductor.report_restart(work.trial_id, reason)
            self.on_trial_complete(iteration, trials, trial)

    def on_trial_error(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
        work = self.searcher.works.get(trial.trial_id)
        if work and trial.trial_id not in self.searcher.preempted and not self.searcher.is_replaced(trial.trial_id):
            words, folder = self.last_lines(trial, work)
            why = cause(words)
            reason = "out of memory, or killed; see Ray's logs" if why is None else why.reason
            times = pluralize(self.searcher.losses.pop(work.trial_id, 0) + 1, "time")
            limit = f"its process was lost {times} (max_restarts: {work.max_restarts})"
            self.end(work, f"{limit}: {reason}{last_output(words, folder)}", words, "lost")
        self.on_trial_complete(iteration, trials, trial)

    def on_step_end(self, iteration: int, trials: list[Any], **info: Any) -> None:
        if time.monotonic() - self.looked < LOOK_SECONDS:
            return
        self.looked = time.monotonic()
        for process in self.drains.leaving(self.looked, lambda: processes_of(self.actors.values())):
            announce_end_of(*process)
        late = self.conductor.overdue(self.looked)
        for name, trial in list(self.trials.items()) if late else ():
            work = self.searcher.works[name]
            if (end := late.get(work.trial_id)) is None or self.searcher.is_replaced(name):
                continue
            words, folder = self.last_lines(trial, work)
            where = f", {place}" if (place := stuck_at(words)) else ""
            if reasons := self.conductor.lost_workers.get(work.trial_id):
                where += f"; a process of it was lost before that ({reasons[-1]})"
            self.end(work, f"{end.reason}{where}{last_output(words, folder)}", words, end.failure)
            trial.max_failures = 0  # it is not restarted
            with contextlib.suppress(Exception):
                ray.kill(self.actors[name])
            release(folder)  # release its workers: they may hang too

    def last_lines(self, trial: Any, work: Work) -> tuple[str, Path]:
        """The last lines of a trial's process, and the trial's folder."""
        words = last_lines(self.actors[trial.trial_id], work.trial_id) if trial.trial_id in self.actors else ""
        return words, work.trial_folder

    def end(self, work: Work, reason: str, words: str, failure: "Failure | None") -> None:
        """End a trial because of its process; the last lines of the process are kept before the reason names them."""
        keep_log(work.trial_folder, words)
        with contextlib.suppress(OSError):
            self.conductor.lost(Failed(work.trial_id, reason, failure=failure))


class ConductorStopper(_InThisProcess, Stopper):  # type: ignore[misc]
    """Every result comes here first, before anything else in Tune sees it."""

    def __init__(self, searcher: ConductorSearcher) -> None:
        self.searcher, self.conductor = searcher, searcher.conductor
        self.notes: set[str] = set()

    def __call__(self, trial_id: str, result: dict[str, Any]) -> bool:
        self.tell_notes(result["result"])
        if self.searcher.is_replaced(trial_id):
            return True
        try:
            if result.get("broken") and isinstance(result["result"], Interrupted):
                self.preempts(trial_id, result["result"])
                return False  # likewise
            if result.get("broken"):
                self.breaks(trial_id, result["result"])
                return False  # Tune would use the process again
            return self.conductor.report(result["result"])
        except OSError:  # a fault of the journal's disk: Tune would blame the trial
            return True

    def tell_notes(self, result: Result) -> None:
        """Say once what depends on the number of workers, and that trials search without faiss: what their processes
        say is in Ray's logs."""
        from orchestrator.evaluation.neighbours import without_faiss

        fault = result.faiss_fault if isinstance(result, Validated) else None
        notes = result.notes if isinstance(result, Validated) else ()
        for note in (*notes, *([without_faiss(fault)] if fault is not None else [])):
            if note not in self.notes:
                self.notes.add(note)
                print(f"note: {note}", file=sys.stderr)

    def breaks(self, trial_id: str, result: Failed) -> None:
        """A trial's process ends itself: the trial begins again in another, once."""
        reasons = self.searcher.broken.setdefault(trial_id, [])
        reasons.append(result.reason)
        self.searcher.ending.add(trial_id)
        if trial := self.searcher.trials.get(trial_id):
            trial.max_failures += 1  # this end is none that `max_restarts` counts
        if len(reasons) > 1:
            self.conductor.report(replace(result, reason=f"{result.reason}, twice"))

    def preempts(self, trial_id: str, result: Interrupted) -> None:
        """A trial's process ends itself, as was announced: another of Tune's trials, in another process, goes on with
        the trial."""
        self.searcher.preempted.add(trial_id)
        if trial := self.searcher.trials.get(trial_id):
            trial.max_failures = 0  # it is not restarted
        self.conductor.report(result)

    def stop_all(self) -> bool:
        if self.conductor.stopping:
            self.searcher.announce_stop()
        return self.conductor.stopping
