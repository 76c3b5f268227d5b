"""
Learn when a worker's warm-up has ended, without importing anything of vLLM's.

Every executor holds its worker in a ``WorkerWrapperBase`` and calls ``compile_or_warm_up_model`` through it; the
wrapper hands on what it lacks, so that a method of that name on its class is called in the worker's place.
Source: vLLM 0.8.5 to 0.10 ``worker/worker_base.py``, 0.9 to 0.33 ``v1/worker/worker_base.py``.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable
from functools import wraps
from importlib.abc import MetaPathFinder
from typing import Any

__all__ = ["after"]

_MODULES = ("vllm.v1.worker.worker_base", "vllm.worker.worker_base")
_CLASS, _METHOD = "WorkerWrapperBase", "compile_or_warm_up_model"
_MARK = "_budget_exporter_neuron_hook"

Start = Callable[[Any], object]


def after(start: Start) -> None:
    """
    Have ``start`` called with each worker of this process whose warm-up has returned; doing it again changes nothing.

    The module that holds the wrapper may be there already (in a worker that was spawned) or be imported later (in a
    process that forks the worker, which inherits what is done here).
    """
    there = [sys.modules[name] for name in _MODULES if name in sys.modules]
    if any(_wrap(module, start) for module in there) or any(isinstance(each, _Waiting) for each in sys.meta_path):
        return
    sys.meta_path.insert(0, _Waiting(set(_MODULES) - sys.modules.keys(), start))


def _wrap(module: Any, start: Start) -> bool:
    """Return whether the wrapper's class is in ``module``; in some releases it is in the other one."""
    holder = getattr(module, _CLASS, None)
    if holder is None or _MARK in vars(holder):
        return holder is not None
    own = getattr(holder, _METHOD, None)

    def compile_or_warm_up_model(self: Any, *args: Any, **kwargs: Any) -> Any:
        result = getattr(self.worker, _METHOD)(*args, **kwargs) if own is None else own(self, *args, **kwargs)
        start(self.worker)
        return result

    setattr(holder, _METHOD, compile_or_warm_up_model if own is None else wraps(own)(compile_or_warm_up_model))
    setattr(holder, _MARK, True)
    return True


class _Waiting(MetaPathFinder):
    """Find the modules as everybody else does, and wrap what they define once they were run."""

    def __init__(self, names: set[str], start: Start) -> None:
        self._names = names
        self._start = start

    def find_spec(self, fullname: str, path: Any = None, target: Any = None) -> Any:
        """Return the module's spec as the other finders have it; None for all modules but those waited for."""
        if fullname not in self._names:
            return None
        self._names.discard(fullname)
        for finder in list(sys.meta_path):
            find = None if finder is self else getattr(finder, "find_spec", None)
            spec = find(fullname, path, target) if find else None
            if spec is not None:
                self._see(spec, fullname)
                return spec
        return None

    def _see(self, spec: Any, fullname: str) -> None:
        run = getattr(spec.loader, "exec_module", None)
        if run is None:
            return

        def exec_module(module: Any) -> None:
            run(module)
            # A loader may be shared, as that of a zip file is; and the import of vLLM's module comes first.
            if module.__name__ == fullname:
                with contextlib.suppress(Exception):
                    self._end(found=_wrap(module, self._start))

        with contextlib.suppress(AttributeError):
            spec.loader.exec_module = exec_module

    def _end(self, *, found: bool) -> None:
        if (found or not self._names) and self in sys.meta_path:
            sys.meta_path.remove(self)
