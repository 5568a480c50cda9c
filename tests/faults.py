"""Planted faults: for a rule, one change that breaks it and the test that must notice.

`python -m pytest tests/test_faults.py -m slow` plants each in a copy of the source and runs its test there.
"""

from __future__ import annotations

from typing import NamedTuple


class Fault(NamedTuple):
    """`old`, which is in `file` exactly once, becomes `new`, and `test` must fail."""

    rule: str
    file: str
    old: str
    new: str
    test: str


PLAN, MERGE = "tests/engine/test_plan.py::", "tests/engine/test_merge.py::"
CALLS, RUNS = "tests/engine/test_calls.py::", "tests/engine/test_scheduler.py::"
ERRORS = "tests/engine/test_errors.py::"
DISK, RESUME = "tests/engine/test_checkpoint.py::", "tests/cli/test_resume.py::"
PRIORITIZED, SUM_TREE = "tests/data/test_prioritized.py::", "tests/data/test_sum_tree.py::"
TRAINER = "tests/trainer/test_trainer.py::"

FAULTS = [
    Fault(
        "F1",
        "flowrl/plan.py",
        "        op = Generated(items)\n",
        "        op = Generated(items)\n        items()\n",
        PLAN + "test_building_a_plan_calls_nothing",
    ),
    Fault(
        "F2",
        "flowrl/calls.py",
        'own["pending"].append((index, copy.deepcopy(future.result())))',
        "pass",
        CALLS + "test_answers_in_flight_are_drained_into_the_state",
    ),
    Fault(
        "F3",
        "flowrl/calls.py",
        "            self.todo.append(index)\n        return [receipt.item]",
        "            self._ask(index)\n        return [receipt.item]",
        CALLS + "test_what_is_done_with_an_item_happens_before_its_worker_is_asked_again",
    ),
    Fault(
        "F4",
        "flowrl/stages.py",
        "        if item.__class__ is Signal:\n            if item is DONE:",
        "        if item in (DONE, WORKED):\n            if item is DONE:",
        RUNS + "test_no_signal_reaches_a_users_function",
    ),
    Fault(
        "F5",
        "flowrl/paths.py",
        'and upstream.kind != "fork"',
        'and upstream.kind == "fork"',
        PLAN + "test_a_stream_read_twice_without_a_fork_is_refused",
    ),
    Fault(
        "F6",
        "flowrl/scheduler.py",
        "        asleep, waited, patience",
        "        while not self.context.bell.wait(0.01):\n            self.wakeups += 1\n"
        "        self.context.bell.ring()\n        asleep, waited, patience",
        RUNS + "test_an_idle_run_makes_no_wakeups",
    ),
    Fault(
        "F7",
        "flowrl/merge.py",
        "len(queue) >= self.max_lag for queue in others",
        "len(queue) > self.max_lag for queue in others",
        MERGE + "test_readers_may_run_at_different_speeds_within_max_lag",
    ),
    Fault(
        "F8",
        "flowrl/merge.py",
        "                idle.clear()  # the end of a branch",
        "                # the end of a branch",
        MERGE + "test_the_end_of_a_branch_frees_the_one_it_blocked",
    ),
    Fault(
        "F9",
        "flowrl/link.py",
        "item {number}{seen}",
        "item {self.items}{seen}",
        ERRORS + "test_an_error_keeps_its_type_and_gains_one_note",
    ),
    Fault(
        "F10",
        "flowrl/calls.py",
        "                self.todo.append(index)  # asked again",
        "                # asked again",
        CALLS + "test_the_death_of_workers_costs_their_requests_and_nothing_else",
    ),
    Fault(
        "F11",
        "flowrl/merge.py",
        "math.floor((begun + 1) * weight) - math.floor(begun * weight)",
        "math.ceil(weight)",
        MERGE + "test_round_robin_ratios_hold_within_one_item_at_all_times",
    ),
    Fault(
        "F12",
        "flowrl/context.py",
        "            self.counters, self.records = {}, {}\n",
        "            self.records = {}\n",
        CALLS + "test_counters_of_workers_arrive_once",
    ),
    Fault(
        "F14",
        "flowrl/transforms.py",
        "        return [full] if full else []",
        "        return [full] if len(full) == self.size else []",
        PLAN + "test_verbs",
    ),
    Fault(
        "F15",
        "flowrl/calls.py",
        "            self._worker.close()",
        "            pass",
        RUNS + "test_closing_leaves_no_thread",
    ),
    Fault(
        "D1",
        "flowrl/seeds.py",
        "np.random.PCG64(self.sequence(path))",
        "np.random.PCG64()",
        RUNS + "test_same_seed_same_items_other_seed_others",
    ),
    Fault(
        "D3",
        "flowrl/stages.py",
        "in reversed(list(enumerate(self.backlog)))",
        "in enumerate(self.backlog)",
        "tests/engine/test_check_plans.py::test_what_is_held_beside_a_tap_comes_in_order",
    ),
    Fault(
        "D4",
        "flowrl/scheduler.py",
        'if node.kind != "tap" else ()',
        "",
        RUNS + "test_a_tapped_function_is_no_resource_of_the_plan",
    ),
    Fault(
        "D5",
        "flowrl/operator.py",
        "saved[name] = copy.deepcopy(getattr(op, name))",
        "saved[name] = getattr(op, name)",
        RUNS + "test_a_state_is_a_copy",
    ),
    Fault(
        "D6",
        "flowrl/seeds.py",
        "spawn_key=words",
        "spawn_key=[len(self._generators)]",
        "tests/engine/test_seeds.py::test_streams_follow_from_seed_and_path_alone",
    ),
]

