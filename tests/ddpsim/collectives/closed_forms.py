"""Closed forms of what schedules take, to which tests hold their transfers: alpha a step, beta a byte."""

from __future__ import annotations

from collections.abc import Sequence

from ddpsim.collectives.schedules import TransferSchedule


def decomposed_s(sizes: Sequence[int], size_bytes: float, alphas_s: Sequence[float], betas: Sequence[float]) -> float:
    """Return the sum over levels i of 2(p_i - 1) alpha_i + 2(p_i - 1)/p_i S/(p_0 ... p_{i-1}) beta_i."""
    total_s, left = 0.0, size_bytes
    for size, alpha_s, beta in zip(sizes, alphas_s, betas, strict=True):
        total_s += 2 * (size - 1) * (alpha_s + left / size * beta)
        left /= size
    return total_s


def half_ring_s(ranks: int, size_bytes: float, alpha_s: float, beta: float) -> float:
    """Return (p-1) alpha + (p-1)/p S beta: p-1 steps, in each of which every rank sends S/p bytes to the next."""
    return (ranks - 1) * (alpha_s + size_bytes / ranks * beta)


def chain_s(ranks: int, pieces: int, size_bytes: float, alpha_s: float, beta: float) -> float:
    """Return (p-1) (alpha + c beta) + (k-1) c beta, c = S/k: k pieces, each behind the other on every hop."""
    piece_s = size_bytes / pieces * beta
    return (ranks - 1) * (alpha_s + piece_s) + (pieces - 1) * piece_s


def exchange_pairs_s(ranks: int, size_bytes: float, alpha_s: float, beta: float) -> float:
    """Return alpha + (p-1)/p S beta: each rank sends p-1 parts of S/p bytes by one link of its own, all at once."""
    return alpha_s + (ranks - 1) / ranks * size_bytes * beta


def halving_doubling_s(ranks: int, size_bytes: float, alpha_s: float, beta: float) -> float:
    """Return 2 log2(p) alpha + 2(p-1)/p S beta for p a power of two; folding adds a whole message each way."""
    core = 1 << (ranks.bit_length() - 1)
    time_s = 2 * (core.bit_length() - 1) * alpha_s + 2 * (core - 1) / core * size_bytes * beta
    return time_s + (2 * (alpha_s + size_bytes * beta) if core < ranks else 0.0)


def recursive_doubling_s(ranks: int, size_bytes: float, alpha_s: float, beta: float) -> float:
    """Return log2(p) (alpha + S beta) for p a power of two; folding adds a whole message each way."""
    exchanges = ranks.bit_length() - 1
    return (exchanges + (2 if 1 << exchanges < ranks else 0)) * (alpha_s + size_bytes * beta)


def parameter_server_s(ranks: int, servers: int, size_bytes: float, alpha_s: float, beta: float) -> float:
    """Return 2 alpha + 2 (p-1)/s S beta of servers beside ranks: one hears from every rank but its own."""
    return 2 * alpha_s + 2 * (ranks - 1) / servers * size_bytes * beta


def tree_s(hops: int, pieces: int, size_bytes: float, alpha_s: float, beta: float, fan: int = 1) -> float:
    """Return (alpha + c beta) `hops` + (k-1) f c beta, c = S/k: k pieces one behind the other, up and down at once.

    Args:
        hops: from the farthest leaf to the root and back.
        fan: f, copies of a piece that the busiest link carries; 2 where a parent has one link for two children.
    """
    piece = size_bytes / pieces * beta
    return hops * (alpha_s + piece) + (pieces - 1) * fan * piece


def count_sent_chunks(schedule: TransferSchedule) -> list[int]:
    """Return how many chunks each rank sends in all."""
    sent = [0] * schedule.ranks
    for transfer in schedule.transfers:
        sent[transfer.source] += transfer.stop - transfer.start
    return sent
