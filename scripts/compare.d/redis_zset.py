"""A delay queue on Redis in the usual design: a sorted set by due time, payloads in a hash, a poller that moves due messages to a
stream every millisecond by a script, and a consumer that waits at the stream. The append-only file is synced before every answer.
"""

from typing import List

from figures import Contender
from holds_driver import Driver, accepting, firing
from redis_streams import Redis
from services import Services

SYSTEM = "Redis sorted set"
DURABILITY = "appendfsync always"
# How the two writes of a hold become atomic.
WAYS = [("transaction", ", MULTI"), ("script", ", Lua")]


class RedisZset(Redis):
    def __init__(self, driver: Driver, services: Services):
        super().__init__(services)
        self.driver = driver
        self.address = f"{self.at[1]}:{self.at[3]}"

    def accepts(self) -> List[Contender]:
        return [accepting(SYSTEM, DURABILITY, shown, self.accepting_in(way)) for way, shown in WAYS]

    def fires(self) -> List[Contender]:
        return [firing(SYSTEM, DURABILITY, shown, self.firing_in(way)) for way, shown in WAYS]

    def accepting_in(self, way: str):
        return lambda seconds: self.driver.accept("redis", self.address, seconds, way)

    def firing_in(self, way: str):
        return lambda seconds: self.driver.late("redis", self.address, seconds, way)
