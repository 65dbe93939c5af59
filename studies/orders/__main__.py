"""`python -m studies.orders`: what ideas on the order of gradients are worth."""

from __future__ import annotations

import sys
from pathlib import Path

from ddpsim.report.plots import plot_gains
from studies.orders import order_findings
from studies.study import Page, Study


def _draw(path: Path) -> None:
    plot_gains(order_findings.kept()["rows"], path)


STUDY = Study(
    "orders",
    (Page("order-findings.md", order_findings.text, {"order-findings.png": _draw}),),
)

if __name__ == "__main__":
    sys.exit(STUDY.main())
