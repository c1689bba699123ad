"""What the driver says of the GPU while the server works: its use and its power, ten times a second."""

import threading
from types import TracebackType
from typing import Any, Self

SAMPLE_S = 0.1


class Meter:
    """Means since the last reset. Without NVIDIA's library or a GPU there are none."""

    def __init__(self) -> None:
        self._stop = threading.Event()
        self._seen: list[tuple[int, float]] = []
        self._thread = threading.Thread(target=self._run, name="meter", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()
        self._thread.join()

    def reset(self) -> None:
        self._seen = []

    def means(self) -> dict[str, float]:
        """`gpu_pct`: share of time in which a kernel ran, by NVML; `watts`."""
        seen = self._seen
        if not seen:
            return {}
        used, power = (sum(column) / len(seen) for column in zip(*seen, strict=True))
        return {"gpu_pct": round(used, 1), "watts": round(power, 1), "gpu_samples": len(seen)}

    def _run(self) -> None:
        try:
            import pynvml
        except ImportError:
            return
        nvml: Any = pynvml
        try:
            nvml.nvmlInit()
            device = nvml.nvmlDeviceGetHandleByIndex(0)
        except nvml.NVMLError:
            return
        while not self._stop.wait(SAMPLE_S):
            used = nvml.nvmlDeviceGetUtilizationRates(device).gpu
            self._seen.append((used, nvml.nvmlDeviceGetPowerUsage(device) / 1000))
        nvml.nvmlShutdown()
