"""What is wrong with a hypothesis as a whole: what its keys say against each other, and its arms' settings."""

import itertools
from collections.abc import Iterator
from typing import Any

from orchestrator.claims.hypothesis import (
    BASE,
    CHANGED,
    FEWEST_RANKED,
    METRICS,
    SECOND,
    Hypothesis,
    is_share_metric,
)
from orchestrator.claims.other_images import DETECTION, test_of, unlike_tests, wrong_test
from orchestrator.claims.outputs import Kind
from orchestrator.config.algorithms import is_exhaustive
from orchestrator.config.files import find_search
from orchestrator.config.space import parse_space
from orchestrator.config.training import Experiment, Training, resolve_experiment
from orchestrator.errors import InputError, Problems
from orchestrator.evaluation.measures import BY_NAME, OBJECTIVES, metric_of
from orchestrator.evaluation.measures.recall import DEFAULT_RECALL_AT, RECALL_AT
from orchestrator.problems import Inner, KeyPath, Problem, suggestion
from orchestrator.storage.places import NAME_CHARACTERS, claim_prefix
from orchestrator.text import format_assignments, join_names


def contradictions(claim: Hypothesis) -> Iterator[Problem]:
    """What the keys of a claim say against each other."""
    yield from _wrong_metric(("metric",), claim.metric, claim.kind)
    for name, arm in claim.arms.items():
        if arm.metric is not None:
            place = ("arms", Inner(name), Inner("metric"))
            yield from _wrong_metric(place, arm.metric, claim.kind)
            if is_share_metric(arm.metric) != is_share_metric(claim.metric):
                yield Problem(place, arm.metric, f"has other units than {claim.metric}")
        metrics = [claim.metric_of(name, state) for state in claim.states]
        yield from _missing_recalls(claim, name)
        protocols = [claim.settings_of(name, dataset)["protocol"] for dataset in claim.datasets]
        yield from wrong_test(test_of(name), arm.test, metrics, protocols, claim.datasets)
    named = {"arm": [claim.arm] if claim.arm else [], "than": claim.than}
    named |= {"order": [name for group in claim.order for name in group]}
    misspelt = {name for names in named.values() for name in names} - claim.arms.keys()
    for key, names in named.items():
        for name in names:
            if name not in claim.arms:
                yield Problem((key,), name, "is no arm", suggestion(name, claim.arms), begins_rule=True)
        if len(names) > len(set(names)):
            yield Problem((key,), rule="an arm is named twice")
    if claim.kind == "rank_agreement":
        yield from _wrong_ranks(claim)
    elif claim.kind == "order":
        if len(claim.order) < 2 or not all(claim.order):
            yield Problem(("order",), rule="name two or more groups of arms, such as [[alpha_4], [alpha_1]]")
        if claim.arm or claim.than:
            yield Problem(("arm" if claim.arm else "than",), rule="an order has groups; leave it out")
    else:
        if claim.order:
            yield Problem(("order",), rule=f"is of the kind order, not of {claim.kind}")
        if claim.arm is None:
            yield Problem(("arm",), rule="this key is required: the arm that it is claimed of")
        if claim.arm in claim.than:
            yield Problem(("than",), claim.arm, "is compared with itself", begins_rule=True)
        if not claim.than and claim.kind not in ("trend", "equivalence"):
            rule = f"this key is required: the arms that {claim.arm or 'it'} is compared with"
            yield Problem(("than",), rule=rule)
    if claim.second_metric is not None and claim.kind != "rank_agreement":
        yield Problem(("second_metric",), rule=f"is of the kind rank_agreement, not of {claim.kind}")
    if bool(claim.changed) != (claim.kind == "difference_of_differences"):
        needed = "this key is required: the settings whose effect is compared, such as {label_noise: 0.2}"
        yield Problem(("changed",), rule=needed if not claim.changed else f"is not of the kind {claim.kind}")
    compared = claim.trained_arms
    for one, other in itertools.combinations(compared, 2):
        if all(_reading(claim, one, state) == _reading(claim, other, state) for state in claim.states):
            yield Problem(("arms", Inner(other)), rule=f"is the same as {one}: a comparison of them decides nothing")
    for name in [name for name in claim.arms if name not in compared and not misspelt]:
        if claim.arm is not None or claim.order:
            yield Problem(("arms", Inner(name)), rule="is compared with nothing: name it, or leave it out")
    for dataset, settings in claim.datasets.items():
        for name, arm in claim.arms.items():
            for key in settings.keys() & arm.settings.keys():
                rule = f"is a setting of the arm {name} too: give it in one of the two places"
                yield Problem(("datasets", Inner(dataset), Inner(key)), rule=rule)
    if claim.kind != "difference_of_differences":
        yield from unlike_tests({name: claim.arms[name].test for name in compared}, claim.datasets)
    yield from _wrong_tuning(claim)
    others = [key for key in Training.model_fields if key.endswith("_seed")]
    for key in [key for key in claim.seeds.also if key not in others]:
        rule = f"is no other seed of a training: {join_names(others)}"
        yield Problem(("seeds", Inner("also")), key, rule, suggestion(key, others), begins_rule=True)


