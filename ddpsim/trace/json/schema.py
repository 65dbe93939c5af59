"""Words that a written trace and its reader share."""

SCHEMA = "ddpsim.trace/1"
RUN_SCHEMA = "ddpsim.run/1"

COLLECTIVE = "nccl:"
"""Begins the name of a collective's annotation."""

KERNEL = "ncclDevKernel_"
"""Begins the name of the kernel under it."""

RECORD = "iteration_record"
"""Key of an `Iteration` in the args of its event."""

PATH = "critical_path"
"""Category of the slices of a simulated step's longest path, and of the arrows between them."""
