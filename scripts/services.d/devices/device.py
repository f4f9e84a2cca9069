"""A device on Python's `websockets`: see devices.js for its arguments and output."""

import asyncio
import json
import sys

import websockets


async def main(url, connect, limit):
    frames, messages = [], 0
    async with websockets.connect(url, subprotocols=["whimbrel.v1.json"]) as socket:
        await socket.send(json.dumps({"connect": json.loads(connect)}))
        try:
            async for text in socket:
                frame = json.loads(text)
                frames.append(frame)
                if "ping" in frame:
                    await socket.send('{"pong":{}}')
                message = frame.get("message")
                if message and "seq" in message:
                    await socket.send(json.dumps({"ack": message["seq"]}))
                messages += bool(message)
                if messages >= limit:
                    await socket.close(1000)
        except websockets.ConnectionClosed:
            pass
        closed = {"code": socket.close_code, "reason": socket.close_reason}
        print(json.dumps({"frames": frames, "closed": closed, "subprotocol": socket.subprotocol}))


asyncio.run(main(sys.argv[1], sys.argv[2], int(sys.argv[3])))
