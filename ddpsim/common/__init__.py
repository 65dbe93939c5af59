"""What every other room uses, nothing of simulation: errors, units, files, options, tables, workers. The lowest room.

- `errors`, `units`, `strict`, `files`, `shipped`: bad input with place and remedy, quantities with units, files read
  within bounds and written whole, names of shipped files;
- `documents`: records that have a file, checked as their dataclasses declare (`fields`, then `records`);
- `options`: an `Option` is a dataclass's field, from which flags, YAML keys and provenance are made;
- `tables`: columns declared once, written as text, CSV, Markdown and HTML; `markup` has the HTML templates;
- `workers`: a pool of processes or a cluster that computes the points of a sweep, and the journal of their answers.

Start with `errors.py` and `options/option.py`.

Public modules: compiled, documents.errors, documents.fields, documents.records, documents.yaml_reading, errors, files,
finding, markup, operation, options.arguments, options.exclusions, options.input_stage, options.keys, options.option,
options.own, options.rates, options.text, other_work, parent, shipped, stopping, strict, suboptions, tables,
tables.cells, tables.columns, tables.declared, units, version, workers.crew, workers.journal, workers.points,
workers.requests.
"""
