"""Whether an output is what the published schema says."""

from typing import Any

import jsonschema

from orchestrator.cli.outputs import outputs_schema


def conforms(command: str, answer: Any) -> None:
    """Fails unless the published schema describes a command's answer."""
    schema = outputs_schema()
    jsonschema.validate(answer, {"$defs": schema["$defs"], **schema["properties"][command]})
