"""The record as one page: every row with its verdicts, and all that is needed to make it again."""

import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any, get_args

from orchestrator.evaluation.measures import HEADLINES
from orchestrator.report.html.elements import Cell, Table, number_cell, score_cell
from orchestrator.report.html.rendering import render
from orchestrator.report.learning import gain_text
from orchestrator.results.figures import costs, curves, differences, over_tasks
from orchestrator.results.networks import TaskNetwork
from orchestrator.results.outputs import ContrastOutput, RowOutput, Word
from orchestrator.results.plan import Plan
from orchestrator.results.row import ROWS, Row, RowFacts
from orchestrator.results.standings import FEW_METHODS, NAMED, Standings, TaskStandings, contrast_text, network_text
from orchestrator.storage.atomic import write_whole
from orchestrator.text import join_names, params_text, pluralize, span


def results_page(standings: Standings) -> str:
    """The HTML."""
    tasks = standings.tasks
    values: dict[str, Any] = {
        "subtitle": _subtitle(standings),
        "lines": [task_line(standings, task) for task in tasks] or ["No row is recorded yet."],
        "caveats": _caveats(standings),
        "tasks": [_task_part(standings, task) for task in tasks],
        "over": _over_table(standings) if standings.over else None,
        "over_figures": [over_tasks(standings, protocol) for protocol in standings.over],
        "over_said": OVER.format(reference=standings.plan.reference),
        "costs": [costs(task) for task in tasks],
        "each": [_row_section(standings, task, row) for task in tasks for row in task.rows],
        "open": [_open_task(standings.plan, name) for name in standings.empty],
        "example": f"{standings.plan.metric}>0.4 against_{standings.plan.reference}=better",
        "how": _how(standings),
    }
    return render("results.html", values, more="connected", data={"records": _records(standings)})


def write_page(standings: Standings, path: Path) -> None:
    """The page as a file, whole or not at all."""
    write_whole(path, results_page(standings).encode())


NETWORKS = (
    "As it comes: the pre-trained network's pooled features at unit length, without an embedding layer and without "
    "training, on the same queries, with the pooling of the trainings. (A row's untrained network has a random "
    "embedding layer on top, which is a lower bar.) Nothing of it was chosen on held-out classes, as each method's "
    "settings were. It has no seeds: the differences are over test classes and the method's seeds. The methods of all "
    "tasks with such a network are a family of their own (Holm's method, another 5%)."
)
OVER = (
    "A method's difference from {reference}, over tasks of this kind whose true differences vary (random effects, each "
    "task counts the same; p and interval by Holm's method for the methods of a protocol, which spends another 5%). "
    "Tasks differ in data set and network together, and in how far methods differ: the mean is mostly of the task "
    "where that is most. Of those whose pictures have one source the first counts. Over two or three of them hardly "
    "any difference can be told apart."
)


def _subtitle(standings: Standings) -> str:
    plan, rows = standings.plan, sum(len(task.rows) for task in standings.tasks)
    budget = plan.budget
    seconds = sum(row.facts.cost.core_seconds or 0 for task in standings.tasks for row in task.rows)
    return (
        f"{pluralize(rows, 'row')} on {pluralize(len(standings.tasks), 'task')} · each {budget.num_trials} trials "
        f"({budget.algorithm}, each to its end), the winner tested with {plan.seeds} seeds · test {plan.metric} on "
        f"classes that no training has seen (higher is better) · {seconds / 3600:.1f} core-hours"
    )


def task_line(standings: Standings, task: TaskStandings) -> str:
    """Which method's settings lead, which are not told apart from them, how the others stand to the reference, what
    cannot be told apart, and what has not learned; a few sentences."""
    reference, best = standings.plan.reference, task.rows[0]
    line = f"{task.name}: the settings found for {best.facts.method} lead with {best.mean(task.metric):.4f}"
    over_network = f" {text}" if (text := network_text(task)) else ""
    if len(task.rows) == 1:
        return f"{line}; it is the only row.{over_network}"
    others = [row.facts.method for row in task.rows[1:]]
    contrasts = {name: task.contrast(best.facts.method, name) for name in others}
    near = [name for name, one in contrasts.items() if one is not None and not one.real]
    if near:
        more = len(near) - NAMED
        whom = (
            join_names(near) if more <= 0 else f"{', '.join(near[:NAMED])} and {more} more of the other {len(others)}"
        )
        line += (
            f", not told apart from {f'any of the other {len(near)}' if len(near) == len(others) > NAMED else whom}."
        )
    else:
        line += ", told apart from all others."
    verdicts = [one.verdict for row in task.rows if (one := task.contrast(row.facts.method, reference)) is not None]
    if not verdicts:
        line += f" {reference} has no row."
    else:
        counted = join_names([f"{verdicts.count(word)} {word}" for word in get_args(Word)], " and ")
        line += f" Compared with {reference}: {counted}; the median interval of these differences is "
        line += f"\u00b1{task.half_width(reference):.4f}."
    line += over_network
    if not_learned := [row.facts.method for row in task.rows if not row.has_learned]:
        line += f" Not shown to be better than before the training (first seed): {join_names(not_learned, ' and ')}."
    failed = {row.facts.method: len(row.failed_seeds(task.metric)) for row in task.rows}
    if any(failed.values()):
        counted = join_names([f"{count} of {method}" for method, count in failed.items() if count], " and ")
        line += f" Seeds no better than before the training: {counted}."
    failed = {row.facts.method: row.failed_trials for row in task.rows}
    if any(failed.values()):
        counted = join_names([f"{count} of {method}" for method, count in failed.items() if count], " and ")
        line += f" Trials that failed: {counted}."
    falls = [f"{method} (from {held_out} to {test} of {len(task.rows)})" for method, held_out, test in task.falls]
    if falls:
        line += f" Ranked far lower in the test than by held-out classes: {join_names(falls, ' and ')}."
    return line


