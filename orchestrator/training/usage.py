"""What a training takes of its machine."""

import time

import psutil
import torch

MEGABYTE = 2**20


class Usage:
    """What this process takes of its machine, from one question to the next; of several processes, that of rank 0 is
    told. Recorded with each validation, and in MLflow under `system/`.
    """

    def __init__(self, device: torch.device) -> None:
        self.device, self.process = device, psutil.Process()
        self._begin()

    def _begin(self) -> None:
        times = self.process.cpu_times()
        self.began, self.busy = time.monotonic(), times.user + times.system
        if self.device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(self.device)

    def since(self) -> dict[str, float]:
        """Since it was last asked: `cpu_utilization_percentage` (100 is one core), `memory_usage_megabytes` (in the
        machine's memory, at this moment), and on CUDA `gpu_memory_peak_megabytes` (the most that tensors took).
        """
        times = self.process.cpu_times()
        busy, passed = times.user + times.system - self.busy, time.monotonic() - self.began
        usage = {
            "cpu_utilization_percentage": round(100 * busy / passed, 1) if passed > 0 else 0.0,
            "memory_usage_megabytes": round(self.process.memory_info().rss / MEGABYTE, 1),
        }
        if self.device.type == "cuda":
            usage["gpu_memory_peak_megabytes"] = round(torch.cuda.max_memory_allocated(self.device) / MEGABYTE, 1)
        self._begin()
        return usage
