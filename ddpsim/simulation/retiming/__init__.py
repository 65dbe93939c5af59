"""A simulated step under other constants: told from the graph of its run, or by running that graph again."""
