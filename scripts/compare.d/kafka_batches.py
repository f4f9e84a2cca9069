"""Apache Kafka, one broker, by its own `ProducerPerformance` from Maven Central: with a flush before every acknowledgement, and without."""

import hashlib
import os
import re
import shutil
from typing import List

from figures import Contender, Figures, Missing, requests_for
from processes import need, run
from services import Services

SYSTEM = "Apache Kafka"
FETCH_TIMEOUT_S = 600
ADMIN_TIMEOUT_S = 60
TIMES_LONGER_MAX = 10
ROUND_OVERHEAD_S = 90
PAYLOAD_BYTES = 100
# Records that only warm up both virtual machines, and show how many the round needs.
WARMUP_RECORDS = 100_000
# Seconds of records in each round before those that count: the producer is a fresh process each time.
STEADY_AFTER_S = 1.0
# The default number of partitions of a Whimbrel topic.
PARTITIONS = 4
PRODUCER = ["acks=all", "linger.ms=5"]
# A batch of 128 KiB has about the size of one batch request of Whimbrel; one of 512 KiB syncs more at once.
BATCH_KIB = [128, 512]
# The producer's buffer in batches. With a larger one, latency would measure the producer's own queue and not the broker.
BUFFER_BATCHES = 32

STEADY_STATE = re.compile(
    r"^\d+ steady state records sent, ([\d.]+) records/sec .*?([\d.]+) ms 50th,.*?([\d.]+) ms 99th,", re.MULTILINE
)
WHOLE = re.compile(r"^\d+ records sent, ([\d.]+) records/sec .* ms 50th", re.MULTILINE)


class Kafka:
    def __init__(self, root: str, services: Services):
        self.broker = services.up("kafka")["WHIMBREL_TEST_KAFKA"]
        self.java = [need("java"), "-Xmx512m", "-Dorg.slf4j.simpleLogger.defaultLogLevel=error"]
        self.java += ["-cp", os.path.join(fetch_tools(root), "*")]
        self.topics = []

    def flushing(self) -> List[Contender]:
        topic = self.create("flushed", ["--config", "flush.messages=1"])
        return [self.contender(topic, "flush.messages=1, acks=all", batch_kib, True) for batch_kib in BATCH_KIB]

    def not_flushing(self) -> Contender:
        topic = self.create("unflushed", [])
        return self.contender(topic, "its default: acknowledges from memory, acks=all", BATCH_KIB[0], False)

    def contender(self, topic: str, durability: str, batch_kib: int, is_equal: bool) -> Contender:
        def measure(seconds: float) -> Figures:
            timeout_s = seconds * TIMES_LONGER_MAX + ROUND_OVERHEAD_S
            rate = whole_rate_in(self.produce(topic, batch_kib, WARMUP_RECORDS, 0, timeout_s))
            before = requests_for(STEADY_AFTER_S, rate, 1)
            records = before + requests_for(seconds, rate, WARMUP_RECORDS)
            return figures_in(self.produce(topic, batch_kib, records, before, timeout_s))

        return Contender(SYSTEM, durability, f"1, batches of {batch_kib} KiB", measure, is_equal)

    def produce(self, topic: str, batch_kib: int, records: int, warmup: int, timeout_s: float) -> str:
        batch_bytes = batch_kib * 1024
        sizes = [f"batch.size={batch_bytes}", f"buffer.memory={batch_bytes * BUFFER_BATCHES}"]
        command = [*self.java, "org.apache.kafka.tools.ProducerPerformance", "--bootstrap-server", self.broker]
        command += ["--topic", topic, "--num-records", str(records), "--warmup-records", str(warmup)]
        command += ["--throughput", "-1", "--record-size", str(PAYLOAD_BYTES), "--command-property", *PRODUCER, *sizes]
        return run(command, timeout_s)

    def create(self, name: str, settings: list) -> str:
        topic = f"whimbrel-compare-{name}-{os.getpid()}"
        self.administer("--create", "--topic", topic, "--partitions", str(PARTITIONS), *settings)
        self.topics.append(topic)
        return topic

    def administer(self, *arguments: str) -> None:
        command = [*self.java, "org.apache.kafka.tools.TopicCommand", "--bootstrap-server", self.broker]
        run([*command, *arguments], ADMIN_TIMEOUT_S)

    def close(self) -> None:
        while self.topics:
            self.administer("--delete", "--topic", self.topics.pop())


def fetch_tools(root: str) -> str:
    """The folder of the tools' jars, fetched once and again when the pom changes."""
    pom = os.path.join(root, "scripts", "compare.d", "kafka", "pom.xml")
    with open(pom, "rb") as file:
        version = hashlib.sha256(file.read()).hexdigest()[:16]
    jars = os.path.join(root, "target", "compare", f"kafka-tools-{version}")
    if not os.path.isdir(jars):
        unfinished = f"{jars}.unfinished"
        shutil.rmtree(unfinished, ignore_errors=True)
        goal = ["dependency:copy-dependencies", f"-DoutputDirectory={unfinished}"]
        run([need("mvn"), "-q", "-B", "-f", pom, *goal], FETCH_TIMEOUT_S)
        os.rename(unfinished, jars)
    return jars


def figures_in(output: str) -> Figures:
    """The line about the steady state: the records before it were a warm-up."""
    found = STEADY_STATE.search(output)
    if found is None:
        raise Missing(f"ProducerPerformance: cannot parse its output: {output[-200:]!r}")
    per_second, p50_ms, p99_ms = map(float, found.groups())
    return Figures(per_second, p50_ms * 1000, p99_ms * 1000)


def whole_rate_in(output: str) -> float:
    found = WHOLE.search(output)
    if found is None:
        raise Missing(f"ProducerPerformance: cannot parse its output: {output[-200:]!r}")
    return float(found.group(1))
