"""Every study is imported, and its quick pages are made again: `python -m studies.check [--all] [NAME ...]`.

What differs from the committed pages is printed, and the exit code is 1. Pages that take a processor minutes are made
with `--all` only, and continuous integration, with STUDIES_PAGES=commit, leaves those too that take most of a minute;
rows of both are held by each study's tests.
"""

from __future__ import annotations

import difflib
import importlib
import os
import pkgutil
import sys
from collections.abc import Iterator, Sequence

from studies.command import parser
from studies.study import HERE, Page, Study

MOST_LINES = 20


def names() -> list[str]:
    """Return the studies: the folders that have a command."""
    return sorted(path.parent.name for path in HERE.glob("*/__main__.py"))


def imported(name: str) -> Study | None:
    """Import every module of a study; return it, or None of one that measures and has no pages."""
    package = importlib.import_module(f"studies.{name}")
    for module in pkgutil.walk_packages(package.__path__, f"studies.{name}."):
        if not module.name.rpartition(".")[2].startswith("test_"):
            importlib.import_module(module.name)
    return getattr(importlib.import_module(f"studies.{name}.__main__"), "STUDY", None)


def quick(name: str, *, every: bool = False) -> list[tuple[Study, Page]]:
    """Return a study's pages that are made again here; with `every` those that take long too."""
    study = imported(name)
    often = {"commit"} if os.environ.get("STUDIES_PAGES") == "commit" else {"commit", "check"}
    return [] if study is None else [(study, page) for page in study.pages if every or page.again in often]


def differs(study: Study, page: Page) -> Iterator[str]:
    """Yield the lines in which a page, made again, is another than the committed one."""
    made, kept = page.text().splitlines(), study.committed(page).splitlines()
    yield from difflib.unified_diff(kept, made, str(study.folder / page.name), "made again", lineterm="", n=0)


def main(asked: Sequence[str]) -> int:
    """Check the studies of these names, or all of them; with `--all` every page."""
    command = parser(__doc__)
    command.add_argument("--all", action="store_true", help="make the pages again that take minutes, too")
    command.add_argument("names", metavar="NAME", nargs="*", help="of studies; default all")
    given = command.parse_args(asked)
    wrong = 0
    for name in given.names or names():
        for study, page in quick(name, every=given.all):
            lines = list(differs(study, page))
            print(f"{name}/{page.name}: {'differs' if lines else 'as committed'}", flush=True)
            print("".join(f"{line}\n" for line in lines[:MOST_LINES]), end="")
            wrong += bool(lines)
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
