"""Anti-Collapse: proxies kept apart by the coding rate, the volume that the embeddings span.

Jiang et al., "Anti-Collapse Loss for Deep Metric Learning Based on Coding Rate Metric", IEEE TMM 2024. The loss is
minus the coding rate of the proxies plus a weighted proxy-based loss.

Shapes: n rows, B batch size, N points, D dimensions, C classes, M proxies per class, T text dimensions. Rows are used
as given: callers pass unit rows.
"""

import contextlib
import csv
import warnings
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, Self

import torch
import torch.nn.functional as F
from pydantic import Field, model_validator
from torch import Generator, Tensor

from methods.baselines import Baseline, ProxyAnchor, ProxyNCA
from methods.bases import WITHOUT_MEMORY, OverConfig
from methods.distances import cosine_similarity, full_precision
from orchestrator.method import Batch, Diagnostics, Embedded, InputError, Method, Network, Task

BLOCK = 2**22  # pairs in memory at a time
BINS = 100  # of the histograms of similarities
MATRIX = 4096  # maximum number of proxies whose similarity matrix is stored
ROUNDING = 1e-6  # a mean cosine distance of float32 rows below this counts as zero
PROMPT = "a photo of {}"


def coding_rate(x: Tensor, epsilon: float = 0.5) -> Tensor:
    """The coding rate R = 1/2 log det(I + D / (n epsilon^2) X^T X) of rows, in nats (Eq. 1).

    The number of nats needed to code the rows up to a distortion epsilon. Both Gram matrices, X^T X and X X^T, give the
    same determinant: the smaller one is factorised (Cholesky), in float32 or better regardless of autocast.

    Args:
        x: (n, D) unit rows, n >= 1.
        epsilon: allowed distortion, > 0.

    Returns:
        A scalar, differentiable.

    Raises:
        ValueError: if x has no row or is not a matrix, or epsilon is not positive.
    """
    if x.ndim != 2 or len(x) == 0:
        raise ValueError(f"the coding rate needs rows of shape (n, D) with n >= 1, got {tuple(x.shape)}")
    if not epsilon > 0:
        raise ValueError(f"epsilon must be a positive number, got {epsilon}")
    n, dim = x.shape
    with full_precision(x.device):
        x = x.to(torch.promote_types(x.dtype, torch.float32))
        gram = x.T @ x if dim < n else x @ x.T
        identity = torch.eye(len(gram), dtype=x.dtype, device=x.device)
        # it is positive definite: unchecked, which a GPU would be waited for; NaN stays NaN
        factor: Tensor = torch.linalg.cholesky_ex(identity + dim / (n * epsilon**2) * gram).L
        return factor.diagonal().log().sum()


def batch_proxy_coding_rate(
    proxies: Tensor, proxy_labels: Tensor, labels: Tensor, batch_size: int, epsilon: float = 0.5
) -> float:
    """R_proxy of Figure 3 and Table III: the coding rate of the proxies of a batch's classes, averaged over batches.

    Its factor is D / (n epsilon), the released code's, not Eq. 1's D / (n epsilon^2). It grows with the number of
    classes in a batch: proxies of random directions in 512 dimensions, of 45 draws from 100 classes (about 36 distinct
    ones), give the 60.74 that the paper prints for CUB, to within 0.5.

    Args:
        proxies: (P, D) unit rows. proxy_labels: (P,) integers. labels: (N,), batch after batch. epsilon: as in
        `coding_rate`.
    """
    rows = (proxies[torch.isin(proxy_labels, batch)] for batch in torch.split(labels, batch_size))
    return torch.stack([coding_rate(own, epsilon**0.5) for own in rows]).mean().item()


def mean_coding_rate(x: Tensor, labels: Tensor, epsilon: float = 0.5) -> Tensor:
    """The coding rate of each class's rows, averaged over classes (R_intra of Table III).

    Args:
        x: (N, D) unit rows, N >= 1. labels: (N,) integers. epsilon: as in `coding_rate`.
    """
    rates = [coding_rate(x[labels == label], epsilon) for label in sorted(set(labels.tolist()))]
    if not rates:
        raise ValueError("the mean coding rate needs at least one row, got none")
    return torch.stack(rates).mean()


