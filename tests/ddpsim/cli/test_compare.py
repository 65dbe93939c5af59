import json

import pytest

from ddpsim.cli.app import run

BASE = ["compare", "--workload", "resnet50", "--topology", "dgx-1v"]


def test_the_text_fits_a_hundred_columns_and_says_what_is_cheapest(capsys):
    priced = ["--topology", "dgx-a100", "--price", "dgx-1v=9EUR/h", "--price", "dgx-a100=30EUR/h@2026-11-02"]
    assert run([*BASE, *priced, "--nodes", "1,2", "--samples-per-epoch", "1281167"]) == 0
    text = capsys.readouterr().out
    assert max(map(len, text.splitlines())) <= 100
    assert "dgx-1v 9 EUR/h, no date given" in text
    assert "dgx-a100 30 EUR/h, 2026-11-02" in text
    assert "cheapest: 1 node of " in text


def test_json_and_lines_have_the_same_rows(capsys, tmp_path):
    path = tmp_path / "rows.jsonl"
    assert (
        run([*BASE, "--batch-size", "8,16", "--link-rate", "25,100Gb/s", "--nodes", "2", "--json", "-o", str(path)])
        == 0
    )
    document = json.loads(capsys.readouterr().out)
    assert [json.loads(line) for line in path.read_text().splitlines()] == document["rows"]
    asked = [(row["link_rate_Bps"], row["batch_size"]) for row in document["rows"]]
    assert asked == [(3.125e9, 8), (3.125e9, 16), (12.5e9, 8), (12.5e9, 16)]
    assert document["best"] in document["rows"]
    assert document["break_even"] == []


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (["--price", "dgx-1v=9/h"], "--price: 'dgx-1v=9/h' names no currency"),
        (["--price", "dgx-1v=-9EUR/h"], "--price: 'dgx-1v=-9EUR/h' is out of range"),
        (["--link-rate", "nvlnk=25Gb/s"], "--link-rate: unknown link 'nvlnk'; did you mean nvlink"),
        (["--link-rate", "25,100"], "--link-rate: bandwidth '25' has no unit"),
        (["--link-rate", ","], "--link-rate: ',' is no list of rates"),
        (["--deadline", "6h"], "--deadline: says nothing without the samples to train on"),
        (["--deadline", "6", "--samples-per-epoch", "10"], "--deadline: time '6' has no unit"),
        (["--deadline", "1s", "--samples-per-epoch", "1e9"], "--deadline: nothing compared reaches 1 s with resnet50"),
        (["--deadline", "1h", "--samples-per-second", "10"], "--deadline and --samples-per-second are both given"),
        (["--samples-per-second", "1e12"], "--samples-per-second: nothing compared reaches 1e+12 samples/s"),
        (["--samples-per-epoch", "0"], "--samples-per-epoch: 0 is out of range"),
        (["--precision", "fp64"], "no figures for precision 'fp64'"),
        (["--batch-size", "0"], "--batch-size: 0 is not a count"),
        (["--efficiency", "80"], "--efficiency: '80' is no share in percent"),
        (["--efficiency", "100%"], "--efficiency: 100% is no bound"),
        (["--prices", "nowhere.yaml"], "nowhere.yaml"),
    ],
)
def test_bad_input_is_one_message_with_its_place(capsys, options, says):
    assert run([*BASE, *options]) == 2
    error = capsys.readouterr().err
    assert says in error
    assert "Traceback" not in error
    assert error.count("error: ") == 1


def test_what_the_best_comes_to_stands_below_it_and_a_kept_pace_is_named(capsys):
    goal = ["--deadline", "30min", "--samples-per-epoch", "1281167", "--price", "dgx-1v=9EUR/h"]
    assert run([*BASE, *goal]) == 0
    lines = capsys.readouterr().out.splitlines()
    [cheapest] = [number for number, line in enumerate(lines) if line.startswith("cheapest that meets 30 min: ")]
    assert lines[cheapest + 1].endswith("; its whole band meets it")
    assert lines[0].endswith("each GPU's pace estimated")
    assert run(["compare", "--workload", "resnet50@recorded", "--topology", "dgx-a100"]) == 0
    assert capsys.readouterr().out.splitlines()[0].endswith("pace of V100 estimated")


@pytest.mark.needs("minutes")
def test_advice_on_a_machine_without_a_network_is_printed_too(capsys):
    words = ["compare", "--workload", "resnet50", "--topology", "4x1080ti-pcie", "--advice"]
    assert run([*words, "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["break_even"] == []
    assert run(words) == 0
    text = capsys.readouterr().out
    assert "\n4x1080ti-pcie, batch 32, fp32\n    no_sync, reducing every 2 steps, saves " in text
    assert text.count("no_sync") == len(document["no_sync"]) == 3
