"""A transformer's step as one rank of several computes it, each layer cut over them as Megatron-LM does.

Source: Shoeybi et al. 2019, section 3. Linears that enter a block are cut by columns, the one that leaves it by rows,
what lies between them computes on a part, and the block's output is allreduced; in backward so is the gradient of its
input. Embedding and output layer are cut along the vocabulary: the embedding's output and the gradient of the output
layer's input are allreduced too, and of the loss three numbers a token. Norms, dropout and sums beside the blocks are
computed by every rank on all tokens.

Start at `on_ranks`; `_Cutter.step` is the cut from beginning to end.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

from ddpsim.bucketing import Parameter
from ddpsim.common.errors import WorkloadError
from ddpsim.workload.layer_messages import OperatorMessage
from ddpsim.workload.operators import NARROW, Activations, Operator, Product
from ddpsim.workload.parallel_linears import (
    REMEDY,
    ParallelBlock,
    ParallelLinear,
    ParallelSpan,
    backward_spans,
    blocks_in,
    forward_spans,
    width_of,
)

_OF_LOSS = 3
"""Allreduces of a number a token in a loss that is cut along the vocabulary: of the largest logit, the target's, and
the sum of exponentials (Megatron-LM, `megatron/core/tensor_parallel/cross_entropy.py`, core_r0.5.0)."""
_WIDE, _NARROW = 4, 2
"""Bytes of an element in fp32, and in 16 bits."""


@dataclass(frozen=True, slots=True)
class RankStep:
    """What one of several ranks computes of a step, and what they send each other.

    Attributes:
        parameters: its parts of them, in registration order.
        forward, backward: its operators, as many as of the whole step.
        forward_messages, backward_messages: allreduces among the ranks, in order.
        share: of the bytes of tensors that forward reads and writes, those that the rank still does.
    """

    parameters: tuple[Parameter, ...]
    forward: tuple[Operator, ...]
    backward: tuple[Operator, ...]
    forward_messages: tuple[OperatorMessage, ...]
    backward_messages: tuple[OperatorMessage, ...]
    share: float

    def activations(self, whole: Activations | None, ranks: int) -> Activations | None:
        """Return the bytes at the peak: in proportion to what forward reads and writes, casts of weights to the rank's.

        Which tensors are kept is not known by tensor.
        """
        if whole is None:
            return None
        narrow, wide = round(whole.narrow_bytes * self.share), round(whole.wide_bytes * self.share)
        amp_fixed, amp = whole.amp_fixed_bytes, whole.amp_bytes
        amp = amp and round((amp - amp_fixed) * self.share + amp_fixed / ranks)
        return Activations(narrow, wide, amp, round(whole.fixed_bytes * self.share), round(amp_fixed / ranks))


def on_ranks(
    forward: Sequence[Operator],
    backward: Sequence[Operator],
    forward_use: Sequence[int | None] | None,
    parameters: Sequence[Parameter],
    ranks: int,
    precision: str,
) -> RankStep:
    """Return what each of `ranks` ranks computes of a step.

    Args:
        forward, backward: operators in launch order.
        forward_use: by registration index the number of the forward operator that first reads the parameter.
        parameters: in registration order.
        precision: of the computation: messages are of 16 bits where that is.

    Raises:
        WorkloadError: no transformer, or heads of attention or linears that `ranks` do not divide.
    """
    blocks = [] if forward_use is None else blocks_in(forward, forward_use, parameters)
    if forward_use is None or not blocks:
        raise WorkloadError("its operators are not those of a transformer's layers", remedy=REMEDY)
    for block in blocks:
        _check_heads(block, parameters, ranks)
        for linear in block.linears:
            size = linear.inputs if linear is block.row else linear.outputs
            if size % ranks:
                name = parameters[linear.weight].name
                what = f"{ranks} ranks do not divide the {size} features by which {name} is cut"
                raise WorkloadError(what, place="tensor_parallel", remedy=f"give a divisor of {size}")
    cutter = _Cutter(forward, backward, forward_use, parameters, ranks, blocks)
    return cutter.step(_NARROW if precision in NARROW else _WIDE, _NARROW if precision == "bf16" else _WIDE)


def _check_heads(block: ParallelBlock, parameters: Sequence[Parameter], ranks: int) -> None:
    """Refuse a cut through a head of attention, which one rank computes whole."""
    for linear in reversed(block.linears):
        heads = block.heads_of(linear)
        if heads is not None and heads % ranks:
            does = "joins" if linear is block.row else "makes"
            name = parameters[linear.weight].name
            what = f"{ranks} ranks do not divide the {heads} heads of attention that {name} {does}"
            raise WorkloadError(what, place="tensor_parallel", remedy=f"give a divisor of {heads}")


@dataclass(slots=True)
class _Cutter:
    """Cuts one step.

    Attributes:
        cut: weights and biases of which a rank has a part.
        changed: operators of forward and of backward that are cut, by number.
    """

    forward: Sequence[Operator]
    backward: Sequence[Operator]
    forward_use: Sequence[int | None]
    parameters: Sequence[Parameter]
    ranks: int
    blocks: Sequence[ParallelBlock]
    cut: dict[int, Parameter] = field(init=False, default_factory=dict)
    changed: tuple[dict[int, Operator], dict[int, Operator]] = field(init=False, default_factory=lambda: ({}, {}))

    def step(self, activation_bytes: int, embedding_bytes: int) -> RankStep:
        """Return the rank's step.

        Args:
            activation_bytes: of an element that linears leave.
            embedding_bytes: of one that the embedding leaves.
        """
        width, tokens = width_of(self.parameters), self.blocks[0].row.rows
        self._cut_parameters()
        sent: tuple[list[OperatorMessage], list[OperatorMessage]] = [], []
        vocabulary = self._vocabulary(width)
        if vocabulary is not None:
            use = self.forward_use[vocabulary]
            assert use is not None
            sent[0].append(OperatorMessage(use, tokens * width * embedding_bytes))
            self._cut_vocabulary(vocabulary, width, sent, activation_bytes)
        for span in forward_spans(self.blocks):
            self._cut_forward(span, 0)
            sent[0].append(self._sum_over_ranks(span, width * activation_bytes))
        for span in backward_spans(self.blocks, self.backward):
            (self._cut_forward if span.again else self._cut_backward)(span, 1)
            if not span.again or span.products[-1][1] == span.block.row:
                sent[1].append(self._sum_over_ranks(span, width * activation_bytes))
        self._cut_gradients()
        forward, backward = (
            tuple(changed.get(at, each) for at, each in enumerate(phase))
            for phase, changed in zip((self.forward, self.backward), self.changed, strict=True)
        )
        moved = [sum(each.traffic_bytes - each.fixed_bytes for each in phase) for phase in (forward, self.forward)]
        forward_sent, backward_sent = (tuple(sorted(each, key=lambda message: message.after)) for each in sent)
        parameters = tuple(self.cut.get(index, each) for index, each in enumerate(self.parameters))
        return RankStep(parameters, forward, backward, forward_sent, backward_sent, moved[0] / moved[1])

    def _sum_over_ranks(self, span: ParallelSpan, row_bytes: int) -> OperatorMessage:
        return OperatorMessage(span.last, span.block.row.rows * row_bytes)

    # Parameters.

    def _cut_parameters(self) -> None:
        for block in self.blocks:
            for linear in block.columns:
                self._cut_weight(linear.weight, linear.outputs)
                prefix = self.parameters[linear.weight].name.rpartition(".")[0]
                for index, each in enumerate(self.parameters):
                    if each.name.rpartition(".")[0] == prefix and each.shape == (linear.outputs,):
                        self._cut_weight(index, linear.outputs)
            self._cut_weight(block.row.weight, block.row.inputs)

    def _cut_weight(self, index: int, size: int) -> None:
        """Let a rank have a part of a parameter along its dimension of `size`; the last ranks' may be padded."""
        whole = self.parameters[index]
        axis = whole.shape.index(size)
        shape = (*whole.shape[:axis], math.ceil(size / self.ranks), *whole.shape[axis + 1 :])
        self.cut[index] = replace(whole, shape=shape)

    def _vocabulary(self, width: int) -> int | None:
        """Return the word embedding: the longest table of rows as wide as a token that no product reads first."""
        tables = [
            index
            for index, (each, use) in enumerate(zip(self.parameters, self.forward_use, strict=True))
            if use is not None
            and index not in self.cut
            and len(each.shape) == 2
            and each.shape[1] == width
            and self.forward[use].product is None
            and self.forward[use].term != "casts"
        ]
        return max(tables, key=lambda index: self.parameters[index].shape[0], default=None)

    # Operators.

    def _cut_vocabulary(
        self,
        vocabulary: int,
        width: int,
        sent: tuple[list[OperatorMessage], list[OperatorMessage]],
        activation_bytes: int,
    ) -> None:
        """Cut the embedding, the output layer that has its size, and the loss behind it."""
        words = self.parameters[vocabulary].shape[0]
        for index, each in enumerate(self.parameters):
            if each.shape in ((words, width), (words,)):
                self._cut_weight(index, words)
        # A weight that is tied to the embedding is no second parameter: the output layer is known by the sizes of its
        # product.
        at = next((at for at, each in enumerate(self.forward) if _sizes(each) == (words, width)), None)
        product = None if at is None else self.forward[at].product
        if at is None or product is None:
            return
        head = ParallelLinear(at, product[1], words, width, vocabulary)
        behind = range(at + 1, len(self.forward))
        self._cut_linear(0, at, head, columns=True, forward=True)
        for other in behind:
            self._cut_all(0, other)
        for other in self._casts_before(self.forward, at):
            self._cut_all(0, other)
        after = at + 1 if len(behind) else at
        sent[0].extend([OperatorMessage(after, head.rows * _WIDE)] * _OF_LOSS)
        # Backward begins with the loss, whose logits each rank has a part of, and then has the output layer's two
        # products: what comes before the last of these is cut, and an allreduce behind it gives every rank the whole
        # gradient of the last hidden state.
        products = [k for k, each in enumerate(self.backward) if each.product and head.is_backward(each.product)][:2]
        for other in range(products[-1]) if products else ():
            if other not in products:
                self._cut_all(1, other)
        for other in products:
            self._cut_linear(1, other, head, columns=True)
        if products:
            self._cut_fixed_behind(products[-1])
            sent[1].append(OperatorMessage(products[-1], head.rows * width * activation_bytes))

    def _cut_forward(self, span: ParallelSpan, phase: int) -> None:
        """Cut a block of forward: its linears, and what is computed of their parts."""
        operators, products = (self.forward, self.backward)[phase], dict(span.products)
        columns = [at for at, linear in span.products if linear in span.block.columns]
        for at in range(span.first, span.last + 1):
            if at in products:
                self._cut_linear(phase, at, products[at], columns=at in columns, forward=True)
            elif operators[at].fixed_bytes > 0 or operators[at].term != "casts" or at > columns[-1]:
                self._cut_all(phase, at)
        for at in self._casts_before(operators, span.first):
            self._cut_all(phase, at)

    def _cut_backward(self, span: ParallelSpan, phase: int) -> None:
        """Cut a block of backward: until its first column what has parts, then what is of weights alone."""
        products, row = dict(span.products), span.block.row
        first_column = next((at for at, linear in span.products if linear != row), span.last + 1)
        for at in range(span.first, span.last + 1):
            each = self.backward[at]
            bias = 0 < each.fixed_bytes <= _WIDE * row.outputs
            if at in products:
                self._cut_linear(phase, at, products[at], columns=products[at] != row)
            elif (at < first_column and not bias) or (at > first_column and each.fixed_bytes > 0):
                self._cut_all(phase, at)
        self._cut_fixed_behind(span.last)

    def _cut_fixed_behind(self, last: int) -> None:
        """Cut what follows the products of weights that are cut: sums of their biases, casts of their gradients."""
        for at in range(last + 1, len(self.backward)):
            each = self.backward[at]
            if each.product is not None or each.term in ("norms", "attention"):
                return
            if each.fixed_bytes > 0:
                self._cut_all(1, at)

    def _cut_gradients(self) -> None:
        """Cut what is left of the gradients of parameters that are cut: those of the embedding."""
        largest = max((each.numel for each in self.cut.values()), default=0)
        for at, each in enumerate(self.backward):
            own = bool(each.gradients) and all(index in self.cut for index in each.gradients)
            table = not each.gradients and each.fixed_bytes >= _NARROW * largest * self.ranks
            if at not in self.changed[1] and each.fixed_bytes > 0 and (own or table):
                fixed = each.fixed_bytes / self.ranks
                traffic = each.traffic_bytes - each.fixed_bytes + fixed
                self.changed[1][at] = replace(each, traffic_bytes=traffic, fixed_bytes=fixed)

    def _casts_before(self, operators: Sequence[Operator], at: int) -> Iterator[int]:
        """Yield the casts of weights just before an operator."""
        for before in range(at - 1, -1, -1):
            if operators[before].term != "casts":
                return
            if operators[before].fixed_bytes > 0:
                yield before

    def _cut_all(self, phase: int, at: int) -> None:
        """Give a rank an equal share of an operator: its arithmetic, all its bytes, and of products fewer of them."""
        each, ranks = (self.forward, self.backward)[phase][at], self.ranks
        product = each.product and (max(each.product[0] // ranks, 1), *each.product[1:])
        self.changed[phase][at] = replace(
            each,
            flops=each.flops / ranks,
            traffic_bytes=each.traffic_bytes / ranks,
            fixed_bytes=each.fixed_bytes / ranks,
            fused_bytes=each.fused_bytes / ranks,
            product=product,
        )

    def _cut_linear(self, phase: int, at: int, linear: ParallelLinear, *, columns: bool, forward: bool = False) -> None:
        """Let a rank compute its part of a product of `linear`, whose other side is whole."""
        each, ranks = (self.forward, self.backward)[phase][at], self.ranks
        whole, part = (linear.inputs, linear.outputs) if columns else (linear.outputs, linear.inputs)
        moved = (each.traffic_bytes - each.fixed_bytes) * (whole + part / ranks) / (whole + part)
        fixed = each.fixed_bytes / ranks
        assert each.product is not None
        self.changed[phase][at] = replace(
            each,
            flops=each.flops / ranks,
            traffic_bytes=moved + fixed,
            fixed_bytes=fixed,
            product=_part_of(each.product, linear, ranks, columns=columns, forward=forward),
        )


def _sizes(operator: Operator) -> tuple[int, int] | None:
    """Return features out and in of a single product of forward."""
    return operator.product[2:] if operator.product and operator.product[0] == 1 else None


def _part_of(product: Product, linear: ParallelLinear, ranks: int, *, columns: bool, forward: bool) -> Product:
    """Return a rank's part of a product of a linear that is cut by columns or by rows.

    The product is (tokens, out, in) in forward, (tokens, in, out) of its input's gradient, else its weight's gradient.
    """
    size = linear.outputs if columns else linear.inputs
    if forward or product[1:] == (linear.rows, linear.inputs, linear.outputs):
        at = 2 if columns == forward else 3
    else:
        at = 1 if product[1] == size else 2
    sizes = list(product)
    sizes[at] = math.ceil(size / ranks)
    return sizes[0], sizes[1], sizes[2], sizes[3]
