"""Samplers of OptunaHub, by name: `optunahub/auto_sampler`."""

import contextlib
import hashlib
import os
import re
import tempfile
from functools import lru_cache
from importlib.util import find_spec
from inspect import Parameter, signature
from pathlib import Path
from types import ModuleType
from typing import Any, ClassVar

from orchestrator.config.algorithms.base import Algorithm, Draw
from orchestrator.errors import InputError, missing_part
from orchestrator.problems import Problem, Suggestion, suggestion
from orchestrator.text import join_names

HUB_PATTERN = r"^optunahub/\w+(\.[A-Za-z_]\w*)?(@[\w.-]+)?$"


def is_hub_name(name: object) -> bool:
    """Whether this is `optunahub/PACKAGE`, with `.CLASS` of a package of several samplers, and `@REF`, a branch, tag or
    commit of the registry."""
    return isinstance(name, str) and re.match(HUB_PATTERN, name) is not None


class HubSampler(Algorithm):
    """A sampler of the registry's folder `package/samplers`, made with its own defaults and the search's seed.

    One object serves the whole search, since it may keep anything between two suggestions. After a stop it is made
    anew and asked again for all that it was asked for before.
    """

    kept: ClassVar[bool] = True

    def __init__(self, name: str) -> None:
        self.name = name  # type: ignore[misc]  # of an object here, of a class elsewhere
        which, _, ref = name.partition("/")[2].partition("@")
        self.package, _, self.class_name = which.partition(".")
        self.ref = ref or "main"

    def digest(self) -> str:
        """Of the package's files, which are fetched first.

        Raises:
            InputError: OptunaHub is not installed, the registry has no such package or does not answer, or the sampler
                cannot be made by its name alone.
        """
        digest, folder = hashlib.sha256(), Path(str(self._load()[0].__file__)).parent
        for path in sorted(folder.rglob("*.py")):
            digest.update(f"{path.relative_to(folder).as_posix()}\0".encode() + path.read_bytes() + b"\0")
        return digest.hexdigest()

    def sampler(self, optuna: ModuleType, draw: Draw) -> Any:
        """One for all suggestions, of the search's seed."""
        kind = self._load()[1]
        return kind(seed=draw.search_seed) if "seed" in signature(kind).parameters else kind()

    def _load(self) -> tuple[ModuleType, Any]:
        """The package, and the class of the sampler."""
        module = _fetch(self.name, self.package, self.ref)
        public = getattr(module, "__all__", None)
        kinds = {
            name: kind
            for name, kind in vars(module).items()
            if isinstance(kind, type) and "BaseSampler" in {base.__name__ for base in kind.__mro__[1:]}
            if (kind.__module__.startswith(module.__name__) if public is None else name in public)
        }
        name = self.class_name or (next(iter(kinds)) if len(kinds) == 1 else "")
        if name not in kinds:
            names = join_names([f"optunahub/{self.package}.{one}" for one in sorted(kinds)]) or "it holds none"
            raise _problem(self.name, f"names no sampler of the package: {names}")
        parameters = signature(kinds[name]).parameters.values()
        required = [one.name for one in parameters if one.default is one.empty and one.kind not in VARIADIC]
        if required:
            raise _problem(self.name, f"cannot be made by its name: it requires {join_names(required, ' and ')}")
        return module, kinds[name]


VARIADIC = (Parameter.VAR_POSITIONAL, Parameter.VAR_KEYWORD)


def _problem(name: str, rule: str, meant: Suggestion | None = None) -> InputError:
    return InputError(Problem(("algorithm",), name, rule, meant, begins_rule=True))


REGISTRY = "https://github.com/optuna/optunahub-registry"


def _names_at_hand(ref: str, *, asks: bool) -> list[str]:
    """The packages of samplers in OptunaHub's cache, and where the registry answers (`asks`) all of its."""
    from git import GitCommandError, Repo

    default = Path(os.environ.get("XDG_CACHE_HOME", "~/.cache")).expanduser() / "optunahub"
    cache = Path(os.environ.get("OPTUNAHUB_CACHE_HOME", default)) / "github.com/optuna/optunahub-registry" / ref
    names = [path.name for path in cache.glob("package/samplers/*")]
    with contextlib.suppress(GitCommandError, OSError), tempfile.TemporaryDirectory() as folder:
        if asks:
            git = Repo.init(folder).git
            git.fetch(REGISTRY, ref, depth=1, filter="blob:none")  # the names, and no file
            names += git.ls_tree("--name-only", "FETCH_HEAD:package/samplers").split()
    return names


@lru_cache
def _fetch(name: str, package: str, ref: str) -> ModuleType:
    """The package, from OptunaHub's cache or its registry: once in a process, as two loads would make two classes."""
    if find_spec("optunahub") is None:
        raise _problem(name, missing_part("optunahub"))
    import optunahub
    from git import GitCommandError

    meant = None
    try:
        return optunahub.load_module(f"samplers/{package}", ref=ref)
    except ImportError as error:
        rule = f"cannot be imported: {error}"
    except FileNotFoundError:
        rule = f"is not in OptunaHub's registry at '{ref}'"
        meant = Suggestion(suggestion(package, _names_at_hand(ref, asks=True)).names)
    except (GitCommandError, OSError) as error:
        rule = f"is not in OptunaHub's cache, and its registry at '{ref}' does not answer or has no such thing: {error}"
        meant = Suggestion(suggestion(package, _names_at_hand(ref, asks=False)).names)
    except Exception as error:  # of the package
        rule = f"cannot be loaded from OptunaHub: {type(error).__name__}: {error}"
    raise _problem(name, " ".join(rule.split())[:500], meant)
