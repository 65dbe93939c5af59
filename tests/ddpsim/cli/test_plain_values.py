"""Options that need no conversion are taken as typer would take them; it refuses all others in its own words."""

from typing import Annotated

import pytest
import typer

from ddpsim.cli.sections import take_plain_values

VALUES = [
    [], ["--count", "3"], ["--count", "0"], ["--count", "x"], ["--count", "1_0"], ["--count", " 4"], ["--share", "0.5"],
    ["--share", "2"], ["--share", "x"], ["--name", "two words"], ["--each", "a", "--each", "b"], ["--flag"],
    ["--kind", "fast"], ["--kind", "other"], ["--no-such"], ["--need", "1", "--count", "99999999999999999999"],
]  # fmt: skip


def command():
    program = typer.Typer(add_completion=False)

    @program.command()
    def show(
        need: Annotated[int, typer.Option(max=5)] = 2,
        count: Annotated[int | None, typer.Option(min=1)] = None,
        share: Annotated[float, typer.Option()] = 1.0,
        name: Annotated[str | None, typer.Option()] = None,
        each: Annotated[list[str] | None, typer.Option()] = None,
        flag: Annotated[bool, typer.Option("--flag")] = False,
        upper: Annotated[str, typer.Option(callback=lambda value: value.upper())] = "a",
        number: Annotated[str, typer.Option(parser=lambda text: f"<{text}>")] = "b",
    ) -> None:
        print([need, count, share, name, list(each or ()), flag, upper, number])

    return typer.main.get_command(program)


def outcome(made, arguments, capsys):
    """Return what a command printed, or how it refused its arguments."""
    try:
        made(args=list(arguments), prog_name="show", standalone_mode=False)
    except Exception as error:
        return type(error).__name__, error.format_message()
    return capsys.readouterr().out


@pytest.mark.parametrize("arguments", VALUES)
def test_values_and_refusals_are_typers(arguments, capsys):
    plain, converted = command(), command()
    take_plain_values(plain)
    assert outcome(plain, arguments, capsys) == outcome(converted, arguments, capsys)


def test_a_required_option_that_is_not_given_is_missed(capsys):
    program = typer.Typer(add_completion=False)

    @program.command()
    def show(name: Annotated[str, typer.Option()]) -> None: ...

    made = typer.main.get_command(program)
    take_plain_values(made)
    assert outcome(made, [], capsys) == ("MissingParameter", "Missing option '--name'.")
