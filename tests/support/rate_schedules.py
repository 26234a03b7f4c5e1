"""A schedule of the learning rate that waits for a plateau."""


def plateau(scores: list[float], larger: bool, patience: int) -> list[float]:
    """The factor after each score: halved once more than `patience` in a row were not above all before them."""
    factor, bad, found = 1.0, 0, []
    for number, score in enumerate(scores):
        better = all(score > before if larger else score < before for before in scores[:number])
        bad = 0 if better else bad + 1
        if bad > patience:
            factor, bad = factor / 2, 0
        found.append(factor)
    return found


def after_patience(scores: list[float], larger: bool, patience: int) -> int | None:
    """The first validation, from 1, with `patience` after the best so far."""
    for number in range(1, len(scores) + 1):
        so_far = [score if larger else -score for score in scores[:number]]
        if number - 1 - so_far.index(max(so_far)) >= patience:
            return number
    return None
