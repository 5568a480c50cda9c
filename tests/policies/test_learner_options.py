"""What every policy takes beside its algorithm: networks of one's own, precision, compiling, clipping, rates."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces
from torch import nn

from flowrl.data import Batch
from flowrl.errors import ConfigError
from flowrl.networks.clipping import clip_norm
from flowrl.networks.noisy import NoisyLinear
from flowrl.plans import DQN, PPO
from flowrl.policies import A2CPolicy, DQNPolicy, PPOPolicy, R2D2Policy, RandomPolicy, RecurrentPPOPolicy
from flowrl.policies.policy import Policy
from flowrl.runs.config import Configuration, build_config
from flowrl.trainer.policy_factory import PolicyFactory

OBS, ACTIONS = spaces.Box(-1, 1, (4,), np.float32), spaces.Discrete(3)
ROWS = 6
PARTS = spaces.Dict({"image": spaces.Box(0, 255, (8, 8, 3), np.uint8), "speed": spaces.Box(-1, 1, (2,), np.float32)})


class Doubled(nn.Module):
    """A network of one's own."""

    features = 8

    def __init__(self, space: gymnasium.Space[Any]) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 8)

    def forward(self, obs: torch.Tensor) -> torch.Tensor:
        encoded: torch.Tensor = self.layer(2 * obs)
        return encoded


class Flattened(Doubled):
    """Of numbers, however many there are."""

    def __init__(self, space: spaces.Box) -> None:
        super().__init__(space)
        self.layer = nn.Linear(int(np.prod(space.shape)), 8)


class Dropping(Doubled):
    """One that does in learning what it does not do in acting: it drops out, and normalises over the rows."""

    def __init__(self, space: gymnasium.Space[Any]) -> None:
        super().__init__(space)
        self.layer = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Dropout(0.5))  # type: ignore[assignment]


class OfParts(nn.Module):
    """Of a dictionary with an image in it."""

    features = 3

    def __init__(self, space: spaces.Dict) -> None:
        super().__init__()
        self.layer = nn.Linear(8 * 8 * 3 + 2, 3)

    def forward(self, obs: Batch) -> torch.Tensor:
        encoded: torch.Tensor = self.layer(torch.cat([obs.image.flatten(1) / 255, obs.speed], 1))
        return encoded


class NoFeatures(Doubled):
    features = None  # type: ignore[assignment]


class WrongWidth(Doubled):
    features = 5


class Counting(Doubled):
    """Draws where it believes to be trained, and keeps a number that is no parameter."""

    def __init__(self, space: gymnasium.Space[Any]) -> None:
        super().__init__(space)
        self.register_buffer("count", torch.tensor(3))

    def forward(self, obs: torch.Tensor) -> torch.Tensor:
        return nn.functional.dropout(super().forward(obs), training=self.training)


class NoModule:
    def __init__(self, space: gymnasium.Space[Any]) -> None:
        pass


def make(kind: type[Policy] = DQNPolicy, **settings: Any) -> Policy:
    return kind(OBS, ACTIONS, **{"hidden": (8,), "device": "cpu", **settings})  # type: ignore[arg-type]


def rows() -> Batch:
    generator = np.random.default_rng(0)
    return Batch(
        obs=generator.standard_normal((ROWS, 4), np.float32),
        action=generator.integers(0, 3, ROWS),
        reward=generator.standard_normal(ROWS),
        next_obs=generator.standard_normal((ROWS, 4), np.float32),
        terminated=np.zeros(ROWS, np.bool_),
        advantage=generator.standard_normal(ROWS).astype(np.float32),
        target=generator.standard_normal(ROWS).astype(np.float32),
        value=np.zeros(ROWS, np.float32),
        logp=np.full(ROWS, -1.0, np.float32),
    )


def learn(policy: Policy, updates: int = 3) -> dict[str, torch.Tensor]:
    for _ in range(updates):
        policy.learn_mode.learn_from(rows())
    return policy.weights()


def same(a: dict[str, torch.Tensor], b: dict[str, torch.Tensor]) -> bool:
    return all(torch.equal(a[name], b[name]) for name in a)


@pytest.mark.parametrize("kind", [DQNPolicy, PPOPolicy, A2CPolicy])
@pytest.mark.parametrize("network", [Doubled, f"{__name__}:Doubled"])
def test_a_network_of_ones_own_takes_the_place_of_the_encoder(kind: type[Policy], network: Any) -> None:
    policy = make(kind, network=network)
    assert any(type(part) is Doubled for part in policy.model.modules())
    before = policy.weights()
    learned = learn(policy)
    encoder = [name for name in before if name.endswith("layer.weight")]
    assert encoder
    assert not any(torch.equal(before[name], learned[name]) for name in encoder)


