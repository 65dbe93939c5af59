"""Hold predictions of allreduce times against public measured tables; write docs/reference/accuracy.md.

`python -m studies.accuracy --constants` prints the constants fitted to every table, from which `nccl/priors.py` is.
"""

from __future__ import annotations

import sys
from pathlib import Path

from studies.accuracy import bands, cases, ring_tree
from studies.accuracy.aws_post import section
from studies.accuracy.page import page
from studies.accuracy.systems import load_all

_PAGE = Path(__file__).resolve().parents[2] / "docs" / "reference" / "accuracy.md"


def main() -> int:
    """Run every case and write the page."""
    samples = load_all()
    if "--constants" in sys.argv[1:]:
        pool = cases.all_sites(samples)
        for name, value in pool.values.items():
            print(f"{name} {value:.3g}")
        print(f"set aside: {', '.join(pool.aside) or 'none'}")
        return 0
    priors = cases.site_priors(system.site for system in samples)
    held_out = cases.every_fourth(samples, priors)
    more = cases.more_nodes(samples, priors)
    text = page(
        cases.uncalibrated(samples, priors),
        held_out,
        cases.every_fourth(samples, priors, 2),
        cases.eight_rows(samples, priors),
        more,
        bands.bands(held_out),
        bands.scores(held_out).tolist(),
        [bands.stated(errors) for errors in more],
        ring_tree.judged(),
        "\n".join(section()),
    )
    print(text)
    _PAGE.write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
