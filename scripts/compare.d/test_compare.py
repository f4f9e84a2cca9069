"""Tests of the evaluation in scripts/compare: `python3 -B -m unittest discover -s scripts/compare.d`."""

import os
import shutil
import sys
import tempfile
import unittest

import beanstalkd
import holds_driver
import kafka_batches
import nats_jetstream
import redis_streams
import whimbrel
import whimbrel_holds
from figures import Contender, Figures, Goal, Missing, Standing, promptness, rate, shown_ratio, shown_rate, table
from processes import run, serving
from rounds import Lane, reasons, report, rows_of
from services import exported, is_running

KAFKA_OUTPUT = """Warmup first 200000 records. Steady state results will print after the complete test summary.
In steady state.
282862 records sent, 56561.1 records/sec (5.39 MB/sec), 2772.7 ms avg latency, 3635.0 ms max latency.
600000 records sent, 75824.592443 records/sec (7.23 MB/sec), 2345.67 ms avg latency, 3793.00 ms max latency, 2587 ms 50th, 3701 ms 95th, 3776 ms 99th, 3788 ms 99.9th.
400000 steady state records sent, 62421.972534 records/sec (5.95 MB/sec), 3018.77 ms avg latency, 3793.00 ms max latency, 3261 ms 50th, 3727 ms 95th, 3779 ms 99th, 3788 ms 99.9th.
"""
REDIS_OUTPUT = """"test","rps","avg_latency_ms","min_latency_ms","p50_latency_ms","p95_latency_ms","p99_latency_ms","max_latency_ms"
"XADD s * payload xxx","9253.55","6.609","0.480","6.311","13.479","22.799","36.159"
"""
WHIMBREL_OUTPUT = """{"rows":[
 {"measured":"device: fdatasync of 4 KiB","figures":{"p50_us":1,"p99_us":2},"goal":"","verdict":""},
 {"measured":"publish 256 B, 64 connections","figures":{"per_second":30000.5,"p50_us":900.0,"p99_us":2100.0},"goal":"","verdict":""}],
 "remarks":["3 refused"]}"""
DRIVER_OUTPUT = (
    '{"per_second":4999.5,"p50_us":900.5,"p99_us":2100,"max_us":3000,"messages":9999,"fired_per_second":5001,"missing":0,"early":0}'
)
BEANSTALKD_OUTPUT = "OK 929\r\n---\ncurrent-jobs-delayed: 0\npid: 4711\nversion: \"1.12\"\n\r\n"


def standing(system, pairs, is_equal=True, missing=None, way="", merit=rate):
    contender = Contender(system, "", way, lambda seconds: Figures(1, 1, 1), is_equal, merit)
    rounds = [Figures(peer, 1, 1) for peer, _ in pairs]
    return Standing(contender, rounds, [Figures(ours, 1, 1) for _, ours in pairs], missing=missing)


