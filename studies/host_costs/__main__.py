"""`python -m studies.host_costs`: what a host's work costs on this machine, each constant by its own measurement."""

import subprocess
import sys

from studies.command import parser

PARTS = ("additions", "graph_splits", "loading", "order_costs", "replicas")

if __name__ == "__main__":
    parser(__doc__).parse_args()
    for part in PARTS:
        subprocess.run([sys.executable, "-m", f"studies.host_costs.{part}"], check=True)