def _caveats(standings: Standings) -> list[str]:
    plan = standings.plan
    planned = {(name, method) for name in plan.tasks for method in plan.methods_of(name)}
    rows = {(task.name, row.facts.method) for task in standings.tasks for row in task.rows}
    luck = {task.name: statistics.median(row.search_deviation for row in task.rows) for task in standings.tasks}
    moved = join_names([f"{deviation:.4f} on {name}" for name, deviation in luck.items()], " and ")
    if moved:
        moved = (
            f" If its trials are drawn again from these, the best held-out score has a standard deviation of {moved} "
            "(median of the rows); other trials may differ by more."
        )
    agreement = [f"{task.agreement:.2f} on {task.name}" for task in standings.tasks if len(task.rows) >= FEW_METHODS]
    if agreement:
        moved += f" Held-out classes and the test rank the methods with Kendall's tau {join_names(agreement, ' and ')}."
    lines = [
        "Compared are the settings that one search found for each method. Another search may find others, which no "
        f"interval and no verdict here counts.{moved}",
        "What holds on small pictures has to be tested anew on photographs, and with whole networks trained.",
    ]
    if missing := planned - rows:
        lines.append(
            f"The recording is not complete: {len(planned - missing)} of {len(planned)} planned rows. Each new row "
            "changes the corrected p of the others, and may change verdicts."
        )
    return lines


def _how(standings: Standings) -> list[str]:
    plan = standings.plan
    networks = [NETWORKS] if any(task.network is not None for task in standings.tasks) else []
    families = 1 + len(networks) + len(standings.over)
    wrong = f"So {families} families of comparisons each have a false one in at most 5% of records"
    wrong += f", together in {5 * families}%."
    together = [wrong] if families > 1 else []
    return [
        f"Score: test {plan.metric} of the final runs, the mean of {plan.seeds} seeds. Each trains with the winner's "
        "settings on the whole training half, up to the epoch of the winner's best validation; a method that needs "
        "held-out classes (ccp) keeps them, and trains on fewer. By the MLRC protocol it is of the embeddings of four "
        "models side by side, each trained without a quarter of the training classes. The winner was chosen on "
        "held-out classes, which are fewer than those of the test: the two scores are not of equal difficulty. What a "
        "class scores depends on the other test classes, among which its images are looked for.",
        "Interval of a score: 95%, over other test classes of this kind and other training seeds (two crossed samples, "
        "each with the jackknife's variance), on the scale of log odds. It is not over other searches, other splits of "
        "the classes, or other data sets.",
        "Difference of two methods: the same of the paired differences, class by class and seed by seed. Intervals of "
        "differences are widened as their p is, so that 0 is outside exactly where two are told apart. Each alone "
        "holds its true difference in at least 95% of such records, not all of them at once.",
        f"Correction: all pairs of methods of all tasks are one family, of {pluralize(standings.comparisons, 'pair')} "
        f"(Holm's method, weighted: half of 5% for the comparisons with {plan.reference}, half for all others, where "
        "both are there). In at most 5% of such records, at one time, is any pair that does not differ told apart; a "
        "record that grows is looked at often.",
        *networks,
        *together,
        "Not told apart does not mean equal.",
        "Core-seconds are the processor's, of all trainings of a row. Every row's files are in the project's folder "
        f"results/{ROWS}.",
    ]


# Tables ------------------------------------------------------------------------------------------------------------


def _task_part(standings: Standings, task: TaskStandings) -> dict[str, Any]:
    of, first = task.task, task.rows[0].facts
    size = f"{pluralize(first.classes, 'test class', 'test classes')}, {first.queries:,} queries"
    return {
        "title": f"{task.name}: {of.dataset}, {of.protocol}, {of.network}",
        "said": f"{size}; {params_text(of.settings)}",
        "rows": _rows_table(standings, task),
        "network": None if task.network is None else _network_facts(task.network),
        "differences": differences(task, standings.plan) if len(task.rows) > 1 else None,
    }


