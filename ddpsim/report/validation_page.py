"""The report of a validation: the predicted step beside the measured one, term by term and bucket by bucket."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ddpsim.common.tables import ResultTable
from ddpsim.common.units import format_time
from ddpsim.planning.validate import BUCKETS, TERMS, Validation
from ddpsim.prediction.document import accumulated, flat
from ddpsim.report.assumptions import doubt_tables
from ddpsim.report.charts.kinds import measured_chart
from ddpsim.report.charts.model import StackedBar
from ddpsim.report.charts.timeline import number, timeline_from_document, timeline_from_trace
from ddpsim.report.model import BarChart, Charts, Report, StepsChart, Table, TimelineChart, draw_charts
from ddpsim.report.rows import bar
from ddpsim.report.wording import format_signed, format_time_band
from ddpsim.trace.metrics import Summary, summarise
from ddpsim.trace.records import Trace


def validation_report(
    result: Validation,
    prediction: Mapping[str, object],
    measured: Trace,
    *,
    notes: Sequence[str] = (),
    command: str = "",
) -> Report:
    """Return the report of a prediction held against a run.

    Args:
        result: of `ddpsim.validate`.
        prediction: the predict document.
        measured: the run's trace.
        notes: what else a reader must know, a sentence each.
        command: the command line that makes the page.
    """
    summary = summarise(measured)
    steps = (
        timeline_from_trace(measured, summary.iteration_s, "measured"),
        timeline_from_document(prediction, "predicted", () if result.path is None else result.path.spans),
    )
    return Report(
        title=f"Validation: {_format_subject(prediction)}",
        verdict=(_step(result, prediction), _format_largest(result)),
        notes=(*notes, *([] if result.other_work is None else result.other_work.notes())),
        command=command,
        sections=(
            *_tables(result),
            BarChart("Where the time goes", (_measured_bar(summary), bar(prediction, "predicted")), _BARS_NOTE),
            Table(TERMS, result.tables()[TERMS], _TERMS_NOTE),
            *_buckets(result),
            TimelineChart("One step", (StepsChart("the run", steps),), _TIMELINE_NOTE),
            *doubt_tables([prediction]),
            _provenance(prediction, measured),
        ),
    )


_BARS_NOTE = "The line below a bar is the 10th to 90th percentile: of the run's steps, and of the prediction's doubts."
_TIMELINE_NOTE = (
    "The measured step of rank 0 whose period is nearest to the run's, and the predicted one: its parts one after "
    "another, what it waits for, medians of each bucket's times below."
)


def _format_subject(prediction: Mapping[str, object]) -> str:
    named = [str(prediction[key]) for key in ("workload", "topology") if key in prediction]
    return " on ".join(named) or "prediction and run"


def _step(result: Validation, prediction: Mapping[str, object]) -> str:
    step = result.iterations
    low, high = (number(prediction, key) or None for key in ("iteration_low_s", "iteration_high_s"))
    inside = ""
    if low is not None and high is not None and low < high:
        inside = ", inside the band" if low <= step.measured_s <= high else ", outside the band"
    told, measured = format_time_band(step.predicted_s, low, high), format_time(step.measured_s)
    what = "step" if accumulated(prediction) == 1 else "micro-batch"
    return f"A {what} of {told} was predicted and {measured} measured{inside}: an error of {format_signed(step.error)}."


def _format_largest(result: Validation) -> str:
    term = result.largest_term
    name = term.name.replace("_", " ")
    best = min(result.baselines.items(), key=lambda item: abs(item[1]["error"] or 0.0))
    trivial = (
        f"the best of the trivial predictors, {best[0].replace('_', ' ')}, errs by {format_signed(best[1]['error'])}"
    )
    return f"Of its parts {name} errs most, by {format_signed(term.share_of_step)} of the step; {trivial}."


def _tables(result: Validation) -> tuple[Table, ...]:
    """Return the tables of the step as a whole."""
    return tuple(Table(title, shown) for title, shown in result.tables().items() if title not in (TERMS, BUCKETS))


_TERMS_NOTE = "Parts of the step, then what buckets spend, summed; each error as a share of the measured step."


def _measured_bar(summary: Summary) -> StackedBar:
    plain = bar(summary.document(), "measured", "iteration")
    return StackedBar(plain.label, plain.parts, summary.iteration_low_s, summary.iteration_high_s)


def _buckets(result: Validation) -> tuple[Charts | Table, ...]:
    """Return predicted over measured times of buckets, and their errors; nothing where the run has none."""
    if not result.buckets:
        return ()
    chart = measured_chart(result.bucket_times(), "Predicted over measured times", ("time", "ms"))
    return *draw_charts("Buckets", [chart]), Table(BUCKETS, result.tables()[BUCKETS], _SHARES)


_SHARES = "Predicted less measured, as a share of the measured step."


def _provenance(prediction: Mapping[str, object], measured: Trace) -> Table:
    """Return what both files say of themselves."""
    ours = prediction.get("provenance")
    sides = {"prediction": ours if isinstance(ours, Mapping) else {}, "run": measured.provenance}
    rows = tuple((side, key, str(value)) for side, told in sides.items() for key, value in flat(told).items())
    note = "The constants of the prediction are not in its file; `ddpsim constants` lists those in force."
    return Table("Provenance", ResultTable(("of the", "key", "value"), rows, frozenset({0, 1, 2})), note)
