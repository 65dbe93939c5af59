"""How large a cluster may be: beyond these counts nothing real lies, and memory ends."""

MOST_NODES = 100_000
"""Nodes of a cluster; the largest built have a tenth of them."""

MOST_RANKS = 1_000_000
"""Ranks of a job."""

MOST_GPUS = 128
"""GPUs, processes or NICs of one node; a rack that NVLink joins has 72."""

MOST_PAIRS = 2 * MOST_GPUS**2
"""GPUs times the devices that each may talk to on its node, of all templates of a file: their routes are searched."""

MOST_SOCKETS = 16
"""Sockets of a node: each is linked to each."""

MOST_LINKS = 1024
"""Links of one kind side by side."""
