import pytest

from ddpsim.common.errors import InputError, UnknownNameError
from ddpsim.planning.compare import compare
from ddpsim.planning.prices import Price, index_by_machine, machine_names, parse_price, prices_of, read_prices


def test_a_price_has_a_machine_a_currency_and_perhaps_a_day():
    assert parse_price("dgx-a100=32.77USD/h") == ("dgx-a100", Price(32.77, "USD"))
    assert parse_price("own=rack.yaml=3EUR/h@2026-11-22") == ("own=rack.yaml", Price(3.0, "EUR", "2026-11-22"))


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("dgx-a100=32.77/h", "names no currency"),
        ("dgx-a100=32.77", "names no currency"),
        ("dgx-a100=32.77USD", "does not say what it is the price of"),
        ("dgx-a100=-1USD/h", "out of range"),
        ("dgx-a100=..USD/h", "has no number"),
        ("32.77USD/h", "no machine with its price"),
        ("dgx-a100=1USD/h@2026-02-30", "no day"),
        ("dgx-a100=1usd/h", "no machine with its price"),
    ],
)
def test_what_is_no_price_is_refused_with_an_example(text, says):
    with pytest.raises(InputError, match=says) as caught:
        parse_price(text)
    assert caught.value.place == "price"
    assert caught.value.remedy


def test_a_file_of_prices_has_its_currency_and_its_day(tmp_path):
    path = tmp_path / "prices.yaml"
    path.write_text("currency: EUR\ndate: 2026-11-01\nper_hour: {dgx-1v: 9.5, dgx-a100: 30}\n")
    assert read_prices(path) == {
        "dgx-1v": Price(9.5, "EUR", "2026-11-01"),
        "dgx-a100": Price(30.0, "EUR", "2026-11-01"),
    }


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("date: 2026-11-01\nper_hour: {dgx-1v: 9.5}\n", "currency"),
        ("currency: EUR\nper_hour: {dgx-1v: 9.5}\n", "date"),
        ("currency: EUR\ndate: 2026-13-01\nper_hour: {dgx-1v: 9.5}\n", "malformed YAML|no day"),
        ("currency: EUR\ndate: 2026-11-01\nper_hour: {dgx-1v: -9.5}\n", "no price"),
        ("currency: EUR\ndate: 2026-11-01\nper_hour: {dgx-1v: 9USD}\n", "no price"),
        ("currency: euros\ndate: 2026-11-01\nper_hour: {dgx-1v: 9}\n", "currency"),
        ("currency: EUR\ndate: 2026-11-01\nper_hour: {}\n", "per_hour"),
    ],
)
def test_a_file_of_prices_that_lacks_something_is_refused(tmp_path, text, says):
    path = tmp_path / "prices.yaml"
    path.write_text(text)
    with pytest.raises(InputError, match=says):
        read_prices(path)


def test_an_option_takes_the_place_of_the_file_and_currencies_must_agree(tmp_path):
    path = tmp_path / "prices.yaml"
    path.write_text("currency: USD\ndate: 2026-11-01\nper_hour: {dgx-1v: 9.5, dgx-a100: 1}\n")
    assert prices_of(["dgx-1v=8USD/h"], path, ["dgx-1v"]) == {"dgx-1v": Price(8.0, "USD")}
    with pytest.raises(InputError, match="dgx-a100 in EUR and dgx-1v in USD do not compare"):
        prices_of(["dgx-a100=8EUR/h"], path, ["dgx-1v", "dgx-a100"])
    with pytest.raises(InputError, match="unknown machine 'dgx-1w'"):
        prices_of(["dgx-1w=8EUR/h"], None, ["dgx-1v"])
    with pytest.raises(InputError, match="given twice"):
        prices_of(["dgx-1v=8EUR/h", "dgx-1v=9EUR/h"], None, ["dgx-1v"])


def test_a_list_may_price_machines_that_are_not_compared_what_is_typed_may_not(tmp_path):
    """A price that is not found would make another machine the cheapest."""
    path = tmp_path / "prices.yaml"
    path.write_text("currency: USD\ndate: 2026-11-01\nper_hour: {dgx-1v: 9.5, elsewhere: 1}\n")
    assert prices_of([], path, ["dgx-1v", "dgx-a100"]) == {"dgx-1v": Price(9.5, "USD", "2026-11-01")}
    with pytest.raises(UnknownNameError, match="unknown machine 'elsewhere'") as caught:
        prices_of(["elsewhere=1USD/h"], path, ["dgx-1v", "dgx-a100"])
    assert "dgx-1v" in caught.value.remedy
    with pytest.raises(UnknownNameError, match="unknown machine 'elsewhere'"):
        compare(["mlp"], ["dgx-1v"], prices={"elsewhere": "1USD/h"})


@pytest.mark.parametrize("name", ["rack.yaml", "rack", "PATH", "inside"])
def test_a_machine_is_priced_by_its_own_name_and_by_its_files(tmp_path, name):
    machine = tmp_path / "rack.yaml"
    machine.write_text("name: inside\nnodes: 2\nnode: dgx-1v\nfabric: {kind: flat}\n")
    asked = str(machine)
    path = tmp_path / "prices.yaml"
    path.write_text(f"currency: USD\ndate: 2026-11-01\nper_hour: {{{name.replace('PATH', asked)}: 9.5}}\n")
    names = machine_names([(asked, "inside")])
    assert prices_of([], path, names) == {asked: Price(9.5, "USD", "2026-11-01")}
    [row] = compare(["mlp"], [asked], prices=read_prices(path)).rows
    assert row.per_hour == 19.0


def test_two_prices_of_one_machine_are_refused(tmp_path):
    names = machine_names([("rack.yaml", "inside")])
    with pytest.raises(InputError, match=r"rack.yaml has two prices"):
        index_by_machine({"inside": Price(1.0, "USD"), "rack": Price(2.0, "USD")}, names)
