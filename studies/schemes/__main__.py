"""`python -m studies.schemes`: schemes measured on the lab, and all of them side by side, predicted."""

from __future__ import annotations

import sys

from studies.schemes import all_schemes, schemes_measured
from studies.study import Page, Study

STUDY = Study(
    "schemes",
    (
        Page("schemes-compared.md", all_schemes.page, {"schemes-compared.png": all_schemes.draw}, again="check"),
        Page("schemes-measured.md", lambda: schemes_measured.page(schemes_measured.ROOT / "traces"), again="check"),
    ),
)

if __name__ == "__main__":
    sys.exit(STUDY.main())
