"""Compression in the simulation: bytes on the wire, and what encoding and decoding cost."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ddpsim.bucketing import BucketCaps
from ddpsim.collectives.calibration import Calibration
from ddpsim.collectives.execute import Collectives
from ddpsim.common.operation import Operation
from ddpsim.schedules.compression import scheme
from ddpsim.simulation.ddp_costs import CodecCosts, Costs
from ddpsim.simulation.engine import simulate
from ddpsim.simulation.jobs.simulated import Options
from ddpsim.topology.spec import load_topology
from ddpsim.trace.metrics import summarise
from ddpsim.workload.gpus import gpu_of
from tests.ddpsim.simulation.builders import workload

ONE_BUCKET = BucketCaps(bucket_cap_mb=1000)


@pytest.fixture
def sent(monkeypatch):
    """Sizes of all allreduces, in order."""
    sizes = []
    original = Collectives.run

    def recorded(self, operation, size_bytes, group=0):
        if operation is Operation.ALLREDUCE:
            sizes.append(size_bytes)
        return original(self, operation, size_bytes, group)

    monkeypatch.setattr(Collectives, "run", recorded)
    return sizes


def run(source, name, *, ranks=2, **options):
    placement = load_topology("loopback").place(1, ranks)
    return simulate(source, placement, Options(backend="gloo", compression=name, **options))


@pytest.mark.parametrize("device", ["cpu", "V100"])
@pytest.mark.parametrize("name", ["fp16", "bf16"])
def test_half_precision_halves_the_bytes_on_the_wire(sent, device, name):
    source = workload(device=device)
    run(source, "none", caps=BucketCaps(bucket_cap_mb=2))
    plain = sent.copy()
    sent.clear()
    run(source, name, caps=BucketCaps(bucket_cap_mb=2))
    assert sum(plain) > 0
    assert [2 * size for size in sent] == plain


def codec_costs(name, source, costs):
    gpu = gpu_of(source.gpu, source.provenance)
    return CodecCosts(scheme(name), source.parameters, 2, costs, gpu=gpu, one_thread=source.one_clock)


@pytest.mark.parametrize("device", ["cpu", "V100"])
def test_a_compressed_bucket_takes_its_bytes_and_its_decoding(device):
    source, placement = workload(device=device), load_topology("loopback").place(1, 2)
    trace = run(source, "fp16", caps=ONE_BUCKET)
    wire = Collectives(None, placement, backend="gloo").estimate_s(source.gradient_bytes // 2)
    codec = codec_costs("fp16", source, Costs.of("gloo", None, device))
    encoding = codec.encoding(Options(caps=ONE_BUCKET).bucket_plan(source).buckets[0].parameters)
    [bucket] = trace.iterations[-1].buckets
    assert encoding.decode_s > 0
    assert bucket.finished_s - bucket.wire_s == pytest.approx(wire + encoding.decode_s, rel=1e-9)


def test_on_a_cpu_encoding_delays_the_step_by_itself():
    source = workload()
    slow, plain = (summarise(run(source, name, caps=ONE_BUCKET)) for name in ("fp16", "none"))
    bucket = Options(caps=ONE_BUCKET).bucket_plan(source).buckets[0]
    costs = Costs.of("gloo", None)
    encoding = codec_costs("fp16", source, costs).encoding(bucket.parameters)
    size = source.gradient_bytes
    # Read a float32 and write a half, read and write a half: 2.5 times the bytes, at twice the rate of a copy.
    assert encoding.encode_s == pytest.approx(2 * costs.hook_s + 2.5 * size / (2 * costs.copy_Bps))
    assert slow.ddp_overhead_s - plain.ddp_overhead_s == pytest.approx(encoding.encode_s, rel=1e-6)


def test_what_was_measured_of_a_codec_takes_the_place_of_copies():
    source = workload()
    bucket = Options(caps=ONE_BUCKET).bucket_plan(source).buckets[0]
    values = {"gloo.ddp.fp16_kernel_s": 1e-4, "gloo.ddp.fp16_Bps": 1e9}
    measured = Calibration.priors("gloo").with_values(values, source="test")
    encoding = codec_costs("fp16", source, Costs.of("gloo", measured)).encoding(bucket.parameters)
    assert encoding.encode_s == pytest.approx(2 * 1e-4 + 2.5 * source.gradient_bytes / 1e9)
    others, priors = (codec_costs("bf16", source, Costs.of("gloo", each)) for each in (measured, None))
    assert others.encoding(bucket.parameters) == priors.encoding(bucket.parameters)


def test_on_a_gpu_encoding_is_overhead_and_no_computing():
    source = workload(device="V100")
    slow, plain = (summarise(run(source, name, caps=ONE_BUCKET)) for name in ("onebit", "none"))
    encoding = codec_costs("onebit", source, Costs.of("gloo", None, "V100")).encoding(
        Options(caps=ONE_BUCKET).bucket_plan(source).buckets[0].parameters
    )
    assert slow.backward_compute_s == pytest.approx(plain.backward_compute_s, rel=1e-6)
    assert slow.ddp_overhead_s - plain.ddp_overhead_s == pytest.approx(encoding.encode_s, rel=1e-6)


@pytest.mark.parametrize("ranks", [2, 8])
def test_signs_are_gathered_so_that_their_bytes_grow_with_the_ranks(sent, ranks):
    source = workload()
    run(source, "onebit", ranks=ranks, caps=ONE_BUCKET)
    message = 8 * (8 + 250_000 // 8)
    assert set(sent) == {message * ranks // 2}


def test_low_rank_factors_go_one_after_another(sent):
    source = workload(device="V100")
    source = replace(source, parameters=tuple(replace(p, shape=(500, 500)) for p in source.parameters))
    trace = run(source, "powersgd:4", caps=ONE_BUCKET)
    factor = 8 * 500 * 4 * 4
    assert sent[:3] == [0, factor, factor]
    [bucket] = trace.iterations[-1].buckets
    placement = load_topology("loopback").place(1, 2)
    estimate = Collectives(None, placement, backend="gloo").estimate_s
    assert bucket.finished_s - bucket.started_s > 2 * estimate(factor)


def test_every_rank_of_a_straggling_job_reduces_alike():
    source = workload(iterations=4, jitter=0.3)
    for name in ("powersgd:2", "topk:0.1"):
        trace = run(source, name, ranks=3, caps=BucketCaps(bucket_cap_mb=2), stragglers={2: 1.5})
        for it in trace.iterations:
            assert [b.index for b in it.buckets] == [0, 1, 2]