class WhatProgramsPrint(unittest.TestCase):
    def test_kafkas_steady_state_counts_and_not_its_warming_up(self):
        self.assertEqual(kafka_batches.figures_in(KAFKA_OUTPUT), Figures(62421.972534, 3261000.0, 3779000.0))

    def test_kafkas_whole_rate_is_that_of_its_summary_and_not_of_an_interval(self):
        self.assertEqual(kafka_batches.whole_rate_in(KAFKA_OUTPUT), 75824.592443)

    def test_redis_milliseconds_become_microseconds(self):
        self.assertEqual(redis_streams.figures_in(REDIS_OUTPUT), Figures(9253.55, 6311.0, 22799.0))

    def test_whimbrels_row_is_found_by_its_name_and_its_remarks_are_kept(self):
        figures, remarks = whimbrel.figures_in(WHIMBREL_OUTPUT, "publish 256 B, 64 connections")
        self.assertEqual((figures, remarks), (Figures(30000.5, 900.0, 2100.0), ["3 refused"]))

    def test_nats_is_believed_to_sync_only_where_it_says_so(self):
        self.assertTrue(nats_jetstream.says_it_syncs('{"jetstream":{"config":{"sync_always":true}}}'))
        self.assertFalse(nats_jetstream.says_it_syncs('{"jetstream":{"config":{"sync_interval":120}}}'))

    def test_a_round_of_accepting_counts_what_was_accepted(self):
        figures, remarks = holds_driver.found_in(DRIVER_OUTPUT, "per_second")
        self.assertEqual((figures, remarks), (Figures(4999.5, 900.5, 2100.0), []))

    def test_a_round_of_firing_counts_what_came(self):
        figures, remarks = holds_driver.found_in(DRIVER_OUTPUT, "fired_per_second")
        self.assertEqual((figures, remarks), (Figures(5001.0, 900.5, 2100.0), []))

    def test_a_system_that_did_not_keep_up_is_said_to_have_had_less_to_do(self):
        _, remarks = holds_driver.found_in(DRIVER_OUTPUT.replace("4999.5", "2000"), "fired_per_second")
        self.assertEqual(remarks, ["accepted only 2000 /s of 5000"])

    def test_what_did_not_come_and_what_came_early_is_said(self):
        output = DRIVER_OUTPUT.replace('"missing":0', '"missing":3').replace('"early":0', '"early":1')
        _, remarks = holds_driver.found_in(output, "fired_per_second")
        self.assertEqual(remarks, ["3 messages had not arrived when the driver gave up", "1 MESSAGES CAME EARLY"])

    def test_beanstalkd_is_believed_to_sync_only_where_its_command_line_says_so(self):
        self.assertEqual(beanstalkd.pid_in(BEANSTALKD_OUTPUT), 4711)
        self.assertTrue(beanstalkd.syncs_always(["beanstalkd", "-b", "binlog", "-f0", ""]))
        self.assertFalse(beanstalkd.syncs_always(["beanstalkd", "-b", "binlog", "-f50", ""]))
        self.assertFalse(beanstalkd.syncs_always(["beanstalkd", "-f0", ""]))

    def test_whimbrels_address_is_in_one_line_of_its_banner(self):
        self.assertEqual(whimbrel_holds.address_in("  address   http://127.0.0.1:17698\n"), "127.0.0.1:17698")
        self.assertIsNone(whimbrel_holds.address_in("  console   http://127.0.0.1:17698/\n"))

    def test_an_answer_that_is_not_understood_is_a_reason_and_no_figure(self):
        for parse in (kafka_batches.figures_in, redis_streams.figures_in, nats_jetstream.figures_in):
            for output in ("", "Error: out of memory", "{}"):
                with self.assertRaises(Missing):
                    parse(output)
        for output in ("", "{}", DRIVER_OUTPUT.replace("4999.5", "null")):
            with self.assertRaises(Missing):
                holds_driver.found_in(output, "per_second")
        with self.assertRaises(Missing):
            beanstalkd.pid_in("OUT_OF_MEMORY\r\n")
        with self.assertRaises(Missing):
            whimbrel.figures_in(WHIMBREL_OUTPUT, "publish 256 B, 1 connections")

    def test_a_server_runs_where_its_line_has_a_process_id(self):
        self.assertTrue(is_running("nats  127.0.0.1:17622  2172  running\n"))
        self.assertFalse(is_running("nats  127.0.0.1:17622  -  stopped\n"))

    def test_addresses_are_read_as_the_shell_reads_them(self):
        found = exported("export A=127.0.0.1:1\nexport B=a\\ folder/libs\n")
        self.assertEqual(found, {"A": "127.0.0.1:1", "B": "a folder/libs"})


class WhatFollows(unittest.TestCase):
    def test_a_ratio_is_one_of_neighbours_in_time(self):
        # The device became ten times slower between the turns: the ratio of every pair is still two.
        self.assertEqual(standing("peer", [(1000, 2000), (100, 200)]).ratios(), [2, 2])

    def test_where_lateness_is_compared_half_as_late_is_twice_as_good(self):
        late = standing("peer", [(1, 1)], merit=promptness)
        late.rounds, late.whimbrel_after = [Figures(5000, 1, 4000)], [Figures(5000, 9, 2000)]
        self.assertEqual(late.ratios(), [2])

    def test_each_way_of_a_peer_has_a_verdict_of_its_own(self):
        standings = [standing("peer", [(10, 100)], way="plain"), standing("peer", [(50, 100)], way="batched")]
        judged = Goal("load", "peer", 3.0).judge(standings)
        self.assertEqual(judged, [("plain", "10.00×", "1.0×", "met"), ("batched", "2.00×", "1.0×", "missed")])

    def test_what_does_not_sync_is_not_judged(self):
        standings = [standing("peer", [(10, 100)]), standing("peer", [(1000, 100)], is_equal=False)]
        self.assertEqual(Goal("load", "peer", 3.0).judge(standings), [("", "10.00×", "1.0×", "met")])

    def test_a_goal_whose_peer_is_missing_is_neither_met_nor_missed(self):
        judged = Goal("load", "peer", 1.0).judge([standing("peer", [], missing="no such module")])
        self.assertEqual(judged, [("", "missing", "", "not measured")])

    def test_one_lucky_pair_does_not_meet_a_goal(self):
        judged = Goal("load", "peer", 2.0).judge([standing("peer", [(10, 90), (10, 11), (10, 12)])])
        self.assertEqual(judged, [("", "1.20× (1.10–9.00)", "1.0×", "missed")])

    def test_a_verdict_says_where_the_device_moved_between_the_two(self):
        moved = standing("peer", [(10, 100)])
        moved.device_moved = [1.1, 3.0]
        judged = Goal("load", "peer", 1.0).judge([moved])
        self.assertEqual(judged, [("", "10.00×", "3.0×", "met, on an unsteady device")])

    def test_several_pairs_show_their_span(self):
        self.assertEqual(shown_ratio([3.0, 1.0, 2.0]), "2.00× (1.00–3.00)")

    def test_rates_are_grouped_for_people(self):
        self.assertEqual([shown_rate(each) for each in (999, 1000, 1234567.4)], ["999", "1 000", "1 234 567"])

    def test_columns_are_as_wide_as_their_widest_cell(self):
        self.assertEqual(table(["a", "b"], [["long", "x"]]), "| a    | b |\n| ---- | - |\n| long | x |")


