"""Other programs that a journal is written for, besides MLflow: a file each, and its line in the table."""

from orchestrator.tracking.loggers.base import Logger
from orchestrator.tracking.loggers.tensorboard import TENSORBOARD
from orchestrator.tracking.loggers.wandb import WANDB

LOGGERS: dict[str, Logger] = {logger.name: logger for logger in (TENSORBOARD, WANDB)}
