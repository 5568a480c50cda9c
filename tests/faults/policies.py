"""Faults planted in policies and their losses."""

from tests.faults.fault import Fault

SAC = "tests/policies/test_sac_policy.py::"
TD3 = "tests/policies/test_td3_policy.py::"
BOUNDED = "tests/policies/test_bounded.py::"
MASKS = "tests/policies/test_masks.py::"
DQN = "tests/policies/test_dqn_policy.py::"
NOISY = "tests/policies/test_noisy.py::"
PPO = "tests/policies/test_ppo_policy.py::"
NORMALIZER = "tests/policies/test_normalizer.py::"
NORMALIZED_PLANS = "tests/plans/test_normalized_plans.py::"
RECURRENT = "tests/policies/test_memory.py::"
RECURRENT_PPO = "tests/policies/test_recurrent_ppo.py::"
R2D2 = "tests/policies/test_r2d2_policy.py::"
IN_NUMPY = "tests/policies/test_in_numpy.py::"
HOSTS = "tests/rollout/test_remote_groups.py::"
ALIKE = "tests/learners/test_all_reduce.py::"
OPTIONS = "tests/policies/test_learner_options.py::"
EXPORT = "tests/policies/test_export.py::"
SCHEDULES = "tests/test_schedules.py::"

NOT_FINITE = "tests/policies/test_not_finite.py::"