@pytest.mark.parametrize("kind", [DQNPolicy, PPOPolicy])
def test_a_network_is_given_dictionaries_and_bytes_as_they_are(kind: Any) -> None:
    policy = kind(PARTS, ACTIONS, network=OfParts, device="cpu")
    obs = Batch(image=np.full((2, 8, 8, 3), 255, np.uint8), speed=np.zeros((2, 2), np.float32))
    assert policy.eval_mode.act(obs, np.empty((2, 0)), 0)["action"].shape == (2,)


@pytest.mark.parametrize("kind", [DQNPolicy, PPOPolicy])
def test_what_a_network_does_to_learn_it_does_not_in_acting(kind: type[Policy]) -> None:
    """D1, D6: one observation is acted on alike each time; what learning draws comes from the policy's stream."""
    policy, again = make(kind, network=Dropping), make(kind, network=Dropping)
    one = rows().obs[:1]
    assert policy.eval_mode.value(one) == policy.eval_mode.value(one)
    learned, outside = learn(policy), torch.get_rng_state()
    torch.rand(1)
    assert same(learned, learn(again))
    assert any(name.endswith("num_batches_tracked") and value > 0 for name, value in learned.items())
    torch.manual_seed(7)
    before = torch.get_rng_state()
    assert policy.eval_mode.value(one) == policy.eval_mode.value(one)
    learn(policy)
    assert torch.equal(torch.get_rng_state(), before)
    torch.set_rng_state(outside)


def test_a_network_that_counts_batches_has_a_target() -> None:
    """Q2: numbers are mixed, counts are copied."""
    policy: Any = make(network=Dropping)
    learn(policy)
    policy.update_target(0.5)
    counted, mean = (f"trunk.0.layer.1.{name}" for name in ("num_batches_tracked", "running_mean"))
    online, target = policy.model.state_dict(), policy.target.state_dict()
    assert target[counted] == online[counted] > 0
    torch.testing.assert_close(target[mean], online[mean] / 2)


def test_noise_in_weights_stays_fresh_beside_a_network_of_ones_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """Q6: also where learning has the stream swapped in, and where the network holds a noisy layer."""

    class Noisy(Doubled):
        def __init__(self, space: gymnasium.Space[Any]) -> None:
            super().__init__(space)
            self.layer = NoisyLinear(4, 8)

    policy: Any = make(network=Noisy, noisy=True)
    drawn, noise = [], policy.noise
    monkeypatch.setattr(policy, "noise", lambda: drawn.append(noise()) or drawn[-1])
    learn(policy)
    assert len({tuple(each.flatten().tolist()) for each in drawn}) == len(drawn) == 9