def _network_facts(network: TaskNetwork) -> str:
    """Its scores, what they are of, and the command that measures it again."""
    scores = network.scores
    tests = ", ".join(f"{metric} {value:.4f}" for metric, value in scores.test.items())
    features = f"{scores.dimensions:,} features, pooling {scores.settings['pooling']}"
    made = f"measured {scores.date}, commit {scores.commit}, {scores.machine}: {scores.command}"
    return f"{scores.label}, without training: test {tests}; {features}; {made}"


def _rows_table(standings: Standings, task: TaskStandings) -> Table:
    plan, rows = standings.plan, []
    for rank, (row, one) in enumerate(zip(task.rows, _outputs(standings, task), strict=True), start=1):
        facts = row.facts
        ends = "" if one.low is None else number_cell(f"{one.low:.4f} to {one.high:.4f}", one.low)
        rows.append(
            [
                rank,
                Cell(facts.method, facts.method, trial=facts.name),
                score_cell(one.score),
                ends,
                score_cell(one.recall_at_1),
                score_cell(facts.held_out),
                _verdict_cell(one.against_reference, _alone(one.method, plan)),
                _verdict_cell(one.against_best, BEST),
                None if one.core_seconds is None else number_cell(span(one.core_seconds), one.core_seconds),
                Cell("details", facts.name, link=f"#row-{facts.name}"),
            ]
        )
    heads = ["#", "method", f"test {plan.metric}", "95%", "recall@1", "held out"]
    heads += [f"against {plan.reference}", "against the best", "core time", "more"]
    return Table(f"rows-{task.name}", heads, rows, leads=[len(heads) - 1])


def _outputs(standings: Standings, task: TaskStandings) -> list[RowOutput]:
    return [one for one in standings.outputs if one.task == task.name]


def _alone(method: str, plan: Plan) -> str:
    """Of a method that is not compared with the reference."""
    return "the reference" if method == plan.reference else f"no row of {plan.reference}"


BEST = "the best"
STYLES = {"better": "state done", "worse": "state failed", "not told apart": "state pruned"}


def _verdict_cell(contrast: ContrastOutput | None, itself: str) -> Cell:
    if contrast is None:
        return Cell(itself, "0", number=True)
    text, why = f"{contrast.difference:+.4f} {contrast.verdict}", _certainty(contrast)
    return Cell(text, repr(contrast.difference), number=True, style=STYLES[contrast.verdict], why=why)


def _word(contrast: ContrastOutput | None, itself: str) -> str:
    return itself if contrast is None else contrast.verdict


def _certainty(contrast: ContrastOutput) -> str:
    ends = f"{contrast.low:+.4f} to {contrast.high:+.4f}"
    return f"95% for this pair, widened: {ends}; p {contrast.adjusted_p:.2g}, corrected"


def _over_table(standings: Standings) -> Table:
    rows = [
        [
            one.method,
            one.protocol,
            ", ".join(f"{name} {value:+.4f}" for name, value in one.by_task.items()),
            number_cell(f"{one.difference:+.4f}", one.difference),
            number_cell("any" if (one.low, one.high) == (-1, 1) else f"{one.low:+.4f} to {one.high:+.4f}", one.low),
            number_cell(f"{one.adjusted_p:.2g}", one.adjusted_p),
            Cell(one.verdict, one.verdict, style=STYLES[one.verdict]),
        ]
        for one in sorted(standings.over_outputs, key=lambda one: (one.protocol, -one.difference))
    ]
    heads = ["method", "protocol", "by task", "mean difference", "95%", "p", "verdict"]
    return Table("over-tasks", heads, rows, wrap=[2])


# A row -------------------------------------------------------------------------------------------------------------


