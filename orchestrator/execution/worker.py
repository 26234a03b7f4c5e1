"""One experiment -> its results, in the process that asks for them."""

import contextlib
import time
import traceback
from collections.abc import Callable, Generator, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from orchestrator.errors import (
    DeviceLost,
    InputError,
    OutOfMemory,
    Preempted,
    TrainingFailed,
    is_interrupt,
    place_of,
    storage_fault,
)
from orchestrator.execution.protocol import Failed, Interrupted, Result, Validated, Work
from orchestrator.storage import paths, trial_files
from orchestrator.storage.atomic import write_whole

if TYPE_CHECKING:
    from orchestrator.config.training import Experiment
    from orchestrator.data.splits import Split
    from orchestrator.data.store import Store
    from orchestrator.training.loop import ValidationResult

FAILURE_LOG = "error.txt"


def _open(experiment: "Experiment", data: str | Path, *, hold_out: bool = True) -> "tuple[Store, list[Split]]":
    """The data set of an experiment, in the folder `data`, and its split or folds."""
    # torch takes seconds to import: only processes that train pay for it
    from orchestrator.data.catalog import open_dataset
    from orchestrator.training.splits import data_splits

    store = open_dataset(experiment.training.dataset, Path(data))
    return store, data_splits(experiment.training, store, hold_out=hold_out)


def run_training(
    experiment: "Experiment",
    *,
    data: str | Path,
    folder: str | Path | None,
    objective: Mapping[str, str] | None = None,
    stop_after: int | None = None,
    hold_out: bool = True,
    keep: Callable[[], None] = lambda: None,
) -> "Iterator[ValidationResult]":
    """The validations of an experiment, trained in this process.

    `data` is the folder of the data sets; `folder` keeps the checkpoints, and a training found there goes on; `keep` is
    called after each one that is written between validations; without `hold_out` the whole training half is used for
    training.
    """
    from orchestrator.config.search import Objective
    from orchestrator.training.folds import fit_folds
    from orchestrator.training.loop import fit

    store, splits = _open(experiment, data, hold_out=hold_out)
    goal = Objective.model_validate(dict(objective)) if objective else None
    place = Path(folder) if folder is not None else None
    if len(splits) == 1:
        yield from fit(experiment, store, splits[0], folder=place, objective=goal, stop_after=stop_after, keep=keep)
    else:
        yield from fit_folds(experiment, store, splits, folder=place, objective=goal, stop_after=stop_after, keep=keep)


def run_test(experiment: "Experiment", *, data: str | Path, folder: str | Path) -> dict[str, float]:
    """All metrics of a finished training on the test classes: of its last model, or, if classes were held out
    for selection, of its best. `<metric>_over_classes_low` and `_high` are the 95% interval over the classes,
    `<metric>_over_queries_low` and `_high` that over the queries; see `intervals`.

    Over folds, the metrics are the mean over the folds' models, and `concatenated_<metric>` those of the models'
    concatenated normalised embeddings; both have their intervals. Of several ranks the first computes these.
    """
    from orchestrator.evaluation.intervals import interval_metrics
    from orchestrator.storage.trial_folder import TrialPaths
    from orchestrator.training.device import choose_device, own_device
    from orchestrator.training.distributed import rank
    from orchestrator.training.embed import evaluate_and_embed, keep_insight
    from orchestrator.training.folds import evaluate_folds

    store, splits = _open(experiment, data)
    rows, device = splits[0].test, str(own_device(choose_device(experiment.training.device)))
    trial = TrialPaths(Path(folder))
    if (folds := trial.models) != [trial]:
        models = [fold.best for fold in folds]
        metrics, together, separated = evaluate_folds(models, store, rows, device, keep=True)
        return metrics | (
            interval_metrics(separated) | interval_metrics(together, "concatenated_") if rank() == 0 else {}
        )
    result, embedded = evaluate_and_embed(trial.trained_model, store, rows, device, folder=trial.diagnostics)
    if rank() == 0:
        keep_insight(trial.folder, result, embedded, store)
    return result.metrics | (interval_metrics(result) if rank() == 0 else {})


