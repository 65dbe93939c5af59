"""Real runs: this rank trains a model as the options say, under torch's DDP, ours or a scheme, and returns a trace.

Nouns: a `TrainingSubject` is what is trained (a shipped model, a user's step, or timed layers that replay a backward);
wrapping puts a reducer around it; `RunSettings` are the options of one run; provenance is what `run.json` says of its
origin.

Other kinds of run: order policies in turns (`orders`), stages of a pipeline (`pipelines`), `DataParallel`
(`replicated`), and several runs in turns in one launch (`turns`).

Read first: `run`, then `subject` and `wrapping`.

Public modules: orders, pipeline_options, pipelines, provenance, run, settings, stock, turns.
"""
