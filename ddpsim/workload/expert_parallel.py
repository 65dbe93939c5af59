"""A step with mixtures of experts as one rank of several computes it, each of which has some of the experts.

Sources: Lepikhin et al. 2020 (GShard), section 3, and Rajbhandari et al. 2022 (DeepSpeed-MoE), section 4: every rank
routes its own tokens; an all-to-all brings each to the rank that has its expert (dispatch), another what the expert
made of it back (combine), and in backward the gradients go the same two ways. A rank then computes the tokens of all
ranks of its group for the experts that it has: as many as before, by fewer weights.

Experts are recognised by the names of their parameters: modules of a list whose name ends in `experts`. Their
operators lie between the first that reads one of an expert's parameters and the first of the next one's, in backward
between the last gradients of two. Tokens are taken to be spread over the ranks of a group evenly.

Start at `experts_on_ranks`; `Mixture` finds one layer's experts among the operators, `_RankOperators` takes a rank's
share.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from ddpsim.bucketing import Parameter
from ddpsim.common.errors import WorkloadError
from ddpsim.common.operation import Operation
from ddpsim.workload.layer_messages import OperatorMessage
from ddpsim.workload.operators import NARROW, Activations, Operator, Product

REMEDY = "leave `expert_parallel` out, or give a model whose experts are modules of a list, as `moe.experts.0`"

_PLACE = "expert_parallel"
_LIST = "experts"
"""With what the name of a list of experts ends: `experts`, Megatron-LM's `local_experts`, `deepspeed_experts`."""

_WIDE, _NARROW = 4, 2
"""Bytes of an element in fp32, and in 16 bits, in which experts take tokens where products are of 16 bits."""


@dataclass(frozen=True, slots=True)
class ExpertStep:
    """What one of several ranks computes of a step, and what they send each other.

    Attributes:
        parameters: those that the rank has, in registration order.
        forward, backward: its operators.
        forward_use: as `ddpsim.workload.estimate.ModelShape` has it, of these parameters and operators.
        forward_messages, backward_messages: all-to-alls among the ranks, in order.
        experts: registration indices of its experts' parameters, among `parameters`.
        layers: mixtures of experts.
        share: of the bytes of all parameters, those that the rank has.
    """

    parameters: tuple[Parameter, ...]
    forward: tuple[Operator, ...]
    backward: tuple[Operator, ...]
    forward_use: tuple[int | None, ...]
    forward_messages: tuple[OperatorMessage, ...]
    backward_messages: tuple[OperatorMessage, ...]
    experts: frozenset[int]
    layers: int
    share: float

    def activations(self, whole: Activations | None) -> Activations | None:
        """Return the bytes at the peak: of as many tokens as before, with casts of the weights that the rank has."""
        if whole is None:
            return None
        fixed, amp_fixed = round(whole.fixed_bytes * self.share), round(whole.amp_fixed_bytes * self.share)
        narrow = max(whole.narrow_bytes - whole.fixed_bytes + fixed, 0)
        amp = whole.amp_bytes and whole.amp_bytes - whole.amp_fixed_bytes + amp_fixed
        return Activations(narrow, whole.wide_bytes, amp, fixed, amp_fixed)


