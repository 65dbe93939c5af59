from ddpsim.topology.gpus.table import find_shipped_gpu
from studies.estimates.one_gpu_steps import sources, steps


def test_each_step_has_a_source_and_a_gpu_in_the_table() -> None:
    known = sources()
    for step in steps():
        assert step.source in known
        gpu = find_shipped_gpu(step.gpu)
        assert gpu is not None
        assert step.precision in gpu.peaks
        assert step.seconds > 0


def test_the_halves_are_drawn_by_source_and_each_has_eight_gpus() -> None:
    fitted, judged = ([s for s in steps() if s.fitted is half] for half in (True, False))
    assert (len(fitted), len(judged)) == (85, 114)
    assert not {(s.source, s.gpu) for s in fitted} & {(s.source, s.gpu) for s in judged}
    for half in (fitted, judged):
        assert len({s.gpu for s in half}) >= 8


def test_what_was_found_last_judges_whole() -> None:
    later = [step for step in steps() if step.later]
    assert {step.source for step in later} == {"nikolasent-2022", "nikolasent-2025", "xhmy"}
    assert not any(step.fitted for step in later)
    assert not {step.source for step in later} & {step.source for step in steps() if not step.later}
