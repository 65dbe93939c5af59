"""`python -m studies.benchmarks`: whole-process speed of the command line, each time beside its bound."""

import subprocess
import sys

from studies.command import parser

PARTS = ("imports", "reach", "channels", "speed", "sharded", "own_step", "compare", "sweeping --busy-points 400")

if __name__ == "__main__":
    parser(__doc__).parse_args()
    for part in PARTS:
        module, *arguments = part.split()
        subprocess.run([sys.executable, "-m", f"studies.benchmarks.{module}", *arguments], check=True)
