"""The version of both packages, which what they write states."""

__version__ = "0.1.0"
