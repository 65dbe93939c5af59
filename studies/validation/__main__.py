"""`python -m studies.validation`: what was predicted before the kept runs, and what today's code says of them."""

from __future__ import annotations

import shutil
import sys
import tempfile
from functools import partial
from pathlib import Path

from studies.study import Page, Study
from studies.validation import validation

_FOLDER = Path(tempfile.gettempdir())
_PICTURES = [f"validation-lab-{what}.png" for what in ("buckets", "errors", "steps")]


def _text() -> str:
    return validation.page(validation.ROOT / "traces", _FOLDER)


def _drawn(name: str, path: Path) -> None:
    shutil.copyfile(_FOLDER / name, path)


STUDY = Study(
    "validation",
    (Page("validation.md", _text, {name: partial(_drawn, name) for name in _PICTURES}, again="asked"),),
)

if __name__ == "__main__":
    sys.exit(STUDY.main())
