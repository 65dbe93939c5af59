"""Finds the linear layers of a transformer that tensor parallelism cuts, by its operators.

A block of Megatron-LM (Shoeybi et al. 2019, section 3) is column-parallel linears, what is computed of their outputs
alone, and a row-parallel linear whose output is as wide as what came in: queries, keys, values, attention and its
projection; or the two or three linears of a feed-forward network. They are recognised by the sizes of their products
and by the place of attention among them.

Start at `blocks_in` for forward; `backward_spans` finds the same blocks in backward.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import prod

from ddpsim.bucketing import Parameter
from ddpsim.bucketing.assign import FrozenParameter
from ddpsim.common.errors import WorkloadError
from ddpsim.workload.operators import Operator, Product

REMEDY = "leave `tensor_parallel` out, or give a transformer whose linears take and leave the width of its norms"

_MOST_AGAIN = 8
"""Blocks that activation checkpointing computes again at once, at most; a layer has two, or four that attend twice."""


@dataclass(frozen=True, slots=True)
class ParallelLinear:
    """A linear layer of a parallel block.

    Attributes:
        at: number of its operator in forward.
        rows, outputs, inputs: of its product: tokens, and features out and in.
        weight: registration index of its weight.
        gradients: products of its backward: of its weight's and of its input's gradient, where there are such.
    """

    at: int
    rows: int
    outputs: int
    inputs: int
    weight: int
    gradients: int = 2

    @property
    def forward(self) -> Product:
        """Its product in forward."""
        return 1, self.rows, self.outputs, self.inputs

    def is_backward(self, product: Product) -> bool:
        """Whether `product` is that of its input's gradient or of its weight's."""
        return product[0] == 1 and sorted(product[1:]) == sorted((self.rows, self.outputs, self.inputs))


@dataclass(frozen=True, slots=True)
class ParallelBlock:
    """Linears between two allreduces: each rank has a part of the columns' outputs, and of the row's inputs.

    Attributes:
        columns, row: in forward's order.
        heads: of the attention between them, which the row joins; None where there is none, or they are not known.
    """

    columns: tuple[ParallelLinear, ...]
    row: ParallelLinear
    heads: int | None = None

    @property
    def linears(self) -> tuple[ParallelLinear, ...]:
        """All of them, in forward's order."""
        return (*self.columns, self.row)

    def heads_of(self, linear: ParallelLinear) -> int | None:
        """Return how many heads a linear makes, or joins; None where that is not known.

        Keys and values that several queries share have fewer than the block; one linear of all three has three times as
        many.
        """
        if self.heads is None:
            return None
        features = linear.inputs if linear is self.row else linear.outputs
        return features * self.heads // self.row.inputs


@dataclass(frozen=True, slots=True)
class ParallelSpan:
    """A stretch of operators that belongs to a parallel block.

    Attributes:
        block: which.
        products: operator and linear of each product, in order.
        again: whether it is forward, computed again in backward.
    """

    block: ParallelBlock
    products: tuple[tuple[int, ParallelLinear], ...]
    again: bool = False

    @property
    def first(self) -> int:
        """Its first product."""
        return self.products[0][0]

    @property
    def last(self) -> int:
        """Its last product."""
        return self.products[-1][0]


def width_of(parameters: Sequence[Parameter]) -> int:
    """Return the width of what passes from layer to layer: the most frequent length of a vector among parameters.

    Norms have it, and biases of linears that leave it.

    Raises:
        WorkloadError: a model without any vector.
    """
    lengths = Counter(parameter.shape[0] for parameter in parameters if len(parameter.shape) == 1)
    if not lengths:
        raise WorkloadError("no parameter is a norm's, whose length would be its width", remedy=REMEDY)
    return lengths.most_common(1)[0][0]


def blocks_in(
    forward: Sequence[Operator], forward_use: Sequence[int | None], parameters: Sequence[Parameter]
) -> list[ParallelBlock]:
    """Return the parallel blocks of forward, in order.

    Args:
        forward: operators in launch order.
        forward_use: by registration index the number of the operator that first reads the parameter.
    """
    width, blocks = width_of(parameters), list[ParallelBlock]()
    columns: list[ParallelLinear] = []
    attention: Operator | None = None
    for linear in _linears(forward, forward_use, parameters, width):
        if isinstance(linear, Operator):
            attention = (attention or linear) if columns else None
            continue
        if columns and linear.rows != columns[0].rows:
            columns = []
        # A block ends with the linear that leaves the width: after attention, or where its own input is not of that
        # width (a feed-forward network's). One of width to width with no attention before it opens a block, as a
        # query's does.
        attended = attention is not None
        ends = bool(columns) and linear.outputs == width and (attended or linear.inputs != width)
        if ends:
            blocks.append(ParallelBlock(tuple(columns), linear, _heads(attention, linear)))
        columns = [*columns, linear] if linear.inputs == width and not ends and not (columns and attended) else []
        attention = None
    return blocks


def _heads(attention: Operator | None, row: ParallelLinear) -> int | None:
    """Return the heads of the attention that `row` joins; None where that is not known.

    Where attention is products one after the other, the depth of the first, of queries and keys, is a head's width.
    """
    if attention is None:
        return None
    if attention.heads:
        return attention.heads
    width = 0 if attention.product is None else attention.product[3]
    return row.inputs // width if width and row.inputs % width == 0 else None


_ADAPTER = 8
"""A trained linear in a frozen model is an adapter where its inputs or outputs are fewer than the width over this."""


