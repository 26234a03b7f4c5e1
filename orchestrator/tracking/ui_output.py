"""What `orchestrator ui` prints as JSON."""

from orchestrator.storage.outputs import Output


class ServedTracker(Output):
    tracking_uri: str
    address: str
