"""What every study has: pages, which its command prints, writes or gives as JSON, and which are checked."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, TypedDict

from ddpsim.common.files import write_whole

HERE = Path(__file__).parent


@dataclass(frozen=True, slots=True)
class Page:
    """A page is one committed answer of a study.

    Attributes:
        name: of its file, in the study's folder.
        text: makes it.
        pictures: by file name, what draws each.
        again: how often the whole page is made again: for each `commit`, by `make check` alone (`check`), or where
            `python -m studies.check --all` is asked; of what is not made again the study's tests make single rows.
    """

    name: str
    text: Callable[[], str]
    pictures: Mapping[str, Callable[[Path], None]] = field(default_factory=dict)
    again: Literal["commit", "check", "asked"] = "commit"


class Table(TypedDict):
    """A table of a page: the title it stands under, and its rows by the names of the columns."""

    title: str
    rows: list[dict[str, str]]


@dataclass(frozen=True, slots=True)
class Study:
    """A study is a question with a command that answers it.

    Attributes:
        name: of its folder, and of its command: `python -m studies.NAME`.
        pages: its answers.
        where: the folder of its committed pages, where that is not its own.
    """

    name: str
    pages: Sequence[Page]
    where: Path | None = None

    @property
    def folder(self) -> Path:
        """Where its committed pages lie."""
        return self.where or HERE / self.name

    def committed(self, page: Page) -> str:
        """Return a page as it is committed."""
        return (self.folder / page.name).read_text(encoding="utf-8")

    def main(self, arguments: Sequence[str] | None = None) -> int:
        """Print every page, write all into a folder, or print their tables as JSON."""
        parser = argparse.ArgumentParser(
            prog=f"python -m studies.{self.name}", description=f"Its question is in studies/{self.name}/README.md."
        )
        parser.add_argument("--json", action="store_true", help="print the tables of every page as one JSON document")
        parser.add_argument("--out", metavar="DIR", type=Path, help="write pages and pictures into this folder")
        given = parser.parse_args(arguments)
        made = {page.name: page.text() for page in self.pages}
        if given.out is not None:
            for page in self.pages:
                write_whole(given.out / page.name, made[page.name].encode())
                for name, draw in page.pictures.items():
                    draw(given.out / name)
                print(f"wrote {given.out / page.name}", file=sys.stderr)
        if given.json:
            print(json.dumps({"study": self.name, "pages": {name: list(tables(text)) for name, text in made.items()}}))
        elif given.out is None:
            print("\n".join(made.values()))
        return 0


def tables(text: str) -> Iterator[Table]:
    """Yield each table of a page in Markdown.

    >>> list(tables("# A\\n\\n| x | y |\\n|--|--:|\\n| 1 | 2 |\\n"))
    [{'title': 'A', 'rows': [{'x': '1', 'y': '2'}]}]
    """
    title = ""
    head: list[str] | None = None
    rows: list[dict[str, str]] = []
    for line in [*text.splitlines(), ""]:
        if line.startswith("|"):
            cells = [cell.strip() for cell in line.strip().strip("|").split("|")]
            if head is None:
                head = cells
            elif not set("".join(cells)) <= set("-: "):
                rows.append(dict(zip(_apart(head), cells, strict=False)))
            continue
        if head is not None:
            yield {"title": title, "rows": rows}
            head, rows = None, []
        if line.startswith("#"):
            title = line.lstrip("# ")


def _apart(names: Sequence[str]) -> list[str]:
    """Return names of columns, those that come again with their number."""
    return [name if names.index(name) == place else f"{name} {place}" for place, name in enumerate(names)]
