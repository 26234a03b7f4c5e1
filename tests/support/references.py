"""Slow, obvious versions of the equations, one term at a time in float64, to test the fast ones against.

They are written from the papers' formulas, not from the package's code, and import nothing of it. Loops run
over single entries; gradients come from autograd over those scalars.
"""

import math

import torch
from torch import Tensor

# ---------------------------------------------------------------- objectives
# Each reads a matrix (Q, R) and the masks of positive and negative pairs; `of(mask, i)` lists a row's pairs.


def of(mask: Tensor, row: int) -> list[int]:
    return [column for column in range(mask.shape[1]) if mask[row, column]]


def total(terms: list[Tensor]) -> Tensor:
    result = torch.zeros((), dtype=torch.float64)
    for term in terms:
        result = result + term
    return result


def mean(terms: list[Tensor]) -> Tensor:
    return total(terms) / len(terms) if terms else total([])


def distances(queries: Tensor, references: Tensor) -> Tensor:
    rows = []
    for query in queries.double():
        squared = [((query - reference) ** 2).sum() for reference in references.double()]
        rows.append(torch.stack([value.sqrt() if value > 0 else value * 0 for value in squared]))
    return torch.stack(rows)


def masks(query_labels: list[set[int]], reference_labels: list[set[int]], same: bool) -> tuple[Tensor, Tensor]:
    positive = torch.zeros(len(query_labels), len(reference_labels), dtype=torch.bool)
    negative = positive.clone()
    for i, mine in enumerate(query_labels):
        for j, theirs in enumerate(reference_labels):
            if same and i == j:
                continue
            positive[i, j] = bool(mine & theirs)
            negative[i, j] = not mine & theirs
    return positive, negative


def contrastive(d, positive, negative, pos_margin=0.0, neg_margin=0.5, average="nonzero"):
    rows, columns = d.shape
    pull, push, pull_pairs, push_pairs = [], [], 0, 0
    for i in range(rows):
        for j in range(columns):
            if positive[i, j]:
                pull_pairs += 1
                if d[i, j] > pos_margin:
                    pull.append(d[i, j] - pos_margin)
            if negative[i, j]:
                push_pairs += 1
                if d[i, j] < neg_margin:
                    push.append(neg_margin - d[i, j])
    below = {
        "nonzero": (len(pull), len(push)),
        "all": (pull_pairs, push_pairs),
        "query": (rows, rows),
    }[average]
    return total(pull) / max(1, below[0]) + total(push) / max(1, below[1])


def triplet(d, positive, negative, margin=0.1, mining="semihard"):
    terms = []
    for a in range(len(d)):
        for p in of(positive, a):
            candidates = of(negative, a)
            if mining == "semihard":
                farther = [n for n in candidates if d[a, n] > d[a, p]]
                candidates = sorted(farther, key=lambda n: d[a, n].item())[:1]
            hinges = [d[a, p] - d[a, n] + margin for n in candidates]
            terms += [hinge for hinge in hinges if hinge > 0]
    return mean(terms)


def n_pair(s, positive, negative, scale=16.0):
    terms = []
    for i in range(len(s)):
        for p in of(positive, i):
            gaps = total([torch.exp(scale * (s[i, n] - s[i, p])) for n in of(negative, i)])
            terms += [torch.log(1 + gaps)]
    return mean(terms)


def lifted_structure(d, positive, negative, margin=1.0, form="pairs"):
    terms = []
    for i in range(len(d)):
        if form == "anchors":
            own, other = of(positive, i), of(negative, i)
            if own and other:
                pull = torch.log(total([torch.exp(d[i, p]) for p in own]))
                push = torch.log(total([torch.exp(margin - d[i, n]) for n in other]))
                terms.append(pull + push if pull + push > 0 else total([]))
            continue
        for j in of(positive, i):
            of_i = [torch.exp(margin - d[i, k]) for k in of(negative, i)]
            of_j = [torch.exp(margin - d[k, j]) for k in of(negative.T, j)]
            reach = torch.log(total(of_i + of_j)) + d[i, j] if of_i + of_j else total([])
            terms.append(reach**2 / 2 if reach > 0 else total([]))
    return mean(terms)


def sup_con(s, positive, negative, temperature=0.1):
    rows = []
    for i in range(len(s)):
        own = of(positive, i)
        below = total([torch.exp(s[i, a] / temperature) for a in own + of(negative, i)])
        if own:
            rows.append(mean([-torch.log(torch.exp(s[i, p] / temperature) / below) for p in own]))
    return mean(rows)


