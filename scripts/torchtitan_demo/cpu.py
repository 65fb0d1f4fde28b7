"""Lets TorchTitan 0.3.0 train on a CPU with gloo, for tests and the demo only.

TorchTitan is written for accelerators. What it needs to run without one, and why:

1. It asks torch for an accelerator, and takes "cuda" where there is none; then it asks the device for its name, memory
   and index, which `torch.cpu` does not have.
2. After the first step it calls `torch.distributed.set_timeout`, which only nightly builds of torch have, as of 2.13.
3. It lets FSDP scale gradients by a factor of 1 with PREMUL_SUM, which gloo lacks; a plain SUM gives the same.
4. Modules written in Triton are imported whether they are used or not: an expert-parallel kernel, and
   flash-linear-attention, whose two functions that Qwen3.5 calls are replaced by plain torch.
5. FlexAttention has no backward on a CPU: the dense mask goes to scaled_dot_product_attention.

Nothing of this touches the loader, or a number that the tests compare with one from elsewhere.
"""

from __future__ import annotations

import functools
import itertools
import os
import sys
import types
from typing import Any

import torch
import torch._utils
import torch.distributed as dist
import torch.distributed.fsdp._fully_shard._fsdp_collectives as fsdp
from torch.nn.functional import conv1d, normalize, pad, scaled_dot_product_attention, silu


def _use_cpu() -> None:
    torch._utils._get_available_device_type = lambda: "cpu"  # type: ignore[assignment]
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    device: Any = torch.cpu
    device.current_device = lambda: 0
    device.get_device_name = lambda _=None: "cpu"
    device.get_device_properties = lambda _=None: types.SimpleNamespace(total_memory=memory, name="cpu")
    device.memory_stats = lambda _=None: {}
    device.reset_peak_memory_stats = lambda _=None: None
    device.empty_cache = lambda: None


def add_set_timeout() -> None:
    """What torch lacks, with a GPU too."""
    if not hasattr(dist, "set_timeout"):
        change: Any = dist.distributed_c10d._set_pg_timeout
        dist.set_timeout = lambda timeout, group=None: change(timeout, group)  # type: ignore[attr-defined]


def _use_gloo() -> None:
    factors: Any = fsdp._get_gradient_divide_factors

    @functools.wraps(factors)
    def with_sum(*args: Any, **kwargs: Any) -> Any:
        kwargs["force_sum_reduction_for_comms"] = True
        return factors(*args[:5], **kwargs)

    fsdp._get_gradient_divide_factors = with_sum


# --- modules that need Triton --------------------------------------------------------------------------------------


