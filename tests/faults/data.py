"""Faults planted in batches, estimators and datasets."""

from tests.faults.fault import Fault

ADDERS = "tests/operators/test_adders.py::"
BUFFER = "tests/data/replay/test_buffer.py::"
ROLLOUT = "tests/rollout/test_worker.py::"
RETURNS = "tests/test_returns.py::"
BATCHES = "tests/operators/test_batches.py::"
UNROLLS = "tests/operators/test_unrolls.py::"
VTRACE = "tests/operators/test_v_trace.py::"
EPISODES = "tests/data/replay/test_episodes.py::"
ANY_USE = "test_any_use_is_what_the_plain_model_says"

FAULTS = [
    Fault(
        "T4",
        "flowrl/returns.py",
        "last_terminated = terminated != 0 ",
        "last_terminated = (terminated != 0) & (truncated == 0) ",
        "tests/test_returns.py::test_n_step_is_the_loop_over_windows",
    ),
    Fault(
        "T5",
        "flowrl/data/advantages.py",
        'for name in ("next_obs", "next_state")',
        'for name in ("obs", "next_state")',
        ROLLOUT + "test_values_arrived_in",
    ),
    Fault("T7", "flowrl/data/advantages.py", "ends[-1:] = True", "pass", ROLLOUT + "test_values_arrived_in"),
    Fault(
        "N1",
        "flowrl/returns.py",
        "        open_ = open_ & ~ended[i:]\n",
        "",
        "tests/test_returns.py::test_n_step_is_the_loop_over_windows",
    ),
    Fault(
        "N2",
        "flowrl/returns.py",
        "powers[steps])",
        "powers[n])",
        "tests/test_returns.py::test_n_step_is_the_loop_over_windows",
    ),
    Fault(
        "N4",
        "flowrl/returns.py",
        "(gamma**i if product is None",
        "(gamma ** (i - 1) if product is None",
        "tests/test_returns.py::test_n_step_is_the_loop_over_windows",
    ),
    Fault(
        "N5",
        "flowrl/data/replay/transitions.py",
        "window[length[0] - 1, np.arange(len(index))]",
        "window[-1]",
        BUFFER + "test_write_time_and_sample_time_windows_agree",
    ),
    Fault(
        "B5",
        "flowrl/data/replay/buffer.py",
        'self._samples = saved.count("samples")',
        "self._samples = 0",
        "tests/data/replay/test_saved.py::test_a_loaded_buffer_goes_on_alike",
    ),
    Fault(
        "T4",
        "flowrl/returns.py",
        "delta += gamma * xp.where(terminated != 0, 0, next_value) - value",
        "delta += gamma * xp.where((terminated != 0) & (truncated == 0), 0, next_value) - value",
        RETURNS + "test_gae_is_the_recursion_in_every_environment",
    ),
    Fault(
        "T5",
        "flowrl/returns.py",
        "goes_on = (terminated == 0) & (truncated == 0)",
        "goes_on = terminated == 0",
        RETURNS + "test_gae_is_the_recursion_in_every_environment",
    ),
    Fault(
        "T7",
        "flowrl/returns.py",
        "    goes_on[-1:] = False\n",
        "",
        RETURNS + "test_td_lambda_is_the_recursion_in_every_environment",
    ),
    Fault(
        "G1",
        "flowrl/data/steps.py",
        "Batch.cat(batches, axis=1)",
        "Batch.cat(batches)",
        BATCHES + "test_advantages_of_joined_fragments_are_those_of_each",
    ),
    Fault(
        "G2",
        "flowrl/data/advantages.py",
        "_with(batch, advantage, advantage + value)",
        "_with(batch, advantage, advantage - advantage.mean() + value)",
        ADDERS + "test_table_of_advantages",
    ),
    Fault(
        "N6",
        "flowrl/data/advantages.py",
        '        cut[:-1] |= used["mask"][1:] == 0\n',
        "        pass\n",
        ADDERS + "test_table_of_advantages",
    ),
    Fault(
        "M3",
        "flowrl/data/multi_agent.py",
        "for name in named if name in self}, self.env_steps, everyone)",
        "for name in named if name in self}, None, everyone)",
        "tests/data/test_multi_agent.py::test_selecting_keeps_the_env_steps",
    ),
    Fault(
        "B5",
        "flowrl/data/datasets/dataset.py",
        '(line := file.readline(LONGEST + 1)).endswith(b"\\n") or len(line) > LONGEST:',
        "line := file.readline(LONGEST + 1):",
        "tests/data/datasets/test_datasets.py::test_a_line_that_has_no_end_is_not_there",
    ),
    Fault(
        "B5",
        "flowrl/data/datasets/dataset.py",
        "for column in self.columns]) == entry.sha256",
        "for column in self.columns[:1]]) != ''",
        "tests/data/datasets/test_datasets.py::test_what_is_wrong_is_named",
    ),
    Fault(
        "B5",
        "flowrl/data/datasets/writer.py",
        "                    file.undo()\n",
        "                    pass\n",
        "tests/data/datasets/test_datasets.py::test_of_what_a_full_disk_refuses_nothing_is_left",
    ),
    Fault(
        "N6",
        "flowrl/data/datasets/dataset.py",
        "real &= column[:count] != 0",
        "pass",
        "tests/data/datasets/test_datasets.py::test_padded_steps_are_no_rows",
    ),
    Fault(
        "R7",
        "flowrl/data/steps.py",
        'copied = name in ("obs", "next_obs", "action") and bool(count.any())',
        "copied = False",
        "tests/rollout/test_games_worker.py::test_turns_that_an_agent_has_not_had_are_members_of_its_space",
    ),
    Fault(
        "N6",
        "flowrl/data/trajectories.py",
        "        pad(made, mask)\n",
        "        pass\n",
        UNROLLS + "test_any_stream_gives_its_whole_episodes",
    ),
    Fault(
        "N7",
        "flowrl/data/trajectories.py",
        "    over[:-1] |= episode_breaks(",
        "    episode_breaks(",
        UNROLLS + "test_any_stream_gives_the_windows_over_its_runs",
    ),
    Fault(
        "T8",
        "flowrl/data/trajectories.py",
        "    made: Batch = table[index]\n",
        '    made: Batch = table[index]\n    if "state" in made:\n        made["state"] = made["state"][::-1]\n',
        UNROLLS + "test_any_stream_gives_the_windows_over_its_runs",
    ),
    Fault(
        "V1",
        "flowrl/returns.py",
        "    vs *= xp.clip(ratio, None, rho_bar)\n",
        "",
        RETURNS + "test_v_trace_is_the_sum_of_the_paper",
    ),
    Fault(
        "V1",
        "flowrl/returns.py",
        "gamma * lam * xp.clip(ratio, None, c_bar)",
        "gamma * lam * xp.clip(ratio, None, rho_bar)",
        RETURNS + "test_v_trace_is_the_recursion_in_every_environment",
    ),
    Fault(
        "V1",
        "flowrl/returns.py",
        "lam * vs[1:] + (1 - lam) * value[1:]",
        "vs[1:]",
        RETURNS + "test_v_trace_is_the_recursion_in_every_environment",
    ),
    Fault(
        "V1",
        "flowrl/returns.py",
        "    advantage *= xp.clip(ratio, None, rho_pg_bar)\n",
        "",
        RETURNS + "test_v_trace_is_the_recursion_in_every_environment",
    ),
    Fault(
        "V2",
        "flowrl/returns.py",
        "    following = xp.where(terminated != 0, 0, next_value)\n",
        "    following = xp.where((terminated != 0) | (truncated != 0), 0, next_value)\n",
        RETURNS + "test_v_trace_is_the_recursion_in_every_environment",
    ),
    Fault(
        "V3",
        "flowrl/data/advantages.py",
        'columns = [used["logp"], target_logp,',
        "columns = [target_logp, target_logp,",
        VTRACE + "test_old_experience_is_that_of_the_loop_with_the_present_weights",
    ),
    Fault(
        "T5",
        "flowrl/returns.py",
        "xp.roll(lam * xp.clip(_ratio(xp, behaviour_logp, target_logp), None, 1), -1, 0)",
        "lam * xp.clip(_ratio(xp, behaviour_logp, target_logp), None, 1)",
        RETURNS + "test_retrace_is_the_recursion_in_every_environment",
    ),
    Fault(
        "H5",
        "flowrl/data/replay/episodes.py",
        "return ended & known, count",
        "return over & known, count",
        EPISODES + ANY_USE,
    ),
    Fault(
        "B8",
        "flowrl/data/replay/episodes.py",
        "return batch_size * int(self._rings",
        "return batch_size + 0 * int(self._rings",
        EPISODES + "test_the_limiter_is_asked_for_the_longest_episodes",
    ),
    Fault(
        "D19",
        "flowrl/data/datasets/hdf5.py",
        "for each in filters) > 1",
        "for each in filters) > 2",
        "tests/data/datasets/test_minari.py::test_reading_takes_what_the_file_justifies",
    ),
]
