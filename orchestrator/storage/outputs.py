"""What commands print with `--json`, as models: each is built by the code that knows it, and `schema --of outputs`
publishes their JSON schema.

An output has the fields of its model and no others. A field with a default is absent unless it is given.
"""

from typing import Any

from pydantic import BaseModel, ConfigDict, SerializerFunctionWrapHandler, model_serializer

Facts = dict[str, Any]
"""A mapping with keys that depend on the method, the data set or the settings."""
SettingValue = bool | int | float | str | None
"""Of a hyperparameter or a setting."""
Number = int | float
"""A limit or a count that is a whole number where it was given as one."""


class Output(BaseModel):
    """The base of all outputs, and of their parts."""

    model_config = ConfigDict(extra="forbid", frozen=True, populate_by_name=True)

    @model_serializer(mode="wrap")
    def _without_absent(self, dump: SerializerFunctionWrapHandler) -> dict[str, Any]:
        fields = type(self).model_fields
        absent = {fields[name].alias or name for name in fields.keys() - self.model_fields_set}
        return {key: value for key, value in dump(self).items() if key not in absent}

    @property
    def plain(self) -> dict[str, Any]:
        """As JSON has it."""
        return self.model_dump(mode="json", by_alias=True)
