"""The common part of every comparison: arguments, pairs of rounds, their tables, and the cleanup.

A round of Whimbrel under the same load follows each round of a peer, and the device is probed before each, so that a ratio compares
adjacent rounds. An unavailable peer never stops the run. A missed goal is printed and is no failure: a figure of one run on one
machine is no proof.
"""

import argparse
import os
import platform
import signal
import sys
import tempfile
from dataclasses import dataclass, field
from typing import Callable, List, Tuple

from device import Device, Probe
from figures import Contender, Figures, Goal, Missing, Standing
from figures import middle, shown_rate, shown_ratio, shown_time, table
from services import Services
from whimbrel import Whimbrel

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
FULL_SECONDS, FULL_TURNS = 5.0, 3
QUICK_SECONDS, QUICK_TURNS = 2.0, 1
SECONDS_MAX = 600.0
# If more than this share of the processors was busy before the run, the table has a remark.
BUSY_SHARE = 0.25


@dataclass
class Lane:
    """One load, with the contenders under it."""

    load: str
    whimbrel: Contender
    standings: List[Standing] = field(default_factory=list)
    whimbrel_rounds: List[Figures] = field(default_factory=list)
    # The names of the figures of this load; lanes with the same names share a table.
    columns: Tuple[str, str, str, str] = ("messages/s", "p50", "p99", "Whimbrel / peer")


@dataclass(frozen=True)
class Invitation:
    """A peer with one durability. `come` starts it, registers it for the cleanup, and adds its contenders."""

    system: str
    durability: str
    # The rows that it keeps, with the reason, if it is unavailable.
    loads: List[str]
    come: Callable[[], None]
    is_equal: bool = True


class Comparison:
    """One run. The command defines the contenders of each load, and the goals; this class does the rest."""

    def __init__(self, arguments: argparse.Namespace, goals: List[Goal]):
        self.arguments = arguments
        self.goals = goals
        self.services = Services(ROOT)
        # Closed at the end, also after a failure.
        self.peers: list = []
        self.lanes: List[Lane] = []
        # Remarks about the tables.
        self.remarks: List[str] = []
        self.busy = os.getloadavg()[0] / (os.cpu_count() or 1)

    def run(self, seat_whimbrel: Callable[[Whimbrel], List[Lane]], invitations: List[Invitation]) -> None:
        """Builds, starts the peers, measures, prints, and cleans up."""
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
        compare = os.path.join(ROOT, "target", "compare")
        os.makedirs(compare, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=compare, prefix="run-") as folder:
            try:
                ours = Whimbrel(ROOT, folder, self.remarks)
                if self.arguments.build:
                    say("building the release binary")
                    ours.build()
                self.lanes = seat_whimbrel(ours)
                self.invite(invitations)
                device = Device(folder)
                probes = run_rounds(self.lanes, device, self.arguments)
                device.close()
                print(report(self.lanes, self.goals, machine(probes, self.arguments, self.busy), self.remarks))
                if self.arguments.turns == 1:
                    print("\nOne turn is an indication, not a proof.")
            except Missing as reason:
                sys.exit(f"compare: {reason}")
            finally:
                leave(self.peers, self.services)

    def seat(self, load: str, contenders: List[Contender]) -> None:
        self.lane(load).standings += [Standing(each) for each in contenders]

    def lane(self, load: str) -> Lane:
        return next(lane for lane in self.lanes if lane.load == load)

    def invite(self, invitations: List[Invitation]) -> None:
        """Starts each peer and adds its rows. An unavailable peer keeps its rows, with the reason."""
        for each in invitations:
            say(f"starting {each.system}, {each.durability}")
            try:
                each.come()
            except Missing as reason:
                say(f"  missing: {reason}")
                absent = Contender(each.system, each.durability, "", no_round, each.is_equal)
                for load in each.loads:
                    self.lane(load).standings.append(Standing(absent, missing=str(reason)))


def parse_arguments(command: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog=f"scripts/compare {command}", description="Whimbrel beside its peers")
    parser.add_argument("--seconds", type=seconds, help=f"of each round [default: {FULL_SECONDS:g}]")
    parser.add_argument("--quick", action="store_true", help="one short turn, to see that everything works")
    built = "takes target/release/whimbrel as it is"
    parser.add_argument("--no-build", dest="build", action="store_false", help=built)
    arguments = parser.parse_args()
    arguments.turns = QUICK_TURNS if arguments.quick else FULL_TURNS
    arguments.seconds = arguments.seconds or (QUICK_SECONDS if arguments.quick else FULL_SECONDS)
    return arguments


def seconds(text: str) -> float:
    number = float(text)
    if not 0.5 <= number <= SECONDS_MAX:
        raise argparse.ArgumentTypeError(f"expected a number of seconds from 0.5 to {SECONDS_MAX:g}")
    return number


def no_round(_seconds: float) -> Figures:
    raise Missing("it does not exist")


