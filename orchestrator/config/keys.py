"""The keys of a search file, each described once: what editors show (`schema`), the option of the command line, and the
row of docs/search_files.md follow from here. Imports nothing heavy, as `--help` reads it.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from orchestrator.config.limits import (
    MAX_CONCURRENT,
    MAX_HOURS,
    MAX_RESTARTS,
    MAX_RETRIES,
    MAX_RUNS,
    MAX_TRIALS,
    MAX_WORKERS,
)

SECONDS = {"gt": 0, "le": 3600 * MAX_HOURS, "allow_inf_nan": False}


@dataclass(frozen=True)
class Key:
    """A key of a search file."""

    meaning: str
    """In the file, as editors show it."""
    row: str = ""
    """What the page says of it; empty where it stands in the row of the key before."""
    default: str = "none"
    """On the page."""
    option: str = ""
    """What `--help` says of its option; empty where it has none."""
    bounds: Mapping[str, Any] = field(default_factory=dict)
    """Of its values, as pydantic's `Field` has them."""


KEYS = {
    "description": Key("a line about the search, shown with it", "a line about the search, shown with it"),
    "method": Key(
        "name of a method (orchestrator methods); required, unless it is searched in space",
        "name of a method (`orchestrator methods`)",
        "required, unless searched",
    ),
    "dataset": Key(
        "name of a data set (orchestrator datasets), or s3://bucket/prefix",
        "name of a data set (`orchestrator datasets`), or `s3://bucket/prefix`",
        "`glyphs`",
        option="Data set, in place of the file's.",
    ),
    "settings": Key(
        "fixed settings of the training (orchestrator settings) and of the method (orchestrator methods NAME)",
        "fixed settings of the training (`orchestrator settings`) and of the method",
        "their defaults",
    ),
    "space": Key(
        "what is searched: for each setting a range or a list of choices; of a grid also a list of spaces",
        "[what is searched](#the-space)",
        "required",
    ),
    "algorithm": Key(
        "how points are chosen",
        "[`auto`, or `tpe`, `gp`, `cmaes`, `nsga2`, `qmc`, `random`, `grid`](algorithms.md#the-algorithm) "
        "(`--algorithm`)",
        "`auto`",
        option="{algorithms}, in place of the file's.",
    ),
    "num_trials": Key(
        "how many trials; a grid without it is complete",
        "how many trials; a grid without it is complete",
        "required but for grids and budgets",
        option="How many trials.",
        bounds={"ge": 1, "le": MAX_TRIALS},
    ),
    "seeds": Key(
        "trials of each point of a grid, else of the leading points only, one per seed, from `seed` on; points are "
        "compared by their mean",
        "trials of each point [of a grid](#a-grid-over-seeds), else of [the leading "
        "points](#leading-points-over-seeds) only, one per seed (`--seeds`)",
        "1",
        option="Trials of each point of a grid, else of the leading ones only; 1 by default.",
        bounds={"ge": 1, "le": MAX_RUNS},
    ),
    "budget": Key(
        "other ends of the search",
        "[other ends](#the-budget): `epochs`, `hours`, ... (`--budget KEY=LIMIT`)",
        option="A limit, such as hours=8 or epochs=400; repeat as needed.",
    ),
    "start_from": Key(
        "points that are tried before any other",
        "[points that are tried first](#points-that-are-tried-first) (`--start-from NAME`)",
        option="Try first: a preset, or SEARCH:K, the best K of an earlier search; repeat as needed.",
    ),
    "learn_from": Key(
        "points around which good ones are expected",
        "[what is expected](#what-is-expected): presets, searches, `defaults`, `storage` (`--learn-from NAME`)",
        option="Expect good points near: a preset, SEARCH:K, defaults, or storage; repeat as needed.",
    ),
    "prior_strength": Key(
        "as how many trials what is expected counts",
        "as how many trials [what is expected](#what-is-expected) counts",
        "8",
        bounds={"gt": 0, "le": MAX_TRIALS},
    ),
    "scheduler": Key(
        "which trials are stopped early",
        "[early stops](algorithms.md#early-stops): `none`, `asha`, `promotion`, `forecast`, `median`, `hyperband`, "
        "`population` (`--scheduler`)",
        "`none`, or [what `auto` takes](algorithms.md#the-rule-of-auto)",
        option="{schedulers}, in place of the file's.",
    ),
    "objective": Key(
        "the metric of the validations to select by; a loss is minimised",
        "a metric of the validations, or `{metric: ..., mode: max}`; a loss is minimised",
        "`val/map_at_r`",
        option="Metric to select by, in place of the file's, such as val/recall_at_1.",
    ),
    "objectives": Key(
        "two of them instead: the search is for the front of both",
        "[two of them](algorithms.md#two-objectives) instead",
        "",
    ),
    "constraints": Key(
        "the largest allowed value of each limited cost, such as cost/megabytes: 50",
        "[what a model may cost](algorithms.md#constraints), `{cost/megabytes: 50, cost/milliseconds: 5}` "
        "(`--constraints COST=LIMIT`)",
        option="The largest allowed value of a cost, such as cost/megabytes=50; repeat as needed.",
    ),
    "seed": Key(
        "seed of the search and of its trainings",
        "of the search and of its trainings",
        "0",
        option="Seed of the search and of its trainings.",
        bounds={"ge": 0, "lt": 2**31},
    ),
    "max_concurrent": Key(
        "trials at a time, at most; as many as fit by default",
        "trials at a time, at most",
        "as many as fit",
        option="Trials at a time, at most.",
        bounds={"ge": 1, "le": MAX_CONCURRENT},
    ),
    "workers": Key(
        "processes that train a trial together; {low: 2, high: 8}: as many as there is room for",
        "[processes per trial](workers.md), and of the final run (`--workers`, `--final-workers`); "
        "`{low: 2, high: 8}`: [as many as there are](workers.md#as-many-workers-as-there-are)",
        "1, `workers`",
        option="Processes that train a trial together.",
        bounds={"ge": 1, "le": MAX_WORKERS},
    ),
    "final_workers": Key(
        "processes of the final run; default: as a trial",
        option="Processes that train a final run; --workers by default.",
        bounds={"ge": 1, "le": MAX_WORKERS},
    ),
    "trial_timeout": Key(
        "seconds that a trial, or a final run, may take",
        "seconds that a trial may take, to its end and to its next validation: [trials that "
        "hang](workers.md#trials-that-hang) (`--trial-timeout`, `--stall-timeout`)",
        option="End a trial that takes longer.",
        bounds=SECONDS,
    ),
    "stall_timeout": Key(
        "seconds that it may take to its next validation",
        option="End a trial that takes longer to its next validation.",
        bounds=SECONDS,
    ),
    "retry": Key(
        "how often a trial, or a final run, is begun again after a failure that may pass",
        "how often a trial is begun again, from its last checkpoint, after [a failure that may "
        "pass](workers.md#trials-that-fail) (`--retry`)",
        "0",
        option="Begin a trial again so often after a failure that may pass; 0 by default.",
        bounds={"ge": 0, "le": MAX_RETRIES},
    ),
    "max_restarts": Key(
        "how often a trial, or a final run, goes on in another process after its own was lost without notice",
        "how often a trial goes on in another process, from its last checkpoint, after its own [was lost without "
        "notice](workers.md#machines-that-vanish) (`--max-restarts`)",
        "2",
        option="Let a trial go on in another process so often after its own was lost; 2 by default.",
        bounds={"ge": 0, "le": MAX_RESTARTS},
    ),
    "gpus_per_trial": Key(
        "share of a GPU that a single-worker trial takes; default: a whole one",
        "share of a GPU that a single-worker trial takes, above 0 and at most 1",
        "1",
        bounds={"gt": 0, "le": 1},
    ),
    "resources": Key(
        "what each process of a trial takes of its node besides CPUs and GPUs: accelerator_type, and resources that "
        "nodes declare",
        "of each process of a trial: [the type of its GPU, and what nodes declare](cluster.md#which-nodes-train), "
        "`{accelerator_type: H100, special: 1}`",
    ),
    "node_labels": Key(
        "the labels of the nodes that train, each with its value, !value or in(value, value)",
        "[labels of the nodes that train](cluster.md#which-nodes-train), `{market: spot, region: in(eu, us)}`",
    ),
    "final": Key(
        "train the winner again on the whole training half and test it",
        "train the winner again on the whole training half and test it",
        "`true`",
    ),
    "final_trials": Key(
        "number of best trials that have final runs",
        "number of best trials that have final runs, and of final runs of each, one per seed (`--final-trials`, "
        "`--final-seeds`)",
        "1, 1",
        option="Number of best trials that have final runs; 1 by default.",
        bounds={"ge": 1, "le": MAX_RUNS},
    ),
    "final_seeds": Key(
        "final runs of each of them, one per seed",
        option="Number of final runs of each of them, one per seed; 1 by default.",
        bounds={"ge": 1, "le": MAX_RUNS},
    ),
    "equivalence_margin": Key(
        "largest difference with which two points count as equal in their tests",
        "the largest difference with which two points count as equal in their tests, such as 0.01: pages and `compare` "
        "then say of each two whether they are equal within it, by two one-sided tests, corrected for their number",
        bounds={"gt": 0, "lt": 1},
    ),
    "defaults": Key(
        "which of the methods' defaults hold: 1, those of versions up to 0.2",
        "which of the methods' defaults hold: 1, those of versions up to 0.2, in which all proxies start from `randn` "
        "with a multiplier of 100; a search begun then is resumed with them",
        "2",
        bounds={"ge": 1},
    ),
    "final_protocol": Key(
        "protocol of the final runs: the trials', or, of a search over folds, conventional",
        "`same`, or after trials over folds `conventional`: one model on the whole half (`--final-protocol`)",
        "`same`",
        option="Protocol of the final runs of a search over folds (mlrc); same by default.",
    ),
}
"""In the order of the page."""


def key_table() -> str:
    """The table of docs/searching.md."""
    rows: list[tuple[list[str], Key]] = []
    for name, key in KEYS.items():
        if key.row:
            rows.append(([name], key))
        else:
            rows[-1][0].append(name)
    lines = ["| key | meaning | default |", "| --- | --- | --- |"]
    for names, key in rows:
        cells = (", ".join(f"`{name}`" for name in names), key.row, key.default)
        lines.append("| " + " | ".join(cells).rstrip() + " |" if key.default else f"| {cells[0]} | {cells[1]} | |")
    return "\n".join(lines) + "\n"
