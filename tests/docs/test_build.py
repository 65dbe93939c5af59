"""The site shows every block of the pages as one, and leads every link somewhere."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def build() -> ModuleType:
    spec = importlib.util.spec_from_file_location("build", ROOT / "docs" / "build.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_a_block_has_the_name_of_its_file_as_title(build: ModuleType) -> None:
    page = "```python a/b.py\nx\n```\n```console estimates 10%\n$ y\n```\n```text\nz\n```\n"
    shown = '```python title="a/b.py"\nx\n```\n```console\n$ y\n```\n```text\nz\n```\n'
    assert build.title_blocks(page) == shown


def test_a_link_to_a_folder_leads_to_its_readme_and_one_to_nothing_is_an_error(build: ModuleType) -> None:
    tracked = {"a/README.md", "docs/b.md"}
    text, linked = build.resolve_links("docs/c.md", "[a](../a/) [b](b.md#part)", tracked)
    assert text == "[a](../a/README.md) [b](b.md#part)"
    assert linked == {"a/README.md", "docs/b.md"}
    with pytest.raises(build.DeadLinkError, match=r"docs/c.md: a link to d.md"):
        build.resolve_links("docs/c.md", "[d](d.md)", tracked)
