"""`ddpsim pipeline`: a model in stages, or in layers cut over ranks, each replicated for data parallelism."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from ddpsim.cli.constants import ConstantOptions
from ddpsim.cli.expand import expand
from ddpsim.cli.options import GpusPerNode, NodeCount, TopologyName, WorkloadName
from ddpsim.cli.output import Output
from ddpsim.common.tables import table_of
from ddpsim.common.tables.cells import ms
from ddpsim.common.units import format_count
from ddpsim.simulation.jobs.pipeline import Pipeline

if TYPE_CHECKING:
    from ddpsim.planning.pipeline import PipelineStep


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineArguments:
    """Arguments of `pipeline` next to those of the pipeline itself: a workload on a machine."""

    workload: WorkloadName
    topology: TopologyName
    nodes: NodeCount = None
    gpus_per_node: GpusPerNode = None


@expand
def pipeline(arguments: PipelineArguments, pipe: Pipeline, constants: ConstantOptions, output: Output) -> None:
    """Predict the step of a model in stages (GPipe, PipeDream) or in cut layers (Mesh-TensorFlow), and its bubble.

    It is `ddpsim predict --pipeline`, with `--scheme flat` where gradients are summed after the last work.
    """
    from ddpsim.planning.pipeline import in_closed_form, is_simulated, pipeline_step, with_boundary
    from ddpsim.prediction.models import Model
    from ddpsim.prediction.predict import predict
    from ddpsim.simulation.job import Job
    from ddpsim.simulation.jobs.simulated import Options
    from ddpsim.topology.placement import place
    from ddpsim.topology.spec import load_topology

    machine, model = load_topology(arguments.topology), Model.of(arguments.workload)
    if is_simulated(pipe):
        pipe = with_boundary(pipe, model.source)
        options = Options(pipeline=pipe, scheme="ddp" if pipe.gradients == "ddp" else "flat")
        workload = model.on(machine, options=options)
        constants_of = constants.calibration_in_force(options.on(workload, machine).backend_for(workload))
        job = Job(workload, machine, arguments.nodes, arguments.gpus_per_node, options, constants_of)
        prediction = predict(job, local_s=1.0, band=False)
        step = pipeline_step(prediction, pipe)
    else:
        workload = replace(model.on(machine), operators=model.source.operators)
        placement = place(machine, arguments.nodes, arguments.gpus_per_node)
        backend = "gloo" if workload.one_clock else machine.backend
        step = in_closed_form(workload, placement, pipe, constants.calibration_in_force(backend))
    output.emit(step.document(), lambda: _text(step, pipe))


def _text(step: PipelineStep, pipe: Pipeline) -> str:
    rows = [
        {"part": "computed by the busiest rank", "time_s": step.compute_s},
        {"part": "idle, mean of the ranks", "share": step.bubble},
        {"part": "allreduces of gradients over replicas, on the wire", "time_s": step.allreduce_s},
        {"part": "waiting for them after the last micro-batch, with launches", "time_s": step.exposed_allreduce_s},
    ]
    if pipe.tensor_ranks > 1:
        rows.append({"part": "allreduces of activations over layers' ranks", "time_s": step.activations_s})
    memory = f"{format_count(step.weight_versions, 'version')} of its weights, activations of {step.activations}"
    pace = f"{step.samples / step.step_s:.4g} samples/s"
    head = f"step  {ms(step.step_s)} ms, replicas {step.copies}, {pipe.order}, {pace}"
    body = table_of("", rows, ("part", "time_s", "share")).text()
    return f"{head}\n\n{body}\n\nthe first stage keeps {memory} of {pipe.micro_batches} micro-batches"
