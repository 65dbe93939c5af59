"""The site is searched where it is opened from the file system: its search runs in a frame, as no worker may."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.browser import Page, chromium

DOCS = Path(__file__).parents[2] / "docs"


@pytest.fixture
def browser() -> Iterator[Page]:
    with chromium() as page:
        yield page


def test_a_worker_of_a_page_from_a_file_answers(browser: Page, tmp_path: Path) -> None:
    (tmp_path / "shim.js").write_text((DOCS / "iframe-worker.js").read_text())
    (tmp_path / "worker.js").write_text("addEventListener('message', e => postMessage(`${e.data} answered`))")
    page = tmp_path / "index.html"
    page.write_text("<!doctype html><body><script src='shim.js'></script></body>")
    browser.open(page, 800)
    browser.run("answers = []; worker = new Worker('worker.js'); worker.addEventListener('message', e => "
                "answers.push(e.data)); worker.postMessage('first'); worker.postMessage('second'); 0")  # fmt: skip
    browser.wait("answers.length == 2")
    assert browser.run("answers.join()") == "first answered,second answered"
    assert browser.complaints() == []


def test_search_reads_a_script_and_nothing_from_elsewhere() -> None:
    settings = (DOCS / "mkdocs.yml").read_text()
    assert "  - offline" in settings
    # The plugin adds an address of others unless a script of this name is listed.
    assert "polyfills: [docs/iframe-worker.js]" in settings
