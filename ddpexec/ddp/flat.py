"""A bucket's memory: a flat buffer, a view of it for each gradient, the copies in and out; or one sparse gradient."""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import NoReturn, cast

import torch
from torch import Tensor, nn

from ddpexec.errors import ExecutionError

EAGER_BYTES = 64 << 10
"""A gradient of at least this size is copied as soon as it exists, while it is in cache; smaller ones together."""

gradient_of = operator.attrgetter("grad")


class FlatBucket:
    """One buffer in which the gradients of a bucket lie one after the other.

    Small gradients are copied by one call for all of them when the bucket is complete, large ones each as it comes.
    Both write `grad / world_size`, rounded as torch's reducer rounds it, which under `batched_grad_copy` divides.

    Args:
        number: place in launch order.
        indices: registration indices, in the order in which they lie.
        parameters: all parameters of the model, by registration index.
        as_view: gradients become views of the buffer (`gradient_as_bucket_view`).
        dtype: of the buffer; None is the parameters'.
        batched: copy every gradient when the bucket is complete (`batched_grad_copy`).
        called: what errors call the parameter of a registration index.
        least: elements of the memory behind the buffer, where that is to be divided into equal parts: `whole`.
        memory: what the buffer takes the first elements of; None allocates.

    Attributes:
        divisor: of each gradient that is copied in; 1 leaves it whole.
        reduced: what the parameters are given: the buffer itself, or what a communication hook made of it.
    """

    def __init__(
        self,
        number: int,
        indices: Sequence[int],
        parameters: Sequence[nn.Parameter],
        *,
        as_view: bool,
        batched: bool,
        dtype: torch.dtype | None = None,
        called: Callable[[int], str] = "parameter {}".format,
        least: int = 0,
        memory: Tensor | None = None,
    ) -> None:
        self.number = number
        self.indices = tuple(indices)
        self.parameters = [parameters[index] for index in indices]
        self.as_view, self._batched, self._called = as_view, batched, called
        first = self.parameters[0]
        self._sizes = [parameter.numel() for parameter in self.parameters]
        size, dtype = sum(self._sizes), dtype or first.dtype
        self.whole = torch.zeros(max(size, least), dtype=dtype, device=first.device) if memory is None else memory
        self.buffer = self.whole[:size] if size < self.whole.numel() else self.whole
        self.size_bytes, self.divisor, self.reduced = self.buffer.nbytes, 1, self.buffer
        self.views = views_of(self.buffer, self.parameters)
        limit = float("inf") if batched else EAGER_BYTES / dtype.itemsize
        self.eager = [each >= limit for each in self._sizes]
        self._late = [place for place, eager in enumerate(self.eager) if not eager]
        self._late_views = [self.views[place] for place in self._late]
        self._late_parameters = [self.parameters[place] for place in self._late]
        self._late_pairs = list(zip(self._late_parameters, self._late_views, strict=True))
        self._late_runs = self._runs()
        if as_view:
            self._adopt_gradients()

    @property
    def elements(self) -> int:
        """Of the buffer."""
        return self.buffer.numel()

    def fill(self, place: int) -> None:
        """Copy the gradient at `place` into the buffer, divided by the divisor."""
        parameter, view, divisor = self.parameters[place], self.views[place], self.divisor
        grad = parameter.grad
        # Three cases, as in torch's `Reducer::mark_variable_ready_dense`: no gradient counts as zeros, a gradient that
        # is a view of the buffer is divided in place, another is copied and divided by one call.
        if grad is None:
            view.zero_()
        elif grad is view or (self.as_view and grad.layout == torch.strided and grad.data_ptr() == view.data_ptr()):
            if divisor != 1:
                (_real(view) if self._batched else view).div_(divisor)
        else:
            if (
                grad.layout != torch.strided
                or grad.dtype != view.dtype
                or grad.device != view.device
                or grad.shape != view.shape
            ):
                self._refuse(place, grad)
            if grad.requires_grad:
                grad = grad.detach()
            if divisor == 1:
                view.copy_(grad)
            elif self._batched:
                _real(view.copy_(grad)).div_(divisor)
            else:
                torch.mul(grad, reciprocal(divisor, view.dtype), out=view)
            if self.as_view:
                parameter.grad = view

    def complete(self) -> None:
        """Copy in, by few calls, every gradient that `fill` was not called for."""
        late, divisor = self._late_parameters, self.divisor
        if len(late) < 2:
            for place in self._late:
                self.fill(place)
            return
        grads = list(map(gradient_of, late))
        if self.as_view and all(map(operator.is_, grads, self._late_views)):
            if divisor != 1:
                for run in self._late_runs:
                    (_real(run) if self._batched else run).div_(divisor)
            return
        if not self._copy_late(grads):
            for place in self._late:
                self.fill(place)
            return
        if divisor != 1:
            for run in self._late_runs:
                if self._batched:
                    _real(run).div_(divisor)
                else:
                    run.mul_(reciprocal(divisor, run.dtype))
        if self.as_view:
            for parameter, view in self._late_pairs:
                parameter.grad = view

    def take_reduced(self) -> None:
        """Copy a communication hook's result back into the buffer."""
        reduced, self.reduced = self.reduced, self.buffer
        if reduced.data_ptr() != self.buffer.data_ptr():
            self.buffer.copy_(reduced.view(-1))

    def write_back(self, unused: Collection[int]) -> None:
        """Give the parameters their reduced gradients; those of registration indices in `unused` stay as they are."""
        views = self.views
        reduced, self.reduced = self.reduced, self.buffer
        if reduced.data_ptr() != self.buffer.data_ptr():
            views = views_of(reduced.reshape(-1), self.parameters)
            if self.as_view:
                torch._foreach_copy_(self.views, views)
        parameters = self.parameters
        if unused:
            used = [k for k, index in enumerate(self.indices) if index not in unused]
            parameters, views = [parameters[k] for k in used], [views[k] for k in used]
            if self.as_view:
                self._expect_views(used)
        elif self.as_view and not all(map(operator.is_, map(gradient_of, parameters), self.views)):
            self._expect_views(range(len(parameters)))
        if not self.as_view and parameters:
            self._copy_out(parameters, views)

    def _runs(self) -> list[Tensor]:
        """Return slices of the buffer that together hold exactly the gradients copied late."""
        runs: list[tuple[int, int]] = []
        offset = 0
        for size, eager in zip(self._sizes, self.eager, strict=True):
            end = offset + size
            if not eager:
                if runs and runs[-1][1] == offset:
                    runs[-1] = (runs[-1][0], end)
                else:
                    runs.append((offset, end))
            offset = end
        return [self.buffer[start:end] for start, end in runs if end > start]

    def _copy_late(self, grads: Sequence[Tensor | None]) -> bool:
        """Copy the late gradients by one call, where each exists, is dense, and lies outside the buffer."""
        if grads[0] is not None and grads[0].dtype != self.buffer.dtype:
            return False  # one by one, which names the parameter
        if self.as_view and any(map(operator.is_, grads, self._late_views)):
            return False
        return copy_all(self._late_views, grads)

    def _adopt_gradients(self) -> None:
        """Move gradients that exist already (accumulated, or of the buckets before a rebuild) into this buffer."""
        for parameter, view in zip(self.parameters, self.views, strict=True):
            if parameter.grad is not None:
                view.copy_(parameter.grad)
                parameter.grad = view

    def _refuse(self, place: int, grad: Tensor) -> NoReturn:
        view = self.views[place]
        if grad.layout != torch.strided:
            raise ExecutionError(
                f"{self._called(self.indices[place])} has a {grad.layout} gradient, a dense one was expected",
                remedy="only nn.Embedding and nn.EmbeddingBag with sparse=True may have sparse gradients",
            )
        raise ExecutionError(
            f"the gradient of {self._called(self.indices[place])} is {grad.dtype} {tuple(grad.shape)} on "
            f"{grad.device}, its bucket holds {view.dtype} {tuple(view.shape)} on {view.device}",
            remedy="do not change a parameter's type or device after wrapping the module",
        )

    def _expect_views(self, places: Collection[int]) -> None:
        for place in places:
            parameter, view = self.parameters[place], self.views[place]
            if parameter.grad is None:
                parameter.grad = view
            elif parameter.grad is not view and (
                parameter.grad.layout != torch.strided or parameter.grad.data_ptr() != view.data_ptr()
            ):
                raise ExecutionError(
                    f"the gradient of {self._called(self.indices[place])} is not the view of its bucket that "
                    "gradient_as_bucket_view=True makes it",
                    remedy="do not replace .grad during backward, or leave gradient_as_bucket_view out",
                )

    def _copy_out(self, parameters: Sequence[nn.Parameter], views: list[Tensor]) -> None:
        if copy_all(map(gradient_of, parameters), views):
            return
        for parameter, view in zip(parameters, views, strict=True):
            if parameter.grad is None:
                parameter.grad = torch.empty_like(parameter, requires_grad=False).copy_(view)
            else:
                parameter.grad.copy_(view)