def own_results(work: Work) -> Generator[Result, None, None]:
    """`results`, in a process that only trains: exits and hangs of the trial's code are reported."""
    from orchestrator.execution.lost import announce, stack_if_late

    announce(work.trial_id)
    end = None if work.trial_timeout is None else time.monotonic() + work.trial_timeout
    with contextlib.closing(results(work, own=True)) as training:
        while True:
            with stack_if_late(work.stall_timeout, None if end is None else end - time.monotonic()):
                result = next(training, None)
            if result is None:
                return
            yield result


def results(work: Work, *, own: bool = False) -> Generator[Result, None, None]:
    """The results of a trial from the conductor, one per validation. If the trial is to measure its untrained network,
    the score comes first, as validation 0: it is known even if the training fails; before that come the costs of the
    network, if it is to measure these.

    A training that fails gives a last result with the reason, in one line; it raises nothing. An error in the code
    would happen again: there is no second attempt, and its traceback stays in the trial's folder. A disk that is full
    or gone is not a trial's fault, nor is the announced end of its process: the last result is `Interrupted`. After an
    error from which on the process cannot use its GPU, the failure is `device`. `own`: the process belongs to the
    trial, and gets no Ctrl-C from the user.
    """
    from orchestrator.evaluation.neighbours import faiss_fault
    from orchestrator.storage.trial_folder import BEST, MODEL
    from orchestrator.training.checkpoint import discard_damaged
    from orchestrator.training.device import choose_device, subnormals_flushed
    from orchestrator.training.distributed import broadcast_object, rank
    from orchestrator.training.memory import freed_memory_kept, memory_given_back
    from orchestrator.training.notice import pending_notice
    from orchestrator.training.repeatable import fixed_operations
    from orchestrator.training.usage import Usage

    trial_id, experiment, data, anew = work.trial_id, work.experiment, paths.local(work.data), None
    with trial_files.TrialFiles(work.folder) as files, contextlib.ExitStack() as stack:
        try:
            if notice := pending_notice():  # nothing is begun in a process that is to end
                raise Preempted(f"its process was announced to end ({notice})")
            require_gpu(work)
            device = choose_device(experiment.training.device)
            fixed_order = experiment.training.deterministic is not False
            unordered = stack.enter_context(fixed_operations(device.type, deterministic=fixed_order))
            stack.enter_context(subnormals_flushed())
            stack.enter_context(freed_memory_kept(device.type))
            stack.enter_context(memory_given_back(device))
            anew = files.fetch(broadcast_object, leader=rank() == 0)
            # rank 0 first: on a shared disk it removes the damaged files for all ranks
            if damage := broadcast_object(discard_damaged(files.folder) if rank() == 0 else None):
                anew = damage
                discard_damaged(files.folder)
            if work.costs:
                yield Validated(trial_id, 0, costs=measure_costs_of(work, data), anew=anew)
                anew = None
            if work.untrained:
                yield Validated(trial_id, 0, untrained=measure_untrained(work, data), anew=anew)
                anew = None
            usage = Usage(device)
            for validation in run_training(
                experiment,
                data=data,
                folder=files.folder,
                objective=work.objective,
                stop_after=work.stop_after,
                hold_out=work.hold_out,
                keep=files.keep,
            ):
                used = usage.since()
                if rank() == 0:
                    files.keep()  # before the validation is reported
                tested: dict[str, float] = {}
                if validation.finished and work.test:
                    files.share(broadcast_object, leader=rank() == 0, names=(MODEL, BEST))
                    tested = run_test(experiment, data=data, folder=files.folder)
                    if rank() == 0:
                        files.keep()
                yield Validated(
                    trial_id,
                    validation.number,
                    validation.metrics,
                    validation.seconds,
                    finished=validation.finished,
                    reason=validation.reason,
                    test=tested,
                    unordered=tuple(sorted(unordered)),
                    system=used,
                    faiss_fault=faiss_fault,
                    anew=anew,
                )
                anew = None
        except (Exception, SystemExit, KeyboardInterrupt) as error:
            if not own and is_interrupt(error):
                raise
            yield replace(_end_by(error, work, files), anew=anew)


