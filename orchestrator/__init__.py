"""A Ray-distributed experiment orchestrator for deep metric learning.

    import orchestrator as dml
    search = dml.search("demo")

The names below are imported when they are first used, most from `orchestrator.api`.
"""

import os
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    __version__: str
    from orchestrator.api import Compared as Compared
    from orchestrator.api import Model as Model
    from orchestrator.api import Page as Page
    from orchestrator.api import Search as Search
    from orchestrator.api import benchmark as benchmark
    from orchestrator.api import best as best
    from orchestrator.api import claim as claim
    from orchestrator.api import compare as compare
    from orchestrator.api import evaluate as evaluate
    from orchestrator.api import load as load
    from orchestrator.api import search as search
    from orchestrator.api import train as train
    from orchestrator.errors import InputError as InputError
    from orchestrator.errors import TrainingFailed as TrainingFailed
    from orchestrator.loss import Loss as Loss

# If the driver was started by `uv run`, Ray would start its workers by `uv run` too, in a copy of the working
# directory; the workers need only this interpreter. Ray reads the variable at import, so it is set here.
os.environ.setdefault("RAY_ENABLE_UV_RUN_RUNTIME_ENV", "0")

_API = ("Compared", "Model", "Page", "Search", "benchmark", "best", "claim", "compare", "evaluate", "load", "train")
_ERRORS = ("InputError", "TrainingFailed")


def __getattr__(name: str) -> Any:
    from importlib import import_module

    if name == "search" or name in _API:
        import_module("orchestrator.errors").refuse_system()
    if name == "search":  # the package of this name can be called
        return import_module("orchestrator.search")
    if name in _API:
        return getattr(import_module("orchestrator.api"), name)
    if name in _ERRORS:
        return getattr(import_module("orchestrator.errors"), name)
    if name == "__version__":
        return _version()
    if name == "Loss":
        return import_module("orchestrator.loss").Loss
    raise AttributeError(f"module 'orchestrator' has no attribute {name!r}")


def _version() -> str:
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("dml-orchestrator")
    except PackageNotFoundError:  # a source that is not installed
        raise AttributeError("__version__: dml-orchestrator is not installed") from None


def __dir__() -> list[str]:
    return sorted(
        [*(name for name in globals() if name.startswith("__")), *_API, *_ERRORS, "Loss", "__version__", "search"]
    )
