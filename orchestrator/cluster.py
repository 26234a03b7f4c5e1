"""Trials on a Ray cluster. The door to ray.tune.

Tune runs the trials and nothing else: it holds no state that matters. Points, early stops and records are the
conductor's, which folds them from the search's journal.
"""

import contextlib
import logging
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Self

import ray
from ray import tune
from ray.tune.search import Searcher
from ray.tune.stopper import Stopper

from orchestrator.conductor import Conductor
from orchestrator.errors import InputError
from orchestrator.spec import Search
from orchestrator.trial import Trial

ATTEMPTS = 3
"""So often a trial whose process was killed is started, each time from its last validation."""

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


@dataclass
class RayRunner:
    """Trials in parallel on a cluster of our own on this machine, or on the one at `address`."""

    address: str | None = None
    ray_output: bool = False

    @contextlib.contextmanager
    def ready(self, search: Search) -> Iterator[int]:
        """Start or join the cluster; InputError if there is none or a trial cannot fit it."""
        os.environ.update(ENVIRONMENT)
        if not self.ray_output:
            for name in ("ray", "ray.tune", "ray.train"):
                logging.getLogger(name).setLevel(logging.ERROR)
        try:
            ray.init(
                address=self.address or "local",
                log_to_driver=self.ray_output,
                logging_level="INFO" if self.ray_output else "ERROR",
                include_dashboard=False if self.address is None else None,
            )
        except (ConnectionError, ValueError) as error:
            reason = str(error).splitlines()[0]
            raise InputError(f"--address: no Ray cluster at '{self.address}' ({reason})") from None
        try:
            yield self.slots(search)
        finally:
            ray.shutdown()

    def slots(self, search: Search) -> int:
        """How many trials run at once."""
        each, have = resources(search), ray.cluster_resources()
        fit = min(int(have.get(kind, 0) // amount) for kind, amount in each.items())
        if fit < 1:
            wanted = ", ".join(f"{amount:g} {kind}" for kind, amount in each.items())
            found = ", ".join(f"{have.get(kind, 0):g} {kind}" for kind in each)
            raise InputError(f"a trial asks for {wanted}, the cluster has {found}: lower threads or name a larger one")
        return min(fit, search.max_concurrent or fit)

    def run(self, conductor: Conductor) -> None:
        """Give the conductor's trials to Tune, until there are no more or the user interrupts."""
        os.environ["TUNE_MAX_PENDING_TRIALS_PG"] = str(conductor.slots)
        tune.Tuner(
            tune.with_resources(Trial, resources(conductor.search)),
            tune_config=tune.TuneConfig(
                search_alg=Points(conductor),
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
            ),
        ).fit()


def resources(search: Search) -> dict[str, float]:
    """What one trial occupies: its CPU threads, and a GPU where the cluster has any."""
    training = search.example().training
    each: dict[str, float] = {"CPU": training.threads}
    if training.device != "cpu" and ray.cluster_resources().get("GPU", 0) >= 1:
        each["GPU"] = 1
    return each


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

    def __init__(self, conductor: Conductor) -> None:
        super().__init__(metric="objective", mode="max")
        self.conductor = conductor
        self.trial_ids: dict[str, str] = {}

    def suggest(self, trial_id: str) -> Any:
        if self.conductor.finished:
            return Searcher.FINISHED
        work = self.conductor.next()
        if work is not None:
            self.trial_ids[trial_id] = work["trial_id"]
        return work

    def on_trial_complete(self, trial_id: str, result: Mapping[str, Any] | None = None, error: bool = False) -> None:
        if error and trial_id in self.trial_ids:
            reason = f"its process was lost {ATTEMPTS} times: out of memory, or killed; see Ray's logs"
            self.conductor.lost(self.trial_ids[trial_id], reason)

    def save(self, checkpoint_path: str) -> None:
        """Nothing: the journal is the record."""

    def restore(self, checkpoint_path: str) -> None:
        """Nothing: the journal is the record."""


class Reports(_InThisProcess, Stopper):  # type: ignore[misc]
    """Every result comes here first, before anything else in Tune sees it."""

    def __init__(self, conductor: Conductor) -> None:
        self.conductor = conductor

    def __call__(self, trial_id: str, result: dict[str, Any]) -> bool:
        return self.conductor.report(result)

    def stop_all(self) -> bool:
        return self.conductor.stopping
