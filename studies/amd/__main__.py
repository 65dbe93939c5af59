"""`python -m studies.amd`: predicted allreduces of AMD's machines beside public tables."""

from __future__ import annotations

import sys

from studies.amd import amd
from studies.study import Page, Study

STUDY = Study("amd", (Page("amd.md", amd.text),))

if __name__ == "__main__":
    sys.exit(STUDY.main())
