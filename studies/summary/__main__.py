"""`python -m studies.summary`: the documentation's page on accuracy, by system."""

from __future__ import annotations

import sys

from studies.study import Page, Study
from studies.summary.summary import DOCUMENTATION, text

STUDY = Study("summary", (Page("accuracy.md", text),), DOCUMENTATION)

if __name__ == "__main__":
    sys.exit(STUDY.main())
