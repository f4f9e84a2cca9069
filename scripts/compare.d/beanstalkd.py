"""beanstalkd with delayed `put`s and a binlog that is synced at every write. Its delays are in whole seconds."""

import re
import socket
from typing import List

from figures import Contender, Figures, Missing
from holds_driver import Driver, accepting, firing
from services import Services

SYSTEM = "beanstalkd"
SERVICE = "beanstalkd"
DURABILITY = "binlog, -f0"
ASK_TIMEOUT_S = 10
ANSWER_BYTES = 64 << 10
# What a consumer does with a job: the correct way, and the way with the fewest syncs.
WAYS = [("delete", ", reserve and delete"), ("keep", ", reserve only")]


class Beanstalkd:
    def __init__(self, driver: Driver, services: Services):
        self.driver = driver
        self.services = services
        self.address = services.up(SERVICE)["WHIMBREL_TEST_BEANSTALKD"]
        if not syncs_always(command_line_of(stats_of(self.address))):
            raise Missing(f"the beanstalkd at {self.address} does not sync before it answers")

    def accepts(self) -> Contender:
        def measure(seconds: float) -> Figures:
            self.services.renew(SERVICE)
            return self.driver.accept("beanstalkd", self.address, seconds)

        return accepting(SYSTEM, DURABILITY, "", measure)

    def fires(self) -> List[Contender]:
        return [firing(SYSTEM, DURABILITY, shown, self.firing_in(way)) for way, shown in WAYS]

    def firing_in(self, way: str):
        def measure(seconds: float) -> Figures:
            self.services.renew(SERVICE)
            return self.driver.late("beanstalkd", self.address, seconds, way)

        return measure

    def close(self) -> None:
        """Nothing remains if this run started the server. On another one, the jobs of the last round stay in its default tube."""


def stats_of(address: str) -> str:
    host, port = address.rsplit(":", 1)
    try:
        with socket.create_connection((host, int(port)), ASK_TIMEOUT_S) as connection:
            connection.sendall(b"stats\r\n")
            answer = b""
            while not answer.endswith(b"\r\n\r\n") and not answer.endswith(b"\n\r\n") and len(answer) < ANSWER_BYTES:
                more = connection.recv(ANSWER_BYTES)
                if not more:
                    break
                answer += more
    except OSError as error:
        raise Missing(f"beanstalkd at {address}: {error}") from error
    return answer.decode(errors="replace")


def pid_in(stats: str) -> int:
    found = re.search(r"^pid: (\d+)$", stats, re.MULTILINE)
    if found is None:
        raise Missing("beanstalkd does not report its process id")
    return int(found.group(1))


def command_line_of(stats: str) -> List[str]:
    """Its statistics do not show how it syncs, but its command line does."""
    try:
        with open(f"/proc/{pid_in(stats)}/cmdline", "rb") as file:
            return file.read().decode(errors="replace").split("\0")
    except OSError as error:
        raise Missing(f"beanstalkd: {error}") from error


def syncs_always(command_line: List[str]) -> bool:
    return "-b" in command_line and "-f0" in command_line
