"""Introspective deep metric learning (IDML): distances that shrink where the images are uncertain.

Wang et al., "Introspective Deep Metric Learning", TPAMI 2024. An image has a semantic embedding s (unit rows) and
an uncertainty embedding u (not normalised); the more uncertain a pair, the smaller its distance, and the weaker
its pull in any objective. A class proxy carries a zero uncertainty.

Shapes: Q queries, R references, A anchors; s has D dimensions, u may have another number of them.
"""

from typing import Any, Literal, Self

import torch
import torch.nn.functional as F
from pydantic import Field, model_validator
from torch import Generator, Tensor, nn

from methods.baselines import (
    Contrastive,
    Margin,
    MultiSimilarity,
    NormalizedSoftmax,
    ProxyAnchor,
    ProxyNCA,
    ProxyNCAPlusPlus,
    SoftTriple,
    Triplet,
)
from methods.bases import OverConfig
from methods.circle import Circle
from methods.cos_face import CosFace
from methods.derivatives import with_gradient
from methods.fast_ap import FastAP
from methods.mixup import check_blocks, label_sets, mix
from methods.objectives import cosine_similarity, euclidean_distance
from methods.proxies import Proxies
from methods.sup_con import SupCon
from methods.uncertainty import certain_pairs_of_uncertain_items, gradient_weight, gradient_weights
from methods.vmf_softmax import draws
from orchestrator.method import Batch, Diagnostics, Embedded, InputError, Method, Network, Outputs, Task, unit

SMALLEST_DISTANCE = 1e-12  # keeps (b + gamma) / a^2, the slope of the relative uncertainty, inside float32
ANCHORS = 100  # of the relative embeddings
PAIRED = 512  # items of which all pairs are looked at, drawn at random
ROWS = 1024  # items compared with all others at once


def introspective_distance(
    s_queries: Tensor,
    u_queries: Tensor,
    s_references: Tensor,
    u_references: Tensor,
    *,
    tau: float = 5.0,
    gamma: float = 0.0,
    norm: Literal["sum", "separate"] = "sum",
) -> Tensor:
    """The introspective distance a exp(-t / tau) of all pairs (Eq. 5, 6), t = (b + gamma) / a.

    a = ||s_q - s_r|| is the semantic distance, b = ||u_q + u_r|| the uncertainty of the pair, t the relative
    uncertainty. Where a = 0 the result and its gradient are zero.

    Args:
        s_queries, s_references: (Q, D), (R, D) semantic embeddings, used as given.
        u_queries, u_references: (Q, E), (R, E) uncertainty embeddings, used as given.
        tau: temperature, > 0. gamma: uncertainty that every pair has, >= 0.
        norm: "sum" for b as above, "separate" for b = ||u_q|| + ||u_r|| (ablation).

    Returns:
        (Q, R), at least float32.

    Raises:
        ValueError: if tau, gamma or norm is not as above.
    """
    distance = euclidean_distance(s_queries, s_references)
    return distance * _certainty(distance, u_queries, u_references, tau, gamma, norm)


def introspective_similarity(
    s_queries: Tensor,
    u_queries: Tensor,
    s_references: Tensor,
    u_references: Tensor,
    *,
    tau: float = 5.0,
    gamma: float = 0.0,
    norm: Literal["sum", "separate"] = "sum",
    form: Literal["sim", "dis"] = "sim",
) -> Tensor:
    """The introspective similarity of all pairs: uncertain pairs become alike (Eq. 7, 23) or unrelated (Eq. 24).

    With t as in `introspective_distance` and c the cosine of the semantic embeddings (divided by their norms
    here): 1 - (1 - c) exp(-t / tau) for form "sim", c exp(-t / tau) for "dis" (ISM-Dis, ablation). Where a = 0
    both are the cosine.

    Other arguments, shapes and errors as `introspective_distance`; ValueError too if form is neither.
    """
    if form not in ("sim", "dis"):
        raise ValueError(f"form must be 'sim' or 'dis', got {form!r}")
    distance = euclidean_distance(s_queries, s_references)
    certainty = _certainty(distance, u_queries, u_references, tau, gamma, norm)
    apart = _one_minus_cosine(distance, s_queries, s_references)
    return 1 - apart * certainty if form == "sim" else (1 - apart) * certainty


