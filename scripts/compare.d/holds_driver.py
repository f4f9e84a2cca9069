"""The driver that sends holds to every system, in Go (scripts/compare.d/holds): one loop and one clock for all of them."""

import json
import os
from typing import List

from figures import Contender, Figures, Missing, promptness
from processes import need, run

BUILD_TIMEOUT_S = 900
CONNECTIONS = 64
STEADY_PER_SECOND = 5000
# The longest delay, the wait after the last due time, and the answers in progress.
ROUND_OVERHEAD_S = 60
# A system that accepts less than this share of the steady rate was not measured at that rate; the report has a remark.
KEPT_UP_SHARE = 0.98


class Driver:
    def __init__(self, root: str, remarks: List[str]):
        self.folder = os.path.join(root, "scripts", "compare.d", "holds")
        self.program = os.path.join(root, "target", "compare", "holds-driver")
        self.remarks = remarks

    def build(self) -> None:
        run([need("go"), "build", "-o", self.program, "."], BUILD_TIMEOUT_S, cwd=self.folder)

    def accept(self, system: str, address: str, seconds: float, way: str = "") -> Figures:
        """Holds far in the future, at the highest rate."""
        figures, _ = found_in(self.drive("accept", system, address, seconds, way), "per_second")
        return figures

    def late(self, system: str, address: str, seconds: float, way: str = "") -> Figures:
        """The lateness at a consumer while holds are accepted and fire at the same rate. The rate is that of arrivals."""
        figures, remarks = found_in(self.drive("late", system, address, seconds, way), "fired_per_second")
        self.remarks += [f"{system}{f' ({way})' if way else ''}: {remark}" for remark in remarks]
        return figures

    def drive(self, measure: str, system: str, address: str, seconds: float, way: str) -> str:
        options = {"measure": measure, "system": system, "address": address, "way": way, "seconds": seconds}
        options.update(connections=CONNECTIONS, rate=STEADY_PER_SECOND)
        command = [self.program] + [f"-{name}={value}" for name, value in options.items()]
        return run(command, seconds * 2 + ROUND_OVERHEAD_S)


def accepting(system: str, durability: str, way: str, measure) -> Contender:
    return Contender(system, durability, f"{CONNECTIONS}{way}", measure)


def firing(system: str, durability: str, way: str, measure) -> Contender:
    return Contender(system, durability, f"{CONNECTIONS}{way}", measure, merit=promptness)


def found_in(output: str, rate: str):
    """The figures of the driver's one line of JSON, with that member as their rate, and the remarks about them."""
    try:
        found = json.loads(output)
        figures = Figures(float(found[rate]), float(found["p50_us"]), float(found["p99_us"]))
        accepted, missing, early = float(found["per_second"]), int(found["missing"]), int(found["early"])
    except (ValueError, KeyError, TypeError) as error:
        raise Missing(f"cannot parse the driver's output: {output[:200]!r}") from error
    remarks = []
    if rate != "per_second" and accepted < STEADY_PER_SECOND * KEPT_UP_SHARE:
        remarks.append(f"accepted only {accepted:.0f} /s of {STEADY_PER_SECOND}")
    if missing > 0:
        remarks.append(f"{missing} messages had not arrived when the driver gave up")
    if early > 0:
        remarks.append(f"{early} MESSAGES CAME EARLY")
    return figures, remarks
