"""The dry run of a benchmark on one page: what all its searches share, a line for each, and the time of all."""

from collections.abc import Mapping
from typing import TYPE_CHECKING

from rich.box import SIMPLE_HEAD
from rich.table import Table
from rich.text import Text

from orchestrator.cli.output import plain
from orchestrator.cli.terminal import Terminal
from orchestrator.text import join_names, params_text, pluralize, span

if TYPE_CHECKING:
    from orchestrator.search.plan_output import Plan, SearchCost

SHARED = ("dataset", "epochs", "backbone", "embedding_dim", "augmentation", "classes_per_batch", "images_per_class")
"""The settings that a reader of a benchmark's page looks for; those in which its searches differ are in their lines."""
STEP = "of a training step's tensors"


def show_plans(name: str, plans: Mapping[str, "Plan"], begun: Mapping[str, int]) -> None:
    """Print the plans of a benchmark's searches, by label (`plan.plan`). `begun`: the trials so far of those that go
    on."""
    console = Terminal(soft_wrap=True)
    first = next(iter(plans.values()))
    console.print(Text(f"{name}: {pluralize(len(plans), 'search', 'searches')} to run", style="bold"))
    objective = first.objective
    common = {
        "budget of each": params_text(first.budget) if first.budget else pluralize(int(first.trials), "trial"),
        "objective": f"{objective['metric']} ({objective['mode']})",
        "final runs of each": str(first.final_runs),
        **{key: plain(first.settings.get(key)) for key in SHARED if key not in _differing(plans)},
    }
    for key, value in common.items():
        console.print(Text.assemble((f"{key}: ", "bold"), value))
    for line in dict.fromkeys(plan.data_set for plan in plans.values() if plan.data_set is not None):
        console.print(Text.assemble(("data set: ", "bold"), line))
    Terminal().print(_table(plans, begun))
    if costs := [plan.cost for plan in plans.values() if plan.cost is not None]:
        console.print(Text.assemble(("total: ", "bold"), _total(costs, len(plans))))
        console.print(Text(f"estimated from {costs[0].estimated_from}; one training at a time, none stopped early"))
    for size in dict.fromkeys(plan.memory[STEP] for plan in plans.values() if plan.memory):
        console.print(Text.assemble((f"memory {STEP}: ", "bold"), size))
    console.print(Text("All settings: --json, or orchestrator search METHOD --dry-run for one of them."))


def _differing(plans: Mapping[str, "Plan"]) -> list[str]:
    """The settings of all searches that have not one value."""
    settings = [plan.settings for plan in plans.values()]
    everywhere = [key for key in settings[0] if all(key in other for other in settings)]
    return [key for key in everywhere if key != "method" and any(s[key] != settings[0][key] for s in settings)]


def _table(plans: Mapping[str, "Plan"], begun: Mapping[str, int]) -> Table:
    differing = _differing(plans)
    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    so_far = ["so far"] if begun else []
    times = ("a trial", "all trials", "final runs")
    for head in ("search", "searched", *differing, *so_far, *times):
        left = head in ("search", "searched")
        table.add_column(head, justify="left" if left else "right", no_wrap=head == "search", overflow="fold")
    for label, plan in plans.items():
        cost, parts = plan.cost, plan.space if isinstance(plan.space, list) else [plan.space]
        seconds: list[float | None] = [None, None, None]
        if cost is not None:
            seconds = [cost.seconds_per_trial, cost.seconds_of_all_trials, cost.seconds_of_final_runs]
        table.add_row(
            label,
            ", ".join(dict.fromkeys(key for part in parts for key in part)) or "nothing",
            *(plain(plan.settings[key]) for key in differing),
            *(pluralize(begun.get(label, 0), "trial") for _ in so_far),
            *("" if time is None else span(time) for time in seconds),
        )
    return table


def _total(costs: list["SearchCost"], searches: int) -> str:
    """`at most 3.2 hours`, or which part is not known."""
    finals = sum(cost.seconds_of_final_runs for cost in costs)
    trials = [cost.seconds_of_all_trials for cost in costs if cost.seconds_of_all_trials is not None]
    unknown = [] if len(trials) == len(costs) else ["the trials, whose budget is not one of time or epochs"]
    unknown += [] if len(costs) == searches else ["searches whose data set is not prepared"]
    seconds = finals + (sum(trials) if len(trials) == len(costs) else 0)
    hours = f" ({seconds / 3600:.1f} hours)" if seconds >= 600 else ""
    return f"at most {span(seconds)}{hours}" + (f", without {join_names(unknown, ' and ')}" if unknown else "")
