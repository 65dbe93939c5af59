"""A step of one device cut onto several: where, what passes, and what is refused."""

import json
from dataclasses import replace

import pytest

from ddpsim.common.errors import WorkloadError
from ddpsim.prediction.models import Model
from ddpsim.simulation.jobs.device_split import cut_layers, put_like, put_on_devices
from ddpsim.topology.spec import load_topology
from ddpsim.workload.files import load_workload, with_operators, workload_document, workload_from

MIB = 1 << 20


def split(name, *, devices=2, at=(), sent=None):
    source = with_operators(load_workload(name))
    return put_on_devices(source, cut_layers(source, devices, at), sent)


@pytest.mark.parametrize(
    ("name", "at", "size_bytes"),
    [
        ("resnet50", "layer2.2", 32 * 512 * 28 * 28 * 4),
        ("resnet50@a100-amp-b32", "layer2.2", 32 * 512 * 28 * 28 * 2),
        ("vgg16", "features.10", 32 * 128 * 56 * 56 * 4),
        ("vgg16", "classifier.0", 32 * 512 * 7 * 7 * 4),
        ("gpt2-small@a100-tf32-b8", "transformer.h.6", 8 * 512 * 768 * 4),
        ("bert-large@h100-bf16-b8", "encoder.layer.12", 8 * 128 * 1024 * 2),
    ],
)
def test_what_passes_is_what_the_models_shapes_say(name, at, size_bytes):
    """By hand: samples, channels, height and width, or samples, tokens and width, and bytes of a value."""
    made = split(name, at=(at,))
    assert [part.sent_bytes for part in made.devices] == [size_bytes, 0]
    assert next(each for each in made.parameters if each.device == "cuda:1").name.startswith(f"{at}.")


@pytest.mark.parametrize("devices", [2, 4])
def test_parts_are_consecutive_and_about_as_long(devices):
    made = split("vit-b16", devices=devices)
    ends = [part.device_s for part in made.devices]
    assert ends[-1] == pytest.approx(float(made.forward.device_s[0]))
    for number, end in enumerate(ends, 1):
        assert end == pytest.approx(ends[-1] * number / devices, rel=0.1)
    assert {each.device for each in made.parameters} == {f"cuda:{number}" for number in range(devices)}


def test_buffers_are_where_their_layers_are():
    where = {each.name: each.device for each in split("resnet50", at=("layer3",)).buffers}
    assert where["layer2.3.bn3.running_mean"] == "cuda:0"
    assert where["layer3.0.bn1.running_var"] == "cuda:1"


def test_a_file_has_the_devices_and_a_file_of_one_has_no_such_key():
    made = split("vgg16")
    document = json.loads(json.dumps(workload_document(made)))
    assert document["devices"][0] == {
        "device": "cuda:0",
        "forward_until_s": {"host": made.devices[0].host_s, "device": made.devices[0].device_s},
        "sent_bytes": made.devices[0].sent_bytes,
    }
    assert workload_from(document, "file") == made
    whole = workload_document(load_workload("resnet50"))
    assert "devices" not in whole
    assert all("device" not in each for each in whole["buffers"])


def test_an_estimate_for_another_batch_is_on_as_many_devices():
    source, made = load_workload("vgg16"), split("vgg16")
    other = put_like(replace(source, batch_size=2 * source.batch_size), made)
    assert [each.device for each in other.parameters] == [each.device for each in made.parameters]
    assert [part.sent_bytes for part in other.devices] == [2 * part.sent_bytes for part in made.devices]


def test_a_step_carried_to_another_gpu_keeps_the_shares_of_its_parts():
    made = split("resnet50@a100-amp-b32", at=("layer3",))
    captured = replace(made, estimated=False)
    carried = Model.of(captured).on(load_topology("dgx-h100"))
    assert carried.device == "H100"
    whole = [float(each.forward.device_s[0]) for each in (captured, carried)]
    assert whole[1] < 0.9 * whole[0]
    shares = [each.devices[0].device_s / forward_s for each, forward_s in zip((captured, carried), whole, strict=True)]
    assert shares[0] == pytest.approx(shares[1])
    assert carried.devices[0].sent_bytes == made.devices[0].sent_bytes


REFUSED = {
    "1 devices": {"devices": 1},
    "99 devices for a model of": {"devices": 99},
    "no parameter is below 'palm'": {"at": ("palm",)},
    "2 layers to cut 2 devices' parts at": {"at": ("layer2", "layer3")},
    "a part without a layer is before it": {"devices": 3, "at": ("layer3", "layer2")},
}


@pytest.mark.parametrize("words", REFUSED)
def test_a_cut_that_cannot_be_is_refused(words):
    with pytest.raises(WorkloadError, match=words):
        split("resnet50", **REFUSED[words])


def test_bytes_that_nobody_knows_have_to_be_given():
    source = replace(load_workload("resnet50@a100-amp-b32"), operators=None)
    parts = cut_layers(source, 2)
    with pytest.raises(WorkloadError, match=r"how many bytes pass to layer2.2.conv1.weight is not known") as error:
        put_on_devices(source, parts)
    assert error.value.place == "sent_bytes"
    assert [part.sent_bytes for part in put_on_devices(source, parts, 25 * MIB).devices] == [25 * MIB, 0]


FAULTS = {
    "lists a single device": lambda first, second: (first,),
    "'cuda:0' is named twice": lambda first, second: (first, replace(second, device="cuda:0")),
    "no parameter is on 'cuda:7'": lambda first, second: (first, replace(second, device="cuda:7")),
    "is not a time in seconds from": lambda first, second: (first, replace(second, device_s=0.0)),
    "0 bytes are sent to the next device": lambda first, second: (replace(first, sent_bytes=0), second),
    "8 bytes are sent to none": lambda first, second: (first, replace(second, sent_bytes=8)),
}


@pytest.mark.parametrize("words", FAULTS)
def test_devices_that_cannot_be_are_refused_by_their_place(words):
    made = split("mlp")
    with pytest.raises(WorkloadError, match=words) as error:
        replace(made, devices=FAULTS[words](*made.devices))
    assert str(error.value.place).startswith("devices")


def test_a_parameter_on_a_device_that_is_not_listed_is_refused():
    made = split("mlp")
    parameters = (replace(made.parameters[0], device="cuda:2"), *made.parameters[1:])
    with pytest.raises(WorkloadError, match="is on 'cuda:2', which `devices` does not list") as error:
        replace(made, parameters=parameters)
    assert error.value.place == "parameters.0.device"
