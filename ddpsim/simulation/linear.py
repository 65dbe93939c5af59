"""Numbers that know of which constants they are sums, so that they need not be found anew under others."""

from __future__ import annotations

from typing import SupportsFloat

Terms = tuple[tuple[str, float], ...]
"""Names of constants, and how many times each is in a number; a name may come twice."""

PER = "1/"
"""Before the name of a constant that is divided by: `1/copy_Bps`."""


class Linear(float):
    """A number that is a sum of constants, each times a coefficient, and of what is no constant.

    Sums with any number, and products with and quotients by plain ones, are linear too; whatever else is done with one
    gives a plain number.
    """

    __slots__ = ("terms",)
    terms: Terms

    def __new__(cls, value: SupportsFloat, terms: Terms) -> Linear:
        """Return a number worth `value`."""
        number = float.__new__(cls, value)
        number.terms = terms
        return number

    @classmethod
    def of(cls, name: str, value: float) -> Linear:
        """Return the constant `name`."""
        return cls(value, ((name, 1.0),))

    def __add__(self, other: float) -> Linear:
        """Return the sum."""
        terms = self.terms + other.terms if isinstance(other, Linear) else self.terms
        return Linear(float.__add__(self, other), terms)

    __radd__ = __add__

    def __sub__(self, other: float) -> Linear:
        """Return the difference."""
        return self + -1.0 * other

    def __mul__(self, other: float) -> Linear:
        """Return the product with a plain number."""
        factor = float(other)
        return Linear(float.__mul__(self, factor), tuple((name, times * factor) for name, times in self.terms))

    __rmul__ = __mul__

    def __truediv__(self, other: float) -> Linear:
        """Return the quotient by a plain number."""
        return self * (1 / float(other))

    def __reduce__(self) -> tuple[type[Linear], tuple[float, Terms]]:
        """Return what a copy is made of."""
        return Linear, (float(self), self.terms)


class Rate(float):
    """A constant that is divided by, as bytes by bytes a second: the quotient is `Linear` in one over it."""

    __slots__ = ("name",)
    name: str

    def __new__(cls, value: SupportsFloat, name: str) -> Rate:
        """Return the constant `name`."""
        number = super().__new__(cls, value)
        number.name = name
        return number

    def __rtruediv__(self, other: float) -> Linear:
        """Return `other` divided by this rate."""
        return Linear(float(other) / float(self), ((PER + self.name, float(other)),))

    def __reduce__(self) -> tuple[type[Rate], tuple[float, str]]:
        """Return what a copy is made of."""
        return Rate, (float(self), self.name)
