"""The command `ddpsim`: one file for each command. Nothing else in the package prints or exits.

`main` below is the process's entry; `app` lists the commands and loads only the one that runs, which keeps the start
short. A command is a function whose parameters are dataclasses of options; `expand` makes flags of them. It calls the
room that does the work and hands the result to `output`, as text, JSON or CSV; `destination` delivers pages and plots,
`keeping` and `progress` serve commands that take long, and `*_text` files word an answer.

Start with `predict.py` as an example, then `app.py`. `ddpexec`'s commands use the same parts.

Public modules: app, breakdown, destination, doctor, expand, options, output, plan, plan_text, progress, sections.
"""

# Nothing that is read from a file is imported before interrupts are handled, `signal` and `typing` neither.
import _signal  # type: ignore[import-not-found]
import gc
import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

YOUNG = 50_000
"""New objects between two garbage collections, by default 700: those of a simulation are tens of megabytes at most."""


def main(arguments: "Sequence[str] | None" = None) -> None:
    """Run the command `ddpsim` and exit: 0, 1 where a bound is exceeded, 2 on bad input."""
    # Without arguments the process is the command's own, not a test's or a notebook's: then no garbage is collected
    # while modules are imported, and their objects are left out of later collections.
    own = arguments is None
    if own:
        gc.disable()
        end_on_interrupt()
        # Pydantic looks for plugins in what every installed package says of itself; the command has no use for any.
        os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "__all__")
    from ddpsim.cli.app import command_for, command_name, run

    arguments = sys.argv[1:] if arguments is None else arguments
    if own:
        command_for(command_name(arguments))
        gc.freeze()  # what was imported stays to the end
        gc.set_threshold(YOUNG)
        gc.enable()
    sys.exit(run(arguments))


def end_on_interrupt() -> None:
    """Have SIGINT end this process with one line, while a command's modules are imported and after it is done.

    An interrupt that is raised in the middle of an import is a traceback, or an error of whatever is imported.
    """

    def end(number: int, frame: object) -> None:
        os.write(2, b"error: interrupted\n")
        os._exit(128 + number)

    if _signal.getsignal(_signal.SIGINT) is _signal.default_int_handler:
        _signal.signal(_signal.SIGINT, end)
