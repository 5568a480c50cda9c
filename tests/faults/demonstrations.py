"""Faults planted in what is learned from demonstrations: mixtures, phases, losses."""

from tests.faults.fault import Fault

MIXED = "tests/data/replay/test_mixture.py::"
PLANS = "tests/operators/test_mixed_plans.py::"
SOFT = "tests/policies/test_soft_q_policy.py::"
DQFD = "tests/policies/test_dqfd_policy.py::"

LEARNED = "tests/plans/test_demonstrated_plans.py::"
MIXED_IN = "test_demonstrations_are_mixed_into_a_plan_that_knows_of_none"

FAULTS = [
    Fault(
        "A2",
        "plans/sacfd.py",
        "needs=TRANSITION).for_each(PolicyActions(workers))\n",
        "needs=TRANSITION)\n",
        LEARNED + "test_rows_of_demonstrations_are_in_the_numbers_of_the_policy_and_in_every_batch",
    ),
    Fault(  # priorities of both go to one
        "P2",
        "operators/demonstrations.py",
        'plan.replace("UpdatePriorities", UpdatePriorities(mixture))',
        'plan.replace("UpdatePriorities", UpdatePriorities(mixture.parts[0]))',
        PLANS + MIXED_IN,
    ),
    Fault(
        "F11",
        "operators/demonstrations.py",
        "fresh=(fresh, 1 - fraction), demonstrations=(demonstrate.op.buffer, fraction)",
        "fresh=(fresh, fraction), demonstrations=(demonstrate.op.buffer, 1 - fraction)",
        PLANS + MIXED_IN,
    ),
    Fault(  # phases that are to give nothing do
        "F2",
        "flowrl/engine/merge.py",
        "                if self.turn not in self.output_indexes:\n                    return WORKED\n",
        "",
        PLANS + "test_some_phases_give_nothing",
    ),
    Fault(  # the same rounding in every batch
        "F11",
        "flowrl/data/replay/mixture.py",
        "owed + int(fraction * self._unit) * batch_size - share * self._unit\n",
        "0 * (owed + int(fraction) + share)\n",
        MIXED + "test_every_batch_has_the_stated_ratio_within_one_row",
    ),
    Fault(  # all that is left goes to one part
        "F11",
        "flowrl/data/replay/mixture.py",
        "        for i in order[: batch_size - sum(whole)]:\n            whole[i] += 1\n",
        "        whole[order[0] if order else 0] += batch_size - sum(whole)\n",
        MIXED + "test_every_batch_has_the_stated_ratio_within_one_row",
    ),
    Fault(
        "P4",
        "flowrl/data/replay/mixture.py",
        "                of = part == number\n",
        "                of = part >= 0\n",
        MIXED + "test_what_was_overwritten_is_dropped_by_its_part",
    ),
    Fault(
        "P2",
        "flowrl/data/replay/mixture.py",
        "                of = part == number\n",
        "                of = part != number\n",
        MIXED + "test_each_part_gets_its_own_priorities_back",
    ),
    Fault(
        "P2",
        "flowrl/data/replay/mixture.py",
        'rows["weight"] = np.ones(place, np.float32)',
        'rows["weight"] = np.zeros(place, np.float32)',
        MIXED + "test_a_part_draws_what_it_would_have_drawn_alone",
    ),
    Fault(
        "B8",
        "flowrl/data/replay/mixture.py",
        "return all(part.can_sample(share) if share else len(part) > 0 for",
        "return any(part.can_sample(share) if share else len(part) > 0 for",
        MIXED + "test_each_part_keeps_its_limiter",
    ),
    Fault(  # the columns of a batch are those of its own parts
        "F4",
        "flowrl/data/replay/mixture.py",
        "self._gives(part) if i not in drawn else set(drawn[i])",
        "set(first) if i not in drawn else set(drawn[i])",
        MIXED + "test_all_batches_have_the_same_columns",
    ),
    Fault(
        "D3",
        "flowrl/data/replay/mixture.py",
        "        self._owed = list(owed)\n",
        "",
        MIXED + "test_restored_it_goes_on_as_it_would_have",
    ),
    Fault(
        "F2",
        "flowrl/engine/merge.py",
        "            self.inputs[self.turn].release()\n            self.turn += 1\n",
        "            self.inputs[self.turn].release()\n            self.turn += 2\n",
        PLANS + "test_a_phase_begins_when_the_one_before_has_ended",
    ),
    Fault(
        "F8",
        "flowrl/engine/merge.py",
        "        if branch == self.turn:\n            return self.inputs[branch].stuck()\n",
        "",
        PLANS + "test_what_waits_is_the_phase_that_runs",
    ),
    Fault(
        "F8",
        "flowrl/inspect/check.py",
        "id(other) in alive and not self._later(other, reader)",
        "id(other) in alive",
        PLANS + "test_check_sees_phases_that_cannot_begin_or_end",
    ),
    Fault(
        "F8",
        "flowrl/inspect/check.py",
        "            ends = [ends[i] for i in each.op.output_indexes]\n",
        "            pass\n",
        PLANS + "test_check_sees_phases_that_cannot_begin_or_end",
    ),
    Fault(
        "F2",
        "operators/datasets.py",
        "at_most = len(data) if batch_size is None else None",
        "at_most = None",
        PLANS + "test_a_dataset_that_grows_is_what_it_was_when_the_plan_was_made",
    ),
    Fault(
        "H4",
        "operators/demonstrations.py",
        "        return batch.replace(**{self.column: np.full(batch.shape[:axes], self.value, dtype)})\n",
        "        batch[self.column] = np.full(batch.shape[:axes], self.value, dtype)\n        return batch\n",
        PLANS + "test_a_column_is_filled_and_the_batch_left_alone",
    ),
    Fault(
        "T6",
        "operators/demonstrations.py",
        'np.where(batch["terminated"], 0, self.gamma)',
        'np.where(batch["terminated"] | batch["truncated"], self.gamma, self.gamma)',
        PLANS + "test_one_step_is_kept_beside_the_window",
    ),
    Fault(
        "Q1",
        "flowrl/policies/soft_q.py",
        "temperature * torch.logsumexp(masked(q, mask) / temperature, 1)",
        "temperature * torch.logsumexp(q / temperature, 1)",
        SOFT + "test_invalid_actions_have_no_part_in_a_soft_value",
    ),
    Fault(
        "Q1",
        "flowrl/policies/soft_q.py",
        "policy.target(rows.next_obs",
        "policy.model(rows.next_obs",
        SOFT + "test_the_loss_of_soft_q_learning_against_a_loop",
    ),
    Fault(
        "Q8",
        "flowrl/networks/sampling.py",
        "(value - best) / self.temperature",
        "(value - best) * self.temperature",
        SOFT + "test_it_acts_as_often_as_the_soft_policy_says",
    ),
    Fault(
        "Q1",
        "flowrl/policies/dqfd.py",
        "masked(q + others, mask).amax(1)",
        "(q + others).amax(1)",
        DQFD + "test_the_margin_against_a_loop",
    ),
    Fault(
        "T6",
        "flowrl/policies/dqfd.py",
        "self.target(one_step), self.target(rows)",
        "self.target(rows), self.target(rows)",
        DQFD + "test_the_loss_against_a_loop",
    ),
]
