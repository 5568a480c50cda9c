"""Faults planted in workers that play games, and in what is made of their rows."""

from tests.faults.fault import Fault

GAMES = "flowrl/envs/managers/games.py"
WORKER = "flowrl/rollout/games_worker.py"
PLAYERS = "flowrl/rollout/players.py"
OVER = "tests/rollout/test_games_worker.py::"
SETS = "tests/rollout/test_game_worker_set.py::"
LEAGUE = "tests/rollout/test_league.py::"
ADDERS = "tests/operators/test_game_fragments.py::"

HIERARCHY = "tests/envs/games/test_hierarchy.py::"
ROWS = HIERARCHY + "test_rows_of_both_parts_are_those_of_a_loop_over_env_steps"
ESTIMATORS = HIERARCHY + "test_estimators_take_the_discounts_of_rows_in_place_of_gamma"

FAULTS = [
    Fault("M10", WORKER, "np.count_nonzero(timed)", "self.manager.num_envs", ROWS),
    Fault("M10", "flowrl/envs/games/seats.py", "self._discount[at] * gain", "gain", ROWS),
    Fault("M10", "flowrl/data/advantages.py", "of_each = discounts(batch, gamma)", "of_each = gamma", ESTIMATORS),
    Fault("M10", "operators/adders.py", "gamma=discounts(rows, self.gamma), n", "gamma=self.gamma, n", ESTIMATORS),
    Fault(
        "M4",
        "flowrl/data/datasets/dataset.py",
        "                real &= np.isin(column[:count], self._numbers)\n",
        "                real &= np.isin(column[:count], [0])\n",
        "tests/data/datasets/test_game_datasets.py::test_a_recording_names_the_agents_and_is_read_of_some_alone",
    ),
    Fault(
        "M4",
        "flowrl/envs/managers/local.py",
        "arrived[:] = written",
        "arrived[:1] = written[:1]",
        OVER + "test_every_row_is_that_of_an_obvious_loop",
    ),
    Fault(
        "M5",
        "flowrl/rollout/acting.py",
        "self._sent, self._borrowed = _copies(self._sent), False\n        num_envs",
        "self._borrowed = False\n        num_envs",
        OVER + "test_what_a_policy_answers_is_not_written_to",
    ),
    Fault(
        "M5",
        "flowrl/data/replay/agent_runs.py",
        "        goes_on = ~ended & ~newest\n",
        "        goes_on = ~ended & ~newest & (rows['count'] == 0)\n",
        ADDERS + "test_replayed_sequences_and_episodes_are_those_of_whole_games",
    ),
    Fault(
        "M4",
        WORKER,
        "np.count_nonzero(timed)",
        'stepped.next_obs["seats"][..., 1].sum()',
        OVER + "test_every_row_is_that_of_an_obvious_loop",
    ),
    Fault(
        "M4",
        "flowrl/data/columns.py",
        'STREAM = ("worker", "env_id", "agent")',
        'STREAM = ("worker", "env_id")',
        ADDERS + "test_episodes_are_the_whole_ones_of_each_seat",
    ),
    Fault(
        "M4",
        "operators/rollout.py",
        "sum(not episode.agent for episode in episodes)",
        "len(episodes)",
        SETS + "test_results_have_the_returns_of_games_and_of_their_agents",
    ),
    Fault(
        "M5",
        WORKER,
        "        if wait is not None and not count_all:\n",
        "        if wait is not None:\n",
        OVER + "test_a_fault_costs_one_game",
    ),
    Fault(
        "M5",
        WORKER,
        "< written",
        "<= written",
        OVER + "test_every_row_is_that_of_an_obvious_loop",
    ),
    Fault(
        "T8",
        GAMES,
        "self.t[game], self._episode[game] = 0, ",
        "self._episode[game] = ",
        OVER + "test_every_row_is_that_of_an_obvious_loop",
    ),
    Fault(
        "S2",
        WORKER,
        "missing, before = shares_of(episodes, self.manager.num_envs)",
        "missing, before = shares_of(episodes, self.manager.num_envs)[::-1].copy()",
        OVER + "test_whole_games_in_fixed_shares",
    ),
    Fault(
        "N6",
        "flowrl/data/trajectories.py",
        "max(last - 1, first)",
        "last - 1",
        ADDERS + "test_a_fragment_in_which_nobody_of_a_seat_acts_is_nothing_to_it",
    ),
    Fault(
        "M7",
        PLAYERS,
        "Match(game, int(self.games.games.episode_id[game]), self._group)",
        "Match(game, 0, self._group)",
        OVER + "test_every_row_is_that_of_an_obvious_loop",
    ),
    Fault(
        "T13",
        PLAYERS,
        "player.plays and player.actor.hears",
        "False",
        OVER + "test_every_row_is_that_of_an_obvious_loop",
    ),
    Fault(
        "M7",
        WORKER,
        "        self._players.assign_all(matches)\n",
        "",
        OVER + "test_a_game_resumes_in_the_middle",
    ),
    Fault(
        "D2",
        PLAYERS,
        "seats.env_id * len(games.seating.agents) + seats.agent",
        "seats.env_id",
        OVER + "test_noise_belongs_to_the_seat",
    ),
    Fault(
        "F3",
        "flowrl/rollout/remote_groups.py",
        "if new is not None and self._sent.get((process, name)) != broadcast.number:",
        "if new is not None:",
        SETS + "test_only_the_weights_that_changed_are_sent",
    ),
    Fault(
        "S2",
        "flowrl/rollout/evaluation.py",
        "[*played, *_of_agents(of_agents, played)]",
        "[*played, *of_agents]",
        SETS + "test_evaluation_plays_the_games_that_an_obvious_loop_plays",
    ),
    Fault(
        "L1",
        "flowrl/rollout/league.py",
        "            if first == second or not {first, second} <= self.ratings.keys():",
        "            if not {first, second} <= self.ratings.keys():",
        LEAGUE + "test_elo_and_rates_by_hand",
    ),
    Fault(
        "L1",
        GAMES,
        "        drained, self.results = self.results, []",
        "        drained = list(self.results)",
        LEAGUE + "test_each_game_counts_once",
    ),
    Fault(
        "L2",
        PLAYERS,
        "        for game, playing in enumerate(matches or ()):\n            self._seat(game, playing)\n",
        "        began = range(self.games.num_envs)\n",
        LEAGUE + "test_the_odds_of_running_matches_change_nothing",
    ),
    Fault(
        "L3",
        PLAYERS,
        "any(each.policy == name and not each.learns for each in match)",
        "False",
        LEAGUE + "test_only_the_learner_of_a_match_learns_from_it",
    ),
    Fault(
        "L3",
        PLAYERS,
        "match = [MatchPlayer(*each) for each in playing]",
        "match = [MatchPlayer(*each[:2]) for each in playing]",
        LEAGUE + "test_only_the_learner_of_a_match_learns_from_it",
    ),
    Fault(
        "L4",
        "flowrl/rollout/league.py",
        "            if kept is None:\n",
        "            if True:\n",
        LEAGUE + "test_a_learner_begins_anew_as_the_run_began",
    ),
    Fault(
        "L4",
        "flowrl/rollout/league.py",
        'policy.load_state_dict({**self._first[learner], "version": policy.version + 1})',
        'policy.load_weights(self._first[learner]["modules"]["model"])',
        LEAGUE + "test_a_learner_begins_anew_as_the_run_began",
    ),
    Fault(
        "D2",
        "flowrl/rollout/match_making.py",
        "match/{match.group}/{match.env_id}",
        "match/{match.env_id}",
        LEAGUE + "test_matches_are_drawn_by_the_odds_and_from_both_sides",
    ),
]
