"""The installed methods, as far as their names, texts and settings go.

To import the methods is to import torch, which takes seconds. So what a look or the check of a setting needs is read
from a record of the last import, a file in the cache folder. It is valid as long as the plugins that are announced and
every file imported then are unchanged, and so are the folders on Python's path and those of the plugins' packages. No
record is kept while a plugin is left out: its reason may lie anywhere. In a process that has imported the methods, they
are asked themselves. Where torch is missing, the built-in ones are read from the file that comes with the installation
for looking (deploy/review).
"""

import contextlib
import hashlib
import inspect
import json
import os
import sys
import sysconfig
import time
from collections.abc import Hashable, Iterator, Mapping
from dataclasses import dataclass
from dataclasses import fields as dataclass_fields
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Literal, Union, cast, get_args, get_origin

from pydantic import Field, create_model
from pydantic.fields import FieldInfo

from orchestrator import parts
from orchestrator.contract import Family, MethodConfig, family_of, method_entry_points, unknown_method
from orchestrator.errors import InputError, missing_part
from orchestrator.storage.atomic import write_whole
from orchestrator.storage.paths import cache_folder

FORMAT = 4
MAX_RECORDS = 8
"""Of different paths of Python; the oldest are deleted."""
KINDS: dict[str, type] = {"bool": bool, "int": int, "float": float, "str": str, "null": NoneType}
BOUNDS = ("gt", "ge", "lt", "le")
ENCLOSED = Path(__file__).with_name("methods.json")
"""In the installation for looking only."""
FREE = ("idle", "idle_within", "dependent", "earlier", "schedulable")
"""What a configuration may override without a change of what it accepts."""


@dataclass(frozen=True)
class Installed:
    """A method as it describes itself.

    Attributes:
        name, paper, documentation, latex, needs_validation, sampler: of its class.
        module: where it is defined.
        fields: a configuration with its hyperparameters, to read their types, bounds, defaults and descriptions.
        exact: `fields` accepts what the method's own does, with the same errors: the method has no checks besides.
    """

    name: str
    module: str
    paper: str
    documentation: str
    latex: str
    needs_validation: bool
    sampler: str
    fields: type[MethodConfig]
    exact: bool


def installed_methods() -> Mapping[str, Installed]:
    """Every installed method by name, sorted. InputError if the built-in ones cannot be found, or torch is missing and
    what is known of them without it."""
    if not _is_imported() and (recorded := _read_record()) is not None:
        return recorded
    began = time.time_ns()
    fresh = not _is_imported()
    if not _can_import():
        return _read_enclosed()
    from orchestrator.method import plugin_problems, registry

    methods = {name: _describe(name, cast(Hashable, method)) for name, method in sorted(registry().items())}
    if fresh and not plugin_problems():
        _record(methods, began)
    return methods


@cache
def _describe(name: str, method: Any) -> Installed:
    return Installed(
        name=name,
        module=method.__module__,
        paper=method.paper,
        documentation=inspect.cleandoc(method.__doc__ or ""),
        latex=inspect.cleandoc(vars(method).get("latex", "")),
        needs_validation=method.needs_validation,
        sampler=method.sampler,
        fields=method.Config,
        exact=True,
    )


def plugin_problems() -> list[str]:
    """One line per plugin, or method or metric of a plugin, that was left out."""
    if not _is_imported() and (_read_record() is not None or not _can_import()):
        return [*parts.problems]
    from orchestrator.method import plugin_problems

    installed_methods()
    return plugin_problems() + parts.problems


def find_installed(name: str) -> Installed:
    """The method called `name`; InputError with a suggestion otherwise."""
    if (family := family_of(name)) is not None:
        return _find_member(family, name)
    methods = installed_methods()
    if name not in methods:
        raise unknown_method(name, methods, plugin_problems())
    return methods[name]


def is_method(name: str) -> bool:
    """Whether this is the name of a method: an installed one, or one that a family is asked for."""
    return family_of(name) is not None or name in installed_methods()


def _find_member(family: Family, name: str) -> Installed:
    """One of a family's methods. The first that is asked for writes a record of all, as of the installed methods."""
    family.require()
    if not _is_imported() and name in (recorded := _read_record(family.prefix) or {}):
        return recorded[name]
    if not _can_import():
        raise InputError(missing_part("torch"))
    began = time.time_ns()
    fresh = not _is_imported() and family.package not in sys.modules
    from orchestrator.method import find_method

    installed_methods()  # writes their own record
    method = _describe(name, cast(Hashable, find_method(name)))
    if fresh and not plugin_problems():
        methods = {one: _describe(one, cast(Hashable, kind)) for one, kind in family.build_all().items()}
        _record(methods, began, family.prefix)
    return method


