"""Faults planted in PPO, TRPO, APPO and the actor and critic that they share: losses, distributions, memories."""

from tests.faults.fault import Fault

OFF_POLICY = "tests/policies/test_off_policy.py::"
PPO = "tests/policies/test_ppo_policy.py::"
CHOICES = "tests/networks/test_distributions.py::"
VTRACE = "tests/operators/test_v_trace.py::"
RECURRENT_PPO = "tests/policies/test_recurrent_ppo.py::"
IN_NUMPY = "tests/networks/test_in_numpy.py::"
CENTRAL = "tests/policies/test_central_critic.py::"
TRPO = "tests/policies/test_trpo_policy.py::"

FAULTS = [
    Fault(
        "G8",
        "flowrl/policies/actor_critic.py",
        "self._encoder(self.actor_space)",
        "self._encoder(self.observation_space)",
        CENTRAL + "test_the_actor_does_not_see_what_is_privileged",
    ),
    Fault(
        "G8",
        "flowrl/policies/actor_critic.py",
        "self._encoder(self._critic_space())",
        "self._encoder(self.observation_space)",
        CENTRAL + "test_a_critic_may_read_less",
    ),
    Fault(
        "G8",
        "flowrl/policies/export.py",
        "_example(policy.actor_space)",
        "_example(policy.observation_space)",
        CENTRAL + "test_an_exported_policy_takes_what_the_actor_sees",
    ),
    Fault(
        "G9",
        "flowrl/policies/trpo.py",
        " + given.cg_damping * v",
        "",
        TRPO + "test_the_step_solves_with_the_full_fisher_matrix",
    ),
    Fault(
        "G9",
        "flowrl/policies/trpo.py",
        "math.sqrt(2 * given.max_kl / curvature)",
        "math.sqrt(given.max_kl / curvature)",
        TRPO + "test_the_step_solves_with_the_full_fisher_matrix",
    ),
    Fault(
        "G9",
        "flowrl/policies/trpo.py",
        "if tried[0] > begun[0] and tried[1] <= given.max_kl:",
        "if tried[0] > begun[0]:",
        TRPO + "test_the_first_length_that_gains_within_the_divergence_is_taken",
    ),
    Fault(
        "G9",
        "flowrl/policies/trpo.py",
        "self._move(start)",
        "pass",
        TRPO + "test_the_first_length_that_gains_within_the_divergence_is_taken",
    ),
    Fault(
        "G9",
        "flowrl/policies/trpo.py",
        "self.settings.hidden, critic)",
        "self.settings.hidden)",
        TRPO + "test_policy_and_critic_learn_apart",
    ),
    Fault(
        "G9",
        "flowrl/learners/training.py",
        "learn.over_batch(rows, all_reduce) if real",
        "{} if real",
        TRPO + "test_policy_and_critic_learn_apart",
    ),
    Fault(
        "G9",
        "flowrl/policies/trpo.py",
        "parameter.copy_(part.view_as(parameter))",
        "parameter.data = part.view_as(parameter).clone()",
        TRPO + "test_acting_in_numpy_follows_the_step",
    ),
    Fault(
        "X1",
        "flowrl/policies/trpo.py",
        "check_loss(self.policy.model, self.loss(rows)[0])",
        "check_loss(self.policy.model, torch.zeros(()))",
        TRPO + "test_a_batch_that_cannot_be_learned_from_changes_nothing",
    ),
    Fault(
        "T8",
        "flowrl/policies/recurrent_ppo.py",
        "self.policy.model(rows.obs, rows.state[0], rows.begins)",
        "self.policy.model(rows.obs, torch.zeros_like(rows.state[0]), rows.begins)",
        RECURRENT_PPO + "test_the_loss_against_a_loop",
    ),
    Fault(
        "N6",
        "flowrl/policies/recurrent_ppo.py",
        "advantage[rows.mask] = standardized(rows.advantage[rows.mask])",
        "advantage[:] = standardized(rows.advantage.flatten()).view_as(advantage)",
        RECURRENT_PPO + "test_the_loss_against_a_loop",
    ),
    Fault(
        "N6",
        "flowrl/policies/recurrent_ppo.py",
        "map(lambda column: column[rows.mask])",
        "map(lambda column: column[torch.ones_like(rows.mask)])",
        RECURRENT_PPO + "test_the_loss_against_a_loop",
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
        "operators/options.py",
        'for path in named(plan, "TrainOneStep"):\n                plan = plan.insert_after(path, UpdateKL',
        'for path in named(plan, "TrainOneStep")[:1]:\n                plan = plan.insert_after(path, UpdateKL',
        "tests/plans/test_on_policy_plans.py::test_the_weight_of_the_penalty_adapts_for_each_policy_or_is_fixed",
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
        "A1",
        "flowrl/networks/distributions.py",
        "slope: torch.Tensor = 2 * (math.log(2) - u - nn.functional.softplus(-2 * u))",
        "slope = torch.log(1 - torch.tanh(u).square())",
        CHOICES + "test_squashed_log_probabilities_are_finite_far_out",
    ),
    Fault(
        "A2",
        "flowrl/networks/distributions.py",
        " - tanh_log_slope(action).sum(1) - self.log_scale",
        " - tanh_log_slope(action).sum(1)",
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
        "A1",
        "flowrl/networks/distributions.py",
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
        'np.maximum(old, batch["logp"] - math.log(given.old_weight))',
        'batch["logp"]',
        OFF_POLICY + "test_the_loss_of_appo_against_a_loop",
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
        "flowrl/networks/distributions.py",
        "wider + 0.5 * ((-2 * wider).exp() + apart.square() - 1)",
        "0.5 * ((-2 * wider).exp() + apart.square() - 1)",
        "tests/networks/test_distributions.py::test_divergences_are_torchs",
    ),
]
