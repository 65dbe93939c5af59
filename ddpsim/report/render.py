"""A report as one HTML file that needs nothing else: style, script, pictures and the report's own data are in it."""

from __future__ import annotations

from functools import cache
from importlib import resources

from ddpsim.charts.timeline import TimelineStep
from ddpsim.markup import Markup, call_macro, render_template, table
from ddpsim.report import bars, charts
from ddpsim.report.model import BarChart, Charts, Report, Section, Table, TimelineChart
from ddpsim.report.wording import milliseconds
from ddpsim.units import MIB
from ddpsim.version import __version__

_BUCKETS = ("bucket", "MiB", "ready ms", "queued", "waited for ranks", "on the wire", "finished ms", "written ms")


def render(report: Report) -> str:
    """Return the page of `report`: the same report, the same bytes."""
    parts = [(section, _body(section, number)) for number, section in enumerate(report.sections)]
    return render_template(
        "report.html",
        report=report,
        parts=parts,
        style=_asset("page.css"),
        script=_asset("page.js"),
        version=__version__,
    )


@cache
def _asset(name: str) -> Markup:
    """Return a file of the package, which is style or script already."""
    return Markup(resources.files("ddpsim.report").joinpath("assets", name).read_text(encoding="utf-8"))


def _body(section: Section, number: int) -> Markup:
    if isinstance(section, Table):
        shown = table(section.header, section.rows, words=section.words)
        return call_macro("parts.html", "scrolled", shown, section.title)
    if isinstance(section, Charts):
        return Markup('<div class="charts">{}</div>').format(Markup("").join(map(charts.draw, section.charts)))
    if isinstance(section, BarChart):
        return bars.draw(section)
    return _timeline(section, number)


def _timeline(section: TimelineChart, number: int) -> Markup:
    steps = [(choice.label, step) for choice in section.choices for step in choice.steps]
    tables = [(f"Buckets of {place}: {step.label}", _BUCKETS, _bucket_rows(step)) for place, step in steps]
    return call_macro("parts.html", "timeline", section, number, tables)


def _bucket_rows(step: TimelineStep) -> list[tuple[str, ...]]:
    return [
        (
            str(b.index), f"{b.size_bytes / MIB:.2f}",
            *map(milliseconds, (b.ready_s, b.queued_s, b.skew_s, b.on_wire_s, b.finished_s, b.written_s)),
        )
        for b in step.buckets
    ]  # fmt: skip
