"""`python -m studies.bands`: how often bands hold on what had no part in them."""

from __future__ import annotations

import sys

from studies.bands import coverage
from studies.study import Page, Study

STUDY = Study(
    "bands",
    (Page("bands.md", coverage.text, again="asked"),),
)

if __name__ == "__main__":
    sys.exit(STUDY.main())
