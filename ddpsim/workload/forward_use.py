"""When forward first needs each parameter: what a schedule that lets forward wait, parameter by parameter, goes by."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ddpsim.errors import WorkloadError

MOST_S = 1e9
"""Seconds at most of any time of an iteration; chosen by hand, thirty years: sums of times are then numbers too."""


@dataclass(frozen=True, slots=True)
class ForwardUse:
    """When forward first needs each parameter, from the start of forward.

    Attributes:
        host_s: seconds until the host launches the first operator that reads it, by registration index; NaN where
            forward reads it nowhere.
        device_s: seconds until the device begins that operator; likewise. Time in which it idles is in it.
    """

    host_s: NDArray[np.float64]
    device_s: NDArray[np.float64]

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, ForwardUse):
            return NotImplemented
        pairs = ((self.host_s, other.host_s), (self.device_s, other.device_s))
        return all(np.array_equal(mine, theirs, equal_nan=True) for mine, theirs in pairs)

    @classmethod
    def at_the_start(cls, parameters: int) -> ForwardUse:
        """Return that of a forward which needs all of so many parameters when it starts."""
        return cls(np.zeros(parameters), np.zeros(parameters))

    def scaled(self, host: float, device: float) -> ForwardUse:
        """Return this with the host's times multiplied by `host` and the device's by `device`."""
        return ForwardUse(self.host_s * host, self.device_s * device)

    def shares(self, host_s: float, device_s: float) -> ForwardUse:
        """Return this as shares of a forward of so many seconds; NaN where forward never needs a parameter.

        Where the device idles for want of launches, its last use is later than its busy time: that is the whole then.
        """
        return ForwardUse(_shares(self.host_s, host_s), _shares(self.device_s, device_s))

    def repaced(self, device: float) -> ForwardUse:
        """Return this with the device's work multiplied by `device`; no operator begins before it is launched.

        The two clocks start apart, so that an operator may begin before its launch on the other: it did then too.
        """
        launched_s = np.minimum(self.host_s, self.device_s)
        return ForwardUse(self.host_s, np.maximum(self.device_s * device, launched_s))

    def on_one_clock(self) -> ForwardUse:
        """Return this with host and device as one clock: the later of the two."""
        seconds = np.maximum(self.host_s, self.device_s)
        return ForwardUse(seconds, seconds)

    def check(self, parameters: int) -> None:
        """Hold this against the number of parameters.

        Raises:
            WorkloadError: another number of times, a time that is negative or above `MOST_S`, or on one clock only.
        """
        for clock, times in (("host", self.host_s), ("device", self.device_s)):
            place = f"forward_use_s.{clock}"
            if times.shape != (parameters,):
                raise WorkloadError(f"{len(times)} times for {parameters} parameters", place=place)
            if len(bad := np.flatnonzero((times > MOST_S) | (times < 0))):
                raise WorkloadError(f"{times[bad[0]]} is not a time in seconds", place=f"{place}.{bad[0]}")
        if len(bad := np.flatnonzero(np.isnan(self.host_s) != np.isnan(self.device_s))):
            what, remedy = "a parameter has one of its two times only", "give both or neither"
            raise WorkloadError(what, place=f"forward_use_s.device.{bad[0]}", remedy=remedy)


def median_use(uses: Sequence[ForwardUse]) -> ForwardUse:
    """Return the median of each parameter's times over those of `uses`, one at least, in which forward needs it."""
    return ForwardUse(_medians([use.host_s for use in uses]), _medians([use.device_s for use in uses]))


def _shares(times: NDArray[np.float64], whole_s: float) -> NDArray[np.float64]:
    whole_s = max(whole_s, float(np.max(times, initial=0.0, where=~np.isnan(times))))
    return times / whole_s if whole_s > 0 else times


def _medians(rows: Sequence[NDArray[np.float64]]) -> NDArray[np.float64]:
    table = np.array(rows)
    found, used = np.full(table.shape[1], np.nan), ~np.isnan(table).all(axis=0)
    found[used] = np.nanmedian(table[:, used], axis=0)
    return found