def sigmoid_pairs(s, positive, negative, scale=10.0, bias=-10.0):
    terms = []
    for i in range(len(s)):
        terms += [torch.log(1 + torch.exp(-(scale * s[i, j] + bias))) for j in of(positive, i)]
        terms += [torch.log(1 + torch.exp(scale * s[i, j] + bias)) for j in of(negative, i)]
    return total(terms) / len(s)


def snr_distance(queries, references):
    rows = []
    for q in queries:
        signal = ((q - q.mean()) ** 2).mean()
        noises = [r - q for r in references]
        rows.append(torch.stack([((noise - noise.mean()) ** 2).mean() / signal for noise in noises]))
    return torch.stack(rows)


def margin(d, positive, drawn, beta=1.2, alpha=0.2):
    """`drawn` says how often each negative was drawn; beta is a number, or a list with one per row."""
    terms = []
    for i in range(len(d)):
        boundary = beta[i] if isinstance(beta, list) else beta
        hinges = [d[i, p] - (boundary - alpha) for p in of(positive, i)]
        for n in range(d.shape[1]):
            hinges += [(boundary + alpha) - d[i, n]] * int(drawn[i, n])
        terms += [hinge for hinge in hinges if hinge > 0]
    return mean(terms)


def margin_probabilities(row, negatives, dim, phi=math.inf, phi_form="relative"):
    """The chance of each negative of one row to be drawn."""
    near = [n for n in negatives if row[n] <= 1.4]
    if not near:
        return {n: 1 / len(negatives) for n in negatives}
    log_weight = {}
    for n in near:
        d = max(0.5, float(row[n]))
        log_weight[n] = (2 - dim) * math.log(d) - (dim - 3) / 2 * math.log(1 - d * d / 4)
    if phi_form == "printed":
        weight = {n: min(phi, math.exp(value)) for n, value in log_weight.items()}
    else:
        largest = max(log_weight.values())
        weight = {n: min(phi, math.exp(value - largest)) for n, value in log_weight.items()}
    return {n: weight.get(n, 0.0) / sum(weight.values()) for n in negatives}


def multi_similarity(s, positive, negative, alpha=2.0, beta=50.0, base=0.5, epsilon=0.1):
    rows = []
    for i in range(len(s)):
        own, other = of(positive, i), of(negative, i)
        if not own or not other:
            continue
        if epsilon is not None:
            hardest_positive = min(s[i, j].item() for j in own)
            hardest_negative = max(s[i, j].item() for j in other)
            own = [j for j in own if s[i, j] < hardest_negative + epsilon]
            other = [j for j in other if s[i, j] > hardest_positive - epsilon]
        pull = total([torch.exp(-alpha * (s[i, j] - base)) for j in own])
        push = total([torch.exp(beta * (s[i, j] - base)) for j in other])
        rows.append(torch.log(1 + pull) / alpha + torch.log(1 + push) / beta)
    return total(rows) / len(s)


def proxy_nca(x, positive, negative, scale=1.0, include_positive=False):
    rows = []
    for i in range(len(x)):
        own, other = of(positive, i), of(negative, i)
        below = own + other if include_positive else other
        if own and below:
            above = total([torch.exp(-scale * x[i, j]) for j in own])
            rows.append(-torch.log(above / total([torch.exp(-scale * x[i, j]) for j in below])))
    return mean(rows)


def proxy_anchor(s, positive, negative, alpha=32.0, margin=0.1):
    pull, push = [], []
    for j in range(s.shape[1]):
        own, other = of(positive.T, j), of(negative.T, j)
        if own:
            pull.append(torch.log(1 + total([torch.exp(-alpha * (s[i, j] - margin)) for i in own])))
        push.append(torch.log(1 + total([torch.exp(alpha * (s[i, j] + margin)) for i in other])))
    return mean(pull) + mean(push)


def normalized_softmax(s, positive, negative, temperature=0.05):
    rows = []
    for i in range(len(s)):
        own, other = of(positive, i), of(negative, i)
        if own:
            above = total([torch.exp(s[i, j] / temperature) for j in own])
            below = above + total([torch.exp(s[i, j] / temperature) for j in other])
            rows.append(-torch.log(above / below))
    return mean(rows)


def cos_face(s, positive, negative, scale=64.0, margin=0.35):
    return margin_softmax(s, positive, negative, scale, lambda own: own - margin)


def arc_face(s, positive, negative, scale=64.0, margin=0.5):
    def widened(own):
        if torch.acos(own) + margin >= math.pi:
            return own - margin * math.sin(margin)
        return torch.cos(torch.acos(own) + margin)

    return margin_softmax(s, positive, negative, scale, widened)


