"""Uses the client that openapi-python-client generates: publishes, reads, holds and pushes."""

import base64
import sys
from io import BytesIO

from whimbrel_api import Client
from whimbrel_api.api.holds import get_hold
from whimbrel_api.api.messages import publish, read
from whimbrel_api.api.people import get_inbox, push
from whimbrel_api.models import NewPush
from whimbrel_api.types import File

client = Client(base_url=sys.argv[1], raise_on_unexpected_status=True)
published = publish.sync("python", client=client, body=File(payload=BytesIO(b"hello")), key="k")
page = read.sync("python", client=client, partition=published.partition, offset="earliest")
held = publish.sync("python", client=client, body=File(payload=BytesIO(b"later")), delay="1h")
hold = get_hold.sync(held.id, client=client)
push.sync("py", client=client, body=NewPush(payload="hi"))
inbox = get_inbox.sync("py", client=client)
# Bytes that are published as such are read as base64.
print(base64.b64decode(page.messages[0].payload_base64).decode(), hold.state, inbox.messages[0].payload)
