"""Faults planted in Q-learning: its networks, heads, noise, masks."""

from tests.faults.fault import Fault

APEX = "tests/policies/test_apex_policy.py::"
MASKS = "tests/networks/test_masks.py::"
DQN = "tests/policies/test_dqn_policy.py::"
HEADS = "tests/networks/test_heads.py::"
NOISY = "tests/networks/test_noisy.py::"
ABLATIONS = "tests/plans/test_ablations.py::"
NORMALIZER = "tests/networks/test_normalizer.py::"
QMIX = "flowrl/policies/qmix.py"
TEAM = "tests/policies/test_qmix_policy.py::"
MASAC = "flowrl/policies/masac.py"
CENTRAL = "tests/policies/test_masac_policy.py::"
R2D2 = "tests/policies/test_r2d2_policy.py::"
OPTIONS = "tests/policies/test_learner_options.py::"
IQN = "tests/policies/test_iqn_policy.py::"
PQN = "tests/policies/test_pqn_policy.py::"

FAULTS = [
    Fault(
        "Q14",
        "flowrl/policies/policy.py",
        '"value": masked(value, mask).max(1)}',
        '"value": masked(value, mask).mean(1)}',
        PQN + "test_targets_are_q_lambda_returns_of_a_loop",
    ),
    Fault(
        "Q14",
        "flowrl/policies/pqn.py",
        "loss = 0.5 * (q - rows.target).square().mean()",
        "loss = (q - rows.target).square().mean()",
        PQN + "test_the_loss_against_a_loop",
    ),
    Fault(
        "Q14",
        "flowrl/networks/networks.py",
        "*([nn.LayerNorm(fan_out)] if layer_norm else []), activation()",
        "activation(), *([nn.LayerNorm(fan_out)] if layer_norm else [])",
        PQN + "test_hidden_layers_are_normalized_before_their_activation",
    ),
    Fault(
        "Q13",
        "flowrl/policies/iqn.py",
        "torch.cos(levels.unsqueeze(-1)",
        "torch.sin(levels.unsqueeze(-1)",
        IQN + "test_a_quantile_at_each_level_against_a_loop",
    ),
    Fault(
        "Q13",
        "flowrl/policies/iqn.py",
        "self.policy.stream.uniform((rows, count))",
        "self.policy.stream.uniform((1, count)).repeat(rows, 0)",
        IQN + "test_each_row_has_levels_of_its_own_from_the_saved_stream",
    ),
    Fault(
        "Q13",
        "flowrl/networks/heads.py",
        "(levels[..., None] -",
        "(1 - levels[..., None] -",
        IQN + "test_it_learns_the_quantile_function",
    ),
    Fault(
        "Q12",
        "flowrl/policies/dqn.py",
        "rows.action.long())).clamp(-1, 0)",
        "rows.action.long())).clamp(-9, 0)",
        DQN + "test_munchausen_targets_against_a_loop",
    ),
    Fault(
        "Q12",
        "flowrl/policies/dqn.py",
        "- rows.discount[:, None] * tau * log_pi_t",
        "- tau * log_pi_t",
        DQN + "test_munchausen_targets_against_a_loop",
    ),
    Fault(
        "Q12",
        "flowrl/policies/dqn.py",
        "masked(q_t, action_mask(rows.next_obs)) / tau",
        "q_t / tau",
        DQN + "test_munchausen_targets_against_a_loop",
    ),
    Fault(
        "Q12",
        "flowrl/policies/iqn.py",
        "policy.target(obs_t, policy.noise()), given)",
        "head(outputs_t), given)",
        IQN + "test_munchausen_targets_prefer_by_the_levels_of_acting",
    ),
    Fault(
        "Q11",
        MASAC,
        "part_encoder(self.actor_space, space,",
        "part_encoder(space, space,",
        CENTRAL + "test_acting_leaves_the_state_out",
    ),
    Fault(
        "Q11",
        MASAC,
        "everyone = everyone * (1 - own)",
        "everyone = everyone * 1",
        CENTRAL + "test_the_loss_is_that_of_a_loop_over_agents",
    ),
    Fault(
        "Q11",
        MASAC,
        "everyone * own + everyone.detach() * (1 - own)",
        "everyone * own + everyone * (1 - own)",
        CENTRAL + "test_each_network_learns_from_its_own_part",
    ),
    Fault("Q10", QMIX, "self.last(state).abs()", "self.last(state)", TEAM + "test_the_best_of_each_is_the_best_of_all"),
    Fault(
        "Q10", QMIX, "self.first(state).abs()", "self.first(state)", TEAM + "test_the_best_of_each_is_the_best_of_all"
    ),
    Fault("Q10", QMIX, "without(space, STATE))", "space)", TEAM + "test_acting_leaves_the_state_out"),
    Fault(
        "Q1",
        QMIX,
        "policy.target.mixer",
        "policy.model.mixer",
        TEAM + "test_targets_are_those_of_a_loop_over_agents",
    ),
    Fault(
        "Q1",
        "flowrl/networks/heads.py",
        "(torch.softmax(outputs, -1) * self.support).sum(-1)",
        "torch.softmax(outputs, -1) @ self.support",
        HEADS + "test_values_are_not_rounded_in_mixed_precision",
    ),
    Fault(
        "Q2",
        "flowrl/networks/networks.py",
        "                value.copy_(learned[name])\n",
        "                pass\n",
        OPTIONS + "test_a_network_that_counts_batches_has_a_target",
    ),
    Fault(
        "Q1",
        "flowrl/policies/dqn.py",
        "q_t = policy.model(obs_t, policy.noise()) if given.double else head(outputs_t)",
        "q_t = head(outputs_t)",
        DQN + "test_masks_and_weights_in_the_loss",
    ),
    Fault(
        "Q1",
        "flowrl/policies/dqn.py",
        "return of_action(outputs_t, torch.argmax(masked(q_t, mask_t), 1))",
        "return outputs_t.amax(1)",
        HEADS + "test_losses_and_priorities_of_rows_against_a_loop",
    ),
    Fault(  # the paper's pseudocode, word by word: a target on an atom has no neighbours to go to
        "Q4",
        "flowrl/networks/heads.py",
        "    above = probabilities * (place - lower)\n",
        "    probabilities = probabilities * (place % 1 > 0)\n    above = probabilities * (place - lower)\n",
        HEADS + "test_mass_is_conserved_where_the_target_falls_on_an_atom",
    ),
    Fault(
        "Q4",
        "flowrl/networks/heads.py",
        "((returns.clamp(v_min, v_max) - v_min) / (v_max - v_min) * last).clamp(0, last)",
        "((returns - v_min) / (v_max - v_min) * last) % (last + 1)",
        HEADS + "test_the_projection_against_a_loop",
    ),
    Fault(
        "Q4",
        "flowrl/networks/heads.py",
        "moved = reward[:, None] + discount[:, None] * self.support",
        "moved = reward[:, None] + discount[:, None].clamp(min=0.5) * self.support",
        HEADS + "test_a_terminal_state_puts_all_mass_at_the_reward",
    ),
    Fault(
        "Q5",
        "flowrl/networks/heads.py",
        "(u < 0)",
        "(u > 0)",
        HEADS + "test_what_minimises_it_are_the_quantiles_of_the_samples",
    ),
    Fault(
        "Q5",
        "flowrl/networks/heads.py",
        "* huber).mean(2).sum(1)",
        "* huber).mean(1).sum(1)",
        HEADS + "test_the_quantile_huber_loss_against_a_loop",
    ),
    Fault(  # the cross entropy, which no learning makes 0
        "P2",
        "flowrl/networks/heads.py",
        "(errors - entropy).clamp(min=0)",
        "errors",
        HEADS + "test_losses_and_priorities_of_rows_against_a_loop",
    ),
    Fault(
        "Q6",
        "flowrl/policies/dqn.py",
        "policy.noise(), values=False)\n        q_t",
        "values=False)\n        q_t",
        NOISY + "test_learning_has_fresh_noise_in_every_forward",
    ),
    Fault(
        "Q6",
        "flowrl/policies/dqn.py",
        "self.eval_mode = ValueActing(self, argmax_sample())",
        "self.eval_mode = ValueActing(self, argmax_sample(), noise_draws=self.model.draws)",
        NOISY + "test_it_explores_by_its_noise_and_is_evaluated_without",
    ),
    Fault(
        "Q2",
        "flowrl/networks/networks.py",
        "value.lerp_(learned[name], tau)",
        "value.lerp_(learned[name], 1 - tau)",
        DQN + "test_target_network_moves_by_tau",
    ),
    Fault(
        "Q2",
        "flowrl/policies/dqn.py",
        "self.target = copy.deepcopy(self.model).requires_grad_(False)",
        "self.target = self.model",
        ABLATIONS + "test_without_a_target_network_values_run_away",
    ),
    Fault(
        "Q3",
        "flowrl/networks/networks.py",
        "action_mask(obs))\n            outputs =",
        "None)\n            outputs =",
        MASKS + "test_values_of_actions_against_a_loop",
    ),
    Fault(
        "Q3",
        "flowrl/networks/networks.py",
        "action_mask(obs))\n                outputs =",
        "None)\n                outputs =",
        MASKS + "test_values_of_actions_against_a_loop",
    ),
    Fault(
        "Q3",
        "flowrl/networks/masks.py",
        "mask.sum(1, keepdims=True).clip(min=1)",
        "mask.shape[1]",
        MASKS + "test_the_mean_over_valid_actions",
    ),
    Fault(
        "N6",
        "flowrl/networks/masks.py",
        "mask.sum(1, keepdims=True).clip(min=1)",
        "mask.sum(1, keepdims=True)",
        MASKS + "test_a_row_without_a_valid_action_stays_finite",
    ),
    Fault(
        "Q1",
        "flowrl/policies/dqn.py",
        "of_best(outputs_t, q_t, action_mask(obs_t))",
        "of_best(outputs_t, q_t)",
        DQN + "test_masks_and_weights_in_the_loss",
    ),
    Fault(
        "Q1",
        "flowrl/policies/r2d2.py",
        "action_mask(self.unrolled_obs(rows)))",
        "None)",
        MASKS + "test_the_target_of_r2d2_is_of_valid_actions",
    ),
    Fault(
        "N6",
        "flowrl/policies/r2d2.py",
        "        last[:-1] &= ~rows.mask[1:]\n",
        "        last[:-1] = False\n",
        R2D2 + "test_the_loss_against_a_loop",
    ),
    Fault(
        "N7",
        "flowrl/policies/r2d2.py",
        "            state = torch.where(rows.mask[0, :, None], state, state.detach())\n",
        "",
        R2D2 + "test_burn_in_carries_no_gradient",
    ),
    Fault(
        "N7",
        "flowrl/policies/r2d2.py",
        "torch.where(rows.mask[0, :, None], state, state.detach())",
        "state.detach()",
        R2D2 + "test_burn_in_carries_no_gradient",
    ),
    Fault(
        "Q1",
        "flowrl/policies/r2d2.py",
        "masked(online if given.double else target,",
        "masked(target,",
        R2D2 + "test_the_loss_against_a_loop",
    ),
    Fault(
        "P2",
        "flowrl/policies/r2d2.py",
        "priority[counts] = (target - q).detach().abs()",
        "priority[counts] = (target - q).detach()",
        R2D2 + "test_the_loss_against_a_loop",
    ),
    Fault(
        "G6",
        "flowrl/networks/networks.py",
        "masked(self.actor(features).float(), action_mask(obs))",
        "self.actor(features).float()",
        MASKS + "test_the_loss_of_ppo_against_a_loop",
    ),
    Fault(
        "G6",
        "flowrl/networks/networks.py",
        "return masked(self.actor(features), action_mask(obs)), self.critic(seen)[:, 0]",
        "return self.actor(features), self.critic(seen)[:, 0]",
        "tests/plans/test_masked_plans.py::test_other_actions_backends_and_managers",
    ),
    Fault(
        "O1",
        "flowrl/networks/networks.py",
        "if path or name != ACTION_MASK",
        "if True",
        MASKS + "test_the_mask_is_no_input_of_the_network",
    ),
    Fault(
        "P2",
        "flowrl/policies/dqn.py",
        "(errors * weight).mean()",
        "errors.mean()",
        "tests/operators/test_replay_ops.py::test_the_loss_is_the_mean_of_weighted_errors",
    ),
    Fault(
        "O1",
        "flowrl/policies/dqn.py",
        "policy.model(rows.obs, policy.noise(), values=False)",
        "policy.model(policy.model.trunk[0].normalizer(rows.obs), policy.noise(), values=False)",
        NORMALIZER + "test_the_loss_of_rows_from_replay_normalizes_them_once",
    ),
    Fault(
        "Q7",
        "flowrl/policies/apex_dqn.py",
        "self.base ** (1 + place * self.alpha)",
        "self.base ** (place * self.alpha)",
        APEX + "test_the_epsilons_are_those_of_the_paper",
    ),
]
