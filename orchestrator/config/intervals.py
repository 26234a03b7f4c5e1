"""Settings that say how often: a number and a unit, such as '2 epochs', '25 steps' or '10 minutes'."""

import re

EVERY = re.compile(r"([1-9][0-9]{0,8}) (epoch|step)s?")
EVERY_TIME = re.compile(r"([1-9][0-9]{0,8}) (second|minute|hour)s?")
CHECKPOINT_EVERY = "10 minutes"
"""The default of `checkpoint_every`."""
SECONDS = {"second": 1, "minute": 60, "hour": 3600}


def check_steps(text: str) -> str:
    """The text; ValueError if it is no number of epochs or steps."""
    if not EVERY.fullmatch(text):
        raise ValueError("should read like '1 epoch' or '25 steps', with a number from 1 to 999999999")
    return text


def check_seconds(text: str) -> str:
    """The text; ValueError if it is no number of seconds, minutes or hours."""
    if not EVERY_TIME.fullmatch(text):
        raise ValueError("should read like '30 seconds', '10 minutes' or '1 hour', with a number from 1 to 999999999")
    return text


def parse_steps(text: str, steps_per_epoch: int) -> int:
    """The steps of a setting such as '2 epochs' or '25 steps'."""
    match = EVERY.fullmatch(text)
    assert match is not None
    return int(match[1]) * (steps_per_epoch if match[2] == "epoch" else 1)


def parse_seconds(text: str) -> int:
    """The seconds of a setting such as '10 minutes'."""
    match = EVERY_TIME.fullmatch(text)
    assert match is not None
    return int(match[1]) * SECONDS[match[2]]
