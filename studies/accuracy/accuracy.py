"""Predictions of allreduce times held against public measured tables: the page.

`python -m studies.accuracy.accuracy` prints the constants fitted to every table, from which `transport_priors.py` is.
"""

from __future__ import annotations

from studies.accuracy import bands, cases, ring_tree
from studies.accuracy.aws_post import section
from studies.accuracy.page import page
from studies.accuracy.systems import load_all
from studies.command import parser


def text() -> str:
    """Return the page."""
    samples = load_all()
    priors = cases.site_priors(system.site for system in samples)
    held_out = cases.every_fourth(samples, priors)
    more = cases.more_nodes(samples, priors)
    return page(
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


if __name__ == "__main__":
    parser(__doc__).parse_args()
    pool = cases.all_sites(load_all())
    for name, value in pool.values.items():
        print(f"{name} {value:.3g}")
    print(f"set aside: {', '.join(pool.aside) or 'none'}")
