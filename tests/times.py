"""How long `make test` takes, and whether it is green every time: `python -m tests.times`.

Prints for each run how long it took, how many processor seconds, what pytest counted, and each test that failed, with
what pytest says of it, or ran again; of a single run the twenty slowest tests. With `--by-test FILE` also the
processor's seconds by file, and by test into FILE. Beside `--load N` processes that never rest. Ends with 1 where a run
was not green, or a test ran again for another reason than an abort of torch's native code.
"""

from __future__ import annotations

import argparse
import os
import re
import resource
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ddpsim.cli.progress import Progress
from tests.conftest import ABORTED, AGAIN

PYTEST = "-m", "pytest", "tests", "-n", "2", "--dist=worksteal", "-r", "fE"
SLOWEST = 20
TOLD = re.compile(rf"^(FAILED|ERROR|{AGAIN}|left to|\d+ (passed|failed|error)).*", re.MULTILINE)
FAILURES = re.compile(
    r"^=+ (?:ERRORS|FAILURES) =+$.*?(?=^=+ (?:warnings|slowest|short test) )", re.MULTILINE | re.DOTALL
)
DONE = re.compile(r"\[ *(\d+)%\]$")
TIMES = re.compile(r"^ *[\d.]+s (call|setup|teardown) .*|^ *[\d.]+ +[\d.]+ +\d+  .*", re.MULTILINE)


@contextmanager
def load(processes: int) -> Iterator[None]:
    """Keep that many processes busy."""
    busy = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(processes)]
    try:
        yield
    finally:
        for process in busy:
            process.kill()
            process.wait()


def run(part: str, by_test: Path | None, progress: Progress) -> tuple[bool, str]:
    """Run a part of the tests once; return whether it was green, and all that pytest said."""
    words = [sys.executable, *PYTEST, "--part", part, f"--durations={SLOWEST}", "--durations-min=0"]
    if by_test is not None:
        words += ["-p", "tests.processor", "--seconds-by-test", str(by_test)]
    wide = {**os.environ, "COLUMNS": "400"}  # pytest cuts the reason of a failure at the terminal's width
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
    with subprocess.Popen(words, text=True, env=wide, **pipes) as child:
        lines = []
        for line in child.stdout or ():
            lines.append(line)
            if percent := DONE.search(line):
                progress(int(percent[1]), 100)
    again = [line for line in lines if line.startswith(AGAIN)]
    return child.returncode == 0 and all(ABORTED in line for line in again), "".join(lines)


def main() -> int:
    """Run as often as was asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeat", type=int, default=1, help="how often")
    parser.add_argument("--load", type=int, default=0, help="processes that are busy beside it")
    parser.add_argument("--part", choices=("quick", "rest"), default="quick", help="of the tests")
    parser.add_argument("--by-test", type=Path, metavar="FILE", help="write each test's seconds there, in JSON")
    given = parser.parse_args()
    red = 0
    with load(given.load):
        for number in range(1, given.repeat + 1):
            begin_s, before = time.monotonic(), resource.getrusage(resource.RUSAGE_CHILDREN)
            progress = Progress(f"run {number} of {given.repeat}, percent")
            green, text = run(given.part, given.by_test, progress)
            after = resource.getrusage(resource.RUSAGE_CHILDREN)
            spent_s = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
            red += not green
            words = "green" if green else "RED"
            print(f"run {number}: {words}, {time.monotonic() - begin_s:.0f} s, {spent_s:.0f} processor seconds")
            for told in TOLD.finditer(text):
                print(f"    {told[0]}")
            if failures := FAILURES.search(text):
                print(failures[0])
            if given.repeat == 1:
                print("\n".join(line[0] for line in TIMES.finditer(text)))
            sys.stdout.flush()
    print(f"{given.repeat - red} of {given.repeat} runs green")
    return 1 if red else 0


if __name__ == "__main__":
    sys.exit(main())
