"""`scripts/compare publish`: Whimbrel, Redis Streams, NATS JetStream and Apache Kafka, as logs."""

import kafka_batches
import nats_jetstream
import redis_streams
from figures import Goal
from rounds import ROOT, Comparison, Invitation, Lane, parse_arguments
from whimbrel import Whimbrel

ONE, MANY, BATCHED = "256 B, one at a time", "256 B, many at once", "100 B, batched"
GOALS = [
    Goal(MANY, redis_streams.SYSTEM, 1.0),
    Goal(MANY, nats_jetstream.SYSTEM, 10.0),
    Goal(BATCHED, kafka_batches.SYSTEM, 2.0),
    Goal(BATCHED, redis_streams.SYSTEM, 3.0),
]


def main() -> None:
    comparison = Comparison(parse_arguments("publish"), GOALS)
    comparison.run(lanes_of, invitations_to(comparison))


def lanes_of(ours: Whimbrel) -> list:
    return [Lane(ONE, ours.singles(1)), Lane(MANY, ours.singles(64)), Lane(BATCHED, ours.batches())]


def invitations_to(comparison: Comparison) -> list:
    services, peers, seat = comparison.services, comparison.peers, comparison.seat

    def redis() -> None:
        peer = redis_streams.Redis(services)
        peers.append(peer)
        seat(ONE, [peer.singles(1)])
        seat(MANY, [peer.singles(64)])
        seat(BATCHED, peer.pipelined())

    def nats() -> None:
        peer = nats_jetstream.Nats(ROOT, services, syncs=True)
        peers.append(peer)
        seat(ONE, [peer.singles(1)])
        seat(MANY, [peer.singles(64)])
        seat(BATCHED, peer.batched())

    def nats_as_it_comes() -> None:
        peer = nats_jetstream.Nats(ROOT, services, syncs=False)
        peers.append(peer)
        seat(MANY, [peer.singles(64)])
        seat(BATCHED, peer.batched())

    def kafka() -> None:
        peer = kafka_batches.Kafka(ROOT, services)
        peers.append(peer)
        seat(BATCHED, [*peer.flushing(), peer.not_flushing()])

    return [
        Invitation(redis_streams.SYSTEM, "appendfsync always", [ONE, MANY, BATCHED], redis),
        Invitation(nats_jetstream.SYSTEM, "sync_interval always", [ONE, MANY, BATCHED], nats),
        Invitation(kafka_batches.SYSTEM, "flush.messages=1", [BATCHED], kafka),
        Invitation(nats_jetstream.SYSTEM, "its default", [MANY, BATCHED], nats_as_it_comes, is_equal=False),
    ]


if __name__ == "__main__":
    main()
