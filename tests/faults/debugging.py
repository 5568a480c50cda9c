"""Faults planted in contracts, the recorder and the replay of a failed item."""

from tests.faults.fault import Fault

CONTRACTS = "tests/operators/test_contracts.py::"
REPLAY = "tests/tools/test_post_mortem.py::"

FAULTS = [
    Fault(
        "Y1",
        "operators/contracts.py",
        "(same & (t != before[1] + 1),",
        "(same & (t < before[1] + 1),",
        CONTRACTS + "test_episodes_are_followed_as_by_a_loop",
    ),
    Fault(
        "Y1",
        "operators/contracts.py",
        "numbers.reshape(len(real), -1)[real]",
        "numbers.reshape(len(real), -1)",
        CONTRACTS + "test_a_contract_names_the_row_that_breaks_it",
    ),
    Fault(
        "Y2",
        "operators/contracts.py",
        " and not schema.words & _OUT_OF_ORDER",
        "",
        CONTRACTS + "test_contracts_stand_where_their_columns_flow",
    ),
    Fault(
        "Y3",
        "flowrl/engine/recording/recorder.py",
        "item, copy.deepcopy(item)))",
        "item, item))",
        REPLAY + "test_a_replay_gives_the_same_error",
    ),
    Fault(
        "Y3",
        "flowrl/runs/failed_item.py",
        "state, seeds, trained = before.operator, before.seeds, before.learns",
        "pass",
        REPLAY + "test_a_replay_gives_the_same_error",
    ),
    Fault(
        "Y3",
        "flowrl/runs/failed_item.py",
        "state, seeds, trained = before.operator, before.seeds, before.learns",
        "state, trained = before.operator, before.learns",
        REPLAY + "test_the_state_that_is_kept_is_that_in_which_the_operator_got_the_item",
    ),
]