def margin_softmax(s, positive, negative, scale, lowered):
    rows = []
    for i in range(len(s)):
        if of(positive, i):
            above = total([torch.exp(scale * lowered(s[i, j])) for j in of(positive, i)])
            below = above + total([torch.exp(scale * s[i, j]) for j in of(negative, i)])
            rows.append(-torch.log(above / below))
    return mean(rows)


def soft_triple(s, positive, negative, centres_per_class, la=20.0, gamma=0.1, margin=0.01):
    rows = []
    for i in range(len(s)):
        above, below = [], []
        for start in range(0, s.shape[1], centres_per_class):
            centres = [j for j in range(start, start + centres_per_class) if positive[i, j] or negative[i, j]]
            if not centres:
                continue
            share = [torch.exp(s[i, j] / gamma) for j in centres]
            similarity = total([w * s[i, j] for w, j in zip(share, centres, strict=True)]) / total(share)
            if any(positive[i, j] for j in centres):
                above.append(torch.exp(la * (similarity - margin)))
            else:
                below.append(torch.exp(la * similarity))
        if above:
            rows.append(-torch.log(total(above) / total(above + below)))
    return mean(rows)


def centre_merging(centres, centres_per_class):
    classes, terms = len(centres) // centres_per_class, []
    for c in range(classes):
        for m in range(centres_per_class):
            for other in range(m + 1, centres_per_class):
                w, v = centres[c * centres_per_class + m], centres[c * centres_per_class + other]
                terms.append(torch.sqrt(2 - 2 * (w * v).sum()))
    return total(terms) / (classes * centres_per_class * (centres_per_class - 1))


def fast_ap(d, positive, negative, num_bins=10):
    width, rows = 4 / num_bins, []
    for i in range(len(d)):
        own, other = of(positive, i), of(negative, i)
        if not own:
            continue
        ap, reached_own, reached = total([]), total([]), total([])
        for b in range(num_bins + 1):
            kernel = {}
            for j in own + other:
                gap = abs(d[i, j] ** 2 - b * width)
                kernel[j] = 1 - gap / width if gap < width else gap * 0
            here_own = total([kernel[j] for j in own])
            reached_own = reached_own + here_own
            reached = reached + here_own + total([kernel[j] for j in other])
            if reached > 0:
                ap = ap + here_own * reached_own / reached
        rows.append(ap / len(own))
    return 1 - mean(rows) if rows else total([])


# ---------------------------------------------------------------- objectives on ranks


def logistic(x):
    return 1 / (1 + torch.exp(-x))


def smooth_ap(s, positive, negative, temperature=0.01):
    rows = []
    for q in range(len(s)):
        own, other = of(positive, q), of(negative, q)
        precisions = []
        for p in own:
            among = 1 + total([logistic((s[q, j] - s[q, p]) / temperature) for j in own if j != p])
            below = total([logistic((s[q, j] - s[q, p]) / temperature) for j in other])
            precisions.append(among / (among + below))
        if own:
            rows.append(1 - mean(precisions))
    return mean(rows)


def rank_step(t, tau=0.01, rho=100.0, delta=0.05):
    if t <= 0:
        return logistic(t / tau)
    if t <= delta:
        return logistic(t / tau) + 0.5
    return rho * (t - delta) + logistic(torch.tensor(delta / tau, dtype=torch.float64)) + 0.5


def sup_ap(s, positive, negative, tau=0.01, rho=100.0, delta=0.05):
    rows = []
    for q in range(len(s)):
        own, other = of(positive, q), of(negative, q)
        precisions = []
        for p in own:
            among = 1 + sum(1 for j in own if j != p and s[q, j] >= s[q, p])
            steps = [rank_step(s[q, j] - s[q, p], tau, rho, delta) for j in other]
            precisions.append(among / (among + total(steps)))
        if own:
            rows.append(1 - mean(precisions))
    return mean(rows)


def sup_recall(s, positive, negative, ks=(1, 2, 4, 8, 16), k_temperature=1.0, tau=0.01, rho=100.0, delta=0.05):
    """As released, without a minimum with k above."""
    rows = []
    for q in range(len(s)):
        own, other = of(positive, q), of(negative, q)
        ranks = []
        for p in own:
            among = 1 + sum(1 for j in own if j != p and s[q, j] >= s[q, p])
            ranks.append(among + total([rank_step(s[q, j] - s[q, p], tau, rho, delta) for j in other]))
        recalls = [total([logistic((k - r) / k_temperature) for r in ranks]) / max(1, min(k, len(own))) for k in ks]
        if own:
            rows.append(1 - mean(recalls))
    return mean(rows)


