"""Ranks that take the same microbatches: tensor, pipeline and context parallel peers."""

from __future__ import annotations

import torch.distributed as dist


def is_first_of_peers(dp_rank: int) -> bool:
    """Whether this process is the first of those with the data-parallel rank `dp_rank`. Called by all processes."""
    if not dist.is_initialized() or dist.get_world_size() == 1:
        return True
    ranks: list[int] = [0] * dist.get_world_size()
    dist.all_gather_object(ranks, dp_rank)
    return ranks.index(dp_rank) == dist.get_rank()
