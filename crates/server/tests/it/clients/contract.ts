// A client made of the types that openapi-typescript generates: publishes, reads, holds and pushes.
import createClient from "openapi-fetch";
import type { paths } from "./schema";

declare const process: { argv: string[] };

const client = createClient<paths>({ baseUrl: process.argv[2] });

function must<T>(answer: { data?: T; error?: unknown; response: Response }, status: number): T {
  if (answer.response.status !== status || answer.data === undefined) {
    throw new Error(`${answer.response.status}, not ${status}: ${JSON.stringify(answer.error)}`);
  }
  return answer.data;
}

const asText = {
  headers: { "Content-Type": "text/plain" },
  bodySerializer: (body: unknown) => String(body),
};
const messages = "/v1/topics/{topic}/messages" as const;
const topic = { topic: "typescript" };

const published = must(
  await client.POST(messages, { params: { path: topic, query: { key: "k" } }, body: "hello", ...asText }),
  201,
) as { partition: number; offset: number };
const read = must(
  await client.GET(messages, { params: { path: topic, query: { partition: published.partition, offset: "earliest" } } }),
  200,
);
const held = must(
  await client.POST(messages, { params: { path: topic, query: { delay: "1h" } }, body: "later", ...asText }),
  202,
) as { id: string; state?: string };
const hold = must(await client.GET("/v1/holds/{id}", { params: { path: { id: held.id } } }), 200);
must(await client.POST("/v1/users/{uid}/messages", { params: { path: { uid: "ts" } }, body: { payload: "hi" } }), 202);
const inbox = must(await client.GET("/v1/users/{uid}/inbox", { params: { path: { uid: "ts" } } }), 200);
console.log(read.messages[0]?.payload, hold.state, inbox.messages[0]?.payload);
