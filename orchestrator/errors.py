"""The errors that a user reads: one line each, and the exit code that goes with it."""

import difflib
from collections.abc import Iterable


class InputError(ValueError):
    """Bad input. The message is one line naming the file or option, the value, and what would be right.

    The command line prints it without a traceback and exits with code 2.
    """


class TrainingFailed(RuntimeError):
    """A training that cannot go on (its loss is not finite, say). Ends its trial; the search goes on."""


def suggestion(name: object, known: Iterable[str]) -> str:
    """` (did you mean 'delta'?)` for a misspelling of a known name, otherwise the list of known names."""
    names = sorted(known)
    close = difflib.get_close_matches(str(name), names, n=1, cutoff=0.6)
    if close:
        return f" (did you mean '{close[0]}'?)"
    return f" (known: {', '.join(names)})" if names else ""
