"""The outputs of all commands with `--json`: `orchestrator schema --of outputs` publishes their JSON schema.

Each is a model (`storage.outputs.Output`) that is built by the code which knows it: so the schema holds.
"""

from typing import Any

from pydantic import TypeAdapter

from orchestrator.claims.outputs import ClaimPlan, ClaimVerdict, ListedClaim
from orchestrator.cli.datasets import Prepared, Published
from orchestrator.cli.describe import MethodFacts, SettingFacts
from orchestrator.cli.embedding import EmbeddingsOutput, NearestImages
from orchestrator.cli.evaluation_output import Metrics
from orchestrator.cli.export import ExportedModel
from orchestrator.cli.housekeeping import DeletedSearches, LabelsOutput, Renamed
from orchestrator.cli.methods import Conformance
from orchestrator.cli.searches import Synced
from orchestrator.cli.watching import ServedPages
from orchestrator.cli.written import Written
from orchestrator.config.presets import PresetFacts, PresetName
from orchestrator.data.catalog import DataSet
from orchestrator.report.across import ComparedAcross
from orchestrator.report.best import BestOutput
from orchestrator.report.comparison import ComparisonOutput
from orchestrator.report.status import Status
from orchestrator.report.summary import Summary
from orchestrator.results.outputs import AddedRow, StandingsOutput
from orchestrator.search.doctor import Fitness
from orchestrator.search.plan_output import BestPlan, Plan
from orchestrator.storage.outputs import Facts
from orchestrator.tracking.ui_output import ServedTracker

OUTPUTS: dict[str, Any] = {
    "best": BestOutput | BestPlan | Status,
    "search": Summary | Plan,
    "benchmark": ComparisonOutput | dict[str, Plan],
    "claim": ClaimVerdict | ClaimPlan | list[ListedClaim],
    "compare": ComparisonOutput | ComparedAcross,
    "resume": Summary | ComparisonOutput,
    "status": Status | list[Status],
    "stop": Status | list[Status],
    "pause": Status | list[Status],
    "list": list[Status],
    "delete": DeletedSearches,
    "rename": Renamed,
    "tag": LabelsOutput,
    "note": LabelsOutput,
    "sync": Synced,
    "train": Summary | Plan,
    "evaluate": Metrics,
    "report": Summary | ComparisonOutput,
    "init": Written,
    "schema": Written | Facts,
    "export": ExportedModel,
    "embed": EmbeddingsOutput,
    "query": NearestImages,
    "methods": MethodFacts | list[MethodFacts],
    "settings": list[SettingFacts],
    "presets": PresetFacts | list[PresetName],
    "check": Conformance,
    "new-method": Written,
    "ui": ServedTracker,
    "watch": ServedPages,
    "doctor": Fitness,
    "datasets show": DataSet | list[DataSet],
    "datasets prepare": Prepared,
    "datasets publish": Published,
    "results show": StandingsOutput,
    "results add": AddedRow,
    "results page": Written,
}
"""Command -> the type of its output."""


def outputs_schema() -> dict[str, Any]:
    """The JSON schema of all outputs: one property for each command."""
    schemas = {name: TypeAdapter(kind).json_schema() for name, kind in OUTPUTS.items()}
    definitions: dict[str, Any] = {}
    for one in schemas.values():
        definitions |= one.pop("$defs", {})
    for one in [*schemas.values(), *definitions.values()]:
        if "properties" in one:
            one.setdefault("additionalProperties", False)
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "what orchestrator's commands print with --json, by command",
        "properties": schemas,
        "$defs": definitions,
    }
