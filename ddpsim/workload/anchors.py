"""Measured one-GPU times that an estimate is scaled to: targets, not factors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from ddpsim.common.errors import InputError, WorkloadError, shorten
from ddpsim.common.options.text import percentage
from ddpsim.common.units import format_time, parse_time

PHASES = ("forward", "backward", "optimizer")
MOSTLY_COMMUNICATION = 0.5
"""A row of which so much would be left without computation says little of the pace."""
DEVICE_REPEATS = 0.001
"""Share within which a step's repetitions lie where the device fills it: GB300's of 20.94 ms, 0.07 %; steps that a host
launches vary by per cents (5.7 % of an RTX 4090's of 66.9 ms). Both pages are in studies/estimates/sources.yaml."""

GIVEN = "given by the user"
"""Source of a time that is not published."""
ROOFLINE_BAND = (-0.18, 0.28)
"""10th and 90th percentile of log(measured / estimated) where nothing but the GPU's figures is known: of the first
half of the published steps, each machine as one (`python -m studies.estimates.estimates_fit`). A step that is given and
lies beyond is asked about."""


MEASURED_ON = "measured_on"
"""Key of an estimate's provenance: the GPU on which a step was measured whose share of the roofline it takes."""
TERM_SHARES = "device_terms"
"""Key of an estimate's provenance: the share of the device's time that each term is, before any anchor."""


@dataclass(frozen=True, slots=True)
class Anchor:
    """A time that was measured on one GPU.

    Attributes:
        phase: `step`, or one of `PHASES`.
        seconds: of the phase on the device, or of the whole step.
        synchronises: as the benchmark waits for the device.
        source: where it was published.
        repeats: share of it within which 80 % of its repetitions lie on either side; None is not known.
    """

    phase: str
    seconds: float
    synchronises: tuple[str, ...] = ()
    source: str = GIVEN
    repeats: float | None = None

    def scale_to_step(self, accumulate: int, added_s: float) -> Anchor:
        """Return this anchor as one of all forwards and backwards of a step, without the addition of gradients.

        Args:
            accumulate: of the step.
            added_s: what adding their gradients takes of it.

        Raises:
            WorkloadError: a step that takes no longer than that.
        """
        if self.phase == "step" and self.seconds <= added_s:
            what = f"a step of {format_time(self.seconds)} leaves nothing beside {format_time(added_s)} of additions"
            raise WorkloadError(what, place="accumulate", remedy="give the time of a whole step of the optimizer")
        by_phase = {"step": self.seconds - added_s, "optimizer": self.seconds}
        return replace(self, seconds=by_phase.get(self.phase, accumulate * self.seconds))


def sum_to_step(phases_s: Sequence[float], accumulate: int) -> list[float]:
    """Return the times of forward, backward and optimizer in a step of several micro-batches, from those of one."""
    forward, backward, optimizer = phases_s
    return [accumulate * forward, accumulate * backward, optimizer]


@dataclass(frozen=True, slots=True)
class RooflineFactors:
    """The factors by which an estimate's times exceed the roofline's: 1.2 is a fifth slower than it.

    Attributes:
        phases: on the device's time of forward, backward and optimizer.
        host: on the host's time.
        scale: the times that were given over the roofline's.
    """

    phases: tuple[float, float, float] = (1.0, 1.0, 1.0)
    host: float = 1.0
    scale: float = 1.0

    def document(self) -> dict[str, object]:
        """Return this as a workload's provenance keeps it."""
        return {"phases": list(self.phases), "host": self.host, "scale": self.scale}

    @classmethod
    def if_scaled(cls, provenance: Mapping[str, object], place: str) -> RooflineFactors | None:
        """Return the pace of an estimate that says it was scaled to a measured time; None of one that does not.

        Raises:
            WorkloadError: one that says so with a pace that cannot be read.
        """
        pace = provenance.get("pace")
        if provenance.get("scaled_to") is None and pace in (None, cls().document()):
            return None
        try:
            return cls.of(provenance, place)
        except WorkloadError as error:
            what = f"was scaled to a measured time, and its pace cannot be read: {shorten(repr(pace), 80)}"
            remedy = "make the file again with `python -m ddpexec estimate --one-gpu-step ...`"
            raise WorkloadError(what, place=f"{place}: provenance.pace", remedy=remedy) from error

    @classmethod
    def of(cls, provenance: Mapping[str, object], place: str) -> RooflineFactors:
        """Return the pace of an estimate that has been scaled to a measured time; its optimizer's is not carried on.

        That of a distributed row multiplies the device's.

        Raises:
            WorkloadError: a workload that is no such estimate.
        """
        pace, scale, measured = (provenance.get(key) for key in ("pace", "scale", "scaled_to"))
        try:
            row = float(provenance.get("row_scale", 1.0))  # type: ignore[arg-type]
            if isinstance(pace, Mapping) and (measured is not None or dict(pace) != cls().document()):
                forward, backward, _ = map(float, pace["phases"])
                return cls((forward * row, backward * row, 1.0), float(pace["host"]), float(pace["scale"]) * row)
            if not isinstance(pace, Mapping) and measured is not None and isinstance(scale, float):
                return cls((scale * row, scale * row, 1.0), 1.0, scale * row)
        except (KeyError, TypeError, ValueError):
            pass
        remedy = "make one with `python -m ddpexec estimate --one-gpu-step ...`"
        raise WorkloadError("no estimate that was scaled to a measured step", place=place, remedy=remedy)


def parse_anchor(text: str, place: str) -> Anchor:
    """Return the anchor of `122.18ms`, a whole step, or `backward=80ms`; of `20.94ms±0.1%` with how well it repeats.

    Raises:
        InputError: no such phase, no time above zero with its unit, or no percentage from 0 to 100 behind the `±`.
    """
    whole, sign, noise = text.replace("+-", "±").partition("±")
    name, equals, time = whole.rpartition("=")
    phase = name if equals else "step"
    if phase not in ("step", *PHASES):
        remedy = "write 122.18ms, or " + ", ".join(f"{known}=80ms" for known in PHASES)
        raise InputError(f"{phase!r} is no phase of a step", place=place, remedy=remedy)
    seconds = parse_time(time, place)
    if seconds <= 0:
        raise InputError(f"{text!r} is not a time that a step takes", place=place, remedy="give a time above zero")
    repeats = percentage(noise, place) if sign else None
    if repeats is not None and (phase != "step" or not 0 <= repeats < 1):
        remedy = "write 20.94ms±0.1%, of a whole step"
        raise InputError(f"{text!r} is no step and its noise", place=place, remedy=remedy)
    return Anchor(phase, seconds, repeats=repeats)


def find_repeat_spread(anchors: Sequence[Anchor]) -> float | None:
    """Return how well a step that was given repeats; None where that is not known."""
    return next((anchor.repeats for anchor in anchors if anchor.repeats is not None), None)


def pace_of(
    works_s: Sequence[float], host_s: float, anchors: Sequence[Anchor], *, keep_optimizer: bool, place: str
) -> RooflineFactors:
    """Return the factors with which the roofline meets `anchors`.

    A phase is met by its device's time; phases without an anchor of their own share the step's remainder, or take the
    pace of the first that has one. A step shorter than its launches, where those take longer than its kernels, is met
    by the host: launches and kernels are only shortened. One longer than both is met by the device; that the host may
    fill it is a doubt of the prediction. One that repeats as devices do is met by the device, however long it is.

    Args:
        works_s: the roofline's device time of forward, backward and optimizer.
        host_s: host time of a step.
        anchors: one for a phase at most, and one for the step.
        keep_optimizer: whether an optimizer without an anchor keeps its time.
        place: what names the step in errors.

    Raises:
        WorkloadError: phases that leave nothing of the step, or a phase given twice.
    """
    seconds = {anchor.phase: anchor.seconds for anchor in anchors}
    if len(seconds) < len(anchors):
        raise WorkloadError("a phase is given twice", place=place, remedy="keep one time for each")
    if not seconds:
        return RooflineFactors()
    fixed = {phase: seconds[phase] / work for phase, work in zip(PHASES, works_s, strict=True) if seconds.get(phase)}
    if keep_optimizer:
        fixed.setdefault("optimizer", 1.0)
    known_s = sum(fixed[phase] * work for phase, work in zip(PHASES, works_s, strict=True) if phase in fixed)
    open_s = sum(work for phase, work in zip(PHASES, works_s, strict=True) if phase not in fixed)
    step_s, whole_s = seconds.get("step"), sum(works_s)
    if step_s is None:
        rest = next(fixed[phase] for phase in PHASES if phase in seconds)
        measured_s = sum(seconds.values())
        modelled_s = sum(work for phase, work in zip(PHASES, works_s, strict=True) if phase in seconds)
        return _pace(fixed, rest, 1.0, measured_s / modelled_s)
    if open_s and step_s <= known_s:
        what = f"a step of {format_time(step_s)} leaves nothing beside the {format_time(known_s)} of its other phases"
        raise WorkloadError(what, place=place, remedy="give the whole step's time, or that of each phase")
    rest = (step_s - known_s) / open_s if open_s else 1.0
    repeats = find_repeat_spread(anchors)
    by_device = repeats is not None and repeats <= DEVICE_REPEATS
    if host_s > whole_s and step_s < host_s and not by_device:
        return _pace(fixed, min(rest, 1.0), step_s / host_s, step_s / host_s)
    return _pace(fixed, rest, min(1.0, step_s / host_s), step_s / whole_s)


def _pace(fixed: dict[str, float], rest: float, host: float, scale: float) -> RooflineFactors:
    forward, backward, optimizer = (fixed.get(phase, rest) for phase in PHASES)
    return RooflineFactors((forward, backward, optimizer), host, scale)


def check_floor(anchors: Sequence[Anchor], floors_s: Sequence[float], place: str, accumulate: int = 1) -> None:
    """Refuse a time that the GPU cannot reach.

    Args:
        anchors: that were given.
        floors_s: least time of forward, backward and optimizer.
        place: what names the step in errors.
        accumulate: of a step.

    Raises:
        WorkloadError: an anchor below its floor.
    """
    floors = dict(zip(PHASES, floors_s, strict=True)) | {"step": sum(sum_to_step(floors_s, accumulate))}
    for anchor in anchors:
        if anchor.seconds < floors[anchor.phase]:
            raise WorkloadError(
                f"{format_time(anchor.seconds)} is below the roofline's floor of {format_time(floors[anchor.phase])} "
                f"for the {anchor.phase}: all arithmetic at the peak, the optimizer at the full bandwidth",
                place=place,
                remedy="check its unit, the batch size, the precision and the GPU",
            )