def views_of(flat: Tensor, parameters: Sequence[nn.Parameter]) -> list[Tensor]:
    """Return a view of `flat` for each parameter, one after the other.

    A view has its parameter's strides where these are dense and non-overlapping, else it is contiguous.
    """
    views, offset, begin = [], 0, flat.storage_offset()
    for parameter in parameters:
        size = parameter.numel()
        if _is_dense(parameter):
            views.append(flat.as_strided(parameter.shape, parameter.stride(), begin + offset))
        else:
            views.append(flat[offset : offset + size].view(parameter.shape))
        offset += size
    return views


def move_into(flat: Tensor, parameters: Sequence[nn.Parameter]) -> None:
    """Let `parameters` be views of `flat` from now on, one after the other, with the values they have."""
    with torch.no_grad():
        for parameter, view in zip(parameters, views_of(flat, parameters), strict=True):
            view.copy_(parameter)
            parameter.data = view


def copy_all(into: Iterable[Tensor | None], values: Iterable[Tensor | None]) -> bool:
    """Copy tensor by tensor by one call; return False, with nothing to be relied on, where one is None or unlike."""
    targets, sources = cast("list[Tensor]", list(into)), cast("list[Tensor]", list(values))
    try:
        if torch.is_grad_enabled():
            with torch.no_grad():
                torch._foreach_copy_(targets, sources)
        else:
            torch._foreach_copy_(targets, sources)
    except (RuntimeError, TypeError):  # a type error is torch's answer to None
        return False
    return True


