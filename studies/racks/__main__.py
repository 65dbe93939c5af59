"""`python -m studies.racks`: predicted allreduces of racks beside public tables."""

from __future__ import annotations

import sys

from studies.racks import racks
from studies.study import Page, Study

STUDY = Study("racks", (Page("racks.md", racks.text),))

if __name__ == "__main__":
    sys.exit(STUDY.main())