FAULTS = [
    Fault(
        "X1",
        "flowrl/policies/learning.py",
        "        self._check_gradients(policy.settings.grad_clip)\n",
        "        policy.settings.grad_clip and self._check_gradients(policy.settings.grad_clip)\n",
        NOT_FINITE + "test_a_gradient_that_is_not_finite_is_named",
    ),
    Fault(
        "X3",
        "flowrl/settings.py",
        "math.isnan(each) or not (unbounded or each == fields[name].default)",
        "math.isnan(each)",
        "tests/cli/test_settings.py::test_numbers_are_finite_unless_infinity_stands_for_no_bound",
    ),
    Fault(
        "T6",
        "flowrl/data/steps.py",
        '(1.0 - batch["terminated"].astype(np.float32))',
        '(1.0 - (batch["terminated"] | batch["truncated"]).astype(np.float32))',
        DQN + "test_truncated_rows_bootstrap_and_terminated_ones_do_not",
    ),
    Fault(
        "D6",
        "flowrl/policies/learning.py",
        "        with policy.learning(), policy.mixed.forward():\n",
        "        with policy.mixed.forward():\n",
        OPTIONS + "test_what_a_network_does_to_learn_it_does_not_in_acting",
    ),
    Fault(
        "D1",
        "flowrl/policies/networks.py",
        "made.eval()(zeros)",
        "made(zeros)",
        OPTIONS + "test_what_a_network_does_to_learn_it_does_not_in_acting",
    ),
    Fault(
        "Q6",
        "flowrl/policies/torch_rng.py",
        "generator=None if self._inside else self._generator",
        "generator=self._generator",
        OPTIONS + "test_noise_in_weights_stays_fresh_beside_a_network_of_ones_own",
    ),
    Fault(
        "D2",
        "flowrl/policies/policy.py",
        "noise_of(noise[:, drawn:])",
        "noise_of(noise[:1, drawn:])",
        NOISY + "test_what_is_drawn_for_one_environment_changes_no_other",
    ),
    Fault(
        "D3",
        "flowrl/policies/torch_rng.py",
        "torch.randn(shape, generator=None if self._inside else self._generator)",
        "torch.randn(shape)",
        NOISY + "test_a_state_goes_on_with_the_noise_that_would_have_come",
    ),
    Fault(
        "Q7",
        "flowrl/policies/learning.py",
        "_checked(rate(env_steps)",
        "_checked(rate(policy.version)",
        SCHEDULES + "test_schedules_are_functions_of_env_steps_and_the_same_after_a_resume",
    ),
    Fault(
        "Q7",
        "flowrl/policies/learning.py",
        'policy.learning_rates.get(group.get("name", ""), policy.learning_rate)',
        "policy.learning_rate",
        OPTIONS + "test_a_parameter_group_may_have_a_rate_of_its_own",
    ),
    Fault(
        "D1",
        "flowrl/policies/learning.py",
        "        with policy.learning(), policy.mixed.forward():\n",
        "        with policy.learning():\n",
        OPTIONS + "test_bfloat16_is_for_learning_alone",
    ),
    Fault(
        "F13",
        "flowrl/learners/training.py",
        "all_reduce.share(part)",
        "part",
        ALIKE + "test_what_is_drawn_for_a_minibatch_is_that_of_one_learner",
    ),
    Fault(
        "A2",
        "flowrl/policies/distributions.py",
        "(low + (action + 1) * ((high - low) / 2)).clamp(low, high)",
        "action.clamp(low, high)",
        EXPORT + "test_a_program_of_torch_gives_the_actions_of_the_eval_mode",
    ),
    Fault(
        "Q3",
        "flowrl/policies/policy.py",
        "masked(model(obs), action_mask(obs)).argmax(1)",
        "model(obs).argmax(1)",
        EXPORT + "test_a_program_of_torch_gives_the_actions_of_the_eval_mode",
    ),
    Fault(
        "Q3",
        "flowrl/policies/recurrent.py",
        "if action_mask(rows) is not None:",
        "if False:",
        MASKS + "test_policies_with_a_memory_act_among_the_valid_actions",
    ),
    Fault(
        "A3",
        "flowrl/policies/sac.py",
        "mask.sum(1).clamp(min=1)",
        "mask.shape[1] + 0 * mask.sum(1)",
        MASKS + "test_discrete_sac_goes_by_the_valid_actions",
    ),
    Fault(
        "G6",
        "flowrl/policies/critics.py",
        "masked(self.actor(features.detach()).float(), action_mask(obs))",
        "self.actor(features.detach())",
        MASKS + "test_discrete_sac_goes_by_the_valid_actions",
    ),
    Fault(
        "Q1",
        "flowrl/policies/policy.py",
        "best: Array = masked(values, action_mask(obs)).max(1)",
        "best: Array = values.max(1)",
        MASKS + "test_dqn_acts_among_the_valid_actions",
    ),
    Fault(
        "Q8",
        "flowrl/policies/policy.py",
        "mask=action_mask(obs))",
        "mask=np.repeat(action_mask(obs)[:1], len(obs), 0))",
        MASKS + "test_dqn_acts_among_the_valid_actions",
    ),
    Fault(
        "T8",
        "flowrl/policies/recurrent.py",
        "            state = state.masked_fill(begins[first, :, None], 0.0)\n",
        "",
        RECURRENT + "test_the_unroll_equals_one_step_at_a_time",
    ),
    Fault(
        "T8",
        "flowrl/policies/recurrent.py",
        'begins[1:] = (batch["terminated"][:-1] != 0) | (batch["truncated"][:-1] != 0)',
        'begins[1:] = (batch["terminated"][:-1] != 0)',
        RECURRENT + "test_an_episode_begins_after_an_end_and_where_provenance_breaks",
    ),
    Fault(
        "T8",
        "flowrl/trainer/trained_policy.py",
        "        before[begins] = first[begins]\n",
        "",
        "tests/plans/test_recurrent_plans.py::test_acting_with_the_state_that_it_gives_back",
    ),
    Fault(
        "N6",
        "flowrl/learners/training.py",
        "            trained += real if part is rows else real_steps(part)\n",
        "            trained += real if part is rows else part.rows\n",
        RECURRENT_PPO + "test_minibatches_are_whole_sequences_and_padding_is_not_counted",
    ),
    Fault(
        "N6",
        "flowrl/learners/training.py",
        "    return places.replace(priority=priority).map(lambda column: column[counts])\n",
        "    return places.replace(priority=priority).flat()\n",
        R2D2 + "test_priorities_are_those_of_the_steps_that_count",
    ),
    Fault(
        "Q8",
        "flowrl/policies/sampling.py",
        "rank = (noise * mask.sum(1))",
        "rank = (noise[:1] * mask.sum(1))",
        MASKS + "test_dqn_acts_among_the_valid_actions",
    ),
    Fault(
        "G6",
        "flowrl/policies/functional.py",
        "scores = masked(host(scores), mask)",
        "pass",
        MASKS + "test_a_policy_of_functions_acts_among_the_valid_actions",
    ),
    Fault(
        "Q8",
        "flowrl/policies/sampling.py",
        "noise[:, 0] < value_at",
        "noise[0, 0] < value_at",
        "tests/policies/test_wrappers.py::test_one_coin_for_each_environment",
    ),
    Fault(
        "D6",
        "flowrl/policies/functional.py",
        "            with policy.stream.swapped_in():  # dropout and the like draw from the policy's stream\n",
        "            if True:\n",
        "tests/policies/test_functional.py::test_the_model_trains_in_train_mode_and_acts_in_eval_mode",
    ),
    Fault(
        "Q7",
        "flowrl/policies/learning.py",
        "_checked(rate(env_steps)",
        "_checked(rate(0)",
        PPO + "test_schedules_follow_env_steps",
    ),
    Fault(
        "A1",
        "flowrl/policies/distributions.py",
        "logp = -0.5 * normal.square() - log_std - tanh_log_slope(u)",
        "logp = -0.5 * normal.square() - log_std",
        BOUNDED + "test_squashed_densities_are_torchs",
    ),
    Fault(
        "A2",
        "flowrl/policies/distributions.py",
        "return u.tanh(), logp.sum(1) - self.size",
        "return u.tanh(), logp.sum(1) - float(np.log(self.high - self.low).sum()) - self.size",
        SAC + "test_units_of_the_environment_change_nothing_but_its_actions",
    ),
    Fault(
        "A3",
        "flowrl/policies/sac.py",
        "if self.discrete else -outputs / 2",
        "if self.discrete else -outputs",
        SAC + "test_target_entropies",
    ),
    Fault(
        "A3",
        "flowrl/policies/sac.py",
        "temperature = log_temperature * (entropy - wanted)",
        "temperature = log_temperature * (wanted - entropy)",
        SAC + "test_the_temperature_rises_where_entropy_is_missing",
    ),
    Fault(
        "A4",
        "flowrl/policies/sac.py",
        "self.policy.model.log_temperature, entropy.detach()",
        "self.policy.model.log_temperature, entropy",
        SAC + "test_each_network_learns_from_its_own_terms",
    ),
    Fault(
        "A4",
        "flowrl/policies/critics.py",
        "(self.weight.detach(), self.bias.detach()) if frozen else",
        "(self.weight, self.bias) if frozen else",
        SAC + "test_each_network_learns_from_its_own_terms",
    ),
    Fault(
        "A4",
        "flowrl/policies/sac.py",
        "choosing.sample(model.actor(features.detach()), rows.noise)",
        "choosing.sample(model.actor(features), rows.noise)",
        SAC + "test_images_are_encoded_by_what_the_critics_have_learned",
    ),
    Fault(
        "A5",
        "flowrl/policies/sac.py",
        "next_action).amin(0)",
        "next_action).mean(0)",
        SAC + "test_the_continuous_loss_against_plain_networks",
    ),
    Fault(
        "A5",
        "flowrl/policies/sac.py",
        "soft = target(target.encoder(rows.next_obs)).amin(0)",
        "soft = target(target.encoder(rows.next_obs))[0]",
        SAC + "test_the_discrete_loss_against_a_loop",
    ),
    Fault(
        "A5",
        "flowrl/policies/td3.py",
        "self._next_action(rows)).amin(0)",
        "self._next_action(rows)).amax(0)",
        TD3 + "test_the_loss_against_plain_networks",
    ),
    Fault(
        "A6",
        "flowrl/policies/td3.py",
        "(given.target_noise * rows.next_noise).clamp(-limit, limit)",
        "given.target_noise * rows.next_noise",
        TD3 + "test_the_loss_against_plain_networks",
    ),
    Fault(
        "A6",
        "flowrl/policies/td3.py",
        "return (action + noise).clamp(-1, 1)",
        "return action + noise",
        TD3 + "test_the_loss_against_plain_networks",
    ),
    Fault(
        "A6",
        "flowrl/policies/td3.py",
        "        if (policy.version + 1) % policy.settings.policy_delay:\n",
        '        self.__dict__["seen"] = self.__dict__.get("seen", 0) + 1\n'
        '        if self.__dict__["seen"] % policy.settings.policy_delay:\n',
        TD3 + "test_the_actor_learns_in_every_second_update_also_after_a_resume",
    ),
    Fault(
        "P2",
        "flowrl/policies/q_actor_critic.py",
        '(each * rows["weight"]).mean()',
        "each.mean()",
        SAC + "test_the_continuous_loss_against_plain_networks",
    ),
    Fault(
        "D6",
        "flowrl/policies/torch_rng.py",
        "torch.randn(shape, generator=None if self._inside else self._generator)",
        "torch.randn(shape)",
        SAC + "test_noise_comes_from_the_policys_own_stream_and_goes_on_after_a_resume",
    ),
    Fault(
        "O1",
        "flowrl/policies/normalize.py",
        "        return ((numbers - self.mean) / self.std)",
        '        self.gather(x.cpu().numpy(), "obs")\n        return ((numbers - self.mean) / self.std)',
        NORMALIZED_PLANS + "test_evaluation_moves_no_statistics",
    ),
    Fault(
        "O1",
        "flowrl/policies/policy.py",
        'normalizer.load_waiting_state(saved.inside("waiting").get(name))',
        "pass",
        NORMALIZER + "test_a_normalizing_policy_is_one_that_is_given_normalized_numbers",
    ),
    Fault(
        "O2",
        "flowrl/policies/normalize.py",
        "within + delta**2 * share * (1 - share)",
        "within",
        NORMALIZER + "test_merged_in_any_order_they_are_those_of_all_rows",
    ),
    Fault(
        "O2",
        "flowrl/policies/normalize.py",
        "in_use.merged(self.waiting)",
        "self.waiting.merged(self.waiting)",
        NORMALIZER + "test_updating_more_often_gives_the_same_statistics",
    ),
    Fault(
        "O3",
        "flowrl/policies/policy.py",
        "if not self.returns.count:",
        "if True:",
        NORMALIZER + "test_the_first_returns_come_into_use_at_once",
    ),
    Fault(
        "D2",
        "flowrl/policies/scripted.py",
        "uniform = noise.reshape(",
        "uniform = noise[::-1].reshape(",
        "tests/policies/test_scripted.py::test_random_actions_come_from_each_environments_own_stream",
    ),
    Fault(  # a copy of the weights in place of their memory
        "F3",
        "flowrl/policies/in_numpy.py",
        "weights = weight.detach().numpy().T",
        "weights = weight.detach().numpy().T.copy()",
        IN_NUMPY + "test_it_acts_with_the_newest_weights",
    ),
    Fault(
        "F3",
        "flowrl/policies/in_numpy.py",
        "self._places != self._where()",
        "False",
        IN_NUMPY + "test_it_acts_with_the_newest_weights",
    ),
    Fault(  # what a fused optimiser writes is not counted by the tensors
        "F3",
        "flowrl/policies/in_numpy.py",
        "return [self._policy.version, *writes(self._weights)]",
        "return [*writes(self._weights)]",
        IN_NUMPY + "test_it_acts_with_the_newest_weights",
    ),
    Fault(  # nor by the version what is loaded
        "F3",
        "flowrl/policies/in_numpy.py",
        "return [self._policy.version, *writes(self._weights)]",
        "return [self._policy.version]",
        IN_NUMPY + "test_it_acts_with_the_newest_weights",
    ),
    Fault(  # a copied policy acts with the weights of the first one
        "F3",
        "flowrl/policies/policy.py",
        'return {**self.__dict__, "_in_numpy": None}',
        "return self.__dict__",
        IN_NUMPY + "test_it_acts_with_the_newest_weights",
    ),
    Fault(
        "O1",
        "flowrl/policies/normalize.py",
        "mean, std = self.mean.numpy(), self.std.numpy()",
        "mean, std = self.mean.numpy().copy(), self.std.numpy().copy()",
        IN_NUMPY + "test_it_acts_with_the_newest_statistics",
    ),
    Fault(
        "O1",
        "flowrl/policies/policy.py",
        "return (self.version, *writes(tensors))",
        "return (self.version, *(0 for tensor in tensors))",
        HOSTS + "test_statistics_ride_though_the_version_stays",
    ),
    Fault(
        "F13",
        "flowrl/policies/learning.py",
        "        if all_reduce is not None:\n            rows = all_reduce.share(rows)\n",
        "        if all_reduce is not None:\n            rows = all_reduce.share(rows)[:2]\n",
        ALIKE + "test_gradients_are_those_of_one_learner_on_the_joined_batch",
    ),
    Fault(
        "G3",
        "flowrl/policies/learning.py",
        "        rows = self.over_minibatch(rows)\n        if all_reduce is not None:\n"
        "            rows = all_reduce.share(rows)\n",
        "        if all_reduce is not None:\n"
        "            rows = all_reduce.share(rows)\n        rows = self.over_minibatch(rows)\n",
        ALIKE + "test_many_steps_are_those_of_one_learner",
    ),
    Fault(
        "D6",
        "flowrl/policies/torch_rng.py",
        "        with _one_at_a_time:\n",
        "        if True:\n",
        "tests/policies/test_streams.py::test_a_thread_waits_for_the_end_of_anothers_block",
    ),
]
