"""Options are declared once: what the command line, a campaign and the provenance make of the declarations."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Literal

import pytest
import typer
from typer.testing import CliRunner

from ddpsim import BucketCaps, InputError
from ddpsim.cli.expand import OnlyFields, expand
from ddpsim.cli.flags import error_in_flags, flags_of
from ddpsim.common.options.arguments import format_arguments
from ddpsim.common.options.option import Option, build, check_choices, list_declared, option_values
from ddpsim.common.options.text import factors, layers_by_rank
from ddpsim.simulation.jobs.job_options import JobOptions
from ddpsim.simulation.jobs.simulated import Options


@dataclass(frozen=True, slots=True, kw_only=True)
class Kitchen:
    """Options of each kind."""

    caps: BucketCaps = field(default_factory=BucketCaps)
    heat: Annotated[Literal["low", "high"], Option("How hot.")] = "low"
    fan: Annotated[bool, Option("Without the fan.", name="no_fan")] = True
    light: Annotated[bool, Option("With `fan`, a light.")] = False
    slow: Annotated[Mapping[int, float], Option("Slower.", "RANK:F", parse=factors, repeated=True)] = field(
        default_factory=dict
    )
    plates: Annotated[int | None, Option("Plates.", "N", least=1)] = None
    secret: object = None

    def __post_init__(self) -> None:
        check_choices(self)


@pytest.mark.parametrize(
    ("given", "expected"),
    [({"caps": 25}, r"caps: 25 .*BucketCaps\(bucket_cap_mb=25\)"), ({"accumulate": "4"}, "accumulate: '4' .*number"),
     ({"order": object()}, "order: .* a text"), ({"scale_compute": "2"}, "scale_compute: '2' .*number"),
     ({"find_unused_parameters": "no"}, "find_unused_parameters: 'no' .*True or False")],
)  # fmt: skip
def test_a_value_of_another_type_is_named_with_what_to_give(given: Mapping[str, object], expected: str) -> None:
    with pytest.raises(InputError, match=expected):
        Options(**given)


def made(arguments: list[str], kind: object = Kitchen) -> object:
    """Return what a command with these options gets."""
    found: list[object] = []

    def command(kitchen: kind) -> None:  # type: ignore[valid-type]
        found.append(kitchen)

    command.__annotations__["kitchen"] = kind
    app = typer.Typer()
    app.command()(expand(command))
    result = CliRunner().invoke(app, arguments)
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return found[0] if found else result.output


def test_a_declared_field_is_an_option() -> None:
    arguments = ["--heat", "high", "--no-fan", "--light", "--slow", "1:2", "--slow", "2:3", "--plates", "4"]
    expected = Kitchen(heat="high", fan=False, light=True, slow={1: 2.0, 2: 3.0}, plates=4)
    assert made(arguments) == expected
    assert made([]) == Kitchen()
    assert made(["--bucket-cap-mb", "5"]) == Kitchen(caps=BucketCaps(bucket_cap_mb=5.0))


def test_what_is_written_as_arguments_is_read_back() -> None:
    kitchen = Kitchen(caps=BucketCaps(bucket_cap_mb_list=(1.5, 25.0)), heat="high", fan=False, slow={3: 1.25}, plates=2)
    assert made(format_arguments(Kitchen, option_values(kitchen))) == kitchen
    assert build(Kitchen, option_values(kitchen)) == kitchen
    assert format_arguments(Kitchen, option_values(Kitchen())) == []


def test_a_command_may_take_some_options_only_and_the_help_speaks_of_flags() -> None:
    some = Annotated[Kitchen, OnlyFields(("heat", "fan", "light"))]
    assert made(["--light"], some) == Kitchen(light=True)
    text = str(made(["--help"], some))
    assert "With --no-fan, a light." in text
    assert "--slow" not in text


def test_choices_are_checked_by_the_declaration() -> None:
    with pytest.raises(InputError, match="heat: unknown value 'cold'; use one of low, high"):
        Kitchen(heat="cold")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (InputError("0 is no count", place="process_groups"), "--process-groups: 0 is no count"),
        (InputError("-2", place="stragglers[3]"), "--straggler 3: -2"),
        (InputError("2", place="drop[a.b]: more"), "--drop a.b: more: 2"),
        (InputError("`comm=noop` and `drop` are both given"), "--comm noop and --drop are both given"),
        (InputError("x", place="c.yaml: seed", remedy="use `seed`"), "c.yaml: seed: x; use --seed"),
        (InputError("`ddpsim plan` and `nobody=1`", place="nobody"), "nobody: `ddpsim plan` and `nobody=1`"),
    ],
)
def test_an_error_names_the_flag_on_the_command_line(error: InputError, said: str) -> None:
    from ddpsim.cli.app import whole_command

    command = whole_command().commands["predict"]
    assert error_in_flags(error, flags_of(command)) == said


@pytest.mark.parametrize("kind", [JobOptions, Options])
def test_every_field_is_an_option_or_holds_some(kind: type) -> None:
    told_of = set(option_values(kind()))
    assert told_of == {each.field for each in list_declared(kind)}
    # Several options each, and the bytes of `plan --memory-limit`.
    held = {"caps", "plan", "memory_limit_bytes"}
    assert set(kind.__dataclass_fields__) - told_of <= held  # type: ignore[attr-defined]


def test_layers_by_rank_are_read_and_written_again() -> None:
    values = {"unused": layers_by_rank(["3:encoder.layer.3,head", "5-6:head"], "unused")}
    assert values == {"unused": {3: ("encoder.layer.3", "head"), 5: ("head",), 6: ("head",)}}
    told = format_arguments(Options, values)
    assert told == ["--unused", "3:encoder.layer.3,head", "--unused", "5:head", "--unused", "6:head"]
    assert {"unused": layers_by_rank(told[1::2], "unused")} == values


@pytest.mark.parametrize("item", ["head", "3:", "a:head", "5-3:head", "3-:head,", "-1:head"])
def test_layers_of_no_rank_are_refused(item: str) -> None:
    with pytest.raises(InputError, match=r"unused: .* names no rank and layer"):
        layers_by_rank([item], "unused")


def test_a_rank_whose_layers_are_given_twice_is_refused() -> None:
    with pytest.raises(InputError, match=r"unused\[3\]: is given twice"):
        layers_by_rank(["3:head", "2-4:head"], "unused")


def test_a_cap_may_say_the_unit_that_torch_counts_it_in_and_no_other():
    assert made(["--bucket-cap-mb", "25MiB"]) == made(["--bucket-cap-mb", "25"])
    assert made(["--bucket-cap-mb-list", "1, 2.5 MiB"]) == made(["--bucket-cap-mb-list", "1,2.5"])
    for other in ("25MB", "MiB", "1GiB"):
        with pytest.raises(InputError, match=f"'{other}' is not a number of MiB; write e.g. `bucket_cap_mb=25`"):
            made(["--bucket-cap-mb", other])
