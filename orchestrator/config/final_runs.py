"""What a search's final runs may be."""

from typing import Literal

FinalProtocol = Literal["same", "conventional"]
"""The protocol of the trials, or, of a search over folds, the conventional one."""
