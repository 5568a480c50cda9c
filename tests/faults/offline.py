"""Faults planted in learning without an environment."""

from tests.faults.fault import Fault

POLICIES = "tests/policies/test_offline_policies.py::"
OFFLINE = "tests/trainer/test_offline.py::"
NORMALIZED = "tests/plans/test_normalized_plans.py::"
CONTENTS = "tests/envs/test_dataset_contents.py::"
ALIKE = "tests/learners/test_all_reduce.py::"
DECISIONS = "tests/policies/test_decision_transformer.py::"
WHOLE = "tests/data/datasets/test_returns_view.py::"
RECORD = "tests/tools/test_record.py::"

FAULTS = [
    Fault(
        "G6",
        "flowrl/tools/record.py",
        '            columns["action"] = columns.pop("env_action")\n',
        "            pass\n",
        RECORD + "test_actions_are_as_the_environment_gets_them",
    ),
    Fault(
        "G6",
        "operators/datasets.py",
        "    sent = policy.for_env(drawn)\n",
        "    sent = drawn\n",
        "tests/operators/test_dataset_ops.py::test_actions_of_rollouts_are_recorded_as_the_environment_gets_them",
    ),
    Fault(
        "N6",
        "flowrl/data/datasets/open.py",
        "    real = data.real_rows()\n",
        "    real = np.arange(data.rows)\n",
        CONTENTS + "test_padding_may_be_anything",
    ),
    Fault(
        "Q1",
        "flowrl/envs/dataset_spaces.py",
        "chosen + np.cumsum([0, *choices[:-1]])",
        "chosen",
        CONTENTS + "test_actions_that_were_not_valid_are_found",
    ),
    Fault(
        "O1",
        "operators/normalize.py",
        "            self.gathered = True\n",
        "",
        NORMALIZED + "test_a_dataset_is_normalised_by_its_own_statistics",
    ),
    Fault(
        "S6",
        "flowrl/trainer/offline.py",
        'for name in ("wrappers", *how) if known.get(name)',
        "for name in how if known.get(name)",
        OFFLINE + "test_evaluation_is_in_the_wrappers_that_were_recorded",
    ),
    Fault(
        "S6",
        "flowrl/rollout/offline.py",
        "**self.origin()}}",
        '**self.origin(), "wrappers": []}}',
        OFFLINE + "test_a_run_needs_no_dataset_any_more",
    ),
    Fault(
        "A2",
        "operators/datasets.py",
        'batch.replace(action=self.workers.policy.from_env(batch["action"]))',
        "batch",
        OFFLINE + "test_actions_are_converted_exactly_once",
    ),
    Fault(
        "A2",
        "flowrl/networks/distributions.py",
        "(action - self.low) / reach(self.low, self.high) - 1",
        "action / reach(self.low, self.high)",
        OFFLINE + "test_actions_are_converted_exactly_once",
    ),
    Fault(
        "A2",
        "flowrl/networks/distributions.py",
        "log_std = log_std.clamp(*self.LOG_STD)\n        apart =",
        "apart =",
        POLICIES + "test_a_normal_choice_draws_and_judges_what_it_draws",
    ),
    Fault(
        "Q7",
        "operators/train.py",
        "get(workers.clock, 0))\n        trained",
        'get("env_steps", 0))\n        trained',
        OFFLINE + "test_schedules_follow_updates",
    ),
    Fault(
        "S6",
        "operators/evaluate.py",
        "return WorkersContract(workers).clock",
        'return "env_steps"',
        OFFLINE + "test_evaluation_is_where_it_was_recorded_or_where_one_says",
    ),
    Fault(
        "D3",
        "operators/datasets.py",
        "            self._rows = self.data.first(self.batches)\n",
        "            self._rows = self.data\n",
        WHOLE + "test_a_dataset_that_grows_is_read_as_it_was_when_an_epoch_began",
    ),
    Fault(
        "N1",
        "flowrl/data/datasets/returns_view.py",
        "        truncated[:-1] |= ~goes_on & ~terminated[:-1]\n",
        "",
        WHOLE + "test_a_missing_step_cuts_an_episode",
    ),
    Fault(
        "T6",
        "flowrl/data/datasets/returns_view.py",
        "self.data.take(self._last[rows])",
        "self.data.take(rows)",
        WHOLE + "test_windows_against_a_loop",
    ),
    Fault(
        "T6",
        "flowrl/policies/marwil.py",
        "rows.reward.float() + rows.discount * model.value(rows.next_obs)",
        "rows.reward.float()",
        POLICIES + "test_the_loss_of_marwil_against_a_loop",
    ),
    Fault(  # each learner by the advantages of its own rows
        "F13",
        "flowrl/policies/learning.py",
        "        rows = self.over_minibatch(rows)\n        if all_reduce is not None:\n"
        "            rows = all_reduce.share(rows, self.recurrent)\n",
        "        if all_reduce is not None:\n"
        "            rows = all_reduce.share(rows, self.recurrent)\n        rows = self.over_minibatch(rows)\n",
        ALIKE + "test_learning_from_a_dataset_together_is_that_of_one_learner",
    ),
    Fault(  # statistics of one minibatch instead of running ones
        "G2",
        "flowrl/policies/marwil.py",
        "mean.lerp_(advantage.square().mean(), rate)",
        "mean.copy_(advantage.square().mean())",
        POLICIES + "test_the_loss_of_marwil_against_a_loop",
    ),
    Fault(
        "A9",
        "flowrl/policies/td3_bc.py",
        "value.detach().abs().mean()",
        "value.detach().abs().sum()",
        POLICIES + "test_the_actor_of_td3_bc_against_a_loop",
    ),
    Fault(
        "A9",
        "flowrl/policies/td3_bc.py",
        "value.detach().abs().mean()",
        "value.abs().mean()",
        POLICIES + "test_the_actor_of_td3_bc_against_a_loop",
    ),
    Fault(  # each row imitates the actions of all
        "A2",
        "flowrl/policies/td3_bc.py",
        "rows.action.reshape(action.shape)",
        "rows.action",
        "tests/policies/test_bounded.py::test_what_is_learned_does_not_depend_on_how_the_numbers_are_laid_out",
    ),
    Fault(
        "A12",
        "flowrl/policies/decision_transformer.py",
        "(place > place[:, None])",
        "(place > place[:, None] + 1)",
        DECISIONS + "test_no_output_reads_its_action_or_what_comes_later",
    ),
    Fault(
        "A12",
        "flowrl/policies/decision_transformer.py",
        "length - 1 - state.t",
        "length - 2 - state.t",
        DECISIONS + "test_acting_step_by_step_is_one_forward_over_the_steps_seen",
    ),
    Fault(
        "A12",
        "flowrl/data/datasets/returns_view.py",
        "mask=at >= first",
        "mask=at >= 0",
        WHOLE + "test_sequences_against_a_loop",
    ),
    Fault(
        "A5",
        "flowrl/policies/iql.py",
        "rows.action).amin(0)",
        "rows.action).mean(0)",
        POLICIES + "test_the_loss_of_iql_against_a_loop",
    ),
    Fault(
        "T6",
        "flowrl/policies/iql.py",
        "torch.where(error < 0, 1 - tau, tau)",
        "torch.where(error < 0, tau, 1 - tau)",
        POLICIES + "test_the_loss_of_iql_against_a_loop",
    ),
    Fault(
        "Q1",
        "flowrl/policies/cql.py",
        "masked(self.policy.model(rows.obs, self.policy.noise()), action_mask(rows.obs))",
        "self.policy.model(rows.obs, self.policy.noise())",
        POLICIES + "test_the_penalty_of_discrete_cql_against_a_loop",
    ),
    Fault(
        "A1",
        "flowrl/policies/cql.py",
        "torch.logsumexp(values - logp, 2)",
        "torch.logsumexp(values, 2)",
        POLICIES + "test_the_penalty_of_continuous_cql_against_a_loop",
    ),
    Fault(
        "A4",
        "flowrl/policies/cql.py",
        "    @torch.no_grad()\n",
        "",
        POLICIES + "test_the_penalty_of_continuous_cql_against_a_loop",
    ),
    Fault(
        "A11",
        "flowrl/policies/cql.py",
        "units.sum(0).square().sum(1) - units.square().sum((0, 2))",
        "units.sum(0).square().sum(1)",
        POLICIES + "test_the_critics_of_edac_disagree_as_in_a_loop",
    ),
]
