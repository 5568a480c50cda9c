"""Faults planted in hindsight: its plans, and what it asks the environment."""

from tests.faults.fault import Fault

PLANS = "tests/plans/test_her_plans.py::"
GOALS = "tests/envs/test_goals.py::"
HINDSIGHT = "tests/operators/test_hindsight.py::"

FAULTS = [
    Fault(
        "H3",
        "plans/her_dqn.py",
        "HindsightRelabel(reward, terminated,",
        "HindsightRelabel(terminated, terminated,",
        PLANS + "test_rows_are_those_of_the_environment_for_other_goals",
    ),
    Fault(
        "H6",
        "plans/her_dqn.py",
        "config.gamma, config.her_k, config.her_strategy,",
        "config.gamma, 2, config.her_strategy,",
        PLANS + "test_rows_are_those_of_the_environment_for_other_goals",
    ),
    Fault(
        "H1",
        "plans/her_dqn.py",
        "config.her_k, config.her_strategy,",
        'config.her_k, "episode",',
        PLANS + "test_each_strategy_takes_its_goals",
    ),
    Fault(  # the limiter would let in whole episodes, and learning would lag behind by as much
        "F11",
        "operators/options.py",
        "return int(self.fragment_steps * self.num_envs * self.n_step)",
        "return int(self.fragment_steps * self.num_envs * self.n_step) * 100",
        PLANS + "test_learning_keeps_pace_with_rows_not_with_episodes",
    ),
    Fault(
        "F1",
        "flowrl/rollout/worker_set.py",
        "        return self._goals\n",
        "        return self.environments.look(self.layout.envs_per_group).goals\n",
        PLANS + "test_building_the_plan_makes_no_environment",
    ),
    Fault(
        "H3",
        "flowrl/envs/goals.py",
        "        if isinstance(layer, _CHANGE_REWARDS):\n",
        "        if False:\n",
        GOALS + "test_what_is_lacking_is_named",
    ),
    Fault(
        "H3",
        "flowrl/envs/goals.py",
        "for layer in layers(env) if hasattr(layer, name)",
        "for layer in (env.unwrapped,) if hasattr(layer, name)",
        GOALS + "test_the_outermost_layer_is_asked",
    ),
    Fault(
        "S5",
        "flowrl/envs/goals.py",
        "self._reached(self.at, self.goal).item()",
        "self.steps < self.max_steps",
        GOALS + "test_a_step_is_what_its_functions_say_of_its_goals",
    ),
    Fault(  # one answer for all goals of a batch
        "H3",
        "operators/hindsight.py",
        "said = np.array([function(*goals, {}) for goals in zip(achieved, desired)])",
        "said = np.full(len(achieved), said)",
        HINDSIGHT + "test_functions_of_single_goals_are_asked_for_each",
    ),
    Fault(  # what fell does not fall with another goal
        "H3",
        "operators/hindsight.py",
        "        terminated |= self._failed(table)[window]\n",
        "",
        HINDSIGHT + "test_rows_are_those_of_the_loop_over_each_episode",
    ),
    Fault(
        "H3",
        "operators/hindsight.py",
        'if "scaled_rewards" in given.words:',
        "if False:",
        PLANS + "test_rewards_in_other_units_are_refused",
    ),
    Fault(
        "N6",
        "operators/batches.py",
        "parts = self.parts if self.max_rows is None else -(-rows.rows // self.max_rows)",
        "parts = self.parts if self.max_rows is None else -(-batch.rows // self.max_rows)",
        "tests/operators/test_batches.py::test_parts_of_at_most_so_many_rows",
    ),
]