def relative_agreement(first: Tensor, second: Tensor, anchors: Tensor, *, neighbours: int = 10) -> dict[str, float]:
    """How far two embeddings of the same items agree, seen relative to common anchors (Eq. 25, Table 16).

    An item's relative embedding holds its cosine similarities to the anchors. By the cosine of relative
    embeddings, averaged over items: `jaccard`, the overlap of the item's nearest neighbours within `first` and
    within `second`; `mean_reciprocal_rank`, 1 / rank of the item itself among the `second` ones nearest to its
    `first` one, 0 beyond `neighbours`; `cosine`, between its two relative embeddings.

    Args:
        first, second: (N, D), (N, E) embeddings of the same N items, semantic and uncertainty, say.
        anchors: (A,) indices of the anchor items; the paper draws 100 uniformly.
        neighbours: size of the neighbourhoods, clipped to N.
    """
    size = min(neighbours, len(first))
    x, y = (_unit(cosine_similarity(_unit(z), _unit(z[anchors]))) for z in (first, second))
    jaccard, reciprocal_rank, cosine = [], [], []
    for rows in torch.split(torch.arange(len(x), device=x.device), ROWS):
        across = cosine_similarity(x[rows], y)
        near_x, near_y = (cosine_similarity(z[rows], z).topk(size, dim=1).indices for z in (x, y))
        shared = (near_x[:, :, None] == near_y[:, None, :]).flatten(1).sum(1)
        to_own_class = across.gather(1, rows[:, None])
        rank = 1 + (across > to_own_class).sum(1)
        jaccard.append(shared.double() / (2 * size - shared))
        reciprocal_rank.append(torch.where(rank <= size, 1 / rank.double(), 0))
        cosine.append(to_own_class[:, 0].double())
    return {
        "jaccard": torch.cat(jaccard).mean().item(),
        "mean_reciprocal_rank": torch.cat(reciprocal_rank).mean().item(),
        "cosine": torch.cat(cosine).mean().item(),
    }


def introspective_retrieval(
    s: Tensor,
    u: Tensor,
    labels: Tensor,
    *,
    tau: float = 5.0,
    gamma: float = 0.0,
    norm: Literal["sum", "separate"] = "sum",
) -> dict[str, float]:
    """Retrieval of every item among all others by the introspective distance (Table 14), an exact search in float64.

    `recall_at_1`, `r_precision` and `map_at_r` are those of the evaluation: ties go to the lower index, items without
    another of their label are left out. Takes N^2 (D + E) steps: minutes for tens of thousands of items. No row of each
    item gives this distance as an inner product: a exp(-(b + gamma) / (a tau)) mixes the two norms of a pair. So IDML
    has no `retrieval`, and everything else ranks by the distance of s.

    Args:
        s, u: (N, D), (N, E) semantic and uncertainty embeddings. labels: (N,) integers.
        tau, gamma, norm: as in `introspective_distance`.

    Raises:
        ValueError: if no item has another of its label.
    """
    s, u = s.double(), u.double()
    _, label, count = torch.unique(labels, return_inverse=True, return_counts=True)
    relevant = count[label] - 1
    if not relevant.any():
        raise ValueError(f"introspective_retrieval needs two items of one label, found none among {len(labels)}")
    ranks = torch.arange(1, int(relevant.max()) + 1, device=labels.device)
    sums = torch.zeros(3, dtype=torch.float64)
    for rows in torch.split(relevant.nonzero()[:, 0], ROWS):
        distance = introspective_distance(s[rows], u[rows], s, u, tau=tau, gamma=gamma, norm=norm)
        distance.scatter_(1, rows[:, None], torch.inf)
        nearest = distance.argsort(dim=1, stable=True)[:, : len(ranks)]
        relevant_count = relevant[rows, None]
        hits = (label[nearest] == label[rows, None]) & (ranks <= relevant_count)
        precision = hits.cumsum(1) / ranks
        shares = (hits[:, :1], hits / relevant_count, hits * precision / relevant_count)
        sums += torch.stack([share.double().sum().cpu() for share in shares])
    means = (sums / int((relevant > 0).sum())).tolist()
    return dict(zip(("recall_at_1", "r_precision", "map_at_r"), means, strict=True))


