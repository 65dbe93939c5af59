"""`python -m studies.amd`: allreduces and steps of AMD's machines beside public ones."""

from __future__ import annotations

import sys

from studies.amd import amd, steps
from studies.study import Page, Study

STUDY = Study("amd", (Page("amd.md", amd.text), Page("steps.md", steps.text)))

if __name__ == "__main__":
    sys.exit(STUDY.main())
