"""Whimbrel's holds by the same driver as its peers: each round a fresh server on a fresh folder, with default settings."""

import os
import re
import tempfile
import time
import urllib.request
from contextlib import contextmanager
from typing import Iterator, Optional

from figures import Contender, Figures, Missing
from holds_driver import Driver, accepting, firing
from processes import serving
from whimbrel import DURABILITY, Whimbrel

START_WAIT_S = 30
READY_WAIT_S = 30
LOOK_EVERY_S = 0.02
ADDRESS = re.compile(r"^\s*address\s+http://(\S+)\s*$")


class WhimbrelHolds:
    def __init__(self, ours: Whimbrel, driver: Driver):
        self.ours = ours
        self.driver = driver

    def accepts(self) -> Contender:
        def measure(seconds: float) -> Figures:
            with self.server() as address:
                return self.driver.accept("whimbrel", address, seconds)

        return accepting("Whimbrel", DURABILITY, "", measure)

    def fires(self) -> Contender:
        def measure(seconds: float) -> Figures:
            with self.server() as address:
                return self.driver.late("whimbrel", address, seconds)

        return firing("Whimbrel", DURABILITY, "", measure)

    @contextmanager
    def server(self) -> Iterator[str]:
        with tempfile.TemporaryDirectory(dir=self.ours.folder, prefix="whimbrel-") as folder:
            command = [self.ours.binary, "serve", "--listen", "127.0.0.1:0", "--set", "telemetry.level=warn"]
            command += ["--data", os.path.join(folder, "data")]
            with serving(command, os.path.join(folder, "complaints"), address_in, START_WAIT_S) as address:
                wait_until_ready(address)
                yield address


def address_in(line: str) -> Optional[str]:
    """The address, if this line of the server's banner has it."""
    found = ADDRESS.match(line)
    return found.group(1) if found else None


def wait_until_ready(address: str) -> None:
    # Loopback only: a proxy from the environment must not be used.
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    until = time.monotonic() + READY_WAIT_S
    while True:
        try:
            with opener.open(f"http://{address}/readyz", timeout=READY_WAIT_S):
                return
        except OSError as error:
            if time.monotonic() > until:
                raise Missing(f"whimbrel: not ready after {READY_WAIT_S} s: {error}") from error
            time.sleep(LOOK_EVERY_S)
