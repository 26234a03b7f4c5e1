"""What a search expects: where its first points lie, and what a wrong expectation costs."""

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.driven_studies import TPE, drive, play, search_of, start
from support.made_searches import MadeSearch
from support.recorded import events_of

from orchestrator.config.given_points import FindSettings
from orchestrator.config.resolve import idle_settings, resolve_search, single_training
from orchestrator.config.search import Search
from orchestrator.config.space import Parameter, parse_space
from orchestrator.errors import InputError
from orchestrator.search.conductor import Conductor
from orchestrator.search.priors import LEAST, Prior
from orchestrator.search.start_from import expected_settings
from orchestrator.search.study import Study
from orchestrator.storage.events import TrialStarted
from orchestrator.storage.journal import Journal
from orchestrator.storage.places import Places

RANGES = {"delta": {"low": 0.1, "high": 0.35, "prior": 0.2}, "alpha": {"low": 0, "high": 6, "prior": 4}}
SPACE = parse_space(RANGES, "space", {"method": "pfml"})
METHODS = {
    "method": {
        "choices": {
            "pfml": {"delta": {"low": 0.1, "high": 0.35}},
            "proxy_anchor": {"margin": {"low": 0, "high": 0.4}},
        },
        "prior": "proxy_anchor",
    }
}


def resolved(learn_from: list[Any], find_expected: FindSettings) -> Search:
    return resolve_search(TPE | {"learn_from": learn_from}, name="s", source="s.yaml", find_expected=find_expected)


def prior(strength: float = 8.0, points: list[dict[str, Any]] | None = None) -> Prior:
    return Prior(SPACE, points or [], strength=strength, seed=0)


def test_the_first_trial_is_the_expected_point_and_its_neighbours_follow() -> None:
    expected = prior()
    assert expected.draw(0) == {"delta": 0.2, "alpha": 4}
    drawn = [point for number in range(1, 400) if (point := expected.draw(number)) is not None]
    places = np.array([[(p["delta"] - 0.2) / 0.25, (p["alpha"] - 4) / 6] for p in drawn])
    assert len(drawn) == pytest.approx(sum(8 / (8 + n) for n in range(1, 392)), rel=0.3)
    assert 0.1 < places[:, 0].std() < 0.22 and 0.1 < places[:, 1].std() < 0.22, "0.2, cut at the ends of the ranges"
    assert expected.draw(7) == prior().draw(7)


def test_it_fades_with_trials_and_with_evidence_against_it() -> None:
    right, wrong = prior(), prior()
    for number, (delta, alpha) in enumerate(itertools.product(np.linspace(0.1, 0.35, 5), np.linspace(0, 6, 5))):
        distance = abs(delta - 0.2) / 0.25 + abs(alpha - 4) / 6
        right.tell({"delta": delta, "alpha": alpha}, distance)
        wrong.tell({"delta": delta, "alpha": alpha}, -distance)
        assert right.probability(number) <= 8 / (8 + number)
    assert right.probability(25) == pytest.approx(8 / 33)
    assert wrong.probability(25) < 0.4 * 8 / 33
    assert right.probability(10_000) < LEAST and right.draw(10_000) is None
    for number in range(1000):
        right.tell({"delta": 0.2, "alpha": 4}, float(number))
    assert len(right.ended) <= 400, "what cannot count any more is not kept"


def test_several_expected_points_and_parts_of_points() -> None:
    several = prior(points=[{"delta": 0.3}, {"alpha": 1, "delta": 0.12}])
    assert [several.draw(0), several.draw(2)] == [{"delta": 0.2, "alpha": 4}, {"delta": 0.12, "alpha": 1}]
    part = several.draw(1)
    assert part is not None and part["delta"] == 0.3 and 0 <= part["alpha"] <= 6