class TheReport(unittest.TestCase):
    def test_a_reason_that_holds_under_every_load_is_said_once(self):
        lanes = [Lane(load, None, [standing("peer", [], missing="no such module")]) for load in ("one", "many")]
        self.assertEqual(reasons(lanes), ["missing: peer, : no such module"])

    def test_a_missing_peer_keeps_its_place_in_the_table(self):
        rows = rows_of(Lane("one", None, [standing("peer", [], missing="no such module")]))
        self.assertEqual(rows, [["one", "peer", "", "", "missing", "", "", ""]])


    def test_loads_whose_figures_mean_other_things_stand_in_tables_of_their_own(self):
        lanes = [Lane("one", None), Lane("many", None), Lane("late", None, columns=("came/s", "a", "b", "c"))]
        said = report(lanes, [], [], [])
        self.assertEqual([said.count("| load | system |"), said.count("| messages/s |"), said.count("| came/s |")], [2, 1, 1])

    def test_a_goal_says_in_its_own_words_what_is_wanted(self):
        self.assertEqual(Goal("one", "peer", 2.0).wanted, "one: at least 2× peer")
        self.assertEqual(Goal("late", "peer", 1.0, words="p99 below that of peer").wanted, "late: p99 below that of peer")


class TheDriverOfHolds(unittest.TestCase):
    @unittest.skipUnless(shutil.which("go"), "it is written in Go")
    def test_its_own_tests_pass(self):
        run(["go", "test", "./..."], timeout_s=600, cwd=os.path.join(os.path.dirname(os.path.abspath(__file__)), "holds"))


class RunningPrograms(unittest.TestCase):
    def test_a_program_that_fails_is_a_reason_in_its_own_words(self):
        with self.assertRaisesRegex(Missing, "no room"):
            run([sys.executable, "-c", "import sys; sys.exit('no room')"], timeout_s=60)

    def test_a_program_that_does_not_end_is_ended(self):
        with self.assertRaisesRegex(Missing, "not done after"):
            run(["sleep", "600"], timeout_s=0.1)

    def test_a_server_serves_until_it_is_not_needed(self):
        script = "import os, time; print('pid', os.getpid(), flush=True); time.sleep(600)"
        told = lambda line: line.split()[1] if line.startswith("pid ") else None
        with serving([sys.executable, "-c", script], os.devnull, told, start_wait_s=60) as pid:
            os.kill(int(pid), 0)
        with self.assertRaises(ProcessLookupError):
            os.kill(int(pid), 0)

    def test_a_server_that_ends_at_its_start_is_a_reason_in_its_own_words(self):
        with tempfile.NamedTemporaryFile() as complaints:
            with self.assertRaisesRegex(Missing, "no room"):
                with serving([sys.executable, "-c", "import sys; sys.exit('no room')"], complaints.name, str, start_wait_s=60):
                    self.fail("it does not start")

    def test_a_server_that_says_nothing_is_ended(self):
        with self.assertRaisesRegex(Missing, "did not start"):
            with serving(["sleep", "600"], os.devnull, str, start_wait_s=0.1):
                self.fail("it does not start")

    def test_a_program_that_is_not_there_is_a_reason(self):
        with self.assertRaisesRegex(Missing, "No such file"):
            run(["whimbrel-no-such-program"], timeout_s=1)


if __name__ == "__main__":
    unittest.main()
