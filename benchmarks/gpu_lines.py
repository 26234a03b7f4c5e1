"""What a script says to `gpu.py`: each figure, when it is there, as a line of JSON."""

import json
from collections.abc import Callable
from typing import Any


class Figures(dict[str, Any]):
    """Figures by name; each is printed when it is set."""

    def __setitem__(self, name: str, value: Any) -> None:
        super().__setitem__(name, value)
        print(json.dumps({name: value}), flush=True)

    def __ior__(self, others: Any) -> "Figures":  # type: ignore[misc,override]
        for name, value in dict(others).items():
            self[name] = value
        return self


def measured(call: Callable[[str], Any], device: str) -> None:
    """Call a measurement with the device, and name the package that it lacks, if it is one of others that is absent."""
    try:
        call(device)
    except ModuleNotFoundError as error:
        if (error.name or "").split(".")[0] in ("", "orchestrator", "methods", "torch"):
            raise
        print(json.dumps({"not run": f"not installed: {error.name}"}))