def run_rounds(lanes: List[Lane], device: Device, arguments: argparse.Namespace) -> List[Probe]:
    probes: List[Probe] = []

    def measured(load: str, contender: Contender) -> Tuple[Figures, Probe]:
        probes.append(device.settle_and_probe())
        found = contender.measure(arguments.seconds)
        say(
            f"  {load}: {contender.system}, {contender.durability}: {shown_rate(found.per_second)} /s, p99 {shown_time(found.p99_us)}"
            f"  (device before: p50 {shown_time(probes[-1].p50_us)}, p99 {shown_time(probes[-1].p99_us)})"
        )
        return found, probes[-1]

    for turn in range(arguments.turns):
        say(f"turn {turn + 1} of {arguments.turns}")
        for lane in lanes:
            for standing in lane.standings:
                # A contender that does not sync is only for information: one round, and none of Whimbrel beside it.
                if standing.missing is None and (standing.contender.is_equal or turn == 0):
                    run_pair(lane, standing, measured)
    probes.append(device.settle_and_probe())
    return probes


def run_pair(
    lane: Lane, standing: Standing, measured: Callable[[str, Contender], Tuple[Figures, Probe]]
) -> None:
    try:
        peer, device_then = measured(lane.load, standing.contender)
    except Missing as reason:
        say(f"  {lane.load}: {standing.contender.system}: {reason}")
        standing.missing = str(reason)
        return
    standing.rounds.append(peer)
    if standing.contender.is_equal:
        # A failure of Whimbrel itself ends the run: there is nothing to compare.
        ours, device_now = measured(lane.load, lane.whimbrel)
        lane.whimbrel_rounds.append(ours)
        standing.whimbrel_after.append(ours)
        slower, faster = max(device_then.p50_us, device_now.p50_us), min(device_then.p50_us, device_now.p50_us)
        standing.device_moved.append(slower / faster)


def report(lanes: List[Lane], goals: List[Goal], about: List[str], remarks: List[str]) -> str:
    lines: List[str] = []
    for columns in dict.fromkeys(lane.columns for lane in lanes):
        head = ["load", "system", "durability", "connections", *columns]
        rows = [row for lane in lanes if lane.columns == columns for row in rows_of(lane)]
        lines += [table(head, rows), ""]
    lines += [*about, *reasons(lanes), *(f"remark: {each}" for each in dict.fromkeys(remarks))]
    by_load = {lane.load: lane.standings for lane in lanes}
    verdicts = [[goal.wanted, *judged] for goal in goals for judged in goal.judge(by_load[goal.load])]
    return "\n".join([*lines, "", table(["goal", "its connections", "measured", "device moved", ""], verdicts)])


def rows_of(lane: Lane) -> List[List[str]]:
    rows = []
    if lane.whimbrel_rounds:
        rows.append([lane.load, *row_of(lane.whimbrel, lane.whimbrel_rounds), ""])
    for standing in lane.standings:
        contender = standing.contender
        if standing.rounds:
            rows.append([lane.load, *row_of(contender, standing.rounds), ratio_of(lane, standing)])
        if standing.missing is not None:
            named = [contender.system, contender.durability, contender.connections]
            rows.append([lane.load, *named, "missing", "", "", ""])
    return rows


def reasons(lanes: List[Lane]) -> List[str]:
    """The reasons of missing results, each once: an unavailable peer is missing under every load."""
    absent = [standing for lane in lanes for standing in lane.standings if standing.missing is not None]
    said = [f"missing: {each.contender.system}, {each.contender.durability}: {each.missing}" for each in absent]
    return list(dict.fromkeys(said))


def ratio_of(lane: Lane, standing: Standing) -> str:
    if standing.contender.is_equal:
        return shown_ratio(standing.ratios())
    if not lane.whimbrel_rounds:
        return "not equal"
    merit = standing.contender.merit
    ratio = merit(middle(lane.whimbrel_rounds)) / merit(middle(standing.rounds))
    return f"not equal; {shown_ratio([ratio])}"


def row_of(contender: Contender, rounds: List[Figures]) -> List[str]:
    found = middle(rounds)
    figures = [shown_rate(found.per_second), shown_time(found.p50_us), shown_time(found.p99_us)]
    return [contender.system, contender.durability, contender.connections, *figures]


def machine(probes: List[Probe], arguments: argparse.Namespace, busy: float) -> List[str]:
    p50 = sorted(probe.p50_us for probe in probes)
    p99 = sorted(probe.p99_us for probe in probes)
    lines = [
        f"machine: {os.cpu_count()} processors, Linux {platform.release()}, {arguments.turns} turn(s) of {arguments.seconds:g} s",
        f"device, {len(probes)} probes of 4 KiB fdatasync: p50 {shown_time(p50[0])} to {shown_time(p50[-1])}, "
        f"p99 {shown_time(p99[0])} to {shown_time(p99[-1])}",
    ]
    if busy > BUSY_SHARE:
        lines.append(f"others used this machine: {busy:.0%} of its processors were busy before the run began")
    return lines


def leave(peers: list, services: Services) -> None:
    """Removes the files of the run and stops its processes, also after a failure."""
    for peer in peers:
        try:
            peer.close()
        except Missing as reason:
            say(f"left behind: {reason}")
    for complaint in services.down():
        say(f"not stopped: {complaint}")


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
