"""What is checked before a search begins: its data, its budget, the room on its disk."""

import sys
import warnings
from collections.abc import Callable, Mapping
from typing import Any

from orchestrator.config.algorithms import ALGORITHMS
from orchestrator.config.limits import memory
from orchestrator.config.search import Search
from orchestrator.config.training import Training
from orchestrator.data.store import Store
from orchestrator.errors import InputError, visible
from orchestrator.execution.protocol import Runner
from orchestrator.problems import Bare, File, Operand, Option, Problem
from orchestrator.search.spending import budget_used
from orchestrator.storage import paths
from orchestrator.storage.costs import GPU_MEMORY
from orchestrator.storage.ledger import BENCHMARK, Ledger
from orchestrator.storage.places import Places


def check_room(search: Search, ledger: Ledger) -> None:
    """InputError if a search with more trials or a new budget still has no room for one more trial."""
    tried = len(ledger.trials) - ledger.repeats - ledger.copies
    least = tried + ledger.repeats + sum(search.rounds)
    if search.num_trials is not None and search.num_trials <= least and not search.scheduler.copies:
        more = f" than {least}, as {sum(search.rounds)} are for other seeds" if search.rounds else ""
        rule = f"the search has tried {tried} points already; give more{more}"
        raise InputError(Problem((Option("num_trials"),), Bare(search.num_trials), rule))
    if search.space.size() <= tried and not search.scheduler.copies:
        raise InputError(f"'{search.name}' has tried all {tried} points of its space: there are no more to try")
    used = budget_used(ledger)
    for key, limit in search.budget.limits().items():
        if used[key] >= limit:
            rule = f"{used[key]:g} are used already; give more, or {key}=none"
            raise InputError(Problem((Option("budget"), Operand(f"{key}={limit:g}")), rule=rule))


def check_equal(
    search: Search,
    ledger: Ledger,
    places: Places,
    num_trials: int | None,
    budget: Mapping[str, Any] | None,
    final_seeds: int | None,
) -> None:
    """InputError if a search of a benchmark would get another budget than the others, or fewer tests."""
    benchmark = ledger.tags.get(BENCHMARK)
    if benchmark is None or not places.has_benchmark(str(benchmark)):
        return
    part = f"'{search.name}' is part of the benchmark '{benchmark}'"
    limits = {} if num_trials is None else {Option("num_trials"): [f"{num_trials}"]}
    if budget:
        limits[Option("budget")] = [
            f"{key}={'none' if limit is None else f'{limit:g}'}" for key, limit in budget.items()
        ]
    if limits:
        words = [f"{option} {value}" for option, values in limits.items() for value in values]
        more = f"orchestrator benchmark --name {benchmark} {' '.join(words)}{paths.in_command(places.storage)}"
        rule = f"{part}, whose searches have the same budget: give all of them more with: {more}"
        option, values = next(iter(limits.items()))
        raise InputError(Problem((option, Operand(values[0])), rule=rule))
    if final_seeds is not None and final_seeds < search.final_seeds:
        rule = f"{part}, which tests each winner over {search.final_seeds} seeds: give as many or more"
        raise InputError(Problem((Option("final_seeds"),), final_seeds, rule))


def check_hours(search: Search, runner: Runner) -> None:
    """InputError for a budget of GPU-hours, or a limit of a GPU's memory, if trials take no GPU."""
    if "GPU" in runner.resources(search):
        return
    goals = [goal.metric for goal in search.goals]
    for where, names in (("constraints", search.constraints), ("objectives", goals)):
        if GPU_MEMORY in names:
            raise InputError(Problem((File(search.source), where, GPU_MEMORY), rule="trials use no GPU here"))
    for where, is_limited in (
        ("budget", search.budget.gpu_hours is not None),
        ("objectives", "cost/gpu_hours" in goals),
    ):
        if is_limited:
            instead = "cpu_hours" if where == "budget" else "cost/seconds"
            rule = f"trials use no GPU here: use {instead}"
            raise InputError(Problem((File(search.source), where, "gpu_hours"), rule=rule))


def check_algorithm(search: Search, recorded: str | None = None) -> dict[str, str]:
    """The tag `algorithm.digest` of an algorithm whose code may change under the search; InputError if it cannot be
    loaded, or is not the `recorded` one."""
    digest = ALGORITHMS[search.algorithm].digest()
    if digest is None:
        return {}
    if recorded not in (None, digest):
        rule = f"is not the one this search began with (digest {digest[:12]}, then {str(recorded)[:12]})"
        advice = ": begin another search, or bring that one back into OptunaHub's cache"
        raise InputError(Problem(("algorithm",), search.algorithm, rule, advice=advice, begins_rule=True))
    return {"algorithm.digest": digest}