def test_a_choice_and_the_space_that_it_opens() -> None:
    space = parse_space(METHODS, "space", {})
    expected = Prior(space, [], strength=1e9, seed=0)
    drawn = [point for n in range(300) if (point := expected.draw(n)) is not None]
    share = np.mean([point["method"] == "proxy_anchor" for point in drawn])
    assert share == pytest.approx(0.75, abs=0.08), "half of the probability, and a half of the rest"
    assert all(("margin" in point) == (point["method"] == "proxy_anchor") for point in drawn)
    assert space.part({"method": "pfml", "delta": 0.2, "margin": 0.1, "lr": 1}) == {"method": "pfml", "delta": 0.2}
    assert space.part({"method": "triplet", "margin": 0.1}) == {}


ranges = st.sampled_from(
    [
        Parameter("x", "x", "float", low=0.5, high=8),
        Parameter("x", "x", "float", low=1e-5, high=1e-1, log=True),
        Parameter("x", "x", "int", low=1, high=9, step=2),
        Parameter("x", "x", "int", low=3, high=300, log=True),
        Parameter("x", "x", "float", low=0.1, high=0.7, step=0.1),
        Parameter("x", "x", "int", low=2, high=2),
    ]
)


@given(ranges, st.floats(0, 1))
def test_every_place_is_a_value_of_the_range(parameter: Parameter, place: float) -> None:
    value = parameter.at_place(place)
    assert parameter.take(value) == value
    if parameter.low < parameter.high and parameter.kind == "float" and not parameter.step:
        assert parameter.place(value) == pytest.approx(place, abs=1e-9)
    assert parameter.at_place(parameter.place(value)) == pytest.approx(value)


@pytest.mark.parametrize("algorithm", ["tpe", "cmaes"])
def test_a_folded_journal_suggests_what_was_suggested(tmp_path: Path, algorithm: str) -> None:
    scheduler = {} if algorithm == "tpe" else {"scheduler": "none"}
    search = search_of(TPE, space=RANGES, learn_from=[{"alpha": 1}], num_trials=16, algorithm=algorithm, **scheduler)
    play(start(search, tmp_path / "live", slots=3))
    events = events_of(tmp_path / "live" / "journal.jsonl")
    starts = [(at, e) for at, e in enumerate(events) if isinstance(e, TrialStarted) and e.kind == "trial"]
    assert starts[0][1].params == {"delta": 0.2, "alpha": 4.0}
    for at, event in starts[::3]:
        with Journal(tmp_path / event.trial_id / "journal.jsonl") as journal:
            folded = Conductor(search, tmp_path, data=tmp_path, journal=journal, events=events[:at], slots=3)
        assert folded.study.ask(event.trial_id, int(event.trial_id)) == event.params


def test_settings_of_the_same_name_under_another_choice_are_not_the_expected_ones() -> None:
    opened = {"pfml": {"alpha": {"low": 0, "high": 6}}, "proxy_anchor": {"alpha": {"low": 8, "high": 64}}}
    words = {"none": {"warmup_epochs": [9]}, "affine": {"warmup_epochs": [1], "lr": {"low": 1e-4, "high": 1e-2}}}
    raw = {"method": {"choices": opened}, "augmentation": {"choices": words}}
    space = parse_space(raw, "space", {"epochs": 9})
    expected = Prior(
        space,
        [{"method": "pfml", "alpha": 4, "augmentation": "affine", "warmup_epochs": 1, "lr": 1e-3}],
        strength=1e6,
        seed=0,
    )
    points = [point for number in range(40) if (point := expected.draw(number)) is not None]
    assert {point["augmentation"] for point in points} == {"none", "affine"}
    for point in points:
        assert space.point(point) == point, "each value is one of its own branch"
        expected.tell(point, 0.0)


def test_what_is_expected_comes_after_the_points_that_are_tried_first() -> None:
    given = [{"delta": 0.3, "alpha": 1.0}, {"delta": 0.1, "alpha": 6.0}]
    study = Study(search_of(TPE, space=RANGES, start_from=given))
    asked = [study.ask(str(number), number) for number in range(3)]
    assert asked == [*given, {"delta": 0.2, "alpha": 4.0}]


