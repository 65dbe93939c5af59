"""The report as people use it: opened in a browser at two widths, read, pointed at, zoomed, moved, printed plain."""

from __future__ import annotations

from decimal import ROUND_HALF_UP, Decimal
from pathlib import Path
from typing import Any

import pytest

from tests import pages
from tests.browser import Page

WIDTHS = (1280, 390)
SVG = ".timeline .step:first-child svg"
AXIS = f"[...document.querySelectorAll('{SVG} .tick')].map(e => e.textContent).filter(t => t.endsWith('ms'))"
TOLD = "document.querySelector('.told').textContent"


@pytest.fixture(params=WIDTHS, ids=["wide", "phone"])
def opened(request: pytest.FixtureRequest, browser: Page, plan_page: Path) -> Page:
    browser.open(plan_page, request.param)
    return browser


@pytest.fixture
def timeline(plan_page: Path) -> dict[str, Any]:
    """The timeline's data."""
    return next(part for part in pages.data(plan_page.read_text())["sections"] if part["kind"] == "timeline")


@pytest.fixture
def first(plan_page: Path) -> int:
    """The number of the choice that is shown first."""
    [selected] = [o for o in pages.parse(plan_page.read_text()).all("option") if "selected" in o.attributes]
    return int(str(selected.attributes["value"]))


def choose(page: Page, number: int) -> None:
    """Choose another row's steps from the list."""
    page.run(
        f"(e => {{ e.value = {number}; e.dispatchEvent(new Event('change')); }})(document.querySelector('.choice'))"
    )


def that_waits(timeline: dict[str, Any]) -> int:
    """Return the number of the choice whose upper step waits longest for its buckets."""
    phases = [choice["steps"][0]["phases"] for choice in timeline["choices"]]
    waits_us = [sum(high - low for name, low, high in each if name == "wait") for each in phases]
    return waits_us.index(max(waits_us))


def at_bucket(page: Page, number: int, share: float = 0.5) -> tuple[float, float]:
    """Return where a bucket's row of the first step is in the window."""
    box = page.box(SVG)
    row = page.run(f"[...document.querySelectorAll('{SVG} .tick')].filter(e => !e.textContent.endsWith('ms'))"
                   f"[{number}].getBoundingClientRect().y + 6")  # fmt: skip
    return box["x"] + share * box["width"], row


def at_time(page: Page, us: float) -> tuple[float, float]:
    """Return where a time of the first step's computation is in the window, by the axis as it is drawn."""
    top = page.box(SVG)["y"]
    lines = page.run(f"[...document.querySelectorAll('{SVG} .grid')].map(e => e.getBoundingClientRect().x)")
    low, high = view(page)
    return lines[0] + (us / 1e3 - low) / (high - low) * (lines[-1] - lines[0]), top + 30


def bucket(timeline: dict[str, Any], choice: int, number: int) -> dict[str, Any]:
    step = timeline["choices"][choice]["steps"][0]
    return dict(zip(step["columns"], step["buckets"][number], strict=True))


def ms(us: float) -> str:
    """Return a time as the page writes it: thousandths below 10 ms, hundredths above."""
    digits = Decimal("0.001" if abs(us) < 1e4 else "0.01")
    return f"{Decimal(us / 1e3).quantize(digits, ROUND_HALF_UP)} ms"


def view(page: Page) -> tuple[float, float]:
    """Return the first and last time that the axis is labelled with, in ms."""
    labels = [float(label.removesuffix(" ms")) for label in page.run(AXIS)]
    return labels[0], labels[-1]


def test_it_opens_offline_without_complaint_and_fits_the_window(opened: Page, plan_page: Path) -> None:
    assert opened.complaints() == []
    assert opened.asked_for() == [plan_page.resolve().as_uri()]
    assert opened.run("document.documentElement.scrollWidth <= window.innerWidth")


def test_the_verdict_is_seen_first(opened: Page, plan_page: Path) -> None:
    sentences = pages.data(plan_page.read_text())["verdict"]
    assert opened.run("[...document.querySelectorAll('.verdict p')].map(e => e.textContent)") == sentences
    assert opened.run("document.querySelector('.verdict').getBoundingClientRect().bottom < 500")


def test_pointing_at_a_bucket_tells_its_bytes_and_times(opened: Page, timeline: dict[str, Any]) -> None:
    place = that_waits(timeline)
    choose(opened, place)
    last = len(timeline["choices"][place]["steps"][0]["buckets"]) - 1
    opened.mouse("Moved", *at_bucket(opened, last))
    told, times = opened.run(TOLD), bucket(timeline, place, last)
    assert told.startswith(f"Bucket {last} (torch's default)")
    assert f"{times['size_bytes']:,} B" in told
    assert f"ready at {ms(times['ready_us'])}" in told
    assert f"{ms(times['finished_us'] - times['wire_us'])} on the wire" in told
    assert f"waited {ms(times['started_us'] - times['ready_us'])} for its turn" in told


def test_pointing_at_the_computation_names_the_phase(opened: Page, timeline: dict[str, Any]) -> None:
    place = that_waits(timeline)
    choose(opened, place)
    phases = {name: (low, high) for name, low, high in timeline["choices"][place]["steps"][0]["phases"]}
    for name in ("forward", "backward", "wait"):
        low, high = phases[name]
        opened.mouse("Moved", *at_time(opened, (low + high) / 2))
        assert opened.run(TOLD) == f"{name} (torch's default): {ms(high - low)}, from {ms(low)} to {ms(high)}."


