"""A trained model on image files: `embed` and `query`."""

from pathlib import Path
from typing import Annotated, Literal

import typer
from rich.box import SIMPLE_HEAD
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TimeRemainingColumn
from rich.table import Table

from orchestrator.cli.options import DEFAULT_STORAGE, Json, Storage, local_path, places_of
from orchestrator.cli.output import check_page, print_json, waiting, write_html, write_output
from orchestrator.cli.terminal import Terminal, echo
from orchestrator.errors import InputError
from orchestrator.storage.files import output_place
from orchestrator.storage.outputs import Output
from orchestrator.text import pluralize

FORMATS = (".parquet", ".npy")

Run = Annotated[
    str,
    typer.Argument(help="A search (its final model), SEARCH/TRIAL, an MLflow run id, or a model file.", metavar="RUN"),
]
Device = Annotated[
    Literal["auto", "cpu", "cuda"], typer.Option(help="Where to compute; auto takes a GPU if there is one.")
]


class EmbeddingsOutput(Output):
    model: str
    output: str
    images: int
    dimensions: int
    left_out: dict[str, str]


class NearestImages(Output):
    model: str
    image: str
    neighbours: list[dict[str, str | float]]


def embed(
    run: Run,
    folder: Annotated[
        Path, typer.Argument(help="A folder of images, at any depth.", metavar="FOLDER", parser=local_path)
    ],
    output: Annotated[
        Path, typer.Option(metavar="FILE", help="A .parquet or .npy file to write.", parser=local_path)
    ] = Path("embeddings.parquet"),
    storage: Storage = DEFAULT_STORAGE,
    device: Device = "auto",
    json_: Json = False,
) -> None:
    """Embed a folder of images by a trained model, prepared as in its evaluation.

    Parquet has a row per image, its path and its embedding; NPY has the matrix, and a file of paths beside it.

    - `orchestrator embed my-search photos --output photos.parquet`
    """
    if output.suffix.lower() not in FORMATS:
        raise InputError(f"--output: {output}: should end in {' or '.join(FORMATS)}")
    place = output_place("--output", output, FORMATS)
    model = _model(run, storage)
    with waiting("loading the model") as status:
        from orchestrator.data.archives.listing import images_of

        files = images_of(folder)
        from orchestrator.search.retrieval import write_embeddings
        from orchestrator.training.embed_files import embed_files

        columns = ("[progress.description]{task.description}", BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
        bar = Progress(*columns, console=status.console, disable=not status.console.is_terminal)

        def show(done: int, total: int) -> None:
            status.stop()
            if not bar.tasks:
                bar.add_task("images", total=total)
                bar.start()
            bar.update(bar.task_ids[0], completed=done)

        try:
            embedded = embed_files(model, files, device, progress=show)
        finally:
            bar.stop()
    for path, reason in list(embedded.left_out.items())[:3]:
        echo(f"note: {path}: left out: {reason}", err=True)
    if len(embedded.left_out) > 3:
        echo(f"note: {len(embedded.left_out)} images are left out in all (--json names them)", err=True)
    what = f"{pluralize(len(embedded.paths), 'embedding')} of {embedded.embedding.shape[1]} numbers"
    write_output("--output", place, lambda path: write_embeddings(embedded, model, folder, path), what, FORMATS)
    if json_:
        count, width = embedded.embedding.shape
        left_out = {str(path): reason for path, reason in embedded.left_out.items()}
        print_json(
            EmbeddingsOutput(model=str(model), output=str(output), images=count, dimensions=width, left_out=left_out)
        )


def query(
    run: Run,
    image: Annotated[Path, typer.Argument(help="An image file.", metavar="IMAGE", parser=local_path)],
    among: Annotated[
        Path, typer.Option(metavar="PATH", help="A folder of images, or a .parquet file of embed.", parser=local_path)
    ],
    neighbours: Annotated[int, typer.Option(min=1, max=1000, help="How many to find.")] = 10,
    html: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Write a page with the images, which needs no network.", parser=local_path),
    ] = None,
    storage: Storage = DEFAULT_STORAGE,
    device: Device = "auto",
    json_: Json = False,
) -> None:
    """Find the images that a trained model holds to be most like one.

    - `orchestrator query my-search photo.jpg --among photos --html found.html`

    - `orchestrator query my-search photo.jpg --among photos.parquet --neighbours 20`
    """
    check_page("--html", html)
    if not image.is_file():
        raise InputError(f"IMAGE: {image}: {'is no file' if image.exists() else 'no such file'}")
    if not among.exists():
        raise InputError(f"--among: {among}: no such folder or file")
    model = _model(run, storage)
    with waiting("embedding"):
        from orchestrator.search.retrieval import query as nearest

        results, measure = nearest(model, image, among, neighbours, device)
    if html is not None:
        from orchestrator.report.html.query_page import LARGE, Shown, write_query_page

        tiles = [Shown.of(one.path, one.name, value=one.value) for one in results]
        query_row = Shown.of(image, image.name, LARGE)
        subtitle = f"The {len(results)} nearest images in {among}, by {run}"
        write_html("--html", html, lambda path: write_query_page(query_row, tiles, subtitle, measure, path), "page")
    rows: list[dict[str, str | float]] = [{"path": str(one.path), measure: one.value} for one in results]
    if json_:
        print_json(NearestImages(model=str(model), image=str(image), neighbours=rows))
    else:
        table = Table(box=SIMPLE_HEAD, pad_edge=False)
        for head in ("#", measure, "image"):
            table.add_column(head, justify="left" if head == "image" else "right", overflow="fold")
        for number, one in enumerate(results, 1):
            table.add_row(str(number), f"{one.value:.4f}", one.name)
        Terminal().print(table)


def _model(run: str, storage: Path) -> Path:
    from orchestrator.search.models import find_models

    models = find_models(run, places_of(storage))
    if len(models) > 1:
        raise InputError(f"RUN: {run} has one model per fold; name one, such as {models[0]}")
    return models[0]
