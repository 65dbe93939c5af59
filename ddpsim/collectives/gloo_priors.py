"""The constants of gloo's transport without measurements."""

from __future__ import annotations

from ddpsim.collectives.constant import Constant

_SHAPED = "four ranks over shaped links, torch 2.13 (tc tbf at 200 Mbit/s and 1 Gbit/s, MTU 1500)"
_LOOPBACK = "two ranks over loopback of a two-core machine, torch 2.13: 0.25 ms up to 256 KiB"

GLOO_PRIORS = (
    Constant("gloo.launch_s", 1.5e-4, "s", f"{_LOOPBACK}; what is left after the steps", log_std=1.0),
    Constant("gloo.step_s", 5.0e-5, "s", f"{_LOOPBACK}; per step, threads woken on both ends", log_std=1.0),
    Constant("gloo.round_trips", 1.1, "1", f"{_SHAPED}; a step waits for the receiver's ready message"),
    Constant("gloo.efficiency.network", 1 / 1.046, "1", f"{_SHAPED}; packet headers", log_std=0.02),
    Constant("gloo.efficiency.loopback", 1.0, "1", "links of kind loopback state what gloo reaches", log_std=1.0),
    Constant("gloo.reduce.bandwidth", 8e9, "B/s", "float32 sum by one core, three streams of a DDR4 channel"),
    Constant(
        "gloo.copy.bandwidth",
        2e9,
        "B/s",
        "what torch copies before a reduce-scatter and after an all-gather, into fresh memory: 0.5 to 5 GB/s beside an "
        "allreduce of the same bytes, shaped links, torch 2.13",
        log_std=0.7,
    ),
    Constant("gloo.host.bandwidth", 6e9, "B/s", "TCP between processes of a GPU node, all together; estimate"),
    Constant("gloo.staging.efficiency", 0.8, "1", "copies between pinned host memory and GPU over PCIe; estimate"),
)
"""Sources: gloo/allreduce.cc (segments, two in flight), torch ProcessGroupGloo.cpp (threads, staging)."""
