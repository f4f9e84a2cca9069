"""Whimbrel itself, by the release binary's own `bench publish`: each round a fresh server on a fresh folder."""

import json
import os
from typing import List

from figures import Contender, Figures, Missing
from processes import run

BUILD_TIMEOUT_S = 3600
# Time of a round's own probes, its alternating /healthz, start and end, in addition to the measured time.
ROUND_OVERHEAD_S = 90
DURABILITY = "fdatasync before the answer"


class Whimbrel:
    def __init__(self, root: str, folder: str, remarks: List[str]):
        self.binary = os.path.join(root, "target", "release", "whimbrel")
        self.root = root
        self.folder = folder
        self.remarks = remarks

    def build(self) -> None:
        command = ["cargo", "build", "--release", "--locked", "--package", "whimbrel-server"]
        run(command, BUILD_TIMEOUT_S, cwd=self.root)

    def singles(self, connections: int) -> Contender:
        row = f"publish 256 B, {connections} connections"
        return self.contender(str(connections), f"singles-{connections}", row)

    def batches(self) -> Contender:
        return self.contender("8, 1 000 per request", "batches", "batches of 1000 × 100 B, messages")

    def contender(self, connections: str, round_name: str, row: str) -> Contender:
        def measure(seconds: float) -> Figures:
            command = [self.binary, "bench", "publish", "--json", "--data", self.folder]
            command += ["--only", round_name, "--seconds", str(seconds)]
            report = run(command, seconds * 3 + ROUND_OVERHEAD_S)
            figures, remarks = figures_in(report, row)
            self.remarks += remarks
            return figures

        return Contender("Whimbrel", DURABILITY, connections, measure)


def figures_in(report: str, row: str):
    """The figures of one row of the bench's JSON, and its remarks (rejected requests, requests without an answer)."""
    try:
        parsed = json.loads(report)
        found = next(each["figures"] for each in parsed["rows"] if each["measured"] == row)
        figures = Figures(found["per_second"], found["p50_us"], found["p99_us"])
        remarks = list(parsed["remarks"])
    except (ValueError, KeyError, TypeError, StopIteration) as error:
        raise Missing(f"whimbrel bench publish: its report has no row `{row}`") from error
    if figures.per_second <= 0:
        raise Missing(f"whimbrel bench publish: nothing was accepted; {'; '.join(remarks)}")
    return figures, remarks
