"""What settings are called where there is room for more than their keys."""

import re
from collections.abc import Iterable

from orchestrator.errors import InputError
from orchestrator.plugins import config_class

LABELS = {
    "lr": "learning rate",
    "lr_step_epochs": "epochs between steps of the learning rate",
    "lr_warmup": "warm-up of the learning rate",
    "lr_schedule": "schedule of the learning rate",
    "backbone_lr_multiplier": "learning-rate factor of the backbone",
    "proxy_lr_multiplier": "learning-rate factor of the proxies",
    "layer_decay": "learning-rate factor per layer",
    "embedding_dim": "embedding size",
    "beta2": "second-moment decay",
    "ema_decay": "decay of averaged weights",
    "lora_rank": "rank of low-rank changes",
    "lora_alpha": "scale of low-rank changes",
    "label_noise": "share of wrong labels",
}
"""Settings of several methods, or of every training, whose keys are not plain words already."""
LONGEST = 44
"""The maximum number of characters of a label that is taken from a description."""
NO_LABEL = re.compile(r"(of|on|put|lam|what|how|the|which|false|-).*|.*(^| )(on|of|to|from|the|is|in)|.{0,3}")
"""Beginnings of descriptions that are no name of their own."""


def label_of(key: str, methods: Iterable[str]) -> str:
    """`learning rate`: of a setting of every training from the table, of a hyperparameter the beginning of its
    description, if all these methods say the same. Empty where the key says it already."""
    if key in LABELS:
        return LABELS[key]
    words_used = set()
    for method in methods:
        try:
            field = config_class(method).model_fields.get(key)
        except InputError:
            continue
        if field is not None:
            words_used.add(re.split(r"[;,:(\[]| = ", field.description or "")[0].strip())
    label = words_used.pop() if len(words_used) == 1 else ""
    plain = label.lower().startswith(key.replace("_", " "))
    return "" if plain or len(label) > LONGEST or NO_LABEL.fullmatch(label) else label
