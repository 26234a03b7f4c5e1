"""Which classes are confused, in words, from tables; without torch, so that a page is made quickly."""

from typing import Any

Table = dict[str, list[Any]]
"""Columns by name."""


def confused_most(classes: Table, confusions: Table, count: int = 3) -> str:
    """The answer in words: the worst classes, how often each is found, what it is taken for; then the worst pairs."""
    places = [i for i, value in enumerate(classes["recall_at_1"]) if value is not None][:count]
    worst = [i for i in places if classes["recall_at_1"][i] < 1]
    if not worst:
        return "None: the nearest neighbour of every query is of its class."

    def describe(i: int) -> str:
        other, share = classes["taken_for"][i], classes["share"][i]
        mistaken = f", taken for {other} in {share:.0%} of its queries" if other else ""
        return f"{classes['class'][i]} (recall@1 {classes['recall_at_1'][i]:.2f}{mistaken})"

    pairs = [
        f"{one} and {other} ({share:.0%} of their queries)"
        for one, other, share in zip(
            *(confusions[head][:count] for head in ("class", "taken_for", "share")), strict=True
        )
    ]
    return f"{'; '.join(map(describe, worst))}." + (f" The most confused pairs: {'; '.join(pairs)}." if pairs else "")
