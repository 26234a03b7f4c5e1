"""The test of a claim's trained model on other images: degraded ones, those of another data set, or foreign ones."""

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Literal, NamedTuple

from pydantic import BaseModel, ConfigDict, Field

from orchestrator.config.training import Experiment, resolve_experiment
from orchestrator.errors import InputError
from orchestrator.problems import Inner, KeyPath, Problem
from orchestrator.storage.places import Places

if TYPE_CHECKING:
    from orchestrator.data.store import Store

DETECTION = "test/out_of_distribution/auroc"
"""The metric of a test on foreign images."""

ByDataset = str | dict[str, str]
"""A data set's name, or one for each data set of the claim."""


class OtherImages(BaseModel):
    """Which images, in place of the test classes of the training's data set; keys as the options of `evaluate`."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)

    dataset: ByDataset | None = Field(None, description="another data set's test classes: transfer")
    degradation: Literal["low_resolution", "blur", "occlusion"] | None = Field(None, description="of each image")
    degradation_probability: float = Field(1.0, gt=0, le=1)
    degradation_extent: float | None = Field(None, gt=0, le=1)
    out_of_distribution: ByDataset | None = Field(None, description="foreign images that the uncertainty detects")

    def data_set(self, own: str) -> str:
        """The data set whose test classes are taken, of a model trained on `own`."""
        return _of(self.dataset, own) or own

    def names(self) -> set[str]:
        """The data sets that it names."""
        both = [one for one in (self.dataset, self.out_of_distribution) if one is not None]
        return {name for one in both for name in (one.values() if isinstance(one, dict) else [one])}


class ImagesResult(NamedTuple):
    """What a test on other images gave, and on how much."""

    metrics: dict[str, float]
    classes: int
    queries: int
    digests: dict[str, str]
    """Of the data sets whose images were taken, by name."""


def wrong_test(
    place: KeyPath,
    test: OtherImages | None,
    metrics: Iterable[str],
    protocols: Iterable[str],
    datasets: Mapping[str, object],
) -> Iterator[Problem]:
    """What an arm's test, the metrics that are read of the arm, and the claim say against each other."""
    if test is None:
        if DETECTION in metrics:
            rule = f"this key is required for {DETECTION}: test: {{out_of_distribution: DATA_SET}}"
            yield Problem(place, rule=rule)
        return
    kinds = [key for key in ("dataset", "degradation", "out_of_distribution") if getattr(test, key) is not None]
    if not kinds or ("out_of_distribution" in kinds and len(kinds) > 1):
        yield Problem(place, rule="give dataset, degradation or both, or else out_of_distribution")
    if test.degradation is None and test.model_fields_set & {"degradation_probability", "degradation_extent"}:
        yield Problem(place, rule="degradation_probability and degradation_extent are of a degradation: name it")
    for key in ("dataset", "out_of_distribution"):
        value = getattr(test, key)
        of = value if isinstance(value, dict) else dict.fromkeys(datasets, value)
        if value is not None and of.keys() != datasets.keys():
            yield Problem((*place, Inner(key)), rule=f"should name one for each of {', '.join(datasets)}")
        for dataset in [name for name, other in of.items() if name == other]:
            yield Problem((*place, Inner(key)), dataset, "is the data set itself; name another")
    for metric in metrics:
        if ("out_of_distribution" in kinds) != (metric == DETECTION):
            yield Problem(place, rule=f"out_of_distribution goes with the metric {DETECTION}, and no other test does")
        elif not metric.startswith("test/"):
            yield Problem(place, rule=f"is of metrics test/NAME, not of {metric}")
    for protocol in sorted({str(one) for one in protocols} - {"conventional"}):
        yield Problem(place, rule=f"tests one model of a training; protocol {protocol} is not for it")


def unlike_tests(tests: Mapping[str, OtherImages | None], datasets: Iterable[str]) -> Iterator[Problem]:
    """That arms which are compared are tested on the same classes: else the difference is also one of difficulty."""
    data = {arm: [_pair(test, dataset) for dataset in datasets] for arm, test in tests.items()}
    for arm in data:
        if tests[arm] is not None and (other := next((name for name in data if data[name] != data[arm]), None)):
            rule = f"is on other classes than that of {other}: their difference is also one of difficulty"
            yield Problem(test_of(arm), rule=rule)


