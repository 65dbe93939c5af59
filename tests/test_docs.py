"""The documentation is executed: its commands run, its output is what it shows, its reference is current."""

from __future__ import annotations

import doctest
import importlib.util
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PAGES = sorted([ROOT / "README.md", *(ROOT / "docs").rglob("*.md")])
BLOCK = re.compile(r"^```console\n(.*?)^```", re.MULTILINE | re.DOTALL)
SESSION = re.compile(r"^```pycon\n(.*?)^```", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\]\(([^)#:]+)(?:#[^)]*)?\)")


def commands(page: Path) -> list[tuple[str, str]]:
    """Return (command, expected output) of the page's console blocks, in order."""
    found = []
    for block in BLOCK.findall(page.read_text()):
        for part in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]:
            lines = part.replace("\\\n", " ").splitlines()
            found.append((lines[0], "\n".join(lines[1:])))
    return found


@pytest.mark.parametrize("page", [page for page in PAGES if commands(page)], ids=lambda page: page.stem)
def test_commands_print_what_the_page_shows(page: Path, tmp_path: Path) -> None:
    check = doctest.OutputChecker()
    for command, expected in commands(page):
        words = shlex.split(command)
        environment = {
            "PATH": f"{Path(sys.executable).parent}:/usr/bin:/bin",
            "PYTHONPATH": str(ROOT),
            "OMP_NUM_THREADS": "1",
        }
        words = [sys.executable, "-m", "ddpsim", *words[1:]] if words[0] == "ddpsim" else words
        words = [sys.executable, *words[1:]] if words[0] == "python" else words
        done = subprocess.run(
            words, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False, timeout=100
        )
        assert done.returncode == 0, f"{command}\n{done.stderr}"
        wanted, got = (f"{text.strip()}\n" for text in (expected, done.stdout))
        if expected:
            flags = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
            assert check.check_output(wanted, got, flags), f"$ {command}\nexpected\n{wanted}\ngot\n{got}"


@pytest.mark.parametrize(
    "page", [page for page in PAGES if SESSION.search(page.read_text())], ids=lambda page: page.stem
)
def test_python_sessions_print_what_the_page_shows(page: Path) -> None:
    text = "\n".join(SESSION.findall(page.read_text()))
    test = doctest.DocTestParser().get_doctest(text, {}, page.name, str(page), 0)
    report: list[str] = []
    result = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS).run(test, out=report.append)
    assert result.attempted > 0
    assert result.failed == 0, "".join(report)


def test_the_command_reference_is_current() -> None:
    spec = importlib.util.spec_from_file_location("commands", ROOT / "docs" / "commands.py")
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    assert module.TARGET.read_text() == module.reference(), "run `python docs/commands.py`"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_links_inside_the_repository_lead_somewhere(page: Path) -> None:
    for target in LINK.findall(page.read_text()):
        assert (page.parent / target).exists(), f"{page.name}: {target}"