def von_mises_fisher(means: Tensor, concentration: float, rng: Generator) -> Tensor:
    """A draw from a von Mises-Fisher distribution around each row, its density ~ exp(concentration mean . x).

    Args:
        means: (B, D) rows, D >= 2, of any length. concentration: >= 0; 0 is uniform.

    Returns:
        (B, D) unit rows, float64, without gradients.

    Raises:
        ValueError: if the concentration is negative or D is below 2.
    """
    size, dim = means.shape
    if not (concentration >= 0 and dim >= 2):
        raise ValueError(f"needs a concentration of at least 0 and 2 dimensions, got {concentration:g} and {dim}")
    rows = F.normalize(means.detach().double(), dim=1)
    return draws(rows, rows.new_full((size,), concentration), 1, rng)[:, 0]


def _certainty(
    distance: Tensor, u_queries: Tensor, u_references: Tensor, tau: float, gamma: float, norm: str
) -> Tensor:
    """exp(-t / tau), (Q, R); 1 without gradient where the distance is zero."""
    if not tau > 0:
        raise ValueError(f"tau must be a positive number, got {tau}")
    if not gamma >= 0:
        raise ValueError(f"gamma must be at least 0, got {gamma}")
    uncertainty = _uncertainty(u_queries, u_references, norm)
    apart = distance > 0
    safe = torch.where(apart, distance, 1).clamp_min(SMALLEST_DISTANCE)
    return torch.where(apart, torch.exp(-(uncertainty + gamma) / (tau * safe)), 1)


def _one_minus_cosine(distance: Tensor, queries: Tensor, references: Tensor) -> Tensor:
    """1 - c of all pairs (Q, R), from their distances: a^2 = (|q| - |r|)^2 + 2 |q| |r| (1 - c), so that they need no
    second product of all pairs; 1 where one is zero."""
    q, r = (_lengths(rows)[:, None] for rows in (queries, references))
    zero = (q == 0) | (r == 0).T
    twice = torch.where(zero, 1, 2 * q * r.T)
    return torch.where(zero, 1, (distance.square() - (q - r.T).square()) / twice)


def _lengths(rows: Tensor) -> Tensor:
    """(N,), with a zero gradient at zero rows."""
    lengths: Tensor = torch.linalg.vector_norm(rows, dim=1, dtype=torch.promote_types(rows.dtype, torch.float32))
    return lengths


def _uncertainty(u_queries: Tensor, u_references: Tensor, norm: str) -> Tensor:
    """b of all pairs, (Q, R)."""
    if norm == "sum":
        return euclidean_distance(u_queries, -u_references)
    if norm != "separate":
        raise ValueError(f"norm must be 'sum' or 'separate', got {norm!r}")
    q, r = (_lengths(u) for u in (u_queries, u_references))
    return q[:, None] + r


def _unit(rows: Tensor) -> Tensor:
    return unit(rows.to(torch.promote_types(rows.dtype, torch.float32)))


