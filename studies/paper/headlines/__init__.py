"""Headlines of the systems that DDP's paper sets beside DDP, each from its own paper, beside what is simulated."""
