"""One step of one job, predicted: its period, its parts, its 80 % band and what the band comes from.

Its nouns: a `SimulatedRun` is the simulation that a prediction rests on; a `Prediction` is its summary with its band,
and is written and read as a document; a `Doubt` is one cause of error (`doubts/`), and its `Ends` are the step at the
10th and the 90th percentile of that cause; `Answers` computes many predictions, each once, here or on workers.

Read `predict.py` first: it names the files that a prediction passes, in their order: from Python `named.py` and
`arguments.py` take names and paths, `models.py` puts the workload on the machine's GPU, `simulated_run.py` simulates
as few iterations as the period needs, `periods.py` tells the step at the ends of each doubt, `prediction.py` holds
what comes out.

Public modules: answers, arguments, carry, conditional_step, document, doubts.causes, doubts.collectives,
doubts.constants, doubts.doubt, doubts.join, doubts.spreads, first, memory, models, named, pace_from_row, path, periods,
predict, prediction, sensitivities, simulated_run.
"""