def _reading(claim: Hypothesis, arm: str, state: str) -> tuple[object, ...]:
    """What is read of an arm, of which trainings."""
    return claim.trains_as(arm), claim.metric_of(arm, state), claim.arms[arm].test


def wrong_names(claim: Hypothesis, key: str) -> Iterator[Problem]:
    """Of two arms whose trainings would have one name, and of names that are too long; `key` is the claim's."""
    cells: dict[str, tuple[str, str, str]] = {}
    last = claim.seeds.first + claim.seeds.max - 1
    states = [state for state in claim.states if state != SECOND]
    for dataset, arm, state in itertools.product(claim.datasets, claim.trained_arms, states):
        name, cell = claim.training_name(dataset, arm, state), (dataset, claim.trains_as(arm), state)
        place = ("arms", Inner(arm))
        if (first := cells.setdefault(name, cell)) != cell:
            of = f"{first[1]}{f', {first[2]},' if first[2] else ''} on {first[0]}"
            yield Problem(place, rule=f"has trainings called {name}, as {of} has: give it another name")
        whole = max((f"{claim_prefix(key)}{name}-{end}" for end in (f"seed{last}", "tuning")), key=len)
        if len(whole) > NAME_CHARACTERS:
            rule = f"has trainings called {whole}, {len(whole)} characters; at most {NAME_CHARACTERS} are allowed"
            yield Problem(place, rule=f"{rule}: shorten the name of the arm, or of the file")


def _wrong_ranks(claim: Hypothesis) -> Iterator[Problem]:
    """Of a rank agreement: all arms are compared with each other, by two metrics."""
    for key in ("arm", "than", "order"):
        if getattr(claim, key):
            yield Problem((key,), rule="a rank agreement is of all arms; leave it out")
    if len(claim.arms) < FEWEST_RANKED:
        yield Problem(("arms",), rule=f"should be {FEWEST_RANKED} or more, so that their ranks say something")
    if claim.second_metric is None:
        yield Problem(("second_metric",), rule="this key is required: the metric whose ranks are compared")
    elif claim.second_metric == claim.metric:
        yield Problem(("second_metric",), claim.second_metric, "is the metric itself", begins_rule=True)
    else:
        yield from _wrong_metric(("second_metric",), claim.second_metric, claim.kind)
    if claim.direction == "lower":
        yield Problem(("direction",), claim.direction, "is for arms; ranks agree or do not: leave it out")
    if claim.smallest_effect >= 1:
        yield Problem(("smallest_effect",), claim.smallest_effect, "should be a rank correlation below 1")
    for name in [name for name, arm in claim.arms.items() if arm.metric is not None]:
        yield Problem(("arms", Inner(name), Inner("metric")), rule="all arms have the same two metrics; leave it out")


def _wrong_tuning(claim: Hypothesis) -> Iterator[Problem]:
    tuning, tuned = claim.tuning, claim.tuned_arms
    has_budget = tuning.num_trials is not None or bool(tuning.budget.limits())
    if tuned and not has_budget and not is_exhaustive(tuning.algorithm):
        rule = f"this key is required: num_trials or a budget, the same for {', '.join(tuned)}"
        yield Problem(("tuning",), rule=rule)
    if (has_budget or tuning.algorithm) and not tuned:
        yield Problem(("tuning",), rule="no arm has a search, and no space is given")
    shared: dict[KeyPath, dict[str, Any]] = {("settings",): claim.settings, ("changed",): claim.changed}
    shared |= {("datasets", Inner(name)): settings for name, settings in claim.datasets.items()}
    for place, settings in shared.items():
        for key in settings.keys() & tuning.space.keys():
            yield Problem((*place, Inner(key)), rule="is tuned, by tuning.space: leave it out in one of the two places")


def _wrong_metric(place: KeyPath, metric: str, kind: Kind) -> Iterator[Problem]:
    prefix, _, name = metric.partition("/")
    if prefix not in {one.partition("/")[0] for one in METRICS} or (prefix == "cost" and metric not in METRICS):
        yield Problem(place, metric, f"should be one of {', '.join(METRICS)}", begins_rule=True)
    elif not name:
        yield Problem(place, metric, "names no metric after its slash", begins_rule=True)
    elif metric != DETECTION and prefix in ("test", "val") and "diagnostics/" not in name and metric_of(name) is None:
        yield Problem(place, metric, "no such metric", suggestion(name, BY_NAME))
    elif prefix == "val" and "diagnostics/" not in name and metric not in OBJECTIVES:
        rule = f"a validation has {join_names([one.removeprefix('val/') for one in OBJECTIVES])}"
        yield Problem(place, metric, rule)
    elif kind == "trend" and prefix not in ("val", "diagnostics", "train"):
        yield Problem(place, metric, "a trend is over validations: val/NAME, diagnostics/NAME or train/NAME")


