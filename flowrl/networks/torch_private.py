"""All that is used of torch's private interfaces: what is to be looked at when torch has a new version.

`tests/networks/test_torch_private.py` says of each what breaks without it.
"""

from __future__ import annotations

import datetime
import inspect
from collections.abc import Callable, Iterable
from typing import Any

import torch
import torch.distributed
from torch import nn

#: One step of Adam over lists of tensors: what `torch.optim.Adam(fused=True)` calls, after much else.
fused_adam_: Any = torch._fused_adam_
#: The norm of each tensor of a list, and their product with a number in place: of `torch.nn.utils.clip_grad_norm_`.
foreach_norm: Any = torch._foreach_norm
foreach_mul_: Any = torch._foreach_mul_


def bare(method: Callable[..., Any]) -> Callable[..., Any]:
    """A method of an optimizer without torch's decorators, which load torch's compiler at the first call."""
    unwrapped: Callable[..., Any] = inspect.unwrap(method)
    return unwrapped


def writes(tensors: Iterable[torch.Tensor]) -> tuple[int, ...]:
    """How often each tensor was written to in place."""
    return tuple([tensor._version for tensor in tensors])


def whole_of(tensors: list[torch.Tensor]) -> torch.Tensor | None:
    """The tensor that these together are, if they are parts of one."""
    whole = tensors[0]._base
    if whole is None or any(each._base is not whole for each in tensors):
        return None
    return whole if sum(each.numel() for each in tensors) == whole.numel() else None


def has_hooks(module: nn.Module) -> bool:
    """Whether something else runs at a module's forward."""
    return bool(module._forward_hooks or module._forward_pre_hooks)


def traced(function: Callable[..., Any], *tensors: torch.Tensor) -> nn.Module:
    """What a function computes of such tensors, autograd included; loads torch's compiler, a second and more."""
    from torch.fx.experimental.proxy_tensor import make_fx

    graph: nn.Module = make_fx(function)(*tensors)
    return graph


def process_group(
    store: Any, rank: int, size: int, device: torch.device, address: str, wait: datetime.timedelta
) -> Any:
    """A group over NCCL on a GPU, else over gloo at an address of this machine; requests wait so long.

    The public way has one group a process, and no address.
    """
    distributed: Any = torch.distributed
    if device.type == "cuda":
        options = distributed.ProcessGroupNCCL.Options()
        options._timeout = wait
        return distributed.ProcessGroupNCCL(store, rank, size, options)
    options = distributed.ProcessGroupGloo._Options()
    options._timeout = wait
    options._devices = [distributed.ProcessGroupGloo.create_device(hostname=address)]
    return distributed.ProcessGroupGloo(store, rank, size, options)
