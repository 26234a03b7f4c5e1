"""Importances of settings by fANOVA: how much those mattered that have an effect beyond chance (evidence.py)."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from orchestrator.report.evidence import Evidence
from orchestrator.report.settings import Searched
from orchestrator.report.standing import Comparable
from orchestrator.text import capitalize_first, pluralize

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]

ENOUGH_TRIALS = 10
TRIALS_PER_SETTING = 4
"""With fewer trials, or fewer for each searched setting, importances would be noise."""
MAX_TRIALS = 200
"""The maximum number of trials for the forests: their time grows with the trials."""
TREES = 16
RESAMPLES = 16
PLACES, BACKGROUND = 12, 64
"""The number of places of its range at which a setting is evaluated, and of values of all others at each."""


@dataclass(frozen=True)
class Importances:
    """Each setting's share of the objective's variance, or why there is none; and which of them is beyond chance."""

    evidence: Evidence
    shares: Mapping[str, tuple[float, float]]
    """Share, and its standard deviation over resampled trials; largest first."""
    basis: str
    """What was explained, in words, or why nothing could be."""

    @property
    def real_effects(self) -> list[str]:
        """The settings with an effect beyond chance, largest share first; of the others nothing is known."""
        above = self.evidence.real_effects
        return [*(key for key in self.shares if key in above), *(key for key in above if key not in self.shares)]

    @property
    def answer(self) -> str:
        """What mattered, in a sentence or two."""
        return self.describe(self.basis)

    def describe(self, basis: str) -> str:
        """The same, with other words for what was explained."""
        if not self.evidence.effects:
            return _sentence(self.basis)
        if not (above := self.real_effects):
            return _sentence(self.evidence.text)
        top = ", ".join(f"{key} ({self._share_text(key)})" for key in above)
        rest = len(self.evidence.effects) - len(above)
        others = "setting" if rest == 1 else f"{rest} settings"
        below = f" The other {others} cannot be told from chance." if rest else ""
        return f"{top}{f': {basis}' if self.shares else ''}.{below}"

    def _share_text(self, key: str) -> str:
        p = f"p = {self.evidence.by_key[key].corrected:.2g}"
        return f"{self.shares[key][0]:.0%} ± {self.shares[key][1]:.0%}, {p}" if key in self.shares else p


def _sentence(text: str) -> str:
    return f"{capitalize_first(text)}."


def trials_needed(searched: Sequence[Searched]) -> int:
    """The number of trials needed to explain so many settings."""
    return max(ENOUGH_TRIALS, TRIALS_PER_SETTING * sum(setting.varies for setting in searched))


def importances_of(
    searched: Sequence[Searched],
    comparable: Comparable,
    params: Mapping[str, Mapping[str, Any]],
    evidence: Evidence,
) -> Importances:
    """The importance of each setting that all compared trials have, from these trials, whose points are `params`."""
    varied, basis = [setting for setting in searched if setting.varies], comparable.basis
    if not varied:
        return Importances(evidence, {}, "no importances: one value of each setting was tried")
    if len(varied) == 1:
        return Importances(evidence, {}, f"no importances: {varied[0].key} alone was varied")
    ids = list(comparable.values)
    if len(ids) < trials_needed(searched):
        return Importances(
            evidence,
            {},
            f"too few trials for importances: {len(ids)} can be compared, and for "
            f"{pluralize(len(varied), 'setting')} {trials_needed(searched)} are needed",
        )
    if len(ids) > MAX_TRIALS:
        ids = [ids[i * len(ids) // MAX_TRIALS] for i in range(MAX_TRIALS)]
        basis += f" ({MAX_TRIALS} of them, evenly from best to worst)"
    common = [setting for setting in varied if all(setting.key in params[name] for name in ids)]
    values = [comparable.values[name] for name in ids]
    if len(common) < 2 or len(set(values)) < 2:
        return Importances(
            evidence, {}, "no importances: the objective does not vary, or no two settings are in every trial"
        )
    shares = explain(common, [params[name] for name in ids], values)
    method_text = f"share of the variance of {basis}, that each explains by itself; fANOVA, ± over trials drawn again"
    return Importances(evidence, shares, method_text)


def explain(
    settings: Sequence[Searched], points: Sequence[Mapping[str, Any]], values: Sequence[float]
) -> dict[str, tuple[float, float]]:
    """By fANOVA over a random forest f, each setting's main effect Var_i(E[f | setting i]) / Var(values), expectations
    over the space; and its standard deviation over bootstrap samples of the trials, largest share first.

    Source: Hutter, Hoos and Leyton-Brown, An Efficient Approach for Assessing Hyperparameter Importance, ICML 2014.
    """
    import numpy as np
    from sklearn.ensemble import RandomForestRegressor

    draw = np.random.default_rng(0)
    columns = [_columns(setting, [point[setting.key] for point in points]) for setting in settings]
    matrix = np.hstack(columns)
    ends = np.cumsum([0, *(block.shape[1] for block in columns)])
    rows, counts = [], []
    for place, setting in enumerate(settings):
        at = _places(setting, columns[place])
        others = np.hstack([_draw(s, block, draw) for s, block in zip(settings, columns, strict=True)])
        tried = np.tile(others, (len(at), 1))
        tried[:, ends[place] : ends[place + 1]] = np.repeat(at, BACKGROUND, axis=0)
        rows.append(tried)
        counts.append(len(at))
    space, cuts = np.vstack(rows), np.cumsum([BACKGROUND * count for count in counts])[:-1]

    def shares(x: "Floats", y: "Floats", seed: int) -> "Floats":
        if (variance := float(np.var(y))) == 0:
            return np.zeros(len(settings))
        forest = RandomForestRegressor(TREES, random_state=seed).fit(x, y)
        parts = np.split(forest.predict(space), cuts)
        effects = [np.var(part.reshape(-1, BACKGROUND).mean(axis=1)) for part in parts]
        return np.minimum(1.0, np.asarray(effects) / variance)

    y = np.asarray(values, dtype=float)
    result = shares(matrix, y, 0)
    again = [draw.integers(len(y), size=len(y)) for _ in range(RESAMPLES)]
    spread = np.std([shares(matrix[which], y[which], seed) for seed, which in enumerate(again, 1)], axis=0, ddof=1)
    order = sorted(range(len(settings)), key=lambda place: -result[place])
    return {settings[place].key: (float(result[place]), float(spread[place])) for place in order}


def _columns(setting: Searched, values: Sequence[Any]) -> "Floats":
    """Numbers as their place in the range, 0 to 1, or among the values of a list; other choices one-hot."""
    import numpy as np

    if setting.parameter is not None and setting.parameter.kind != "categorical":
        return np.array([[setting.place(value)] for value in values])
    known = list(setting.values)
    places = [known.index(value) for value in values]
    if setting.numeric:
        return np.array([[place / (len(known) - 1)] for place in places])
    return np.eye(len(known))[places]


def _places(setting: Searched, column: "Floats") -> "Floats":
    """Where a setting is evaluated: evenly over a range, or at each choice."""
    import numpy as np

    if setting.parameter is not None and setting.parameter.kind != "categorical":
        return (np.arange(PLACES)[:, None] + 0.5) / PLACES
    return np.unique(column, axis=0)


def _draw(setting: Searched, column: "Floats", draw: "np.random.Generator") -> "Floats":
    """Values of a setting, drawn uniformly."""
    if setting.parameter is not None and setting.parameter.kind != "categorical":
        return draw.random((BACKGROUND, 1))
    places = _places(setting, column)
    return places[draw.integers(len(places), size=BACKGROUND)]
