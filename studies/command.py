"""The command line of a module of a study: `--help` prints its docstring, and a word that it does not know ends it."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def parser(document: str | None) -> argparse.ArgumentParser:
    """Return the parser of the module that this process runs; `document` is its docstring.

    Options are the caller's to add; without any, the command takes none but `--help`.
    """
    file = Path(sys.argv[0]).resolve()
    name = ".".join(file.relative_to(ROOT).with_suffix("").parts) if file.is_relative_to(ROOT) else file.name
    return argparse.ArgumentParser(
        prog=f"python -m {name.removesuffix('.__main__')}",
        description=document,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