ADDERS, BUFFER = "tests/operators/test_adders.py::", "tests/data/test_replay.py::"
ROLLOUT, ENVS = "tests/rollout/test_worker.py::", "tests/envs/"
DQN, EVERY_PLAN = "tests/policies/test_dqn_policy.py::", "tests/plans/test_every_plan.py::"
RESULTS = "tests/operators/test_metrics.py::"

FAULTS += [
    Fault(
        "T1",
        "flowrl/rollout/fragment.py",
        "self._ids if acted is None else self._ids[acted]",
        "self._ids",
        ROLLOUT + "test_every_row_is_a_transition_and_every_step_is_counted",
    ),
    Fault(
        "T2",
        "flowrl/envs/vector.py",
        "arrived[env_id] = self._final_obs(env_id, infos)",
        "pass",
        ENVS + "test_contract.py::test_every_row_is_a_transition_of_its_own_environment",
    ),
    Fault(
        "T3",
        "flowrl/envs/vector.py",
        'options={"reset_mask": mask.copy()}',
        "options=None",
        ENVS + "test_contract.py::test_all_modes_give_the_same_sequences",
    ),
    Fault(
        "T4",
        "flowrl/returns.py",
        "last_terminated = terminated != 0 ",
        "last_terminated = (terminated != 0) & (truncated == 0) ",
        "tests/test_returns.py::test_n_step_is_the_loop_over_windows",
    ),
    Fault(
        "T5",
        "flowrl/data/advantages.py",
        'value_of(batch["next_obs"][ends])',
        'value_of(batch["obs"][ends])',
        ROLLOUT + "test_values_arrived_in",
    ),
    Fault(
        "T6",
        "flowrl/policies/dqn.py",
        '(1.0 - batch.terminated.astype("float32"))',
        '(1.0 - (batch.terminated | batch.truncated).astype("float32"))',
        DQN + "test_truncated_rows_bootstrap_and_terminated_ones_do_not",
    ),
    Fault("T7", "flowrl/data/advantages.py", "ends[-1:] = True", "pass", ROLLOUT + "test_values_arrived_in"),
    Fault(
        "T9",
        "flowrl/envs/manager.py",
        "elif inner is not None and inner.episode_lengths > 0:",
        "elif False:",
        ENVS + "test_manager.py::test_a_lost_life_is_no_episode_end_for_the_statistics",
    ),
    Fault(
        "T10",
        "operators/metrics.py",
        "if values else None",
        "if values else 0.0",
        RESULTS + "test_before_the_first_episode_there_is_no_return",
    ),
    Fault(
        "T11",
        "flowrl/rollout/worker.py",
        "manager.step(actions)",
        "manager.step(actions[::-1])",
        ROLLOUT + "test_actions_lead_to_the_observations_beside_them",
    ),
    Fault(
        "S1",
        "flowrl/envs/manager.py",
        "returns[env_id] += float(gain)",
        "returns[env_id] += min(1.0, gain)",
        ENVS + "test_contract.py::test_episodes_are_numbered_and_summed_up",
    ),
    Fault(
        "S2",
        "flowrl/rollout/evaluate.py",
        "                if missing[episode.env_id]:\n                    missing[episode.env_id] -= 1",
        "                if len(played) < episodes:\n                    missing[:] = len(played) + 1 < episodes",
        "tests/rollout/test_evaluate.py::test_every_environment_plays_its_share",
    ),
    Fault(
        "S3",
        "flowrl/rollout/evaluate.py",
        "        missing = shares_of",
        "        policy.version += 1\n        missing = shares_of",
        EVERY_PLAN + "test_evaluating_changes_nothing_in_training",
    ),
    Fault(
        "S6",
        "operators/evaluate.py",
        'f"fresh-{self.tries}"',
        '"fixed"',
        RESULTS + "test_a_goal_is_confirmed_on_the_saved_policy_and_fresh_seeds",
    ),
    Fault(
        "Q1",
        "flowrl/policies/dqn.py",
        "q_online_t if double else q_target_t\n",
        "q_target_t\n",
        DQN + "test_target_against_a_loop",
    ),
    Fault(
        "Q2",
        "flowrl/policies/dqn.py",
        "target.lerp_(online, tau)",
        "target.lerp_(online, 1 - tau)",
        DQN + "test_target_network_moves_by_tau",
    ),
    Fault(
        "Q3",
        "flowrl/policies/networks.py",
        "mean = (advantage * mask).sum(1, keepdim=True) / mask.sum(1, keepdim=True)",
        "mean = advantage.mean(1, keepdim=True)",
        DQN + "test_dueling_subtracts_the_mean_over_valid_actions",
    ),
    Fault(
        "Q7",
        "flowrl/rollout/worker.py",
        '        self.env_steps = state["env_steps"]\n',
        "",
        ROLLOUT + "test_exploration_sees_the_env_steps",
    ),
    Fault(
        "Q8",
        "flowrl/policies/wrappers.py",
        "noise[:, 0] < self.epsilon",
        "noise[0, 0] < self.epsilon",
        "tests/policies/test_wrappers.py::test_one_coin_for_each_environment",
    ),
    Fault(
        "N1",
        "flowrl/returns.py",
        "        open_ = open_ & ~ended[i:]\n",
        "",
        "tests/test_returns.py::test_n_step_is_the_loop_over_windows",
    ),
    Fault(
        "N2",
        "flowrl/returns.py",
        "powers[steps])",
        "powers[n])",
        "tests/test_returns.py::test_n_step_is_the_loop_over_windows",
    ),
    Fault(
        "N3",
        "operators/adders.py",
        "n_step(reward, terminated, ended,",
        "n_step(reward, ended, ended,",
        ADDERS + "test_table_of_transitions",
    ),
    Fault(
        "N4",
        "flowrl/returns.py",
        "gamma**i * reward[i:]",
        "gamma ** (i - 1) * reward[i:]",
        "tests/test_returns.py::test_n_step_is_the_loop_over_windows",
    ),
    Fault(
        "N5",
        "flowrl/data/replay.py",
        "window[steps[0] - 1, np.arange(len(index))]",
        "window[-1]",
        BUFFER + "test_write_time_and_sample_time_windows_agree",
    ),
    Fault(
        "N8",
        "operators/adders.py",
        "            emit = ~closed\n",
        "            emit = closed\n",
        ADDERS + "test_any_stream_in_any_fragments_is_the_loop_over_windows",
    ),
    Fault(
        "B5",
        "flowrl/data/rings.py",
        'self.flat, self.written = state["flat"], state["written"]',
        'self.flat, self.written = state["flat"], 0',
        BUFFER + "test_a_loaded_buffer_goes_on_alike",
    ),
    Fault(
        "B6",
        "flowrl/data/rings.py",
        "np.empty((length, *column.shape[1:]), column.dtype)",
        "np.empty((length, *column.shape[1:]), np.float32)",
        BUFFER + "test_dtypes_and_nested_columns_are_kept",
    ),
    Fault(
        "B7",
        "flowrl/data/replay.py",
        "            if not self.size:\n",
        "            if batch_size > self.size:\n",
        BUFFER + "test_samples_that_cannot_be_drawn_are_refused_and_large_ones_are_not",
    ),
    Fault(
        "B8",
        "flowrl/data/limiter.py",
        "self._ahead(inserts + rows, samples) >= -self._bound",
        "self._ahead(inserts, samples) >= -self._bound",
        "tests/data/test_limiter.py::test_bound_holds_and_one_side_can_always_go_on",
    ),
    Fault(
        "D3",
        "flowrl/checkpoint.py",
        'if _digest(at) != file["sha256"]:',
        "if not _digest(at):",
        DISK + "test_every_flipped_bit_and_every_cut_is_noticed",
    ),
    Fault(
        "D3",
        "flowrl/runs/directory.py",
        ".splitlines(keepends=True)[:count]",
        ".splitlines(keepends=True)",
        RESUME + "test_a_run_that_was_killed_goes_on_in_place",
    ),
    Fault(
        "D3",
        "flowrl/runs/session.py",
        "self._policy.read_bytes() if self._has_best() else None",
        "None",
        RESUME + "test_the_best_policy_is_the_best_until_the_checkpoint",
    ),
    Fault(
        "D5",
        "flowrl/checkpoint.py",
        'slug = f"{index:02}-"',
        'slug = f"{id(encoded)}-"',
        DISK + "test_two_checkpoints_of_one_state_are_equal",
    ),
    Fault(
        "S3",
        "flowrl/runs/session.py",
        "self._checkpoints.save({**run.state_dict(), ",
        "self._checkpoints.save({**run.state_dict(), **{'n': run.context.count('saved') or 1}, ",
        RESUME + "test_checkpoints_are_where_evaluations_are_and_change_nothing",
    ),
    Fault(
        "P1",
        "flowrl/data/prioritized.py",
        "self._tree.largest or 1.0",
        "1.0",
        PRIORITIZED + "test_new_rows_enter_with_the_largest_priority_that_is_there",
    ),
    Fault(
        "P2",
        "flowrl/data/prioritized.py",
        "self._tree.total / self._count",
        "self._tree.total / self.capacity",
        PRIORITIZED + "test_a_slot_that_was_never_written_counts_for_nothing",
    ),
    Fault(
        "P2",
        "flowrl/policies/dqn.py",
        '(errors * rows["weight"]).mean()',
        "errors.mean()",
        "tests/operators/test_replay_ops.py::test_the_loss_is_the_mean_of_weighted_errors",
    ),
    Fault(
        "P3",
        "flowrl/data/prioritized.py",
        "** self.alpha\n",
        "** self.alpha**2\n",
        PRIORITIZED + "test_rows_are_drawn_as_often_as_their_priorities_say",
    ),
    Fault(
        "P4",
        "flowrl/data/prioritized.py",
        " & (self._rings.generation(index) == generation)",
        "",
        PRIORITIZED + "test_priorities_of_a_row_that_was_overwritten_are_dropped_and_counted",
    ),
    Fault(
        "P5",
        "flowrl/data/sum_tree.py",
        "np.minimum(uniform * bounds[-1], np.nextafter(bounds[-1], 0))",
        "uniform * bounds[-1]",
        SUM_TREE + "test_a_slot_beside_others_without_mass_is_the_only_one_found",
    ),
    Fault(
        "P5",
        "flowrl/data/sum_tree.py",
        "above.reshape(-1)[node] = ",
        "above.reshape(-1)[node] += 1e-9 * ",
        SUM_TREE + "test_a_million_updates_leave_the_sums_exact",
    ),
    Fault(
        "P6",
        "flowrl/data/prioritized.py",
        "value_at(self.beta, self.inserts)",
        "value_at(self.beta, self.size)",
        PRIORITIZED + "test_beta_follows_its_schedule_over_rows_added",
    ),
    Fault(
        "P7",
        "flowrl/data/prioritized.py",
        "self._generator.random(count)",
        "np.random.default_rng().random(count)",
        PRIORITIZED + "test_all_sampling_uses_the_buffers_own_generator",
    ),
    Fault(
        "B2",
        "flowrl/data/prioritized.py",
        "        self._dropped(written)\n",
        "",
        PRIORITIZED + "test_the_newest_row_of_each_ring_has_no_mass_until_its_successor_is_there",
    ),
    Fault(
        "B5",
        "flowrl/data/prioritized.py",
        'state["masses"], state["live"]',
        'state["live"], state["live"]',
        PRIORITIZED + "test_a_loaded_buffer_goes_on_alike",
    ),
    Fault(
        "B10",
        "flowrl/data/prioritized.py",
        "        self._live[slots] = False\n",
        "",
        PRIORITIZED + "test_rows_that_are_used_up_are_drawn_no_more",
    ),
    Fault(
        "P7",
        "flowrl/data/replay.py",
        "index = self._generator.integers(self.size, size=batch_size)",
        "index = np.random.default_rng().integers(self.size, size=batch_size)",
        BUFFER + "test_all_sampling_uses_the_buffers_own_generator",
    ),
    Fault(
        "D2",
        "flowrl/rollout/noise.py",
        "spawn_key=(env_id,)",
        "spawn_key=(env_id + num_envs,)",
        ROLLOUT + "test_noise_comes_from_each_environments_own_stream",
    ),
    Fault(
        "F11",
        "flowrl/data/limiter.py",
        "self._ahead(inserts, samples + rows) <= self._bound",
        "self._ahead(inserts, samples) <= self._bound",
        "tests/operators/test_replay_ops.py::test_the_ratio_holds_at_all_times",
    ),
    Fault(
        "D4",
        "flowrl/debugger.py",
        '"tap", "look", False, node.site)',
        '"for_each", "look", False, node.site)',
        "tests/engine/test_debugger.py::test_breakpoints_change_nothing",
    ),
    Fault(
        "F8",
        "flowrl/check.py",
        "alive |= {id(node) for node in self.nodes if self._can_begin(node, alive)}",
        "alive |= {id(node) for node in self.nodes}",
        "tests/engine/test_check.py::test_stores_that_wait_for_each_other_are_found",
    ),
    Fault(
        "F13",
        "operators/train.py",
        "values[name] * n for values, n in parts if name in values) / rows",
        "values[name] for values, n in parts if name in values) / len(parts)",
        "tests/operators/test_train.py::test_averaging_divides_by_the_rows",
    ),
    Fault(
        "S4",
        "flowrl/statistics.py",
        "tasks = [np.asarray(task, dtype=float) for task in scores]",
        "tasks = [np.concatenate([np.asarray(task, dtype=float) for task in scores])]",
        "tests/test_statistics.py::test_every_task_keeps_its_number_of_runs",
    ),
    Fault(
        "S5",
        "flowrl/rollout/evaluate.py",
        "float(returns.sum() / lengths.sum())",
        "float((returns / lengths).mean())",
        "tests/rollout/test_evaluate.py::test_the_three_kinds_of_score",
    ),
]

