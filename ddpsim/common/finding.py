"""`Finding`, one line of `doctor`: what was checked, the result, and a shell command that shows it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass

YES, NO, UNKNOWN = "yes", "no", "unknown"
"""Words, for JSON's true and false leave no room for the third."""


@dataclass(frozen=True, slots=True)
class Finding:
    """A finding.

    Attributes:
        name: what was checked.
        able: `yes`, `no`, or `unknown` where it could not be checked.
        found: the result in words, versions and counts included.
        proof: a shell command that shows it.
        remedy: what would make it able; empty where nothing is missing or nothing helps.
    """

    name: str
    able: str
    found: str
    proof: str
    remedy: str = ""

    def document(self) -> dict[str, str]:
        """Return the finding as JSON values."""
        return asdict(self)

    @classmethod
    def of(cls, document: Mapping[str, object]) -> Finding:
        """Return the finding that `document` made.

        Raises:
            TypeError, ValueError: it is none.
        """
        finding = cls(**{name: str(value) for name, value in document.items()})
        if finding.able not in (YES, NO, UNKNOWN):
            raise ValueError(f"{finding.able!r} is none of {YES}, {NO}, {UNKNOWN}")
        return finding


def format_able(here: bool) -> str:
    """Return `yes` or `no`."""
    return YES if here else NO
