"""Faults planted in the engine, runs and the command line."""

from tests.faults.fault import Fault

PLAN = "tests/engine/test_plan.py::"
MERGE = "tests/engine/test_merge.py::"
CALLS = "tests/engine/test_calls.py::"
RUNS = "tests/engine/test_run.py::"
CLOSING = "tests/engine/test_closing.py::"
STATES = "tests/engine/test_run_state.py::"
LAG = "tests/engine/test_lag.py::"
DEATHS = "tests/engine/test_worker_deaths.py::"
GATHER = "tests/engine/test_gather.py::"
ERRORS = "tests/engine/test_errors.py::"
DISK = "tests/storage/test_checkpoint.py::"
RESUME = "tests/cli/test_resume.py::"
TRAINER = "tests/trainer/test_trainer.py::"
EVERY_PLAN = "tests/plans/test_every_plan.py::"
SHARD_PLANS = "tests/operators/test_replay_shards.py::"
HOSTS = "tests/rollout/test_remote_groups.py::"
ALIKE = "tests/learners/test_all_reduce.py::"
LEARNERS = "tests/learners/test_learners.py::"

FAULTS = [
    Fault(
        "F16",
        "flowrl/engine/labels.py",
        "    if len(last) < 2:\n",
        "    if len(last) < 4:\n",
        "tests/operators/test_metrics.py::test_several_learners_have_scalars_and_counters_of_their_own",
    ),
    Fault(
        "F1",
        "flowrl/engine/plan.py",
        "        op = Generated(items)\n",
        "        op = Generated(items)\n        items()\n",
        PLAN + "test_building_a_plan_calls_nothing",
    ),
    Fault(
        "F2",
        "flowrl/engine/gather.py",
        "if error is None or self._members.is_death(error):",
        "if error is not None and self._members.is_death(error):",
        GATHER + "test_answers_in_flight_are_drained_into_the_state",
    ),
    Fault(
        "F3",
        "flowrl/engine/gather.py",
        "self.todo.extend(arrival.worker for _ in items)",
        "[self._ask(arrival.worker) for _ in items]",
        GATHER + "test_what_is_done_with_an_item_happens_before_its_worker_is_asked_again",
    ),
    Fault(
        "F15",
        "flowrl/engine/run.py",
        "            _tell(self, at_end)\n        finally:",
        "            _tell(self, at_end)\n        except ValueError:",
        "tests/engine/test_hooks.py::test_an_error_of_the_last_hook_leaves_the_run_closed",
    ),
    Fault(
        "F4",
        "flowrl/engine/stages.py",
        "        if item.__class__ is Signal:\n            if item is DONE:",
        "        if item in (DONE, WORKED):\n            if item is DONE:",
        RUNS + "test_no_signal_reaches_a_users_function",
    ),
    Fault(
        "F5",
        "flowrl/engine/graph.py",
        'and upstream.kind != "fork"',
        'and upstream.kind == "fork"',
        PLAN + "test_a_stream_read_twice_without_a_fork_is_refused",
    ),
    Fault(
        "F6",
        "flowrl/engine/run.py",
        "        asleep, waited, patience",
        "        while not self.context.bell.wait(0.01):\n            self.wakeups += 1\n"
        "        self.context.bell.ring()\n        asleep, waited, patience",
        RUNS + "test_an_idle_run_makes_no_wakeups",
    ),
    Fault(
        "F7",
        "flowrl/engine/merge.py",
        "len(queue) >= self.max_lag for queue in others",
        "len(queue) > self.max_lag for queue in others",
        MERGE + "test_readers_may_run_at_different_speeds_within_max_lag",
    ),
    Fault(
        "F8",
        "flowrl/engine/merge.py",
        "                idle.clear()  # the end of a branch",
        "                # the end of a branch",
        MERGE + "test_the_end_of_a_branch_frees_the_one_it_blocked",
    ),
    Fault(
        "F9",
        "flowrl/engine/meter.py",
        "item {self.items + self.skipped + 1}{seen}",
        "item {self.items}{seen}",
        ERRORS + "test_an_error_keeps_its_type_and_gains_one_note",
    ),
    Fault(
        "F10",
        "flowrl/engine/gather.py",
        "        self.todo.append(request.index)  # ask again",
        "        # ask again",
        DEATHS + "test_the_death_of_workers_costs_their_requests_and_nothing_else",
    ),
    Fault(
        "F10",
        "flowrl/engine/gather.py",
        '            self.meter.context.count("lost_requests")\n            self._members.revive',
        "            self._members.revive",
        DEATHS + "test_a_death_costs_the_requests_in_flight_and_nothing_else",
    ),
    Fault(
        "F10",
        "flowrl/engine/members.py",
        "if self.workers.members[index] is not worker:",
        "if worker is None:",
        DEATHS + "test_two_streams_of_the_same_workers_start_them_again_once",
    ),
    Fault(
        "F10",
        "flowrl/engine/members.py",
        '            self.meter.context.count("worker_restarts")',
        "            pass",
        DEATHS + "test_all_workers_may_die_at_once",
    ),
    Fault(
        "F10",
        "flowrl/engine/gather.py",
        "if index not in late",
        "if index in present",
        GATHER + "test_a_slow_worker_is_named_and_the_others_go_on",
    ),
    Fault(
        "F3",
        "flowrl/engine/gather.py",
        "too_old = self._margin(self.pending[0]) < 0",
        "too_old = False",
        LAG + "test_the_lag_of_every_item_is_within_its_bound",
    ),
    Fault(
        "F7",
        "flowrl/engine/gather.py",
        "for index in added for _ in range(self.in_flight))",
        "for index in added for _ in range(self.in_flight + 1))",
        GATHER + "test_gather_async_gives_what_is_ready",
    ),
    Fault(
        "F2",
        "flowrl/engine/gather.py",
        "return arrival._replace(answer=arrival.answer._replace(item=item.fetch()))",
        "return None",
        GATHER + "test_a_state_holds_the_values_of_items_that_are_elsewhere",
    ),
    Fault(
        "F11",
        "flowrl/engine/merge.py",
        "math.floor((begun + 1) * weight) - math.floor(begun * weight)",
        "math.ceil(weight)",
        MERGE + "test_round_robin_ratios_hold_within_one_item_at_all_times",
    ),
    Fault(
        "F12",
        "flowrl/engine/context.py",
        "            self.counters, self.records = {}, {}\n",
        "            self.records = {}\n",
        GATHER + "test_counters_of_workers_arrive_once",
    ),
    Fault(
        "F14",
        "flowrl/engine/transforms.py",
        "        return [full] if full else []",
        "        return [full] if len(full) == self.size else []",
        PLAN + "test_verbs",
    ),
    Fault(
        "F15",
        "flowrl/engine/calls.py",
        "            self._worker.close()",
        "            pass",
        CLOSING + "test_closing_leaves_no_thread",
    ),
    Fault(
        "D1",
        "flowrl/engine/seeds.py",
        "np.random.PCG64(self.sequence(path))",
        "np.random.PCG64()",
        RUNS + "test_same_seed_same_items_other_seed_others",
    ),
    Fault(
        "D3",
        "flowrl/engine/stages.py",
        "in reversed(list(enumerate(self.backlog)))",
        "in enumerate(self.backlog)",
        "tests/inspect/test_check_plans.py::test_what_is_held_beside_a_tap_comes_in_order",
    ),
    Fault(
        "D4",
        "flowrl/engine/run.py",
        'if node.kind != "tap" else ()',
        "",
        CLOSING + "test_a_tapped_function_is_no_resource_of_the_plan",
    ),
    Fault(
        "D5",
        "flowrl/engine/operator.py",
        "saved[name] = copy.deepcopy(vars(op)[name])",
        "saved[name] = vars(op)[name]",
        STATES + "test_a_state_is_a_copy",
    ),
    Fault(
        "D6",
        "flowrl/engine/seeds.py",
        "spawn_key=words",
        "spawn_key=[len(self._generators)]",
        "tests/engine/test_seeds.py::test_streams_follow_from_seed_and_path_alone",
    ),
    Fault(
        "S4",
        "flowrl/cli/evaluate.py",
        "middle([each[name] for each in scores])",
        "middle([each[name] for each in scores[:-1]])",
        "tests/cli/test_evaluate_run.py::test_several_runs_have_a_middle",
    ),
    Fault(
        "D3",
        "flowrl/storage/checkpoint.py",
        'if _digest(at) != file["sha256"]:',
        "if not _digest(at):",
        DISK + "test_every_flipped_bit_and_every_cut_is_noticed",
    ),
    Fault(
        "D3",
        "flowrl/cli/directory.py",
        ".splitlines(keepends=True)[:count]",
        ".splitlines(keepends=True)",
        RESUME + "test_a_run_that_was_killed_goes_on_in_place",
    ),
    Fault(
        "D3",
        "flowrl/cli/session.py",
        "self._policy.read_bytes() if self._has_best() else None",
        "None",
        RESUME + "test_the_best_policy_is_the_best_until_the_checkpoint",
    ),
    Fault(
        "D5",
        "flowrl/storage/checkpoint.py",
        'slug = f"{index:02}-"',
        'slug = f"{id(encoded)}-"',
        DISK + "test_two_checkpoints_of_one_state_are_equal",
    ),
    Fault(
        "S3",
        "flowrl/cli/session.py",
        "self._checkpoints.save({**run.state_dict(), ",
        "self._checkpoints.save({**run.state_dict(), **{'n': run.context.count('saved') or 1}, ",
        RESUME + "test_checkpoints_are_where_evaluations_are_and_change_nothing",
    ),
    Fault(
        "D4",
        "flowrl/inspect/debugger.py",
        '"tap", "look", False, node.site)',
        '"for_each", "look", False, node.site)',
        "tests/inspect/test_debugger.py::test_breakpoints_change_nothing",
    ),
    Fault(
        "F9",
        "flowrl/inspect/check.py",
        "given = [given[0].each[part]]",
        "given = [given[0]]",
        "tests/inspect/test_check.py::test_of_pairs_the_part_is_followed_that_goes_on",
    ),
    Fault(
        "F8",
        "flowrl/inspect/check.py",
        "alive |= {id(node) for node in self.nodes if self._can_begin(node, alive)}",
        "alive |= {id(node) for node in self.nodes}",
        "tests/inspect/test_check.py::test_stores_that_wait_for_each_other_are_found",
    ),
    Fault(
        "S4",
        "flowrl/cli/statistics.py",
        "tasks = [np.asarray(task, dtype=float) for task in scores]",
        "tasks = [np.concatenate([np.asarray(task, dtype=float) for task in scores])]",
        "tests/cli/test_statistics.py::test_every_task_keeps_its_number_of_runs",
    ),
    Fault(
        "F1",
        "flowrl/trainer/trainer.py",
        "        self.run: Run | None = None\n",
        "        self.run: Run | None = self.plan.run(seed=self.config.seed)\n",
        TRAINER + "test_nothing_acts_before_the_first_result",
    ),
    Fault(
        "F1",
        "flowrl/trainer/trainer.py",
        "self.plan.check()",
        "pass",
        "tests/trainer/test_override.py::test_a_plan_that_must_go_wrong_is_refused_before_anything_starts",
    ),
    Fault(
        "F15",
        "flowrl/trainer/trainer.py",
        "            closing.callback(self.workers.close)\n",
        "            pass\n",
        TRAINER + "test_stopping_closes_the_environments_and_leaves_the_policy",
    ),
    Fault(
        "D1",
        "flowrl/trainer/trainer.py",
        "self.run = self.plan.run(seed=self.config.seed)",
        "self.run = self.plan.run(seed=id(self))",
        TRAINER + "test_the_same_seed_gives_the_same_results_and_weights",
    ),
    Fault(
        "D3",
        "flowrl/trainer/trainer.py",
        "        run.load_state_dict(state)\n",
        "        run.resources[next(iter(run.resources))].load_state_dict(next(iter(state['resources'].values())))\n",
        "tests/trainer/test_restore.py::test_restored_it_equals_the_uninterrupted_one",
    ),
    Fault(
        "G6",
        "flowrl/trainer/trained_policy.py",
        'columns.get("env_action", columns["action"])',
        'columns["action"]',
        "tests/trainer/test_load.py::test_continuous_actions_fit_the_environment",
    ),
    Fault(
        "D1",
        "flowrl/learners/training.py",
        "rows.split(size, True, generator)",
        "rows.split(size, True, __import__('numpy').random.default_rng())",
        EVERY_PLAN + "test_the_contract_of_plans",
    ),
    Fault(
        "S2",
        "flowrl/cli/record.py",
        "count = min(missing, worker.manager.num_envs)",
        "count = 1",
        "tests/cli/test_record.py::test_episodes_are_whole_and_played_as_in_evaluation",
    ),
    Fault(
        "F2",
        "flowrl/engine/stages.py",
        "        self.meter.contract.drain()\n",
        "        pass\n",
        SHARD_PLANS + "test_a_state_taken_while_shards_work_loses_nothing",
    ),
    Fault(
        "F15",
        "flowrl/trainer/trainer.py",
        "                        closing.push(resource)\n",
        "                        pass\n",
        TRAINER + "test_stopping_ends_what_the_plan_has_started",
    ),
    Fault(
        "V3",
        "flowrl/learners/training.py",
        "lags(prepared, learn.policy.version)",
        "lags(prepared, learn.policy.version + 1)",
        HOSTS + "test_every_row_that_is_learned_from_has_a_lag",
    ),
    Fault(
        "F13",
        "flowrl/learners/training.py",
        "math.ceil(most / self.minibatch_size)",
        "math.ceil(rows.rows / self.minibatch_size)",
        ALIKE + "test_learners_with_batches_of_their_own_take_equally_many_steps",
    ),
    Fault(
        "F12",
        "flowrl/engine/calls.py",
        "        self.meter.context.metrics.merge(answer.counters, answer.records)\n",
        "",
        LEARNERS + "test_a_receipt_of_any_worker_is_counted",
    ),
    Fault(
        "F10",
        "flowrl/engine/calls.py",
        "        if isinstance(error, ValueLost):\n",
        "        if False:\n",
        CALLS + "test_an_item_that_is_lost_with_its_machine_costs_itself_alone",
    ),
    Fault(
        "D3",
        "flowrl/trainer/tune.py",
        '        self._trainer.restore(Path(checkpoint) / "trainer")\n',
        "        self._trainer.restore\n",
        "tests/trainer/test_tune.py::test_a_trial_goes_on_bit_for_bit_where_it_was_saved",
    ),
    Fault(
        "D1",
        "flowrl/trainer/tune.py",
        "        self.cleanup()\n        self.setup(new_config)\n",
        "        self.setup(self.config)\n",
        "tests/trainer/test_tune.py::test_a_reset_trial_is_a_new_one",
    ),
]
