"""Constants of a transport, fitted to tables of collectives that somebody measured.

`calibrate` reads from top to bottom: tables -> samples -> fit -> held-out error -> report. Its nouns: a `MeasuredTable`
is one operation's rows from a file; a `Sample` is that table on the machine and ranks it was measured on, which can
predict its rows; a `Fit` is the constants of least loss near their priors, with their covariance; a `Misfit` says how
far rows lie from the constants and which contradict each other; a `CalibrationReport` has the calibration and its
errors.

Read `calibrate.py` first, then `samples.py`, `fitting.py` (Gauss-Newton with Huber's loss) and `misfit.py`; `measured/`
reads the files. The simulator takes the `Calibration` of `ddpsim.collectives` that comes out, and knows nothing of
this.

Public modules: calibrate, measured, samples.
"""
