"""`python -m studies.estimates`: estimated against published steps of one GPU."""

from __future__ import annotations

import sys

from studies.estimates import estimates
from studies.study import Page, Study

STUDY = Study(
    "estimates",
    (Page("estimates.md", estimates.text, again="check"),),
)

if __name__ == "__main__":
    sys.exit(STUDY.main())
