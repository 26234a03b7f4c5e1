"""Whether an output is what the published schema says."""

from functools import cache
from typing import Any

import jsonschema

from orchestrator.cli.outputs import outputs_schema


@cache
def _schema() -> dict[str, Any]:
    """What is published, itself checked against what JSON Schema says."""
    schema = outputs_schema()
    jsonschema.validators.validator_for(schema).check_schema(schema)
    return schema


def conforms(command: str, answer: Any) -> None:
    """Fails unless the published schema describes a command's answer."""
    schema = _schema()
    one = {"$defs": schema["$defs"], **schema["properties"][command]}
    errors = jsonschema.validators.validator_for(schema)(one).iter_errors(answer)
    if (error := jsonschema.exceptions.best_match(errors)) is not None:
        raise error
