"""`python -m studies.convergence`: what fewer synchronisations, and schemes without equal weights, cost in loss."""

from __future__ import annotations

import sys

from studies.convergence import scheme_losses
from studies.study import Page, Study

STUDY = Study(
    "convergence",
    (Page("scheme-losses.md", scheme_losses.text),),
)

if __name__ == "__main__":
    sys.exit(STUDY.main())
