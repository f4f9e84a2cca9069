"""Runs other programs: each has a time limit, and its remaining processes are ended with it. It has no knowledge of the programs."""

import os
import shutil
import signal
import subprocess
import threading
from contextlib import contextmanager
from typing import Callable, Iterator, List, Optional

from figures import Missing

# Timeout for a server to stop before it is killed.
END_WAIT_S = 20
# Maximum length of a failed program's output that is shown as the reason, in characters.
REASON_CHARACTERS_MAX = 300


def run(command: List[str], timeout_s: float, cwd: Optional[str] = None, env: Optional[dict] = None) -> str:
    """The output of the program. A failure or a timeout is a `Missing`."""
    name = os.path.basename(command[0])
    try:
        # A session of its own, so that the program's own processes can be ended with it.
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


@contextmanager
def serving(
    command: List[str], complaints: str, told: Callable[[str], Optional[str]], start_wait_s: float
) -> Iterator[str]:
    """Runs a server and yields the result of `told` for one of its first lines, for example its address.

    Its standard error goes to the file of that name. At the end it is asked to stop, and killed if it does not.
    """
    name = os.path.basename(command[0])
    with open(complaints, "w", encoding="utf-8") as file:
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=file, text=True, start_new_session=True
        )
    # Reading its lines has no timeout of its own: a silent server is killed, which ends its output.
    impatience = threading.Timer(start_wait_s, process.kill)
    impatience.start()
    try:
        found = next((answer for answer in map(told, process.stdout) if answer is not None), None)
        impatience.cancel()
        if found is None:
            with open(complaints, encoding="utf-8") as file:
                raise Missing(f"{name}: did not start: {reason_in(file.read())}")
        yield found
    finally:
        impatience.cancel()
        process.terminate()
        try:
            process.wait(END_WAIT_S)
        except subprocess.TimeoutExpired:
            end_group(process)
        process.stdout.close()


def end_group(process: subprocess.Popen) -> None:
    """Ends a program of ours with all of its processes."""
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        pass
    process.communicate()


def reason_in(complaints: str) -> str:
    """The last lines of a failed program's output, on one line."""
    lines = [line.strip() for line in complaints.splitlines() if line.strip()]
    return " / ".join(lines[-3:])[-REASON_CHARACTERS_MAX:]


def need(program: str) -> str:
    """The path of a required program."""
    path = shutil.which(program)
    if path is None:
        raise Missing(f"{program} is not installed")
    return path