def _pair(test: OtherImages | None, dataset: str) -> tuple[str | None, str | None]:
    return (None, None) if test is None else (_of(test.dataset, dataset), _of(test.out_of_distribution, dataset))


def test_of(arm: str) -> KeyPath:
    """Where an arm's test is in a file."""
    return ("arms", Inner(arm), Inner("test"))


def check_test(test: OtherImages, experiment: Experiment, dataset: str, places: Places) -> None:
    """InputError for what is known before the training: data sets that are not there, images of other channels, and a
    method without an uncertainty that could detect foreign ones."""
    own, *others = _stores(test, dataset, places)
    for store in others:
        if store.channels != own.channels:
            raise InputError(f"{store.name} has images of {store.channels} channels, and {dataset} of {own.channels}")
    if test.out_of_distribution is not None and not _has_uncertainty(experiment):
        raise InputError(
            f"out_of_distribution: {experiment.method} learns no uncertainty with these settings; idml does"
        )


def _has_uncertainty(experiment: Experiment) -> bool:
    from orchestrator.method import Task, find_method
    from orchestrator.plugins import own_config

    training = experiment.training
    task = Task(training.classes_per_batch, training.embedding_dim, training.embedding_dim)
    method = find_method(experiment.method)(own_config(experiment.method, experiment.config), task)
    return "uncertainty" in method.heads()


def run_other_test(test: OtherImages, model: Path, dataset: str, places: Places) -> ImagesResult:
    """The metrics of a saved model, trained on `dataset`, on these images. Degraded are those that its training is
    tested on; of another data set are taken the classes of which it has seen no picture, and none of that name.

    InputError if there are none, or the model cannot be tested so.
    """
    import numpy as np

    from orchestrator.data.augmentations import Degradation
    from orchestrator.data.measured import Measured, measurable
    from orchestrator.evaluation.intervals import evaluated_classes
    from orchestrator.training.embed import detect_outside, evaluate_and_embed
    from orchestrator.training.model_file import saved_model
    from orchestrator.training.splits import data_splits, rows_to_test
    from orchestrator.training.trained_on import overlap

    content = saved_model(model)
    training = resolve_experiment(content["experiment"], str(model)).training
    stores = _stores(test, dataset, places)
    digests = _digests(stores)
    if test.out_of_distribution is not None:
        own, foreign = stores
        metrics, _ = detect_outside(model, own, foreign, training.device)
        size = Measured.of(own, [rows_to_test(training, own)])
        assert size is not None
        return ImagesResult(metrics, size.classes, size.queries, digests)
    store = stores[-1]
    if test.dataset is None:
        rows = data_splits(training, store)[0].test
    else:
        rows = rows_to_test(training, store)
        overlapping = overlap([content], store, rows)
        rows = rows if overlapping is None else overlapping.unseen
        names = set((content.get("trained_on") or {}).get("classes", ()))
        is_new = [store.class_names[label] not in names for label in store.labels[rows]]
        rows = measurable(store, rows[np.asarray(is_new, dtype=bool)], "test classes that are new to the model")
    kind = test.degradation
    degradation = None if kind is None else Degradation(kind, test.degradation_probability, test.degradation_extent)
    evaluation, _ = evaluate_and_embed(model, store, rows, training.device, degradation=degradation)
    return ImagesResult(evaluation.metrics, evaluated_classes(evaluation), len(evaluation.queries), digests)


def digests_of(test: OtherImages | None, dataset: str, places: Places) -> dict[str, str]:
    """Of `dataset`, and of those that a test of a model trained on it reads, by name."""
    return _digests(_stores(test, dataset, places))


def _digests(stores: Iterable["Store"]) -> dict[str, str]:
    return {store.name: str(store.manifest["digest"]) for store in stores}


def _stores(test: OtherImages | None, dataset: str, places: Places) -> list["Store"]:
    """The data set that is trained on, and the other one if there is."""
    from orchestrator.data.catalog import open_dataset

    others = () if test is None else _pair(test, dataset)
    return [open_dataset(name, places.data) for name in (dataset, *others) if name is not None]


def _of(names: ByDataset | None, dataset: str) -> str | None:
    return names.get(dataset) if isinstance(names, dict) else names
