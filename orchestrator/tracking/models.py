"""Models in MLflow's format, saved, loaded and registered."""

import json
import logging
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from orchestrator.errors import redact
from orchestrator.tracking.mlflow_store import MLflowStore, quiet_mlflow
from orchestrator.tracking.store import Lost, Refused, TrackingError


def save_mlflow_model(
    model: Any,
    images: Any,
    embeddings: Any,
    folder: Path,
    about: Mapping[str, Any],
    requirements: list[str],
) -> None:
    """Write an MLflow model without pickled code (pt2): with a signature, any batch size, and `images` as example.

    Such a model stays on the device that it was exported on, the CPU. Where there is a GPU, MLflow would ask for it
    there, and refuse it: the model names its device.
    """
    quiet_mlflow()
    import mlflow.pytorch
    from mlflow.models import Model, ModelSignature
    from mlflow.types import Schema, TensorSpec

    # without a name, so that the input is an array and not a dict of one
    schemas = [Schema([TensorSpec(array.dtype, (-1, *array.shape[1:]))]) for array in (images, embeddings)]
    loggers = [logging.getLogger(name) for name in ("mlflow.utils.environment", "mlflow.models.model")]
    before = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.ERROR)
    try:
        mlflow.pytorch.save_model(
            model,
            str(folder),
            signature=ModelSignature(*schemas),
            input_example=images,
            pip_requirements=requirements,  # inferring them would load the model in another process
            serialization_format="pt2",
            metadata=json.loads(json.dumps(about, default=str)),
        )
    finally:
        for logger, level in zip(loggers, before, strict=True):
            logger.setLevel(level)
    facts = Model.load(str(folder))
    facts.flavors["python_function"]["config"] = {"device": "cpu"}
    facts.save(str(folder / "MLmodel"))


def load_mlflow_model(folder: Path) -> Callable[[Any], Any]:
    """The prediction function of the model in a folder, as a server would run it."""
    quiet_mlflow()
    import mlflow.pyfunc

    predict: Callable[[Any], Any] = mlflow.pyfunc.load_model(str(folder)).predict
    return predict


def check_model_names(tracking_uri: str, name: str, alias: str) -> None:
    """TrackingError unless MLflow takes the name of a registered model, and its alias."""
    try:
        MLflowStore(tracking_uri, None).check_model_names(name, alias)
    except Refused as error:
        raise TrackingError(f"{redact(tracking_uri)}: {error}") from None


def register_model(
    tracking_uri: str, artifact_root: Path | None, run_id: str, folder: Path, name: str, alias: str, description: str
) -> str:
    """Register the model of a run (logged now from its folder if necessary) with the alias; returns the version.

    Raises:
        TrackingError: the tracker does not answer, or refuses the name.
    """
    store = MLflowStore(tracking_uri, artifact_root)
    store.connect()
    try:
        return store.register(run_id, folder, name, alias, description)
    except (Refused, Lost) as error:
        raise TrackingError(f"{redact(tracking_uri)}: {error}") from None
