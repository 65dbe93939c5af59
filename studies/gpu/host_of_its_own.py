"""One rank of `ddpexec` that NCCL takes for a machine of its own: `torchrun ... -m studies.gpu.host_of_its_own ...`.

NCCL refuses two ranks of one host on one GPU; NCCL_HOSTID tells it what a host is, and has to differ by rank.
"""

from __future__ import annotations

import os

from ddpexec.__main__ import main

if __name__ == "__main__":
    os.environ["NCCL_HOSTID"] = f"rank-{os.environ.get('RANK', '0')}"
    main()
