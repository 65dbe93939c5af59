import json

import pytest

BASE = ["compare", "--workload", "resnet50", "--topology", "dgx-1v"]


def test_the_text_fits_a_hundred_columns_and_says_what_is_cheapest(ddpsim):
    priced = ["--topology", "dgx-a100", "--price", "dgx-1v=9EUR/h", "--price", "dgx-a100=30EUR/h@2026-11-02"]
    text = ddpsim(*BASE, *priced, "--nodes", "1,2", "--samples-per-epoch", "1281167").out
    assert max(map(len, text.splitlines())) <= 100
    assert "dgx-1v 9 EUR/h, no date given" in text
    assert "dgx-a100 30 EUR/h, 2026-11-02" in text
    assert "cheapest: 1 node of " in text


def test_json_and_lines_have_the_same_rows(ddpsim, tmp_path):
    path = tmp_path / "rows.jsonl"
    asked = ("--batch-size", "8,16", "--link-rate", "25,100Gb/s", "--nodes", "2", "--json", "-o", path)
    document = ddpsim(*BASE, *asked).document
    assert [json.loads(line) for line in path.read_text().splitlines()] == document["rows"]
    asked = [(row["link_rate_Bps"], row["batch_size"]) for row in document["rows"]]
    assert asked == [(3.125e9, 8), (3.125e9, 16), (12.5e9, 8), (12.5e9, 16)]
    assert document["best"] in document["rows"]
    assert document["break_even"] == []


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (["--price", "dgx-1v=9/h"], "--price: 'dgx-1v=9/h' names no currency"),
        (["--link-rate", "25,100"], "--link-rate: bandwidth '25' has no unit"),
        (["--link-rate", ","], "--link-rate: ',' is no list of rates"),
        (["--deadline", "6h"], "--deadline: says nothing without the samples to train on"),
        (["--deadline", "6", "--samples-per-epoch", "10"], "--deadline: time '6' has no unit"),
        (["--deadline", "1h", "--samples-per-second", "10"], "--deadline and --samples-per-second are both given"),
        (["--samples-per-epoch", "0"], "--samples-per-epoch: 0 is out of range"),
        (["--precision", "fp64"], "no figures for precision 'fp64'"),
        (["--efficiency", "80"], "--efficiency: '80' is no share in percent"),
        (["--prices", "nowhere.yaml"], "nowhere.yaml"),
    ],
)
def test_bad_input_is_one_message_with_its_place(ddpsim, options, says):
    ddpsim(*BASE, *options).refused(says)


def test_a_kept_pace_is_named(ddpsim):
    text = ddpsim("compare", "--workload", "resnet50@recorded", "--topology", "dgx-a100").out
    assert text.splitlines()[0].endswith("compute times estimated for V100")


@pytest.mark.needs("minutes")
def test_advice_on_a_machine_without_a_network_is_printed_too(ddpsim):
    words = ["compare", "--workload", "resnet50", "--topology", "4x1080ti-pcie", "--advice"]
    document = ddpsim(*words, "--json").document
    assert document["break_even"] == []
    text = ddpsim(*words).out
    assert (
        "\n4x1080ti-pcie, batch 32, fp32\n    accumulating gradients (no_sync) over 2 micro-batches a step saves "
        in text
    )
    assert text.count("no_sync") == len(document["no_sync"]) == 3
