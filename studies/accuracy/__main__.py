"""`python -m studies.accuracy`: predicted against measured tables of collectives."""

from __future__ import annotations

import sys

from studies.accuracy import accuracy, operations
from studies.study import Page, Study

STUDY = Study(
    "accuracy",
    (Page("accuracy.md", accuracy.text, again="asked"), Page("operations.md", operations.text)),
)

if __name__ == "__main__":
    sys.exit(STUDY.main())