@pytest.mark.parametrize(
    ("network", "words"),
    [
        (NoFeatures, "its `features` are None"),
        (WrongWidth, r"for two observations it gave \[2, 8\], expected \[2, 5\]"),
        (NoModule, "made a NoModule"),
        ("Doubled", "'module:Class'"),
        ("no.such.module:Doubled", "No module named 'no'"),
        (f"{__name__}:Dubled", "did you mean 'Doubled'"),
    ],
)
def test_a_network_that_does_not_fit_is_refused_before_any_work(network: Any, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        make(network=network)


@pytest.mark.parametrize("kind", [DQNPolicy, PPOPolicy])
def test_a_network_learns_what_it_acts_by(kind: type[Policy]) -> None:
    """D1, Q2: nothing is drawn from torch's own generator; a target network follows in what is no parameter too."""
    policy = make(kind, network=Counting)
    generator = torch.get_rng_state()
    learned = learn(policy)
    assert torch.equal(generator, torch.get_rng_state())
    assert same(learned, learn(make(kind, network=Counting)))
    if isinstance(policy, DQNPolicy):
        for part in policy.model.buffers():
            part += 4
        policy.update_target(0.5)
        assert [int(part) for part in policy.target.buffers()] == [7]


def test_an_error_of_a_network_says_what_it_was_given() -> None:
    with pytest.raises(RuntimeError) as raised:
        DQNPolicy(spaces.Box(-1, 1, (5,), np.float32), ACTIONS, network=Doubled, device="cpu")
    assert "encoded two observations of zeros of Box(" in raised.value.__notes__[0]


def test_plans_tell_their_policies_what_was_asked_for() -> None:
    asked = {"network": f"{__name__}:Doubled", "grad_clip_value": 0.1, "precision": "bfloat16", "device": "cpu"}
    for plan in (DQN, PPO):
        policy = PolicyFactory(plan.policy, build_config(plan.Config, asked))(OBS, ACTIONS)
        assert type(policy.model.encoder if plan is PPO else policy.model.trunk[0]) is Doubled
        assert policy.grad_clip_value == 0.1
    forgetful = PolicyFactory(lambda config, obs, act: make(), build_config(Configuration, asked))
    with pytest.raises(ConfigError, match=r"does not reach the .*: pass"):
        forgetful(OBS, ACTIONS)
    assert isinstance(PolicyFactory(RandomPolicy_of, Configuration())(OBS, ACTIONS), RandomPolicy)


def RandomPolicy_of(config: Any, observation_space: Any, action_space: Any) -> RandomPolicy:
    return RandomPolicy(observation_space, action_space)


def test_clipping_by_norm_does_what_torch_does() -> None:
    def parameters() -> list[nn.Parameter]:
        made = [nn.Parameter(torch.zeros(3)), nn.Parameter(torch.zeros(2, 2)), nn.Parameter(torch.zeros(1))]
        made[0].grad, made[1].grad = torch.tensor([3.0, 0.0, -4.0]), torch.ones(2, 2)
        return made

    for limit in (0.5, 5.0, 100.0):
        ours, theirs = parameters(), parameters()
        clip_norm(ours, limit)
        nn.utils.clip_grad_norm_(theirs, limit)
        for a, b in zip(ours[:2], theirs[:2]):
            torch.testing.assert_close(a.grad, b.grad)
        assert ours[2].grad is None


def test_each_number_of_a_gradient_is_limited_by_value() -> None:
    policy = make(grad_clip=None, grad_clip_value=1e-4)
    learn(policy, 1)
    gradients = [parameter.grad for parameter in policy.parameters if parameter.grad is not None]
    assert max(float(gradient.abs().max()) for gradient in gradients) == pytest.approx(1e-4)


def test_a_parameter_group_may_have_a_rate_of_its_own() -> None:
    """Q7: each is a function of env steps."""
    policy = make(learning_rate=lambda steps: 1.0 / (1 + steps), learning_rates={"last": lambda steps: 0.5 - steps})
    first, *others = policy.parameters
    groups: list[dict[str, Any]] = [{"params": [first], "name": "last"}, {"params": others}]
    policy.optimizer = torch.optim.SGD(groups, lr=policy.rate())
    assert (policy.rate(), policy.rate("last")) == (1.0, 0.5)
    policy.learn_mode.schedule(3)
    assert [group["lr"] for group in policy.optimizer.param_groups] == [-2.5, 0.25]


@pytest.mark.parametrize("kind", [DQNPolicy, PPOPolicy])
def test_bfloat16_is_for_learning_alone(kind: type[Policy]) -> None:
    """Weights, optimiser and acting stay in float32; D1: and the same again."""
    policy, plain = make(kind, precision="bfloat16"), make(kind)
    obs = rows().obs
    noise = np.full((ROWS, policy.collect_mode.draws), 0.3)
    a, b = (each.collect_mode.act(obs, noise, 10**9) for each in (policy, plain))
    assert all(np.array_equal(a[name], b[name]) for name in a)
    halved, full = learn(policy), learn(plain)
    assert all(value.dtype == full[name].dtype for name, value in halved.items())
    assert not same(halved, full)  # it was rounded
    for name, value in halved.items():
        torch.testing.assert_close(value, full[name], atol=0.01, rtol=0.05)
    assert same(halved, learn(make(kind, precision="bfloat16")))


@pytest.mark.parametrize(
    ("precision", "words"), [("float16", "needs a GPU, but the device is cpu"), ("half", "take one of float32")]
)
def test_a_precision_that_cannot_be_had_is_refused(precision: str, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        make(precision=precision)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="float16 is for a GPU")
def test_float16_keeps_the_scale_of_the_loss() -> None:
    """D5."""
    policy = make(device="cuda", precision="float16")
    learn(policy)
    again = make(device="cuda", precision="float16")
    again.load_state_dict(policy.state_dict())
    assert again.mixed.state_dict() == policy.mixed.state_dict() != {}
    assert same(learn(policy), learn(again))


@pytest.mark.parametrize("kind", [R2D2Policy, RecurrentPPOPolicy])
def test_a_memory_is_not_made_numpy(kind: type[Policy], caplog: pytest.LogCaptureFixture) -> None:
    """What is chosen by itself is said."""
    with pytest.raises(ConfigError, match="act_backend='numpy' serves small dense networks"):
        make(kind, act_backend="numpy")
    with caplog.at_level("INFO", "flowrl"):
        assert not make(kind, act_backend="auto").acts_in_numpy
    assert f"{kind.__name__} acts in torch: " in caplog.text


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of torch's own parts
def test_a_compiled_loss_learns_the_same_and_nothing_else_changes() -> None:
    """D13: the same again, also from a copy, a pickle or a state; what is frozen then learns no more."""
    policy = make(compile=True, act_backend="torch")
    copied, pickled = copy.deepcopy(policy), pickle.loads(pickle.dumps(make(compile=True, hidden=(8,))))
    learned = learn(policy)
    assert list(learned) == list(make().weights())
    for name, value in learn(make()).items():
        torch.testing.assert_close(value, learned[name])
    assert same(learned, learn(copied))
    assert same(learned, learn(pickled))
    again = make(compile=True)
    again.load_state_dict(policy.state_dict())
    assert same(learn(policy), learn(again))
    policy.model.advantage.weight.requires_grad_(False)  # type: ignore[operator, union-attr]
    frozen = policy.weights()
    changed = {name for name, value in learn(policy).items() if not torch.equal(value, frozen[name])}
    assert changed == set(learned) - {"advantage.weight"}
