from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from ddpsim import load_topology, load_workload, plan
from ddpsim.planning.rows import PlanReport
from ddpsim.report import plan_report, render
from ddpsim.workload.gpus import gpu_named
from ddpsim.workload.on_gpu import estimate_on_gpu
from tests.browser import Page, chromium

FIVE = ("p3.16xlarge", "dgx-1v", "dgx-a100", "dgx-h100", "dgx-b200")
COMMAND = "ddpsim plan --workload vgg16 --topology p3.16xlarge"


@pytest.fixture(scope="session")
def planned() -> PlanReport:
    """The plan of BERT-large on four nodes of five machines: some are advised other buckets, some keep torch's."""
    model = estimate_on_gpu(load_workload("bert-large"), gpu_named("V100"), batch_size=8)
    return plan(model, [load_topology(name) for name in FIVE], nodes=[4])


@pytest.fixture(scope="session")
def plan_page(planned: PlanReport, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Its report as a file."""
    path = tmp_path_factory.mktemp("report") / "plan.html"
    path.write_text(render(plan_report([planned], notes=["a <note>"], command=COMMAND)))
    return path


@pytest.fixture(scope="session")
def browser() -> Iterator[Page]:
    """A page of a headless browser."""
    with chromium() as page:
        yield page
