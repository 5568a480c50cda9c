"""Adam: steps are those of torch, whatever happens between them."""

import copy
import sys

import pytest
import torch
from torch import nn

from flowrl.networks.adam import Adam


def both(rates=(0.1, 0.1)):
    """Ours and torch's, of two groups of equal parameters."""
    given = torch.Generator().manual_seed(0)
    starts = [[torch.randn(3, 2, generator=given), torch.randn(2, generator=given)] for _ in rates]
    made = []
    for kind in (lambda groups: Adam(groups, lr=0.1), lambda groups: torch.optim.Adam(groups, lr=0.1, fused=True)):
        groups = [
            {"params": [nn.Parameter(start.clone()) for start in each], "lr": rate}
            for rate, each in zip(rates, starts, strict=True)
        ]
        made.append(kind(groups))
    return made


def parameters(optimizer):
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]


def stepped(ours, theirs, seed, without=()):
    """A step of both with the same gradients; some parameters may have none."""
    given = torch.Generator().manual_seed(seed)
    for i, pair in enumerate(zip(parameters(ours), parameters(theirs), strict=True)):
        gradient = torch.randn(pair[0].shape, generator=given)
        for parameter in pair:
            parameter.grad = None if i in without else gradient.clone()
    ours.advance()
    theirs.step()
    for mine, other in zip(parameters(ours), parameters(theirs), strict=True):
        assert torch.equal(mine, other)
        assert ours.state[mine].keys() == theirs.state[other].keys()
        assert all(torch.equal(value, theirs.state[other][name]) for name, value in ours.state[mine].items())


@pytest.mark.parametrize("rates", [(0.1, 0.1), (0.1, 0.01)])
def test_steps_are_those_of_torch(rates):
    ours, theirs = both(rates)
    for seed in range(4):
        stepped(ours, theirs, seed)


@pytest.mark.parametrize("first", [0, 2])
def test_parameters_without_a_gradient_are_left_alone_and_their_counts_as_well(first):
    ours, theirs = both()
    for seed in range(6):
        stepped(ours, theirs, seed, without=(first, 3) if seed in (0, 3) else ())


def test_a_rate_that_changes_is_the_rate_of_the_next_step():
    ours, theirs = both()
    for seed, rate in enumerate((0.1, 0.2, 0.0, 0.3)):
        for optimizer in (ours, theirs):
            optimizer.param_groups[seed % 2]["lr"] = rate
        stepped(ours, theirs, seed)


def test_a_state_that_is_loaded_is_the_one_that_goes_on():
    ours, theirs = both()
    stepped(ours, theirs, 0)
    stepped(ours, theirs, 1)
    saved = copy.deepcopy(ours.state_dict())
    stepped(ours, theirs, 2)
    ours.load_state_dict(copy.deepcopy(saved))
    theirs.load_state_dict(saved)
    stepped(ours, theirs, 3)
    stepped(ours, theirs, 4)


def test_a_copy_moves_its_own_parameters():
    ours, theirs = both()
    stepped(ours, theirs, 0)
    stepped(ours, theirs, 1)
    ours_before = [parameter.clone() for parameter in parameters(ours)]
    stepped(*copy.deepcopy((ours, theirs)), 2)
    assert all(map(torch.equal, ours_before, parameters(ours)))


def test_a_group_that_is_added_moves_too():
    ours, theirs = both()
    stepped(ours, theirs, 0)
    for optimizer in (ours, theirs):
        optimizer.add_param_group({"params": [nn.Parameter(torch.ones(2))], "lr": 0.1})
    stepped(ours, theirs, 1)
    stepped(ours, theirs, 2)


def test_it_goes_without_torchs_compiler():
    """Whose first call loads it, which takes longer than to load torch: the start of every run would wait for it."""
    files, before = set(), sys.getprofile()
    sys.setprofile(lambda frame, *_: files.add(frame.f_code.co_filename))
    try:
        optimizer = Adam([nn.Parameter(torch.ones(2))], lr=0.1)
        for _ in range(3):
            parameters(optimizer)[0].grad = torch.ones(2)
            optimizer.advance()
        optimizer.load_state_dict(optimizer.state_dict())
    finally:
        sys.setprofile(before)
    assert not [file for file in files if "torch/_dynamo" in file or file.endswith("torch/_compile.py")]
