"""`python -m studies.mappings`: published steps of tensor-, pipeline- and expert-parallel training."""

from __future__ import annotations

import sys

from studies.mappings import mappings
from studies.study import Page, Study

STUDY = Study(
    "mappings",
    (Page("mappings.md", mappings.text, again="asked"),),
)

if __name__ == "__main__":
    sys.exit(STUDY.main())
