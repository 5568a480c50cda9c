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
        RUNS + "test_an_error_keeps_its_type_and_gains_one_note",
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
        "name: copy.deepcopy(getattr(op, name))",
        "name: getattr(op, name)",
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
