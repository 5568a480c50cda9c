"""Faults planted in reward models and the operators that teach, ask and combine."""

from tests.faults.fault import Fault

MODELS = "tests/models/test_reward_model.py::"
RND = "tests/models/test_rnd.py::"
ICM = "tests/models/test_icm.py::"
OPERATORS = "tests/operators/test_reward_ops.py::"
PLANS = "tests/plans/test_reward_plans.py::"

DYNAMICS = "tests/models/test_dynamics.py::"
IMAGINING = "tests/operators/test_models.py::"

FAULTS = [
    Fault(
        "Z1",
        "flowrl/models/dynamics.py",
        "mine = draw.choice(learned, ",
        "mine = draw.choice(order, ",
        DYNAMICS + "test_held_out_rows_choose_weights_and_elites",
    ),
    Fault(
        "Z1",
        "flowrl/models/dynamics.py",
        "np.full(self.members, np.inf)",
        "self.errors(shown)",
        DYNAMICS + "test_a_fit_learns_from_new_rows_whatever_it_knew_of_old_ones",
    ),
    Fault(
        "Z1",
        "flowrl/models/dynamics.py",
        "            normalizer.count.zero_()\n",
        "",
        DYNAMICS + "test_inputs_and_outcomes_are_normalized_by_all_rows",
    ),
    Fault(
        "Z1",
        "flowrl/models/dynamics.py",
        "(likelihood + ends).mean(1).sum()",
        "(likelihood + ends).mean()",
        DYNAMICS + "test_the_loss_is_that_of_a_loop",
    ),
    Fault(
        "Z2",
        "flowrl/models/dynamics.py",
        "(0.5 * log_var[at]).exp()",
        "log_var[at].exp()",
        DYNAMICS + "test_an_elite_imagines_by_hand",
    ),
    Fault(
        "Z2",
        "operators/models.py",
        "obs = next_obs[~terminated]",
        "obs = next_obs",
        IMAGINING + "test_branches_end_where_the_model_ends_them_or_at_the_horizon",
    ),
    Fault(
        "Z3",
        "operators/models.py",
        "return self.buffer[:]",
        "return self.buffer.sample(len(self.buffer))",
        IMAGINING + "test_all_rows_each_time_that_some_were_added",
    ),
    Fault(
        "Z3",
        "operators/models.py",
        "        if not self.model.elites:\n            return BLOCKED\n",
        "",
        IMAGINING + "test_nothing_is_imagined_before_the_first_fit",
    ),
    Fault(
        "D3",
        "flowrl/models/dynamics.py",
        '"elites": list(self.elites)',
        '"elites": list[int]()',
        DYNAMICS + "test_it_goes_on_from_its_state",
    ),
    Fault(
        "O1",
        "operators/rewards.py",
        "        total = self.extrinsic * reward\n        for name, weight in self.weights.items():\n"
        "            total = total + weight",
        "        total = reward\n        total *= self.extrinsic\n        for name, weight in self.weights.items():\n"
        "            total += weight",
        OPERATORS + "test_rewards_are_combined_by_weight",
    ),
    Fault(
        "O1",
        "plans/rnd_dqn.py",
        '    plan = plan.insert_before("TrainOneStep", EstimateReward(rnd))\n',
        '    plan = plan.insert_after("TrainReward", EstimateReward(rnd))\n',
        PLANS + "test_what_is_stored_is_what_was_collected",
    ),
    Fault(
        "O1",
        "operators/replay.py",
        '    "combined_rewards": "',
        '    "combined": "',
        OPERATORS + "test_where_they_belong_with_replay",
    ),
    Fault(
        "G2",
        "operators/rewards.py",
        '_MADE_OF_REWARDS = {"advantage": "GAE or VTrace", "target": "GAE or VTrace"}',
        "_MADE_OF_REWARDS: dict[str, str] = {}",
        OPERATORS + "test_where_they_belong_on_policy",
    ),
    Fault(
        "N4",
        "operators/adders.py",
        'windows = ("windows",) if self.n > 1 else ()',
        "windows = ()",
        OPERATORS + "test_where_they_belong_with_replay",
    ),
    Fault(
        "N4",
        "flowrl/data/replay/buffer.py",
        '("windows",) if self.n_step > 1 else ()',
        "()",
        OPERATORS + "test_windows_that_a_buffer_makes_are_windows",
    ),
    Fault(
        "N4",
        "plans/rnd_dqn.py",
        "if config.n_step != 1:",
        "if config.n_step < 1:",
        PLANS + "test_windows_of_several_steps_are_refused",
    ),
    Fault(
        "O3",
        "flowrl/models/curiosity.py",
        "self.novelty(batch) / float(self.returns.std)",
        "self.novelty(batch) / float(self.novelty(batch).std())",
        RND + "test_the_reward_is_the_error_of_a_step_by_hand",
    ),
    Fault(
        "O3",
        "flowrl/models/curiosity.py",
        "running_returns(batch.replace(reward=self.novelty(batch)), self.gamma, self.running)",
        "running_returns(batch.replace(reward=self.novelty(batch)), self.gamma, {})",
        RND + "test_rewards_are_scaled_by_returns_over_the_stream",
    ),
    Fault(
        "O3",
        "flowrl/models/icm.py",
        "        return 0.5 * squared_error(self.model",
        "        return squared_error(self.model",
        ICM + "test_reward_and_loss_are_those_of_a_loop",
    ),
    Fault(
        "O2",
        "flowrl/models/reward_model.py",
        "        for normalizer in self._of_observations:\n            normalizer.update()\n",
        "        for normalizer in self._of_observations:\n            normalizer.count.zero_()\n"
        "            normalizer.update()\n",
        MODELS + "test_observations_are_normalised_by_all_rows_so_far",
    ),
    Fault(
        "D6",
        "flowrl/models/learned.py",
        "        with self.stream.swapped_in():\n            self._build()\n",
        "        self._build()\n",
        MODELS + "test_its_streams_are_its_own",
    ),
    Fault(
        "D6",
        "flowrl/models/learned.py",
        "TorchStream(SeedTree(seed).integer(type(self).__name__))",
        "TorchStream(seed)",
        MODELS + "test_its_streams_are_its_own",
    ),
    Fault(
        "D3",
        "flowrl/models/learned.py",
        '        load_optimizer(self.optimizer, saved.inside("optimizer"))\n',
        "",
        MODELS + "test_it_goes_on_from_its_state",
    ),
    Fault(
        "F12",
        "operators/rewards.py",
        'self.context.count("reward_updates", len(steps))',
        'self.context.count("updates", len(steps))',
        OPERATORS + "test_teaching_passes_the_batch_on_and_counts_each_row_once",
    ),
    Fault(
        "G7",
        "operators/rewards.py",
        "return batch.replace(logp=logp.reshape(batch.shape[:2]) if fragment else logp)",
        'return batch if "logp" in batch else batch.replace(logp=logp.reshape(batch.shape[:2]) if fragment else logp)',
        OPERATORS + "test_how_probable_actions_are_now",
    ),
    Fault(
        "G6",
        "flowrl/models/reward_model.py",
        'return used.replace(action=self.for_env(used.select(["action"]).to_numpy()["action"]))',
        "return used",
        MODELS + "test_actions_are_seen_as_the_environment_gets_them",
    ),
    *(
        Fault(
            "G6",
            f"plans/{name}.py",
            "        for_env=workers.policy.for_env,\n",
            "",
            PLANS + "test_models_see_the_actions_that_the_environment_got",
        )
        for name in ("gail_ppo", "airl_ppo", "icm_ppo")
    ),
    Fault(
        "F9",
        "operators/rewards.py",
        '{"fresh experience": agent, "the demonstrations": shown[0]}',
        '{"fresh experience": agent}',
        OPERATORS + "test_pairs_are_checked_on_both_sides",
    ),
]