def _row_section(standings: Standings, task: TaskStandings, row: Row) -> dict[str, Any]:
    facts, interval = row.facts, task.interval(row)
    tests = {metric: ", ".join(f"{value:.4f}" for value in values) for metric, values in facts.test.items()}
    score = f"{row.mean(task.metric):.4f}"
    cost, reference, failed = facts.cost, standings.plan.reference, row.failed_seeds(task.metric)
    against = {
        f"against {other}": task.contrast(facts.method, other) for other in dict.fromkeys((reference, task.best))
    }
    if (over_network := task.over_network.get(facts.method)) is not None:
        against[f"against {over_network.other}"] = over_network
    core = "not measured" if cost.core_seconds is None else span(cost.core_seconds)
    said = {
        "score": score if interval is None else f"{score} ({interval.text})",
        **{
            name: f"{contrast_text(one.output)} ({_certainty(one.output)})"
            for name, one in against.items()
            if one is not None
        },
        **{f"test {metric} by seed": text for metric, text in tests.items()},
        "on held-out classes": f"{facts.held_out:.4f} {facts.objective}"
        + ("" if facts.untrained is None else f"; {facts.untrained:.4f} before the training"),
        "over its untrained network": _gain_text(facts)
        + (f"; no better in {pluralize(len(failed), 'seed')}: {', '.join(map(str, failed))}" if failed else ""),
        "tests trained for": _length_text(task, row),
        "winner's settings": f"trial {facts.winner}: {params_text(facts.params)}",
        "measured on": f"{pluralize(facts.classes, 'class', 'classes')}, {facts.queries:,} queries",
        "tuning": f"{pluralize(len(facts.params), 'setting')}, {_trials_text(row)}, {facts.epochs:g} epochs",
        "cost": f"{core} of one core, {span(cost.seconds)} on the clock"
        + (f", {cost.gpu_hours:.2f} GPU-hours" if cost.gpu_hours else ""),
        "machine": facts.machine,
        "date": facts.date,
        "commit": (facts.commit or f"version {facts.version}")
        + (f", resumed at {', '.join(facts.later_commits)}" if facts.later_commits else ""),
        "digest of the data set": facts.dataset_digest,
        "digest of the journal": facts.journal_digest,
        "digest of the search file": facts.search_digest,
        "files": f"{row.folder.resolve().parents[1].name}/{ROWS}/{facts.name}",
    }
    return {
        "name": facts.name,
        "score": score,
        "facts": said,
        "command": facts.command,
        "train_command": facts.train_command,
        "curves": curves(row),
    }


def _trials_text(row: Row) -> str:
    """`12 trials`, `12 trials (6 failed)`"""
    text = pluralize(len(row.facts.trials), "trial")
    return f"{text} ({row.failed_trials} failed)" if row.failed_trials else text


def _length_text(task: TaskStandings, row: Row) -> str:
    """`10 of 12 epochs`; of a method that needs held-out classes, that it kept them."""
    curves, planned = row.final_curves, task.task.settings.get("epochs")
    length = max((curve.epochs[-1] for curve in curves), default=0.0)
    text = f"{length:g} epochs" if planned in (None, length) else f"{length:g} of {planned} epochs"
    kept = any(value is not None for curve in curves for value in curve.values)
    return text + (", with classes held out for the method" if kept and row.facts.protocol != "mlrc" else "")


def _gain_text(facts: RowFacts) -> str:
    return (
        "not measured"
        if facts.gain is None
        else f"test {facts.gain.metric} of seed {facts.seeds[0]}, {gain_text(facts.gain)}"
    )


def _open_task(plan: Plan, name: str) -> dict[str, str]:
    task, reference = plan.tasks[name], plan.reference
    settings = params_text({"protocol": task.protocol, **task.settings})
    return {
        "name": name,
        "said": f"{task.dataset}: {settings}",
        "search": plan.command(name, reference),
        "add": f"orchestrator results add {name}.{reference}",
    }


def _records(standings: Standings) -> dict[str, Any]:
    """What the filter and the panel know of the rows (`connected.trials_data`)."""
    columns = [
        "row",
        f"against_{standings.plan.reference}",
        "against_best",
        "task",
        "method",
        "data_set",
        "protocol",
        "network",
        *_metrics(standings.plan),
        "seconds",
    ]
    rows, more = [], {}
    for task in standings.tasks:
        for row, one in zip(task.rows, _outputs(standings, task), strict=True):
            facts = row.facts
            verdicts = [_word(one.against_reference, _alone(one.method, standings.plan)), _word(one.against_best, BEST)]
            seconds = round(facts.cost.seconds, 1)
            scores = [round(row.mean(metric), 6) for metric in _metrics(standings.plan)]
            labels = [facts.name, *verdicts, facts.task, facts.method, facts.dataset, facts.protocol, facts.network]
            rows.append([*labels, *scores, seconds])
            about: dict[str, Any] = {"time": span(facts.cost.seconds), "page": f"#row-{facts.name}"}
            if (curve := row.curves.get(facts.winner)) is not None:
                about |= {"at": curve.epochs, "curve": curve.values, "loss": curve.losses}
            more[facts.name] = about
    return {
        "noun": "row",
        "plural": "rows",
        "leads": "All its trials, its settings and its command",
        "names": {},
        "framed": "below",
        "metric": f"val/{standings.plan.metric} of the winner",
        "winner": None,
        "unit": "epochs",
        "columns": columns,
        "first": len(columns),
        "seconds": len(columns) - 1,
        "rows": rows,
        "more": more,
    }


def _metrics(plan: Plan) -> Sequence[str]:
    return list(dict.fromkeys([plan.metric, *(name for name in HEADLINES if name == "recall_at_1")]))