def density(embeddings: Tensor, labels: Tensor) -> float:
    """rho_density of Table III: mean cosine distance within classes divided by that across classes.

    For each class, the mean of 1 - x . y over the pairs of two of its rows, and over the pairs of one of its rows and
    one of another class; both are averaged over classes (those of one row are left out of the first), as the released
    code has them.

    Args:
        embeddings: (N, D) unit rows. labels: (N,) integers.

    Raises:
        ValueError: if there is no pair of one of the two kinds, or all pairs across classes coincide.
    """
    _, label, counts = torch.unique(labels, return_inverse=True, return_counts=True)
    x, several = embeddings.detach().double(), counts > 1
    if len(counts) < 2 or not several.any():
        raise ValueError("the density needs pairs within a class and pairs across classes")
    sums = x.new_zeros(len(counts), x.shape[1]).index_add_(0, label, x)
    squares = x.new_zeros(len(counts)).index_add_(0, label, x.square().sum(1))
    within = 1 - (sums.square().sum(1) - squares)[several] / (counts * (counts - 1))[several]
    across = 1 - (sums * (sums.sum(0) - sums)).sum(1) / (counts * (len(x) - counts))
    if across.mean() < ROUNDING:
        raise ValueError("the density is undefined: all pairs across classes coincide")
    return float((within.mean() / across.mean()).item())


def euclidean_density(embeddings: Tensor, labels: Tensor) -> float:
    """Mean Euclidean distance of all pairs within classes divided by that of all pairs across classes.

    Counts every pair alike, in blocks; a distance below 3e-7 of the largest norm counts as zero.

    Arguments and errors are those of `density`.
    """
    x = embeddings.detach().double()
    norms = x.square().sum(1)
    rounding = 1e-13 * norms.max() if len(x) else norms
    total, within = x.new_zeros(()), x.new_zeros(())
    same_pairs = 0
    for block in _blocks(len(x)):
        # products are many times faster than differences, with an error of at most `rounding`
        squared = norms[block, None] + norms - 2 * x[block] @ x.T
        distance = torch.where(squared > rounding, squared, 0).sqrt_()
        same = labels[block, None] == labels
        total += distance.sum()
        within += distance[same].sum()
        same_pairs += int(same.sum())
    same_pairs, other_pairs = same_pairs - len(x), len(x) ** 2 - same_pairs
    if same_pairs == 0 or other_pairs == 0:
        raise ValueError("the density needs pairs within a class and pairs across classes")
    across = (total - within).item() / other_pairs
    if across == 0:
        raise ValueError("the density is undefined: all pairs across classes coincide")
    return within.item() / same_pairs / across


def similarity_histograms(embeddings: Tensor, labels: Tensor, *, bins: int = BINS) -> tuple[Tensor, Tensor]:
    """The numbers of pairs within classes, and across classes, by cosine similarity.

    `bins` equal bins divide [-1, 1]; every unordered pair of two embeddings counts once, in blocks.

    Args:
        embeddings: (N, D) unit rows. labels: (N,) integers.

    Returns:
        Counts (bins,) of positive and of negative pairs.
    """
    x = embeddings.detach()
    counts = torch.zeros(2 * bins, dtype=torch.long)
    for block in _blocks(len(x)):
        similarity = cosine_similarity(x[block], x[block.start :])
        index = ((similarity + 1) * (bins / 2)).long().clamp_(0, bins - 1)
        index += bins * (labels[block, None] != labels[block.start :])
        pairs = torch.ones_like(index, dtype=torch.bool).triu_(1)
        counts += torch.bincount(index[pairs], minlength=2 * bins).cpu()
    return counts[:bins], counts[bins:]


