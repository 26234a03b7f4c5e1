"""Methods on several data sets, and points that count as equal."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.made_searches import RAW, MadeSearch
from support.output_schemas import conforms

import orchestrator as dml
from orchestrator.config.resolve import resolve_search
from orchestrator.errors import InputError
from orchestrator.evaluation.verdicts import Estimate, crossed_estimate, over_seeds, summarise
from orchestrator.report.across import across
from orchestrator.report.findings import Findings
from orchestrator.report.significance import Difference, equal_texts
from orchestrator.storage.ledger import Ledger

SPACES = {"pfml": {"delta": {"low": 0.1, "high": 0.35}}, "proxy_anchor": {"margin": {"low": 0.0, "high": 0.4}}}


def searched(folder: Path, method: str, dataset: str, tests: list[float]) -> Ledger:
    of = {"method": method, "dataset": dataset, "space": SPACES[method], "num_trials": 3}
    point: dict[str, Any] = dict.fromkeys(SPACES[method], 0.2)
    with MadeSearch(folder / f"{method}-{dataset}", of) as search:
        source = search.trial([0.5], **point)
        for seed, value in enumerate(tests):
            search.final(source, seed, {"map_at_r": value})
        search.end()
    return search.ledger


TESTS = {
    "cub200": ([0.50, 0.52, 0.51, 0.50], [0.47, 0.50, 0.48, 0.47]),
    "cars196": ([0.40, 0.41, 0.43, 0.42], [0.40, 0.39, 0.41, 0.42]),
    "sop": ([0.70, 0.71, 0.70, 0.72], [0.68, 0.67, 0.69, 0.69]),
}


def on_all(folder: Path) -> dict[str, Ledger]:
    return {
        f"{method}-{dataset}": searched(folder, method, dataset, tests[place])
        for dataset, tests in TESTS.items()
        for place, method in enumerate(SPACES)
    }


def test_methods_are_summarised_over_data_sets(tmp_path: Path) -> None:
    found = across(on_all(tmp_path))
    estimates = [over_seeds(np.subtract(one, other), 1 / 1920) for one, other in TESTS.values()]
    expected = summarise([one for one in estimates if one is not None])
    (over,) = found.over
    assert expected is not None and over.summary == expected
    assert (over.one, over.other, list(over.by_set)) == ("pfml", "proxy_anchor", list(TESTS))
    low, high = expected.estimate.ends()
    assert found.verdict == [
        f"Over 3 data sets, pfml and proxy_anchor are not told apart: {expected.estimate.mean:+.4f} of pfml less "
        f"proxy_anchor (95%: {low:+.4f} to {high:+.4f}, p {expected.estimate.p:.2g}; random effects, each "
        "data set counts the same)."
    ]
    assert 0.01 < expected.estimate.mean < 0.03 and expected.deviation is None
    assert "Best configuration found: pfml" in found.comparisons["sop"].verdict[0]
    conforms("compare", json.loads(json.dumps(found.output.plain)))


def test_python_compares_on_several_data_sets_too(tmp_path: Path) -> None:
    for name, ledger in on_all(tmp_path / "searches").items():
        assert ledger.name == "made" and (tmp_path / "searches" / name / "journal.jsonl").exists()
    names = [f"{method}-{dataset}" for dataset in TESTS for method in SPACES]
    found = dml.compare(*names, storage=tmp_path)
    assert list(found.plain["data_sets"]) == list(TESTS) and len(found.plain["over_data_sets"]) == 1
    assert found.plain == across(on_all(tmp_path / "again")).output.plain | {"data_sets": found.plain["data_sets"]}
    assert "data_sets" not in dml.compare(*names[:2], storage=tmp_path).plain


def test_one_search_of_each_method_on_each_data_set(tmp_path: Path) -> None:
    ledgers = on_all(tmp_path)
    twice = ledgers | {"again": ledgers["pfml-cub200"]}
    with pytest.raises(InputError, match="again: cub200 has two searches of pfml: name one of each method"):
        across(twice)
    del ledgers["pfml-sop"]
    with pytest.raises(InputError, match="it is the only search on sop: name two methods or more on each data set"):
        across(ledgers)


def test_a_margin_in_the_search_file(tmp_path: Path) -> None:
    """The page says that two are equal within it; without one, or where the seeds show more, it does not."""
    tests = [0.500, 0.502, 0.501, 0.500, 0.503]
    equal = "0001 and 0000 are equal within 0.01 over 5 seeds (two one-sided tests, p "
    given: tuple[dict[str, Any], ...] = ({"equivalence_margin": 0.01}, {})
    for changes in given:
        with MadeSearch(tmp_path / str(len(changes)), **changes) as search:
            for best in (0.5, 0.6):
                search.trial([best])
            for source in ("0000", "0001"):
                for seed, value in enumerate(tests):
                    search.final(source, seed, {"map_at_r": value + (0.0005 * seed if source == "0000" else 0)})
            search.end()
        certainty = Findings.of(search.ledger).certainty
        assert (equal in certainty) is ("equal within" in certainty) is bool(changes)
    with pytest.raises(InputError, match="equivalence_margin: 0"):
        resolve_search({**RAW, "equivalence_margin": 0}, name="x", source="x")


def test_equality_is_corrected_for_the_number_of_pairs() -> None:
    estimate = Estimate(0.0, ((0.0045**2, 9.0),))
    pair = Difference("a", "b", 10, 0.0, None, fixed=estimate)
    assert " are equal within 0.01 " in equal_texts([pair], 0.01)["a", "b"]
    assert " are not known to be equal within 0.01 " in equal_texts([pair, pair, pair], 0.01)["a", "b"]
    assert crossed_estimate(np.zeros((3, 2)), np.ones((3, 2))) is None
