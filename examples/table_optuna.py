"""A sampler and a pruner of plain Optuna on a recorded task: nothing is trained.

python examples/table_optuna.py proxy_anchor [FILE]
"""

import sys
from pathlib import Path

import optuna

from orchestrator.benchmarking import read_task, suggest

name, *files = sys.argv[1:]
task = read_task(name, Path(files[0]) if files else None, partial=True)
epochs = 0.0


def objective(trial: optuna.Trial) -> float:
    """The best validation of the recorded point nearest to the suggested one."""
    global epochs
    curve, best = task.curve(suggest(task.space, trial)), 0.0
    before = 0.0
    for number, value in enumerate(curve.metrics[task.objective.metric]):
        epochs, before = epochs + curve.metrics["epoch"][number] - before, curve.metrics["epoch"][number]
        best = max(best, value)
        trial.report(best, number + 1)
        if trial.should_prune():
            raise optuna.TrialPruned
    return best


optuna.logging.set_verbosity(optuna.logging.WARNING)
pruner = optuna.pruners.HyperbandPruner(min_resource=1, max_resource=task.validations)
study = optuna.create_study(direction="maximize", sampler=optuna.samplers.TPESampler(seed=0), pruner=pruner)
study.optimize(objective, n_trials=50)
print(f"{task.name}: {study.best_value:.4f} of {task.best():.4f} after {epochs:.0f} of {task.epochs:.0f} epochs")
