"""What a network has on the same classes before its training stands in every verdict, paired by class."""

import csv
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.made_searches import RAW, SIZES, MadeSearch, scores, sizes_of
from support.recorded import events_of

from orchestrator.config.shaping import untrained_key
from orchestrator.config.training import resolve_experiment
from orchestrator.data.store import Store
from orchestrator.evaluation.paired import paired_gain
from orchestrator.execution.protocol import Validated
from orchestrator.report import learning
from orchestrator.report.comparison import Comparison
from orchestrator.report.findings import Findings
from orchestrator.search.conductor import Conductor
from orchestrator.storage.journal import Journal
from orchestrator.storage.trial_folder import INSIGHT
from orchestrator.training.splits import data_splits
from orchestrator.training.untrained import measure

CLASSES = 18


def class_tables(folder: Path, gains: np.ndarray[Any, Any]) -> dict[str, float]:
    """Write `classes.csv` of a network whose classes gained this over the one that is returned; classes differ far more
    between each other."""
    before = {str(label): 0.1 + 0.04 * label for label in range(CLASSES)}
    folder.mkdir(parents=True)
    with (folder / "classes.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["label", "class", "queries", "map_at_r"])
        for label, gain in enumerate(gains):
            writer.writerow([label, f"c{label}", 10 + label, before[str(label)] + gain])
    return before


GAINS = np.where(np.arange(CLASSES) % 6 == 0, -0.02, 0.10)


def test_a_gain_is_paired_by_class_and_weighted_by_queries(tmp_path: Path) -> None:
    before = class_tables(tmp_path / "t", GAINS)
    gain = paired_gain([tmp_path / "t" / "classes.csv"], "map_at_r", before)
    assert gain is not None and gain.low is not None and gain.high is not None
    queries = np.arange(10, 10 + CLASSES)
    assert gain.difference == pytest.approx(float(GAINS @ queries / queries.sum()))
    assert (gain.up, gain.classes) == (15, 18)
    assert 0.03 < gain.low < gain.difference < gain.high < 0.12, "the classes' own differences are not in it"
    assert paired_gain([tmp_path / "t" / "classes.csv"], "map_at_r", {**before, "99": 0.5}) is None, "other classes"
    assert paired_gain([tmp_path / "t" / "none.csv"], "map_at_r", before) is None


@pytest.mark.parametrize("gain", [-0.05, 0.0, 0.02])
def test_a_gain_is_no_share_and_its_interval_may_hold_zero(tmp_path: Path, gain: float) -> None:
    """Student's, of classes of one size: on the scale of log odds no gain above zero would have an end below it."""
    gains = gain + np.linspace(-0.3, 0.3, CLASSES)
    before = class_tables(tmp_path / "t", gains)
    path = tmp_path / "t" / "classes.csv"
    path.write_text("\n".join(re.sub(r"^(\d+,c\d+),\d+,", r"\1,7,", line) for line in path.read_text().splitlines()))
    found = paired_gain([path], "map_at_r", before)
    half = 2.1098 * gains.std(ddof=1) / CLASSES**0.5  # t(0.975, 17)
    assert found is not None and found.low is not None and found.high is not None
    assert (found.low, found.high) == pytest.approx((gain - half, gain + half), abs=1e-4)
    assert found.low < 0 < found.high


def test_over_folds_each_class_is_tested_once(tmp_path: Path) -> None:
    before = class_tables(tmp_path / "whole", GAINS)
    lines = (tmp_path / "whole" / "classes.csv").read_text().splitlines()
    tables = []
    for fold in range(3):
        tables.append(tmp_path / f"{fold}.csv")
        tables[-1].write_text("\n".join([lines[0], *lines[1 + fold :: 3]]))
    whole = paired_gain([tmp_path / "whole" / "classes.csv"], "map_at_r", before)
    found = paired_gain(tables, "map_at_r", before)
    assert found is not None and whole is not None
    assert found.model_dump() == {key: pytest.approx(value) for key, value in whole.model_dump().items()}
    assert paired_gain([tables[0], *tables], "map_at_r", before) is None, "a class twice"
    assert paired_gain(tables[:2], "map_at_r", before) is None


def score(split: str, value: float, **more: Any) -> dict[str, Any]:
    of = SIZES[split]
    return {"split": split, "metrics": {"map_at_r": value}, "intervals": {"map_at_r": [0.05, 0.9]}, "of": of, **more}


def conductor(folder: Path) -> Conductor:
    """Of a search of one trial and two final runs of it."""
    made = MadeSearch(folder, num_trials=1, final_seeds=2, scheduler={"name": "none"})
    made.__enter__()
    return Conductor(made.search, folder, data=folder, journal=made.journal, events=events_of(made.path), slots=1)


def test_the_winner_s_first_final_run_measures_on_the_test_classes_and_is_paired(tmp_path: Path) -> None:
    folder = tmp_path / "searches" / "made"
    here = conductor(folder)
    first = here.next()
    assert first is not None and first.untrained and not first.untrained_on_test
    before = class_tables(here.trial_folder(here.ledger.trials["0000"]) / INSIGHT, GAINS)
    held_out = score("validation", 0.44, by_class={"map_at_r": before})
    here.report(Validated("0000", 1, {"val/map_at_r": 0.52}, 1.0, finished=True, untrained=held_out))
    run = here.next()
    assert run is not None and run.untrained and run.untrained_on_test
    before = class_tables(here.trial_folder(here.ledger.finals[run.trial_id]) / INSIGHT, GAINS - 0.2)
    on_test = score("test", 0.50, by_class={"map_at_r": before})
    here.report(Validated(run.trial_id, 1, {}, 1.0, finished=True, test={"map_at_r": 0.38}, untrained=on_test))
    again = here.next()
    assert again is not None and not again.untrained, "once for the search"
    here.report(Validated(again.trial_id, 1, {}, 1.0, finished=True, test={"map_at_r": 0.39}))
    assert here.end() == "done"
    ledger = here.ledger
    here.journal.close()
    assert len(ledger.untrained) == 2
    judged = learning.judge(ledger, ledger.trials["0000"])
    assert judged.verdict == "learned", "unpaired, it is inside of the untrained network's interval"
    assert "15 of 18 classes up" in judged.why
    said = Findings.of(ledger).verdict[1]
    assert "untrained map_at_r 0.5000 (seed 0: 0.3800 trained), so -0.1" in said and "0 of 18 classes up" in said
    events = Journal.read(folder / "journal.jsonl")
    assert all("by_class" not in event.get("untrained", {}) for event in events), "a journal stays small"
    compared = Comparison.of("c", {"a": ledger}).verdict
    assert compared[0].startswith(
        "Untrained, the networks have map_at_r 0.5000 (a, seed 0) on the same classes. With the same seed a (0.3800 "
        "trained; -0.1173 paired by class (95%: -0.1391 to "
    ), "not the mean over seeds"


def test_an_untrained_network_above_the_best_is_said_first(tmp_path: Path) -> None:
    raw = {**RAW, "space": {"embedding_dim": [64, 512]}}
    with MadeSearch(tmp_path, raw) as made:
        digest = str(made.ledger.tags.get("dataset.digest"))
        for best, untrained, size in ((0.5630, 0.30, 64), (0.52, 0.5865, 512)):
            settings = made.search.experiment({"embedding_dim": size}).flat()
            key = untrained_key(settings, digest)
            found = score("validation", untrained, key=key)
            made.trial([0.4, best], untrained=found, embedding_dim=size)
        made.end()
    findings = Findings.of(made.ledger)
    assert findings.verdict[0].startswith(
        "No training is above an untrained network: that of trial 0001 (embedding_dim=512) has map_at_r 0.5865 before"
    )
    ledger = made.ledger
    for known in ledger.untrained.values():
        known["of"] = sizes_of(9, 300, 0.02) if known["metrics"]["map_at_r"] > 0.5 else known["of"]
    assert not learning.better_untrained(ledger), "of other classes it says nothing"


def test_it_measures_on_the_test_classes_where_classes_are_held_out(glyphs: Store) -> None:
    settings = {"method": "proxy_anchor", "dataset": "glyphs-small", "embedding_dim": 8, "class_subset": 12}
    experiment = resolve_experiment({**settings, "classes_per_batch": 2, "images_per_class": 2}, "test")
    splits = data_splits(experiment.training, glyphs)
    held_out, test = (measure(experiment, glyphs, splits, on_test=on_test) for on_test in (False, True))
    assert held_out is not None and test is not None
    assert (held_out["split"], test["split"]) == ("validation", "test")
    by_class = test["by_class"]["map_at_r"]
    assert len(by_class) == test["of"]["classes"] > held_out["of"]["classes"]
    sizes = {str(label): 32 for label in by_class}
    assert test["metrics"]["map_at_r"] == pytest.approx(
        np.average(list(by_class.values()), weights=list(sizes.values()))
    )


def test_scores_stay_where_nothing_is_tested(tmp_path: Path) -> None:
    with MadeSearch(tmp_path) as made:
        trial = made.trial([0.5])
        made.final(trial, 0, scores([0.5])[0])
        made.end()
    assert "untrained" not in " ".join(Findings.of(made.ledger).verdict)
