"""A synthetic host with TPU chips, and a metrics service in this process that says what a test wants it to."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import grpc.aio

from budget_exporter.demo._tree_files import write
from budget_exporter.devices._tpu_messages import PACKAGE, SIZE, USED, messages
from budget_exporter.roots import Roots

__all__ = ["V6E_SIZE", "Service", "lay_function", "listening", "tpu_roots"]

V6E_SIZE = 33550237696
Point = tuple[Mapping[str, Any], Mapping[str, Any]]
"""What an attribute's value and a gauge are made of."""


def lay_function(
    sysfs: Path, pci: str, device: str, subsystem: str = "0x0000", kind: str = "0x120000", vendor: str = "0x1ae0"
) -> Path:
    """Lay one PCI function as the kernel does; return its directory."""
    directory = sysfs / "bus/pci/devices" / pci
    for name, text in (("vendor", vendor), ("device", device), ("subsystem_device", subsystem), ("class", kind)):
        write(directory / name, text)
    driver = sysfs / "bus/pci/drivers/vfio-pci"
    driver.mkdir(parents=True, exist_ok=True)
    (directory / "driver").symlink_to(driver)
    return directory


def tpu_roots(root: Path, chips: int = 1, device: str = "0x006f") -> Roots:
    """Return the roots of a host with so many chips and the network card of a machine at Google."""
    (root / "host/dev").mkdir(parents=True)
    lay_function(root / "sys", "0000:00:03.0", "0x0042", kind="0x020000")
    for chip in range(chips):
        lay_function(root / "sys", f"0000:00:0{4 + chip}.0", device)
    return Roots(sysfs=root / "sys", procfs=root / "proc", rootfs=root / "host")


class Service:
    """What the service says: points of each metric; ``hang`` makes it silent, ``code`` makes it fail."""

    def __init__(self, *used: int, size: int = V6E_SIZE) -> None:
        self.port = 0
        self.calls = 0
        self.hang = False
        self.code: grpc.StatusCode | None = None
        self.name: str | None = None
        self.points: dict[str, Sequence[Point]] = {
            USED: [({"int_attr": at}, {"as_int": figure}) for at, figure in enumerate(used)][::-1],
            SIZE: [({"int_attr": at}, {"as_int": size}) for at in range(len(used))],
        }
        self.key = "device-id"

    async def answer(self, request: Any, context: Any) -> Any:
        self.calls += 1
        if self.hang:
            await asyncio.Event().wait()
        if self.code is not None:
            await context.abort(self.code, "as the test wants it")
        response = messages().response()
        response.metric.name = request.metric_name if self.name is None else self.name
        for attribute, gauge in self.points[request.metric_name]:
            point = response.metric.metrics.add()
            point.attribute.key = self.key
            for field, value in attribute.items():
                setattr(point.attribute.value, field, value)
            for field, value in gauge.items():
                setattr(point.gauge, field, value)
        return response


@asynccontextmanager
async def listening(service: Service, port: int = 0) -> AsyncIterator[Service]:
    """Serve on loopback while the context lasts, at a free port by default."""
    request, response = messages()
    handler = grpc.unary_unary_rpc_method_handler(
        service.answer, request_deserializer=request.FromString, response_serializer=response.SerializeToString
    )
    server = grpc.aio.server()
    name = f"{PACKAGE}.RuntimeMetricService"
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(name, {"GetRuntimeMetric": handler}),))
    service.port = server.add_insecure_port(f"127.0.0.1:{port}")
    await server.start()
    try:
        yield service
    finally:
        await server.stop(grace=None)
