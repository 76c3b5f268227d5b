"""Follow a container of docker: its state, how often it was restarted, how it ended."""

from __future__ import annotations

from budget_exporter.engines._container_supervisor import ContainerSupervisor
from budget_exporter.roots import Roots

__all__ = ["supervisor"]


def supervisor(roots: Roots) -> ContainerSupervisor:
    """Return the supervisor that asks the docker whose sockets lie in ``roots``, with root and without."""
    return ContainerSupervisor("docker", roots)
