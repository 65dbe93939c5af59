"""Headless Chromium, driven over a pipe in its own DevTools protocol: pages are opened, clicked and photographed."""

from __future__ import annotations

import base64
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

PATIENCE_S = 60
"""Seconds to wait for what a page or the browser does in moments, on a busy machine."""

_STARTER = """import os, sys
for number, end in enumerate(sys.argv[1:3], start=3):
    os.dup2(int(end), number)
os.execv(sys.argv[3], sys.argv[3:])
"""
"""Becomes the browser, which reads commands from its descriptor 3 and answers on 4."""


class Page:
    """One open page: JavaScript in it, a mouse and a keyboard on it, and what it asked the network for."""

    def __init__(self, reader: Any, writer: Any) -> None:
        self._reader, self._writer, self._last, self._session = reader, writer, 0, None
        self.events: list[dict[str, Any]] = []
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Network", "Log"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **params: Any) -> dict[str, Any]:
        """Call one method of the protocol and return its result."""
        self._last += 1
        message = {"id": self._last, "method": method, "params": params}
        if self._session:
            message["sessionId"] = self._session
        self._writer.write(json.dumps(message).encode() + b"\0")
        self._writer.flush()
        while (answer := self._read()).get("id") != self._last:
            self.events.append(answer)
        if "error" in answer:
            raise AssertionError(f"{method}: {answer['error']}")
        return answer["result"]

    def _read(self) -> dict[str, Any]:
        text = bytearray()
        while (byte := self._reader.read(1)) != b"\0":
            if not byte:
                raise AssertionError("the browser has gone")
            text += byte
        return json.loads(text)

    def open(self, path: Path, width: int, height: int = 900, *, scripts: bool = True, dark: bool = False) -> None:
        """Open a file at a window's size and wait until it is loaded."""
        self.events.clear()
        self.call("Emulation.setScriptExecutionDisabled", value=not scripts)
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600}
        self.call("Emulation.setDeviceMetricsOverride", **size)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", features=[scheme])
        self.call("Page.navigate", url=path.resolve().as_uri())
        self.wait("document.readyState === 'complete' && location.protocol === 'file:'")

    def run(self, script: str) -> Any:
        """Return the value of an expression in the page."""
        result = self.call("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in result:
            raise AssertionError(f"{script}: {result['exceptionDetails']}")
        return result["result"].get("value")

    def wait(self, script: str) -> None:
        """Wait until an expression in the page holds."""
        end_s = time.monotonic() + PATIENCE_S
        while not self.run(script):
            assert time.monotonic() < end_s, f"waited in vain for {script}"
            time.sleep(0.02)

    def settle(self) -> None:
        """Wait until the page has drawn twice."""
        self.run("new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))")

    def box(self, selector: str) -> dict[str, float]:
        """Scroll an element into view and return its rectangle in the window."""
        told = self.run(
            f"(() => {{ const e = document.querySelector({selector!r}); e.scrollIntoView({{block: 'center'}});"
            "const b = e.getBoundingClientRect(); return {x: b.x, y: b.y, width: b.width, height: b.height}; })()"
        )
        return dict(told)

    def mouse(self, kind: str, x: float, y: float, **more: Any) -> None:
        """Send one event of the mouse: `Moved`, `Pressed`, `Released` or `Wheel`."""
        self.call("Input.dispatchMouseEvent", type=f"mouse{kind}", x=x, y=y, **more)

    def click(self, selector: str) -> None:
        """Click the middle of an element."""
        box = self.box(selector)
        x, y = box["x"] + box["width"] / 2, box["y"] + box["height"] / 2
        self.mouse("Pressed", x, y, button="left", clickCount=1)
        self.mouse("Released", x, y, button="left", clickCount=1)
        self.settle()

    def key(self, name: str, text: str = "") -> None:
        """Press one key."""
        self.call("Input.dispatchKeyEvent", type="keyDown", key=name, text=text)
        self.call("Input.dispatchKeyEvent", type="keyUp", key=name)
        self.settle()

    def photograph(self, path: Path, *, whole: bool = True) -> None:
        """Write a picture of the page."""
        shot = self.call("Page.captureScreenshot", format="png", captureBeyondViewport=whole)
        path.write_bytes(base64.b64decode(shot["data"]))

    def complaints(self) -> list[str]:
        """Return what the page logged as an error, or threw."""
        self.run("1")
        logged = [e["params"]["entry"] for e in self.events if e.get("method") == "Log.entryAdded"]
        thrown = [e["params"] for e in self.events if e.get("method") == "Runtime.exceptionThrown"]
        return [str(each) for each in (*logged, *thrown)]

    def asked_for(self) -> list[str]:
        """Return the addresses that the page asked for, itself included."""
        return [e["params"]["request"]["url"] for e in self.events if e.get("method") == "Network.requestWillBeSent"]


def program() -> str | None:
    """Return the browser's path; None where this machine has none."""
    return shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")


def required() -> str:
    """Return the browser's path; skip the test where there is none, which `.ci/run` says too."""
    found = program()
    if found is None:
        pytest.skip("no Chromium to open reports in: apt-get install chromium")
    return found


@contextmanager
def chromium() -> Iterator[Page]:
    """Yield a page of a fresh browser, which reads no profile and reaches no network; it ends with the block."""
    to_browser, from_browser = os.pipe(), os.pipe()
    ends = to_browser[0], from_browser[1]
    flags = (
        "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run",
        "--disable-background-networking", "--disable-extensions", "--hide-scrollbars", "--remote-debugging-pipe",
    )  # fmt: skip
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        browser = subprocess.Popen(
            [sys.executable, "-c", _STARTER, *map(str, ends), required(), *flags, f"--user-data-dir={profile}"],
            pass_fds=ends, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        for end in ends:
            os.close(end)
        with os.fdopen(to_browser[1], "wb") as writer, os.fdopen(from_browser[0], "rb") as reader:
            try:
                yield Page(reader, writer)
            finally:
                browser.terminate()
                browser.wait(PATIENCE_S)
