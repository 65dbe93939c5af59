"""A report as one HTML file that needs nothing else: style, script, pictures and the report's own data are in it."""

from __future__ import annotations

from functools import cache
from importlib import resources

from ddpsim.markup import Markup, call_macro, render_template
from ddpsim.report import bars, charts
from ddpsim.report.model import BarChart, Charts, Report, Section, Table, TimelineChart
from ddpsim.tables import Column, ResultTable
from ddpsim.tables.cells import mib, ms
from ddpsim.trace.records import BucketTimes
from ddpsim.version import __version__


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
        return call_macro("parts.html", "scrolled", section.shown.html(), section.title)
    if isinstance(section, Charts):
        return Markup('<div class="charts">{}</div>').format(Markup("").join(map(charts.draw, section.charts)))
    if isinstance(section, BarChart):
        return bars.draw(section)
    return _timeline(section, number)


def _timeline(section: TimelineChart, number: int) -> Markup:
    steps = [(choice.label, step) for choice in section.choices for step in choice.steps]
    tables = [
        (f"Buckets of {place}: {step.label}", ResultTable.of(_BUCKETS, step.buckets).html()) for place, step in steps
    ]
    return call_macro("parts.html", "timeline", section, number, tables)


_BUCKETS: tuple[Column[BucketTimes], ...] = (
    Column("bucket", lambda b: b.index, words=True),
    Column("MiB", lambda b: mib(b.size_bytes)),
    Column("ready ms", lambda b: ms(b.ready_s)),
    Column("queued", lambda b: ms(b.queued_s)),
    Column("waited for ranks", lambda b: ms(b.wait_s)),
    Column("on the wire", lambda b: ms(b.on_wire_s)),
    Column("finished ms", lambda b: ms(b.finished_s)),
    Column("written ms", lambda b: ms(b.written_s)),
)
"""Of the table below a timeline."""
