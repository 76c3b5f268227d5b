"""
A worker that takes itself for one on Neuron, run by a real vLLM; it writes down what happens, in order.

Rank 0 has a stand-in for the runtime's TorchScript class, whose second call fails; rank 1 says that it is not on the
device. What is asked of them by name is what vllm-neuron's worker has.
"""

from __future__ import annotations

import importlib
import os
import time
from types import SimpleNamespace
from typing import Any

# By name: neither is installed where types are checked.
torch: Any = importlib.import_module("torch")
CPUWorker: Any = importlib.import_module("vllm.v1.worker.cpu_worker").CPUWorker
USED, FREE = 18993905664, 6775898112


def event(what: str) -> None:
    """Append one line: appends of this size do not mix."""
    descriptor = os.open(os.environ["STAND_IN_EVENTS"], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    os.write(descriptor, f"{os.getpid()} {what}\n".encode())
    os.close(descriptor)


class Runtime:
    """What ``torch.classes.neuron.Runtime`` is on a Neuron machine."""

    calls = 0

    def get_vnc_memory_stats(self) -> tuple[int, int]:
        """Return used and free bytes; fail the second time."""
        Runtime.calls += 1
        event(f"sample {Runtime.calls}")
        if Runtime.calls == 2:
            raise RuntimeError("the stand-in fails")
        return USED + Runtime.calls, FREE - Runtime.calls


class StandInWorker(CPUWorker):  # type: ignore[misc]  # as above
    """A CPU worker that says of itself what one on Neuron would."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        torch.classes.neuron = SimpleNamespace(Runtime=Runtime)
        event(f"worker of rank {self.rank}")

    def _use_neuron_device(self) -> bool:
        return bool(self.rank == 0)

    def compile_or_warm_up_model(self) -> Any:
        """Take a while, as compiling does."""
        event("warm-up begins")
        time.sleep(2)
        result = super().compile_or_warm_up_model()
        event("warm-up returns")
        return result
