"""A model as a folder in Hugging Face's layout: its weights in safetensors, and what rebuilds it in config.json.

`model.safetensors` holds backbone and embedding layer only, under the names that config.json's `names` translates, so
that timm can load it where it has the network; `method.safetensors` holds what else was trained, if there is anything;
`trained_on.safetensors` the digests of the pictures that were trained on.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from orchestrator.errors import InputError
from orchestrator.storage.files import read_json
from orchestrator.storage.opening import check_regular
from orchestrator.storage.trial_folder import HUB_WEIGHTS
from orchestrator.training.model_schema import check_folder, check_model

WEIGHTS, REST = HUB_WEIGHTS, "method.safetensors"
TRAINED_ON = "trained_on.safetensors"
CONFIG, CARD, PROGRAM = "config.json", "README.md", "model.pt2"
KEY = "dml_orchestrator"
"""The key of config.json under which this tool's own facts stand."""
FACTS = ("format", "experiment", "dataset_digest", "channels", "num_classes", "num_samples", "kept")
"""What config.json holds of a `model_state`."""
NETWORK = "network."


def split_state(state: Mapping[str, Tensor], names: Mapping[str, str]) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """A learner's state -> the network's under the names of the file, and the rest under its own.

    `names` translates prefixes in the file into prefixes of the learner's names.
    """
    weights, rest = {}, {}
    for key, value in state.items():
        pairs = [(hub_prefix, prefix) for hub_prefix, prefix in names.items() if key.startswith(prefix)]
        value = value.detach().clone().contiguous()
        if pairs and not key.startswith(f"{NETWORK}heads."):
            hub_prefix, prefix = max(pairs, key=lambda pair: len(pair[1]))
            weights[hub_prefix + key.removeprefix(prefix)] = value
        else:
            rest[key] = value
    return weights, rest


def read_hub_folder(folder: Path) -> dict[str, Any]:
    """The `model_state` of such a folder; InputError if it is not this tool's, or damaged."""
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    try:
        config = read_json(folder / CONFIG).get(KEY)
    except (OSError, ValueError, AttributeError) as error:
        raise InputError(f"{folder / CONFIG}: cannot be read ({error}): export the model again") from None
    if not isinstance(config, dict) or not isinstance(config.get("experiment"), dict):
        raise InputError(f"{folder}: holds no model of this tool: {CONFIG} has no '{KEY}'")
    check_folder(config, f"{folder / CONFIG}: {KEY}")
    for name in (WEIGHTS, REST, TRAINED_ON):
        check_regular(folder / name)
    names: dict[str, str] = config["names"]
    learner = {}
    try:
        for key, value in load_file(folder / WEIGHTS).items():
            hub_prefix = max((prefix for prefix in names if key.startswith(prefix)), key=len, default=None)
            if hub_prefix is None:
                raise InputError(f"{folder}: {WEIGHTS} and {CONFIG} are not of one model: {key!r:.60}")
            learner[names[hub_prefix] + key.removeprefix(hub_prefix)] = (
                value / 2 if key == config.get("doubled") else value
            )
        if (folder / REST).is_file():
            learner |= load_file(folder / REST)
        trained = config.get("trained_on")
        if isinstance(trained, dict):
            trained = trained | load_file(folder / TRAINED_ON)
    except (OSError, SafetensorError) as error:
        raise InputError(f"{folder}: its weights cannot be read ({error}): export the model again") from None
    facts = {fact: config[fact] for fact in FACTS if fact in config} | (
        {} if trained is None else {"trained_on": trained}
    )
    return check_model(facts | {"learner": learner}, str(folder))