def test_buttons_zoom_and_move_both_steps_on_one_axis(opened: Page) -> None:
    whole = view(opened)
    opened.click("[data-act=in]")
    opened.click("[data-act=in]")
    near = view(opened)
    assert near[1] - near[0] < 0.6 * (whole[1] - whole[0])
    opened.click("[data-act=right]")
    assert view(opened)[0] > near[0]
    second = AXIS.replace(":first-child", ":last-child")
    assert opened.run(second) == opened.run(AXIS)
    opened.click("[data-act=all]")
    assert view(opened) == whole


def test_a_drag_moves_and_the_wheel_zooms_around_the_pointer(opened: Page) -> None:
    whole = view(opened)
    x, y = at_bucket(opened, 3)
    opened.mouse("Wheel", x, y, deltaX=0, deltaY=-120, modifiers=2)
    opened.settle()
    near = view(opened)
    assert near[1] - near[0] < whole[1] - whole[0]
    far = 240  # px: more than lies between two labels of the axis, whatever the step
    opened.mouse("Pressed", x, y, button="left", clickCount=1)
    opened.mouse("Moved", x - far, y, button="left", buttons=1)
    opened.mouse("Released", x - far, y, button="left", clickCount=1)
    opened.settle()
    assert view(opened)[0] > near[0]


def test_the_keyboard_does_what_the_mouse_does(opened: Page, timeline: dict[str, Any], first: int) -> None:
    opened.run(f"document.querySelector('{SVG}').focus()")
    assert opened.run("getComputedStyle(document.activeElement).outlineStyle") == "solid"
    opened.key("ArrowDown")
    opened.key("ArrowDown")
    second = bucket(timeline, first, 1)
    assert f"{second['size_bytes']:,} B" in opened.run(TOLD)
    assert f"ready at {ms(second['ready_us'])}" in opened.run(TOLD)
    whole = view(opened)
    opened.key("+", "+")
    near = view(opened)
    assert near[1] - near[0] < whole[1] - whole[0]
    opened.key("0", "0")
    assert view(opened) == whole


def test_another_row_is_chosen_from_the_list(opened: Page, timeline: dict[str, Any], first: int) -> None:
    title, other = "document.querySelector('.step h3').textContent", (first + 1) % len(timeline["choices"])
    assert opened.run(title).endswith(f": {ms(timeline['choices'][first]['steps'][0]['iteration_us'])}")
    choose(opened, other)
    step = timeline["choices"][other]["steps"][0]
    assert opened.run(title).endswith(f": {ms(step['iteration_us'])}")
    assert opened.run(f"document.querySelectorAll('{SVG} .tick').length") > len(step["buckets"])


def test_tables_open_on_a_click(opened: Page) -> None:
    shown = "document.querySelector('.buckets table').checkVisibility()"
    assert not opened.run(shown)
    opened.click(".buckets summary")
    assert opened.run(shown)


@pytest.mark.parametrize("width", WIDTHS)
def test_without_scripts_verdict_tables_and_curves_are_there(browser: Page, plan_page: Path, width: int) -> None:
    browser.open(plan_page, width, scripts=False)

    def seen(of: str) -> bool:
        return bool(browser.run(f"document.querySelector('{of}').checkVisibility()"))

    assert seen(".verdict p")
    assert seen(".part table")
    assert seen("figure svg use")
    assert seen("noscript p")
    assert not seen(".timeline")


@pytest.mark.parametrize("dark", [False, True])
def test_colours_follow_the_system_and_text_stands_out(browser: Page, plan_page: Path, dark: bool) -> None:
    browser.open(plan_page, 1280, dark=dark)
    colours = browser.run("[document.body, document.querySelector('.note')].map(e => getComputedStyle(e).color)")
    back = luminance(browser.run("getComputedStyle(document.body).backgroundColor"))
    assert (back < 0.2) is dark
    for colour in colours:
        low, high = sorted((luminance(colour), back))
        assert (high + 0.05) / (low + 0.05) >= 4.5


def luminance(colour: str) -> float:
    """Return the relative luminance of WCAG 2 of a colour `rgb(r, g, b)`."""
    parts = [int(part) / 255 for part in colour.removeprefix("rgb(").removesuffix(")").split(",")]
    red, green, blue = (p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def test_a_tap_tells_and_two_fingers_zoom(browser: Page, plan_page: Path, timeline: dict[str, Any], first: int) -> None:
    browser.open(plan_page, 390)
    browser.call("Emulation.setTouchEmulationEnabled", enabled=True, maxTouchPoints=2)
    x, y = at_bucket(browser, 5)
    touch(browser, "Start", (x, y))
    touch(browser, "End")
    assert f"{bucket(timeline, first, 5)['size_bytes']:,} B" in browser.run(TOLD)
    whole = view(browser)
    touch(browser, "Start", (x - 20, y), (x + 20, y))
    touch(browser, "Move", (x - 60, y), (x + 60, y))
    touch(browser, "End")
    browser.call("Emulation.setTouchEmulationEnabled", enabled=False)
    near = view(browser)
    assert near[1] - near[0] < 0.7 * (whole[1] - whole[0])


def touch(page: Page, kind: str, *fingers: tuple[float, float]) -> None:
    points = [{"x": x, "y": y, "id": number} for number, (x, y) in enumerate(fingers)]
    page.call("Input.dispatchTouchEvent", type=f"touch{kind}", touchPoints=points)
    page.settle()
