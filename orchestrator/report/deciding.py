"""What would decide a comparison: how many final runs of which searches, and what these cost."""

from collections.abc import Sequence

from orchestrator.report.comparison import Comparison
from orchestrator.report.member import Member
from orchestrator.report.power import POWER, SEEDS_TO_FORECAST, seeds_needed
from orchestrator.report.significance import Difference
from orchestrator.report.steps import ProposedStep, line, of_finals
from orchestrator.text import pluralize

MAX_SEEDS = 30
"""With more, the difference is too small to be worth its trainings; the page says how many it would take."""
SEEDS = 5
"""Final runs of each search before a forecast: one more than the fewest that allow it."""


def deciding_steps(comparison: Comparison) -> list[ProposedStep]:
    """Final runs that would tell the best search from those that it was not told apart from: as many as the forecast
    says, or, before it can be made, SEEDS of each. None where all are told apart, where no number would do, or where
    methods are compared over searches."""
    if not comparison.members or not comparison.members[0].tests or comparison.methods:
        return []
    best = comparison.members[0]
    tests = sum(difference.is_tested for difference in comparison.differences)
    seeds: dict[str, tuple[int, str]] = {}
    for other in comparison.members[1:]:
        pair = next((d for d in comparison.differences if (d.one, d.other) == (best.label, other.label)), None)
        if pair is not None and (pair.real or (pair.seeds > 1 and not pair.is_tested)):
            continue
        number, why = _seeds_to_decide(best, other, pair, tests)
        for member in (best, other):
            if number > max(len(member.tests), seeds.get(member.label, (0, ""))[0]):
                seeds[member.label] = number, why
    return [
        _step(member, *seeds[member.label])
        for member in comparison.members
        if member.label in seeds and member.winner is not None and member.ledger.has_ended
    ]


def _seeds_to_decide(best: Member, other: Member, difference: Difference | None, tests: int) -> tuple[int, str]:
    """The number of seeds of both, and why; 0 where no number that can be run is known."""
    pair = f"{best.label} and {other.label}"
    if difference is None or difference.seeds < SEEDS_TO_FORECAST:
        have = 0 if difference is None else difference.seeds
        return SEEDS, (
            f"{pair} have {pluralize(have, 'seed')} in common: at least {SEEDS_TO_FORECAST} are needed before "
            "it can be "
            "said how many would tell them apart."
        )
    forecast = seeds_needed(difference, tests)
    if forecast is None or forecast.seeds is None or forecast.seeds > MAX_SEEDS:
        return 0, ""
    return forecast.seeds, (
        f"A difference as large as that of {pair}, {difference.mean:+.4f}, would be found over {forecast.text} with a "
        f"chance of {POWER:.0%}."
    )


def _step(member: Member, seeds: int, why: str) -> ProposedStep:
    words: Sequence[str] = ["orchestrator", "resume", member.ledger.name, "--final-seeds", str(seeds)]
    missing = seeds - len(member.tests)
    what = f"Test {member.label} over {pluralize(seeds, 'seed')} ({missing} more)"
    return ProposedStep("seeds", what, why, line(member.findings, words), of_finals(member.findings, missing))
