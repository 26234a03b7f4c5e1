"""What `--json` prints of the commands that write files to begin with."""

from orchestrator.storage.outputs import Output


class Written(Output):
    """Files that were written."""

    path: str
    editor_schema: str | None = None
    method: str | None = None
    dataset: str | None = None
    search: str | None = None
