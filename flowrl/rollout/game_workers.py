"""GameWorkers: one policy or several by name, and what learns, evaluates or saves them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from operator import itemgetter
from typing import Any

from flowrl.envs import Environments
from flowrl.envs.make import Seen
from flowrl.errors import ConfigError, PlanError, did_you_mean
from flowrl.policies import Policies, Policy
from flowrl.policies.policies import AsOne
from flowrl.rollout.broadcast import Broadcast
from flowrl.rollout.policy_map import Agents, policy_map
from flowrl.rollout.workers import PolicyFactory, Spaces, Workers


class PolicyWorkers(Workers):
    """One policy of workers with several, as whatever learns, evaluates or saves a policy takes workers.

    Made by `GameWorkers`, whose method `of` returns it.

    Args:
        name: Name of the policy.
        env_steps: Returns the env steps of the workers so far.
        alone: Whether it may play all agents of the game, as the learners of a league may.
        rest: See `Workers`.
    """

    def __init__(self, name: str, env_steps: Callable[[], int], alone: bool, *rest: Any, **options: Any) -> None:
        self.name, self._env_steps, self._alone = name, env_steps, alone
        super().__init__(*rest, **options)

    def __repr__(self) -> str:
        return f"the workers' policy {self.name!r}"

    @property
    def env_steps(self) -> int:
        """Env steps of all workers, which exploration follows."""
        return self._env_steps()

    @property
    def evaluation_env(self) -> Environments:
        """See `Workers.evaluation_env`. Raises: PlanError: the policies of the game are evaluated together."""
        if not self._alone:
            raise PlanError(f"policy {self.name!r} is one of several, which play together: evaluate all of them")
        return super().evaluation_env


class GameWorkers(Workers):
    """Workers of one policy or of several. `policy` of several is a `flowrl.policies.Policies`.

    Args:
        makes: Factories of the policies, by name.
        spaces: Spaces of each, by name.
        agents: Which of several policies plays which agent; None of one.
        lead: The one of several, each of which can play all agents, that acts for them: the first learner of a league.
        worker_policies: See `Workers`, by name.
        rest, where: See `Workers`.

    Attributes:
        agents, lead: The arguments.
        as_one: See `flowrl.policies.Policies`; to be set by who knows that the policies act as one.
        parts: The workers of each policy; of a single one, these.
    """

    def __init__(
        self,
        makes: Mapping[str, PolicyFactory],
        spaces: Mapping[str, Spaces],
        environments: Environments,
        evaluation: Environments,
        num_eval_envs: int,
        *,
        agents: Agents | None = None,
        lead: str | None = None,
        worker_policies: Mapping[str, PolicyFactory | None] | None = None,
        **where: Any,
    ) -> None:
        rest = environments, evaluation, num_eval_envs
        there = worker_policies or {}
        self.agents = agents
        self.lead = lead if len(makes) > 1 else None
        self.as_one: AsOne | None = None if self.lead is None else itemgetter(self.lead)
        self.parts: dict[str, Workers] = {}
        name, *others = makes
        if not others:
            super().__init__(makes[name], spaces[name], *rest, worker_policy=there.get(name), **where)
            self.parts[name] = self
            return
        super().__init__(None, spaces[name], *rest, **where)
        for name, make in makes.items():
            own = {"worker_policy": there.get(name), **where}
            alone = self.lead is not None
            self.parts[name] = PolicyWorkers(name, lambda: self.env_steps, alone, make, spaces[name], *rest, **own)

    def of(self, policy: str) -> Workers:
        """The workers of one policy: what learns, evaluates or saves it takes them in place of these.

        Raises: ConfigError: there is none of this name.
        """
        try:
            return self.parts[policy]
        except KeyError:
            raise ConfigError(f"no policy {policy!r}: {did_you_mean(str(policy), self.parts)}") from None

    @property
    def policy(self) -> Any:
        """See `Workers.policy`."""
        if len(self.parts) < 2:
            return super().policy
        self._take_newest()
        return Policies(self._policies, self.as_one)

    @property
    def broadcast(self) -> Broadcast:
        """See `Workers.broadcast`. Raises: ConfigError: there are several policies."""
        if self._are_several:
            raise ConfigError(
                f"the workers have several policies, {', '.join(self.parts)}: pass those of one, "
                f"workers.of({next(iter(self.parts))!r})"
            )
        return super().broadcast

    def new_policy(self) -> Any:
        """See `Workers.new_policy`."""
        if not self._are_several:
            return super().new_policy()
        return Policies({name: part.new_policy() for name, part in self.parts.items()}, self.as_one)

    @property
    def version(self) -> int:
        """See `Workers.version`; of several policies the sum, which grows with each."""
        return sum(part.broadcast.version for part in self.parts.values())

    @property
    def resources(self) -> list[Any]:
        """See `Workers.resources`."""
        self._take_newest()
        return list(self._policies.values())

    def end_schedules(self, steps: int) -> None:
        """See `Workers.end_schedules`."""
        for part in self.parts.values():
            if part is self:
                super().end_schedules(steps)
            else:
                part.end_schedules(steps)

    def evaluated(self, policy: Any) -> list[tuple[Any, Agents | None]]:
        """See `Workers.evaluated`; of a league its lead plays alone."""
        return super().evaluated(policy if self.lead is None else policy[self.lead])

    def about_spaces(self) -> dict[str, Any]:
        """See `Workers.about_spaces`; of several policies a table by name."""
        if not self._are_several:
            return super().about_spaces()
        return {"policies": {name: part.about_spaces() for name, part in self.parts.items()}}

    @property
    def _are_several(self) -> bool:
        return len(self.parts) > 1

    @property
    def _policies(self) -> dict[str, Policy]:
        return {name: part._policy for name, part in self.parts.items()}

    def _take_newest(self) -> None:
        """Load published weights into the policies here."""
        for part in self.parts.values():
            part.broadcast.take()

    def _evaluated(self, found: Seen) -> Iterator[tuple[str, Spaces, Spaces]]:
        if not self._are_several or self.lead is not None:
            yield from super()._evaluated(found)
            return
        who = policy_map(self._evaluation_env, found.seating, tuple(self.parts), self.agents)
        assert who is not None
        for name, part in self.parts.items():
            yield f" {name!r}", part._spaces, who.spaces_of(name)
