"""A report as one HTML file that needs nothing else: style, script, pictures and the report's own data are in it."""

from __future__ import annotations

import json
from functools import cache
from importlib import resources
from string import Template

from ddpsim.markup import Markup, element, joined, table
from ddpsim.report import bars, charts
from ddpsim.report.model import BarChart, Charts, Report, Section, Table, TimelineChart, TimelineStep
from ddpsim.report.wording import milliseconds
from ddpsim.units import MIB
from ddpsim.version import __version__

_NEEDS_SCRIPT = "The picture needs a script, which this browser does not run; the tables below hold the same numbers."

_HINT = "Point at a bucket or tap it. Drag to move, pinch or Ctrl + wheel to zoom; keys: arrows, + and -, 0 for all."


def render(report: Report) -> str:
    """Return the page of `report`: the same report, the same bytes."""
    sections = [_section(section, number) for number, section in enumerate(report.sections)]
    return Template(_asset("page.html")).substitute(
        title=joined([report.title]),
        style=_asset("page.css"),
        script=_asset("page.js"),
        verdict=joined(element("p", sentence) for sentence in report.verdict),
        paste=_paste(report),
        contents=_contents(report),
        notes=_notes(report),
        sections=joined(sections),
        command=_command(report),
        version=joined([__version__]),
        data=_embedded(report.document()),
    )


@cache
def _asset(name: str) -> str:
    return resources.files("ddpsim.report").joinpath("assets", name).read_text(encoding="utf-8")


def _embedded(document: object) -> str:
    """Return JSON that no text in it can end: `<` is written so that the page's parser sees none."""
    return json.dumps(document, allow_nan=False, separators=(",", ":")).replace("<", "\\u003c")


def _paste(report: Report) -> Markup:
    blocks = ((element("p", where), _code(line)) for where, line in report.paste)
    return joined(part for block in blocks for part in block)


def _code(text: str) -> Markup:
    return element("pre", element("code", text), tabindex=0)


def _contents(report: Report) -> Markup:
    items = (
        element("li", element("a", section.title, href=f"#part{number}"))
        for number, section in enumerate(report.sections)
    )
    return element("ul", *items)


def _notes(report: Report) -> Markup:
    if not report.notes:
        return Markup("")
    items = (element("li", note) for note in report.notes)
    return element("section", element("h2", "Know before you trust it"), element("ul", *items), class_="notes")


def _command(report: Report) -> Markup:
    if not report.command:
        return Markup("")
    return element("section", element("h2", "Made by"), _code(report.command))


def _section(section: Section, number: int) -> Markup:
    heading = element("h2", section.title)
    note = [element("p", section.note, class_="note")] if section.note else []
    body = [*note, _body(section, number)]
    if isinstance(section, Table) and section.folded:
        return element("details", element("summary", heading), *body, id=f"part{number}", class_="part")
    return element("section", heading, *body, id=f"part{number}", class_="part")


def _body(section: Section, number: int) -> Markup:
    if isinstance(section, Table):
        return _scroll_frame(table(section.header, section.rows, words=section.words), section.title)
    if isinstance(section, Charts):
        return element("div", *(charts.draw(chart) for chart in section.charts), class_="charts")
    if isinstance(section, BarChart):
        return bars.draw(section)
    return _timeline(section, number)


def _scroll_frame(content: Markup, label: str) -> Markup:
    """Return what may be wider than a screen in a frame that scrolls, by the keyboard too."""
    return element("div", content, class_="wide", tabindex=0, role="region", aria_label=label)


def _timeline(section: TimelineChart, number: int) -> Markup:
    options = (
        element("option", choice.label, value=n, selected=n == section.first)
        for n, choice in enumerate(section.choices)
    )
    picker = element("label", "Step of ", element("select", *options, class_="choice"))
    buttons = (
        element("button", text, type="button", data_act=act, title=said, aria_label=said)
        for act, text, said in (
            ("in", "+", "Zoom in"), ("out", "−", "Zoom out"), ("left", "←", "Earlier"), ("right", "→", "Later"),
            ("all", "Whole step", "Show the whole step"),
        )
    )  # fmt: skip
    controls = element("div", picker, *buttons, class_="controls")
    drawing = element("div", class_="steps")
    told = element("p", _HINT, class_="told", aria_live="polite")
    interactive = element("div", controls, told, drawing, class_="timeline", data_section=number, hidden=True)
    plain = element("noscript", element("p", _NEEDS_SCRIPT))
    tables = (_bucket_table(step, choice.label) for choice in section.choices for step in choice.steps)
    return joined([interactive, plain, *tables])


def _bucket_table(step: TimelineStep, place: str) -> Markup:
    header = ("bucket", "MiB", "ready ms", "queued", "waited for ranks", "on the wire", "finished ms", "written ms")
    rows = [
        (
            str(b.index), f"{b.size_bytes / MIB:.2f}",
            *map(milliseconds, (b.ready_s, b.queued_s, b.skew_s, b.on_wire_s, b.finished_s, b.written_s)),
        )
        for b in step.buckets
    ]  # fmt: skip
    title = f"Buckets of {place}: {step.label}"
    return element("details", element("summary", title), _scroll_frame(table(header, rows), title), class_="buckets")
