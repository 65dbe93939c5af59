"""Reports: one HTML file that opens offline, the verdict first, then tables, charts, timelines and assumptions."""

from ddpsim.report.compare_page import compare_report
from ddpsim.report.explain_page import explain_report
from ddpsim.report.model import Report
from ddpsim.report.plan_page import plan_report
from ddpsim.report.render import render
from ddpsim.report.sweep_page import sweep_report
from ddpsim.report.validation_page import validation_report

__all__ = ["Report", "compare_report", "explain_report", "plan_report", "render", "sweep_report", "validation_report"]
