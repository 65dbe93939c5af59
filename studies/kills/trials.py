"""Trials: a command that keeps something, what is done to it and when, and what is wrong with what it leaves."""

from __future__ import annotations

import contextlib
import os
import resource
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random

from studies.kills.commands import CAMPAIGN, COMMANDS, alone, dead_labs, is_whole, living, possible
from studies.session import once_a_session

FILE = "campaign.yaml"
ACTIONS = ("SIGKILL", "SIGSTOP", "SIGTERM", "SIGINT", "full", "read-only")
GRACE_S = 60.0
"""How long a command may take to end after a signal, on however busy a machine."""
_FULL_BYTES = 300
"""Bytes after which a file takes no more, as on a disk that is full."""


@dataclass(frozen=True, slots=True)
class Expected:
    """What a command leaves that nobody disturbs: files by name, and the seconds it takes."""

    files: dict[str, bytes]
    seconds: float


def left_in(folder: Path) -> dict[str, bytes]:
    """Return the files under a folder by their names in it, without its own name, which pages have of the command."""
    files = (path for path in folder.rglob("*") if path.is_file() and path.name != FILE)
    return {str(path.relative_to(folder)): path.read_bytes().replace(bytes(folder), b".") for path in files}


def started(name: str, folder: Path, out: Path, *, full: bool = False) -> subprocess.Popen[str]:
    """Start a command in a session of its own; with `full` no file takes more than a few bytes."""
    (folder / FILE).write_text(CAMPAIGN)
    places = {"{out}": str(out), "{file}": str(folder / FILE)}
    words = [places.get(word, word) for word in COMMANDS[name].words]

    def bound() -> None:
        if full:
            resource.setrlimit(resource.RLIMIT_FSIZE, (_FULL_BYTES, _FULL_BYTES))

    return subprocess.Popen(
        [sys.executable, *words], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, env=alone(str(folder)),
        stderr=subprocess.PIPE, text=True, start_new_session=True, preexec_fn=bound,
    )  # fmt: skip


@once_a_session
def expected(name: str) -> Expected:
    """Run a command that nobody disturbs."""
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        begin_s = time.monotonic()
        process = started(name, folder, folder / "out")
        _, said = process.communicate()
        assert process.returncode == 0, said
        return Expected(left_in(folder), time.monotonic() - begin_s)


def trial(name: str, action: str, whole: Expected, folder: Path, random: Random) -> list[str]:
    """Do `action` to a command at a random moment, and return what is wrong with what it left, and with a run after it.

    Args:
        name: of `COMMANDS`.
        action: of `ACTIONS`.
        whole: what the command leaves that nobody disturbs.
        folder: an empty one.
    """
    folder.mkdir(parents=True)
    out = Path("/proc/out") if action == "read-only" else folder / "out"
    dead_before = dead_labs()
    process = started(name, folder, out, full=action == "full")
    if action.startswith("SIG"):
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(random.uniform(0, whole.seconds))
        _signal(process, action)
    try:
        _, said = process.communicate(timeout=GRACE_S)
    except subprocess.TimeoutExpired:
        process.kill()
        return [f"runs {GRACE_S:.0f} s after {action}"]
    wrong = [*_said_wrong(process.returncode, said, action, rank=COMMANDS[name].rank)]
    if not _gone(str(folder)):
        wrong.append("a process of it lives")
        for pid in living(str(folder)):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
    wrong += _left_wrong(folder, whole, action, same=COMMANDS[name].same)
    # Nobody cleans up behind SIGKILL but the next lab; after it a network namespace may stay until then.
    if action != "SIGKILL" and (labs := dead_labs() - dead_before):
        wrong.append(f"namespaces are left: {sorted(labs)}")
    again = started(name, folder, folder / "out")
    _, said = again.communicate()
    found = {name: content for name, content in left_in(folder).items() if not name.endswith(".tmp")}
    alike = found == whole.files if COMMANDS[name].same else found.keys() == whole.files.keys()
    if again.returncode != 0 or not alike:
        differ = sorted(found.keys() ^ whole.files.keys())
        wrong.append(f"the same command again: {again.returncode}, differ in {differ}, {said[-300:]}")
    if COMMANDS[name].lab and (labs := dead_labs() - dead_before):
        wrong.append(f"namespaces are left after the next run: {sorted(labs)}")
    return wrong


