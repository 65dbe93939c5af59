"""`python -m studies.faster`: allreduces that a faster machine makes slower."""

from __future__ import annotations

import sys

from studies.faster import faster
from studies.study import Page, Study

STUDY = Study(
    "faster",
    (Page("faster.md", faster.text, again="check"),),
)

if __name__ == "__main__":
    sys.exit(STUDY.main())