@functools.cache
def reciprocal(divisor: int, dtype: torch.dtype) -> Tensor | float:
    """Return 1 / `divisor` as a factor for tensors of `dtype`.

    A tensor of their own type saves torch the conversion of a Python number in each call; only for types in which
    torch multiplies without a wider intermediate, so that both round alike.
    """
    return (
        torch.tensor(1.0 / divisor, dtype=dtype, device="cpu")
        if dtype in (torch.float32, torch.float64)
        else 1.0 / divisor
    )


def _real(tensor: Tensor) -> Tensor:
    """Return complex numbers as pairs: dividing those, part by part, rounds otherwise than complex division."""
    return torch.view_as_real(tensor) if tensor.is_complex() else tensor


def _is_dense(tensor: Tensor) -> bool:
    """Whether the elements of `tensor` fill a stretch of memory without gaps or overlaps: torch keeps its strides."""
    return tensor.is_contiguous() or torch.empty_like(tensor, device="meta").stride() == tensor.stride()


class SparseBucket:
    """A bucket of one sparse gradient, which is sent as it is.

    Nothing is done to the gradient in place: those of embeddings that are added up lie in the same memory.

    Args:
        number: place in launch order.
        index: registration index.
        parameters: all parameters of the model, by registration index.
        called: what errors call the parameter of a registration index.

    Attributes:
        divisor: of the gradient; 1 leaves it whole.
        reduced: what the gradient becomes: the buffer itself, or what a communication hook made of it.
        elements: None: any number may come of a reduction.
    """

    elements: int | None = None

    def __init__(
        self,
        number: int,
        index: int,
        parameters: Sequence[nn.Parameter],
        called: Callable[[int], str],
    ) -> None:
        self.number = number
        self.indices, self.parameters = (index,), [parameters[index]]
        self.size_bytes = parameters[index].nbytes
        self._called = called
        self.eager = [False]
        self.divisor = 1
        self._gradient = self.buffer = self.reduced = torch.empty(0)

    @property
    def views(self) -> list[Tensor]:
        """The buffer: there is one gradient."""
        return [self.buffer]

    def complete(self) -> None:
        """Take the gradient, divided by the divisor."""
        grad = self.parameters[0].grad
        if grad is None or not grad.is_sparse:
            what = "has no gradient" if grad is None else "has a dense gradient"
            raise ExecutionError(
                f"{self._called(self.indices[0])} {what}, a sparse one was expected",
                remedy="use the embedding in every forward, or build it with sparse=False",
            )
        self._gradient, values = grad, grad.detach()
        self.buffer = self.reduced = values.clone() if self.divisor == 1 else values / self.divisor

    def fill(self, place: int) -> None:
        """Do nothing: a sparse gradient is taken when its bucket is complete."""

    def write_back(self, unused: Collection[int]) -> None:
        """Make the gradient what was reduced."""
        self._gradient.data = self.reduced.to(self._gradient.dtype, copy=self.reduced is not self.buffer)
        self._gradient = self.buffer = self.reduced = torch.empty(0)


def make_empty_gradient(parameter: Tensor) -> Tensor:
    """Return a sparse gradient of `parameter` that touches none of its rows."""
    rows = parameter.new_empty((1, 0), dtype=torch.int64)
    return torch.sparse_coo_tensor(rows, parameter.detach().new_empty((0, *parameter.shape[1:])), parameter.shape)
