"""The documentation is executed: its commands run, their output is what the pages show, the reference is current."""

from __future__ import annotations

import contextlib
import doctest
import functools
import io
import os
import re
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from subprocess import CompletedProcess
from unittest import mock

import pytest

from ddpsim.cli.app import run
from tests import forked
from tests.docs import commands, refresh

ROOT = Path(__file__).parent.parent
LINK = re.compile(r"\]\(([^)#:]+)(?:#[^)]*)?\)")


PAGES = refresh.pages()


def with_those_before(page: Path, block: refresh.Block) -> tuple[refresh.Block, ...]:
    """Return a page's block behind those that leave what it reads."""
    return (*refresh.before(block, refresh.blocks(page.read_text())), block)


def marks(page: Path, block: refresh.Block) -> list[pytest.MarkDecorator]:
    measured = any("microbench" in each.body for each in with_those_before(page, block) if each.kind == "console")
    return [pytest.mark.needs("wait")] if measured else []


CASES = [
    pytest.param(page, block, marks=marks(page, block), id=f"{page.stem}-{block.number}")
    for page in PAGES
    for block in refresh.cases(page.read_text())
]


@pytest.mark.parametrize(("page", "block"), CASES)
def test_commands_print_what_the_page_shows(page: Path, block: refresh.Block, folders: Path) -> None:
    _, outputs = carried_out(page, with_those_before(page, block), folders)
    for shown, output in zip(refresh.commands(block.body), outputs, strict=True):
        told = f"$ {shown.line}\n{output}\nthe page shows\n{shown.shown}\nrun `python -m tests.docs.refresh`"
        assert refresh.matches(output, shown.shown, block.word, block.percent), told


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("pages")


@functools.cache
def carried_out(page: Path, blocks: tuple[refresh.Block, ...], folders: Path) -> tuple[Path, list[str]]:
    """Return the folder that the last of `blocks` leaves behind those before it, and what its commands print.

    Kept, for a block that leaves what others read is run once: they begin with copies of its folder.
    """
    folder, last = Path(tempfile.mkdtemp(dir=folders)), blocks[-1]
    if blocks[:-1]:
        shutil.copytree(carried_out(page, blocks[:-1], folders)[0], folder, dirs_exist_ok=True)
    if last.kind != "console":
        refresh.write(folder / last.word, last.body)
        return folder, []
    if "ddpexec" in last.body or "torchrun" in last.body:
        pytest.importorskip("torch", reason="needs the extra `exec`")
    own_code = "```python" in page.read_text()

    def output(line: str) -> str:
        here = line.startswith("ddpsim ") and not own_code
        return refresh.execute(line, folder, in_this_process if here else forked.command)

    return folder, [output(shown.line) for shown in refresh.commands(last.body)]


def in_this_process(words: Sequence[str], folder: Path, environment: Mapping[str, str]) -> CompletedProcess[str]:
    """Run a command line of ddpsim in `folder` without a process of its own."""
    out, err = io.StringIO(), io.StringIO()
    with (
        contextlib.chdir(folder),
        mock.patch.dict(os.environ, environment),
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
    ):
        code = run(list(words[1:]))
    return CompletedProcess(list(words), code, out.getvalue(), err.getvalue())


@pytest.mark.parametrize(
    ("output", "percent", "same"),
    [
        ("100 ms of 3", "", True),
        ("102.9 ms of 3", "", True),
        ("104 ms of 3", "", False),
        ("104 ms of 3", "5", True),
        ("100 us of 3", "", False),
        ("100 ms of 3 c7e4266f31", "", False),
        ("100 ms of 3 and 4", "", False),
    ],
)
def test_numbers_of_estimates_are_compared(output: str, percent: str, same: bool) -> None:
    assert refresh.matches(output, "100 ms of 3", "estimates", percent) is same
    assert refresh.matches(f"{output}\nmore", "100 ms of 3\n...", "estimates", percent) is same


def test_a_page_keeps_as_many_lines_as_it_shows_before_dots() -> None:
    output = "\n".join(map(str, range(100)))
    assert refresh.shortened(output, "5\n6\n...") == "0\n1\n..."
    assert refresh.shortened(output, "5\n...\n6\n7") == "0\n...\n98\n99"
    assert refresh.shortened(output, "5\n6").count("\n") == 16


def test_a_line_between_dots_is_that_which_begins_with_its_word() -> None:
    assert refresh.shortened("a 1\nstep 5 ms\nb 2", "...\nstep 4 s\n...") == "...\nstep 5 ms\n..."
    with pytest.raises(RuntimeError, match="step 4"):
        refresh.shortened("a 1\nb 2", "...\nstep 4 s\n...")


def test_lines_that_dots_leave_out_are_not_compared() -> None:
    assert refresh.matches("a 1\nb 2\nc 3\nd 4", "a 1\n...\nd 4", "estimates")
    assert refresh.matches("a 1\nb 2", "...\nb 2", "estimates")
    assert not refresh.matches("a 1\nb 2\nc 3", "a 1\n...\nd 3", "estimates")
    assert not refresh.matches("a 1", "a 1\n...\nb 2", "estimates")


def test_a_fingerprint_is_no_number_and_a_zero_has_no_sign() -> None:
    assert refresh.matches("by c7e4266f31, -0.0 %", "by c7e4266f31, +0.0 %", "estimates")
    assert not refresh.matches("by c7e4266f32", "by c7e4266f31", "estimates")


def test_a_block_is_run_behind_those_that_leave_what_it_reads() -> None:
    page = (
        "```yaml a.yaml\nx: 1\n```\n```console quiet\n$ ddpsim x a.yaml -o b.json\n```\n"
        "```console\n$ ddpsim y\n```\n```console\n$ ddpsim z --of b.json\n```\n"
    )
    every = refresh.blocks(page)
    assert [[each.number for each in refresh.before(block, every)] for block in every] == [[], [0], [], [0, 1]]
    assert [block.number for block in refresh.cases(page)] == [2, 3]


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
