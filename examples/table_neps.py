"""An optimizer of NePS (`uv pip install neural-pipeline-search`) on a recorded task: nothing is trained.

python examples/table_neps.py proxy_anchor [FILE]      # a task whose settings do not depend on each other
"""

import sys
import tempfile
from pathlib import Path
from typing import Any

import neps

from orchestrator.benchmarking import read_task
from orchestrator.config.space import Parameter

name, *files = sys.argv[1:]
task = read_task(name, Path(files[0]) if files else None, partial=True)


def range_of(parameter: Parameter) -> Any:
    """A searched setting, as NePS has it."""
    if parameter.kind == "categorical":
        return neps.Categorical(parameter.choices)
    if parameter.kind == "int":
        return neps.Integer(int(parameter.low), int(parameter.high), log=parameter.log)
    return neps.Float(parameter.low, parameter.high, log=parameter.log)


def evaluate_point(validations: int, **point: Any) -> dict[str, float]:
    """The best of so many validations of the recorded point nearest to the suggested one."""
    curve = task.curve(point)
    values, epochs = (curve.metrics[key][:validations] for key in (task.objective.metric, "epoch"))
    return {"objective_to_minimize": -max(values), "cost": epochs[-1]}


ranges = {parameter.key: range_of(parameter) for parameter in task.space.parameters()}
fidelity = {"validations": neps.IntegerFidelity(1, task.validations)}
TaskSpace = type("TaskSpace", (neps.PipelineSpace,), ranges | fidelity)  # NePS pickles it: its name has to lead here
with tempfile.TemporaryDirectory() as folder:
    root = Path(folder, "neps")  # a folder that is there already would be a search to go on with
    neps.run(evaluate_point, TaskSpace(), root_directory=root, optimizer="hyperband", total_evaluations_to_spend=50)
    summary = neps.status(root)[1]
print(f"{task.name}: {-summary['best_objective_to_minimize']:.4f} of {task.best():.4f}")
