"""TensorBoard: a folder of event files for each trial."""

from orchestrator.tracking.loggers.base import Logger, LoggerStore
from orchestrator.tracking.projection import MetricPoint
from orchestrator.tracking.store import Lost


class TensorBoardStore(LoggerStore):
    """Event files in `folder`/SEARCH/TRIAL; a later call adds a file."""

    def check(self, run_id: str) -> None:
        if not (self.folder / run_id).is_dir():
            raise Lost(f"no folder {self.folder / run_id}")

    def log(self, run_id: str, points: list[MetricPoint], params: dict[str, str], tags: dict[str, str]) -> None:
        from tensorboardX import SummaryWriter

        with SummaryWriter(str(self.folder / run_id), write_to_disk=True) as writer:
            for point in points:
                writer.add_scalar(point.key, point.value, point.step, walltime=point.timestamp / 1000)
            if params:  # a row of the table of hyperparameters, beside every curve of the run
                from tensorboardX.summary import hparams

                writer.file_writer.add_summary(hparams({name: _number(text) for name, text in params.items()}, {})[1])
            for name, values in (("params", params), ("tags", tags)):
                if values:
                    rows = "\n".join(f"    {key}: {value}" for key, value in values.items())
                    writer.add_text(name, rows)  # indented: shown as it is


def _number(text: str) -> float | str:
    """A setting's value as its column's sort needs it."""
    try:
        return float(text)
    except ValueError:
        return text


TENSORBOARD = Logger("tensorboard", "tensorboardX", "tensorboard --logdir {folder}", TensorBoardStore)
