"""Faults planted in games and their adapters."""

from tests.faults.fault import Fault

SEATS = "flowrl/envs/games/seats.py"
ZOO = "flowrl/envs/adapters/pettingzoo.py"
BY_HAND = "tests/envs/games/test_seats.py::test_every_transition_is_that_of_an_obvious_loop"
STEADY = "tests/envs/games/test_seats.py::test_agents_who_act_in_every_step_gain_what_that_step_gave"
IN_MEMORY = "tests/envs/games/test_seats.py::test_a_game_in_memory_of_others_plays_as_in_its_own"
JOIN = "flowrl/envs/games/join_agents.py"
BY_PLAYER = "tests/envs/games/test_join_agents.py::test_a_player_follows_its_agents_through_a_game"
BY_TURN = "tests/rollout/test_games_worker.py::test_a_new_game_asks_only_whose_turn_it_is"
TEAMS = "operators/teams.py"
BY_TEAM = "tests/operators/test_teams.py::test_rows_of_a_team_are_those_of_a_loop_over_all_games"
TEAM = "flowrl/envs/games/team.py"
OF_TEAM = "tests/envs/games/test_team.py::test_a_team_sees_does_and_gains_what_its_agents_do"
LOOPS = "tests/envs/adapters/test_pettingzoo.py::"

FAULTS = [
    Fault("M1", SEATS, "kept[at] = 0.0\n            opened", "opened", BY_HAND),
    Fault("M1", SEATS, "cells[at, REWARD] = gain", "cells[at, REWARD] += gain", STEADY),
    Fault("M5", SEATS, "alike = self._steady and", "alike =", BY_HAND),
    Fault("M4", "flowrl/envs/managers/games.py", "self.steady = False\n        began", "began", BY_TURN),
    Fault("M4", SEATS, "self._table, self._row = row[TABLE], row", "self._row = row", IN_MEMORY),
    Fault("D3", SEATS, '"_row": None, "_cells"', '"_cells"', IN_MEMORY),
    Fault("M1", SEATS, "if agent in obs or agent in over]", "if agent in self._turn or agent in acting]", BY_HAND),
    Fault("M2", SEATS, "[agent for agent in obs if agent not in over] if over else list(obs)", "list(obs)", BY_HAND),
    Fault("M5", SEATS, "table[at, column], table[at, other] = 1.0, 0.0", "table[at, column] = 1.0", BY_HAND),
    Fault("M6", SEATS, "self._gained[at] += self", "self._gained[at] = self", BY_HAND),
    Fault("S5", SEATS, "table[:, :RETURN] = 0.0", "table[:, :RETURN] = table[:, SUCCESS] = 0.0", BY_HAND),
    Fault(
        "M1",
        SEATS,
        "if gain and agent in self._ended:",
        "if False:",
        "tests/envs/games/test_seats.py::test_a_game_that_breaks_its_contract_is_told_for_which_agent",
    ),
    Fault(
        "M1",
        ZOO,
        "            env.step(None)\n",
        "            break\n",
        LOOPS + "test_agents_take_turns_as_in_their_own_loop",
    ),
    Fault(
        "M2",
        ZOO,
        "there = {*map(str, self.env.agents), *ended, *cut}",
        "there = {*map(str, self.env.agents)}",
        LOOPS + "test_parallel_agents_come_and_go_as_in_their_own_loop",
    ),
    Fault(
        "M9",
        "flowrl/envs/games/wrappers.py",
        "return action[tuple(map(slice, own.shape))]",
        "return action",
        "tests/envs/games/test_game_wrappers.py::test_of_a_longer_action_an_agent_plays_its_own_part",
    ),
    Fault(
        "M9",
        "flowrl/envs/games/wrappers.py",
        "np.arange(max(own.values())) < n)",
        "np.arange(max(own.values())) <= n)",
        "tests/envs/games/test_game_wrappers.py::test_agents_of_other_sizes_become_of_one_kind",
    ),
    Fault(
        "T12",
        "flowrl/envs/games/game_infos.py",
        "{} if agent in actions else self._heard[agent]",
        "self._heard[agent]",
        "tests/envs/games/test_game_infos.py::test_every_answer_has_the_newest_numbers_since_the_action",
    ),
    Fault("M11", JOIN, "                    part.leave()", "                    pass", BY_PLAYER),
    Fault("M11", JOIN, "reward.get(of.name, 0.0) + float(gain)", "float(gain)", BY_PLAYER),
    Fault(
        "R7",
        JOIN,
        "0, space.dtype).clip(low, high)",
        "start_of(space), space.dtype)",
        "tests/envs/games/test_join_agents.py::test_who_is_not_there_observes_a_member_of_its_space",
    ),
    Fault("M14", TEAM, "reward[agent], gain) if agent in reward else gain", "0, gain)", OF_TEAM),
    Fault("M14", TEAM, "before, self._before = self._before, Turn({})", "before = Turn({})", OF_TEAM),
    Fault("M14", TEAM, "finished = not acting or not self._left", "finished = not acting", OF_TEAM),
    Fault("M14", TEAM, " and agent != WHOLE}", "}", OF_TEAM),
    Fault(
        "D6",
        TEAM,
        'f"team/{agent}"',
        '"team"',
        "tests/envs/games/test_team.py::test_the_others_act_validly_and_by_the_seed",
    ),
    Fault("M8", TEAMS, "np.lexsort((agent, step))", "np.lexsort((-agent, step))", BY_TEAM),
    Fault("M8", TEAMS, 'joint["reward"].mean(1)', 'joint["reward"].sum(1)', BY_TEAM),
    Fault(
        "R2",
        "flowrl/envs/adapters/convert.py",
        "        if agents:\n",
        "        if True:\n",
        "tests/envs/games/test_game_envs.py::test_agents_are_declared_or_have_a_reward_each",
    ),
    Fault(
        "M1",
        "flowrl/envs/adapters/by_agent.py",
        "if agent not in self._ended}",
        "}",
        "tests/envs/games/test_game_envs.py::test_dictionaries_by_agent_are_a_game",
    ),
]
