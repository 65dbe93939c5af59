"""A command's help in sections: what the job is, the machine, its buckets, what if, how it is computed, output."""

from __future__ import annotations

from typing import Any

from typer.core import TyperCommand

SECTIONS = {
    "Job": """workload model step batch_size precision accumulate sync backend optimizer clip_gradients compiled
        input_stage one_gpu_step pace_of from_ all_ implementation local_iterations observe device threads
        iterations warm_up seed""",
    "Machine": """topology nodes gpus_per_node link_rate memory calibration set algorithm gpu gpu_file
        memory_bandwidth peak multiprocessors""",
    "Buckets and schemes": """bucket_cap_mb first_bucket_mb bucket_cap_mb_list plan assignment find_unused_parameters
        gradient_as_bucket_view broadcast_buffers process_groups scheme schemes overlap compression drop drop_buckets
        order predictor consensus buckets pipeline stages stages_per_rank micro_batches boundary_bytes predicted""",
    "What if": """beside scale_compute scale_host scale keep_pace stragglers straggling jitter unused comm""",
    "Cost and deadline": "price prices samples_per_epoch epochs samples_per_second deadline advice efficiency",
    "How it is computed": "fidelity workers scheduler timeout",
    "Output": "first out output trace chakra plot report as_json verbose help",
}
"""Names of parameters by section; an option that none names stands before them, under `Options`."""

_FEWEST = 20
"""Options of a command that are shown in sections; fewer fit on a screen. Chosen by hand."""


class SectionedCommand(TyperCommand):
    """Show the options of a command that has many in sections, in the order of `SECTIONS`."""

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write the arguments and options with their help into click's `formatter`."""
        params = self.get_params(ctx)
        if len(params) < _FEWEST or any(param.param_type_name == "argument" for param in params):
            super().format_options(ctx, formatter)
            return
        section_of = {name: section for section, names in SECTIONS.items() for name in names.split()}
        rows: dict[str, list[tuple[str, str]]] = {section: [] for section in ("Options", *SECTIONS)}
        for param in params:
            record = param.get_help_record(ctx)
            if record is not None:
                rows[section_of.get(str(param.name), "Options")].append(record)
        for section, records in rows.items():
            if records:
                with formatter.section(section):
                    formatter.write_dl(records)
