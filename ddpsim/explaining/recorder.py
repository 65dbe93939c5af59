"""Dumps of NCCL's flight recorder."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Recorded:
    """What dumps say."""

    def document(self) -> dict[str, object]:
        """Return it as JSON values."""
        return {}
