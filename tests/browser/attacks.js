// What a web page can do to a server on this machine. Runs in a page of another origin; reports to its own server.
//
// Each attack gives what the page could learn: "opaque", "blocked", or the text of an answer that it could read.

const query = new URLSearchParams(location.search);
const target = query.get("target");

const read = (answer) => (answer.type === "opaque" ? "opaque" : answer.text().then((text) => `${answer.status} ${text}`));
const attempt = (path, options) => fetch(target + path, options).then(read, () => "blocked");
const post = (path, body, options) => attempt(path, { method: "POST", body, ...options });
const json = (path, body) => post(path, body, { headers: { "Content-Type": "application/json" } });
const kinesis = (operation, members) =>
  post("/", JSON.stringify(members), {
    headers: { "Content-Type": "application/x-amz-json-1.1", "X-Amz-Target": `Kinesis_20131202.${operation}` },
  });

const HOUR = '{"advance": 3600}';
const FAULT = '{"kind": "throttle"}';

// A form sends name=value: here the "=" is inside a JSON string.
const submitForm = (path) =>
  new Promise((done) => {
    const frame = document.createElement("iframe");
    frame.name = "answer";
    document.body.appendChild(frame);
    const form = document.body.appendChild(document.createElement("form"));
    Object.assign(form, { method: "post", enctype: "text/plain", action: target + path, target: "answer" });
    const field = form.appendChild(document.createElement("input"));
    Object.assign(field, { name: '{"kind":"throttle","stream":"', value: '"}' });
    frame.onload = () => done("opaque");
    form.submit();
  });

// A sandboxed frame has the origin "null".
const fromSandbox = (path, body) =>
  new Promise((done) => {
    addEventListener("message", (event) => done(event.data), { once: true });
    const frame = document.createElement("iframe");
    frame.sandbox = "allow-scripts";
    const call = `fetch(${JSON.stringify(target + path)}, {method: "POST", mode: "no-cors", body: ${JSON.stringify(body)}})`;
    frame.srcdoc = `<script>${call}.then(() => "opaque", () => "blocked").then((it) => parent.postMessage(it, "*"))</script>`;
    document.body.appendChild(frame);
  });

const load = (name, path) =>
  new Promise((done) => {
    const element = document.createElement(name);
    element.onload = () => done("loaded");
    element.onerror = () => done("blocked");
    element.src = target + path;
    document.body.appendChild(element);
  });

const ATTACKS = {
  "text/plain without CORS": () => post("/_shardline/clock", HOUR, { mode: "no-cors" }),
  "text/plain with CORS": () => post("/_shardline/clock", HOUR),
  "no content type": () => post("/_shardline/clock", new Blob([HOUR]), { mode: "no-cors" }),
  "JSON in a form's type": () =>
    post("/_shardline/faults", FAULT, { mode: "no-cors", headers: { "Content-Type": "application/x-www-form-urlencoded" } }),
  "JSON type without CORS": () =>
    post("/_shardline/clock", HOUR, { mode: "no-cors", headers: { "Content-Type": "application/json" } }),
  "beacon": () => String(navigator.sendBeacon(`${target}/_shardline/clock`, HOUR)),
  "form": () => submitForm("/_shardline/faults"),
  "sandboxed frame": () => fromSandbox("/_shardline/clock", HOUR),
  "JSON after a preflight": () => json("/_shardline/clock", HOUR),
  "DELETE after a preflight": () => attempt("/_shardline/requests", { method: "DELETE" }),
  "read with CORS": () => attempt("/_shardline/streams"),
  "read without CORS": () => attempt("/_shardline/requests", { mode: "no-cors" }),
  "script": () => load("script", "/_shardline/requests"),
  "API after a preflight": () => kinesis("DeleteStream", { StreamName: "orders" }),
  "API without CORS": () => post("/", '{"StreamName": "orders"}', { mode: "no-cors" }),
};

// What the page of a rebound name does: the server is its own origin by then.
const REBOUND = {
  "clock": () => json("/_shardline/clock", HOUR),
  "text/plain": () => post("/_shardline/clock", HOUR),
  "read": () => attempt("/_shardline/streams"),
  "list streams": () => kinesis("ListStreams", {}),
  "faults": () => json("/_shardline/faults", FAULT),
  "delete a stream": () => kinesis("DeleteStream", { StreamName: "orders" }),
};

const pause = (milliseconds) => new Promise((done) => setTimeout(done, milliseconds));

async function waitForTheServer() {
  await fetch(`${query.get("report")}/loaded`, { method: "POST", mode: "no-cors" });
  // While the page's own server is there, it answers 404.
  for (;;) {
    const status = await fetch("/_shardline/health", { cache: "no-store" }).then((answer) => answer.status, () => 0);
    if (status !== 0 && status !== 404) return;
    await pause(50);
  }
}

async function main() {
  const isRebound = query.has("rebound");
  if (isRebound) await waitForTheServer();
  const results = {};
  for (const [name, attack] of Object.entries(isRebound ? REBOUND : ATTACKS)) {
    results[name] = await Promise.race([Promise.resolve().then(attack), pause(20_000).then(() => "no answer")]);
  }
  await pause(300); // a beacon has no end that a page could wait for
  await fetch(`${query.get("report")}/results`, { method: "POST", mode: "no-cors", body: JSON.stringify(results) });
}

main();
