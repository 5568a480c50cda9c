"""Encoders for every kind of observation."""

from __future__ import annotations

import copy
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces
from torch import nn

from flowrl.data import Batch
from flowrl.envs import make_env
from flowrl.envs.dataset_spaces import space_from_json, space_to_json
from flowrl.errors import ConfigError
from flowrl.networks.distributions import Categorical, distribution
from flowrl.networks.networks import ActorCritic, actions_of, encoder, in_words, mlp
from flowrl.networks.torch_rng import TorchStream
from flowrl.policies import DQNPolicy, PPOPolicy
from flowrl.policies.recurrent_ppo import RecurrentPPOPolicy

IMAGE = spaces.Box(0, 255, (40, 44, 3), np.uint8)
SPACES: dict[str, tuple[gymnasium.Space[Any], int]] = {
    "vector": (spaces.Box(-1, 1, (4,), np.float64), 4),
    "scalar": (spaces.Box(-1, 1, (), np.float32), 1),
    "scalars": (spaces.Dict({"a": spaces.Box(-1, 1, ()), "b": spaces.Box(0, 9, (2,))}), 3),
    "matrix": (spaces.Box(-1, 1, (2, 3), np.float32), 6),
    "choice": (spaces.Discrete(5, start=2), 5),
    "choices": (spaces.MultiDiscrete([2, 3]), 5),
    "flags": (spaces.MultiBinary(3), 3),
    "image": (IMAGE, 256),
    "small image": (spaces.Box(0, 255, (7, 7, 3), np.uint8), 256),
    "planes": (spaces.Box(0, 1, (10, 10, 4), bool), 256),
    "stacked frames": (spaces.Box(0, 255, (4, 84, 84), np.uint8), 256),
    "dictionary": (spaces.Dict({"a.b": spaces.Box(-1, 1, (4,)), "image": IMAGE, "n": spaces.Discrete(2)}), 262),
}


def observations(space: gymnasium.Space[Any], rows: int) -> Any:
    space.seed(3)
    samples = [space.sample() for _ in range(rows)]
    if isinstance(space, spaces.Dict):
        return Batch({name: np.stack([sample[name] for sample in samples]) for name in space.spaces}).to_torch()
    return torch.from_numpy(np.stack(samples))


@pytest.mark.parametrize("name", SPACES)
def test_every_space_becomes_features(name: str) -> None:
    """As float32, whatever comes in; and the actor-critic takes them."""
    space, features = SPACES[name]
    with TorchStream(0).swapped_in():
        model = ActorCritic(encoder(space), Categorical(3), (8,))
    obs = observations(space, 5)
    encoded = model.encoder(obs)
    assert encoded.shape == (5, features)
    assert encoded.dtype == torch.float32
    given, value = model(obs)
    assert given.shape == (5, 3)
    assert value.shape == (5,)
    torch.testing.assert_close(model.value(obs), value)


def test_choices_become_one_hot() -> None:
    net = encoder(spaces.MultiDiscrete([2, 3], start=[0, 4]))
    assert net(torch.tensor([[1, 6], [0, 4]])).tolist() == [[0, 1, 0, 0, 1], [1, 0, 1, 0, 0]]


def test_channels_first_and_last_are_told_apart() -> None:
    """The same picture in both layouts gives the same features."""
    with TorchStream(0).swapped_in():
        last = encoder(spaces.Box(0, 255, (40, 44, 3), np.uint8))
    first = encoder(spaces.Box(0, 255, (3, 40, 44), np.uint8))
    first.load_state_dict(last.state_dict())
    picture = observations(IMAGE, 2)
    torch.testing.assert_close(first(picture.permute(0, 3, 1, 2)), last(picture))


def test_planes_are_images_of_black_and_white() -> None:
    """A plane that is set is what a white pixel is."""
    with TorchStream(0).swapped_in():
        planes = encoder(spaces.Box(0, 1, (10, 10, 4), bool))
    bytes_ = encoder(spaces.Box(0, 255, (10, 10, 4), np.uint8))
    bytes_.load_state_dict(planes.state_dict())
    seen = observations(spaces.Box(0, 1, (10, 10, 4), bool), 2)
    torch.testing.assert_close(planes(seen), bytes_(255 * seen.to(torch.uint8)))


def test_small_pictures_get_small_networks() -> None:
    """R5: at most the weights of 84 pixels, and no jump where the convolutions of the Atari papers begin."""
    counts = {}
    for height, width in [
        (3, 3),
        (6, 7),
        (10, 10),
        (11, 11),
        (12, 30),
        (20, 20),
        (35, 35),
        (20, 640),
        (36, 36),
        (84, 84),
    ]:
        network = encoder(spaces.Box(0, 255, (3, height, width), np.uint8))
        assert network(torch.zeros(2, 3, height, width, dtype=torch.uint8)).shape == (2, 256)
        counts[height, width] = sum(each.numel() for each in network.parameters())
    assert max(counts, key=counts.__getitem__) == (84, 84), counts
    assert 0.5 < counts[35, 35] / counts[36, 36] < 3, counts


