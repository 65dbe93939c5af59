"""Many predictions: each computed once, here or by a worker, cached under its job's key, and put together here.

What a planner makes of a job, a row, is written as an ordinary function that asks `Answers` for predictions and for
what takes as long to compute from them. The same function runs in two places:

- here, by `Rows`, with the known answers: it ends with the row, or at the first one missing (`MissingAnswerError`);
- in a worker (`_Work`), with those known so far: it computes the missing ones and sends all back as lines of JSON.

Invariant: a row is always made here and always from lines, so that it is the same whoever computed, and whatever a
journal had. The order in which a function asks for answers must not depend on anything but answers: lines have no keys.

Start at `Answers.predict`, then `Rows._iterate`.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Iterator, MutableMapping, MutableSequence, Sequence
from concurrent.futures import Executor
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, Generic, TypeVar

from pydantic import TypeAdapter

from ddpsim.bucketing import BucketCaps
from ddpsim.common.errors import InputError
from ddpsim.common.stopping import Stopped
from ddpsim.common.units import format_count
from ddpsim.common.workers.crew import WorkerPool, crew_of
from ddpsim.common.workers.journal import Journal, open_journal
from ddpsim.common.workers.points import Points
from ddpsim.prediction.predict import predict, predict_buckets, with_band
from ddpsim.prediction.prediction import Prediction
from ddpsim.prediction.simulated_run import SimulatedRun
from ddpsim.simulation.job import Job, Keys
from ddpsim.simulation.run import Progress

Item = TypeVar("Item")
Row = TypeVar("Row")
Answer = TypeVar("Answer")

GRACE_S = 2.0
"""Seconds for which a command that is stopped waits for the points under way, so that short ones are not lost."""

_ALIKE = 2
"""Predictions that are held with their runs, so that the next of the same job with other buckets shares them."""

_WRONG = (InputError, ValueError, KeyError, TypeError, IndexError, AttributeError, ArithmeticError, RecursionError)
"""Errors that reading a line as an answer may raise where this program did not write it: a journal is any file."""


class MissingAnswerError(Exception):
    """Raised where an answer is needed that is not known yet and is to be computed by a worker."""

    def __init__(self, key: str) -> None:
        self.key = key
        super().__init__(key)


class Answers:
    """The answers that one row needs: known ones are read, others computed.

    A row needs the same ones in the same order wherever its function runs, so that a worker needs no keys.

    Args:
        lines: of the first answers, in order; those that are read or computed later are added.
        key_of: makes the keys under which answers are looked up in `known`, and nothing is computed; None computes.
        known: lines by key.
        like: the latest predictions with their jobs: one of the same job with other buckets is made from these.
        progress: as that of `predict`.
    """

    def __init__(
        self,
        lines: Sequence[str] = (),
        key_of: Callable[..., str] | None = None,
        known: MutableMapping[str, Any] | None = None,
        like: MutableSequence[tuple[Job, Prediction]] | None = None,
        progress: Progress | None = None,
    ) -> None:
        self.lines, self.keys, self.progress = list(lines), list[str](), progress
        self._key_of, self._known = key_of, {} if known is None else known
        self._like: MutableSequence[tuple[Job, Prediction]] = [] if like is None else like
        self._position = 0

    def predict(self, job: Job, *, band: bool = True, local_s: float | None = None) -> Prediction:
        """Return the prediction of a job.

        Args:
            band, local_s: as those of `predict`.
        """
        parts = (job,) if band else (job, "without its band")
        read = partial(_read_prediction, job)
        prediction = self._ask(parts, lambda: self._predict(job, local_s, band=band), read, _document_line)
        # Where things are computed, of each job but for its buckets one prediction stays, the latest first.
        if self._key_of is None and self._find_alike(job) is None:
            self._like.insert(0, (job, prediction))
            del self._like[_ALIKE:]
        return prediction

    def ask(self, kind: Any, compute: Callable[[], Answer], *parts: object) -> Answer:
        """Return the result of `compute`, computed now or before.

        Args:
            kind: type of the answer, as pydantic takes it.
            compute: must not ask for answers itself.
            parts: all that the answer rests on, as `Keys.of` takes it, and a word that tells it from others of these.
        """
        read, write = partial(_read, kind), partial(_write, kind)
        answer: Answer = self._ask(parts, compute, read, write)
        return answer

    def _ask(
        self,
        parts: tuple[object, ...],
        compute: Callable[[], Answer],
        read: Callable[[Any], Answer],
        write: Callable[[Answer], str],
    ) -> Answer:
        position = self._position
        self._position += 1
        key = None if self._key_of is None else self._key_of(*parts)
        if key is not None:
            self.keys.append(key)
        # Three sources in this order: a line sent along, by its position; a computation, in a worker; the journal or
        # what other rows share, by key.
        if position < len(self.lines):
            return read(self.lines[position])
        if key is None:
            answer = compute()
            self.lines.append(write(answer))
            return answer
        if key in self._known:
            line = self._known[key]
            line = line if isinstance(line, str) else bytes(line).decode()
            try:
                answer = read(line)
            except _WRONG:
                del self._known[key]  # not an answer; computed anew below
            else:
                self.lines.append(line)
                return answer
        raise MissingAnswerError(key)

    def _predict(self, job: Job, local_s: float | None, *, band: bool) -> Prediction:
        if (alike := self._find_alike(job)) is not None:
            prediction = predict_buckets(alike, job.options.caps, job.options.plan, self.progress)
            return with_band(prediction, self.progress) if band else prediction
        if local_s is None:
            # One rank without DDP is the same on any number of nodes.
            elsewhere = (self._find_alike(replace(job, nodes=other.nodes)) for other, _ in self._like)
            local_s = next((alike.local_s for alike in elsewhere if alike is not None), None)
        return predict(job, local_s=local_s, band=band, progress=self.progress)

    def _find_alike(self, job: Job) -> Prediction | None:
        """Return a prediction of the same job but for its buckets."""
        own = _without_buckets(job)
        return next((prediction for other, prediction in self._like if _without_buckets(other) == own), None)


def _read_prediction(job: Job, line: str) -> Prediction:
    return Prediction.of_run(line, SimulatedRun.of(job))


def _document_line(prediction: Prediction) -> str:
    return json.dumps(prediction.kept_document(), allow_nan=False)


def _without_buckets(job: Job) -> Job:
    return replace(job, options=replace(job.options, caps=BucketCaps(), plan=None))


def _read(kind: Any, line: str) -> Any:
    """Return an answer, item by item of its kind: any file may hold anything."""
    return _adapter(kind).validate_json(line, strict=True)


def _write(kind: Any, answer: Any) -> str:
    return json.dumps(_adapter(kind).dump_python(answer), allow_nan=False)


@functools.cache
def _adapter(kind: Any) -> TypeAdapter[Any]:
    return TypeAdapter(kind)


RowFunction = Callable[[Answers, Item], Row]
"""Makes the row of an item from the answers that it asks for; workers need it, and items, to be picklable."""


@dataclass(slots=True)
class _Work(Generic[Item]):
    """Computes the answers that a row still lacks, in a worker; its latest predictions serve the next item."""

    function: Callable[[Answers, Item], object]
    name: Callable[[Item], str]
    like: list[tuple[Job, Prediction]] = field(default_factory=list, init=False)

    def __call__(self, request: tuple[Item, Sequence[str]], progress: Progress | None = None) -> list[str]:
        item, lines = request
        try:
            return self._answer(item, lines, progress)
        except _WRONG:
            if not lines:
                raise
        # A line of the journal that reads as an answer and is none may be the cause: once more without them.
        return self._answer(item, [], progress)

    def _answer(self, item: Item, lines: Sequence[str], progress: Progress | None) -> list[str]:
        answers = Answers(lines, like=self.like, progress=progress)
        try:
            self.function(answers, item)
        except ValueError as error:
            if isinstance(error, InputError) or "JSON compliant" not in str(error):
                raise
            remedy = "take options and figures nearer to those of real machines"
            raise InputError("has a number that is not finite", place=self.name(item), remedy=remedy) from error
        return answers.lines


class Rows(Iterator[tuple[int, Row]], Generic[Item, Row]):
    """An iterator over (position, row) of every item, each as it is done; those with all answers known come first.

    Args:
        function: makes the row of an item.
        items: in order; of two that lack the same answer one is computed.
        name: tells people which item one is.
        crew: who computes; None is this process.
        journal: has earlier answers, and each new one is written to it.
        progress: called with rows done and items in all: first after those whose answers are all known, then with each
            row, and now and then while one is computed here.

    Attributes:
        found: each row by position, as soon as it is there, however this ends.

    Raises:
        WorkersError: as `Points`; and any error of an item.
    """

    def __init__(
        self,
        function: RowFunction[Item, Row],
        items: Sequence[Item],
        name: Callable[[Item], str] = str,
        *,
        crew: WorkerPool | None = None,
        journal: Journal | None = None,
        progress: Progress | None = None,
    ) -> None:
        self.found = dict[int, Row]()
        self._function, self._items, self._crew, self._name = function, items, crew, name
        self._journal, self._progress = journal, progress
        self._known: MutableMapping[str, Any] = {} if journal is None else journal.entries
        self._key_of, self._done = Keys().of, 0
        self._work: Callable[[tuple[Item, Sequence[str]]], list[str]] = _Work(function, name)
        if crew is None:
            self._work = partial(self._work, progress=lambda *_: self._show())
        self._points: Points[tuple[Item, Sequence[str]], list[str]] | None = None
        self._sent = list[int]()
        self._shared, self._unwritten = set[int](), dict[str, str]()
        self._rows = self._iterate()

    def __next__(self) -> tuple[int, Row]:
        return next(self._rows)

    def all(self) -> list[Row]:
        """Return the rows of all items, in order.

        Raises:
            Stopped: by a signal; what workers finish within `GRACE_S` is in `found` too.
        """
        try:
            for _ in self:
                pass
        except Stopped:
            if self._points is not None:
                for number, lines in self._points.finish(GRACE_S):
                    self._take(self._sent[number], lines)
            self._write({})
            raise
        return [self.found[position] for position in range(len(self._items))]

    def _iterate(self) -> Iterator[tuple[int, Row]]:
        # In rounds. Two items that lack the same answer must not both compute it: the first does, the others wait for
        # the next round, in which it is known. Each round computes at least one answer, so that it ends.
        left: Sequence[int] = range(len(self._items))
        while left:
            rows, sent, left = self._look_up(left)
            self._show()
            yield from rows
            self._sent = [*sent]
            items = [(self._items[position], lines) for position, lines in sent.items()]
            self._points = Points(self._work, items, self._crew, lambda request: self._name(request[0]))
            for number, lines in self._points:
                row = self._take(self._sent[number], lines)
                self._show()
                yield self._sent[number], row

    def _look_up(self, positions: Sequence[int]) -> tuple[list[tuple[int, Row]], dict[int, list[str]], list[int]]:
        """Return the rows whose answers are all known, for those to be sent the lines known so far, and who waits."""
        rows, sent, later = list[tuple[int, Row]](), dict[int, list[str]](), list[int]()
        first = dict[str, int]()  # by the key of a missing answer, the item that is sent to compute it
        for position in positions:
            answers = Answers(key_of=self._key_of, known=self._known)
            try:
                rows.append((position, self._add(position, self._function(answers, self._items[position]))))
            except MissingAnswerError as missing:
                same = first.setdefault(missing.key, position)
                if same == position:
                    sent[position] = answers.lines
                else:
                    self._shared.add(same)
                    later.append(position)
            except _WRONG:
                # Either a known answer is wrong, and all of this row's are dropped, or the item is: then computing it
                # raises the same error, with the item's name.
                for key in answers.keys:
                    self._known.pop(key, None)
                sent[position] = []
        return rows, sent, later

    def _take(self, position: int, lines: list[str]) -> Row:
        """Return the row made from all its answers, and store these for other rows and later runs."""
        answers = Answers(lines, key_of=self._key_of)
        row = self._add(position, self._function(answers, self._items[position]))
        by_key = dict(zip(answers.keys, lines, strict=True))
        if self._journal is not None:
            self._write(by_key)
        elif position in self._shared:
            self._known.update(by_key)
        return row

    def _add(self, position: int, row: Row) -> Row:
        self._done += 1
        self.found[position] = row
        return row

    def _write(self, lines: dict[str, str]) -> None:
        """Write answers to the journal, and those that a signal prevented from being written."""
        if self._journal is not None:
            self._unwritten |= lines
            known = self._journal.entries
            new = {
                key: line
                for key, line in self._unwritten.items()
                if key not in known or bytes(known[key]) != line.encode()
            }
            if new:
                self._journal.add(new)
            self._unwritten = {}

    def _show(self) -> None:
        if self._progress is not None:
            self._progress(self._done, len(self._items))


Compute = Callable[..., list[Any]]
"""`compute(function, items, name)` returns the rows of all items; workers and journal are bound to it.

`progress=` is called with how many of these items are done.
"""


@contextmanager
def computing(
    executor: Executor | WorkerPool | None, cache: str | Path | None, progress: Progress | None = None
) -> Iterator[Compute]:
    """Yield the `Compute` of a Python caller's `executor` and `cache`.

    Args:
        executor: where answers are computed: processes on one machine, a cluster's; None is this process.
        cache: file in which answers are stored and looked up, each under its job's key.
        progress: as that of `Rows`.

    Raises:
        InputError: a `cache` that cannot be read or written, or is none.
    """
    with open_journal(cache) as journal:
        make = partial(Rows, crew=crew_of(executor), journal=journal, progress=progress)
        yield lambda *arguments, **options: make(*arguments, **options).all()


def name_job(job: Job) -> str:
    """Return where a job runs, in words."""
    return job.topology.name if job.nodes is None else f"{job.topology.name}, {format_count(job.nodes, 'node')}"
