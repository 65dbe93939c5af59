"""What the constructor of the wrapper passes on to its reducer."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from ddpsim.bucketing import BucketCaps


@dataclass(slots=True, kw_only=True)
class ReducerOptions:
    """These are the constructor's options that the reducer needs.

    `bucket_dtype`: what buckets hold; None is their parameters' type. The gradients that are kept have that type, so
    that they can be views of a bucket only where it is None. `remap_dropped`: where layers are left out, what is left
    moves up into the memory of the first buckets.
    """

    caps: BucketCaps
    gradient_as_bucket_view: bool = False
    find_unused_parameters: bool = False
    static_graph: bool = False
    bucket_dtype: torch.dtype | None = None
    skip_all_reduce_unused_params: bool = False
    batched_grad_copy: bool = False
    remap_dropped: bool = False

    @property
    def searching(self) -> bool:
        """Whether the graph is searched for unused parameters in each forward."""
        return self.find_unused_parameters and not self.static_graph
