"""A report as one HTML file that needs nothing else: style, script, pictures and the report's own data are in it."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from importlib import resources

from ddpsim.common.markup import Markup, call_macro, render_template
from ddpsim.common.tables import table_of
from ddpsim.common.tables.declared import SHOWN
from ddpsim.common.units import format_time
from ddpsim.common.version import __version__
from ddpsim.report.charts.model import Chart, StackedBar
from ddpsim.report.model import BarChart, Charts, Report, Section, Table, TimelineChart


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
        return Markup('<div class="charts">{}</div>').format(Markup("").join(map(_chart, section.charts)))
    if isinstance(section, BarChart):
        return _bars(section.bars)
    return _timeline(section, number)


def _chart(chart: Chart) -> Markup:
    # matplotlib takes half a second to import, and not every report has a chart.
    from ddpsim.report.plots import draw_svg

    keys = [
        (f"c{chart.colour(line) % 10}" if line.coloured else line.style, line.label)
        for line in chart.lines
        if line.in_legend
    ]
    return call_macro("parts.html", "figure", chart.title, Markup(draw_svg(chart)), keys, chart.key)


def _bars(bars: Sequence[StackedBar]) -> Markup:
    """Return bars on one axis from 0, a legend above; a bar tells its numbers beside it and on hover."""
    longest_s = max(max(bar.high, bar.total) for bar in bars)

    def share(seconds: float) -> str:
        return f"{100 * seconds / longest_s:.3f}%"

    rows = []
    for bar in bars:
        parts, start_s = [], 0.0
        for name, seconds in bar.parts:
            if seconds > 0:
                parts.append((part_class(name), share(start_s), share(seconds), f"{name} {format_time(seconds)}"))
            start_s += seconds
        has_band = bar.low < bar.high
        band = f", 80 % band {format_time(bar.low)} to {format_time(bar.high)}" if has_band else ""
        ends = (share(bar.low), share(bar.high)) if has_band else ()
        rows.append((bar.label, f"{format_time(bar.total)}{band}", parts, ends))
    names = dict.fromkeys(name for bar in bars for name, seconds in bar.parts if seconds > 0)
    return call_macro("parts.html", "bars", [(part_class(name), name) for name in names], rows)


def part_class(name: str) -> str:
    """Return the style of a part: `part-exposed-communication`."""
    return f"part-{name.replace(' ', '-').lower()}"


def _timeline(section: TimelineChart, number: int) -> Markup:
    steps = [(choice.label, step) for choice in section.choices for step in choice.steps]
    tables = []
    for place, step in steps:
        rows = [{name: getattr(each, name) for name in SHOWN["page: buckets"].names} for each in step.buckets]
        tables.append((f"Buckets of {place}: {step.label}", table_of("page: buckets", rows).html()))
    return call_macro("parts.html", "timeline", section, number, tables)