def test_the_network_of_the_atari_papers_by_a_setting() -> None:
    """Mnih et al. 2015: 8 x 8, 4 x 4 and 3 x 3 on four frames of 84 pixels, 512 units, and the heads on them."""
    frames, choice = spaces.Box(0, 255, (4, 84, 84), np.uint8), spaces.Discrete(6)
    torso = (4 * 64 + 1) * 32 + (32 * 16 + 1) * 64 + (64 * 9 + 1) * 64 + (7 * 7 * 64 + 1) * 512
    for policy, heads in (
        (PPOPolicy(frames, choice, network="nature"), 513 * 6 + 513),
        (DQNPolicy(frames, choice, network="nature", dueling=False), 513 * 6),
    ):
        assert sum(each.numel() for each in policy.model.parameters()) == torso + heads
        assert in_words(policy.model) == "pixels 4x84x84, /255, Nature convolutions, 512 units, 1.7 M weights"
        actions = policy.collect_mode.act(np.zeros((3, 4, 84, 84), np.uint8), np.zeros((3, 9)), 0)["action"]
        assert actions.shape == (3,)
    asking = spaces.Box(0, 255, (4, 84, 84), np.uint8)
    vars(asking)["image_network"] = "nature"  # as `atari:` does
    read = space_from_json(space_to_json(asking))
    for each in (asking, read):
        assert in_words(PPOPolicy(each, choice).model).endswith("512 units, 1.7 M weights")
    recurrent = RecurrentPPOPolicy(frames, choice, network="nature")
    assert recurrent.model.encoder.features == 512
    for small in (spaces.Box(0, 255, (20, 20, 3), np.uint8), spaces.Box(-1, 1, (4,))):
        with pytest.raises(ConfigError, match="network='nature' is for pictures of at least 36 pixels"):
            PPOPolicy(small, choice, network="nature")
    beside = spaces.Dict({"eye": frames, "speed": spaces.Box(-1, 1, (3,))})
    assert PPOPolicy(beside, choice, network="nature").model.encoder.features == 515


def test_a_network_is_said_in_words() -> None:
    """Its weights are counted by hand."""
    vector = PPOPolicy(spaces.Box(-1, 1, (4,)), spaces.Discrete(2), hidden=(8,))
    assert in_words(vector.model) == f"4 numbers, dense, {(5 * 8 + 9 * 2) + (5 * 8 + 9)} weights"
    parts = spaces.Dict({"eye": spaces.Box(0, 255, (40, 44, 3), np.uint8), "n": spaces.Discrete(3)})
    assert in_words(DQNPolicy(parts, spaces.Discrete(2)).model).startswith(
        "eye: pixels 3x40x44, /255, Nature convolutions, 256 units; n: 3 choices, one-hot, dense, 0.1"
    )
    own = PPOPolicy(spaces.Box(-1, 1, (4,)), spaces.Discrete(2), network=Halves)
    assert in_words(own.model, Halves).startswith("network Halves, ")


class Halves(nn.Module):
    """A network of one's own."""

    features = 4

    def __init__(self, space: gymnasium.Space[Any]) -> None:
        super().__init__()

    def forward(self, obs: torch.Tensor) -> torch.Tensor:
        return obs / 2


@pytest.mark.needs("minatar")
@pytest.mark.parametrize("game", ["asterix", "breakout", "freeway", "seaquest", "space_invaders"])
def test_games_of_minatar_pass_convolutions(game: str) -> None:
    env = make_env("minatar.gym:BaseEnv", {"game": game})
    network, (obs, _) = encoder(env.observation_space), env.reset(seed=0)
    assert network(torch.from_numpy(obs[None])).shape == (1, 256)
    assert [layer.in_channels for layer in network.modules() if isinstance(layer, nn.Conv2d)] == [obs.shape[2], 16]


def test_other_spaces_are_refused() -> None:
    with pytest.raises(ConfigError, match="no network for the observation space"):
        encoder(spaces.Text(4))
    with pytest.raises(ConfigError, match="no network for the observation space"):
        encoder(spaces.Dict({"a": spaces.Text(4)}))


def test_more_choices_than_a_network_can_have_neurons_for_are_refused() -> None:
    one, two = spaces.Discrete(2**40), spaces.MultiDiscrete([2, 2**40])
    builds = [(encoder, one), (encoder, two), (distribution, one), (distribution, two), (actions_of, one)]
    for build, space in builds:
        with pytest.raises(ConfigError, match=r"the (observation|action) space has 10995\d+ discrete choices"):
            build(space, *(["DQN"] if build is actions_of else []))


@pytest.mark.parametrize("activation", [nn.ReLU, nn.Tanh])
def test_dense_layers_are_those_of_a_sequential(activation: type[nn.Module]) -> None:
    dense = mlp([3, 8, 8, 2], activation)
    plain = nn.Sequential(*copy.deepcopy(list(dense)))
    assert dense.state_dict().keys() == plain.state_dict().keys()
    x = torch.randn(5, 3, generator=torch.Generator().manual_seed(0))
    assert torch.equal(dense(x), plain(x))
    for network in (dense, plain):
        network(x).square().sum().backward()
    assert all(torch.equal(a.grad, b.grad) for a, b in zip(dense.parameters(), plain.parameters(), strict=True))
