"""`scripts/compare connect`: Whimbrel and Centrifugo with many idle devices, and with a load of live messages to them.

Both servers have the same devices (`whimbrel bench crowd`), the same tokens and the same pushes: each request pushes one payload to a
few hundred users. The result is the cost of the server's process: the growth of its resident memory for each device, and the processor
time (utime + stime) for each message that a device received.
"""

import argparse
import http.client
import json
import os
import socket
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Callable, Iterator, List, Tuple

import centrifugo
from figures import Missing, shown_rate, table
from processes import END_WAIT_S
from rounds import ROOT
from whimbrel import Whimbrel

CONNECTIONS = 18_000
QUICK_CONNECTIONS = 500
# Devices that receive messages, users of one push, and connections that push.
LIVE = 1_000
BATCH_UIDS = 250
PUSHERS = 4
PAYLOAD = "x" * 128
SETTLE_S = 3
START_WAIT_S = 30
MEMORY_GOAL = 0.15
CPU_GOAL = 2.0


@dataclass(frozen=True)
class Costs:
    """The cost of one system."""

    bytes_each: float
    connects_per_second: float
    delivered_per_second: float
    delivered_per_cpu_second: float


@dataclass(frozen=True)
class System:
    name: str
    speaks: str
    # The command that starts it in a folder, with a port.
    command: Callable[[str, int], List[str]]
    ready: str
    push: Callable[[List[str], str], Tuple[str, dict, str]]


