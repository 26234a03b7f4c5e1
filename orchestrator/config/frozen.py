"""Whether the features of a backbone are constant while a training runs, by its settings."""

from orchestrator.config.training import Training

PRECISIONS = ("float32", "full_float32", "tf32", "float64")
"""Whose features are of a type that numpy has."""


def varying_setting(training: Training) -> str:
    """The first setting for which the features of an unchanged image are not constant, or not kept, with its value;
    empty if there is none."""
    if training.warmup_epochs < training.epochs:
        return f"warmup_epochs={training.warmup_epochs} of {training.epochs} epochs: then the backbone is trained"
    varying = {
        "freeze_batch_norm": not training.freeze_batch_norm,
        "precision": training.precision not in PRECISIONS,
        "compile": training.compile,
        "channels_last": training.channels_last,
    }
    return next((f"{key}={getattr(training, key)}" for key, varies in varying.items() if varies), "")
