"""Faults planted in policies and their losses."""

from tests.faults.fault import Fault

OFF_POLICY = "tests/policies/test_off_policy.py::"
APEX = "tests/policies/test_apex_policy.py::"
DQN = "tests/policies/test_dqn_policy.py::"
PPO = "tests/policies/test_ppo_policy.py::"
CHOICES = "tests/policies/test_distributions.py::"
VTRACE = "tests/operators/test_v_trace.py::"
NORMALIZER = "tests/policies/test_normalizer.py::"
NORMALIZED_PLANS = "tests/plans/test_normalized_plans.py::"
IN_NUMPY = "tests/policies/test_in_numpy.py::"
HOSTS = "tests/rollout/test_hosts.py::"
ALIKE = "tests/rollout/test_all_reduce.py::"
OPTIONS = "tests/policies/test_learner_options.py::"
EXPORT = "tests/policies/test_export.py::"
SCHEDULES = "tests/test_schedules.py::"

FAULTS = [
    Fault(
        "T6",
        "flowrl/policies/dqn.py",
        '(1.0 - batch.terminated.astype("float32"))',
        '(1.0 - (batch.terminated | batch.truncated).astype("float32"))',
        DQN + "test_truncated_rows_bootstrap_and_terminated_ones_do_not",
    ),
    Fault(
        "Q1",
        "flowrl/policies/dqn.py",
        "q_online_t if double else q_target_t\n",
        "q_target_t\n",
        DQN + "test_target_against_a_loop",
    ),
    Fault(
        "Q7",
        "flowrl/policies/policy.py",
        '                group["lr"] = rate(env_steps)\n',
        '                group["lr"] = rate(policy.version)\n',
        SCHEDULES + "test_schedules_are_functions_of_env_steps_and_the_same_after_a_resume",
    ),
    Fault(
        "Q7 of a group",
        "flowrl/policies/policy.py",
        'policy.learning_rates.get(group.get("name", ""), policy.learning_rate)',
        "policy.learning_rate",
        OPTIONS + "test_a_parameter_group_may_have_a_rate_of_its_own",
    ),
    Fault(
        "clipping",
        "flowrl/policies/clipping.py",
        "    elif norm > limit:\n",
        "    else:\n",
        OPTIONS + "test_clipping_by_norm_does_what_torch_does",
    ),
    Fault(
        "precision",
        "flowrl/policies/policy.py",
        "        with policy.mixed.forward():\n",
        "        if True:\n",
        OPTIONS + "test_bfloat16_is_for_learning_alone",
    ),
    Fault(
        "networks of one's own",
        "flowrl/policies/custom.py",
        "if shape != [2, features]:",
        "if shape == [1, features]:",
        OPTIONS + "test_a_network_that_does_not_fit_is_refused_before_any_work",
    ),
    Fault(
        "export",
        "flowrl/policies/distributions.py",
        "return given.argmax(1) + self.start",
        "return given.argmax(1)",
        EXPORT + "test_a_program_of_torch_gives_the_actions_of_the_eval_mode",
    ),
    Fault(
        "Q2",
        "flowrl/policies/networks.py",
        "value.lerp_(learned[name], tau)",
        "value.lerp_(learned[name], 1 - tau)",
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
        "Q8",
        "flowrl/policies/wrappers.py",
        "noise[:, 0] < value_at(self.epsilon",
        "noise[0, 0] < value_at(self.epsilon",
        "tests/policies/test_wrappers.py::test_one_coin_for_each_environment",
    ),
    Fault(
        "P2",
        "flowrl/policies/dqn.py",
        '(errors * rows["weight"]).mean()',
        "errors.mean()",
        "tests/operators/test_replay_ops.py::test_the_loss_is_the_mean_of_weighted_errors",
    ),
    Fault(
        "D6",
        "flowrl/policies/functional.py",
        "            with policy.stream.swapped_in():  # dropout and the like draw from the policy's stream\n",
        "            if True:\n",
        "tests/policies/test_functional.py::test_the_model_trains_in_train_mode_and_acts_in_eval_mode",
    ),
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
        "return ((log_ratio.exp() - 1) - log_ratio).mean()",
        "return (-log_ratio).mean()",
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
        "V2",
        "flowrl/policies/actor_critic.py",
        "own = batch.replace(value=value, next_value=next_value)",
        "own = batch",
        VTRACE + "test_old_experience_is_that_of_the_loop_with_the_present_weights",
    ),
    Fault(
        "G1",
        "flowrl/policies/actor_critic.py",
        "return logp.cpu().numpy().reshape(shape)",
        'return logp.cpu().numpy().reshape(shape, order="F")',
        VTRACE + "test_on_policy_it_is_gae",
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
        "flowrl/policies/dqn.py",
        "q = policy.model(rows.obs, mask_tm1)",
        "q = policy.model(policy.model.trunk[0].normalizer(rows.obs), mask_tm1)",
        NORMALIZER + "test_the_loss_of_rows_from_replay_normalizes_them_once",
    ),
    Fault(
        "O1",
        "flowrl/policies/policy.py",
        'normalizer.load_waiting_state(state["waiting"][name])',
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
    Fault(  # a copy of the weights in the place of their memory
        "F3",
        "flowrl/policies/in_numpy.py",
        "weight = module.weight.detach().numpy().T",
        "weight = module.weight.detach().numpy().T.copy()",
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
        "return [self._policy.version, *(weight._version for weight in self._weights)]",
        "return [weight._version for weight in self._weights]",
        IN_NUMPY + "test_it_acts_with_the_newest_weights",
    ),
    Fault(  # nor by the version what is loaded
        "F3",
        "flowrl/policies/in_numpy.py",
        "return [self._policy.version, *(weight._version for weight in self._weights)]",
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
        "A1",
        "flowrl/policies/distributions.py",
        "slope = 2 * (math.log(2) - action - np.logaddexp(0, -2 * action))",
        "slope = 0 * action",
        IN_NUMPY + "test_it_is_equal_to_torch_for_every_distribution",
    ),
    Fault(
        "V1",
        "flowrl/policies/appo.py",
        "self.judged(batch.to_numpy(), policy.target)",
        "self.judged(batch.to_numpy(), policy.model)",
        OFF_POLICY + "test_advantages_and_targets_against_a_loop",
    ),
    Fault(
        "V2",
        "flowrl/policies/actor_critic.py",
        "values_arrived_in(batch, value, self.policy.collect_mode.value)",
        'batch["next_value"]',
        OFF_POLICY + "test_advantages_and_targets_against_a_loop",
    ),
    Fault(
        "G7",
        "flowrl/policies/appo.py",
        'np.maximum(old, batch["logp"] - math.log(policy.old_weight))',
        'batch["logp"]',
        OFF_POLICY + "test_the_loss_of_appo_against_a_loop",
    ),
    Fault(
        "Q7",
        "flowrl/policies/apex_dqn.py",
        "self.base ** (1 + place * self.alpha)",
        "self.base ** (place * self.alpha)",
        APEX + "test_the_epsilons_are_those_of_the_paper",
    ),
    Fault(
        "Q2",
        "flowrl/policies/appo.py",
        'return {"model": self.model, "target": self.target}',
        'return {"model": self.model}',
        OFF_POLICY + "test_the_target_policy_follows_when_told_and_is_saved",
    ),
    Fault(
        "G5",
        "flowrl/policies/distributions.py",
        "wider + 0.5 * ((-2 * wider).exp() + apart.square() - 1)",
        "0.5 * ((-2 * wider).exp() + apart.square() - 1)",
        "tests/policies/test_distributions.py::test_divergences_are_torchs",
    ),
    Fault(
        "O1",
        "flowrl/policies/policy.py",
        "return (self.version, *(tensor._version for tensor in tensors))",
        "return (self.version, *(0 for tensor in tensors))",
        HOSTS + "test_statistics_ride_though_the_version_stays",
    ),
    Fault(
        "F13",
        "flowrl/policies/policy.py",
        "        if all_reduce is not None:\n            rows = all_reduce.share(rows)\n",
        "        if all_reduce is not None:\n            rows = all_reduce.share(rows)[:2]\n",
        ALIKE + "test_gradients_are_those_of_one_learner_on_the_joined_batch",
    ),
    Fault(
        "G3",
        "flowrl/policies/policy.py",
        "        rows = self.over_minibatch(self.tensors(batch))\n        if all_reduce is not None:\n"
        "            rows = all_reduce.share(rows)\n",
        "        rows = self.tensors(batch)\n        if all_reduce is not None:\n"
        "            rows = all_reduce.share(rows)\n        rows = self.over_minibatch(rows)\n",
        ALIKE + "test_many_steps_are_those_of_one_learner",
    ),
    Fault(
        "D6",
        "flowrl/policies/streams.py",
        "        with _one_at_a_time:\n",
        "        if True:\n",
        "tests/policies/test_streams.py::test_a_thread_waits_for_the_end_of_anothers_block",
    ),
]
