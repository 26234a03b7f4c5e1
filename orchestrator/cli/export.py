"""The export of trained models."""

import re
from pathlib import Path
from typing import Annotated, Any, Literal

import typer
from rich.text import Text

from orchestrator.cli import completing
from orchestrator.cli.options import (
    DEFAULT_STORAGE,
    Json,
    Storage,
    TrackingUri,
    local_path,
    not_empty,
    places_of,
)
from orchestrator.cli.output import print_json, say, waiting
from orchestrator.cli.terminal import Terminal
from orchestrator.errors import InputError, redact
from orchestrator.problems import format_value
from orchestrator.storage.files import output_place
from orchestrator.storage.outputs import Output

LICENCE = re.compile(r"[A-Za-z0-9][A-Za-z0-9.+-]*")
NO_LICENCE = "its card names no licence: state one with --licence ID, or add `license: ID` at the top of README.md"


class ExportedModel(Output):
    """A model that was written (`to`), registered, or both."""

    model: str
    input: str
    output: str
    to: str | None = None
    path: str | None = None
    difference: float | None = None
    registered: str | None = None
    version: str | None = None
    alias: str | None = None


def export(
    run: Annotated[
        str,
        typer.Argument(
            help="A search (its final model), SEARCH/TRIAL, an MLflow run id, or a model file.", metavar="RUN"
        ),
    ],
    to: Annotated[
        Literal["onnx", "torchscript", "pt2", "mlflow", "hub"] | None, typer.Option("--to", help="The form to write.")
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option(
            metavar="PATH",
            help="File to write; a name like RUN.onnx in the current folder by default.",
            parser=local_path,
        ),
    ] = None,
    register: Annotated[
        str | None,
        typer.Option(metavar="MODEL", help="Register it in MLflow under this name.", callback=not_empty),
    ] = None,
    alias: Annotated[
        str, typer.Option(metavar="NAME", help="Alias of the registered version.", callback=not_empty)
    ] = "champion",
    dataset: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="Try it on images of this data set; the training's by default.",
            callback=not_empty,
            autocompletion=completing.datasets,
        ),
    ] = None,
    embedding: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="Another embedding that the method offers, such as matryoshka's first_16.",
            callback=not_empty,
        ),
    ] = None,
    licence: Annotated[
        str | None,
        typer.Option(
            "--licence",
            metavar="ID",
            help="For --to hub: the model's licence as Hugging Face names it, such as mit or cc-by-nc-4.0.",
            callback=not_empty,
        ),
    ] = None,
    storage: Storage = DEFAULT_STORAGE,
    tracking_uri: TrackingUri = None,
    json_: Json = False,
) -> None:
    """Write a trained model for other programs, after a check that it gives the same embeddings there.

    It takes uint8 images (batch, H, W, channels) of the size that the evaluation sees, and gives float32 embeddings.

    - `orchestrator export my-search --to onnx`

    - `orchestrator export my-search/0003 --to pt2 --output encoder.pt2`

    - `orchestrator export my-search --to hub --output birds`: a folder for `timm`, `torch` and the Hugging Face hub

    - `orchestrator export my-search --register birds`: in MLflow, as `models:/birds@champion`
    """
    if to is None and register is None:
        raise InputError("--to: missing, or --register; the forms are onnx, torchscript, pt2, mlflow and hub")
    if to is None and output is not None:
        raise InputError(f"--output: {output}: needs --to, the form to write")
    if register is not None and embedding is not None:
        raise InputError(f"--embedding: {embedding}: cannot be combined with --register; leave one out")
    if to == "hub" and embedding is not None:
        raise InputError(f"--embedding: {embedding}: --to hub writes the whole model; leave it out")
    if licence is not None and to != "hub":
        raise InputError(f"--licence: {licence}: only a model card names one: needs --to hub")
    if licence is not None and not LICENCE.fullmatch(licence):
        raise InputError(
            f"--licence: {format_value(licence)}: should be an identifier, such as mit, apache-2.0 or other"
        )
    with waiting("reading the model"):
        from orchestrator.search.models import find_models, owner_of
        from orchestrator.tracking.address import tracking_address

        places = places_of(storage)
        models = find_models(run, places)
        if len(models) > 1:
            raise InputError(f"RUN: {run} has one model per fold; name one, such as {models[0]}")
        from orchestrator.search.export import (
            FOLDERS,
            SUFFIXES,
            description,
            mlflow_form,
            model_source,
            require_packages,
        )
        from orchestrator.search.export import export as write
        from orchestrator.tracking.mlflow_store import reach
        from orchestrator.tracking.models import check_model_names, register_model

        path = None
        if to is not None:
            require_packages(to)
            path = output or Path(f"{Path(run).stem if Path(run).exists() else run.replace('/', '-')}{SUFFIXES[to]}")
            if to in FOLDERS and (path.exists() or path.is_symlink()):
                raise InputError(f"--output: {path} exists; name another folder")
            path = output_place("--output", path, [SUFFIXES[to]])
        owner = owner_of(models[0])
        if register is not None and owner is None:
            raise InputError(f"--register: {run} has no run in MLflow; name a search or SEARCH/TRIAL")
        uri = None
        if register is not None and owner is not None:
            uri = tracking_address(tracking_uri, places, owner.journal)
            if owner.run_id is None:
                again = f"orchestrator sync {owner.ledger.name}"
                raise InputError(f"--register: {run} is not recorded in {redact(uri)} yet: {again}")
            reach(uri)  # before any file is written
            check_model_names(uri, register, alias)
        source = model_source(models, run, places, dataset=dataset, embedding=embedding, say=say)
        if licence is not None:
            source.about["licence"] = licence.lower()
    accepts, gives = source.about["input"], source.about["output"]
    done: dict[str, Any] = {}
    if to is not None and path is not None:
        with waiting(f"exporting to {to}"):
            exported = write(source, to, path)
        done |= {"to": to, "path": str(exported.path), "difference": exported.difference}
        if not json_:
            same = f"its embeddings differ by {exported.difference:.2g} at most from the trained model's"
            lines = [f"{exported.path}: {same}", f"  {accepts}", f"  {gives}"]
            if exported.page is not None:
                lines.append(f"  a program that uses it: {exported.page}")
            for line in lines:
                Terminal().print(Text(line), soft_wrap=True)
            if to == "hub" and licence is None:
                Terminal().print(Text(f"  {NO_LICENCE}"), soft_wrap=True)
    if register is not None and owner is not None and owner.run_id is not None and uri is not None:
        with waiting("registering"), mlflow_form(source, models[0].parent) as folder:
            about = description(source)
            version = register_model(uri, places.artifacts, owner.run_id, folder, register, alias, about)
        done |= {"registered": register, "version": version, "alias": alias}
        if not json_:
            address = f"models:/{register}@{alias}"
            Terminal().print(Text(f"registered {register}, version {version}: {address}"), soft_wrap=True)
    if json_:
        print_json(ExportedModel(model=str(models[0]), input=accepts, output=gives, **done))
