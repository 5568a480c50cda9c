"""Faults planted in workers, actors and learners."""

from tests.faults.fault import Fault

APEX = "tests/policies/test_apex_policy.py::"
ROLLOUT = "tests/rollout/test_worker.py::"
ACTING = "flowrl/rollout/acting.py"
ASYNC = "tests/rollout/test_async_worker.py::"
RECURRENT = "tests/rollout/test_recurrent.py::"
NOISE = "flowrl/rollout/noise.py"
EVERY_PLAN = "tests/plans/test_every_plan.py::"
OVER = "tests/rollout/test_over_managers.py::"
DICTS = "tests/rollout/test_dict_observations.py::"
ACTORS = "tests/actors/test_actors.py::"
HOSTS = "tests/rollout/test_remote_groups.py::"
GROUPS = "tests/rollout/test_groups.py::"
ALIKE = "tests/learners/test_all_reduce.py::"
LEARNERS = "tests/learners/test_learners.py::"

FAULTS = [
    Fault(
        "T1",
        "flowrl/rollout/fragment.py",
        "self._cursor += 1 if acted is None else acted",
        "self._cursor += 1",
        ROLLOUT + "test_every_row_is_a_transition_and_every_step_is_counted",
    ),
    Fault(
        "T11",
        ACTING,
        "manager.step(actions)",
        "manager.step(actions[::-1])",
        ROLLOUT + "test_actions_lead_to_the_observations_beside_them",
    ),
    Fault(
        "S2",
        "flowrl/rollout/evaluation.py",
        "            if missing[episode.env_id]:\n                missing[episode.env_id] -= 1",
        "            if missing.any():\n                missing[missing.argmax()] -= 1",
        "tests/rollout/test_evaluation.py::test_every_environment_plays_its_share",
    ),
    Fault(
        "S3",
        "flowrl/rollout/evaluation.py",
        "    with manager:\n",
        "    policy.version += 1\n    with manager:\n",
        EVERY_PLAN + "test_the_contract_of_plans",
    ),
    Fault(
        "S1",
        "flowrl/rollout/evaluation.py",
        "        returns[manager.t == 0] = 0.0",
        "        pass",
        "tests/rollout/test_evaluation.py::test_a_cut_episode_has_its_own_return_alone",
    ),
    Fault(
        "Q7",
        "flowrl/rollout/worker.py",
        '        self.env_steps = state["env_steps"]\n',
        "",
        ROLLOUT + "test_exploration_sees_the_env_steps",
    ),
    Fault(
        "D2",
        "flowrl/rollout/noise.py",
        "spawn_key=(env_id,)",
        "spawn_key=(env_id + num_envs,)",
        ROLLOUT + "test_noise_comes_from_each_environments_own_stream",
    ),
    Fault(
        "S5",
        "flowrl/rollout/evaluation.py",
        "float(returns.sum() / lengths.sum())",
        "float((returns / lengths).mean())",
        "tests/rollout/test_evaluation.py::test_the_three_kinds_of_score",
    ),
    Fault(
        "T8",
        ACTING,
        "state[self.manager.t[which] == 0] = self._initial",
        "state[self.manager.done[which]] = self._initial",
        RECURRENT + "test_the_state_begins_with_the_episode_and_goes_on_with_it",
    ),
    Fault(
        "T8",
        ACTING,
        'self._state[which] = row["next_state"]',
        'self._state[: len(obs)] = row["next_state"]',
        RECURRENT + "test_the_state_begins_with_the_episode_and_goes_on_with_it",
    ),
    Fault(
        "D3",
        ACTING,
        'self._sent = Batch(state["sent"]).map(np.copy)',
        "pass",
        ASYNC + "test_resumes_with_answers_outstanding",
    ),
    Fault(
        "T11",
        ACTING,
        "self._sent[ids] = row",
        "self._sent[: len(ids)] = row",
        ASYNC + "test_every_answer_is_stored_beside_what_was_sent",
    ),
    Fault(
        "T11",
        ACTING,
        "obs = manager.obs[ids]",
        "obs = manager.obs[: len(ids)]",
        ASYNC + "test_every_answer_is_stored_beside_what_was_sent",
    ),
    Fault(
        "V3",
        ACTING,
        'row["policy_version"] = np.full(len(ids), version)\n            row.setdefault',
        'self._sent["policy_version"] = np.full(manager.num_envs, version)\n            row.setdefault',
        ASYNC + "test_rows_know_the_version_that_acted_though_the_answer_came_later",
    ),
    Fault(
        "D2",
        ACTING,
        "noise = self._noise.next(ids)",
        "noise = self._noise.next(None)[:len(obs)]",
        ASYNC + "test_each_environment_has_the_sequence_that_it_has_in_lockstep",
    ),
    Fault(
        "S2",
        "flowrl/rollout/worker.py",
        "missing = shares_of(episodes, len(self._ids))",
        "missing = shares_of(episodes, len(self._ids))[::-1].copy()",
        ASYNC + "test_whole_episodes_in_fixed_shares_whoever_is_quick_or_fails",
    ),
    Fault(
        "S2",
        "flowrl/rollout/worker.py",
        "rows.t[end, env_id] + 1",
        "end + 1",
        ASYNC + "test_whole_episodes_in_fixed_shares_whoever_is_quick_or_fails",
    ),
    Fault(
        "F7",
        "flowrl/rollout/worker.py",
        "self._fragment.lengths() >= most",
        "self._fragment.lengths() < 0",
        ASYNC + "test_a_fast_environment_waits_when_it_is_a_fragment_ahead",
    ),
    Fault(
        "D2",
        ACTING,
        "self._noise.take_back(np.flatnonzero(~result.acted))",
        "pass",
        OVER + "test_the_stream_is_the_same",
    ),
    Fault(
        "D3",
        NOISE,
        'self._at, self._places = state["at"][0], np.array(state["at"], np.int64)',
        'self._at, self._places = state["at"][0], np.full(len(state["at"]), state["at"][0])',
        OVER + "test_resumes_mid_fragment",
    ),
    Fault(
        "G6",
        ACTING,
        'actions = row.pop("env_action", row["action"])',
        'actions = row["action"] = row.pop("env_action", row["action"])',
        ROLLOUT + "test_environments_get_the_env_action_and_rows_keep_what_was_drawn",
    ),
    Fault(
        "G6",
        ACTING,
        'actions = row.pop("env_action", row["action"])',
        'actions = (row.pop("env_action", None), row["action"])[1]',
        "tests/rollout/test_evaluation.py::test_environments_get_the_env_action",
    ),
    Fault(
        "D5",
        "flowrl/rollout/fragment.py",
        "columns[np.arange(self._rows)[:, None] >= self._cursor] = 0",
        "pass",
        DICTS + "test_resumes_mid_fragment",
    ),
    Fault(
        "Q8",
        "flowrl/rollout/worker.py",
        "Actor(manager, collect_mode_of(policy, index), noise_seed)",
        "Actor(manager, policy.collect_mode, noise_seed)",
        APEX + "test_a_worker_explores_as_often_as_its_epsilon_says",
    ),
    Fault(
        "F10",
        "flowrl/actors/ray_backend.py",
        "return WorkerDied(name, _why(error)) if isinstance(error, RayError) else error",
        "return error",
        ACTORS + "test_a_death_is_noticed_whatever_it_was_doing",
    ),
    Fault(
        "F10",
        "flowrl/actors/actors.py",
        "self.restarts[index] += 1",
        "self.restarts[index] += 0",
        ACTORS + "test_one_is_made_again_with_the_others_as_they_were",
    ),
    Fault(
        "F9",
        "flowrl/actors/actor_process.py",
        "    told.__notes__ = None",
        "    error = RuntimeError(str(error))\n    told.__notes__ = None",
        ACTORS + "test_an_error_arrives_as_itself",
    ),
    Fault(
        "F15",
        "flowrl/actors/actors.py",
        "            backend.leave()",
        "            pass",
        ACTORS + "test_a_ray_of_ours_ends_with_the_last_who_needs_it",
    ),
    Fault(
        "D2",
        "flowrl/rollout/groups.py",
        'f"worker{self.index}/{self.life}"',
        'f"worker{id(self)}/{self.life}"',
        HOSTS + "test_the_same_groups_over_0_1_and_2_workers_give_one_stream",
    ),
    Fault(
        "D2",
        "flowrl/rollout/groups.py",
        "        if is_pull(method):  # not for a request for the state, which must change nothing\n",
        "        if True:\n",
        HOSTS + "test_the_same_groups_over_0_1_and_2_workers_give_one_stream",
    ),
    Fault(
        "D2",
        "flowrl/rollout/groups.py",
        "turn * everywhere + self.index * self.num_envs",
        "turn * everywhere",
        GROUPS + "test_given_seeds_of_episodes_go_over_all_groups_in_turn",
    ),
    Fault(
        "D6",
        "flowrl/rollout/worker_set.py",
        '        self._lives |= state.get("lives", {})\n',
        "",
        HOSTS + "test_no_life_is_lived_twice",
    ),
    Fault(
        "D3",
        "flowrl/rollout/worker_set.py",
        "        self._broadcast.take()  # the policy's own state is taken after this one\n",
        "",
        HOSTS + "test_a_checkpoint_has_what_was_published",
    ),
    Fault(
        "D3",
        "flowrl/rollout/broadcast.py",
        "        if self._stamp == self._now():\n",
        "        if True:\n",
        HOSTS + "test_a_checkpoint_has_what_was_published",
    ),
    Fault(
        "F3",
        "flowrl/rollout/remote_groups.py",
        "        self._sent[process] = self._broadcast.number\n",
        "        self._sent[process] = self._broadcast.number + 1\n",
        HOSTS + "test_weights_pushed_after_an_item_make_the_next_one_of_that_worker",
    ),
    Fault(
        "F10",
        "flowrl/rollout/remote_groups.py",
        "        self._sent.pop(process, None)\n",
        "",
        HOSTS + "test_a_process_that_is_made_again_begins_afresh_with_the_newest_weights",
    ),
    Fault(
        "F10",
        "flowrl/rollout/groups.py",
        "        manager.episode_id += self.life * EPISODES_OF_A_LIFE\n",
        "",
        HOSTS + "test_a_process_that_is_made_again_begins_afresh_with_the_newest_weights",
    ),
    Fault(
        "Q7",
        "flowrl/rollout/worker.py",
        "self.env_steps = max(self.env_steps, env_steps)",
        "pass",
        GROUPS + "test_schedules_follow_the_env_steps_of_the_run",
    ),
    Fault(
        "Q7",
        "flowrl/rollout/worker_set.py",
        "        self._earlier, self._context = self.env_steps, context\n",
        "        self._context = context\n",
        GROUPS + "test_schedules_go_on_with_the_next_run_of_the_workers",
    ),
    Fault(
        "F13",
        "flowrl/learners/all_reduce.py",
        "torch.cat([values * rows, values.new_tensor([rows])])",
        "torch.cat([values, values.new_tensor([1.0])])",
        ALIKE + "test_the_mean_divides_by_the_rows",
    ),
    Fault(
        "F3",
        "flowrl/learners/learner_group.py",
        "            self.workers.publish(report.version, weights)\n",
        "            pass\n",
        LEARNERS + "test_learning_there_is_training_here",
    ),
    Fault(
        "F2",
        "flowrl/learners/learner_group.py",
        "self._kept(all_of([all_of(trained), state]))",
        "self._kept(all_of([all_of(trained[:1]), state]))",
        LEARNERS + "test_what_not_all_have_learned_is_no_state_to_go_on_from",
    ),
    Fault(
        "D3",
        "flowrl/learners/learner.py",
        '            "generator": self._generator.bit_generator.state,\n',
        '            "generator": None,\n',
        LEARNERS + "test_it_resumes_at_every_step",
    ),
]
