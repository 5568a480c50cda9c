"""Workers: a policy that learns, and its evaluation environments; subclasses add the workers that act with it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Self

import gymnasium

from flowrl.data.multi_agent import DEFAULT_POLICY
from flowrl.engine.workers.local import WORKER_TIMEOUT
from flowrl.envs import Environments
from flowrl.envs.dataset_spaces import SPACES, origin, space_to_json
from flowrl.envs.make import Seen
from flowrl.envs.pictures import remarks
from flowrl.envs.spaces import are_alike
from flowrl.errors import ConfigError
from flowrl.networks.networks import in_words
from flowrl.policies import Policies, Policy
from flowrl.policies.weights import save_weights
from flowrl.rollout.broadcast import Broadcast
from flowrl.rollout.policy_map import Agents, policy_map
from flowrl.schedules import end_schedules
from flowrl.settings import NATURE

if TYPE_CHECKING:
    from flowrl.rollout.league import League

Space = gymnasium.Space[Any]
Spaces = tuple[Space, Space]
PolicyFactory = Callable[[Space, Space], Policy]


class Workers:
    """The members of workers that a `Trainer`, and operators that learn or evaluate, use.

    Args:
        policy: Factory of policies, called with the spaces; the attribute `policy` learns. None for workers with
            several policies, see `GameWorkers`.
        spaces: Spaces of observations and actions.
        environments: Environments that the policy is created for.
        evaluation: Environments that evaluate the policy.
        num_eval_envs: Evaluation environments stepped together.
        worker_policy: Factory of the other processes' policies, which may lack a device of `policy`; None: `policy`.
        address, worker_timeout: See `flowrl.actors.actors.Actors`.

    Attributes:
        clock: The counter of a run that results, evaluations and schedules follow.
        environments, num_eval_envs, address, worker_timeout: The arguments.
        agents: Which of several policies plays which agent; None: there is one policy.
        league: Who meets whom in a game for two, past selves included; None: nobody.
        described: What a file of the policy says beside the spaces: how to make the policy, as JSON.
    """

    clock: ClassVar[str] = "env_steps"
    described: Mapping[str, Any] = {}
    agents: Agents | None = None
    league: League | None = None

    def __init__(
        self,
        policy: PolicyFactory | None,
        spaces: tuple[Space, Space],
        environments: Environments,
        evaluation: Environments,
        num_eval_envs: int,
        *,
        worker_policy: PolicyFactory | None = None,
        address: str | None = None,
        worker_timeout: float = WORKER_TIMEOUT,
    ) -> None:
        self.environments, self.num_eval_envs = environments, num_eval_envs
        self.address, self.worker_timeout = address, worker_timeout
        self._spaces, self._evaluation_env = spaces, evaluation
        if policy is not None:
            self._policy_factory, self._worker_policy = policy, worker_policy or policy
            self._policy = policy(*spaces)
            if isinstance(self._policy, Policy):
                self._spaces = self._policy.observation_space, spaces[1]  # with declared pictures
            self._broadcast = Broadcast(self._policy)

    @property
    def policy(self) -> Any:
        """The policy that learns, with the newest weights, including those published by a learner elsewhere.

        Several policies are a `flowrl.policies.Policies`.
        """
        self._broadcast.take()
        return self._policy

    @property
    def broadcast(self) -> Broadcast:
        """The newest weights for other processes."""
        return self._broadcast

    @property
    def version(self) -> int:
        """Version of the weights that a request made now would act with."""
        return self._broadcast.version

    def publish(self, version: int, weights: Any, *, everywhere: bool = False) -> None:
        """Make these the newest weights; `weights` is the result of `policy.weights()`, or a `Remote` of it.

        The next requests carry them, unless the workers have them `everywhere`. `policy` loads them on access.
        """
        self.broadcast.publish(version, weights, everywhere)

    def new_policy(self) -> Any:
        """A new policy like that of the workers, before any learning."""
        return self._policy_factory(*self._spaces)

    def end_schedules(self, steps: int) -> None:
        """Let the policy's schedules that last as long as the run end after so many env steps, in every process.

        To be called before a run starts the workers.
        """
        end_schedules(self._policy, steps)
        self._policy_factory = partial(_ended, self._policy_factory, steps)
        self._worker_policy = partial(_ended, self._worker_policy, steps)

    def policy_maker(self, *, gpus: bool) -> Callable[[], Policy]:
        """A factory of such policies for another process: on the same device as here, or without `gpus`."""
        return partial(self._policy_factory if gpus else self._worker_policy, *self._spaces)

    @property
    def env_steps(self) -> int:
        """Env steps so far, which exploration follows; 0 for workers that do not act."""
        return 0

    @property
    def resources(self) -> list[Any]:
        """Resources that a checkpoint holds too: the policy."""
        return [self.policy]

    @property
    def evaluation_env(self) -> Environments:
        """The environments that evaluate (S3)."""
        return self._evaluation_env

    def origin(self) -> dict[str, Any]:
        """The origin to store in a dataset of their experience: see `flowrl.envs.dataset_spaces.origin`."""
        return origin(self.environments, *self._spaces)

    def about(self) -> dict[str, Any]:
        """Their entries in the run.json of a run."""
        return {}

    def about_policy(self) -> dict[str, Any]:
        """What `flowrl.load` needs beside the weights, as JSON."""
        return {**self.described, **self.about(), **self.about_spaces(), "env_steps": self.env_steps}

    def about_spaces(self) -> dict[str, Any]:
        """The spaces that the policy is made for, as JSON."""
        return dict(zip(SPACES, map(space_to_json, self._spaces)))

    def save_policy(self, path: Path) -> None:
        """Write the policy to a file from which `flowrl.load` makes it again, without an environment."""
        save_weights(self.policy, path, self.about_policy())

    def evaluated(self, policy: Any) -> list[tuple[Any, Agents | None]]:
        """Who plays in an evaluation of a policy, or of policies by name, and who of several plays which agent.

        Each of the list plays all episodes, one after the other.
        """
        return [(policy, self.agents)]

    def check_evaluation(self, learned_in: object) -> None:
        """Raise ConfigError if the evaluation environments' spaces differ from those that the policy learned in."""
        found = self._evaluation_env.look(self.num_eval_envs)
        for name, spaces, theirs in self._evaluated(found):
            for role, ours, other in zip(("observation", "action"), spaces, theirs):
                if not are_alike(ours, other):
                    raise ConfigError(
                        f"eval_env: the {role} space of {self._evaluation_env} is {other}, that of {learned_in} is "
                        f"{ours}: the policy{name} cannot act in both"
                    )

    def _evaluated(self, found: Seen) -> Iterator[tuple[str, Spaces, Spaces]]:
        """For each policy, by its name in words, its spaces and those that it would be evaluated in."""
        who = policy_map(self._evaluation_env, found.seating, (DEFAULT_POLICY,), None)
        yield "", self._spaces, found[:2] if who is None else who.spaces_of(DEFAULT_POLICY)

    @property
    def networks(self) -> list[str]:
        """What the network of each policy reads, and how many weights it has, in a line."""
        parts: Mapping[str, Any] = self.policy if isinstance(self.policy, Policies) else {"": self.policy}
        built = {name: each for name, each in parts.items() if isinstance(each, Policy)}
        return [
            f"network{name and f' of {name}'}: {in_words(each.model, each.settings.network)}"
            for name, each in built.items()
        ]

    def remarks(self) -> list[str]:
        """What somebody should know of how observations are read by the built-in networks, and can change."""
        parts = self.policy.values() if isinstance(self.policy, Policies) else [self.policy]
        built_in = [each for each in parts if isinstance(each, Policy) and each.settings.network in (None, NATURE)]
        return list(dict.fromkeys(line for each in built_in for line in remarks(each.observation_space)))

    def close(self) -> None:
        """Close the environments created here, but not an environment object passed as an argument."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _ended(factory: PolicyFactory, steps: int, *spaces: Space) -> Policy:
    policy = factory(*spaces)
    end_schedules(policy, steps)
    return policy