def _missing_recalls(claim: Hypothesis, arm: str) -> Iterator[Problem]:
    """A recall at another k than those of an arm's tests."""
    test = claim.arms[arm].test
    for state, dataset in itertools.product(claim.states, claim.datasets):
        prefix, _, name = (metric := claim.metric_of(arm, state)).partition("/")
        k = name.removeprefix("recall_at_")
        tested = dataset if test is None else test.data_set(dataset)
        recalls = [str(one) for one in RECALL_AT.get(tested, DEFAULT_RECALL_AT)]
        if prefix == "test" and name.startswith("recall_at_") and k.isdecimal() and k not in recalls:
            place = ("second_metric",) if state == SECOND else ("metric",)
            yield Problem(place, metric, f"a test on {tested} has recall_at_{join_names(recalls, ' and ')}")


def wrong_settings(claim: Hypothesis, name: str) -> list[Problem]:
    """What is wrong with the settings of one arm; those of all arms are reported once, as such."""
    arm, problems, here = claim.arms[name], Problems(), ("arms", Inner(name))
    of_arm: KeyPath = (*here, Inner("settings"))
    of_datasets = [(("datasets", Inner(dataset)), settings) for dataset, settings in claim.datasets.items()]
    if arm.search is not None:
        with problems.collect():
            try:
                find_search(arm.search)
            except InputError as error:
                raise error.under((*here, Inner("search"))) from None
    place: KeyPath
    for key in ("dataset", "seed", *claim.seeds.also):
        for place, settings in ((("settings",), claim.settings), (of_arm, arm.settings), *of_datasets):
            if key in settings:
                where = "datasets" if key == "dataset" else "seeds"
                rule = f"belongs under {where}, the same for all arms"
                problems.found.append(Problem((*place, Inner(key)), rule=rule))
    if claim.space_of(name) and arm.search is None:
        with problems.collect():
            fixed = claim.settings_of(name, next(iter(claim.datasets)))
            parse_space(claim.space_of(name), ("tuning", Inner("space")), fixed)
    for state, (dataset, own) in itertools.product(claim.states, claim.datasets.items()):
        fixed = claim.settings_of(name, dataset, state)
        if "method" not in fixed and arm.search is not None:
            continue  # the search names it, and is checked as a whole
        try:
            resolve_experiment(fixed, ())
        except InputError as error:
            for problem in error.details:
                key = str(problem.path[0]) if problem.path else ""
                place = of_arm
                if state == CHANGED and key in claim.changed:
                    place = ("changed",)
                elif key not in arm.settings and key in own:
                    place = ("datasets", Inner(dataset))
                elif key not in arm.settings and key in claim.settings:
                    place = ("settings",)
                elif key not in arm.settings and key == "protocol":
                    place = ()
                problems.found.append(problem.under(place))
    return problems.found


def same_trainings(claim: Hypothesis) -> Iterator[Problem]:
    """Arms whose settings differ only where these have no effect, so that nothing would be compared."""
    own = {claim.trains_as(arm) for arm in claim.trained_arms}
    fixed = [arm for arm in claim.trained_arms if arm in own and claim.arms[arm].search is None]
    cells = itertools.product(claim.datasets, fixed, [state for state in claim.states if state != SECOND])
    resolved = {cell: resolve_experiment(claim.settings_of(cell[1], cell[0], cell[2]), ()) for cell in cells}
    for dataset, (one, other) in itertools.product(claim.datasets, itertools.combinations(fixed, 2)):
        if claim.space_of(one).keys() != claim.space_of(other).keys():
            continue  # what is fixed for one is tuned for the other
        if (why := _no_difference(resolved[dataset, one, BASE], resolved[dataset, other, BASE])) is not None:
            yield Problem(("arms", Inner(other)), rule=f"trains as {one} does on {dataset}: {why}")
    for dataset, arm in itertools.product(claim.datasets, fixed if claim.changed else ()):
        if (why := _no_difference(resolved[dataset, arm, BASE], resolved[dataset, arm, CHANGED])) is not None:
            yield Problem(("changed",), rule=f"changes nothing of {arm} on {dataset}: {why}")


def _no_difference(one: Experiment, other: Experiment) -> str | None:
    """Why two trainings are the same, though not written alike; None if they differ."""
    first, second = one.flat(), other.flat()
    differing = {key for key in first.keys() | second.keys() if first.get(key) != second.get(key)}
    idle = one.config.idle().items() & other.config.idle().items()
    if not differing <= {key for key, _ in idle}:
        return None
    because = [
        f"{key} has no effect with {format_assignments(names, first)}" for key, names in idle if key in differing
    ]
    return "; ".join(because) or "their settings are equal"