def _end_by(error: BaseException, work: Work, files: trial_files.TrialFiles) -> Failed | Interrupted:
    """How an error ends a trial."""
    from orchestrator.evaluation.gpu import is_broken, keep
    from orchestrator.training.device import choose_device

    trial_id = work.trial_id
    broken = isinstance(error, DeviceLost) or is_broken(choose_device(work.experiment.training.device))
    if isinstance(error, OutOfMemory) and not broken:
        return Failed(
            trial_id, f"{error}: {memory_advice(work, paths.local(work.data), error)}", repeats=True, failure="memory"
        )
    if isinstance(error, DeviceLost):
        return Failed(trial_id, str(error), failure="device")
    if isinstance(error, TrainingFailed | InputError) and not broken:
        return Failed(trial_id, str(error), failure="training")
    if isinstance(error, Preempted):
        return Interrupted(trial_id, str(error), "preempted")
    if fault := storage_fault(error, files.folder):
        return Interrupted(trial_id, fault)
    write_whole(files.folder / FAILURE_LOG, "".join(traceback.format_exception(error)).encode("utf-8", "replace"))
    with contextlib.suppress(OSError):
        files.keep()
    summary = " ".join(str(error).split())[:300]
    log = paths.display_path(files.path / FAILURE_LOG)
    if isinstance(error, SystemExit):
        summary = f"the code called sys.exit({summary})"
    elif isinstance(error, KeyboardInterrupt):
        summary = "the code raised it"
    if broken:
        keep(error)
        first = str(error).partition("\n")[0][:300]
        reason = f"its process can no longer use its GPU: {type(error).__name__}: {first}{place_of(error)} (see {log})"
        return Failed(trial_id, reason, failure="device")
    reason = f"{type(error).__name__}: {summary}{place_of(error)} (see {log})"
    return Failed(trial_id, reason, repeats=not isinstance(error, Exception), failure="code")


def require_gpu(work: Work) -> None:
    """DeviceLost if the trial holds a GPU, or a part of one, and its process sees none: it would train on the CPU."""
    import torch

    if work.resources.get("GPU") and work.experiment.training.device != "cpu" and not torch.cuda.is_available():
        raise DeviceLost("it holds a GPU that its process cannot use: look at nvidia-smi, or set device=cpu")


def measure_untrained(work: Work, data: Path) -> dict[str, Any] | None:
    """The score of a trial's network before its training; see `untrained.measure`."""
    from orchestrator.training.untrained import measure

    opened = _open(work.experiment, data, hold_out=work.hold_out)
    return measure(work.experiment, *opened, on_test=work.untrained_on_test)


def measure_costs_of(work: Work, data: Path) -> dict[str, float]:
    """What a trial's network costs; see `encoder.measure_costs`."""
    from orchestrator.training.encoder import measure_costs

    store, splits = _open(work.experiment, data, hold_out=work.hold_out)
    return measure_costs(work.experiment, store, splits[0])


def memory_advice(work: Work, data: Path, error: OutOfMemory) -> str:
    """Advice on what would fit into the memory; with a single process it is tested."""
    from orchestrator.training.batch_size import batch_that_fits
    from orchestrator.training.device import free_memory
    from orchestrator.training.distributed import world_size

    free_memory(error)
    if not error.of_batch:
        return "use a smaller backbone or embedding_dim, or set precision=bf16"
    experiment, training = work.experiment, work.experiment.training
    store, splits = _open(experiment, data, hold_out=work.hold_out)
    tried = world_size() == 1 and len(splits) == 1
    fitting = batch_that_fits(experiment, store, splits[0]) if tried else None
    fact, fewer, parts = "", "lower classes_per_batch or images_per_class", "set images_per_pass"
    if fitting is not None:
        fact = f"{fitting[1]} fit when tried; "
        fewer, parts = f"set classes_per_batch={fitting[0]}", f"try images_per_pass={fitting[1]}"
    keeps = training.freeze_batch_norm and training.images_per_pass is None  # what it needs
    return f"{fact}{fewer}{f', or {parts}, which keeps the batch' if keeps else ''}, or set precision=bf16"
