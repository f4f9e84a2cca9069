"""`scripts/compare hold`: Whimbrel, beanstalkd and a sorted set in Redis, as queues for delayed messages."""

from typing import List

import beanstalkd
import redis_zset
from figures import Goal, shown_rate
from holds_driver import STEADY_PER_SECOND, Driver
from rounds import ROOT, Comparison, Invitation, Lane, parse_arguments
from whimbrel import Whimbrel
from whimbrel_holds import WhimbrelHolds

ACCEPT = "200 B, accepted"
LATE = f"200 B, {shown_rate(STEADY_PER_SECOND)} /s accepted and fired"
LATE_COLUMNS = ("came/s", "late p50", "late p99", "peer's p99 / Whimbrel's")
GOALS = [
    Goal(ACCEPT, beanstalkd.SYSTEM, 1.0),
    Goal(ACCEPT, redis_zset.SYSTEM, 1.0),
    Goal(LATE, beanstalkd.SYSTEM, 1.0, words=f"p99 below that of {beanstalkd.SYSTEM}"),
    Goal(LATE, redis_zset.SYSTEM, 1.0, words=f"p99 below that of {redis_zset.SYSTEM}"),
]


def main() -> None:
    comparison = Comparison(parse_arguments("hold"), GOALS)
    driver = Driver(ROOT, comparison.remarks)

    def lanes_of(ours: Whimbrel) -> List[Lane]:
        driver.build()
        holds = WhimbrelHolds(ours, driver)
        return [Lane(ACCEPT, holds.accepts()), Lane(LATE, holds.fires(), columns=LATE_COLUMNS)]

    comparison.run(lanes_of, invitations_to(comparison, driver))


def invitations_to(comparison: Comparison, driver: Driver) -> List[Invitation]:
    services, peers, seat = comparison.services, comparison.peers, comparison.seat

    def beanstalk() -> None:
        peer = beanstalkd.Beanstalkd(driver, services)
        peers.append(peer)
        seat(ACCEPT, [peer.accepts()])
        seat(LATE, peer.fires())

    def redis() -> None:
        peer = redis_zset.RedisZset(driver, services)
        peers.append(peer)
        seat(ACCEPT, peer.accepts())
        seat(LATE, peer.fires())

    return [
        Invitation(beanstalkd.SYSTEM, beanstalkd.DURABILITY, [ACCEPT, LATE], beanstalk),
        Invitation(redis_zset.SYSTEM, redis_zset.DURABILITY, [ACCEPT, LATE], redis),
    ]


if __name__ == "__main__":
    main()
