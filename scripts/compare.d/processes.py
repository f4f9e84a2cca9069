"""Running other programs: each has a time limit, and what it left running is ended with it. It knows none of the programs."""

import os
import shutil
import signal
import subprocess
from typing import List, Optional

from figures import Missing

# Of what a failed program said, so much is shown as the reason.
REASON_CHARACTERS_MAX = 300


def run(command: List[str], timeout_s: float, cwd: Optional[str] = None, env: Optional[dict] = None) -> str:
    """What the program printed. Its failure, or its time being over, is a `Missing`."""
    name = os.path.basename(command[0])
    try:
        # A session of its own, so that what the program started can be ended together with it.
        process = subprocess.Popen(
            command,
            cwd=cwd,
            env=env,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
    except OSError as error:
        raise Missing(f"{name}: {error.strerror}") from error
    try:
        output, complaints = process.communicate(timeout=timeout_s)
    except subprocess.TimeoutExpired as error:
        end_group(process)
        raise Missing(f"{name}: not done after {timeout_s:.0f} s") from error
    except BaseException:
        end_group(process)
        raise
    if process.returncode != 0:
        raise Missing(f"{name}: {reason_in(complaints or output) or f'ended with {process.returncode}'}")
    return output


def end_group(process: subprocess.Popen) -> None:
    """Ends a program that we started, with all that it started."""
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        pass
    process.communicate()


def reason_in(complaints: str) -> str:
    """The last lines of what a program said before it gave up, on one line."""
    lines = [line.strip() for line in complaints.splitlines() if line.strip()]
    return " / ".join(lines[-3:])[-REASON_CHARACTERS_MAX:]


def need(program: str) -> str:
    """The path of a program that must be there."""
    path = shutil.which(program)
    if path is None:
        raise Missing(f"{program} is not installed")
    return path
