"""Values, parameters, counts and durations as text."""

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any


def params_text(params: Mapping[str, Any]) -> str:
    """`alpha 3.1, delta 0.24`"""
    return ", ".join(f"{key} {value_text(value)}" for key, value in params.items())


def value_text(value: Any) -> str:
    """A setting's value, with numbers to four digits."""
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def format_assignments(names: Iterable[str], values: Mapping[str, Any]) -> str:
    """`references="proxies", share=0.5`: some of the values, as JSON."""
    return ", ".join(f"{name}={json.dumps(values[name])}" for name in names)


def pluralize(number: int, noun: str, plural: str | None = None) -> str:
    """`1 trial`, `2 trials`; `2 classes` with the plural given."""
    return f"{number} {noun if number == 1 else plural or noun + 's'}"


def counted_amount(amount: float, noun: str) -> str:
    """`1 epoch`, `2.5 epochs`"""
    return f"{amount:g} {noun if amount == 1 else noun + 's'}"


def capitalize_first(text: str) -> str:
    """With a capital letter first, and the rest as it is."""
    return text[:1].upper() + text[1:]


def join_names(names: Sequence[str], last: str = " or ") -> str:
    """`tpe, random or grid`"""
    return last.join(filter(None, [", ".join(names[:-1]), *names[-1:]]))


def duration(seconds: float) -> str:
    """`1:02:03` or `2:03`"""
    minutes, rest = divmod(int(max(0, seconds)), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"


def span(seconds: float) -> str:
    """A time in its two largest units: `0.4 s`, `12 s`, `2 min 24 s`, `3 h 5 min`, `2 d 4 h`."""
    if seconds < 10:
        return f"{max(0.0, seconds):.1f} s"
    for unit, size, inner, each in (("d", 86400, "h", 3600), ("h", 3600, "min", 60), ("min", 60, "s", 1)):
        whole, rest = divmod(round(seconds / each), size // each)
        if whole:
            return f"{whole} {unit}" + (f" {rest} {inner}" if rest else "")
    return f"{round(seconds)} s"
