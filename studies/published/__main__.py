"""`python -m studies.published`: published steps of real GPUs, memory, and PyTorch's own DDP table, predicted."""

from __future__ import annotations

import sys

from studies.published import gpu_page, many_ranks, memory, published
from studies.study import Page, Study

STUDY = Study(
    "published",
    (
        Page("published.md", published.text, again="check"),
        Page("gpu-steps.md", gpu_page.text, again="asked"),
        Page("memory.md", memory.text),
        Page("many-ranks.md", many_ranks.text),
    ),
)

if __name__ == "__main__":
    sys.exit(STUDY.main())
