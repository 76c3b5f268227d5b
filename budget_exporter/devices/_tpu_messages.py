"""
The messages of libtpu's metrics service that are read here, described to protobuf when they are needed.

Source: ``tpu_metric_service.proto``, package ``tpu.monitoring.runtime``, as the official client publishes it (PyPI
tpu-info 0.14.2, Apache-2.0). Only fields that are read are listed; protobuf skips the others. There is no generated
code: what protoc writes is bound to one range of protobuf's versions, and a table of seven messages is shorter. The
pool is one of our own, so that the official client can be loaded beside it. A test holds names and numbers against it.
"""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

__all__ = ["METHOD", "PACKAGE", "SCHEMA", "SIZE", "USED", "Messages", "messages"]

PACKAGE = "tpu.monitoring.runtime"
METHOD = f"/{PACKAGE}.RuntimeMetricService/GetRuntimeMetric"
SIZE = "tpu.runtime.hbm.memory.total.bytes"
USED = "tpu.runtime.hbm.memory.usage.bytes"

SCHEMA: dict[str, tuple[tuple[str, int, str, str], ...]] = {
    # name, number, type (a scalar of protobuf, a message of this table, "*" before it where it repeats), oneof
    "MetricRequest": (("metric_name", 1, "string", ""),),
    "MetricResponse": (("metric", 1, "TPUMetric", ""),),
    "TPUMetric": (("name", 1, "string", ""), ("metrics", 3, "*Metric", "")),
    "Metric": (("attribute", 1, "Attribute", ""), ("gauge", 3, "Gauge", "measure")),
    "Attribute": (("key", 1, "string", ""), ("value", 2, "AttrValue", "")),
    "AttrValue": (("string_attr", 1, "string", "attr"), ("int_attr", 3, "int64", "attr")),
    "Gauge": (
        ("as_double", 1, "double", "value"),
        ("as_int", 2, "int64", "value"),
        ("as_string", 3, "string", "value"),
        ("as_bool", 4, "bool", "value"),
    ),
}


class Messages(NamedTuple):
    """The classes a client needs."""

    request: Any
    response: Any


@functools.cache
def messages() -> Messages:
    """Return the classes; raise ImportError where protobuf is not installed (extra ``tpu``)."""
    from google.protobuf import descriptor_pb2, descriptor_pool, message_factory  # noqa: PLC0415 - only where a TPU is

    field_type = descriptor_pb2.FieldDescriptorProto
    file = descriptor_pb2.FileDescriptorProto(name="budget_exporter/tpu.proto", package=PACKAGE, syntax="proto3")
    for message_name, fields in SCHEMA.items():
        message = file.message_type.add(name=message_name)
        oneofs: list[str] = []
        for name, number, kind, oneof in fields:
            field = message.field.add(name=name, number=number)
            field.label = field_type.LABEL_REPEATED if kind.startswith("*") else field_type.LABEL_OPTIONAL
            bare = kind.removeprefix("*")
            if bare in SCHEMA:
                field.type, field.type_name = field_type.TYPE_MESSAGE, f".{PACKAGE}.{bare}"
            else:
                field.type = field_type.Type.Value(f"TYPE_{bare.upper()}")
            if oneof:
                if oneof not in oneofs:
                    oneofs.append(oneof)
                    message.oneof_decl.add(name=oneof)
                field.oneof_index = oneofs.index(oneof)
    pool = descriptor_pool.DescriptorPool()
    pool.AddSerializedFile(file.SerializeToString())
    classes = (pool.FindMessageTypeByName(f"{PACKAGE}.{name}") for name in ("MetricRequest", "MetricResponse"))
    return Messages(*map(message_factory.GetMessageClass, classes))
