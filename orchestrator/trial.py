"""One experiment -> its validations. Where a trial runs: in this process, or inside a Tune trial."""

import traceback
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ray import tune

from orchestrator.errors import InputError, TrainingFailed

if TYPE_CHECKING:
    from orchestrator.loop import Validation

FAILURE_LOG = "error.txt"


def run(
    settings: Mapping[str, Any],
    *,
    data: str | Path,
    folder: str | Path | None,
    objective: Mapping[str, str] | None = None,
    stop_after: int | None = None,
    hold_out: bool = True,
) -> "Iterator[Validation]":
    """The `process` backend: the validations of an experiment, trained in this process.

    `data` is the folder of the data sets; `folder` keeps the checkpoints, and a training found there goes on;
    without `hold_out` the whole training half trains.
    """
    # torch takes seconds to import: only processes that train pay for it
    from orchestrator.data.catalog import open_dataset
    from orchestrator.data.splits import class_split
    from orchestrator.loop import fit
    from orchestrator.spec import Objective, resolve_experiment

    experiment = resolve_experiment(settings, "trial")
    training = experiment.training
    store = open_dataset(training.dataset, Path(data))
    share = training.validation_share if hold_out else 0.0
    split = class_split(store, validation_share=share, seed=training.seed)
    goal = Objective.model_validate(dict(objective)) if objective else None
    place = Path(folder) if folder is not None else None
    yield from fit(experiment, store, split, folder=place, objective=goal, stop_after=stop_after)


def run_test(settings: Mapping[str, Any], *, data: str | Path, folder: str | Path) -> dict[str, float]:
    """All metrics of a finished training on the test classes: of its last model, or, where classes were held
    out to select on, of its best."""
    from orchestrator.checkpoint import BEST, MODEL
    from orchestrator.data.catalog import open_dataset
    from orchestrator.data.splits import class_split
    from orchestrator.loop import evaluate_model
    from orchestrator.spec import resolve_experiment

    training = resolve_experiment(settings, "trial").training
    store = open_dataset(training.dataset, Path(data))
    rows = class_split(store, validation_share=0.0, seed=training.seed).test
    model = Path(folder) / MODEL
    return evaluate_model(model if model.exists() else Path(folder) / BEST, store, rows, training.device)


def results(work: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """The results of a trial that the conductor gave out, one per validation.

    A training that fails gives a last result with the reason, in one line; it raises nothing. A fault of the code
    would repeat itself: there is no second attempt, and its traceback stays in the trial's folder.
    """
    known = {"orchestrator_trial": work["trial_id"]}
    arguments = work["arguments"]
    try:
        for validation in run(**arguments):
            tested: dict[str, float] = {}
            if validation.finished and work["test"]:
                places = {key: arguments[key] for key in ("data", "folder")}
                tested = run_test(arguments["settings"], **places)
            yield known | {
                "validation": validation.number,
                "metrics": validation.metrics,
                "seconds": validation.seconds,
                "finished": validation.finished,
                "test": tested,
                "done": validation.finished,
            }
    except (TrainingFailed, InputError) as error:
        yield known | {"failed": str(error), "done": True}
    except Exception as error:
        log = Path(arguments["folder"]) / FAILURE_LOG
        log.parent.mkdir(parents=True, exist_ok=True)
        log.write_text(traceback.format_exc(), encoding="utf-8")
        summary = " ".join(str(error).split())[:300]
        yield known | {"failed": f"{type(error).__name__}: {summary} (see {log})", "done": True}


class Trial(tune.Trainable):  # type: ignore[misc]
    """The `trial` backend: the loop inside the Tune trial's own process, which later trials use again.

    One `step` is one validation. Tune keeps no checkpoints: the loop's own files in the trial's folder are the
    state, so a trial that starts where an earlier attempt left files goes on from them.
    """

    def setup(self, config: dict[str, Any]) -> None:
        self.results = results(config)

    def reset_config(self, new_config: dict[str, Any]) -> bool:
        self.results = results(new_config)
        return True

    def step(self) -> dict[str, Any]:
        return next(self.results)

    def save_checkpoint(self, checkpoint_dir: str) -> None:
        """Nothing: the loop keeps its own."""

    def load_checkpoint(self, checkpoint: Any) -> None:
        """Nothing: the loop finds its own."""
