"""Many answers: each computed once by somebody, kept under its key, and put together here, whoever computed it.

What a planner makes of a job, a row, is a function that asks for answers: predictions, and what takes as long to find
of them. Where answers are missing, a worker runs the function and hands back those it computed, as lines; the row
itself is always made of lines, in this process. So it is the same whoever computed, and whatever a journal had.
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
"""Predictions that whoever computes holds, with their runs, for what comes next to be told from them."""

_WRONG = (InputError, ValueError, KeyError, TypeError, IndexError, AttributeError, ArithmeticError, RecursionError)
"""What a line that was not written by this program comes to where it is taken for an answer."""


class MissingAnswerError(Exception):
    """Raised where an answer is asked for that is to be computed by somebody else."""

    def __init__(self, key: str) -> None:
        self.key = key
        super().__init__(key)


class Answers:
    """The answers that one row asks for: known ones are read, others computed.

    A row asks for the same ones in the same order whoever runs its function, so that a worker needs no keys.

    Args:
        lines: of the first ones asked for, in order; those that are found or computed are added.
        key_of: makes the keys of those that are looked up in `known`, instead of being computed; None computes.
        known: lines by key.
        like: the predictions made last: of the same job with other buckets less is to be found.
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
        self._asked = 0

    def predict(self, job: Job, *, band: bool = True, local_s: float | None = None) -> Prediction:
        """Return the prediction of a job.

        Args:
            band, local_s: as those of `predict`.
        """
        parts = (job,) if band else (job, "without its band")
        read = partial(_read_prediction, job)
        found = self._ask(parts, lambda: self._predict(job, local_s, band=band), read, _document_line)
        if self._key_of is None and self._find_alike(job) is None:
            self._like.insert(0, (job, found))
            del self._like[_ALIKE:]
        return found

    def ask(self, kind: Any, compute: Callable[[], Answer], *parts: object) -> Answer:
        """Return what `compute` does, or did before.

        Args:
            kind: type of the answer, as pydantic takes it.
            compute: asks for nothing here in turn.
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
        position = self._asked
        self._asked += 1
        key = None if self._key_of is None else self._key_of(*parts)
        if key is not None:
            self.keys.append(key)
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
                del self._known[key]
            else:
                self.lines.append(line)
                return answer
        raise MissingAnswerError(key)

    def _predict(self, job: Job, local_s: float | None, *, band: bool) -> Prediction:
        if (made := self._find_alike(job)) is not None:
            found = predict_buckets(made, job.options.caps, job.options.plan, self.progress)
            return with_band(found, self.progress) if band else found
        if local_s is None:
            # One rank without DDP is the same on any number of nodes.
            elsewhere = (self._find_alike(replace(job, nodes=asked.nodes)) for asked, _ in self._like)
            local_s = next((made.local_s for made in elsewhere if made is not None), None)
        return predict(job, local_s=local_s, band=band, progress=self.progress)

    def _find_alike(self, job: Job) -> Prediction | None:
        """Return a prediction of the same job but for its buckets."""
        return next((made for asked, made in self._like if _without_buckets(asked) == _without_buckets(job)), None)


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
"""Makes the row of an item of the answers that it asks for; with workers it can be pickled, and so can items."""


@dataclass(slots=True)
class _Work(Generic[Item]):
    """Computes what a row still lacks, in a worker, which keeps the last predictions from one item to the next."""

    function: Callable[[Answers, Item], object]
    name: Callable[[Item], str]
    like: list[tuple[Job, Prediction]] = field(default_factory=list, init=False)

    def __call__(self, asked: tuple[Item, Sequence[str]], progress: Progress | None = None) -> list[str]:
        item, lines = asked
        try:
            return self._answer(item, lines, progress)
        except _WRONG:
            if not lines:
                raise
        # What was known may be to blame.
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
    """An iterator over (position, row) of every item, each as it is done; those of which all is known come first.

    Args:
        function: makes the row of an item.
        items: in order; of two that lack the same answer one is computed.
        name: tells people which item one is.
        crew: who computes; None is this process.
        journal: has what was answered before, and is told of each answer.
        progress: called with rows done and items in all: first where those of which all is known are done, then with
            each row, and now and then while one is computed here.

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
            Stopped: by a signal; what is done within `GRACE_S` of what was given out is found too.
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
        left: Sequence[int] = range(len(self._items))
        while left:
            rows, sent, left = self._look_up(left)
            self._show()
            yield from rows
            self._sent = [*sent]
            items = [(self._items[position], lines) for position, lines in sent.items()]
            self._points = Points(self._work, items, self._crew, lambda asked: self._name(asked[0]))
            for number, lines in self._points:
                row = self._take(self._sent[number], lines)
                self._show()
                yield self._sent[number], row

    def _look_up(self, positions: Sequence[int]) -> tuple[list[tuple[int, Row]], dict[int, list[str]], list[int]]:
        """Return the rows of which all is known, what is known of others, and those that wait for what these lack."""
        rows, sent, later = list[tuple[int, Row]](), dict[int, list[str]](), list[int]()
        first = dict[str, int]()
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
                # Of wrong answers, or of the item: then whoever computes it raises the same in its turn.
                for key in answers.keys:
                    self._known.pop(key, None)
                sent[position] = []
        return rows, sent, later

    def _take(self, position: int, lines: list[str]) -> Row:
        """Return the row of all its answers, and keep these."""
        answers = Answers(lines, key_of=self._key_of)
        row = self._add(position, self._function(answers, self._items[position]))
        found = dict(zip(answers.keys, lines, strict=True))
        if self._journal is not None:
            self._write(found)
        elif position in self._shared:
            self._known.update(found)
        return row

    def _add(self, position: int, row: Row) -> Row:
        self._done += 1
        self.found[position] = row
        return row

    def _write(self, found: dict[str, str]) -> None:
        """Write answers to the journal, and those that a signal kept from it."""
        if self._journal is not None:
            self._unwritten |= found
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
"""Returns the rows of a function, items, and what names these; who computes and what is kept is given already.

`progress=` shows how many of these items are done.
"""


@contextmanager
def computing(
    executor: Executor | WorkerPool | None, cache: str | Path | None, progress: Progress | None = None
) -> Iterator[Compute]:
    """Yield what computes rows as a Python caller asks for it.

    Args:
        executor: who computes: processes on one machine, a cluster's; None is this process.
        cache: file in which answers are kept, each under its job's key, and found again.
        progress: as that of `Rows`.

    Raises:
        InputError: a `cache` that cannot be read or written, or is none.
    """
    with open_journal(cache) as journal:
        make = partial(Rows, crew=crew_of(executor), journal=journal, progress=progress)
        yield lambda *asked, **shown: make(*asked, **shown).all()


def name_job(job: Job) -> str:
    """Return where a job runs, in words."""
    return job.topology.name if job.nodes is None else f"{job.topology.name}, {format_count(job.nodes, 'node')}"
