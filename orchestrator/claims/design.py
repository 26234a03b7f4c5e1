"""What a claim compares, and the trainings that it takes: ordinary trainings and searches, named after the claim."""

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from orchestrator.claims.hypothesis import BASE, CHANGED, SECOND, Claim, Hypothesis
from orchestrator.claims.outputs import ClaimPlan
from orchestrator.claims.sequential import Floats
from orchestrator.config.files import find_search, read_yaml
from orchestrator.config.resolve import resolve_search, single_training
from orchestrator.config.schedulers.none import NoStops
from orchestrator.config.search import Search
from orchestrator.evaluation.verdicts import kendall_tau
from orchestrator.search.benchmark import OWN_BUDGET
from orchestrator.storage.places import check_name, claim_prefix

Columns = Mapping[tuple[str, str], Sequence[float] | Floats]
"""The values of each arm in each state, one for each seed."""
Weights = Mapping[tuple[str, str], float]
"""Of each arm in each state."""


@dataclass(frozen=True)
class Contrast:
    """One comparison of a claim: a weighted sum of the arms' values with one seed."""

    label: str
    weights: Weights

    def values(self, columns: Columns) -> Floats:
        """One for each seed."""
        parts = [weight * np.asarray(columns[cell], dtype=np.float64) for cell, weight in self.weights.items()]
        return np.asarray(sum(parts))


@dataclass(frozen=True)
class RankAgreement:
    """How alike two metrics rank the arms with one seed: Kendall's tau-b."""

    label: str
    arms: Sequence[str]

    def values(self, columns: Columns) -> Floats:
        """One for each seed."""
        first, second = (np.asarray([columns[arm, state] for arm in self.arms]) for state in (BASE, SECOND))
        return kendall_tau(first, second)


def contrasts(hypothesis: Hypothesis) -> Sequence[Contrast | RankAgreement]:
    """The comparisons, each a difference that is claimed to be above 0 (`direction: lower`: below it), or within the
    smallest effect; or an agreement that is claimed to be above the smallest effect."""
    if hypothesis.kind == "rank_agreement":
        return [RankAgreement(f"tau over {len(hypothesis.arms)} arms", hypothesis.trained_arms)]
    if hypothesis.kind == "order":
        return [_groups(above, below) for above, below in itertools.pairwise(hypothesis.order)]
    arm = str(hypothesis.arm)
    if not hypothesis.than:
        return [Contrast(arm, {(arm, BASE): 1.0})]
    if hypothesis.kind != "difference_of_differences":
        return [Contrast(f"{arm} - {other}", {(arm, BASE): 1.0, (other, BASE): -1.0}) for other in hypothesis.than]
    change = {(arm, CHANGED): 1.0, (arm, BASE): -1.0}
    return [
        Contrast(f"change of {arm} - change of {other}", {**change, (other, CHANGED): -1.0, (other, BASE): 1.0})
        for other in hypothesis.than
    ]


def _groups(above: list[str], below: list[str]) -> Contrast:
    weights = {(name, BASE): 1 / len(above) for name in above} | {(name, BASE): -1 / len(below) for name in below}
    return Contrast(f"{_mean(above)} - {_mean(below)}", weights)


def _mean(names: list[str]) -> str:
    return names[0] if len(names) == 1 else f"mean of {', '.join(names)}"


@dataclass(frozen=True)
class ClaimTraining:
    """One training: an arm in a state, on a data set, with a seed."""

    dataset: str
    arm: str
    state: str
    seed: int

    def name(self, claim: Claim) -> str:
        """The name of its training, which other arms and metrics may read too."""
        own = claim.hypothesis.training_name(self.dataset, self.arm, self.state)
        return check_name(f"{claim_prefix(claim.key)}{own}-seed{self.seed}", "NAME")


def cells(hypothesis: Hypothesis, dataset: str, seed: int) -> Iterator[ClaimTraining]:
    """The trainings of one pair of seeds."""
    for arm in hypothesis.trained_arms:
        for state in hypothesis.states:
            yield ClaimTraining(dataset, arm, state, seed)


def own_trainings(claim: Claim, dataset: str, seed: int) -> list[ClaimTraining]:
    """Those of one pair of seeds that are trained: of several that read one training, the first."""
    first: dict[str, ClaimTraining] = {}
    for cell in cells(claim.hypothesis, dataset, seed):
        first.setdefault(cell.name(claim), cell)
    return list(first.values())


def seeds(hypothesis: Hypothesis) -> list[int]:
    """All seeds that the budget allows, in their order."""
    return list(range(hypothesis.seeds.first, hypothesis.seeds.first + hypothesis.seeds.max))


def tuning_search(claim: Claim, arm: str, dataset: str) -> Search | None:
    """The search that tunes an arm on a data set, in its base state, without final runs; None for fixed settings."""
    hypothesis, arm = claim.hypothesis, claim.hypothesis.trains_as(arm)
    tuning, file = hypothesis.tuning, hypothesis.arms[arm].search
    if arm not in hypothesis.tuned_arms:
        return None
    path = claim.path if file is None else find_search(file)
    raw = {} if file is None else read_yaml(path).without(OWN_BUDGET)
    fixed = hypothesis.settings_of(arm, dataset)
    fixed.pop("dataset")
    objective = fixed.pop("selection_metric", None)  # a search chooses epochs as it chooses trials
    return resolve_search(
        raw,
        name=check_name(f"{claim_prefix(claim.key)}{hypothesis.training_name(dataset, arm)}-tuning", "NAME"),
        source=path.name,
        overrides=fixed,
        find_settings=None,
        ranges=hypothesis.space_of(arm),
        dataset=dataset,
        objective=objective,
        algorithm=tuning.algorithm,
        scheduler=None if "scheduler" in raw else NoStops.name,  # by no rule: the same for all arms
        num_trials=tuning.num_trials,
        budget=tuning.budget.limits() or None,
        seed=tuning.seed,
        final=False,
    )


def training(claim: Claim, cell: ClaimTraining, best: Mapping[str, Any] | None = None) -> Search:
    """The training of a cell; `best` is the arm's best point with the fixed settings of its search, if it was tuned."""
    hypothesis = claim.hypothesis
    fixed = hypothesis.settings_of(cell.arm, cell.dataset, cell.state)
    paired = dict.fromkeys(["seed", *hypothesis.seeds.also], cell.seed)
    return single_training(cell.name(claim), {**(best or {}), **fixed, **paired})


def claim_plan(claim: Claim) -> ClaimPlan:
    """Its size, if no data set is decided before the budget is spent."""
    hypothesis = claim.hypothesis
    pair = sum(len(own_trainings(claim, dataset, hypothesis.seeds.first)) for dataset in hypothesis.datasets)
    tuned = {hypothesis.trains_as(arm) for arm in hypothesis.tuned_arms}
    each = (cell for dataset in hypothesis.datasets for cell in cells(hypothesis, dataset, hypothesis.seeds.first))
    tests = sum(hypothesis.arms[cell.arm].test is not None for cell in each if cell.state != SECOND)
    return ClaimPlan(
        claim=hypothesis.claim,
        digest=claim.digest,
        trainings_of_a_pair=pair,
        max_trainings=pair * hypothesis.seeds.max,
        searches=len(tuned) * len(hypothesis.datasets),
        max_tests_on_other_images=tests * hypothesis.seeds.max,
    )
