"""The documentation is executed: its commands run, their output is what the pages show, the reference is current."""

from __future__ import annotations

import doctest
import re
from pathlib import Path

import pytest

from tests import forked
from tests.docs import commands, refresh

ROOT = Path(__file__).parent.parent
LINK = re.compile(r"\]\(([^)#:]+)(?:#[^)]*)?\)")


PAGES = refresh.pages()


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    "page", [page for page in PAGES if "```console" in page.read_text()], ids=lambda page: page.stem
)
def test_commands_print_what_the_page_shows(page: Path, tmp_path: Path) -> None:
    for kind, word, body in refresh.BLOCK.findall(page.read_text()):
        if kind != "console":
            if word:
                refresh.write(tmp_path / word, body)
            continue
        if "ddpexec" in body or "torchrun" in body:
            pytest.importorskip("torch", reason="needs the extra `exec`")
        for shown in refresh.commands(body):
            output = refresh.execute(shown.line, tmp_path, forked.command)
            told = f"$ {shown.line}\n{output}\nthe page shows\n{shown.shown}\nrun `python -m tests.docs.refresh`"
            assert refresh.matches(output, shown.shown, word), told


@pytest.mark.parametrize("page", [page for page in PAGES if "```pycon" in page.read_text()], ids=lambda page: page.stem)
def test_python_examples_hold(page: Path) -> None:
    examples = "\n".join(re.findall(r"^```pycon\n(.*?)^```$", page.read_text(), re.MULTILINE | re.DOTALL))
    test = doctest.DocTestParser().get_doctest(examples, {}, page.stem, str(page), 0)
    results = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS).run(test)
    assert results.attempted
    assert not results.failed


def test_the_command_reference_is_current() -> None:
    assert commands.TARGET.read_text() == commands.reference(), "run `python -m tests.docs.commands`"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_links_inside_the_repository_lead_somewhere(page: Path) -> None:
    for target in LINK.findall(page.read_text()):
        assert (page.parent / target).exists(), f"{page.name}: {target}"
