// A subscriber that verifies callbacks with the library of Standard Webhooks. POST /<secret>: 204 if the callback is valid for that
// secret (percent-encoded), 400 with the library's reason if not. GET /: "ready".
const http = require("http");
const { Webhook } = require("standardwebhooks");

const [host, port] = process.argv[2].split(":");
http
  .createServer((request, response) => {
    const chunks = [];
    request.on("data", (chunk) => chunks.push(chunk));
    request.on("end", () => {
      if (request.method === "GET") return response.end("ready");
      const secret = decodeURIComponent(request.url.slice(1));
      try {
        new Webhook(secret).verify(Buffer.concat(chunks).toString(), request.headers);
        response.writeHead(204).end();
      } catch (error) {
        response.writeHead(400).end(String(error));
      }
    });
  })
  .listen(Number(port), host);
