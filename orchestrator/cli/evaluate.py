"""Metrics of trained models, and of networks that are not trained."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer
from rich.box import SIMPLE_HEAD
from rich.table import Table
from rich.text import Text

from orchestrator.cli import completing
from orchestrator.cli.options import (
    DEFAULT_STORAGE,
    Json,
    Set,
    Storage,
    assignments,
    local_path,
    not_empty,
    places_of,
)
from orchestrator.cli.output import check_page, print_json, say, write_html, write_output
from orchestrator.cli.terminal import Terminal, echo
from orchestrator.errors import InputError
from orchestrator.search.beginning import check_dataset
from orchestrator.storage.files import cell, output_place

if TYPE_CHECKING:
    from orchestrator.cli.evaluation_output import Metrics
    from orchestrator.config.training import Experiment
    from orchestrator.data.augmentations import Degradation
    from orchestrator.evaluation.metrics import Evaluation
    from orchestrator.storage.places import Places


TABLES = (".csv", ".parquet")
UNTRAINED = (
    "pooling",
    "weights",
    "weights_sha256",
    "input_convention",
    "augmentation",
    "image_size",
    "seed",
    "protocol",
)
"""The settings that say what a network without a training computes, and of which images."""


def evaluate(
    checkpoint_or_run: Annotated[
        str,
        typer.Argument(
            help="A model file, a search (its final model, or its folds' models), SEARCH/TRIAL, an MLflow run id, or a "
            "backbone by its name, which is not trained.",
            metavar="CHECKPOINT_OR_RUN",
        ),
    ],
    dataset: Annotated[
        str,
        typer.Option(
            help="Name of the data set (see `orchestrator datasets`), or s3://bucket/prefix.",
            metavar="NAME",
            callback=not_empty,
            autocompletion=completing.datasets,
        ),
    ],
    storage: Storage = DEFAULT_STORAGE,
    device: Annotated[
        Literal["auto", "cpu", "cuda"], typer.Option(help="Where to compute; auto takes a GPU if there is one.")
    ] = "auto",
    per_query: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Write a row per query to a .csv or .parquet file.", parser=local_path),
    ] = None,
    per_class: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Write a row per class to a .csv or .parquet file.", parser=local_path),
    ] = None,
    approximate: Annotated[
        bool, typer.Option("--approximate", help="Search a share of the gallery only, for a million images.")
    ] = False,
    class_groups: Annotated[
        str | None,
        typer.Option(
            metavar="N,N,...",
            help="Evaluate all images in consecutive groups of these numbers of classes, each group by itself.",
            callback=not_empty,
        ),
    ] = None,
    out_of_distribution: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="Another data set: how well uncertainty tells its images from those of the first.",
            callback=not_empty,
        ),
    ] = None,
    degradation: Annotated[
        Literal["low_resolution", "blur", "occlusion"] | None,  # of DEGRADATIONS, which needs torch
        typer.Option(help="Degrade the test images in this way (IDML's Table 8).", show_choices=True),
    ] = None,
    degradation_probability: Annotated[
        float, typer.Option(min=0, max=1, help="With --degradation: the share of the images that is degraded.")
    ] = 1.0,
    degradation_extent: Annotated[
        float | None,
        typer.Option(metavar="SHARE", help="With --degradation: how much, as a share of the images' sides."),
    ] = None,
    gallery: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Write a page with images that shows what the model finds, confuses and embeds.",
            parser=local_path,
        ),
    ] = None,
    set_: Set = [],  # noqa: B006 (typer reads the default)
    json_: Json = False,
) -> None:
    """All retrieval metrics of a trained model on the test classes of a data set.

    Of a backbone: those of its pooled features, at unit length, as its weights are, without a head and a training
    (`--set pooling=..., weights=random, ...`).

    Of a training over folds: the mean of its models' metrics, and those of their embeddings side by side (concatenated;
    the tables are of these).

    Intervals are of 95%, over the classes, for classes never seen (after protocol=classification over the images, for
    new ones of its classes). They do not cover training seeds.

    - `orchestrator evaluate my-search --dataset glyphs`

    - `orchestrator evaluate my-search --dataset glyphs --per-class classes.csv`

    - `orchestrator evaluate my-search --dataset glyphs --gallery model.html`

    - `orchestrator evaluate runs/searches/my-search/trials/0003/best.pt --dataset glyphs`

    - `orchestrator evaluate my-search --dataset nabirds --class-groups 200,200,155`

    - `orchestrator evaluate my-search --dataset cifar10 --out-of-distribution cifar100`

    - `orchestrator evaluate my-search --dataset cars196 --degradation blur --degradation-probability 0.5`

    - `orchestrator evaluate resnet50 --dataset cub200 --set pooling=average`: before any training
    """
    from orchestrator.config.training import resolve_experiment
    from orchestrator.data.catalog import open_dataset
    from orchestrator.evaluation.claims import claim_of, too_few
    from orchestrator.networks.backbones import BACKBONES
    from orchestrator.search.models import find_models

    for option, path in (("--per-query", per_query), ("--per-class", per_class)):
        _refuse_table(option, path)
    if per_query is not None and per_query == per_class:
        raise InputError(f"--per-class: {per_class}: --per-query names the same file; name another")
    check_page("--gallery", gallery)
    tables: dict[str, object] = {"--per-query": per_query, "--per-class": per_class, "--gallery": gallery}
    if class_groups is not None:
        _refuse_together("--class-groups", tables)
    if out_of_distribution is not None:
        others = tables | {
            "--class-groups": class_groups,
            "--approximate": approximate,
            "--degradation": degradation,
        }
        _refuse_together("--out-of-distribution", others)
        if out_of_distribution == dataset:
            raise InputError(f"--out-of-distribution: {dataset}: is the data set itself; name another")
    degraded = _degradation(degradation, degradation_probability, degradation_extent)
    if degraded is not None:
        _refuse_together("--degradation", {"--gallery": gallery})
    places = places_of(storage)
    untrained = _untrained_network(checkpoint_or_run, dataset, set_, places)
    if untrained is not None and out_of_distribution is not None:
        raise InputError(
            f"--out-of-distribution: {checkpoint_or_run}: an untrained network has no uncertainty embedding"
        )
    models: list[Any] = [] if untrained else find_models(checkpoint_or_run, places, also=BACKBONES)
    if degraded is not None and len(models) > 1:
        raise InputError(f"--degradation: {checkpoint_or_run} has one model per fold; name one, such as {models[0]}")
    if gallery is not None and len(models) > 1:
        raise InputError(f"--gallery: {checkpoint_or_run} has one model per fold; name one, such as {models[0]}")
    check_dataset(dataset, storage)
    from orchestrator.cli.evaluation_output import Group, Metrics, Seen
    from orchestrator.data.measured import Measured, lonely_images, measurable
    from orchestrator.evaluation.intervals import class_intervals, evaluated_classes, over_queries
    from orchestrator.training.embed import detect_outside, evaluate_and_embed, look
    from orchestrator.training.folds import evaluate_folds
    from orchestrator.training.model_file import BareNetwork, saved_model
    from orchestrator.training.splits import rows_to_test
    from orchestrator.training.trained_on import overlap

    store = open_dataset(dataset, places.data, say=say)
    saved: dict[str, Any] = {}
    if untrained is not None:
        models = [BareNetwork(_suit_preparation(untrained, store))]
        training = models[0].experiment.training
    else:
        saved = saved_model(models[0])
        training = resolve_experiment(saved["experiment"], str(models[0])).training
    same_data = saved.get("dataset_digest") == store.manifest["digest"]
    on_test = same_data and training.selection == "test"
    tested = "test images" if training.protocol == "classification" else "test classes"
    model = models[0] if len(models) == 1 else models[0].parent.parent
    done: dict[str, Any] = {"model": str(model), "dataset": dataset, "selection": "test" if on_test else "validation"}
    if untrained is not None:
        done |= {"model": training.backbone, "selection": None, "untrained": models[0].plain}
    claim = claim_of(training.protocol)
    how = ", approximate search" if approximate else ""
    if degraded is not None:
        done["degradation"] = degraded
        how = f", {degraded.kind} with probability {degraded.probability:g}{how}"
    word = " (selection: test)" if on_test else ""
    if out_of_distribution is not None:
        if len(models) > 1:
            raise InputError(f"--out-of-distribution: {model} has one model per fold; name one, such as {models[0]}")
        other = open_dataset(out_of_distribution, places.data, say=say)
        metrics, ends = detect_outside(models[0], store, other, device)
        title = f"{model}, uncertainty of images of {out_of_distribution} against {dataset}, {tested}{word}"
        done |= {"out_of_distribution": out_of_distribution, "split": "test", "metrics": metrics}
        done |= {"interval_of_the_claim": claim}
        done |= {f"intervals_over_{over}": dict.fromkeys(metrics, pair) for over, pair in ends.items()}
        interval = ends[claim]
        over = "images" if training.protocol == "classification" else "classes of both"
        between = {name: too_few() if interval is None else _between(interval) for name in metrics}
        _show_metrics(title, {"value": metrics, f"95% over {over}": between}, Metrics(**done) if json_ else None)
        return

    embeddings: list[Any] = []

    def evaluate_rows(rows: Any) -> "tuple[Evaluation, dict[str, Any], dict[str, Any], dict[str, Any]]":
        """The evaluation of a single model, or of the folds' concatenated embeddings; its JSON object, its columns, and
        their intervals for the reported claim."""
        if len(models) == 1:
            evaluation, embedded = evaluate_and_embed(
                models[0], store, rows, device, approximate=approximate, degradation=degraded
            )
            embeddings[:] = [embedded]
            metrics, by_name = evaluation.metrics, {"value": evaluation}
        else:
            metrics, evaluation, separated = evaluate_folds(models, store, rows, device, approximate=approximate)
            by_name = {"separated": separated, "concatenated": evaluation}
        classes = evaluated_classes(evaluation)
        facts = {"queries": len(evaluation.queries), "classes": classes, "metrics": metrics}
        facts["interval_of_the_claim"] = claim
        intervals: dict[str, dict[str, Any]] = {
            "classes": {column: class_intervals(one) for column, one in by_name.items()},
            "queries": {column: over_queries(one) for column, one in by_name.items()},
        }
        for over, by_column in intervals.items():
            facts[f"intervals_over_{over}"] = {
                f"concatenated_{name}" if column == "concatenated" else name: ends
                for column, pairs in by_column.items()
                for name, ends in pairs.items()
            }
        if not any(intervals[claim].values()):
            facts["no_interval"] = too_few(classes)
        return evaluation, facts, {column: one.metrics for column, one in by_name.items()}, intervals[claim]

    def tell() -> None:
        """What a reader of the numbers should know of their data."""
        from orchestrator.data.remarks import remarks

        for line in remarks(store):
            echo(f"note: {line}", err=True)
        if saved.get("dataset_digest") and not same_data:
            echo(f"note: the model was trained on {_data_of(saved)}, another than this {dataset}", err=True)

    if class_groups is not None:
        groups = _class_groups(store, class_groups)
        groups = {name: measurable(store, rows, f"classes {name}") for name, rows in groups.items()}
        if same_data:
            echo("note: the model was trained on classes of this data set: these are not new to it", err=True)
        parts = {name: evaluate_rows(rows) for name, rows in groups.items()}
        tell()
        done["groups"] = [
            Group(**facts | {"classes": name, "number_of_classes": facts["classes"]})
            for name, (_, facts, *_) in parts.items()
        ]
        by_group = {
            f"classes {name}" + (f", {column}" if len(models) > 1 else ""): _with_ends(values, claimed[column])
            for name, (_, _, cells, claimed) in parts.items()
            for column, values in cells.items()
        }
        units = "classes" if claim == "classes" else "images"
        inside = f"; in brackets 95% over the {units} of the group, where it has enough"
        title = f"{model} on {dataset}, all images of each group{how}{word}{inside}"
        _show_metrics(title, by_group, Metrics(**done) if json_ else None)
        return
    columns: dict[str, Mapping[str, float | str]]
    rows = measurable(store, rows_to_test(training, store), tested)
    seen_before = (
        None if untrained or claim != "classes" else overlap([saved_model(one) for one in models], store, rows)
    )
    with_seen: Mapping[str, float] = {}
    if seen_before is not None:
        echo(f"warning: {seen_before}", err=True)
        if _measurable(store, seen_before.unseen):
            tested = f"test classes new to the model ({seen_before.tested - len(seen_before.classes)})"
            with_seen = evaluate_rows(rows)[1]["metrics"]
            rows = seen_before.unseen
        else:
            tested = "classes of which none is new to the model"
    evaluation, facts, columns, claimed = evaluate_rows(rows)
    tell()
    if lonely := lonely_images(Measured.of(store, [rows])):
        echo(f"note: {lonely}", err=True)
    if per_query is not None:
        _write_table("--per-query", per_query, evaluation.queries)
    if per_class is not None:
        classes = evaluation.classes()
        names = [store.class_names[label] for label in classes["label"].to_pylist()]
        if per_class.suffix.lower() == ".csv":
            names = list(map(cell, names))
        _write_table("--per-class", per_class, classes.add_column(1, "class", [names]))
    if gallery is not None:
        from orchestrator.evaluation.measures import PAPER_HEADLINES
        from orchestrator.report.html.model_page import write_model_page
        from orchestrator.report.model_view import View

        scores = ", ".join(f"{name} {evaluation.metrics[name]:.4f}" for name in PAPER_HEADLINES)
        view = View(
            title=f"{checkpoint_or_run} on {dataset}",
            facts=[
                "not trained" if untrained else saved["experiment"]["method"],
                dataset,
                training.backbone,
                f"{len(evaluation.queries)} queries",
                tested,
            ],
            told=[f"{tested.capitalize()}{word}: {scores}."],
            insight=look(evaluation, embeddings[0], store),
            names=store.class_names,
            image=store.image,
        )
        write_html("--gallery", gallery, lambda path: write_model_page(view, path), "page of the model")
    done |= {"split": "test"} | facts
    if seen_before is not None:
        done["seen_in_training"] = Seen(
            classes=len(seen_before.classes),
            images=seen_before.pictures,
            names=seen_before.classes,
            metrics_with_them=dict(with_seen),
        )
    title = f"{model} on {dataset}, {tested}{word}, {len(evaluation.queries)} queries{how}"
    units = f"{facts['classes']} classes" if claim == "classes" else f"{facts['queries']} images"
    if "no_interval" in facts:
        title += f"; {facts['no_interval']}"
    elif len(models) == 1:
        columns[f"95% over {units}"] = {key: _between(ends) for key, ends in claimed["value"].items()}
    else:
        columns = {column: _with_ends(values, claimed[column]) for column, values in columns.items()}
        title += f"; in brackets 95% over {units}"
    if with_seen and seen_before is not None:
        columns[f"with the {len(seen_before.classes)} trained on"] = with_seen
    _show_metrics(title, columns, Metrics(**done) if json_ else None)


def _data_of(saved: Mapping[str, Any]) -> str:
    name = saved["experiment"].get("dataset")
    return f"the data set {name} of digest {str(saved.get('dataset_digest'))[:12]}"


def _measurable(store: Any, rows: Any) -> bool:
    """Whether something can be measured on these rows."""
    from orchestrator.data.measured import Measured

    return len(rows) > 0 and Measured.of(store, [rows]) is not None


def _untrained_network(named: str, dataset: str, words: list[str], places: "Places") -> dict[str, Any] | None:
    """The settings of the network without a training that a backbone's name stands for; None if a file, a search or a
    run is meant."""
    from orchestrator import parts
    from orchestrator.config.training import resolve_experiment
    from orchestrator.networks.backbones import BACKBONES
    from orchestrator.networks.backbones.timm_models import TIMM

    settings = assignments(words, {"dataset": dataset})
    is_backbone = named in (*BACKBONES, *parts.names("backbones", BACKBONES)) or named.startswith(TIMM)
    if not is_backbone or Path(named).expanduser().exists() or (places.storage / "searches" / named).is_dir():
        if settings:
            raise InputError(f"--set: is for a backbone that is not trained; the model {named} has its own settings")
        return None
    if others := sorted(settings.keys() - set(UNTRAINED)):
        raise InputError(
            f"--set: {', '.join(others)}: without effect on a network that is not trained (these have one: "
            f"{', '.join(UNTRAINED)})"
        )
    settings |= {"method": "triplet", "backbone": named, "dataset": dataset}  # a method without parameters of its own
    if "image_size" in settings:  # it is for photographs, whatever the store has
        from orchestrator.search.defaults import PHOTOGRAPHS

        settings.setdefault("augmentation", PHOTOGRAPHS)
    resolve_experiment(settings, "--set")
    return settings


def _suit_preparation(settings: dict[str, Any], store: Any) -> "Experiment":
    """The experiment of these settings; photographs are cut as in a training on them."""
    from orchestrator.config.training import resolve_experiment
    from orchestrator.search.defaults import PHOTOGRAPHS, photograph_sign

    if "augmentation" not in settings and photograph_sign(store) is not None:
        settings = settings | {"augmentation": PHOTOGRAPHS}
    return resolve_experiment(settings, "--set")


def _degradation(kind: str | None, probability: float, extent: float | None) -> "Degradation | None":
    """What `--degradation` and its two options ask for."""
    from orchestrator.data.augmentations import Degradation

    if kind is None:
        if extent is not None or probability != 1:
            name = "--degradation-probability" if probability != 1 else "--degradation-extent"
            raise InputError(f"{name}: is for degraded images: give --degradation too")
        return None
    if extent is not None and not 0 < extent <= 1:
        raise InputError(f"--degradation-extent: {extent:g}: should be a share of the sides, above 0 and at most 1")
    return Degradation(kind, probability, extent)


def _refuse_together(option: str, others: Mapping[str, object]) -> None:
    for other, value in others.items():
        if value:
            raise InputError(f"{option}: cannot be combined with {other}; leave one out")


def _class_groups(store: Any, sizes: str) -> dict[str, Any]:
    """The rows of consecutive groups of classes, named by their first and last index."""
    from orchestrator.data.splits import class_groups

    try:
        numbers = [int(size) for size in sizes.split(",")]
    except ValueError:
        raise InputError(f"--class-groups: '{sizes}' should be numbers of classes such as 200,200,155") from None
    try:
        rows = class_groups(store, numbers)
    except InputError as error:
        raise InputError(f"--class-groups: {sizes}: {error}") from None
    ends = [sum(numbers[: place + 1]) for place in range(len(numbers))]
    return {f"{end - size}-{end - 1}": part for end, size, part in zip(ends, numbers, rows, strict=True)}


def _between(ends: Sequence[float]) -> str:
    return " to ".join(f"{end:.4f}" for end in ends)


def _with_ends(values: Mapping[str, float | str], ends: Mapping[str, Sequence[float]]) -> dict[str, str]:
    """`0.5330 (0.4970 to 0.5960)`"""
    return {n: f"{float(v):.4f}" + (f" ({_between(ends[n])})" if n in ends else "") for n, v in values.items()}


def _show_metrics(title: str, columns: Mapping[str, Mapping[str, float | str]], output: "Metrics | None") -> None:
    """A row per metric, with its value in each column; or the output as JSON."""
    if output is not None:
        print_json(output)
        return
    Terminal().print(Text(title), soft_wrap=True)
    table = Table(box=SIMPLE_HEAD)
    table.add_column("metric")
    for name in columns:
        table.add_column(name, justify="right")
    for key in dict.fromkeys(key for cells in columns.values() for key in cells):
        cells = [column.get(key, "") for column in columns.values()]
        table.add_row(key, *(_cell(key, cell) for cell in cells))
    Terminal().print(table)


def _cell(metric: str, value: float | str) -> str:
    if isinstance(value, str):
        return value
    from orchestrator.evaluation.measures.search import QUERIES_LEFT_OUT

    return f"{value:.0f}" if metric == QUERIES_LEFT_OUT.name else f"{value:.4f}"


def _refuse_table(option: str, path: Path | None) -> None:
    """Refuse, before any computation, a table that could not be written at the end."""
    if path is not None and path.suffix.lower() not in TABLES:
        raise InputError(f"{option}: {path}: need a file name that ends in .csv or .parquet")
    if path is not None:
        output_place(option, path, TABLES)


def _write_table(option: str, path: Path, table: Any) -> None:
    """Write a table as CSV or Parquet, completely or not at all."""
    from pyarrow import csv, parquet

    from orchestrator.storage.atomic import write_atomically

    write = csv.write_csv if path.suffix.lower() == ".csv" else parquet.write_table
    what = f"{len(table)} rows"
    write_output(option, path, lambda place: write_atomically(place, lambda file: write(table, file)), what, TABLES)
