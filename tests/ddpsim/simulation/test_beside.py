"""Two jobs on one fabric: what they share is shared, what they do not share costs nothing."""

from dataclasses import replace

import pytest

from ddpsim.bucketing import BucketCaps
from ddpsim.common.errors import InputError
from ddpsim.prediction.predict import predict, without_beside
from ddpsim.simulation.job import Job
from ddpsim.simulation.jobs.beside import JobBeside
from ddpsim.simulation.jobs.job_options import JobOptions
from ddpsim.simulation.jobs.simulated import Options
from ddpsim.topology.beside import place_beside
from ddpsim.topology.spec import parse_topology
from tests.ddpsim.simulation.builders import workload

ONE_BUCKET = BucketCaps(bucket_cap_mb=1000.0)
FABRIC = parse_topology(
    """
    name: two leaves of two nodes, a narrow trunk between them
    node: {gpus: {count: 1, model: A100}, nics: [{kind: infiniband, rate: 100Gb/s}]}
    nodes: 4
    fabric: {kind: two-level, nodes_per_leaf: 2, trunk: 10Gb/s}
    """,
    "fabric",
)
HEAVY = workload(device="A100", size=12_500_000, forward=0.001, backward=0.002, optimizer=0.0005)
"""400 MB of gradients, which take the trunk 0.32 s and more; all else takes 4 ms."""
OTHER = JobBeside(HEAVY, JobOptions(caps=ONE_BUCKET), 2, alternate=True)


def step(other, *, scheme="ddp", nodes=2, topology=FABRIC, source=HEAVY):
    options = Options(caps=ONE_BUCKET if scheme == "ddp" else BucketCaps(), scheme=scheme, beside=other)
    return predict(Job(source, topology, nodes=nodes, options=options), band=False)


def wire_s(prediction):
    return sum(bucket.finished_s - bucket.wire_s for bucket in prediction.summary.buckets)


def test_two_jobs_that_share_one_link_to_the_spine_get_half_of_it_each():
    both = step(OTHER)
    alone = without_beside(both)
    capacity, sent = 10e9 / 8, 1.0  # a ring of two ranks sends 2 (n - 1) / n bytes of each
    assert wire_s(alone) == pytest.approx(HEAVY.gradient_bytes * sent / capacity, rel=0.2)
    assert wire_s(both) == pytest.approx(2 * wire_s(alone), rel=0.01)
    assert both.trace.beside.nodes == (1, 3)
    assert both.trace.beside.iteration_s == pytest.approx(both.iteration_s, rel=1e-6)


def test_jobs_under_switches_of_their_own_share_nothing_and_move_no_number():
    after = replace(OTHER, alternate=False)
    for scheme in ("ddp", "fsdp2"):
        both, none = step(after, scheme=scheme), step(None, scheme=scheme)
        assert both.iteration_s == pytest.approx(none.iteration_s, rel=1e-9)
        assert without_beside(both).iteration_s == pytest.approx(none.iteration_s, rel=1e-9)
    assert both.trace.beside.nodes == (2, 3)


def test_one_that_does_nothing_is_as_none():
    alone = step(replace(OTHER, idle=True))
    assert alone.trace.beside is None
    assert alone.iteration_s < step(OTHER).iteration_s


def test_what_begins_while_the_other_computes_has_the_link_to_itself():
    seldom = workload(device="A100", size=1_000, forward=0.3, backward=0.6, optimizer=0.1)
    quiet = step(replace(OTHER, workload=seldom))
    assert quiet.iteration_s == pytest.approx(without_beside(quiet).iteration_s, rel=0.001)


def test_a_shorter_step_is_repeated_until_this_one_has_ended():
    short = workload(device="A100", size=2_500_000, forward=0.0001, backward=0.0002, optimizer=0.0001)
    both = step(replace(OTHER, workload=short))
    assert without_beside(both).iteration_s < both.iteration_s < 2 * without_beside(both).iteration_s
    assert both.trace.beside.iteration_s < both.iteration_s / 2


def test_a_step_far_shorter_than_this_one_is_refused():
    long = workload(device="A100", size=1_000, forward=3.0, backward=6.0, optimizer=1.0)
    short = workload(device="A100", size=1_000, forward=0.0001, backward=0.0002, optimizer=0.0001)
    with pytest.raises(InputError, match="more than 400 steps in"):
        step(replace(OTHER, workload=short), source=long)


def test_the_phase_is_a_doubt_and_the_band_has_both_ends():
    found = predict(Job(HEAVY, FABRIC, nodes=2, options=Options(caps=ONE_BUCKET, beside=OTHER)))
    [phase] = [each for each in found.doubts if each.name == "phase of the job beside"]
    assert found.low_s < found.iteration_s < found.high_s
    assert phase.low <= found.iteration_s <= phase.high


def test_a_trunk_counts_the_ports_of_both_jobs():
    fabric = parse_topology(
        """
        name: oversubscribed
        node: {gpus: {count: 1, model: A100}, nics: [{kind: infiniband, rate: 100Gb/s}]}
        nodes: 4
        fabric: {kind: two-level, nodes_per_leaf: 2, oversubscription: 4}
        """,
        "oversubscribed",
    )
    own, other = place_beside(fabric.place(2), 2, alternate=True)
    both = own.trunks["leaf0>spine0"].bandwidth
    assert other.trunks["leaf0>spine0"].bandwidth == both == pytest.approx(2 * 100e9 / 8 / 4)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (Options(beside=OTHER, scheme="hsdp:2", caps=BucketCaps()), "this job has process groups of fewer ranks"),
        (
            Options(beside=replace(OTHER, job=JobOptions(scheme="hsdp:2"), nodes=(4, 5, 6, 7))),
            "the job beside it has process",
        ),
        (Options(beside=replace(OTHER, nodes=(1, 6))), "node 1 of them is the other's"),
        (Options(beside=replace(OTHER, nodes=70_000)), "more than the 128"),
        (Options(beside=replace(OTHER, nodes=(70_000,))), "both jobs need"),
    ],
)
def test_what_cannot_be_told_is_refused(options, said):
    nodes = 4
    with pytest.raises(InputError, match=said):
        predict(Job(HEAVY, FABRIC, nodes=nodes, options=options), band=False)


@pytest.mark.parametrize(
    "options", [{"fidelity": "steps"}, {"fidelity": "closed"}, {"scheme": "parameter-server:async"}]
)
def test_options_that_know_no_other_job_are_refused(options):
    with pytest.raises(InputError, match="beside"):
        Options(beside=OTHER, **options)


def test_trays_of_a_rack_lie_in_whole_domains():
    racks = parse_topology(
        """
        name: racks
        node: {machine: gb200-nvl72}
        nodes: 12
        nvlink_domain: {nodes: 4}
        fabric: {kind: rail, nodes_per_leaf: 4, oversubscription: 2}
        """,
        "racks",
    )
    own, other = place_beside(racks.place(4), 8)
    assert (own.world_size, other.world_size) == (16, 32)
    with pytest.raises(InputError, match="lie in 2 NVLink domains"):
        place_beside(racks.place(4), (6, 7, 8, 9))