_unchecked: set[str] | None = None
"""Inside `fields_alone` what it gives."""


@contextlib.contextmanager
def fields_alone() -> Iterator[set[str]]:
    """In this block `config_of` gives the fields of methods without their own checks, so that nothing is imported.
    Gives the names of the methods that have such checks, as they are asked for."""
    global _unchecked
    _unchecked = set()
    try:
        yield _unchecked
    finally:
        _unchecked = None


def config_class(name: str) -> type[MethodConfig]:
    """A configuration that accepts what the method's own accepts, where that can be imported; InputError for an unknown
    method."""
    installed_method = find_installed(name)
    if installed_method.exact or not _can_import():
        return installed_method.fields
    if _unchecked is not None:
        _unchecked.add(name)
        return installed_method.fields
    from orchestrator.method import find_method

    return find_method(name).Config


def checked_config(name: str, hyperparameters: Mapping[str, Any]) -> MethodConfig:
    """Hyperparameters that another process has checked; of a method that is not installed here as they are: whoever
    trains with it tells that."""
    try:
        kind = config_class(name)
    except InputError:
        kind = MethodConfig
    return kind.model_construct(**hyperparameters)


def earlier_defaults(settings: Mapping[str, Any]) -> dict[str, Any]:
    """What the method of these settings had for defaults before; nothing of one that is not installed."""
    try:
        return dict(config_class(settings["method"]).earlier)
    except (InputError, KeyError):
        return {}


def _can_import() -> bool:
    return _is_imported() or find_spec("torch") is not None


def _is_imported() -> bool:
    contract: Any = sys.modules.get("orchestrator.method")
    return contract is not None and bool(contract.is_loaded())


# The record -----------------------------------------------------------------------------------------------------


def _place(what: str = "methods") -> Path:
    """A file for each path of Python, of the installed methods or of a family's: a trial's process, to which Ray gives
    another, must not replace ours."""
    path = json.dumps([sys.prefix, *map(str, sys.path)])
    return cache_folder() / f"{what}-{hashlib.sha256(path.encode()).hexdigest()[:16]}.json"


def _key() -> list[Any]:
    """What a record is for: this format, this Python, its path, and the plugins that are announced."""
    plugins = [[e.name, e.value, *((e.dist.name, e.dist.version) if e.dist else ())] for e in method_entry_points()]
    here = str(Path.cwd()) if "" in sys.path else ""
    return [FORMAT, sys.version, sys.prefix, sys.path, here, plugins]


def _state(path: str) -> list[int] | None:
    try:
        status = os.stat(path)  # noqa: PTH116 (of thousands of files, each time)
    except OSError:
        return None
    return [status.st_mtime_ns, status.st_size, status.st_ino]


@cache
def _read_record(what: str = "methods") -> Mapping[str, Installed] | None:
    """The methods of a valid record, read once in a process; None without one."""
    try:
        text = _place(what).read_bytes()
    except (OSError, RuntimeError):  # no home
        return None
    try:
        record = json.loads(text)
        if record["key"] != _key() or any(_state(path) != state for path, state in record["files"].items()):
            return None
        return _build_known(record["methods"])
    except (ValueError, KeyError, TypeError, AttributeError):  # damaged
        return None


def _build_known(methods: Mapping[str, Any]) -> dict[str, Installed]:
    return {name: Installed(**record | {"fields": _built(name, record["fields"])}) for name, record in methods.items()}


@cache
def _read_enclosed() -> Mapping[str, Installed]:
    """The built-in methods as the installation for looking describes them; InputError in others."""
    try:
        return _build_known(json.loads(ENCLOSED.read_bytes()))
    except OSError:
        raise InputError(missing_part("torch")) from None


def enclose(path: Path) -> None:
    """Write what is known of the built-in methods, for an installation without torch."""
    plain = {
        name: _plain(method) for name, method in installed_methods().items() if method.module.startswith("methods.")
    }
    write_whole(path, json.dumps(plain).encode())


def _record(methods: Mapping[str, Installed], began: int, what: str = "methods") -> None:
    """Keep the methods, imported since `began`, unless a file was changed meanwhile or something cannot be written."""
    with contextlib.suppress(OSError, RuntimeError, ValueError, TypeError):
        files = {path: _state(path) for path in sorted(_watched_files())}
        if any(state is None or state[0] >= began for state in files.values()):
            return
        plain = {name: _plain(method) for name, method in methods.items()}
        if None not in plain.values():
            write_whole(_place(what), json.dumps({"key": _key(), "files": files, "methods": plain}).encode())
            places = sorted(cache_folder().glob(f"{what}-*.json"), key=lambda place: place.stat().st_mtime)
            for place in places[:-MAX_RECORDS]:
                place.unlink(missing_ok=True)