def _linears(
    forward: Sequence[Operator], forward_use: Sequence[int | None], parameters: Sequence[Parameter], width: int
) -> Iterator[ParallelLinear | Operator]:
    """Yield each linear, and each operator of attention, in order."""
    first_used: dict[int, list[int]] = {}
    frozen = frozenset(index for index, each in enumerate(parameters) if isinstance(each, FrozenParameter))
    begins = sorted(use for index, use in enumerate(forward_use) if use is not None and index not in frozen)
    for index, use in enumerate(forward_use):
        if use is not None and len(parameters[index].shape) == 2:
            first_used.setdefault(use, []).append(index)
    pending: list[int] = []
    for at, operator in enumerate(forward):
        pending += first_used.get(at, ())
        product = operator.product
        if operator.term == "attention" or (product is not None and product[0] > 1):
            yield operator
        elif product is not None:
            _, rows, outputs, inputs = product
            sizes = sorted((outputs, inputs))
            weight = next((index for index in pending if sorted(parameters[index].shape) == sizes), None)
            if weight is not None:
                pending.remove(weight)
                # An adapter beside a frozen linear, as LoRA's, is small: each rank has it whole.
                if frozen and weight not in frozen and _ADAPTER * sizes[0] < width:
                    continue
                own = weight not in frozen
                gradients = own + (not frozen or (len(begins) > own and begins[own] < at))
                yield ParallelLinear(at, rows, outputs, inputs, weight, gradients)


def forward_spans(blocks: Sequence[ParallelBlock]) -> list[ParallelSpan]:
    """Return where forward computes each block."""
    return [ParallelSpan(block, tuple((linear.at, linear) for linear in block.linears)) for block in blocks]


def backward_spans(blocks: Sequence[ParallelBlock], backward: Sequence[Operator]) -> list[ParallelSpan]:
    """Return where backward computes each block, from the last to the first, and where it computes some again.

    Raises:
        WorkloadError: products that are not those of the blocks.
    """
    products = [(at, each.product) for at, each in enumerate(backward) if each.product and each.product[0] == 1]
    spans: list[ParallelSpan] = []
    place, again = 0, _computes_again(blocks, [product for _, product in products])
    partly = any(linear.gradients < 2 for block in blocks for linear in block.linears)
    for number in range(len(blocks) - 1, -1, -1):
        while again and place < len(products) and not _begins(blocks, number, _coming(products, place)):
            place += 1
        if again:
            place = _computed_again(blocks, number, products, place, spans)
        # Products are taken in order and the blocks from the last: a product that is none of the linear awaited (the
        # output layer's, an adapter's) is passed over, so that one search needs no knowledge of what lies between.
        block, taken = blocks[number], list[tuple[int, ParallelLinear]]()
        for linear in reversed(block.linears):
            for _ in range(linear.gradients):
                while place < len(products) and not linear.is_backward(products[place][1]):
                    place += 1
                if place == len(products) and partly:
                    break  # the first layers of a model that is frozen in part have inputs without a gradient
                if place == len(products):
                    what = f"backward lacks a product of {prod((linear.rows, linear.outputs, linear.inputs)):.3g}"
                    raise WorkloadError(f"{what} operations that forward has", remedy=REMEDY)
                taken.append((products[place][0], linear))
                place += 1
        if taken:
            spans.append(ParallelSpan(block, tuple(taken)))
    return spans


_LONGEST = 8
"""Products that are looked at to tell a block's backward from its forward computed again."""


def _coming(products: Sequence[tuple[int, Product]], place: int) -> list[Product]:
    return [product for _, product in products[place : place + _LONGEST]]


def _computes_again(blocks: Sequence[ParallelBlock], products: Sequence[Product]) -> bool:
    """Whether backward has more products than the linears' own: where as many tokens as a linear has features
    come together, its forward looks like its backward."""
    sizes = [tuple(sorted(linear.forward[1:])) for block in blocks for linear in block.linears]
    known = set(sizes)
    own = sum(linear.gradients for block in blocks for linear in block.linears)
    return sum(tuple(sorted(product[1:])) in known for product in products) > own


def _begins(blocks: Sequence[ParallelBlock], number: int, coming: Sequence[Product]) -> bool:
    """Whether the products `coming` are the backward of block `number`, or of what is computed again before it."""
    return blocks[number].row.is_backward(coming[0]) or _again(blocks, number, coming) > 0


def _again(blocks: Sequence[ParallelBlock], number: int, coming: Sequence[Product]) -> int:
    """Return how many blocks up to `number` the products `coming` compute again; 0 where they are backward's own."""
    for count in range(1, min(_MOST_AGAIN, number + 1) + 1):
        expected = [linear.forward for block in blocks[number + 1 - count : number + 1] for linear in block.linears]
        # torch stops where all that was saved is there again: the last linear's output is not.
        for whole in (expected, expected[:-1]):
            expected_here = whole[: len(coming)]
            if len(expected_here) > 1 and list(coming[: len(expected_here)]) == expected_here:
                return count
    return 0


def _computed_again(
    blocks: Sequence[ParallelBlock],
    number: int,
    products: Sequence[tuple[int, Product]],
    place: int,
    spans: list[ParallelSpan],
) -> int:
    """Add the blocks that are computed again here to `spans`; return the place of the first product behind them."""
    if place == len(products):
        return place
    count = _again(blocks, number, _coming(products, place))
    for block in blocks[number + 1 - count : number + 1] if count else ():
        taken = []
        for linear in block.linears:
            if place < len(products) and products[place][1] == linear.forward:
                taken.append((products[place][0], linear))
                place += 1
        spans.append(ParallelSpan(block, tuple(taken), again=True))
    return place