def calibration(s, positive, negative, alpha=0.9, beta=0.6):
    pulled, pushed = [], []
    for q in range(len(s)):
        pulled += [alpha - s[q, j] for j in of(positive, q) if s[q, j] < alpha]
        pushed += [s[q, j] - beta for j in of(negative, q) if s[q, j] > beta]
    return mean(pulled) + mean(pushed)


def recall_at_k_surrogate(s, positive, negative, ks=(1, 2, 4, 8, 16), k_temperature=1.0, rank_temperature=0.01):
    rows = []
    for q in range(len(s)):
        own = of(positive, q)
        listed = own + of(negative, q)
        recalls = []
        for k in ks:
            found = total([])
            for p in own:
                rank = 1 + total([logistic((s[q, j] - s[q, p]) / rank_temperature) for j in listed if j != p])
                found = found + logistic((k - rank) / k_temperature)
            found = found if found <= k else found * 0 + k
            recalls.append(found / max(1, min(k, len(own))))
        if own:
            rows.append(1 - mean(recalls))
    return mean(rows)


def circle(s, positive, negative, margin=0.4, gamma=80.0):
    """The weights are numbers, not functions of s."""
    rows = []
    for i in range(len(s)):
        own, other = of(positive, i), of(negative, i)
        if own and other:
            pull = [torch.exp(-gamma * max(0.0, 1 + margin - s[i, j].item()) * (s[i, j] - (1 - margin))) for j in own]
            push = [torch.exp(gamma * max(0.0, s[i, j].item() + margin) * (s[i, j] - margin)) for j in other]
            rows.append(torch.log(1 + total(pull) * total(push)))
    return mean(rows)


def flow(x, condition, blocks):
    """A chain of coupling blocks, number by number; each block is a permutation, two networks, and a clamp.

    A network is a list of (weight, bias) with ReLU between them.
    """

    def network(layers, numbers):
        for place, (weight, bias) in enumerate(layers):
            sums = [total([w * n for w, n in zip(row, numbers, strict=True)]) for row in weight]
            numbers = [a + b for a, b in zip(sums, bias, strict=True)]
            if place < len(layers) - 1:
                numbers = [n if n > 0 else n * 0 for n in numbers]
        return numbers

    def changed(half, says, clamp):
        scales = [clamp * 0.636 * torch.atan(value) for value in says[: len(half)]]
        return [n * torch.exp(a) + b for n, a, b in zip(half, scales, says[len(half) :], strict=True)]

    numbers, given = list(x), list(condition)
    for order, from_first, from_second, clamp in blocks:
        numbers = [numbers[place] for place in order]
        first, second = numbers[: len(numbers) // 2], numbers[len(numbers) // 2 :]
        first = changed(first, network(from_second, second + given), clamp)
        second = changed(second, network(from_first, first + given), clamp)
        numbers = first + second
    return torch.stack(numbers)


# Metrics of a ranking ---------------------------------------------------------------------------------------------


def ranking_metrics(
    values: list[float], hits: list[bool], recall_at: tuple[int, ...] = (1, 2, 4, 8)
) -> dict[str, float] | None:
    """Expected metrics of one query over the orders of items with equal values, which ascend; None without a hit. Place
    by place, with the distribution of the number of hits so far."""
    relevant = sum(hits)
    if not relevant:
        return None
    deep = min(relevant, 1000)
    names = [f"recall_at_{k}" for k in recall_at]
    found = dict.fromkeys([*names, "r_precision", "map_at_r", "mean_average_precision_at_1000"], 0.0)
    chance, place = {0: 1.0}, 0
    while place < len(values):
        tied = [math.isclose(value, values[place], rel_tol=1e-11) for value in values[place:]]
        end = place + (tied.index(False) if False in tied else len(tied))
        until = sum(hits[:end])
        for j in range(place + 1, end + 1):
            after: dict[int, float] = {}
            for so_far, p in chance.items():
                hit = p * (until - so_far) / (end - j + 1)
                after[so_far + 1] = after.get(so_far + 1, 0) + hit
                after[so_far] = after.get(so_far, 0) + p - hit
                precision = hit * (so_far + 1) / j
                found["r_precision"] += hit / relevant * (j <= relevant)
                found["map_at_r"] += precision / relevant * (j <= relevant)
                found["mean_average_precision_at_1000"] += precision / deep * (j <= 1000)
            chance = after
            for name, k in zip(names, recall_at, strict=True):
                if j <= k:
                    found[name] = 1 - chance.get(0, 0)
        place = end
    return found