RETURNS, BATCHES = "tests/test_returns.py::", "tests/operators/test_batches.py::"

FAULTS += [
    Fault(
        "T4",
        "flowrl/returns.py",
        "delta += gamma * xp.where(terminated != 0, 0, next_value) - value",
        "delta += gamma * xp.where((terminated != 0) & (truncated == 0), 0, next_value) - value",
        RETURNS + "test_gae_is_the_recursion_in_every_environment",
    ),
    Fault(
        "T5",
        "flowrl/returns.py",
        "goes_on = (terminated == 0) & (truncated == 0)",
        "goes_on = terminated == 0",
        RETURNS + "test_gae_is_the_recursion_in_every_environment",
    ),
    Fault(
        "T7",
        "flowrl/returns.py",
        "    goes_on[-1:] = False\n",
        "",
        RETURNS + "test_td_lambda_is_the_recursion_in_every_environment",
    ),
    Fault(
        "G1",
        "flowrl/data/steps.py",
        "axis=int(is_fragment(batches[0]))",
        "axis=0",
        BATCHES + "test_advantages_of_joined_fragments_are_those_of_each",
    ),
    Fault(
        "G2",
        "flowrl/data/advantages.py",
        "_with(batch, advantage, advantage + value)",
        "_with(batch, advantage, advantage - advantage.mean() + value)",
        ADDERS + "test_table_of_advantages",
    ),
    Fault(
        "G3",
        "operators/batches.py",
        "axes = 2 if is_fragment(batch) else 1",
        "axes = 1",
        BATCHES + "test_mean_zero_and_deviation_one_over_the_whole_batch",
    ),
    Fault(
        "G3",
        "operators/batches.py",
        "(deviation + eps)",
        "deviation",
        BATCHES + "test_equal_numbers_become_zero",
    ),
    Fault(
        "N6",
        "flowrl/data/advantages.py",
        '        cut[:-1] |= used["mask"][1:] == 0\n',
        "        pass\n",
        ADDERS + "test_table_of_advantages",
    ),
    Fault(
        "M3",
        "flowrl/data/multi_agent.py",
        "return attrs.evolve(self, batches={name: self[name] for name in policy_ids if name in self})",
        "mine = {name: self[name] for name in policy_ids if name in self}\n"
        "        return MultiAgentBatch(mine, env_steps=sum(batch.rows for batch in mine.values()))",
        "tests/data/test_multi_agent.py::test_selecting_keeps_the_env_steps",
    ),
]

