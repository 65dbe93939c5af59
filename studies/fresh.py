"""The seed of random cases: a new one each time, which `make check` prints, or the one that is asked for."""

from __future__ import annotations

import os
import time


def seed() -> int:
    """Return what STUDIES_SEED says, else the seconds since 1970, which processes started together may not share."""
    return int(os.environ.get("STUDIES_SEED") or time.time())
