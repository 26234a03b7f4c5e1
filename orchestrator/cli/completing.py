"""What the shell may complete: names of searches, methods, data sets, presets and shipped searches, and settings.

It imports nothing heavy, and a name that cannot be found out is not offered: completion never prints an error.
"""

import contextlib
import os
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import typer

from orchestrator.errors import InputError
from orchestrator.storage.paths import DEFAULT_STORAGE

COMMAND_LINES = ("COMP_WORDS", "_TYPER_COMPLETE_ARGS")
"""Where the shells give the words of an unfinished command line."""

Complete = Callable[[typer.Context, list[str], str], list[str]]


def _of(names: Callable[[typer.Context], Iterable[str]]) -> Complete:
    def complete(ctx: typer.Context, args: list[str], incomplete: str) -> list[str]:
        with contextlib.suppress(InputError, OSError):
            return [name for name in names(ctx) if name.startswith(incomplete)]
        return []

    return complete


def _storage(ctx: typer.Context) -> Path:
    return Path(ctx.params.get("storage") or DEFAULT_STORAGE)


def _searches(ctx: typer.Context) -> Iterator[str]:
    from orchestrator.storage.places import Places

    places = Places(_storage(ctx).expanduser().resolve())
    yield from (path.parent.name for path in places.journals())
    if (benchmarks := places.storage / "benchmarks").is_dir():
        yield from sorted(path.name for path in benchmarks.iterdir())


def _methods(ctx: typer.Context) -> Iterable[str]:
    from orchestrator.plugins import installed_methods

    return installed_methods()


def _spaces(ctx: typer.Context) -> Iterator[str]:
    from orchestrator.config.files import shipped_searches

    yield from shipped_searches()
    yield from (path.name for pattern in ("*.yaml", "*.yml") for path in sorted(Path().glob(pattern)))


def _datasets(ctx: typer.Context) -> Iterable[str]:
    from orchestrator.data.catalog import overview

    return overview(_storage(ctx).expanduser().resolve() / "data")


def _presets(ctx: typer.Context) -> Iterable[str]:
    from orchestrator.config.presets import presets

    return presets()


def _settings(ctx: typer.Context) -> Iterator[str]:
    """`lr=`, ...: of every training, and of the method where the command line names one."""
    from orchestrator.config.training import Training
    from orchestrator.plugins import installed_methods

    words = " ".join(os.environ.get(name, "") for name in COMMAND_LINES).split()
    keys = [
        key for word in words if word in installed_methods() for key in installed_methods()[word].fields.model_fields
    ]
    yield from (f"{key}=" for key in dict.fromkeys([*keys, *Training.model_fields]))


searches, methods, spaces, datasets, presets, settings = map(
    _of, (_searches, _methods, _spaces, _datasets, _presets, _settings)
)
