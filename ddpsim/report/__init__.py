"""Reports of results: one HTML file each, which opens offline, and static plots (SVG, PNG, PDF) of the same charts.

A `Report` is data: a verdict, then sections, which are tables, bar charts, timelines and curves (`model`). One file for
each command makes it: `compare_page`, `explain_page`, `plan_page`, `sweep_page`, `validation_page`. `render` fills the
page's template with it. `charts` describes charts without drawing; the page draws them in the browser, and `plots`, the
only importer of matplotlib, draws them into files. `wording`, `rows` and `assumptions` are shared by the pages.

Start with `model.py`, then `compare_page.py` as an example. The names below are for other rooms, too.

Public modules: cap_curves, charts, plots.
"""

from ddpsim.report.compare_page import compare_report
from ddpsim.report.explain_page import explain_report
from ddpsim.report.model import Report
from ddpsim.report.plan_page import plan_report
from ddpsim.report.render import render
from ddpsim.report.sweep_page import sweep_report
from ddpsim.report.validation_page import validation_report

__all__ = ["Report", "compare_report", "explain_report", "plan_report", "render", "sweep_report", "validation_report"]