def test_a_strength_is_idle_where_nothing_is_expected() -> None:
    line = "prior_strength has no effect: the file expects no points (prior, learn_from)"
    assert line in idle_settings(search_of(TPE, prior_strength=5))
    for expects in ({"learn_from": [{"alpha": 1}]}, {"space": {"alpha": {"low": 0, "high": 6, "prior": 0}}}):
        assert line not in idle_settings(search_of(TPE, prior_strength=5, **expects))


def test_earlier_searches_are_learnt_from_and_not_needed_afterwards(tmp_path: Path) -> None:
    places = Places(tmp_path)
    earlier = start(search_of(TPE, num_trials=6), tmp_path / "searches" / "earlier")
    drive(earlier)
    best = [trial.params for trial in earlier.ledger.candidates()]
    assert [{k: s[k] for k in ("delta", "alpha")} for s in expected_settings("earlier", places)] == best[:3]
    assert len(expected_settings("earlier:1", places)) == 1
    assert expected_settings("storage", places) == expected_settings("earlier", places)
    search = resolved(["storage"], lambda name: expected_settings(name, places))
    assert search.learn_from == best[:3]
    assert search.content()["learn_from"] == best[:3], "the journal holds the points themselves"
    with pytest.raises(InputError, match="learn_from: earlier:x: should be SEARCH or SEARCH:K"):
        expected_settings("earlier:x", places)


def test_a_storage_of_trainings_teaches_nothing(tmp_path: Path) -> None:
    """Such as those of claims: they all have the same point, which nobody searched."""
    training = single_training("once", {"method": "pfml", "delta": 0.2, "dataset": "glyphs-small"})
    folder = tmp_path / "searches" / "once"
    folder.mkdir(parents=True)
    with MadeSearch(folder, training) as made:
        made.trial([0.1, 0.2], test={"map_at_r": 0.3}, delta=0.2)
        made.end()
    assert expected_settings("storage", Places(tmp_path)) == []
    assert [one["delta"] for one in expected_settings("once", Places(tmp_path))] == [0.2], "where it is named"


def test_a_point_of_several_searches_is_expected_once() -> None:
    points = [{"method": "pfml", "delta": 0.2, "alpha": alpha} for alpha in (1.0, 2.0, 1.0, 2.0)]
    assert resolved(["storage", "other"], lambda name: points).learn_from == [
        {"delta": 0.2, "alpha": alpha} for alpha in (1.0, 2.0)
    ]


def test_what_says_nothing_about_a_search_is_refused() -> None:
    for entries, message in (
        ([3], "point 1: 3 should be a preset, a search, defaults, storage or a point"),
        (["margin"], "margin: says nothing about this search"),
        ([{"alhpa": 3, "delta": 0.2}], "point 1: alhpa: is not searched .did you mean 'alpha'"),
        ([{"alpha": "x", "delta": 0.2}], "point 1: alpha: 'x' should be a number"),
        ([{"alpha": 99, "delta": 0.2}], r"point 1: alpha: 99 is outside of the space"),
        (["storage:2"], "storage takes no number"),
    ):
        with pytest.raises(InputError, match=message):
            resolved(entries, lambda name: [{"method": "triplet", "delta": 0.2}])
    with pytest.raises(InputError, match=r"alpha: prior: 9 is outside of the space \(0 to 6\)"):
        search_of(TPE, space={"alpha": {"low": 0, "high": 6, "prior": 9}})
    with pytest.raises(InputError, match="alpha: prior: a grid tries every point anyway"):
        search_of(TPE, algorithm="grid", scheduler="none", space={"alpha": {"choices": [1, 2], "prior": 2}})


def test_a_misspelt_word_is_named_and_an_empty_storage_is_none() -> None:
    def find(name: str) -> list[dict[str, Any]]:
        if name == "storage":
            return []
        raise InputError(f"no search '{name}'")

    with pytest.raises(InputError, match="learn_from: default: no such preset or search .did you mean 'defaults'"):
        resolved(["default"], find)
    assert resolved(["storage", "defaults"], find).learn_from == [{"delta": 0.2, "alpha": 4.0}]