def _signal(process: subprocess.Popen[str], action: str) -> None:
    """Send a signal; one that stops is followed by those that go on and end."""
    process.send_signal(getattr(signal, action))
    if action == "SIGSTOP":
        time.sleep(0.2)
        process.terminate()
        process.send_signal(signal.SIGCONT)


def _said_wrong(code: int, said: str, action: str, *, rank: bool) -> Iterator[str]:
    errors = said.count("error:")
    if "Traceback" in said and not (action == "SIGINT" and _before_our_code(said)):
        yield f"a traceback: {said[-400:]}"
    if action in ("full", "read-only") and (code, errors) not in ((2, 1), (0, 0)):
        yield f"exit code {code} and {errors} messages of {action}: {said[-300:]}"
    codes = {"SIGINT": (0, 130, -signal.SIGINT), "SIGTERM": (0, 143, -signal.SIGTERM, *((2,) if rank else ()))}
    codes["SIGSTOP"] = codes["SIGTERM"]
    if action in codes and code not in codes[action] and not (action == "SIGINT" and _in_start_up(code, said)):
        yield f"exit code {code} after {action}: {said[-300:]}"
    if action in codes and errors > 1:
        yield f"{errors} messages after {action}: {said[-300:]}"


def _left_wrong(folder: Path, whole: Expected, action: str, *, same: bool) -> Iterator[str]:
    """Tell files that are neither whole, nor a journal, nor lines that are done; a killed one's temporary may stay."""
    for name, content in left_in(folder).items():
        if name.endswith(".partial") or content == whole.files.get(name):
            continue
        if not same and not name.endswith(".tmp") and is_whole(name, content):
            continue
        if name.endswith(".tmp") and action == "SIGKILL":
            continue
        lines = whole.files.get(name, b"").splitlines()
        if lines and set(content.splitlines()) <= set(lines) and content.endswith(b"\n"):
            continue
        yield f"left {name} of {len(content)} bytes"


def _gone(marked: str) -> bool:
    """Return whether no process that a command started is left within a moment."""
    for _ in range(100):
        if not living(marked):
            return True
        time.sleep(0.1)
    return False


def trials(
    count: int, seed: int, folder: Path, say: Callable[[str], object], only: Sequence[str] | None = None
) -> list[str]:
    """Carry out `count` trials and return what was wrong, a line each.

    Args:
        only: names of `COMMANDS`; None is all that this machine can run, those that take a minute less often.
    """
    wrong: list[str] = []
    for number in range(count):
        name, action, random = drawn(number, seed, only)
        found = trial(name, action, expected(name), folder / str(number), random)
        wrong += [f"trial {number}, {action} to {name}: {each}" for each in found]
        for line in wrong[len(wrong) - len(found) :]:
            say(line)
    return wrong


def drawn(number: int, seed: int, only: Sequence[str] | None = None) -> tuple[str, str, Random]:
    """Return the command and the action of a trial, and what else is drawn for it."""
    names = possible() if only is None else list(only)
    random = Random(f"{seed} {number}")
    [name] = random.choices(names, [1 if COMMANDS[name].lab else 4 for name in names])
    return name, ACTIONS[number % len(ACTIONS)], random


def counted(count: int, seed: int, only: Sequence[str] | None = None) -> str:
    """Return a table of how often each action is tried on each command."""
    tried = Counter(drawn(number, seed, only)[:2] for number in range(count))
    names = [name for name in COMMANDS if any(tried[name, action] for action in ACTIONS)]
    lines = [f"{'command':16}" + "".join(f"{action:>10}" for action in ACTIONS)]
    return "\n".join([*lines, *(f"{n:16}" + "".join(f"{tried[n, action]:10}" for action in ACTIONS) for n in names)])


def _in_start_up(code: int, said: str) -> bool:
    """Return whether Python was interrupted as it imported `site` or `runpy`, for which it ends with 1."""
    return code == 1 and "KeyboardInterrupt" in said and _before_our_code(said)


def _before_our_code(said: str) -> bool:
    """Return whether Python was interrupted before it ran a line of ours, where a signal does what it does to all."""
    return "/ddpsim/" not in said and "/ddpexec/" not in said