def experts_on_ranks(
    forward: Sequence[Operator],
    backward: Sequence[Operator],
    forward_use: Sequence[int | None] | None,
    parameters: Sequence[Parameter],
    ranks: int,
    precision: str,
) -> ExpertStep:
    """Return what each of `ranks` ranks computes of a step.

    Args:
        forward, backward: operators in launch order.
        forward_use: by registration index the number of the forward operator that first reads the parameter.
        parameters: in registration order.
        precision: of the computation: messages are of 16 bits where that is.

    Raises:
        WorkloadError: no mixture of experts, experts that `ranks` do not divide, or operators that are not one expert's
            after the other's.
    """
    lists = experts_in(parameters)
    if not lists or forward_use is None:
        raise WorkloadError("none of its parameters is of a list of experts", place=_PLACE, remedy=REMEDY)
    for name, experts in lists.items():
        if len(experts) % ranks:
            what = f"groups of {ranks} ranks do not divide the {len(experts)} experts of {name}"
            raise WorkloadError(what, place=_PLACE, remedy=f"give a divisor of {len(experts)}")
    mixtures = [Mixture.of(name, experts, forward, backward, forward_use) for name, experts in lists.items()]
    _check_once(mixtures, forward, backward)
    # The rank that stands for all has the first experts of every mixture: with tokens spread evenly each other one
    # computes as much, and which experts they are changes neither times nor bytes. Gradients name parameters by
    # registration index, and parameters of other ranks' experts are gone here, hence the new numbers.
    gone = {index for each in mixtures for expert in each.experts[len(each.experts) // ranks :] for index in expert}
    new_of = {old: new for new, old in enumerate(i for i in range(len(parameters)) if i not in gone)}
    width = _NARROW if precision in NARROW else _WIDE
    ahead, back = (
        _RankOperators.of(operators, [(each.spans[at], each.share(forward, ranks)) for each in mixtures], ranks)
        for at, operators in enumerate((forward, backward))
    )
    sizes = [each.sizes(forward, width) for each in mixtures]
    own = tuple(parameters[old] for old in new_of)
    uses = (forward_use[old] for old in new_of)
    return ExpertStep(
        own,
        ahead.renumbered(new_of),
        back.renumbered(new_of),
        tuple(None if use is None else ahead.before[use] for use in uses),
        ahead.messages(sizes),
        # Backward goes the two ways in reverse: gradients of what was combined come in before the experts, of what was
        # dispatched leave behind them.
        back.messages([(combined, dispatched) for dispatched, combined in sizes]),
        frozenset(new_of[i] for each in mixtures for expert in each.experts for i in expert if i in new_of),
        len(mixtures),
        sum(each.size_bytes for each in own) / sum(each.size_bytes for each in parameters),
    )


def experts_in(parameters: Sequence[Parameter]) -> dict[str, list[tuple[int, ...]]]:
    """Return by the name of each list of experts the registration indices of every expert's parameters, by number.

    >>> experts_in([Parameter(f"moe.experts.{number}.weight", (4, 4)) for number in range(2)])
    {'moe.experts': [(0,), (1,)]}
    """
    by_list: dict[str, dict[int, list[int]]] = {}
    for index, parameter in enumerate(parameters):
        parts = parameter.name.split(".")
        for at, (part, number) in enumerate(pairwise(parts)):
            if part.endswith(_LIST) and number.isdecimal():
                by_list.setdefault(".".join(parts[: at + 1]), {}).setdefault(int(number), []).append(index)
                break
    return {name: [tuple(experts[number]) for number in sorted(experts)] for name, experts in by_list.items()}


@dataclass(frozen=True, slots=True)
class Mixture:
    """One layer of experts.

    Attributes:
        name: of their list.
        experts: registration indices of each one's parameters, by number.
        spans: in forward and in backward, by number the operators of each.
    """

    name: str
    experts: Sequence[tuple[int, ...]]
    spans: tuple[Sequence[range], Sequence[range]]

    @classmethod
    def of(
        cls,
        name: str,
        experts: Sequence[tuple[int, ...]],
        forward: Sequence[Operator],
        backward: Sequence[Operator],
        forward_use: Sequence[int | None],
    ) -> Mixture:
        """Return the layer whose experts have these parameters.

        Raises:
            WorkloadError: an expert that forward does not read, or that gets no gradient.
        """
        completes = {index: at for at, each in enumerate(backward) for index in each.gradients}
        firsts, lasts = list[int](), list[int]()
        for number, members in enumerate(experts):
            used = [use for index in members if (use := forward_use[index]) is not None]
            complete = [completes[index] for index in members if index in completes]
            if not used or not complete:
                what = f"expert {number} of {name} is not computed in the step that was counted"
                raise WorkloadError(what, place=_PLACE, remedy="count a step in which each expert gets a token")
            firsts.append(min(used))
            lasts.append(max(complete))
        mine = {index for members in experts for index in members}
        other_uses = [use for index, use in enumerate(forward_use) if use is not None and index not in mine]
        other_ends = [at for index, at in completes.items() if index not in mine]
        return cls(
            name, experts, (_forward_spans(forward, firsts, other_uses), _backward_spans(backward, lasts, other_ends))
        )

    def share(self, forward: Sequence[Operator], ranks: int) -> float:
        """Return how many times the tokens of its first experts all are; `ranks` where they are spread evenly.

        Args:
            ranks: each of which has as many of the experts.
        """
        products = ([each.product for at in span if (each := forward[at]).product] for span in self.spans[0])
        rows = [of_expert[0][1] if of_expert and of_expert[0] is not None else 0 for of_expert in products]
        own = sum(rows[: len(rows) // ranks])
        return sum(rows) / own if own else ranks

    def sizes(self, forward: Sequence[Operator], width: int) -> tuple[int, int]:
        """Return the bytes that a rank dispatches, and those that are combined.

        Raises:
            WorkloadError: an expert whose operators are no products of matrices.
        """
        to, back = 0, 0
        for number, span in enumerate(self.spans[0]):
            products = [each.product for at in span if (each := forward[at]).product]
            if not products or products[0] is None or products[-1] is None:
                what = f"expert {number} of {self.name} has no product of matrices"
                raise WorkloadError(what, place=_PLACE, remedy=REMEDY)
            to += products[0][0] * products[0][1] * products[0][3] * width
            back += products[-1][0] * products[-1][1] * products[-1][2] * width
        return to, back


def _forward_spans(operators: Sequence[Operator], firsts: Sequence[int], others: Sequence[int]) -> list[range]:
    """Return the operators of each expert in forward.

    Args:
        firsts: by expert the first operator that reads one of its parameters.
        others: operators that first read a parameter of none of them.
    """
    ordered = sorted(firsts)
    ahead, gap = 0, ordered[1] - ordered[0] if len(ordered) > 1 else 0
    # What is alike before two of them belongs to each: the tokens are picked before the first product.
    while ahead < min(gap - 1, ordered[0]) and _alike(operators, ordered[0] - ahead - 1, ordered[1] - ahead - 1):
        ahead += 1
    last = ordered[-1] - ahead + (ordered[-1] - ordered[-2] if gap else 1)
    last = min([last, len(operators), *(use for use in others if use > ordered[-1])])
    ends = dict(zip(ordered, [*(first - ahead for first in ordered[1:]), last], strict=True))
    return [range(first - ahead, ends[first]) for first in firsts]


def _backward_spans(operators: Sequence[Operator], lasts: Sequence[int], others: Sequence[int]) -> list[range]:
    """Return the operators of each expert in backward.

    Args:
        lasts: by expert the operator that completes its last gradient.
        others: operators that complete gradients of none of them.
    """
    ordered = sorted(lasts)
    behind, gap = 0, ordered[1] - ordered[0] if len(ordered) > 1 else 0
    # What is alike behind the first and the last of them, which others follow, belongs to each.
    most = min(gap - 1, len(operators) - 1 - ordered[-1])
    while behind < most and _alike(operators, ordered[0] + behind + 1, ordered[-1] + behind + 1):
        behind += 1
    first = max([ordered[0] + behind + 1 - max(gap, 1), *(at + 1 for at in others if at < ordered[0])])
    begins = dict(zip(ordered, [max(first, 0), *(last + behind + 1 for last in ordered[:-1])], strict=True))
    return [range(begins[last], last + behind + 1) for last in lasts]


def _alike(operators: Sequence[Operator], one: int, other: int) -> bool:
    return replace(operators[one], gradients=()) == replace(operators[other], gradients=())


def _check_once(mixtures: Sequence[Mixture], forward: Sequence[Operator], backward: Sequence[Operator]) -> None:
    """Refuse experts that backward computes again: more than the two products of each of theirs.

    Raises:
        WorkloadError: an expert that is computed again.
    """
    for mixture in mixtures:
        own = {_sizes(product) for span in mixture.spans[0] for at in span if (product := forward[at].product)}
        once, back = (
            sum(_sizes(each.product) in own for each in phase if each.product) for phase in (forward, backward)
        )
        if back > 2 * once:
            what = f"{mixture.name} is computed again in backward, where its tokens would be sent again"
            remedy = "count the step without activation checkpointing"
            raise WorkloadError(what, place=_PLACE, remedy=remedy)


def _sizes(product: Product) -> tuple[int, ...]:
    return tuple(sorted(product))


@dataclass(frozen=True, slots=True)
class _RankOperators:
    """Forward or backward of one rank.

    Attributes:
        operators: that it computes.
        before: by number of an operator of the whole phase how many of the rank's come before it.
        around: of each mixture, how many of the rank's operators come before its experts, and up to their end.
        gone: operators that other ranks compute.
    """

    operators: tuple[Operator, ...]
    before: list[int]
    around: tuple[tuple[int, int], ...]
    gone: tuple[Operator, ...]

    @classmethod
    def of(
        cls, whole: Sequence[Operator], mixtures: Sequence[tuple[Sequence[range], float]], ranks: int
    ) -> _RankOperators:
        """Return a rank's operators: of the first experts of each mixture, for as many tokens as a rank has.

        Args:
            mixtures: by number the operators of each expert, and how many times the tokens of the first ones that is.
        """
        times: dict[int, float] = {}
        for spans, factor in mixtures:
            for number, span in enumerate(spans):
                times.update(dict.fromkeys(span, factor if number < len(spans) // ranks else 0))
        before, own, gone = [0], list[Operator](), list[Operator]()
        for at, each in enumerate(whole):
            factor = times.get(at, 1)
            if factor:
                own.append(each if factor == 1 else each.times(factor))
            else:
                gone.append(each)
            before.append(len(own))
        around = tuple(
            (before[min(span.start for span in spans)], before[max(span.stop for span in spans)])
            for spans, _ in mixtures
        )
        return cls(tuple(own), before, around, tuple(gone))

    def renumbered(self, new_of: Mapping[int, int]) -> tuple[Operator, ...]:
        """Return the rank's operators with the gradients of its parameters by their new numbers.

        Raises:
            WorkloadError: an operator of other ranks' experts that completes a gradient of this one's parameters.
        """
        if any(index in new_of for each in self.gone for index in each.gradients):
            what = "operators of one expert complete gradients of others, or of what is no expert's"
            raise WorkloadError(what, place=_PLACE, remedy=REMEDY)
        return tuple(
            replace(each, gradients=tuple(new_of[index] for index in each.gradients if index in new_of))
            if each.gradients
            else each
            for each in self.operators
        )

    def messages(self, sizes: Sequence[tuple[int, int]]) -> tuple[OperatorMessage, ...]:
        """Return the all-to-alls, in order; `sizes` has of each mixture the bytes before its experts and behind."""
        messages = [
            OperatorMessage(place - 1, size, Operation.ALL_TO_ALL)
            for around, both in zip(self.around, sizes, strict=True)
            for place, size in zip(around, both, strict=True)
        ]
        return tuple(sorted(messages, key=lambda message: message.after))
