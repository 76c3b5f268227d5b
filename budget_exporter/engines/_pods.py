"""What an engine in a Kubernetes pod is called: its container's name, by the kubelet's links or its own environment."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

from budget_exporter.engines.supervisor import Supervised

__all__ = ["ENVIRON", "PodNames"]

ENVIRON = frozenset({"CONTAINER_NAME", "KUBERNETES_SERVICE_HOST"})
"""Variables that are looked at and go no further. The kubelet gives every container the second; the downward API has
no field for a container's name, so the first is one that the pod's author sets."""
_LINKS = "var/log/containers"
_NAME = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?")
"""A container's name is a DNS label (RFC 1123)."""


class PodNames:
    """
    The names of containers by their ids; blocking.

    On the host the kubelet keeps ``/var/log/containers/POD_NAMESPACE_CONTAINER-ID.log``; what was found is kept until
    the container is gone.
    """

    def __init__(self, rootfs: Path) -> None:
        self._links = rootfs / _LINKS
        self._found: dict[str, str] = {}

    def told(self, by: Supervised, environ: Mapping[str, str] | None) -> Supervised:
        """Return ``by`` with what is known of the pod; ``environ`` holds ``ENVIRON``, None where it may not be read."""
        said = environ or {}
        if by.supervisor == "none" and "KUBERNETES_SERVICE_HOST" in said:
            # In a PID namespace that a pod's containers share, each has a cgroup namespace of its own.
            by = by._replace(supervisor="kubernetes")
        if by.supervisor != "kubernetes" or by.container is not None:
            return by
        name = said.get("CONTAINER_NAME") or ""
        return by._replace(container=self._linked(by.container_id) or (name if _NAME.fullmatch(name) else None))

    def keep(self, identities: frozenset[str]) -> None:
        """Forget all other containers."""
        self._found = {identity: name for identity, name in self._found.items() if identity in identities}

    def _linked(self, identity: str | None) -> str | None:
        if identity is None or identity in self._found:
            return self._found.get(identity or "")
        try:
            link = next(self._links.glob(f"*_*_*-{identity}.log"), None)
        except OSError:
            return None
        name = link.name.removesuffix(f"-{identity}.log").split("_", 2)[2] if link is not None else ""
        if not _NAME.fullmatch(name):
            return None
        self._found[identity] = name
        return name
