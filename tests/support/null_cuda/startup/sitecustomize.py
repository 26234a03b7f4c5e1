"""Imported by each Python process on the null device, as its folder is on PYTHONPATH: torch without cuDNN."""

import importlib.abc
import importlib.machinery
import sys
from collections.abc import Sequence
from types import ModuleType


class WithoutCuDNN(importlib.abc.MetaPathFinder):
    """Loads torch.backends.cudnn as usual and turns cuDNN off: it needs a device."""

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if name != "torch.backends.cudnn":
            return None
        sys.meta_path.remove(self)
        sys.modules["torch"]._C._set_cudnn_enabled(False)
        sys.modules["torch"]._C._set_sdp_use_cudnn(False)  # attention asks another switch
        return None


sys.meta_path.insert(0, WithoutCuDNN())
