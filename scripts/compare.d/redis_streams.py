"""Redis Streams with an append-only file that is synced before every answer, by Debian's `redis-benchmark`."""

import csv
import io
from typing import List

from figures import Contender, Figures, Missing, requests_for
from processes import need, run
from services import Services

SYSTEM = "Redis Streams"
STREAM = "whimbrel-compare"
ASK_TIMEOUT_S = 30
# Requests of each connection that only warm up, and show how many the round needs.
WARMUP_REQUESTS_PER_CONNECTION = 50
# The timeout allows for a device that becomes ten times slower in the middle of a round.
TIMES_LONGER_MAX = 10
ROUND_OVERHEAD_S = 60


class Redis:
    def __init__(self, services: Services):
        host, port = services.up("redis-always")["WHIMBREL_TEST_REDIS_ALWAYS"].rsplit(":", 1)
        self.at = ["-h", host, "-p", port]
        self.benchmark = need("redis-benchmark")
        for setting, wanted in (("appendonly", "yes"), ("appendfsync", "always")):
            found = self.ask("CONFIG", "GET", setting).split()[-1:]
            if found != [wanted]:
                raise Missing(f"the Redis at {host}:{port} does not sync before it answers: {setting} is {found}")

    def singles(self, connections: int) -> Contender:
        return self.contender(str(connections), connections, 1, 256)

    def pipelined(self) -> List[Contender]:
        """In the common way, and with as many messages in progress as in Whimbrel's batches: larger syncs are faster."""
        return [self.contender("4, pipelining 100", 4, 100, 100), self.contender("8, pipelining 1 000", 8, 1000, 100)]

    def contender(self, shown: str, connections: int, pipeline: int, payload_bytes: int) -> Contender:
        def measure(seconds: float) -> Figures:
            warmup = connections * pipeline * WARMUP_REQUESTS_PER_CONNECTION
            timeout_s = seconds * TIMES_LONGER_MAX + ROUND_OVERHEAD_S
            try:
                before = self.add(connections, pipeline, payload_bytes, warmup, timeout_s)
                requests = requests_for(seconds, before.per_second, warmup)
                return self.add(connections, pipeline, payload_bytes, requests, timeout_s)
            finally:
                self.ask("UNLINK", STREAM)

        return Contender(SYSTEM, "appendfsync always", shown, measure)

    def add(self, connections: int, pipeline: int, payload_bytes: int, requests: int, timeout_s: float) -> Figures:
        command = [self.benchmark, *self.at, "-c", str(connections), "-P", str(pipeline), "-n", str(requests), "--csv"]
        return figures_in(run([*command, "XADD", STREAM, "*", "payload", "x" * payload_bytes], timeout_s))

    def ask(self, *command: str) -> str:
        return run([need("redis-cli"), *self.at, *command], ASK_TIMEOUT_S)

    def close(self) -> None:
        """Nothing remains: each round deletes its stream."""


def figures_in(output: str) -> Figures:
    """The one row of `redis-benchmark --csv`."""
    rows = list(csv.DictReader(io.StringIO(output)))
    try:
        (row,) = rows
        times = [float(row[f"{name}_latency_ms"]) * 1000 for name in ("p50", "p99")]
        return Figures(float(row["rps"]), *times)
    except (KeyError, TypeError, ValueError) as error:
        raise Missing(f"redis-benchmark: cannot parse its output: {output[:200]!r}") from error
