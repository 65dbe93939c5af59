"""The outer step that SlowMo takes at each average of parameters."""

from __future__ import annotations

from dataclasses import dataclass

from ddpsim.common.suboptions import factor, value


@dataclass(frozen=True, slots=True)
class OuterStep:
    """An outer step moves parameters from one average beyond the next, by a momentum of its own.

    With x0 the parameters after the outer step before, x their average now and g the learning rate of the inner steps:
    u <- momentum u + (x0 - x) / g; x <- x0 - rate g u.

    Source: Wang et al., "SlowMo: Improving Communication-Efficient Distributed SGD with Slow Momentum" (2020),
    algorithm 1.

    Attributes:
        momentum: of the outer step, the paper's beta; 0.5 is a choice between the 0.4 to 0.8 of its table of settings.
        rate: of the outer step, the paper's alpha, which is 1 there.
    """

    momentum: float = value(factor, 0.5)
    rate: float = value(factor, 1.0)
