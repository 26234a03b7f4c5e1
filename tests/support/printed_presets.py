"""The settings that the papers print."""

import fnmatch
import itertools
from pathlib import Path

from orchestrator.config.files import read_yaml
from orchestrator.config.presets import presets

ROOT = Path(__file__).parents[2]


PRINTED = read_yaml(ROOT / "tests" / "printed_settings.yaml")["groups"]


def meant(patterns: str) -> list[str]:
    """The presets that these patterns name, less those of a pattern that begins with a minus."""
    words = patterns.split()
    wanted = {word: fnmatch.filter(presets(), word.removeprefix("-")) for word in words}
    assert all(wanted.values()), f"no preset is meant by one of {patterns}"
    left_out = {name for word in words if word.startswith("-") for name in wanted[word]}
    return [name for name in dict.fromkeys(itertools.chain(*wanted.values())) if name not in left_out]
