// Posts a body that is over the limit with fetch, and prints the status that it received.
const [address, size] = process.argv.slice(2);
const body = new Uint8Array(Number(size)).fill(120);
const answer = await fetch(`http://${address}/v1/topics/orders/messages`, { method: "POST", body });
console.log("fetch", answer.status, (await answer.text()).includes("payload_too_large"));
