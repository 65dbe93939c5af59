"""torch's distributed tests from its wheel, over gloo on this machine; collected by `run.py` alone."""

from torch.testing._internal.distributed.distributed_test import DistributedTest, TestDistBackend


class TestDistBackendWithSpawnGLOO(TestDistBackend, DistributedTest._DistTestBase):
    def setUp(self) -> None:
        super().setUp()
        self._spawn_processes()


del TestDistBackend
