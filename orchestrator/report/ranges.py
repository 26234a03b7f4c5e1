"""The ranges of a next search: beyond an end, or where the best trials crowd."""

import math
from collections.abc import Mapping
from typing import Any

from orchestrator.report.settings import Searched, limits
from orchestrator.report.widening import Crowd

WIDE = 10.0
"""Positive values that lie further apart than this factor are searched on a logarithmic scale."""

Range = Mapping[str, Any]
"""`low`, `high`, and where they are, `step` and `log`, as a search file has them."""


def shift_range(setting: Searched, settings: Mapping[str, Any], *, grid: bool = False) -> Range | list[Any] | None:
    """The range moved by half its width beyond the end where the best value is: from its middle to as far outside. As
    far as the setting's own limits allow, on the range's scale; on a logarithmic one where half a width below the low
    end is not above zero, and the setting must be. Of a list of numbers, the list with one more; of a grid's, that one
    alone. None where there is no room."""
    parameter, best = setting.parameter, setting.best
    if parameter is None or setting.edge is None:
        return None
    bounds, up = limits(setting.key, settings), setting.edge == "high"
    if parameter.kind == "categorical":
        return _one_more(sorted(parameter.choices), up, bounds, grid=grid)
    low, high = parameter.low, parameter.high
    log = parameter.log
    if not up and not log and low > 0 and low - (high - low) / 2 <= 0 and _positive(bounds):
        return _range(parameter.kind, low / WIDE, (low + high) / 2, None, log=True)
    if log:
        root = math.sqrt(high / low)
        new = (low * root, high * root) if up else (low / root, high / root)
    else:
        half = (high - low) / 2
        if parameter.step:
            half = max(1, round(half / parameter.step)) * parameter.step
        new = (low + half, high + half) if up else (low - half, high - half)
    least, most = _inside(bounds, parameter.kind)
    ends = max(new[0], least), min(new[1], most)
    if not ends[0] < ends[1] or (ends[1] <= high if up else ends[0] >= low):
        return None
    result = _range(parameter.kind, *ends, parameter.step, log=log)
    if not result["low"] <= best <= result["high"]:  # by rounding
        return None
    return result


def _positive(bounds: Mapping[str, float]) -> bool:
    return bounds.get("gt", -1) >= 0 or bounds.get("ge", -1) > 0


def _inside(bounds: Mapping[str, float], kind: str) -> tuple[float, float]:
    """The least and the largest value that limits allow; a limit that is not allowed itself is left by a thousandth."""
    least, most = bounds.get("ge", -math.inf), bounds.get("le", math.inf)
    if "gt" in bounds:
        least = bounds["gt"] + (1 if kind == "int" else 1e-3 * (abs(bounds["gt"]) or 1))
    if "lt" in bounds:
        most = bounds["lt"] - (1 if kind == "int" else 1e-3 * (abs(bounds["lt"]) or 1))
    return least, most


def _one_more(values: list[Any], up: bool, bounds: Mapping[str, float], *, grid: bool) -> list[Any] | None:
    """The list, and the number that continues it at one end: by the last factor where all are positive and grow by
    factors, else by the last difference."""
    end, inner = (values[-1], values[-2]) if up else (values[0], values[1])
    geometric = values[0] > 0 and len(values) > 2 and values[2] * values[0] == values[1] ** 2
    geometric = geometric or (values[0] > 0 and values[1] / values[0] >= 2)
    end_value = end * end / inner if geometric else 2 * end - inner
    whole = all(isinstance(value, int) for value in values)
    end_value = round(end_value) if whole else float(f"{end_value:.3g}")
    least, most = _inside(bounds, "int" if whole else "float")
    if not least <= end_value <= most or end_value in values:
        return None
    return [end_value] if grid else ([*values, end_value] if up else [end_value, *values])


def narrow_range(crowd: Crowd) -> Range:
    """The fifth of the range that a crowd lies in; on a logarithmic scale from half the smallest of its values where
    that end is the setting's own limit, and the values of the crowd differ by more than a factor of WIDE."""
    parameter = crowd.setting.parameter
    assert parameter is not None
    low, high, log = crowd.low, crowd.high, parameter.log
    positive = [value for value in crowd.values if value > 0]
    if crowd.logarithmic and positive and len(positive) == len(crowd.values) and max(positive) >= WIDE * min(positive):
        low, log = min(positive) / 2, True
    return _range(parameter.kind, low, high, None if log else parameter.step, log=log)


def _range(kind: str, low: float, high: float, step: float | None, *, log: bool) -> dict[str, Any]:
    """In three digits, outwards to whole numbers where the setting is one."""
    fields: dict[str, Any] = {"low": float(f"{low:.3g}"), "high": float(f"{high:.3g}")}
    if kind == "int":
        fields = {"low": max(1 if log else -math.inf, math.floor(low)), "high": math.ceil(high)}
        fields = {name: int(value) for name, value in fields.items()}
    if step:
        fields = {"low": low, "high": high, "step": int(step) if kind == "int" else step}
        fields = {name: int(value) if kind == "int" else float(f"{value:.10g}") for name, value in fields.items()}
    return fields | ({"log": True} if log else {})
