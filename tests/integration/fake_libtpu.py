"""
A libtpu metrics service made of the official client's own messages (PyPI tpu-info), in a process of its own.

Usage: ``fake_libtpu.py STATE``. Each call is answered by what the JSON file STATE says then: a figure for each device
under ``used``, ``size`` and ``duty``, and in ``delay`` the seconds a call takes. Use is told in reverse order, since
libtpu promises none. It prints its port and serves until its standard input is closed.
"""

from __future__ import annotations

import json
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc
from tpu_info.proto import tpu_metric_service_pb2 as wire, tpu_metric_service_pb2_grpc as service

STATE = Path(sys.argv[1])


class Metrics(service.RuntimeMetricServiceServicer):  # type: ignore[misc]  # generated, without types
    """Answers with the file's figures."""

    def GetRuntimeMetric(self, request: Any, context: Any) -> Any:  # noqa: N802 - the service's name
        state = json.loads(STATE.read_text(encoding="utf-8"))
        time.sleep(state.get("delay", 0))
        gauges = {
            "tpu.runtime.hbm.memory.usage.bytes": [wire.Gauge(as_int=figure) for figure in state["used"]],
            "tpu.runtime.hbm.memory.total.bytes": [wire.Gauge(as_int=figure) for figure in state["size"]],
            "tpu.runtime.tensorcore.dutycycle.percent": [wire.Gauge(as_double=figure) for figure in state["duty"]],
        }.get(request.metric_name)
        if gauges is None:
            context.abort(grpc.StatusCode.NOT_FOUND, f"no metric {request.metric_name}")
        metric = wire.TPUMetric(name=request.metric_name, description="a description that our client skips")
        for device, gauge in reversed(list(enumerate(gauges or ()))):
            point = metric.metrics.add(gauge=gauge)
            point.attribute.key = "device-id"
            point.attribute.value.int_attr = device
            point.timestamp.FromSeconds(int(time.time()))
        return wire.MetricResponse(metric=metric)


def main() -> None:
    """Serve until standard input ends."""
    server = grpc.server(ThreadPoolExecutor(4))
    service.add_RuntimeMetricServiceServicer_to_server(Metrics(), server)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    print(port, flush=True)  # noqa: T201 - the answer of a program
    sys.stdin.read()
    server.stop(None).wait()


main()
