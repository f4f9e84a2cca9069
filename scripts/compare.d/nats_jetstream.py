"""NATS JetStream on disk, by our own load generator in Go (scripts/compare.d/nats) with NATS' client library."""

import json
import os
import urllib.request
from typing import List

from figures import Contender, Figures, Missing
from processes import need, run
from services import Services

SYSTEM = "NATS JetStream"
BUILD_TIMEOUT_S = 900
ASK_TIMEOUT_S = 10
ROUND_OVERHEAD_S = 60
WARMUP_SHARE = 0.1
ASYNC = ("4, 100 unacknowledged", "async", 4, 100, 100)
ATOMIC = ("8, atomic batches of 1 000", "atomic", 8, 1000, 100)


class Nats:
    def __init__(self, root: str, services: Services, syncs: bool):
        suffix = "_ALWAYS" if syncs else ""
        addresses = services.up("nats-always" if syncs else "nats")
        self.server = addresses[f"WHIMBREL_TEST_NATS{suffix}"]
        self.syncs = syncs
        self.durability = "sync_interval always" if syncs else "its default: acknowledges, syncs every 2 min"
        if says_it_syncs(read(f"http://{addresses[f'WHIMBREL_TEST_NATS{suffix}_MONITOR']}/varz")) != syncs:
            raise Missing(f"the NATS at {self.server} was started with another sync_interval")
        self.generator = build(root)

    def singles(self, connections: int) -> Contender:
        return self.contender(str(connections), "single", connections, 1, 256)

    def batched(self) -> List[Contender]:
        return [self.contender(*ASYNC), self.contender(*ATOMIC)]

    def contender(self, shown: str, mode: str, clients: int, batch: int, payload_bytes: int) -> Contender:
        def measure(seconds: float) -> Figures:
            options = {"server": self.server, "mode": mode, "clients": clients, "batch": batch, "size": payload_bytes}
            options.update(seconds=seconds, warmup=seconds * WARMUP_SHARE)
            command = [self.generator] + [f"-{name}={value}" for name, value in options.items()]
            return figures_in(run(command, seconds * 2 + ROUND_OVERHEAD_S))

        return Contender(SYSTEM, self.durability, shown, measure, is_equal=self.syncs)

    def close(self) -> None:
        """Nothing remains: each round deletes its stream."""


def build(root: str) -> str:
    generator = os.path.join(root, "target", "compare", "nats-publish")
    run([need("go"), "build", "-o", generator, "."], BUILD_TIMEOUT_S, cwd=os.path.join(root, "scripts/compare.d/nats"))
    return generator


def read(url: str) -> str:
    # Loopback only: a proxy from the environment must not be used.
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(url, timeout=ASK_TIMEOUT_S) as answer:
            return answer.read().decode()
    except OSError as error:
        raise Missing(f"{url}: {error}") from error


def says_it_syncs(varz: str) -> bool:
    """Whether the server's monitoring shows that every write is synced before it is acknowledged."""
    try:
        return bool(json.loads(varz)["jetstream"]["config"].get("sync_always", False))
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise Missing("NATS does not report how it syncs") from error


def figures_in(output: str) -> Figures:
    try:
        found = json.loads(output)
        return Figures(found["per_second"], found["p50_us"], found["p99_us"])
    except (ValueError, KeyError, TypeError) as error:
        raise Missing(f"cannot parse the output of the NATS load generator: {output[:200]!r}") from error
