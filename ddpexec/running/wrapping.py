"""What stands around the module of a run: torch's DDP or ours, a schedule, or torch's `fully_shard`."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist

from ddpexec.ddp.compression import hook_for
from ddpexec.ddp.drop import LayerDrop
from ddpexec.ddp.parameters import ModelParameters
from ddpexec.ddp.scheduled_wrapper import ScheduledDataParallel
from ddpexec.ddp.wrapper import DistributedDataParallel
from ddpexec.errors import OptionError
from ddpexec.groups.lost import name_lost_ranks
from ddpexec.groups.process_groups import Communicator
from ddpexec.running.own import OwnTraining
from ddpexec.running.replicated import Replicated, gpus_of
from ddpexec.running.settings import DISCARDED, RunSettings
from ddpexec.running.subject import TrainingSubject
from ddpexec.timing.observe import Observer
from ddpsim.bucketing import BucketPlan
from ddpsim.common.options.exclusions import refuse_excluded
from ddpsim.schedules.named import scheme_named

LEARNED = DISCARDED - 2
"""Of the discarded iterations those in which a scheme's times are learned; in the others its schedule settles."""


@dataclass(frozen=True, slots=True)
class Wrapping:
    """A wrapping makes what trains a subject data parallel.

    Attributes:
        groups: torch's process groups, the first of all communication.
        plan: the buckets, where they are fixed.
    """

    settings: RunSettings
    subject: TrainingSubject
    parameters: ModelParameters
    communicator: Communicator
    groups: list[dist.ProcessGroup]
    plan: BucketPlan | None
    observer: Observer

    def make(self) -> Any:
        """Return it; the subject's optimizer becomes that of a schedule, where one is carried out.

        Raises:
            OptionError: what the scheme, or the implementation, cannot do.
        """
        settings = self.settings
        if settings.fully_sharded:
            return self._fully_sharded()
        if settings.replicated:
            return self._replicated()
        if settings.scheduled:
            return self._make_scheduled()
        self._refuse_complex()
        wrapped = self._torchs() if settings.implementation == "torch" else self._make_ours()
        if settings.compression != "none":
            wrapped.register_comm_hook(*hook_for(settings.compression))
        return wrapped

    @property
    def _module(self) -> torch.nn.Module:
        return self.subject.model.module

    @property
    def _watching(self) -> Observer | None:
        return self.observer if self.settings.observe else None

    @property
    def _device_ids(self) -> list[int | None] | None:
        device = self.subject.device
        return [device.index] if device.type == "cuda" and len(self.parameters.devices) == 1 else None

    def _torchs(self) -> torch.nn.parallel.DistributedDataParallel:
        arguments: dict[str, Any] = self.settings.torch_arguments(self.plan, self.parameters.policy)
        arguments["device_ids"] = self._device_ids
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)
            with name_lost_ranks(self.communicator, "the construction of torch's DDP", others_code=True):
                ddp = torch.nn.parallel.DistributedDataParallel(self._module, **arguments)
        if self.settings.comm == "noop":
            _disable_communication(ddp)
        return ddp

    def _make_ours(self) -> DistributedDataParallel:
        settings = self.settings
        return DistributedDataParallel(
            self._module,
            device_ids=self._device_ids,
            process_group=self.groups,
            find_unused_parameters=settings.find_unused_parameters,
            gradient_as_bucket_view=settings.gradient_as_bucket_view,
            forward_sync_buffers=settings.broadcast_buffers,
            bucket_cap_mb=settings.caps.bucket_cap_mb,
            first_bucket_mb=settings.caps.first_bucket_mb,
            bucket_cap_mb_list=settings.caps.bucket_cap_mb_list,
            plan=self.plan,
            rebuild=settings.order,
            predictor=settings.predictor,
            consensus=settings.consensus,
            drop=self._drop(),
            remap_dropped=settings.drop_buckets == "remapped",
            comm=settings.comm,
            observer=self._watching,
        )

    def _make_scheduled(self) -> ScheduledDataParallel:
        settings = self.settings
        refuse_excluded(
            settings, "runs by a schedule", OptionError, beside={"step": isinstance(self.subject.model, OwnTraining)}
        )
        wrapped = ScheduledDataParallel(
            self._module,
            settings.scheme,
            self.subject.make_optimizer,
            caps=settings.caps,
            plan=self.plan,
            overlap=settings.overlap == "on",
            broadcast_buffers=settings.broadcast_buffers,
            comm=settings.comm,
            accumulate=settings.accumulate if settings.sync == "every" else None,
            learn=LEARNED if scheme_named(settings.scheme).servers is None else 0,
            observer=self._watching,
        )
        self.subject.optimizer = wrapped.optimizer
        return wrapped

    def _fully_sharded(self) -> Any:
        settings, place = self.settings, f"scheme={self.settings.scheme}"
        refuse_excluded(
            settings, "runs by a schedule", OptionError, beside={"step": isinstance(self.subject.model, OwnTraining)}
        )
        refuse_excluded(settings, "runs by torch's schemes", OptionError, beside={"plan": self.plan})
        if not self.subject.timed and (settings.scale_compute != 1 or settings.stragglers):
            what, remedy = "a model under `fully_shard` cannot be made slower", "run timed layers: `workload`"
            named = "scale_compute" if settings.scale_compute != 1 else "stragglers"
            raise OptionError(f"{what} (`{named}`)", place=place, remedy=remedy)
        from ddpexec.ddp.fully_sharded import FullySharded

        wrapped = FullySharded(self._module, settings.scheme, self.subject.make_optimizer, observer=self._watching)
        self.subject.optimizer = wrapped.optimizer
        return wrapped

    def _replicated(self) -> Replicated:
        gpus = gpus_of(self.communicator, self.subject.device)
        if self.subject.timed:
            what = "timed layers keep one clock, and replicas are threads beside each other"
            raise OptionError(what, place=f"scheme={self.settings.scheme}", remedy="run a model: `model`")
        refuse_excluded(self.settings, "runs by torch's schemes", OptionError, beside={"plan": self.plan})
        return Replicated(self._module, self.parameters, gpus, self._watching)

    def _refuse_complex(self) -> None:
        name = next((each.name for each in self.parameters.policy if each.dtype.startswith("complex")), None)
        if name is not None and self.settings.compression != "none":
            what, remedy = f"{name} is complex, and codecs write real numbers", "leave it out"
            raise OptionError(what, place=f"compression={self.settings.compression}", remedy=remedy)

    def _drop(self) -> LayerDrop | None:
        if not self.settings.drop:
            return None
        if self.subject.timed:
            raise OptionError("timed layers leave nothing out", place="drop", remedy="run a model: `model`")
        return LayerDrop(self._module, self.settings.drop, self.settings.seed)


def _disable_communication(ddp: torch.nn.parallel.DistributedDataParallel) -> None:
    from torch.distributed.algorithms.ddp_comm_hooks.debugging_hooks import noop_hook

    ddp.register_comm_hook(None, noop_hook)