SPACES, DICTS = "flowrl/envs/spaces.py", "tests/rollout/test_dict_observations.py::"

FAULTS += [
    Fault(
        "G6",
        "flowrl/rollout/worker.py",
        'actions = row.pop("env_action", row["action"])',
        'actions = row["action"] = row.pop("env_action", row["action"])',
        ROLLOUT + "test_environments_get_the_env_action_and_rows_keep_what_was_drawn",
    ),
    Fault(
        "G6",
        "flowrl/rollout/evaluate.py",
        'columns.get("env_action", columns["action"])',
        'columns["action"]',
        "tests/rollout/test_evaluate.py::test_environments_get_the_env_action",
    ),
    Fault(
        "B6",
        SPACES,
        "np.zeros((num_envs, *shape), dtype)",
        "np.zeros((num_envs, *shape), np.float32 if dtype == np.uint8 else dtype)",
        DICTS + "test_dtypes_are_kept",
    ),
    Fault(
        "T2",
        SPACES,
        "    if row is other:\n        return what\n",
        '    if other:\n        return ""\n',
        ENVS + "test_spaces.py::test_environments_that_reuse_dictionary_and_arrays",
    ),
    Fault(
        "T3",
        SPACES,
        "into[only] = given[only]",
        "into[:] = given[::-1]",
        ENVS + "test_spaces.py::test_all_modes_give_the_same_sequences",
    ),
    Fault(
        "D5",
        "flowrl/rollout/fragment.py",
        "columns[np.arange(self._rows)[:, None] >= self._cursor] = 0",
        "pass",
        DICTS + "test_resumes_mid_fragment",
    ),
    Fault(
        "D3",
        SPACES,
        "store.map(np.copy).to_dict()",
        "store.to_dict()",
        ENVS + "test_spaces.py::test_a_resumed_manager_goes_on_as_if_nothing_happened",
    ),
    Fault(
        "F1",
        "flowrl/trainer.py",
        "        self.run: Run | None = None\n",
        "        self.run: Run | None = self.plan.run(seed=self.config.seed)\n",
        TRAINER + "test_nothing_acts_before_the_first_result",
    ),
    Fault(
        "F15",
        "flowrl/trainer.py",
        "        finally:\n            self.workers.close()\n",
        "        finally:\n            pass\n",
        TRAINER + "test_stopping_closes_the_environments_and_leaves_the_policy",
    ),
    Fault(
        "D1",
        "flowrl/trainer.py",
        "self.run = self.plan.run(seed=self.config.seed)",
        "self.run = self.plan.run(seed=id(self))",
        TRAINER + "test_the_same_seed_gives_the_same_results_and_weights",
    ),
    Fault(
        "D3",
        "flowrl/trainer.py",
        "        run.load_state_dict(state)\n",
        "        run.resources[next(iter(run.resources))].load_state_dict(next(iter(state['resources'].values())))\n",
        "tests/trainer/test_restore.py::test_restored_it_equals_the_uninterrupted_one",
    ),
    Fault(
        "D6",
        "flowrl/policies/functional.py",
        "            with policy.stream.swapped_in():  # dropout and the like draw from the policy's stream\n",
        "            if True:\n",
        "tests/policies/test_functional.py::test_the_model_trains_in_train_mode_and_acts_in_eval_mode",
    ),
    Fault(
        "G6",
        "flowrl/trained.py",
        'columns.get("env_action", columns["action"])',
        'columns["action"]',
        "tests/trainer/test_load.py::test_continuous_actions_fit_the_environment",
    ),
]

