"""Faults planted in journals, and in what follows them."""

from tests.faults.fault import Fault

ENGINE = "tests/engine/recording/test_journal.py::"
RERUN = "tests/tools/test_rerun.py::"

FAULTS = [
    Fault(
        "J1",
        "flowrl/engine/workers/gather.py",
        "return [(by_place[place], died) for place, died in settles]",
        "return [(by_place[max(by_place) if decisions.replays else place], died) for place, died in settles]",
        ENGINE + "test_what_arrived_and_who_died_comes_again_in_one_process",
    ),
    Fault(
        "J1",
        "flowrl/engine/workers/gather.py",
        "if died and not isinstance(error, WorkerDied):",
        "if False and not isinstance(error, WorkerDied):",
        ENGINE + "test_what_arrived_and_who_died_comes_again_in_one_process",
    ),
    Fault(
        "J1",
        "flowrl/engine/recording/journal.py",
        "self._answer(point, self._empty.pop(point, 0), seen)",
        "self._answer(point, self._empty.pop(point, 0) and 0, seen)",
        ENGINE + "test_entries_are_as_documented",
    ),
    Fault(
        "J1",
        "flowrl/engine/run.py",
        "if not loaded or state is None:",
        "if True:",
        ENGINE + "test_a_resumed_run_comes_again_in_one_process",
    ),
    Fault(
        "J1",
        "flowrl/envs/managers/subprocess.py",
        "self._crew.lose(env_id, during, kind)",
        "pass",
        RERUN + "test_it_comes_out_the_same_bit_for_bit",
    ),
    Fault(
        "J1",
        "flowrl/rollout/worker.py",
        "self.manager.follow(self.parts[key].context.decisions)",
        "pass",
        RERUN + "test_it_comes_out_the_same_bit_for_bit",
    ),
    Fault(
        "J2",
        "flowrl/engine/recording/journal.py",
        "(noted == digest & 0xFFFF or not self.compares)",
        "True",
        ENGINE + "test_the_operator_that_no_seed_determines_is_named_with_its_item",
    ),
    Fault(
        "J2",
        "flowrl/engine/recording/journal.py",
        "if expected != path and self._place(expected) > self._place(path):",
        "if False:",
        ENGINE + "test_what_emits_no_item_where_there_was_one_is_named",
    ),
    Fault(
        "J3",
        "flowrl/engine/recording/journal.py",
        "with suppress(EOFError):  # of a run that was killed",
        "with suppress(KeyError):",
        ENGINE + "test_a_journal_that_was_cut_off_is_followed_up_to_its_last_whole_entry",
    ),
    Fault(
        "J4",
        "flowrl/tools/rerun.py",
        "if then != now and not self.tolerance:",
        "if False:",
        RERUN + "test_published_numbers_come_out_without_a_journal",
    ),
    Fault(
        "J4",
        "flowrl/tools/rerun.py",
        "        if then is not None and then != now:\n",
        "        if False:\n",
        RERUN + "test_published_numbers_come_out_without_a_journal",
    ),
    Fault(
        "J4",
        "flowrl/tools/rerun.py",
        "share = self.tolerance if by_return else 0.0",
        "share = 1.0",
        RERUN + "test_elsewhere_they_come_out_within_a_tolerance",
    ),
    Fault(
        "J3",
        "flowrl/storage/journal.py",
        "                self._file.truncate(size)\n",
        "",
        "tests/storage/test_journal_file.py::test_what_was_written_can_be_read_after_a_kill",
    ),
    Fault(
        "D19",
        "flowrl/storage/journal.py",
        "stream.decompress(rest, left + 1)",
        "stream.decompress(rest)",
        "tests/storage/test_journal_file.py::test_a_small_file_takes_little_memory",
    ),
    Fault(
        "D19",
        "flowrl/engine/recording/journal.py",
        "**dict.fromkeys(_LISTS, 0)",
        "**dict.fromkeys(_LISTS, -1)",
        "tests/storage/test_journal_file.py::test_a_small_file_takes_little_memory",
    ),
    Fault(
        "J3",
        "flowrl/runs/kept.py",
        "if earlier is None or not earlier.has_checkpoint or is_current(file):",
        "if True:",
        RERUN + "test_a_run_whose_journal_has_another_version_goes_on_without_it",
    ),
    Fault(
        "E14",
        "flowrl/storage/files.py",
        "lambda text: json.loads(text, parse_int=_whole)",
        "json.loads",
        "tests/storage/test_files.py::test_a_number_that_no_reader_could_count_with_is_refused",
    ),
    Fault(
        "E14",
        "flowrl/storage/files.py",
        "if len(line) > LARGEST:",
        "if False:",
        "tests/storage/test_files.py::test_a_line_without_end_is_not_read",
    ),
    Fault(
        "X4",
        "flowrl/settings.py",
        "type(each) is int and each > most",
        "False",
        "tests/cli/test_settings.py::test_every_whole_number_of_a_plan_has_a_most",
    ),
    Fault(
        "X4",
        "flowrl/runs/config.py",
        "if abs(value) >= LARGEST:",
        "if False:",
        "tests/cli/test_settings.py::test_a_number_that_no_setting_takes_is_refused_in_a_line",
    ),
]