class _OnlyOnGpu:
    """Stands for any name of a Triton module."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        raise RuntimeError("a kernel for GPUs was called on a CPU")

    apply = __init__


def _stub(name: str, **members: Any) -> None:
    module = types.ModuleType(name)
    module.__dict__.update(members)
    module.__path__ = []

    def member(name: str) -> type[_OnlyOnGpu]:
        if name.startswith("__"):
            raise AttributeError(name)
        return _OnlyOnGpu

    module.__getattr__ = member  # type: ignore[method-assign]
    sys.modules[name] = module


def _function(name: str) -> type:
    """A class that may stand where an autograd function is wanted, but is never applied."""
    return type(name, (torch.autograd.Function,), {})


def replace_linear_attention() -> None:
    """Plain torch for flash-linear-attention; it runs on a GPU too, slowly."""
    for name in ("fla", "fla.modules", "fla.modules.conv", "fla.modules.conv.triton", "fla.ops"):
        _stub(name)
    _stub("fla.modules.conv.triton.ops", CausalConv1dFunction=_function("CausalConv1dFunction"))
    _stub("fla.modules.conv.causal_conv1d", causal_conv1d=causal_conv1d)
    _stub(
        "fla.ops.gated_delta_rule",
        chunk_gated_delta_rule=gated_delta_rule,
        fused_recurrent_gated_delta_rule=gated_delta_rule,
    )
    _stub("fla.ops.gated_delta_rule.chunk", ChunkGatedDeltaRuleFunction=_function("ChunkGatedDeltaRuleFunction"))
    _stub("fla.ops.gated_delta_rule.fused_recurrent", FusedRecurrentFunction=_function("FusedRecurrentFunction"))


def _bounds(cu_seqlens: Any, length: int) -> list[tuple[int, int]]:
    """First and last token of each document."""
    if cu_seqlens is None:
        return [(0, length)]
    edges = cu_seqlens.tolist()
    return [(a, b) for a, b in itertools.pairwise(edges) if b > a]


def gated_delta_rule(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    g: torch.Tensor,
    beta: torch.Tensor,
    *,
    use_qk_l2norm_in_kernel: bool = False,
    cu_seqlens: torch.Tensor | None = None,
    cu_seqlens_cpu: torch.Tensor | None = None,
) -> tuple[torch.Tensor, None]:
    """The gated delta rule, all tokens of a document at once; [batch, tokens, heads, ...].

    With S(t) = exp(g(t)) S(t-1) + k(t) u(t)^T and u(t) = beta(t) (v(t) - exp(g(t)) S(t-1)^T k(t)), the u of a document
    solve a triangular system, and the output is q(t)^T S(t).
    """
    dtype = v.dtype
    q, k, v, g, beta = (t.float().transpose(1, 2) for t in (q, k, v, g, beta))
    if use_qk_l2norm_in_kernel:
        q, k = normalize(q, dim=-1), normalize(k, dim=-1)
    q = q * q.shape[-1] ** -0.5
    outputs = []
    for a, b in _bounds(cu_seqlens if cu_seqlens_cpu is None else cu_seqlens_cpu, q.shape[2]):
        qs, ks, vs, gs, betas = (t[:, :, a:b] for t in (q, k, v, g, beta))
        total = gs.cumsum(-1)
        decay = (total[..., :, None] - total[..., None, :]).tril().exp().tril()
        system = (betas[..., None] * (ks @ ks.mT) * decay).tril(-1)
        u = torch.linalg.solve_triangular(system, betas[..., None] * vs, upper=False, unitriangular=True)
        outputs.append((qs @ ks.mT * decay) @ u)
    return torch.cat(outputs, 2).transpose(1, 2).to(dtype), None


def causal_conv1d(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None = None,
    activation: str | None = "silu",
    cu_seqlens: torch.Tensor | None = None,
    cu_seqlens_cpu: torch.Tensor | None = None,
    **_: Any,
) -> tuple[torch.Tensor, None]:
    """A causal convolution along the tokens of each document; [batch, tokens, channels]."""
    outputs = []
    for a, b in _bounds(cu_seqlens if cu_seqlens_cpu is None else cu_seqlens_cpu, x.shape[1]):
        before = pad(x[:, a:b].transpose(1, 2), (weight.shape[-1] - 1, 0))
        outputs.append(conv1d(before, weight.unsqueeze(1), bias, groups=x.shape[2]).transpose(1, 2))
    y = torch.cat(outputs, 1)
    return (silu(y) if activation == "silu" else y), None


# --- attention -----------------------------------------------------------------------------------------------------


def _replace_attention() -> None:
    from torch.nn.attention.flex_attention import create_block_mask, create_mask
    from torchtitan.models.common import attention, vision_encoder

    attention._compiled_create_block_mask = create_block_mask  # type: ignore[assignment]
    vision_encoder.compiled_create_block_mask = create_block_mask  # type: ignore[assignment]

    def dense(
        q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *, block_mask: Any, scale: Any, enable_gqa: bool, **_: Any
    ) -> tuple[torch.Tensor, None]:
        mask = getattr(block_mask, "dense", None)
        if mask is None:
            batch, heads = block_mask.shape[:2]
            mask = create_mask(block_mask.mask_mod, batch, heads, q.shape[2], k.shape[2], device=q.device)
            mask = mask | ~mask.any(-1, keepdim=True)  # rows of padding see all: without a key they would be NaN
            block_mask.dense = mask
        return scaled_dot_product_attention(q, k, v, attn_mask=mask, scale=scale, enable_gqa=enable_gqa), None

    attention.FlexAttention.compiled_flex_attn = staticmethod(dense)  # type: ignore[assignment]


def prepare() -> None:
    """Everything above. Called once, before `torchtitan` is imported."""
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
    _use_cpu()
    add_set_timeout()
    _use_gloo()
    _stub("torchtitan.distributed.minimal_async_ep.kernels")
    replace_linear_attention()
    _replace_attention()
