"""Build these pages as a site: `python docs/build.py OUT` (`make docs`), then open `OUT/site/index.html`.

The pages link to files beside `docs` (the README, studies, examples). MkDocs wants all pages under one folder, so the
tracked files that can be reached from the pages are copied to `OUT/pages`, in the places they have in the repository,
with pages on the Python names beside them. A link that leads nowhere is an error, with its page.
"""

from __future__ import annotations

import argparse
import importlib
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from types import ModuleType

ROOT = Path(__file__).resolve().parent.parent
LINK = re.compile(r"(\]\()([^)#:\s]+)((?:#[^)\s]*)?\))")
FENCE = re.compile(r"^```(\w+) (\S.*)$", re.MULTILINE)
API = "docs/reference/python"
SEARCH = "docs/iframe-worker.js"


class DeadLinkError(Exception):
    """A page links to what the repository does not have."""


def stage(pages: Path) -> None:
    """Copy every tracked file that a page leads to into `pages`; a link to a folder leads to its README.

    Raises:
        DeadLinkError: a link to no tracked file.
    """
    tracked = set(subprocess.check_output(["git", "ls-files"], cwd=ROOT, text=True).splitlines())
    waiting = ["README.md", *sorted(name for name in tracked if name.startswith("docs/") and name.endswith(".md"))]
    seen = set(waiting)
    while waiting:
        name = waiting.pop()
        target = pages / name
        target.parent.mkdir(parents=True, exist_ok=True)
        if not name.endswith(".md"):
            shutil.copyfile(ROOT / name, target)
            continue
        text, linked = resolve_links(name, (ROOT / name).read_text(), tracked)
        target.write_text(title_blocks(text))
        waiting += sorted(linked - seen)
        seen |= linked


def resolve_links(page: str, text: str, tracked: set[str]) -> tuple[str, set[str]]:
    """Return `text` with links to folders led to their READMEs, and the files that are linked.

    Args:
        page: path of the page, from the root of the repository.
        tracked: the repository's files.

    Raises:
        DeadLinkError: a link to none of them.
    """
    linked: set[str] = set()

    def resolve(match: re.Match[str]) -> str:
        target = match[2]
        name = str((ROOT / page).parent.joinpath(target).resolve().relative_to(ROOT))
        if f"{name}/README.md" in tracked:
            name, target = f"{name}/README.md", f"{target.rstrip('/')}/README.md"
        if name not in tracked:
            raise DeadLinkError(f"{page}: a link to {target}, which the repository does not have")
        linked.add(name)
        return f"{match[1]}{target}{match[3]}"

    return LINK.sub(resolve, text), linked


def title_blocks(text: str) -> str:
    """Return `text` with blocks as the site takes them: the name of a block's file is its title.

    What the tests read behind `console` says nothing to a reader, and a block with such words is none to MkDocs.
    """
    return FENCE.sub(lambda block: f"```{block[1]}" + ("" if block[1] == "console" else f' title="{block[2]}"'), text)


def write_api(folder: Path) -> None:
    """Write a page for each package into `folder`, with a directive for each public name."""
    folder.mkdir(parents=True, exist_ok=True)
    for package in ("ddpsim", "ddpexec"):
        module = importlib.import_module(package)
        names = "\n\n".join(f"::: {package}.{name}" for name in sorted(public_names(module), key=str.lower))
        (folder / f"{package}.md").write_text(f"# {package} in Python\n\n{names}\n")


def public_names(module: ModuleType) -> list[str]:
    """Return the names that a package offers: those that `dir` lists, without Python's own."""
    return [name for name in dir(module) if not name.startswith("__")]


def main() -> int:
    """Stage the pages and run MkDocs; return its exit code, which is not 0 where it warns."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path, help="folder for `pages` and `site`")
    out: Path = parser.parse_args().out.resolve()
    pages = out / "pages"
    shutil.rmtree(pages, ignore_errors=True)
    try:
        stage(pages)
    except DeadLinkError as error:
        print(error, file=sys.stderr)
        return 2
    write_api(pages / API)
    shutil.copyfile(ROOT / SEARCH, pages / SEARCH)
    settings = out / "mkdocs.yml"
    fixed = (ROOT / "docs/mkdocs.yml").read_text().replace("docs/signatures.py", str(ROOT / "docs/signatures.py"))
    settings.write_text(f"{fixed}docs_dir: {pages}\nsite_dir: {out / 'site'}\n")
    quiet = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}  # the theme announces another product
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--config-file", str(settings)]
    return subprocess.run(command, cwd=ROOT, env=quiet, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
