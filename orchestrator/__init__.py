"""A Ray-distributed experiment orchestrator for deep metric learning."""

import os

# Ray would start its workers by `uv run` in a copy of the working directory wherever the driver was started so; the
# workers need nothing but this interpreter. Ray reads it when it is imported, hence here.
os.environ.setdefault("RAY_ENABLE_UV_RUN_RUNTIME_ENV", "0")
