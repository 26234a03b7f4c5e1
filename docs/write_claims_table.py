"""Writes the table of docs/claims.md, from the shipped claims and the verdicts beside them: `make claims-table`."""

from pathlib import Path

from orchestrator.claims.file import read_claim
from orchestrator.claims.hypothesis import Claim
from orchestrator.claims.outputs import ClaimVerdict
from orchestrator.claims.shipped import measured_verdict, shipped_claims
from orchestrator.claims.verdict import effect_text, effect_unit, reservations

PAGE = Path(__file__).with_name("claims.md")
HEAD = "| claim | smallest effect | verdict | on each data set | cost |\n| --- | --- | --- | --- | --- |\n"


def table() -> str:
    """A line for each shipped claim, those that were not run as plainly as the others."""
    claims = {name: (path, read_claim(path)) for name, path in shipped_claims().items()}
    return HEAD + "".join(
        f"{_line(name, claim, measured_verdict(path, claim))}\n" for name, (path, claim) in claims.items()
    )


def _line(name: str, claim: Claim, verdict: ClaimVerdict | None) -> str:
    hypothesis, unit = claim.hypothesis, effect_unit(claim.hypothesis)
    lower = ", lower is claimed" if hypothesis.direction == "lower" else ""
    smallest = f"{hypothesis.smallest_effect:g} {unit}"
    smallest = "1 point" + smallest.removeprefix("1 points") if smallest.startswith("1 points") else smallest
    first = f"| {hypothesis.claim} (`{name}`) | {smallest}{lower}"
    if verdict is None:
        return f"{first} | not run | | |"
    parts = []
    for one in verdict.datasets:
        effects = "; ".join(map(effect_text, one.effects)) or "no effect"
        parts.append(f"{one.dataset}, {one.pairs} seeds: {one.verdict}: {effects} {unit}{reservations(one)}")
    cost = f"{verdict.trainings} trainings, {verdict.seconds / 60:.0f} min"
    return f"{first} | {verdict.verdict} | {'<br>'.join(parts)} | {cost} |"


def with_table(page: str) -> str:
    """The page with the table as it is now."""
    before, _, _ = page.partition(HEAD)
    return before + table()


if __name__ == "__main__":
    PAGE.write_text(with_table(PAGE.read_text("utf-8")), "utf-8")
