"""Emoji: the same sign drawn by nine vendors, in colour."""

from collections.abc import Sequence
from pathlib import Path

from orchestrator.data.archives.iconify import iconify_package, read_signs
from orchestrator.data.archives.listing import Archive, Count, Counts, Listing
from orchestrator.registries import NpmTarball

AT_LEAST = 7
"""Vendors that must have drawn a sign."""
PARTS_LEFT_OUT = ("skin-tone", "keycap", "oclock", "thirty", "regional")
BEGINNINGS_LEFT_OUT, ENDS_LEFT_OUT = ("flag-",), ("-low",)
"""Names, or parts of them, of signs that differ from others in a colour, a letter or a hand only."""

SETS = (
    iconify_package("noto", "1.2.9", 3_102_958,
         "DQiuXENbun41ch+XPSV55H9FaWKpHTyz46YIKtSaKYD4fIDDzL1tR6H4np/T38jfrTAeI3rcKF0mqHYeZVAuaw=="),
    iconify_package("noto-v1", "1.2.5", 1_587_591,
         "/DsVMius69Q0fRS53z7QK1TROSuar606jiIx+laXtdsYGMXpf6LtHBx6CGfoo3UHHb/XpBsw+1L1x3eyPqMuVA=="),
    iconify_package("openmoji", "1.2.29", 1_264_633,
         "vXdhkqcXVSO6suy+m9LbcUM3OdVyuNOtpV8/als/WqfkQIRxevL5Geb/g+6GH/Qwnq1OqksEmaDGTCmZ5nFKJQ=="),
    iconify_package("twemoji", "1.2.5", 1_555_888,
         "uKpuIEV0v6K5BW3Mjdyl+XKFVAbbcPxAgifKvEMtZoUZB5+YiY5zaMm2uNNCxyXzAWU9yNLlj41WU6/mvgALsw=="),
    iconify_package("emojione", "1.2.3", 687_690,
         "T9+T3HIbJNLKKsmxYKlaYhvnHYkz/HNYTV7SHCXVZPfeUi4FqskY70YeN8yYAZT8cCv7w5vJxS4Q1m8zb9CMMg=="),
    iconify_package("emojione-v1", "1.2.3", 3_704_153,
         "UjI2VQEXVtGlPBvQuxEizro7QCgBcJDOYwKUupquvvZ8UV4xOlvm45IU82JYWegiAWLerY79gFLMZ26U6Ms+ww=="),
    iconify_package("fluent-emoji-flat", "1.2.6", 1_172_438,
         "RY47RgPb47fYUiyrA64sIOL0+UU02s29sXpNBbIQRBUlPlfNFTKUmZDERGuxDs/7yNGWqQYvuaSYM1M4fRXlUw=="),
    iconify_package("fxemoji", "1.2.2", 1_034_876,
         "UAasRaxzFUKfIGSmLwnoarsssA4LX0VLLuEmplIqM6ZNQqIQRtav8tZ4H1neTlBreXuMQyAifr5jP4kn78DpiQ=="),
    iconify_package("streamline-emojis", "1.2.4", 381_714,
         "iNr9T9XuZVTyQPJO8ZlLxBzPkpi7qMl+z1l0C31vpEMqhPMelth3n7CeWQYtixdetDPdI81yeG4ROqjWpYJE6A=="),
)  # fmt: skip
"""The packages, a vendor each. `fluent-emoji` is left out: a near twin of the flat set."""


def read_emoji(source: Path, sets: Sequence[NpmTarball] = SETS) -> Listing:
    """The sets in a folder of their tarballs: the signs that AT_LEAST of them have under one name, without those that
    are left out."""
    return read_signs(source, sets, AT_LEAST, lambda _, name: None if _is_left_out(name) else name)


def _is_left_out(name: str) -> bool:
    return (
        name.startswith(BEGINNINGS_LEFT_OUT)
        or name.endswith(ENDS_LEFT_OUT)
        or any(part in name for part in PARTS_LEFT_OUT)
    )


EMOJI = Archive(
    name="emoji",
    summary="the same sign drawn by up to nine vendors, in colour",
    origin="https://iconify.design",
    read=read_emoji,
    counts=Counts(Count(6_582, 860)),
    pixels=True,
    packages=SETS,
    needs="resvg_py",
)
