"""A search from its plan to its last record: its driver, the next trial, its end. It does not train, and knows Ray only
as a place where trials run.
"""

import sys
from types import ModuleType
from typing import Any


class _Callable(ModuleType):
    """`orchestrator.search` is this package, and the function of the Python interface of that name."""

    def __call__(self, *arguments: Any, **keywords: Any) -> Any:
        from importlib import import_module

        return import_module("orchestrator.api").search(*arguments, **keywords)


sys.modules[__name__].__class__ = _Callable
