"""Faults planted in environment managers."""

from tests.faults.fault import Fault

ENVS = "tests/envs/"
MASKS = ENVS + "test_action_masks.py::"
THREADS = "tests/envs/managers/test_thread.py::"
SPACES = "flowrl/envs/spaces.py"
DICTS = "tests/rollout/test_dict_observations.py::"
HOSTED = "flowrl/envs/managers/env_runner.py"
PROCESS = "flowrl/envs/managers/supervisor.py"
CREW = "flowrl/envs/managers/supervisor.py"
SUBPROCESS = "tests/envs/managers/test_subprocess.py::"
ANSWERS = "tests/envs/managers/test_async_subprocess.py::"
FAULTY = "tests/envs/managers/test_subprocess_faults.py::"
PROCESSES = "tests/envs/managers/test_processes.py::"

UNUSABLE = ENVS + "managers/test_unusable_numbers.py::"

FAULTS = [
    Fault(
        "T4",
        "flowrl/envs/adapters/dm_env.py",
        "over and discount == 0, over and discount != 0",
        "over, False",
        ENVS + "adapters/test_dm_env.py::test_a_last_step_terminates_by_a_discount_of_0_and_is_truncated_by_any_other",
    ),
    Fault(
        "R4",
        "flowrl/envs/wrappers.py",
        "(ends and not says)",
        "False",
        "tests/envs/managers/test_owned_handles.py::test_what_runs_is_not_disturbed_and_what_cannot_be_saved_is_cut",
    ),
    Fault(
        "D11",
        "flowrl/envs/managers/base.py",
        "    stream.advance(episode)\n",
        "    stream.advance(episode + 1)\n",
        "tests/rollout/test_groups.py::test_the_seed_of_an_episode_can_be_told_afterwards",
    ),
    Fault(
        "D11",
        "flowrl/rollout/groups.py",
        "split_seed(attrs.evolve(self, life=life)._seed())\n        return episode_seed",
        "split_seed(self._seed())\n        return episode_seed",
        "tests/rollout/test_groups.py::test_the_seed_of_an_episode_can_be_told_afterwards",
    ),
    Fault(
        "F10",
        "flowrl/envs/make.py",
        "made.way_out = self._way_out()",
        "self._way_out()",
        "tests/cli/test_env_options.py::test_an_error_of_an_environment_is_three_lines",
    ),
    Fault(
        "F10",
        PROCESS,
        "self.left_at = self._trace.read()",
        "self._trace.read()",
        FAULTY + "test_a_fault_says_what_happened_to_whom",
    ),
    Fault(
        "X2",
        "flowrl/data/finite.py",
        " and flat.item(flat.argmax()) <= LARGEST",
        "",
        UNUSABLE + "test_in_this_process_it_ends_the_run",
    ),
    Fault(
        "X2",
        "flowrl/envs/managers/env_runner.py",
        "if not -LARGEST <= reward <= LARGEST:",
        "if reward != reward:",
        UNUSABLE + "test_it_costs_an_episode_like_any_fault",
    ),
    Fault(
        "T2",
        "flowrl/envs/masks.py",
        "_as_mask(last[ACTION_MASK][env_id], self._masks[env_id].shape)",
        "self._masks[env_id]",
        MASKS + "test_masks_of_info_are_those_of_the_observation",
    ),
    Fault(
        "T12",
        "flowrl/envs/infos.py",
        'columns = self._columns(infos.get("final_info", {}), ended)',
        "columns = self._columns(infos, ended)",
        "tests/envs/test_infos.py::test_every_row_has_the_numbers_of_its_own_step",
    ),
    Fault(
        "T10",
        "flowrl/envs/infos.py",
        "infos[key][env_id] if there[env_id] else None",
        "infos[key][env_id] if key in infos else None",
        "tests/envs/test_infos.py::test_every_row_has_the_numbers_of_its_own_step",
    ),
    Fault(
        "T3",
        "flowrl/envs/masks.py",
        "np.ones(self.num_envs, np.bool_) if began is None else began",
        "np.ones(self.num_envs, np.bool_)",
        MASKS + "test_masks_of_info_are_those_of_the_observation",
    ),
    Fault(
        "T1",
        "flowrl/rollout/acting.py",
        "if env_id in manager.ready_obs:",
        "if True:",
        MASKS + "test_masks_of_info_are_those_of_the_observation",
    ),
    Fault(
        "T2",
        "flowrl/envs/managers/vector.py",
        "arrived[env_id] = self._final_obs(env_id, infos)",
        "pass",
        "tests/envs/managers/test_manager_contract.py::test_every_row_is_a_transition_of_its_own_environment",
    ),
    Fault(
        "T3",
        "flowrl/envs/managers/vector.py",
        'options={"reset_mask": mask.copy()}',
        "options=None",
        "tests/envs/managers/test_manager_contract.py::test_all_modes_give_the_same_sequences",
    ),
    Fault(
        "T9",
        "flowrl/envs/managers/env_runner.py",
        "if inner is not None and inner.episode_lengths > 0:",
        "if False:",
        "tests/envs/managers/test_local.py::test_a_lost_life_is_no_episode_end_for_the_statistics",
    ),
    Fault(
        "S1",
        "flowrl/envs/managers/local.py",
        "returns[env_id] += float(gain)",
        "returns[env_id] += min(1.0, gain)",
        "tests/envs/managers/test_manager_contract.py::test_episodes_are_numbered_and_summed_up",
    ),
    Fault(
        "T11",
        "flowrl/envs/managers/async_subprocess.py",
        "ready = self._idle() if wait is None else self._idle() & ~wait",
        "ready = self._idle()",
        "tests/envs/managers/test_conformance.py::test_environments_that_are_told_to_wait_keep_their_place",
    ),
    Fault(
        "T11",
        "flowrl/envs/managers/env_thread.py",
        "self._host.cut_off()",
        "pass",
        THREADS + "test_what_an_abandoned_thread_still_gives_is_ignored",
    ),
    Fault(
        "F15",
        "flowrl/envs/managers/env_thread.py",
        "self._host.close_from_outside()",
        "pass",
        THREADS + "test_one_that_closing_frees_is_not_named",
    ),
    Fault(
        "B6",
        SPACES,
        "zeros((num_envs, *shape), dtype)",
        "zeros((num_envs, *shape), np.float32 if dtype == np.uint8 else dtype)",
        DICTS + "test_dtypes_are_kept",
    ),
    Fault(
        "T2",
        SPACES,
        "    if row is other:\n        return what\n",
        '    if other:\n        return ""\n',
        ENVS + "test_spaces.py::test_environments_that_reuse_dictionary_and_arrays",
    ),
    Fault(
        "T3",
        SPACES,
        "into[only] = given[only]",
        "into[:] = given[::-1]",
        ENVS + "test_spaces.py::test_all_modes_give_the_same_sequences",
    ),
    Fault(
        "D3",
        SPACES,
        "store.map(np.copy).to_dict()",
        "store.to_dict()",
        ENVS + "test_spaces.py::test_a_resumed_manager_goes_on_as_if_nothing_happened",
    ),
    Fault(
        "S1",
        "flowrl/envs/wrapping.py",
        "        env = RawRecorder(env)\n",
        "        pass\n",
        ENVS + "test_wrapping.py::test_returns_are_raw_whatever_the_wrappers_do_to_rewards",
    ),
    Fault(  # the end that a wrapper above the recorder decides
        "S1",
        "flowrl/envs/managers/env_runner.py",
        "if (found := recorded(inner, info)) is not None:",
        "if (found := None if running(inner)[1] else recorded(inner, info)) and not isinstance(inner, Recording):",
        ENVS + "test_wrapping.py::test_returns_are_raw_where_a_wrapper_cuts_the_episode",
    ),
    Fault(
        "T4",
        "flowrl/envs/adapters/gym.py",
        'bool(info.get("TimeLimit.truncated", False))',
        "False",
        "tests/envs/adapters/test_gym.py::test_the_older_interface_says_how_an_episode_ended",
    ),
    Fault(
        "D6",
        "flowrl/envs/adapters/gym.py",
        "                self.env.seed(seed)\n",
        "                pass\n",
        "tests/envs/adapters/test_gym.py::test_the_older_interface_is_seeded_before_every_episode",
    ),
    Fault(
        "S3",
        "flowrl/envs/make.py",
        '{"episode_seeds": None, "info_keys": ()}',
        '{"info_keys": ()}',
        "tests/rollout/test_environments.py::test_seeds_of_episodes_from_the_configuration",
    ),
    Fault(
        "F1",
        "flowrl/envs/make.py",
        "            if not self.is_one_object:\n                first.close()\n",
        "            pass\n",
        "tests/rollout/test_environments.py::test_spaces_come_from_one_environment_that_is_closed_again",
    ),
    Fault(
        "T3",
        "flowrl/envs/managers/subprocess.py",
        "        self._next_episode(env_id)\n        self._draw_seed(env_id)\n",
        "        self._next_episode(env_id)\n",
        SUBPROCESS + "test_rows_are_those_of_the_manager_in_this_process",
    ),
    Fault(
        "T11",
        "flowrl/envs/managers/async_subprocess.py",
        "                    answered[process.env_ids] = False\n",
        "                    continue\n",
        ANSWERS + "test_only_answers_are_handed_out_and_only_the_ready_act",
    ),
    Fault(
        "D3",
        "flowrl/envs/managers/async_subprocess.py",
        '            "arrived": plain_copy(x.stores[0]),\n',
        '            "arrived": plain_copy(x.stores[1]),\n',
        ANSWERS + "test_a_state_keeps_the_answers_that_were_due",
    ),
    Fault(
        "F10",  # the time limit is that of one environment
        HOSTED,
        "self._since[host] = time.monotonic()  #",
        "pass  #",
        FAULTY + "test_the_time_limit_is_that_of_one_environment",
    ),
    Fault(
        "F10",  # who shared the process is cut too
        "flowrl/envs/managers/base.py",
        "self._cut([env_id, *collateral])",
        "self._cut([env_id])",
        FAULTY + "test_a_fault_says_what_happened_to_whom",
    ),
    Fault(
        "F10",
        "flowrl/envs/managers/faults.py",
        "if len(since) <= self.max_retry:",
        "if len(since) <= self.max_retry + 1:",
        FAULTY + "test_max_retry_bounds_the_faults_of_one_episode",
    ),
    Fault(
        "F10",
        CREW,
        'if failure.during == "reset":',
        "if False:",
        "tests/envs/managers/test_fault_matrix.py::test_a_failed_reset_makes_the_environment_anew",
    ),
    Fault(
        "F15",
        "flowrl/envs/managers/children.py",
        "self._pids |= _children",
        "_children",
        "tests/envs/managers/test_children.py::test_one_that_stays_is_named_and_nothing_is_killed",
    ),
    Fault(
        "F15",
        PROCESS,
        "        _kill_all(ours)\n",
        "        pass\n",
        PROCESSES + "test_environments_are_closed_with_a_deadline",
    ),
    Fault(
        "F15",
        "flowrl/interrupts.py",
        "fcntl.fcntl(lifeline, fcntl.F_SETSIG, signal.SIGKILL)",
        "return",
        PROCESSES + "test_processes_die_with_their_parent_even_inside_c_code",
    ),
    Fault(
        "F15",
        PROCESS,
        "after_in_child=_forget)",
        "after_in_child=list)",
        PROCESSES + "test_a_fork_does_not_keep_the_processes_alive",
    ),
    Fault(
        "F10",
        "flowrl/envs/managers/worker_main.py",
        "after_in_child=orders.close)",
        "after_in_child=list)",
        FAULTY + "test_a_crash_is_seen_at_once_though_a_fork_lives_on",
    ),
    Fault(
        "W1",
        PROCESS,
        "    if not ours:\n",
        "    if ours is None:\n",
        "tests/test_platforms.py::test_plans_train_with_what_the_platform_has",
    ),
    Fault(
        "W1",
        PROCESS,
        'asked or ("fork" if',
        'asked or ("fork" if "darwin" or',
        "tests/test_platforms.py::test_plans_train_with_what_the_platform_has",
    ),
    Fault(
        "R8",
        PROCESS,
        "and not loaded else",
        "else",
        "tests/envs/managers/test_start_method.py::test_a_program_that_would_run_again_is_refused",
    ),
    Fault(
        "W1",
        PROCESS,
        'if sys.platform == "win32":\n        raise',
        'if sys.platform == "windows":\n        raise',
        "tests/test_platforms.py::test_what_windows_lacks_is_refused_with_the_way_out",
    ),
    Fault(
        "F15",
        "flowrl/envs/managers/subprocess.py",
        "after_in_child=_disown)",
        "after_in_child=list)",
        PROCESSES + "test_a_fork_may_not_step",
    ),
    Fault(
        "F15",
        PROCESS,
        "    except BaseException:\n        for process in processes:\n",
        "    except BaseException:\n        for process in ():\n",
        PROCESSES + "test_a_second_ctrl_c_does_not_stop_the_closing",
    ),
    Fault(
        "D3",  # what fails as a state is loaded is none of its episodes
        "flowrl/envs/managers/base.py",
        "        self._prepare_to_load()\n        obs[:] = held\n",
        "        obs[:] = held\n",
        SUBPROCESS + "test_what_fails_while_a_state_is_loaded_is_no_part_of_it",
    ),
    Fault(
        "S1",
        "flowrl/envs/managers/vector.py",
        "        self.t[env_ids], self._return[env_ids] = 0, 0.0\n",
        "        self.t[env_ids] = 0\n",
        "tests/envs/managers/test_vector.py::test_episodes_of_a_native_environment_are_those_of_a_loop",
    ),
]
