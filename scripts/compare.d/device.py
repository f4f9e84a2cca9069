"""The sync rate of the device: 4 KiB written and fdatasynced on allocated space, like a journal.

It varies from minute to minute, so it is probed before each round, in a folder on the device that all contenders write to.
"""

import os
import time
from dataclasses import dataclass
from typing import List

BLOCK_BYTES = 4096
BLOCKS = 256
PROBE_S = 0.3
# Fewer syncs than these are not enough for a p99.
SYNCS_MIN = 100


@dataclass(frozen=True)
class Probe:
    p50_us: float
    p99_us: float


class Device:
    def __init__(self, folder: str):
        self.file = os.open(os.path.join(folder, "device-probe"), os.O_RDWR | os.O_CREAT, 0o600)
        # Written, not only reserved, so that later writes change no metadata.
        os.pwrite(self.file, bytes(BLOCK_BYTES * BLOCKS), 0)
        os.fsync(self.file)

    def settle_and_probe(self) -> Probe:
        """Flushes what the previous round left in memory, so that the next one does not pay for it, and measures."""
        os.sync()
        block = b"x" * BLOCK_BYTES
        syncs: List[float] = []
        until = time.monotonic() + PROBE_S
        while time.monotonic() < until or len(syncs) < SYNCS_MIN:
            began = time.perf_counter()
            os.pwrite(self.file, block, (len(syncs) % BLOCKS) * BLOCK_BYTES)
            os.fdatasync(self.file)
            syncs.append((time.perf_counter() - began) * 1e6)
        syncs.sort()
        return Probe(syncs[len(syncs) // 2], syncs[len(syncs) * 99 // 100])

    def close(self) -> None:
        os.close(self.file)
