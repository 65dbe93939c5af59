"""A training loop of one's own, traced while it runs: phases, gradients, collectives, input, and lines that warn."""
