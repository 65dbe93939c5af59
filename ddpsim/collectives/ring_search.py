"""Packs rings onto a node: as many as its links carry at a given speed.

Depth-first over GPU orders, each hop taking bandwidth from every link of its route and giving it back when abandoned,
after NCCL's `src/graph/search.cc`. The number of hops tried at one speed is bounded, and so is the work at all of them
together, so the search is fast on any graph; it is never random. On a node of many GPUs rings in rank order are tried
first, as NCCL tries its forced order: where GPUs are alike, and NICs, no other order carries more.

Three searches lie inside each other: `pack` adds ring to ring, `_candidates` chooses by which NICs and GPUs a ring
enters and leaves, `_walk` orders the GPUs between. The inner two are generators, and hold the bandwidth of what they
have yielded until they are asked for the next: nothing may be yielded without its bandwidth taken, nor passed over
without giving it back. Which speeds are tried, and how far routes may lead, is `channel_search`'s.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from heapq import merge
from itertools import pairwise, product
from operator import itemgetter

from ddpsim.topology.node import NETWORK
from ddpsim.topology.paths import KINDS, Paths, Route

_SLACK = 1e-9
"""Share of a speed that rounding may miss."""

_APART = KINDS.index("DIS")

_MANY_GPUS = 16
"""GPUs of a node beyond which rank order is tried first; no machine of one box has more."""
_SPEEDS = 16
"""One speed may take this part of the work that is left, so that slower ones have theirs."""
_MOST_WORK = 1_500_000
"""Hops, and devices looked at, in a whole search: about a second. The machines in `topologies/` need a third of it."""


@dataclass(frozen=True, slots=True)
class Ring:
    """A GPU order, with the NICs it enters and leaves by where several nodes share it."""

    gpus: tuple[str, ...]
    nic_in: str | None = None
    nic_out: str | None = None


@dataclass(frozen=True, slots=True)
class Limits:
    """How far a search may go.

    Attributes:
        kind: the farthest kind of route between GPUs, as an index of `KINDS`.
        nic_kind: the farthest between a GPU and a NIC.
        cross_nic: whether rings leave by another NIC than they entered by, two and two in opposite directions.
    """

    kind: int
    nic_kind: int = 0
    cross_nic: bool = False


@dataclass(frozen=True, slots=True)
class _Hop:
    loads: tuple[tuple[str, float], ...]
    kind: int


class RingSearch:
    """Searches one node for rings.

    Args:
        paths: routes of the node's template.
        capacities: bytes per second by link name, network ports included.
        gpus: the GPUs to visit, in rank order; a ring of one node starts at the first.
        nics: NICs that rings enter and leave by; none on one node.
        echo: bytes counted on a GPU's way to its slot for each that a NIC sends it.
        budget: hops to try at one speed.
    """

    def __init__(
        self,
        paths: Paths,
        capacities: dict[str, float],
        gpus: Sequence[str],
        nics: Sequence[str] = (),
        *,
        echo: float = 0.0,
        budget: int = 2000,
    ) -> None:
        self._gpus, self._nics, self._budget = tuple(gpus), tuple(nics), budget
        self._capacities = capacities
        self._hops = {(a, b): _hop(paths[a, b]) for a in gpus for b in gpus if a != b}
        for nic in nics:
            for gpu in gpus:
                if paths.distance(nic, gpu) == _APART:
                    continue
                last = paths[nic, gpu].links[-1]
                back = f"{last.target}>{last.source}"
                echoes = ((back, echo),) if echo and back in capacities else ()
                self._hops[nic, gpu] = _hop(paths[nic, gpu], (f"{NETWORK}>{nic}", 1.0), *echoes)
                self._hops[gpu, nic] = _hop(paths[gpu, nic], (f"{nic}>{NETWORK}", 1.0))
        self._outs = [tuple({self._hops[gpu, o].loads[0][0]: None for o in gpus if o != gpu}) for gpu in gpus]
        self._ports_of = {nic: (f"{NETWORK}>{nic}", f"{nic}>{NETWORK}") for nic in nics}
        self._hops_from = {gpu: [(other, self._hops[gpu, other]) for other in gpus if other != gpu] for gpu in gpus}
        self._numbers = {gpu: number for number, gpu in enumerate(gpus)}
        self._free: dict[str, float] = {}
        self._tried, self._most = 0, budget
        self._work, self._work_left = _MOST_WORK, 0
        self._known_nics: dict[Limits, list[str]] = {}
        self._known_ends: dict[tuple[str, str, int], list[tuple[str, str]]] = {}

    @cached_property
    def kinds(self) -> list[int]:
        """The kinds of routes between GPUs, near to far, as indices of `KINDS`."""
        nics = set(self._nics)
        return sorted({hop.kind for pair, hop in self._hops.items() if not set(pair) & nics})

    @cached_property
    def nic_kinds(self) -> list[int]:
        """The kinds of routes between GPUs and NICs, near to far."""
        nics = set(self._nics)
        return sorted({hop.kind for pair, hop in self._hops.items() if set(pair) & nics})

    def bound(self, speed: float, limits: Limits) -> int:
        """Return a number of rings at `speed` that cannot be exceeded."""
        self._free = dict(self._capacities)
        return self._room(speed, limits)

    def pack(self, speed: float, most: int, limits: Limits) -> list[Ring]:
        """Return as many rings as were found at `speed` bytes/s each, at most `most`."""
        # Pairs of NICs are many, and each costs more to look at.
        self._most = self._budget // 3 if limits.cross_nic else self._budget
        self._free, self._tried = dict(self._capacities), 0
        share = self._work // _SPEEDS
        self._work_left = share
        rings = self._pack_rings(speed, most, limits)
        self._work -= share - max(self._work_left, 0)
        return rings

    def _pack_rings(self, speed: float, most: int, limits: Limits) -> list[Ring]:
        # Branch and bound. A set of rings is looked at once, in whatever order they were found: what they leave of the
        # links is the same. A branch that cannot beat the best, by what GPUs and NICs can still send, is left.
        best: list[Ring] = []
        goal = min(most, self._room(speed, limits))
        seen: set[tuple[Ring, ...]] = set()

        def extend(rings: list[Ring]) -> bool:
            nonlocal best
            if len(rings) > len(best):
                best = list(rings)
            if len(best) >= goal:
                return True
            state = tuple(sorted(rings, key=lambda ring: (ring.gpus, ring.nic_in or "")))
            if state in seen or len(rings) + self._room(speed, limits) <= len(best):
                return False
            seen.add(state)
            for ring in self._candidates(speed, limits, rings):
                if extend([*rings, ring]):
                    # The bandwidth stays taken: nobody asks this search again before `pack` begins anew.
                    return True
                if self._tried > self._most or self._work_left <= 0:
                    return False
            return False

        extend([])
        return best

    def _candidates(self, speed: float, limits: Limits, rings: list[Ring]) -> Iterator[Ring]:
        """Yield rings that still fit; while the caller holds one, its bandwidth is taken."""
        kind = limits.kind
        if not self._nics:
            for order in self._list_known_orders(rings):
                for _ in self._hold_hops((*order, order[0]), speed, kind):
                    yield Ring(order)
            yield from self._close_rings(speed, kind)
            return
        for nic_in, nic_out in self._ports(speed, limits, rings):
            for first, last in self._list_ends(nic_in, nic_out, limits.nic_kind):
                if self._work_left <= 0:
                    return
                if self.take(self._hops[nic_in, first], speed):
                    if self.take(self._hops[last, nic_out], speed):
                        for order in self._search_orders(first, last, speed, kind):
                            yield Ring(order, nic_in, nic_out)
                        self._give(self._hops[last, nic_out], speed)
                    self._give(self._hops[nic_in, first], speed)

    def _list_known_orders(self, rings: list[Ring]) -> Iterator[tuple[str, ...]]:
        # As NCCL replays its last ring (FORCED_ORDER_REPLAY): often links carry it again, backwards or the same way.
        if rings:
            last = rings[-1].gpus
            yield (last[0], *reversed(last[1:]))
            yield last
        else:
            yield self._gpus

    def _hold_hops(self, stops: tuple[str, ...], speed: float, kind: int) -> Iterator[None]:
        """Yield once where every hop between `stops` fits, its bandwidth taken meanwhile."""
        taken = []
        for pair in pairwise(stops):
            if pair[0] == pair[1]:
                continue
            hop = self._hops[pair]
            if hop.kind > kind or not self.take(hop, speed):
                break
            taken.append(hop)
        else:
            yield
        for hop in taken:
            self._give(hop, speed)

    def _close_rings(self, speed: float, kind: int) -> Iterator[Ring]:
        first = self._gpus[0]
        for last in self._gpus[1:]:
            if self._work_left <= 0:
                return
            closing = self._hops[last, first]
            if closing.kind <= kind and self.take(closing, speed):
                for order in self._search_orders(first, last, speed, kind):
                    yield Ring(order)
                self._give(closing, speed)

    def _search_orders(self, first: str, last: str, speed: float, kind: int) -> Iterator[tuple[str, ...]]:
        """Yield orders of all GPUs from `first` to `last`, the widest hop tried first."""
        if first == last:
            yield (first,)
            return
        if len(self._gpus) > _MANY_GPUS:
            start = self._numbers[first] + 1
            inside = (gpu for gpu in (*self._gpus[start:], *self._gpus[: start - 1]) if gpu != last)
            order = (first, *inside, last)
            for _ in self._hold_hops(order, speed, kind):
                yield order
        # Without this look a dead end is found only after every order of the GPUs that can be reached.
        if not self._is_connected(first, last, speed, kind):
            return
        inner = frozenset(self._gpus) - {first, last}
        yield from self._walk((first,), inner, last, speed, kind)

    def _walk(
        self, order: tuple[str, ...], left: frozenset[str], last: str, speed: float, kind: int
    ) -> Iterator[tuple[str, ...]]:
        here = order[-1]
        self._work_left -= len(left)
        for gpu, hop in self._sort_hops(here, left) if left else [(last, self._hops[here, last])]:
            if self._tried > self._most or self._work_left <= 0:
                return
            if hop.kind <= kind and self.take(hop, speed):
                if left:
                    yield from self._walk((*order, gpu), left - {gpu}, last, speed, kind)
                else:
                    yield (*order, gpu)
                self._give(hop, speed)

    def _sort_hops(self, here: str, there: Iterable[str]) -> list[tuple[str, _Hop]]:
        """Return the GPUs `there` with the hops to them: the nearest first, of those that with most room."""
        free, sortable = self._free, []
        for gpu in there:
            hop = self._hops[here, gpu]
            sortable.append((hop.kind, -min([free[link] for link, _ in hop.loads]), self._numbers[gpu], gpu, hop))
        sortable.sort(key=_first_three)
        return [(gpu, hop) for _, _, _, gpu, hop in sortable]

    def _ports(self, speed: float, limits: Limits, rings: list[Ring]) -> Iterator[tuple[str, str]]:
        """Yield NICs to enter and leave by, those with most room first; rings that cross over go two and two."""
        least = speed * (1 - _SLACK)
        by_room = sorted(self._find_usable(limits), key=lambda nic: (-min(self._port(nic)), self._nics.index(nic)))
        self._work_left -= len(by_room)
        into = [nic for nic in by_room if self._port(nic)[0] >= least]
        out = [nic for nic in by_room if self._port(nic)[1] >= least]
        if not limits.cross_nic:
            yield from ((nic, nic) for nic in into if nic in out)
        elif len(rings) % 2:
            nic_in, nic_out = rings[-1].nic_out, rings[-1].nic_in
            if nic_in in into and nic_out in out:
                yield nic_in, nic_out
        else:
            yield from ((a, b) for a, b in product(into, out) if a != b)

    def _list_ends(self, nic_in: str, nic_out: str, nic_kind: int) -> Iterable[tuple[str, str]]:
        """Return first and last GPUs, nearest to their NIC first, then in rank order."""
        self._work_left -= len(self._gpus)
        key = (nic_in, nic_out, nic_kind)
        if len(self._gpus) > _MANY_GPUS:
            return self._find_ends(*key)  # too many to keep, and few of them are looked at
        if key not in self._known_ends:
            self._known_ends[key] = list(self._find_ends(*key))
        return self._known_ends[key]

    def _find_ends(self, nic_in: str, nic_out: str, nic_kind: int) -> Iterator[tuple[str, str]]:
        into = self._group_by_kind([((nic_in, gpu), gpu) for gpu in self._gpus], nic_kind)
        out = self._group_by_kind([((gpu, nic_out), gpu) for gpu in self._gpus], nic_kind)
        # By the farther of both ends first, as NCCL searches near NICs before far ones, then by their sum.
        levels: dict[tuple[int, int], list[tuple[int, int]]] = {}
        for kinds in product(into, out):
            levels.setdefault((max(kinds), sum(kinds)), []).append(kinds)
        several = len(self._gpus) > 1
        for level in sorted(levels):
            for a, b in merge(*(product(into[first], out[last]) for first, last in levels[level])):
                if (a != b) == several:
                    yield self._gpus[a], self._gpus[b]

    def _group_by_kind(self, gpus: list[tuple[tuple[str, str], str]], most: int) -> dict[int, list[int]]:
        """Return the numbers of the GPUs whose hops, beside them, are of each kind that is no farther than `most`."""
        by_kind: dict[int, list[int]] = {}
        for ends, gpu in gpus:
            if ends in self._hops and self._hops[ends].kind <= most:
                by_kind.setdefault(self._hops[ends].kind, []).append(self._numbers[gpu])
        return by_kind

    def _port(self, nic: str) -> tuple[float, float]:
        into, out = self._ports_of[nic]
        return self._free[into], self._free[out]

    def _find_usable(self, limits: Limits) -> list[str]:
        """Return the NICs that some GPU receives from, and some sends to, within the limits."""
        if limits not in self._known_nics:
            self._known_nics[limits] = [
                nic for nic in self._nics if limits.cross_nic or any(self._list_ends(nic, nic, limits.nic_kind))
            ]
        return self._known_nics[limits]

    def _room(self, speed: float, limits: Limits) -> int:
        """Return how many more rings may fit at best, from what each GPU (and the NICs) can still send."""
        room = self._free.__getitem__
        passed = [int(sum(map(room, links)) / speed + _SLACK) for links in self._outs]
        self._work_left -= len(self._gpus) + len(self._nics)
        if not self._nics:
            return min(passed, default=0)
        # A ring between NICs takes a hop less than there are GPUs.
        inside = sum(passed) // (len(passed) - 1) if len(passed) > 1 else len(self._nics) * len(self._capacities)
        if limits.cross_nic:
            ports = [self._port(nic) for nic in self._nics]
            return min(inside, *(sum(int(port[way] / speed + _SLACK) for port in ports) for way in (0, 1)))
        return min(inside, sum(int(min(self._port(nic)) / speed + _SLACK) for nic in self._find_usable(limits)))

    def _is_connected(self, first: str, last: str, speed: float, kind: int) -> bool:
        """Return whether every GPU is still in reach of `first` without passing through `last`."""
        seen, frontier, looked, tried = {first}, [first], 0, 0
        free, needed = self._free, speed * (1 - _SLACK)
        while frontier:
            looked += len(self._gpus)
            for other, hop in self._hops_from[frontier.pop()]:
                if other in seen or hop.kind > kind:
                    continue
                tried += 1
                for link, load in hop.loads:
                    if free[link] < needed * load:
                        break
                else:
                    seen.add(other)
                    frontier += [other] if other != last else []
        self._tried += tried
        self._work_left -= looked + tried
        return len(seen) == len(self._gpus)

    def take(self, hop: _Hop, speed: float) -> bool:
        """Take the bandwidth of a hop where there is as much; return whether there is."""
        self._tried += 1
        self._work_left -= 1
        free, needed = self._free, speed * (1 - _SLACK)
        for link, load in hop.loads:
            if free[link] < needed * load:
                return False
        for link, load in hop.loads:
            free[link] -= speed * load
        return True

    def _give(self, hop: _Hop, speed: float) -> None:
        free = self._free
        for link, load in hop.loads:
            free[link] += speed * load


_first_three = itemgetter(0, 1, 2)


def _hop(route: Route, *more: tuple[str, float]) -> _Hop:
    loads = tuple((link.name, load) for link, load in route.loads())
    return _Hop((*loads, *more), KINDS.index(route.kind))
