"""Workers: who computes the points of a sweep, in which order, and what is kept of them when one ends early."""
