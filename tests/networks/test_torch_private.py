"""The private interfaces of torch that flowrl uses; where one of these fails, a new torch has another one."""

import datetime

import pytest
import torch
from torch import nn

from flowrl.learners.all_reduce import listen
from flowrl.networks.torch_private import (
    bare,
    foreach_mul_,
    foreach_norm,
    fused_adam_,
    has_hooks,
    process_group,
    traced,
    whole_of,
    writes,
)


def test_a_fused_step_of_adam():
    """Without it `Adam.advance` cannot be: small networks learn with `torch.optim.Adam.step`, in twice the time."""
    ours, theirs = nn.Parameter(torch.ones(3)), nn.Parameter(torch.ones(3))
    theirs.grad = torch.arange(3.0)
    torch.optim.Adam([theirs], lr=0.1, fused=True).step()
    state = [[torch.zeros(3)], [torch.zeros(3)], [], [torch.ones(())]]
    how = {"lr": 0.1, "beta1": 0.9, "beta2": 0.999, "weight_decay": 0.0, "eps": 1e-8}
    with torch.no_grad():
        fused_adam_([ours], [theirs.grad], *state, **how, amsgrad=False, maximize=False)
    assert torch.equal(ours, theirs)


def test_the_methods_of_an_optimizer_without_their_decorators():
    """Without them every command that learns waits for torch's compiler to load, a second and more."""
    for name in ("step", "add_param_group", "state_dict", "load_state_dict"):
        code = bare(getattr(torch.optim.Adam, name)).__code__
        assert code.co_name == name
        assert code.co_filename.endswith(("torch/optim/adam.py", "torch/optim/optimizer.py"))


def test_norms_and_products_of_lists():
    """Without them `clip_norm` has to be `torch.nn.utils.clip_grad_norm_`, which takes three times as long."""
    values = [torch.tensor([3.0, 4.0]), torch.tensor([[2.0]])]
    assert [float(norm) for norm in foreach_norm(values)] == [5.0, 2.0]
    foreach_mul_(values, 0.5)
    assert [value.tolist() for value in values] == [[1.5, 2.0], [[1.0]]]


def test_parts_say_whether_they_are_one_tensor():
    """Without it gradients in one piece are scaled one by one, which takes five times as long."""
    whole, other = torch.zeros(5), torch.zeros(2)
    parts = [part.view(-1, 1) for part in whole.split([2, 3])]
    assert whole_of(parts) is whole
    assert [whole_of(tensors) for tensors in (parts[:1], [*parts, other], [other])] == [None] * 3


def test_a_tensor_counts_what_is_written_to_it():
    """Without it nobody sees that weights changed whose policy has the version of before: workers act by old ones."""
    tensor = torch.zeros(2)
    before = writes([tensor])
    assert writes([tensor.view(1, 2)]) == before
    tensor.add_(1)
    assert writes([tensor]) != before


def test_a_module_says_whether_it_has_hooks():
    """Without it acting in numpy leaves out what a hook of one's own does to a network."""
    layer = nn.Linear(1, 1)
    assert not has_hooks(layer)
    for register in (layer.register_forward_hook, layer.register_forward_pre_hook):
        handle = register(lambda *_: None)
        assert has_hooks(layer)
        handle.remove()
    assert not has_hooks(layer)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of torch's own parts
def test_a_function_is_traced_with_its_gradients():
    """Without it no loss is compiled: torch.compile alone reads Python code, and does not follow that of a `Batch`."""
    weight = nn.Parameter(torch.tensor([2.0]))
    slope = traced(lambda x: torch.autograd.grad((x * weight).square().sum(), weight), torch.ones(2))
    weight.data.fill_(3.0)
    assert [gradient.tolist() for gradient in slope(torch.tensor([1.0, 2.0]))] == [[30.0]]


def test_a_group_at_an_address_of_ones_own():
    """Without it workers cannot learn together where a process has several groups, or a machine several addresses."""
    store, wait = listen("127.0.0.1", 30), datetime.timedelta(seconds=30)
    group = process_group(store, 0, 1, torch.device("cpu"), "127.0.0.1", wait)
    value = torch.ones(2)
    group.allreduce([value], torch.distributed.AllreduceOptions()).wait()
    assert value.tolist() == [1.0, 1.0]
    assert (group.rank(), group.size()) == (0, 1)
