"""Faults planted in operators."""

from tests.faults.fault import Fault

ADDERS = "tests/operators/test_adders.py::"
GAMES = "tests/operators/test_game_fragments.py::"
RESULTS = "tests/operators/test_metrics.py::"
EVALUATE = "tests/operators/test_evaluate.py::"
BATCHES = "tests/operators/test_batches.py::"
UNROLLS = "tests/operators/test_unrolls.py::"
HINDSIGHT = "tests/operators/test_hindsight.py::"
HER = "test_rows_are_those_of_the_loop_over_each_episode"
NORMALIZING = "tests/operators/test_normalize_ops.py::"
NORMALIZED_PLANS = "tests/plans/test_normalized_plans.py::"
SHARD_PLANS = "tests/operators/test_replay_shards.py::"

FAULTS = [
    Fault(
        "M13",
        "flowrl/engine/schema.py",
        "policy=name, in_turn=self.in_turn)",
        "in_turn=self.in_turn)",
        "tests/plans/test_two_trainers.py::test_who_learns_on_policy_is_given_no_rows_of_another_one",
    ),
    Fault(
        "B8",
        "operators/adders.py",
        'most={"B": (given.most["T"] + self.n - 1) * given.most["N"]}',
        'most={"B": given.most["T"] * given.most["N"]}',
        "tests/operators/test_checked_plans.py::test_a_limiter_is_told_the_most_rows_that_come_at_once",
    ),
    Fault(
        "T10",
        "operators/metrics.py",
        "if values else None",
        "if values else 0.0",
        RESULTS + "test_before_the_first_episode_there_is_no_return",
    ),
    Fault(
        "S3",
        "operators/evaluate.py",
        "env, games = workers.evaluation_env,",
        "env, games = workers.environments,",
        "tests/rollout/test_evaluation.py::test_evaluation_has_settings_of_its_own",
    ),
    Fault(
        "S6",
        "operators/evaluate.py",
        'f"fresh-{self.tries}"',
        '"fixed"',
        EVALUATE + "test_a_goal_is_confirmed_on_the_saved_policy_and_fresh_seeds",
    ),
    Fault(
        "S6",
        "operators/evaluate.py",
        "now + math.ceil(self.train_ratio * steps)",
        "now",
        EVALUATE + "test_counts_decide_when_an_evaluation_is_due_and_how_long_it_is",
    ),
    Fault(
        "S6",
        "operators/evaluate.py",
        "            steps += scores(played).steps\n",
        "            steps = scores(played).steps\n",
        EVALUATE + "test_counts_decide_when_an_evaluation_is_due_and_how_long_it_is",
    ),
    Fault(
        "S6",
        "flowrl/rollout/evaluation.py",
        "episodes) >= least for",
        "episodes) > least for",
        EVALUATE + "test_counts_decide_when_an_evaluation_is_due_and_how_long_it_is",
    ),
    Fault(
        "S6",
        "flowrl/rollout/evaluation.py",
        "return all(return_of(",
        "return any(return_of(",
        EVALUATE + "test_a_goal_may_be_that_of_agents_by_name",
    ),
    Fault(
        "D3",
        "operators/evaluate.py",
        "due: int = state(default=attrs.Factory(lambda self: self.every, takes_self=True))",
        "due: int = attrs.field(default=attrs.Factory(lambda self: self.every, takes_self=True), init=False)",
        EVALUATE + "test_counts_decide_when_an_evaluation_is_due_and_how_long_it_is",
    ),
    Fault(
        "S6",
        "operators/evaluate.py",
        '        if self.context.learns and not self.context.counters.get("updates"):\n            return result\n',
        "",
        EVALUATE + "test_there_is_no_evaluation_before_the_first_update",
    ),
    Fault(
        "S6",
        "operators/metrics.py",
        'result["seconds"] = self.context.watch.training',
        'result["seconds"] = self.context.watch.seconds',
        EVALUATE + "test_the_seconds_of_evaluation_are_not_those_of_training",
    ),
    Fault(
        "S6",
        "operators/evaluate.py",
        "watch.evaluation > FEW_SECONDS and not watch.warned:",
        "watch.evaluation > FEW_SECONDS:",
        EVALUATE + "test_the_seconds_of_evaluation_are_not_those_of_training",
    ),
    Fault(
        "N3",
        "operators/adders.py",
        "n_step(reward, terminated, ended,",
        "n_step(reward, ended, ended,",
        ADDERS + "test_table_of_transitions",
    ),
    Fault(
        "N8",
        "operators/adders.py",
        "            emit = ~closed\n",
        "            emit = closed\n",
        ADDERS + "test_any_stream_in_any_fragments_is_the_loop_over_windows",
    ),
    Fault(
        "F13",
        "operators/train.py",
        "sum(value * n for value, n in of)",
        "sum(value * rows / len(parts) for value, n in of)",
        "tests/operators/test_train.py::test_averaging_divides_by_the_rows",
    ),
    Fault(
        "F13",
        "operators/train.py",
        "(part.scalars, part.rows) for part in parts])",
        "(part.scalars, part.rows) for part in parts], rows)",
        "tests/operators/test_train.py::test_a_scalar_that_a_part_does_not_report_is_no_zero",
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
        "F2",
        "operators/datasets.py",
        "        elif before != len(writer):",
        "        elif before > len(writer):",
        "tests/operators/test_dataset_ops.py::test_a_resume_loses_and_doubles_nothing",
    ),
    Fault(
        "D3",
        "operators/datasets.py",
        "        if self.batches is None:\n",
        "        if True:\n",
        "tests/operators/test_dataset_ops.py::test_an_epoch_reads_what_was_there_when_it_began",
    ),
    Fault(
        "D6",
        "operators/datasets.py",
        'default_rng([self.context.seed("shuffle"), self.epoch])',
        "default_rng()",
        "tests/operators/test_dataset_ops.py::test_an_epoch_gives_every_row_once",
    ),
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
        "N7",
        "operators/unrolls.py",
        "0 if self._is_begin(table, step, rows) else self.burn_in",
        "0",
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
    Fault(
        "O1",
        "operators/normalize.py",
        'self.workers.policy.gather_statistics(rows["obs"], rows.get("returns"))',
        'self.workers.policy.gather_statistics(rows["obs"], rows.get("returns")); '
        "self.workers.policy.update_statistics()",
        NORMALIZED_PLANS + "test_what_acted_is_what_learns",
    ),
    Fault(
        "O1",
        "operators/normalize.py",
        'return given.without("on_policy")',
        "return given",
        NORMALIZING + "test_where_they_belong_on_policy",
    ),
    Fault(
        "O1",
        "operators/replay.py",
        '        check_raw(given)\n        if "mask"',
        '        if "mask"',
        NORMALIZING + "test_where_they_belong_with_replay",
    ),
    Fault(
        "O3",
        "flowrl/data/running_returns.py",
        "np.where(over[step], 0.0, returns[step])",
        "returns[step]",
        NORMALIZING + "test_returns_are_discounted_within_an_episode",
    ),
    Fault(
        "M5",
        "flowrl/data/running_returns.py",
        "    if ragged:  # padding follows, but the episode goes on\n",
        "    if not ragged:\n",
        GAMES + "test_running_returns_are_those_of_a_loop_over_each_seat",
    ),
    Fault(
        "M5",
        "operators/adders.py",
        "                ripe[max(0, len(each.rows) - self.n + 1) :, column] = False\n",
        "                pass\n",
        GAMES + "test_windows_are_those_of_a_loop_over_each_seat",
    ),
    Fault(
        "O3",
        "flowrl/data/running_returns.py",
        "so_far if tuple(expected) == place else 0.0",
        "so_far",
        NORMALIZING + "test_returns_are_discounted_within_an_episode",
    ),
    Fault(
        "O3",
        "operators/normalize.py",
        'batch["reward"] / float(returns.std)',
        '(batch["reward"] - float(returns.mean)) / float(returns.std)',
        NORMALIZING + "test_rewards_are_divided_and_not_shifted",
    ),
    Fault(
        "O3",
        "operators/normalize.py",
        'batch["reward"] / float(returns.std)',
        'batch["reward"] / batch["reward"].std()',
        NORMALIZED_PLANS + "test_a_batch_of_fragments_is_scaled_by_one_number",
    ),
    Fault(
        "V4",
        "operators/rollout.py",
        "raw.gather_async(in_flight, max_weight_lag, pace=pace)",
        "raw.gather_async(in_flight)",
        "tests/plans/test_async_plans.py::test_rows_are_never_trained_on_by_weights_that_are_too_new",
    ),
    Fault(
        "N7",
        "operators/replay.py",
        "        if self.buffer.in_order and given.in_turn > self.buffer.streams",
        "        if self.buffer.in_order and given.in_turn > 99",
        SHARD_PLANS + "test_fragments_of_several_workers_in_turn_are_refused_where_order_matters",
    ),
    Fault(
        "Q7",
        "operators/train.py",
        "        learn.schedule(self.context.counters.get(owner.clock, 0) if worker is None else worker.env_steps)\n",
        "",
        "tests/rollout/test_gradients_on_workers.py::test_a_round_of_gradients_is_one_step_for_all",
    ),
]
