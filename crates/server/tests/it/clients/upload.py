"""Posts a body that is over the limit with http.client and with urllib, and prints the status that each of them received."""

import http.client
import sys
import urllib.error
import urllib.request

address, size = sys.argv[1], int(sys.argv[2])
body = b"x" * size
path = "/v1/topics/orders/messages"

connection = http.client.HTTPConnection(address, timeout=60)
connection.request("POST", path, body)
answer = connection.getresponse()
print("http.client", answer.status, "payload_too_large" in answer.read().decode())

try:
    urllib.request.urlopen(urllib.request.Request(f"http://{address}{path}", body), timeout=60)
    print("urllib accepted it")
except urllib.error.HTTPError as refused:
    print("urllib", refused.code, "payload_too_large" in refused.read().decode())
