"""Centrifugo, built from the source folder of its Go module, with a personal channel for every user."""

import json
import os
from typing import List

from figures import Missing
from processes import need, run

VERSION = "v5.4.9"
MODULE = "github.com/centrifugal/centrifugo/v5"
SYSTEM = f"Centrifugo {VERSION}"
BUILD_TIMEOUT_S = 1800
# The secret with which `whimbrel bench` signs the tokens of its devices.
SECRET = "whimbrel-bench-0123456789abcdef-0123456789abcdef"
API_KEY = "compare"


def build(root: str) -> str:
    """The path of its binary, which is built if it does not exist."""
    folder = os.path.join(root, "target", "compare", "centrifugo")
    binary = os.path.join(folder, "centrifugo")
    if os.path.exists(binary):
        return binary
    go = need("go")
    os.makedirs(folder, exist_ok=True)
    told = run([go, "mod", "download", "-json", f"{MODULE}@{VERSION}"], BUILD_TIMEOUT_S, cwd=folder)
    try:
        source = json.loads(told)["Dir"]
    except (ValueError, KeyError) as error:
        raise Missing(f"go mod download: {told[:200]}") from error
    run([go, "build", "-o", binary, "."], BUILD_TIMEOUT_S, cwd=source)
    return binary


def command(binary: str, folder: str, port: int) -> List[str]:
    """The command that starts it: idle as by default, with a channel for each user and without limits."""
    config = os.path.join(folder, "centrifugo.json")
    settings = {
        "address": "127.0.0.1",
        "port": str(port),
        "token_hmac_secret_key": SECRET,
        "api_key": API_KEY,
        "user_subscribe_to_personal": True,
        "client_connection_limit": 0,
        "log_level": "error",
    }
    with open(config, "w", encoding="utf-8") as file:
        json.dump(settings, file)
    return [binary, "-c", config]


def push(uids: List[str], payload: str) -> tuple:
    """The path, the headers and the body that publish one payload to these users."""
    body = {"channels": [f"#{uid}" for uid in uids], "data": {"payload": payload}}
    return "/api/broadcast", {"X-API-Key": API_KEY}, json.dumps(body)