def _blocks(count: int) -> Iterator[slice]:
    """Rows whose pairs with all others are in memory together."""
    rows = max(1, BLOCK // max(1, count))
    return (slice(start, start + rows) for start in range(0, count, rows))


def language_guidance(embeddings: Tensor, texts: Tensor, *, temperature: float = 1.0) -> Tensor:
    """KL divergence of the batch's visual similarities from those of the class names (section IV-F).

    Rows of both similarity matrices, without their diagonals, go through a softmax at `temperature`; the result is
    sum_j p_ij log(p_ij / q_ij), p language and q visual, averaged over i. The texts get no gradient.

    Args:
        embeddings: (B, D) unit rows. texts: (B, T) unit embeddings of each sample's class name.
        temperature: > 0; the paper gives none.

    Returns:
        A scalar; zero, attached to the graph, for fewer than two samples.

    Raises:
        ValueError: if temperature is not positive, or the numbers of rows differ.
    """
    if not temperature > 0:
        raise ValueError(f"temperature must be a positive number, got {temperature}")
    if len(texts) != len(embeddings):
        raise ValueError(f"texts must have a row per embedding, {len(embeddings)}, got {len(texts)}")
    size = len(embeddings)
    if size < 2:
        return torch.where(torch.tensor(False, device=embeddings.device), embeddings, 0).sum()

    def to_others(z: Tensor) -> Tensor:  # without the diagonal: not by a mask, for whose size the host waits for a GPU
        return cosine_similarity(z, z).flatten()[1:].view(size - 1, size + 1)[:, :-1].reshape(size, size - 1)

    language, visual = (F.log_softmax(to_others(z) / temperature, dim=1) for z in (texts.detach(), embeddings))
    return F.kl_div(visual, language, reduction="batchmean", log_target=True)


# Class names as embeddings ---------------------------------------------------------------------------------


def read_texts(path: Path, class_names: Sequence[str]) -> Tensor:
    """Text embeddings of these classes (C, T), from a CSV file without a header.

    Each line is a class's name, as the data set has it, and its T numbers. The order of the lines does not matter;
    classes that are not asked for may be there too.

    Raises:
        InputError: if the file cannot be read, or lacks a class, or its numbers are not such embeddings.
    """
    names, vectors = set(class_names), dict[str, list[float]]()
    try:
        with path.open(newline="", encoding="utf-8") as file:
            for row in (reader := csv.reader(file)):
                if row and row[0] in names:
                    vectors[row[0]] = [float(number) for number in row[1:]]
    except OSError as error:
        raise InputError(f"text_embeddings: {path} cannot be read ({error.strerror})") from None
    except (ValueError, csv.Error) as error:
        raise InputError(f"text_embeddings: {path}, line {reader.line_num}: {error}") from None
    missing = [name for name in class_names if name not in vectors]
    if missing:
        raise InputError(
            f"text_embeddings: {path} has no line for the class {missing[0]!r} ({len(missing)} of {len(class_names)} "
            "are missing): each line should be a class name and its numbers"
        )
    widths = {len(numbers) for numbers in vectors.values()}
    if len(widths) > 1 or 0 in widths:
        raise InputError(f"text_embeddings: {path}: a line has {min(widths)} numbers, another {max(widths)}")
    texts = torch.tensor([vectors[name] for name in class_names])
    if not (torch.isfinite(texts).all() and texts.any(dim=1).all()):
        raise InputError(f"text_embeddings: {path} holds numbers that are not finite, or an embedding of zeros")
    return texts


def encode_texts(encoder: str, class_names: Sequence[str]) -> Tensor:
    """Embeddings (C, T) of "a photo of {class name}" by a text encoder of open_clip, `MODEL/WEIGHTS`.

    Raises:
        InputError: if open_clip is not installed, or does not have this encoder or cannot fetch it.
    """
    model, _, weights = encoder.partition("/")
    if not weights:
        raise InputError(
            f"text_embeddings: '{encoder}' should be a .csv file, or MODEL/WEIGHTS, as ViT-B-32-quickgelu/openai"
        )
    try:
        import open_clip
    except ImportError:
        raise InputError(
            f"text_embeddings: the text encoder '{encoder}' needs open_clip: uv pip install open-clip-torch, "
            "or give a .csv file"
        ) from None
    prompts = [PROMPT.format(name) for name in class_names]
    try:
        # its random initial weights must not change the numbers that the training draws
        with torch.random.fork_rng(devices=[]), torch.no_grad(), warnings.catch_warnings():
            # a model with another activation than its weights were trained with gives wrong numbers
            warnings.filterwarnings("error", message="QuickGELU mismatch")
            network = open_clip.create_model(model, pretrained=weights).eval()
            tokens: Tensor = open_clip.get_tokenizer(model)(prompts)
            return torch.cat([network.encode_text(part).float() for part in torch.split(tokens, 256)])
    except Exception as error:
        reason = " ".join(str(error).split())[:200]
        raise InputError(
            f"text_embeddings: '{encoder}' cannot be had from open_clip ({reason}): name a MODEL/WEIGHTS of it, as "
            "ViT-B-32-quickgelu/openai, or give a .csv file"
        ) from None


# The method ------------------------------------------------------------------------------------------------


class AntiCollapse(Method):
    """Anti-Collapse: the coding rate of the class proxies is kept high beside a weighted proxy-based loss.

    L = -R(P) + nu L_proxy, R(X) = 1/2 log det(I + D/(n epsilon^2) X^T X) of n unit rows X, L_proxy ProxyAnchor or
    ProxyNCA (`objective`). `form` says which rows: the proxies of the batch's classes, those of all classes, or the
    batch itself (pair); the last with `proxy_loss: false` trains without labels, on plain batches. Jiang et al., 2024.

    With `rate: exp`, the released code's form, the first term is e^(-R), and the factor in R is n / (D epsilon) of
    proxies, D / (n epsilon) of a batch: R is far smaller, and its gradient is weighted by e^(-R).

    Language guidance adds guidance_weight KL(p || q), p and q the softmax rows of the similarities of class names and
    of images. `text_embeddings` names a .csv file whose lines are a class name and the numbers of its embedding, or
    a text encoder of open_clip, which reads "a photo of {class name}" (the paper's: ViT-B-32-quickgelu/openai).
    """

    name = "anti_collapse"
    paper = "Jiang et al., Anti-Collapse Loss for Deep Metric Learning Based on Coding Rate Metric, IEEE TMM 2024"
    latex = r"""
    L = -R(P) + \nu\,L_{\mathrm{proxy}}

    R(X) = \frac{1}{2} \log\det\left(I + \frac{D}{n\,\epsilon^2} X^{\top} X\right)
    """

    class Config(
        OverConfig,
        over={ProxyAnchor: {"proxy_init": "randn/8"}, ProxyNCA: {"metric": "cosine"}},
        fixed=WITHOUT_MEMORY,
    ):
        schedulable = frozenset({"nu"})
        nu: float = Field(0.0035, gt=0, description="weight of the proxy-based loss; the paper's range: 0.001 to 0.1")
        form: Literal["mini_batch", "all_class", "pair", "none"] = Field(
            "mini_batch",
            description="rows of the coding rate: proxies of the batch's or of all classes, or the batch; "
            "none: no coding rate, the proxy-based loss alone or with language guidance",
        )
        proxy_loss: bool = Field(True, description="false, for the pair form: no proxies and no labels at all")
        epsilon: float = Field(0.5, gt=0, description="distortion that the coding rate allows")
        rate: Literal["log", "exp"] = Field("log", description="-R as printed, or e^(-R) as in the released code")
        guidance_weight: float = Field(0.0, ge=0, description="weight of the language guidance; 0: none")
        guidance_temperature: float = Field(1.0, gt=0, description="temperature of both its softmaxes")
        text_embeddings: str | None = Field(
            None,
            description="of the class names: a .csv file, or MODEL/WEIGHTS of open_clip, as ViT-B-32-quickgelu/openai",
        )

        def idle(self) -> dict[str, tuple[str, ...]]:
            idle: dict[str, tuple[str, ...]] = super().idle()
            if not self.proxy_loss:
                idle |= dict.fromkeys(("nu", "objective", *sorted(self.taken)), ("proxy_loss",))
            if not self.guidance_weight:
                idle |= dict.fromkeys(("guidance_temperature", "text_embeddings"), ("guidance_weight",))
            if self.form == "none":
                idle |= dict.fromkeys(("epsilon", "rate"), ("form",))
            return idle

        @model_validator(mode="after")
        def _consistent(self) -> Self:
            if not self.proxy_loss and self.form != "pair":
                raise ValueError(f"proxy_loss: false is for form pair, the proxies of form {self.form} need their loss")
            if not self.proxy_loss and self.guidance_weight:
                raise ValueError(
                    "guidance_weight: needs the classes, which training with proxy_loss false must not see"
                )
            if self.guidance_weight and self.text_embeddings is None:
                raise ValueError("guidance_weight: needs text_embeddings, a .csv file or a text encoder")
            return self

    config: Config
    base: Baseline | None
    texts: Tensor

    def __init__(self, config: Config, task: Task) -> None:
        super().__init__(config, task)
        self.base = config.base_objective(task) if config.proxy_loss else None
        if self.base is None:
            self.sampler = "uniform"
        if config.guidance_weight:
            self.register_buffer("texts", self._class_texts())
            self.register_load_state_dict_pre_hook(_take_width)  # type: ignore[no-untyped-call]

    def _class_texts(self) -> Tensor:
        """Unit rows (C, T); where a model is only loaded, (C, 0) until its own are there."""
        names, source = self.task.class_names, str(self.config.text_embeddings)
        if not names:
            return torch.zeros(self.task.num_classes, 0)
        is_file = source.lower().endswith(".csv")
        texts = read_texts(Path(source).expanduser(), names) if is_file else encode_texts(source, names)
        return F.normalize(texts, dim=-1)

    def parameter_groups(self, lr: float) -> list[dict[str, Any]]:
        return [] if self.base is None else self.base.parameter_groups(lr)

    def step(self, batch: Batch, network: Network, rng: Generator) -> dict[str, Tensor]:
        outputs, config = network(batch.images), self.config
        z = rows = outputs["embedding"]
        terms: dict[str, Tensor] = {}
        if self.base is not None:
            terms["proxy"] = config.nu * self.base.compare(outputs, batch.labels, rng)
            if config.form != "pair":
                rows = self.base.proxies()
            if config.form == "mini_batch":
                rows = rows[torch.isin(self.base.proxies.labels, batch.labels)]
        if config.form != "none":
            (size, dim), epsilon = rows.shape, config.epsilon
            if config.rate == "exp":
                epsilon = epsilon**0.5 * (1 if config.form == "pair" else dim / size)
            rate = coding_rate(rows, epsilon)
            terms["coding_rate"] = (-rate).exp() if config.rate == "exp" else -rate
        if config.guidance_weight:
            texts = self.texts[batch.labels[:, 0]]
            guidance = language_guidance(z, texts, temperature=config.guidance_temperature)
            terms["guidance"] = config.guidance_weight * guidance
        return terms

    def diagnostics(self, trained: Embedded | None, held_out: Embedded | None) -> Diagnostics:
        """The paper's `coding_rate` of the held-out embeddings, `class_coding_rate`, its mean within classes, their
        `density`, and `proxy_coding_rate` of the last batches; beside them `all_proxies_coding_rate`, of all proxies by
        Eq. 1, and `euclidean_density`. Histograms of the held-out pairs; the proxies' similarities."""
        scalars: dict[str, float] = {}
        arrays, tables, epsilon = {}, {}, self.config.epsilon
        if held_out is not None:
            z, labels = held_out.outputs["embedding"].double(), held_out.labels
            scalars["coding_rate"] = coding_rate(z, epsilon).item()
            scalars["class_coding_rate"] = mean_coding_rate(z, labels, epsilon).item()
            with contextlib.suppress(ValueError):  # not defined for one class, nor for a collapsed embedding space
                scalars["density"] = density(z, labels)
                scalars["euclidean_density"] = euclidean_density(z, labels)
            positive, negative = similarity_histograms(held_out.outputs["embedding"], labels)
            edges = torch.linspace(-1, 1, BINS + 1, dtype=torch.float64).tolist()
            tables["similarities"] = {
                "low": edges[:-1],
                "high": edges[1:],
                "positive_pairs": positive.tolist(),
                "negative_pairs": negative.tolist(),
            }
        if self.base is not None:
            proxies = self.base.proxies().detach().cpu().double()
            scalars["all_proxies_coding_rate"] = coding_rate(proxies, epsilon).item()
            if trained is not None:
                proxy_labels, size = self.base.proxies.labels.cpu(), self.task.batch_size or len(trained.labels)
                rate = batch_proxy_coding_rate(proxies, proxy_labels, trained.labels, size, epsilon)
                scalars["proxy_coding_rate"] = rate
            if len(proxies) <= MATRIX:
                arrays["proxy_similarity"] = cosine_similarity(proxies, proxies).numpy()
        return Diagnostics(scalars, arrays, tables)


def _take_width(method: torch.nn.Module, state: Mapping[str, Tensor], prefix: str, *_: Any) -> None:
    """A saved model brings its own texts, whose width only the file or the encoder knew."""
    if f"{prefix}texts" in state:
        method.texts = method.get_buffer("texts").new_empty(state[f"{prefix}texts"].shape)
