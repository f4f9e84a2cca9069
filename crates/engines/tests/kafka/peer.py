"""Kafka through confluent-kafka, for the tests of the Kafka engine.

Usage: peer.py BOOTSTRAP. Each line on standard input is a command as a JSON object, its name in "do". Each line on standard output is the
answer to one command: {"ok": RESULT} or {"error": TEXT}. Bytes are strings whose characters are the bytes (Latin-1). The process exits at
the end of its input.
"""

import json
import re
import sys
import time

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, Producer, TopicPartition
from confluent_kafka.admin import (
    AclBinding,
    AclOperation,
    AclPermissionType,
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    ConfigSource,
    ResourcePatternType,
    ResourceType,
)

TIMEOUT_S = 60
TRANSACTION_LOG = "__transaction_state"
# The state of a transaction in its log: two bytes of version, producer id, epoch and timeout come before it.
STATUS_AT = 16
COMPLETE = (4, 5)


def to_bytes(text):
    return None if text is None else text.encode("latin-1")


def to_text(data):
    return None if data is None else data.decode("latin-1")


def snake_case(operation):
    """`DescribeConfigs` as `DESCRIBE_CONFIGS`."""
    return re.sub("(?<=[a-z])(?=[A-Z])", "_", operation).upper()


class Peer:
    def __init__(self, bootstrap):
        self.bootstrap = {"bootstrap.servers": bootstrap}
        self.admin = AdminClient(self.bootstrap)
        self.producers = {}
        self.transaction = None

    def produce(self, topic, records, compression="none"):
        """Writes records in one batch where it fits; returns their partitions. Keys choose partitions as Java's client does."""
        if compression not in self.producers:
            self.producers[compression] = Producer({
                **self.bootstrap, "compression.type": compression, "partitioner": "murmur2_random", "linger.ms": 50,
                "message.timeout.ms": TIMEOUT_S * 1000, "message.max.bytes": 2_000_000,
            })
        return self.write_with(self.producers[compression], topic, records)

    def write_with(self, producer, topic, records):
        placed = [None] * len(records)

        def delivered(number):
            def report(error, message):
                placed[number] = error.str() if error else message.partition()
            return report

        for number, record in enumerate(records):
            optional = {"partition": record["partition"]} if record.get("partition") is not None else {}
            if record.get("timestamp") is not None:
                optional["timestamp"] = record["timestamp"]
            producer.produce(
                topic, value=to_bytes(record.get("value")), key=to_bytes(record.get("key")),
                headers=[(name, to_bytes(value)) for name, value in record.get("headers", [])],
                on_delivery=delivered(number), **optional,
            )
        producer.flush(TIMEOUT_S)
        failed = [each for each in placed if not isinstance(each, int)]
        if failed:
            raise RuntimeError(f"{len(failed)} of {len(records)} records were not written: {failed[0]}")
        return placed

    def begin(self, id):
        self.transaction = Producer({**self.bootstrap, "transactional.id": id})
        self.transaction.init_transactions(TIMEOUT_S)
        self.transaction.begin_transaction()

    def write(self, topic, records):
        """Writes records in the transaction that `begin` opened, and waits until the broker has them."""
        return self.write_with(self.transaction, topic, records)

    def commit(self):
        self.transaction.commit_transaction(TIMEOUT_S)

    def abort(self):
        self.transaction.abort_transaction(TIMEOUT_S)

    def consume(self, topic, at_least, isolation="read_committed"):
        """Reads every partition to its end, once `at_least` records have been read."""
        reader = self.reader(isolation)
        partitions = self.assign(reader, topic)
        found, at_end, deadline = [], set(), time.monotonic() + TIMEOUT_S
        while len(found) < at_least or len(at_end) < partitions:
            if time.monotonic() > deadline:
                raise TimeoutError(f"{len(found)} of {at_least} records were read within {TIMEOUT_S} s")
            message = reader.poll(0.1)
            if message is None:
                continue
            if message.error():
                if message.error().code() != KafkaError._PARTITION_EOF:
                    raise RuntimeError(message.error().str())
                at_end.add(message.partition())
                continue
            at_end.discard(message.partition())
            found.append({
                "partition": message.partition(), "offset": message.offset(), "timestamp": message.timestamp()[1],
                "key": to_text(message.key()), "value": to_text(message.value()),
                "headers": [(name, to_text(value)) for name, value in message.headers() or []],
            })
        reader.close()
        return found

    def reader(self, isolation):
        return Consumer({
            **self.bootstrap, "group.id": "peer", "enable.auto.commit": False, "isolation.level": isolation,
            "enable.partition.eof": True,
        })

    def assign(self, reader, topic):
        partitions = reader.list_topics(topic, TIMEOUT_S).topics[topic].partitions
        reader.assign([TopicPartition(topic, each, OFFSET_BEGINNING) for each in partitions])
        return len(partitions)

    def wait_until_complete(self, id):
        """Waits until the last record of this id in the coordinator's log is that of a complete transaction. The coordinator writes it
        after the marker is in every partition. Records of earlier transactions of the id prove nothing."""
        reader = self.reader("read_uncommitted")
        self.assign(reader, TRANSACTION_LOG)
        is_complete, deadline = False, time.monotonic() + TIMEOUT_S
        while time.monotonic() < deadline:
            message = reader.poll(0.1)
            if message is None:
                continue
            if message.error():
                if is_complete and message.error().code() == KafkaError._PARTITION_EOF:
                    reader.close()
                    return
                continue
            if message.key().endswith(id.encode()):
                state = message.value()
                is_complete = state is not None and len(state) > STATUS_AT and state[STATUS_AT] in COMPLETE
        raise TimeoutError(f"the coordinator has not completed the transaction of {id} within {TIMEOUT_S} s")

    def configs(self, topic):
        """The options that are set on the topic itself."""
        resource = ConfigResource(ConfigResource.Type.TOPIC, topic)
        entries = self.admin.describe_configs([resource])[resource].result(TIMEOUT_S)
        own = ConfigSource.DYNAMIC_TOPIC_CONFIG.value
        return {name: entry.value for name, entry in entries.items() if entry.source == own}

    def set_config(self, topic, name, value):
        entry = ConfigEntry(name, value, incremental_operation=AlterConfigOpType.SET)
        resource = ConfigResource(ConfigResource.Type.TOPIC, topic, incremental_configs=[entry])
        self.admin.incremental_alter_configs([resource])[resource].result(TIMEOUT_S)

    def allow(self, user, resource, name, is_prefix, operations):
        """Gives a user rights to a resource, as `kafka-acls.sh` does."""
        pattern = ResourcePatternType.PREFIXED if is_prefix else ResourcePatternType.LITERAL
        kind, principal = ResourceType[resource], f"User:{user}"
        bindings = [
            AclBinding(kind, name, pattern, principal, "*", AclOperation[snake_case(each)], AclPermissionType.ALLOW)
            for each in operations
        ]
        for created in self.admin.create_acls(bindings).values():
            created.result(TIMEOUT_S)


COMMANDS = (
    "produce",
    "begin",
    "write",
    "commit",
    "abort",
    "consume",
    "wait_until_complete",
    "configs",
    "set_config",
    "allow",
)


def main():
    peer = Peer(sys.argv[1])
    for line in sys.stdin:
        arguments = json.loads(line)
        name = arguments.pop("do")
        try:
            if name not in COMMANDS:
                raise ValueError(f"there is no command `{name}`; there are: {', '.join(COMMANDS)}")
            answer = {"ok": getattr(peer, name)(**arguments)}
        except Exception as error:  # Every failure is an answer: the test reports it.
            answer = {"error": f"{name}: {type(error).__name__}: {error}"}
        print(json.dumps(answer), flush=True)


main()
