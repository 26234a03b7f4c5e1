"""Weights & Biases: a run for each trial, on this machine unless WANDB_MODE asks for the server."""

import hashlib
import os

from orchestrator.tracking.address import error_line
from orchestrator.tracking.loggers.base import Logger, LoggerStore
from orchestrator.tracking.projection import Identity, MetricPoint
from orchestrator.tracking.store import TrackingError


class WandbStore(LoggerStore):
    """Runs in the project of the data set, in groups of a search's trials; offline unless WANDB_MODE says otherwise."""

    def create(self, experiment_id: str, identity: Identity, parent: str | None) -> str:
        """`PROJECT:SEARCH`, `PROJECT:SEARCH/TRIAL|NAME`: all that a later call needs."""
        name = super().create(experiment_id, identity, parent)
        return f"{name}|{identity.name}" if parent is not None else f"{experiment_id.replace('/', '-')}:{name}"

    def log(self, run_id: str, points: list[MetricPoint], params: dict[str, str], tags: dict[str, str]) -> None:
        import wandb

        self.folder.mkdir(parents=True, exist_ok=True)
        key, _, shown_name = run_id.partition("|")
        above, _, trial = key.partition("/")
        project, _, search = above.rpartition(":")
        try:
            run = wandb.init(
                project=project,
                group=search,
                name=shown_name or trial or search,
                id=hashlib.sha256(key.encode()).hexdigest()[:16],  # the same at every call
                resume="allow",
                dir=str(self.folder),
                mode=os.environ.get("WANDB_MODE", "offline"),  # type: ignore[arg-type]
                config=params,
                settings=wandb.Settings(silent=True, console="off", x_disable_stats=True, disable_git=True),
            )
            run.define_metric("*", step_metric="validation")
            for step in sorted({point.step for point in points}):
                run.log({"validation": step} | {point.key: point.value for point in points if point.step == step})
            run.summary.update({f"tag/{name}": value for name, value in tags.items()})
            run.finish()
        except Exception as error:  # its client raises errors of several libraries
            raise TrackingError(f"Weights & Biases: {error_line(error)}") from None


WANDB = Logger("wandb", "wandb", "WANDB_MODE=online wandb sync {folder}/wandb/offline-run-*", WandbStore)