class Crowd:
    """The devices: `whimbrel bench crowd`, controlled by lines of JSON."""

    def __init__(self, binary: str):
        self.process = subprocess.Popen(
            [binary, "bench", "crowd"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def order(self, order) -> dict:
        self.process.stdin.write(json.dumps(order) + "\n")
        self.process.stdin.flush()
        line = self.process.stdout.readline()
        if not line:
            raise Missing("the crowd exited")
        return json.loads(line)

    def open(self, port: int, first: int, count: int, speaks: str) -> dict:
        order = {"address": f"127.0.0.1:{port}", "first": first, "count": count, "at_once": 256}
        told = self.order({"open": {**order, "identity": "token", "speaks": speaks}})
        if told["failed"]:
            raise Missing(f"{told['failed']} devices failed, the first with: {told['first_failure']}")
        return told

    def end(self) -> None:
        self.process.kill()
        self.process.wait()


@contextmanager
def running(command: List[str], port: int, ready: str, complaints: str) -> Iterator[int]:
    """Starts a server and waits until it answers; returns its process id."""
    with open(complaints, "w", encoding="utf-8") as file:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=file, stderr=file)
    try:
        began = time.monotonic()
        while not answers(port, ready):
            if process.poll() is not None or time.monotonic() - began > START_WAIT_S:
                raise Missing(f"{os.path.basename(command[0])} did not start; see {complaints}")
            time.sleep(0.05)
        yield process.pid
    finally:
        process.terminate()
        try:
            process.wait(END_WAIT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def answers(port: int, path: str) -> bool:
    try:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=2)
        connection.request("GET", path)
        return connection.getresponse().status < 500
    except OSError:
        return False


def resident_bytes(pid: int) -> int:
    with open(f"/proc/{pid}/status", encoding="utf-8") as file:
        line = next(line for line in file if line.startswith("VmRSS:"))
    return int(line.split()[1]) * 1024


def cpu_seconds(pid: int) -> float:
    with open(f"/proc/{pid}/stat", encoding="utf-8") as file:
        fields = file.read().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def free_port() -> int:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return taken.getsockname()[1]


def push_for(system: System, port: int, seconds: float) -> None:
    """Pushes to the devices in turn, as fast as the server accepts it."""
    until = time.monotonic() + seconds
    uids = [f"bench-{number}" for number in range(LIVE)]
    requests = [system.push(uids[at : at + BATCH_UIDS], PAYLOAD) for at in range(0, LIVE, BATCH_UIDS)]
    refused = []

    def pusher(first: int) -> None:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
        turn = first
        while time.monotonic() < until:
            path, headers, body = requests[turn % len(requests)]
            connection.request("POST", path, body, {"Content-Type": "application/json", **headers})
            answer = connection.getresponse()
            said = answer.read()
            if answer.status >= 300:
                refused.append(said[:200])
                return
            turn += 1

    threads = [threading.Thread(target=pusher, args=(number,)) for number in range(PUSHERS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if refused:
        raise Missing(f"{system.name} rejected a push: {refused[0]!r}")


def measure(system: System, binary: str, connections: int, seconds: float) -> Costs:
    port = free_port()
    with tempfile.TemporaryDirectory() as folder:
        complaints = os.path.join(ROOT, "target", "compare", f"{system.speaks}.log")
        with running(system.command(folder, port), port, system.ready, complaints) as pid:
            crowd = Crowd(binary)
            try:
                crowd.open(port, connections, 100, system.speaks)
                crowd.order("drop")
                time.sleep(SETTLE_S)
                before = resident_bytes(pid)
                told = crowd.open(port, 0, connections, system.speaks)
                took = told["took"]["secs"] + told["took"]["nanos"] / 1e9
                time.sleep(SETTLE_S)
                bytes_each = (resident_bytes(pid) - before) / connections
                crowd.order("reset")
                cpu_before, began = cpu_seconds(pid), time.monotonic()
                push_for(system, port, seconds)
                time.sleep(1)
                cpu, elapsed = cpu_seconds(pid) - cpu_before, time.monotonic() - began
                delivered = crowd.order("figures")["messages"]
            finally:
                crowd.end()
    if delivered == 0:
        raise Missing(f"{system.name} delivered nothing")
    return Costs(bytes_each, connections / max(took, 1e-9), delivered / elapsed, delivered / max(cpu, 1e-9))


def systems(ours: Whimbrel) -> List[Tuple[str, Callable[[], System]]]:
    def whimbrel() -> System:
        def command(folder: str, port: int) -> List[str]:
            settings = [f"clients.secret={centrifugo.SECRET}", "gateway.accepts_per_second=0", "telemetry.level=error"]
            given = [part for setting in settings for part in ("--set", setting)]
            return [ours.binary, "serve", "--listen", f"127.0.0.1:{port}", "--data", os.path.join(folder, "data"), *given]

        def push(uids: List[str], payload: str) -> tuple:
            return "/v1/users/messages", {}, json.dumps({"uids": uids, "payload": payload, "store": False})

        return System("Whimbrel", "whimbrel", command, "/readyz", push)

    def peer() -> System:
        binary = centrifugo.build(ROOT)
        start = lambda folder, port: centrifugo.command(binary, folder, port)  # noqa: E731
        return System(centrifugo.SYSTEM, "centrifugo", start, "/", centrifugo.push)

    return [("Whimbrel", whimbrel), (centrifugo.SYSTEM, peer)]


def main() -> None:
    parser = argparse.ArgumentParser(prog="scripts/compare connect")
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--no-build", action="store_true")
    arguments = parser.parse_args()
    connections = QUICK_CONNECTIONS if arguments.quick else CONNECTIONS
    connections = max(connections, LIVE)
    seconds = 1.0 if arguments.quick else arguments.seconds
    ours = Whimbrel(ROOT, ROOT, [])
    if not arguments.no_build:
        ours.build()
    costs, rows = {}, []
    for name, make in systems(ours):
        print(f"compare: {name}", file=sys.stderr)
        try:
            found = measure(make(), ours.binary, connections, seconds)
        except Missing as missing:
            rows.append([name, f"missing: {missing}", "", "", ""])
            continue
        costs[name] = found
        rows.append(
            [
                name,
                shown_rate(found.bytes_each),
                shown_rate(found.connects_per_second),
                shown_rate(found.delivered_per_second),
                shown_rate(found.delivered_per_cpu_second),
            ]
        )
    head = ["system", "bytes each", "connects/s", "delivered/s", "delivered per CPU second"]
    print(f"{shown_rate(connections)} idle devices; then 128 B to {shown_rate(LIVE)} of them, {BATCH_UIDS} users a push\n")
    print(table(head, rows))
    if len(costs) == 2:
        ours_cost, peer = costs["Whimbrel"], costs[centrifugo.SYSTEM]
        memory = ours_cost.bytes_each / max(peer.bytes_each, 1.0)
        cpu = ours_cost.delivered_per_cpu_second / max(peer.delivered_per_cpu_second, 1e-9)
        verdict = lambda met: "met" if met else "missed"  # noqa: E731
        goals = [
            ["memory of a device", f"{memory:.2f}", f"at most {MEMORY_GOAL}", verdict(memory <= MEMORY_GOAL)],
            ["deliveries per CPU second", f"{cpu:.2f}", f"at least {CPU_GOAL:g}", verdict(cpu >= CPU_GOAL)],
        ]
        print("\n" + table(["Whimbrel / Centrifugo", "ratio", "goal", ""], goals))


if __name__ == "__main__":
    main()