PPO, CHOICES = "tests/policies/test_ppo_policy.py::", "tests/policies/test_distributions.py::"

FAULTS += [
    Fault(
        "G3",
        "flowrl/policies/ppo.py",
        "    if len(advantage) < 2:\n        return advantage\n",
        "",
        PPO + "test_one_row_alone_is_not_standardised",
    ),
    Fault(
        "G4",
        "flowrl/policies/ppo.py",
        "return torch.max(error,",
        "return torch.min(error,",
        PPO + "test_value_clipping_is_off_by_default",
    ),
    Fault(
        "G5",
        "flowrl/policies/ppo.py",
        "kl = ((ratio - 1) - log_ratio).mean()",
        "kl = (-log_ratio).mean()",
        PPO + "test_the_loss_against_a_loop",
    ),
    Fault(
        "G7",
        "flowrl/policies/ppo.py",
        "log_ratio = logp - rows.logp",
        "log_ratio = logp - logp.detach()",
        PPO + "test_the_loss_against_a_loop",
    ),
    Fault(
        "Q7",
        "flowrl/policies/policy.py",
        'group["lr"] = rate(env_steps)',
        'group["lr"] = rate(0)',
        PPO + "test_schedules_follow_env_steps",
    ),
    Fault(
        "A1",
        "flowrl/policies/distributions.py",
        "slope = 2 * (math.log(2) - action - nn.functional.softplus(-2 * action))",
        "slope = torch.log(1 - torch.tanh(action).square())",
        CHOICES + "test_squashed_log_probabilities_are_finite_far_out",
    ),
    Fault(
        "A2",
        "flowrl/policies/distributions.py",
        " - slope.sum(1) - self.log_scale",
        " - slope.sum(1)",
        CHOICES + "test_squashed_log_probabilities_are_those_of_the_action_in_its_bounds",
    ),
    Fault(
        "D1",
        "operators/train.py",
        'rows.split(size, self.context.generator("minibatches"))',
        "rows.split(size, __import__('numpy').random.default_rng())",
        EVERY_PLAN + "test_the_same_seed_gives_the_same_parameters",
    ),
]