class IDML(Method):
    """Introspective deep metric learning: any objective, over distances that grow blunt where images are uncertain.

    L = J(y, labels; D_IN), D_IN = a exp(-(b + gamma) / (a tau)), a = ||s1 - s2||, b = ||u1 + u2||; or over
    C_IN = 1 - (1 - cos(s1, s2)) exp(-(b + gamma) / (a tau)). J is the base `objective`, s the embedding, u the head
    "uncertainty", which is not normalised; proxies have u = 0. What J reads follows `metric`: D_IN (euclidean), its
    square (squared_euclidean) or C_IN (cosine); an objective of distances reads 1 - C_IN, one of similarities -D_IN or
    -D_IN^2.

    Mixup makes uncertain images: x = lam x1 + (1 - lam) x2 with the label set {l1, l2}, one mixed image per original.
    SoftTriple's own tau and gamma stay at its defaults: here these names are IDML's. A margin's boundary per class is
    that of a mixed image's first label.

    A network that is not pretrained starts slowly: by the paper's tau the uncertainty at the start makes most distances
    blunt. On `glyphs-small`, after the default 10 epochs, MAP@R is 0.23 with it and 0.52 with tau 100 (seed 0).
    """

    name = "idml"
    paper = "Wang et al., Introspective Deep Metric Learning, TPAMI 2024"
    latex = r"""
    L = J(y, \text{labels}; D_{\mathrm{IN}})

    D_{\mathrm{IN}} = a\,e^{-(b + \gamma) / (a \tau)}

    C_{\mathrm{IN}} = 1 - (1 - \cos(s_1, s_2))\,e^{-(b + \gamma) / (a \tau)}

    a = \left\lVert s_1 - s_2\right\rVert, \quad b = \left\lVert u_1 + u_2\right\rVert
    """
    expected_failures = {"permutation": "Mixup draws its partners in the order of the batch"}  # noqa: RUF012

    class Config(
        OverConfig,
        over={
            ProxyAnchor: {"proxy_lr_multiplier": 30.0},
            MultiSimilarity: {},
            Contrastive: {},
            Triplet: {},
            Margin: {"learn_beta": "no", "phi_form": "printed"},  # Eq. 9: both margins are pre-defined
            FastAP: {},
            ProxyNCA: {"metric": "euclidean"},  # Eq. 15
            ProxyNCAPlusPlus: {},
            NormalizedSoftmax: {},
            SoftTriple: {},
            Circle: {},
            CosFace: {},
            SupCon: {},
        },
        fixed=("memory_size", "memory_start", "tau", "gamma"),
    ):
        tau: float = Field(5.0, gt=0, description="temperature: the higher, the less uncertainty weakens")
        gamma: float = Field(0.0, ge=0, description="introspective bias: uncertainty of every pair; 2 on Cars196")
        norm: Literal["sum", "separate"] = Field(
            "sum", description="uncertainty of a pair: ||u1 + u2||, or ||u1|| + ||u2|| (ablation)"
        )
        form: Literal["sim", "dis"] = Field(
            "sim", description="uncertain pairs become alike, or unrelated (ablation, of the metric cosine only)"
        )
        uncertainty_dim: int | None = Field(
            None, ge=1, le=65_536, description="size of the uncertainty; null: embedding_dim"
        )
        random_uncertainty: bool = Field(
            False, description="draw it from a von Mises-Fisher around each embedding, do not learn it (ablation)"
        )
        random_concentration: float | None = Field(
            None, ge=0, description="of what is drawn: 0 is uniform on the sphere; the paper gives none; null: its size"
        )
        introspective_test: bool = Field(
            False, description="tell the test's retrieval by the introspective distance too (ablation)"
        )
        mixup: bool = Field(True, description="train on mixed images too")
        mixup_loss: Literal["sets", "released"] = Field(
            "sets",
            description="one loss over originals and mixed images with label sets; "
            "or the released code's L(originals) + lam L(mixed, y1) + (1 - lam) L(mixed, y2)",
        )
        mixup_alpha: float = Field(1.0, gt=0, description="lam is drawn from Beta(alpha, alpha), once per batch")
        # Two: a batch of P classes still mixes P/2 of them, and two workers compute what one does
        mixup_blocks: int = Field(
            2,
            ge=1,
            le=65_536,
            description="parts of the batch inside which images are mixed: as many as the workers, or more",
        )

        def idle(self) -> dict[str, tuple[str, ...]]:
            names = () if self.mixup else ("mixup_loss", "mixup_alpha", "mixup_blocks")
            idle: dict[str, tuple[str, ...]] = super().idle()
            if not self.random_uncertainty:
                idle["random_concentration"] = ("random_uncertainty",)
            if self.base_config().references == "proxies" and not self.introspective_test:
                idle["norm"] = ("objective",)  # a proxy has no uncertainty: ||u1 + 0|| is ||u1|| + 0
            return idle | dict.fromkeys(names, ("mixup",))

        @model_validator(mode="after")
        def _introspective(self) -> Self:
            base = self.base_config()
            if "memory" in base.references:
                raise ValueError(
                    f"references: {base.references!r}: IDML compares with the batch or with proxies; "
                    "what a memory keeps has no uncertainty"
                )
            if self.introspective_test and self.random_uncertainty:
                raise ValueError("introspective_test: a drawn uncertainty is not known at test time")
            if self.form == "dis" and base.metric != "cosine":
                raise ValueError(f"form: 'dis': is a form of the cosine, but {self.objective} has metric={base.metric}")
            return self

    config: Config
    totals: Tensor

    def __init__(self, config: Config, task: Task) -> None:
        super().__init__(config, task)
        if config.mixup:
            check_blocks(task.batch_size, config.mixup_blocks)
            self.batch_parts = config.mixup_blocks
        if task.batch_size and config.random_uncertainty and config.uncertainty_dim not in (None, task.embedding_dim):
            raise InputError(
                f"uncertainty_dim: {config.uncertainty_dim}: what is drawn around the embeddings has their size, "
                f"{task.embedding_dim}: leave it out"
            )
        self.base = config.base_objective(task)
        self.uncertainty_dim = config.uncertainty_dim or task.embedding_dim
        # since the last validation: steps, sum of mean gradient norms, sum of mean uncertainties of mixed images
        self.register_buffer("totals", torch.zeros(3, dtype=torch.float64))

    def heads(self) -> nn.ModuleDict:
        """ "uncertainty": linear, unless the uncertainty is drawn."""
        if self.config.random_uncertainty:
            return nn.ModuleDict()
        return nn.ModuleDict({"uncertainty": nn.Linear(self.task.feature_dim, self.uncertainty_dim)})

    def parameter_groups(self, lr: float) -> list[dict[str, Any]]:
        return self.base.parameter_groups(lr)

    def step(self, batch: Batch, network: Network, rng: Generator) -> dict[str, Tensor]:
        labels, config = batch.labels, self.config
        originals = self._complete(network(batch.images), rng)
        if not config.mixup:
            return self._record({"loss": self._objective(originals, labels, rng)}, originals)
        images, share, partner_labels = mix(batch, config.mixup_alpha, config.mixup_blocks, rng)
        mixed = self._complete(network(images), rng)
        if config.mixup_loss == "sets":
            both = {name: torch.cat([originals[name], mixed[name]]) for name in originals}
            terms = {"loss": self._objective(both, label_sets(labels, partner_labels), rng)}
        else:
            first, second = (self._objective(mixed, labels_here, rng) for labels_here in (labels, partner_labels))
            terms = {
                "originals": self._objective(originals, labels, rng),
                "mixed": share * first + (1 - share) * second,
            }
        return self._record(terms, originals, mixed)

    def diagnostics(self, trained: Embedded | None, held_out: Embedded | None) -> Diagnostics:
        """Uncertainty levels (the mean of ||u||) of originals, mixed and held-out images (Fig. 9), each held-out
        image's own, the gradient on s (Fig. 10; mean norm over images and steps), and how far s and u agree
        (Table 16). Of pairs of trained and of held-out images, the weights of their gradients (Fig. 6; the mean as a
        number), and of held-out ones those that are certain though both images are not (Fig. 8). For the test,
        where asked, retrieval by the introspective distance (Table 14)."""
        steps, gradient, mixed = self.totals.tolist()
        self.totals.zero_()
        learned = not self.config.random_uncertainty
        scalars: dict[str, float] = {}
        tables: dict[str, dict[str, list[Any]]] = {}
        if trained is not None and steps:
            scalars["gradient_norm"] = gradient / steps
            if learned and self.config.mixup:
                scalars["uncertainty_mixed"] = mixed / steps
        for name, embedded in (("trained", trained), ("held_out", held_out)):
            if embedded is None or not learned:
                continue
            s, u = embedded.outputs["embedding"], embedded.outputs["uncertainty"]
            level = torch.linalg.vector_norm(u.double(), dim=1)
            scalars[f"uncertainty_{name}"] = level.mean().item()
            anchors = torch.randperm(len(s), generator=Generator().manual_seed(0))[:ANCHORS]
            agreement = relative_agreement(s, u, anchors)
            rows = torch.randperm(len(s), generator=Generator().manual_seed(1))[:PAIRED]
            alpha, beta = euclidean_distance(s[rows], s[rows]), _uncertainty(u[rows], u[rows], self.config.norm)
            of = {"tau": self.config.tau, "gamma": self.config.gamma}
            tables[f"gradient_weights_{name}"] = gradient_weights(alpha, beta, **of)
            if len(rows) > 1:
                pairs = ~torch.eye(len(rows), dtype=torch.bool)
                scalars[f"gradient_weight_{name}"] = gradient_weight(alpha, beta, **of)[pairs].mean().item()
            scalars |= {f"agreement_{name}_{measure}": value for measure, value in agreement.items()}
            if embedded is held_out:
                columns = {"sample": embedded.samples, "label": embedded.labels, "uncertainty": level}
                tables["uncertainty"] = {column: values.tolist() for column, values in columns.items()}
                examples = {"sample": embedded.samples[rows], "label": embedded.labels[rows]}
                tables["certain_pairs"] = certain_pairs_of_uncertain_items(beta, level[rows], examples)
        if self.config.introspective_test and trained is None and held_out is not None:
            config, outputs = self.config, held_out.outputs
            scores = introspective_retrieval(
                outputs["embedding"],
                outputs["uncertainty"],
                held_out.labels,
                tau=config.tau,
                gamma=config.gamma,
                norm=config.norm,
            )
            scalars |= {f"introspective_{measure}": value for measure, value in scores.items()}
        proxies = getattr(self.base, "proxies", None)
        return Diagnostics(scalars, proxies.similarities() if isinstance(proxies, Proxies) else {}, tables)

    def _objective(self, outputs: Outputs, labels: Tensor, rng: Generator) -> Tensor:
        return self.base.compare(outputs, labels, rng, self._measure)

    def _measure(self, queries: Outputs, references: Outputs) -> Tensor:
        """The introspective matrix (Q, R) that the base objective reads."""
        config = self.config
        s_q, u_q, s_r = queries["embedding"], queries["uncertainty"], references["embedding"]
        u_r = references.get("uncertainty", u_q.new_zeros(1, u_q.shape[1]))  # that of every proxy: one column of pairs
        pair: dict[str, Any] = {"tau": config.tau, "gamma": config.gamma, "norm": config.norm}
        return self.base.by_metric(
            lambda: introspective_distance(s_q, u_q, s_r, u_r, **pair),
            lambda: introspective_similarity(s_q, u_q, s_r, u_r, form=config.form, **pair),
        )

    def _complete(self, outputs: Outputs, rng: Generator) -> Outputs:
        """The outputs with an uncertainty: that of the network, or drawn around each embedding."""
        if not self.config.random_uncertainty:
            return outputs
        s = outputs["embedding"]
        concentration = self.config.random_concentration
        random = von_mises_fisher(
            s, s.shape[1] if concentration is None else concentration, self.generator_on(rng, s.device)
        )
        return outputs | {"uncertainty": random.to(s)}

    def _record(self, terms: dict[str, Tensor], originals: Outputs, mixed: Outputs | None = None) -> dict[str, Tensor]:
        """Add this step to the totals, and pass its terms on."""
        runs = [originals] if mixed is None else [originals, mixed]
        embeddings = [run["embedding"] for run in runs]
        if not torch.is_grad_enabled() or not embeddings[0].requires_grad:
            return terms
        loss = torch.stack(list(terms.values())).sum()
        outputs = [run[name] for name in ("embedding", "uncertainty") for run in runs]
        leaves = [leaf for leaf in (*outputs, *self.base.parameters()) if leaf.requires_grad]
        # of half precision a step needs the gradient of its scaled loss
        once = len(terms) == 1 and all(torch.finfo(leaf.dtype).bits >= 32 for leaf in leaves)
        # here, not by a hook in the backward pass, where fp16's loss is scaled
        with torch.autocast(loss.device.type, enabled=False):
            if once:
                gradients = torch.autograd.grad(loss, leaves, allow_unused=True)
                terms = dict.fromkeys(terms, with_gradient(loss, leaves, gradients))
            else:
                gradients = torch.autograd.grad(loss, embeddings, retain_graph=True)
        level = self.totals.new_zeros(()) if mixed is None else _mean_norm(mixed["uncertainty"])
        new = [self.totals.new_ones(()), _mean_norm(torch.cat(gradients[: len(runs)])), level]
        self.totals += torch.stack([value.to(self.totals) for value in new])
        return terms


def _mean_norm(rows: Tensor) -> Tensor:
    norms: Tensor = torch.linalg.vector_norm(rows.detach().double(), dim=1)
    return norms.mean()
