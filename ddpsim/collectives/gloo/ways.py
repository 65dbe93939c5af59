"""Gloo's ways between any two ranks: TCP inside a machine and by each node's first NIC between nodes."""

from __future__ import annotations

from ddpsim.collectives.host_paths import HostPaths


class GlooPaths(HostPaths):
    """Finds the ways that gloo's messages take between ranks of a placement, a handshake before each."""

    backend = "gloo"
    streams_per_group = 2
