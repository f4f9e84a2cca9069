// GET /ws or /websockets with ?url=ws://…&connect={…}&limit=N: connects as a device with that library, acknowledges every stored message, ends
// after this many messages or with the connection, and answers {"frames":[…],"closed":{"code","reason"},"subprotocol"}.
"use strict";
const http = require("http");
const path = require("path");
const { execFile } = require("child_process");
const WebSocket = require("ws");

const [host, port] = process.argv[2].split(":");

function withWs(url, connect, limit, done) {
  const socket = new WebSocket(url, "whimbrel.v1.json");
  const frames = [];
  let messages = 0;
  socket.on("open", () => socket.send(JSON.stringify({ connect: JSON.parse(connect) })));
  socket.on("message", (data) => {
    const frame = JSON.parse(data.toString());
    frames.push(frame);
    if (frame.ping) socket.send('{"pong":{}}');
    if (frame.message && frame.message.seq !== undefined) socket.send(JSON.stringify({ ack: frame.message.seq }));
    if (frame.message && ++messages >= limit) socket.close(1000);
  });
  socket.on("error", (error) => frames.push({ error: error.message }));
  socket.on("close", (code, reason) =>
    done({ frames, closed: { code, reason: reason.toString() }, subprotocol: socket.protocol }));
}

function withWebsockets(url, connect, limit, done) {
  const script = path.join(__dirname, "device.py");
  execFile(process.env.PYTHON, ["-B", script, url, connect, String(limit)], (error, stdout, stderr) =>
    done(error ? { error: stderr } : JSON.parse(stdout)));
}

http
  .createServer((request, response) => {
    const asked = new URL(request.url, "http://devices");
    const device = { "/ws": withWs, "/websockets": withWebsockets }[asked.pathname];
    if (!device) return response.end("ready");
    const { url, connect, limit } = Object.fromEntries(asked.searchParams);
    device(url, connect, Number(limit), (told) => {
      response.setHeader("content-type", "application/json");
      response.end(JSON.stringify(told));
    });
  })
  .listen(Number(port), host);
