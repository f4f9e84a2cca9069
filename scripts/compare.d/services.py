"""The peers' servers, through scripts/services: those that do not run are started, and only those are stopped again."""

import os
import shlex
from typing import Dict, List

from figures import Missing
from processes import run

# A server may have to be downloaded and built first.
UP_TIMEOUT_S = 1200
DOWN_TIMEOUT_S = 120


class Services:
    def __init__(self, root: str):
        self.root = root
        self.script = os.path.join(root, "scripts", "services")
        self.started: List[str] = []

    def up(self, name: str) -> Dict[str, str]:
        """Starts the server if it does not run, and returns the addresses of all that run."""
        was_running = is_running(run([self.script, "status", name], DOWN_TIMEOUT_S))
        if not was_running:
            # Recorded before the attempt: a server that did not start in time must be stopped too.
            self.started.append(name)
        run([self.script, "up", name], UP_TIMEOUT_S)
        with open(os.path.join(self.root, "target", "services", "env"), encoding="utf-8") as file:
            return exported(file.read())

    def renew(self, name: str) -> None:
        """Restarts a server, empty, if it was started here. One that was already running is not changed."""
        if name in self.started:
            run([self.script, "down", name], DOWN_TIMEOUT_S)
            run([self.script, "up", name], UP_TIMEOUT_S)

    def down(self) -> List[str]:
        """Stops the servers that were started here. Returns those that could not be stopped."""
        complaints = []
        while self.started:
            try:
                run([self.script, "down", self.started.pop()], DOWN_TIMEOUT_S)
            except Missing as reason:
                complaints.append(str(reason))
        return complaints


def is_running(status_line: str) -> bool:
    """A line of `scripts/services status` is name, address, process id or `-`, state."""
    fields = status_line.split()
    return len(fields) >= 3 and fields[2] != "-"


def exported(script: str) -> Dict[str, str]:
    """The variables that a file of `export NAME=value` lines sets."""
    pairs = (word.partition("=") for line in script.splitlines() for word in shlex.split(line)[1:])
    return {name: value for name, _, value in pairs}