def warn(line: str) -> None:
    """Print a line beside the command's output."""
    print(visible(line), file=sys.stderr, flush=True)


def warn_once() -> Callable[[str], None]:
    """A `warn` that prints each line once: of several searches on one data set."""
    lines: set[str] = set()

    def say(line: str) -> None:
        if line not in lines:
            lines.add(line)
            warn(line)

    return say


def check_data(search: Search, places: Places, say: Callable[[str], None] = warn) -> tuple[str, dict[str, Any]]:
    """The data set's digest, and the sizes of its evaluated sets (`measured.sizes`). Prepares it if necessary. Refuses
    batches that its classes cannot fill, weights and images that the backbone cannot take, and settings that the method
    does not accept. Warns of a selection on very little data."""
    from orchestrator.data.batches import BATCHES
    from orchestrator.data.batches.base import Source
    from orchestrator.data.batches.class_balanced import CLASS_BALANCED
    from orchestrator.data.catalog import open_dataset
    from orchestrator.data.measured import Measured, lonely_images, nothing_to_find, sizes
    from orchestrator.data.pipeline import check_images, describe_unreadable, find_unreadable, without
    from orchestrator.data.remarks import remarks
    from orchestrator.data.splits import noisy_labels, train_labels
    from orchestrator.report.effect import unreached_settings
    from orchestrator.report.selection import selection_warning
    from orchestrator.training.model_file import new_learner
    from orchestrator.training.splits import build_sampler, check_image_size, data_splits, enlargement, few_left

    experiment = search.example()
    training = experiment.training
    if training.selection == "test":
        say("note: selection=test: the best validation is chosen on the TEST classes, and all numbers are on these")
    store = open_dataset(training.dataset, places.data, say=say)
    splits = data_splits(training, store)
    split = splits[0]
    for note in remarks(store):
        say(f"note: {note}")
    unreadable = find_unreadable(store, training.augmentation, threads=training.loader_threads, say=say)
    check_images(store, training.augmentation, unreadable)
    if unreadable:
        say(f"warning: {describe_unreadable(store, unreadable)}")
    set_sizes = sizes(store, [without(part, unreadable) for part in splits])
    for line in unreached_settings(search, set_sizes["training_images"]):
        say(f"warning: {line}")
    held_out = Measured.read(set_sizes["validation"])
    for what, key, rows in (("test", "test", split.test), ("held-out", "validation", split.validation)):
        measured = Measured.read(set_sizes[key])
        if len(rows) and measured is None:
            raise nothing_to_find(store.name, f"{what} classes")
        if lonely := lonely_images(measured):
            say(f"note: {store.name}, {what} classes: {lonely}")
    split = without(split, unreadable)
    labels = noisy_labels(train_labels(store, split.train), share=training.label_noise, seed=training.label_noise_seed)
    if BATCHES[training.batches or CLASS_BALANCED.name].reads_labels:
        CLASS_BALANCED.build(Source(labels), training)  # before the network is built
    if larger := enlargement(training, store):
        say(f"warning: {larger}")
    if "meta_share" not in {parameter.key for parameter in search.space.parameters()} and (
        few := few_left(experiment, store, split)
    ):
        say(f"warning: {few}")
    _check_memory(training, store)
    with warnings.catch_warnings():
        if search.raw_space:  # the example is a corner of the space, not the user's choice
            warnings.simplefilter("ignore")
        learner = new_learner(experiment, store, split)
    build_sampler(learner.method, labels, training)
    check_image_size(learner, store, split, training)
    if held_out is not None and (why := selection_warning(held_out, experiment.flat(), set_sizes["training_classes"])):
        say(f"warning: {why}")
    return str(store.manifest["digest"]), set_sizes


def _check_memory(training: Training, store: Store) -> None:
    """InputError for a batch whose images alone leave no memory for training on this machine."""
    from orchestrator.data.augmentations.crops import crop_of

    crop = crop_of(training.augmentation, training.image_size)
    pixels = store.image(0).size if crop is None else store.channels * crop.size**2
    required, there = 4 * pixels * training.batch_size, memory()
    if required > there / 4:
        raise InputError(
            f"classes_per_batch: {training.classes_per_batch}: with images_per_class: {training.images_per_class} the "
            f"images of a batch take {required / 2**30:.1f} GB, and this machine has {there / 2**30:.1f} GB of memory: "
            "lower one of them"
        )