def _watched_files() -> set[str]:
    """The files imported in this process but those of Python itself, whose version is in the key; the folders on the
    path; and everything in the plugins' packages."""
    library = sysconfig.get_path("stdlib")
    inside = Path(library, "site-packages")
    module_files = {Path(file) for module in list(sys.modules.values()) if (file := getattr(module, "__file__", None))}
    watched = {path for path in module_files if path.is_relative_to(inside) or not path.is_relative_to(library)}
    watched |= {path for path in map(Path, sys.path) if path.is_dir()}
    for entry in method_entry_points():
        for folder in getattr(sys.modules.get(entry.module), "__path__", ()):
            for root, folders, names in os.walk(folder):
                folders[:] = [name for name in folders if name != "__pycache__"]
                watched |= {Path(root), *(Path(root, name) for name in names)}
    return {str(path) for path in watched if path.is_absolute()}


def _plain(method: Installed) -> dict[str, Any] | None:
    """A method as plain values; None if one of its hyperparameters is of a kind that cannot be written."""
    rows: dict[str, Any] = {}
    for key, info in method.fields.model_fields.items():
        bounds = {name: getattr(rule, name) for rule in info.metadata for name in BOUNDS if hasattr(rule, name)}
        kind = _kind_name(info.annotation)
        scalar = info.default is None or type(info.default) in KINDS.values()
        if kind is None or not scalar or len(bounds) != len(info.metadata) or info.alias or info.default_factory:
            return None
        rows[key] = {"kind": kind, "default": info.default, "description": info.description, "bounds": bounds}
    config = method.fields
    above = [base for base in config.__mro__ if base not in MethodConfig.__mro__]
    checks = config.__pydantic_decorators__
    hooks = {name for base in above for name in vars(base) if hasattr(MethodConfig, name) and name not in FREE}
    exact = (
        not any(getattr(checks, kind.name) for kind in dataclass_fields(checks))
        and config.model_config == MethodConfig.model_config
        and not hooks - _GENERATED
    )
    idles = any(name in vars(base) for base in above for name in ("idle", "idle_within"))
    dependent = {key: sorted(names) for key, names in config.dependent.items()}
    fields = {"rows": rows, "dependent": dependent, "earlier": dict(config.earlier), "idles": idles}
    fields["schedulable"] = sorted(config.schedulable)
    return vars(method) | {"fields": fields, "exact": exact}


class _Bare(MethodConfig):
    """What Python and pydantic give every configuration."""

    value: int = 0


_GENERATED = set(vars(_Bare))


def _kind_name(kind: Any) -> Any:
    """An annotation as plain values: `float`, a union as a list, {"literal": [...]}; None if it is of another kind."""
    if get_origin(kind) in (Union, UnionType):
        parts = [_kind_name(part) for part in get_args(kind)]
        return None if None in parts else parts
    if get_origin(kind) is Literal:
        return {"literal": list(get_args(kind))} if all(type(v) in KINDS.values() for v in get_args(kind)) else None
    return next((name for name, type_of_kind in KINDS.items() if kind is type_of_kind), None)


def _read(kind: Any) -> Any:
    if isinstance(kind, list):
        return Union[*map(_read, kind)]
    return Literal[*kind["literal"]] if isinstance(kind, dict) else KINDS[kind]


def _built(name: str, fields: Mapping[str, Any]) -> type[MethodConfig]:
    """A configuration with these hyperparameters."""

    class Base(MethodConfig):
        dependent = {key: frozenset(names) for key, names in fields["dependent"].items()}  # noqa: RUF012
        earlier = fields["earlier"]
        schedulable = frozenset(fields["schedulable"])

        def idle(self) -> dict[str, tuple[str, ...]]:
            return own_config(name, self).idle() if fields["idles"] else {}

        def idle_within(self, steps: int) -> dict[str, tuple[str, ...]]:
            return own_config(name, self).idle_within(steps) if fields["idles"] else {}

    def field(row: Mapping[str, Any]) -> FieldInfo:
        return cast(FieldInfo, Field(row["default"], description=row["description"], **row["bounds"]))

    fields_made = {key: (_read(row["kind"]), field(row)) for key, row in fields["rows"].items()}
    return cast(type[MethodConfig], create_model("Config", __base__=Base, **cast(Any, fields_made)))


def own_config(name: str, config: MethodConfig) -> MethodConfig:
    """The same values in the method's own configuration, which methods are made from; this imports the method.
    InputError without torch."""
    if not _can_import():
        raise InputError(missing_part("torch"))
    from orchestrator.method import find_method

    kind = find_method(name).Config
    return config if isinstance(config, kind) else kind(**config.model_dump())
