"""A Ray-distributed experiment orchestrator for deep metric learning."""

import os

# If the driver was started by `uv run`, Ray would start its workers by `uv run` too, in a copy of the working
# directory; the workers need only this interpreter. Ray reads the variable at import, so it is set here.
os.environ.setdefault("RAY_ENABLE_UV_RUN_RUNTIME_ENV", "0")
