"""A seeded fuzz target: mutated files go through every loader and through the commands that read them.

`python -m studies.fuzz --count 100000 --seed 1` runs loaders in this process, with `--commands` whole commands. A case
fails where anything but the project's own error comes out, a message has more than 1,000 characters, or it takes too
long or too much memory. The same seed, target and number make the same case.
"""