UNROLLS, HINDSIGHT = "tests/operators/test_unrolls.py::", "tests/operators/test_hindsight.py::"
VTRACE, HER = "tests/operators/test_v_trace.py::", "test_rows_are_those_of_the_loop_over_each_episode"

FAULTS += [
    Fault(
        "N6",
        "operators/adders.py",
        '            ended[:-1] |= rows["mask"][1:] == 0\n',
        "            pass\n",
        ADDERS + "test_padding_after_a_step_ends_its_window",
    ),
    Fault(
        "N6",
        "operators/unrolls.py",
        "else max(0, trajectory.length - self._whole)\n",
        "else made * self._stride\n",
        UNROLLS + "test_table_of_sequences",
    ),
    Fault(
        "N6",
        "flowrl/data/trajectories.py",
        "        made[~mask] = 0 ",
        "        pass ",
        UNROLLS + "test_any_stream_gives_its_whole_episodes",
    ),
    Fault(
        "N7",
        "operators/unrolls.py",
        "0 if self._is_begin(table, step, rows) else self.burn_in",
        "0",
        UNROLLS + "test_any_stream_gives_the_windows_over_its_runs",
    ),
    Fault(
        "N7",
        "flowrl/data/trajectories.py",
        "    over[:-1] |= episode_breaks(",
        "    episode_breaks(",
        UNROLLS + "test_any_stream_gives_the_windows_over_its_runs",
    ),
    Fault(
        "T8",
        "flowrl/data/trajectories.py",
        "    made: Batch = table[index]\n",
        '    made: Batch = table[index]\n    if "state" in made:\n        made["state"] = made["state"][::-1]\n',
        UNROLLS + "test_any_stream_gives_the_windows_over_its_runs",
    ),
    Fault(
        "H5",
        "operators/unrolls.py",
        "if trajectory.ended or len(piece) == self._size:",
        "if piece.size:",
        UNROLLS + "test_table_of_episodes",
    ),
    Fault(
        "V1",
        "flowrl/returns.py",
        "    vs *= xp.clip(ratio, None, rho_bar)\n",
        "",
        RETURNS + "test_v_trace_is_the_sum_of_the_paper",
    ),
    Fault(
        "V1",
        "flowrl/returns.py",
        "gamma * lam * xp.clip(ratio, None, c_bar)",
        "gamma * lam * xp.clip(ratio, None, rho_bar)",
        RETURNS + "test_v_trace_is_the_recursion_in_every_environment",
    ),
    Fault(
        "V1",
        "flowrl/returns.py",
        "lam * vs[1:] + (1 - lam) * value[1:]",
        "vs[1:]",
        RETURNS + "test_v_trace_is_the_recursion_in_every_environment",
    ),
    Fault(
        "V1",
        "flowrl/returns.py",
        "    advantage *= xp.clip(ratio, None, rho_pg_bar)\n",
        "",
        RETURNS + "test_v_trace_is_the_recursion_in_every_environment",
    ),
    Fault(
        "V2",
        "flowrl/returns.py",
        "    following = xp.where(terminated != 0, 0, next_value)\n",
        "    following = xp.where((terminated != 0) | (truncated != 0), 0, next_value)\n",
        RETURNS + "test_v_trace_is_the_recursion_in_every_environment",
    ),
    Fault(
        "V2",
        "operators/adders.py",
        "own = batch.replace(value=value, next_value=next_value)",
        "own = batch",
        VTRACE + "test_old_experience_is_that_of_the_loop_with_the_present_weights",
    ),
    Fault(
        "V3",
        "flowrl/data/advantages.py",
        'columns = [used["logp"], target_logp,',
        "columns = [target_logp, target_logp,",
        VTRACE + "test_old_experience_is_that_of_the_loop_with_the_present_weights",
    ),
    Fault(
        "G1",
        "flowrl/policies/actor_critic.py",
        "(column.cpu().numpy().reshape(batch.reward.shape) for column in",
        '(column.cpu().numpy().reshape(batch.reward.shape, order="F") for column in',
        VTRACE + "test_on_policy_it_is_gae",
    ),
    Fault(
        "T5",
        "flowrl/returns.py",
        "xp.roll(lam * xp.clip(_ratio(xp, behaviour_logp, target_logp), None, 1), -1, 0)",
        "lam * xp.clip(_ratio(xp, behaviour_logp, target_logp), None, 1)",
        RETURNS + "test_retrace_is_the_recursion_in_every_environment",
    ),
    Fault(
        "H1",
        "operators/hindsight.py",
        'steps.time if self.strategy == "future" else np.zeros_like(steps.time)',
        "np.zeros_like(steps.time)",
        HINDSIGHT + HER,
    ),
    Fault(
        "H1",
        "operators/hindsight.py",
        "        stops |= (achieved == desired).reshape(*window.shape, -1).all(-1)\n",
        "",
        HINDSIGHT + HER,
    ),
    Fault(
        "H2",
        "operators/hindsight.py",
        """        for name in ("obs", "next_obs"):\n            rows[name]""",
        """        for name in ("obs",):\n            rows[name]""",
        HINDSIGHT + HER,
    ),
    Fault(
        "H3",
        "operators/hindsight.py",
        '_asked("terminated", self.terminated, achieved, desired) != 0',
        'table["terminated"][window] != 0',
        HINDSIGHT + HER,
    ),
    Fault(
        "H4",
        "operators/hindsight.py",
        "        desired = np.broadcast_to(goal, achieved.shape)\n",
        """        desired = np.broadcast_to(goal, achieved.shape)
        table["obs"]["desired_goal"][window[0]] = goal
""",
        HINDSIGHT + HER,
    ),
    Fault("H6", "operators/hindsight.py", "steps.repeated(self.k)", "steps.repeated(self.k + 1)", HINDSIGHT + HER),
]
