// Calls the console's server, and shows the page that the address names.

import { forgetCharts } from "/charts.js";
import { pages } from "/pages.js";

const hash = new URLSearchParams(location.hash.slice(1));
if (hash.has("token")) {
  sessionStorage.setItem("token", hash.get("token"));
  history.replaceState(null, "", "#/streams"); // the address bar and the history must not keep the secret
}
const headers = { Authorization: `Bearer ${sessionStorage.getItem("token")}` };
const main = document.getElementById("main");
let current = new AbortController();

export function h(name, attributes = {}, ...children) {
  const element = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) {
    if (key.startsWith("on")) element.addEventListener(key.slice(2), value);
    else if (value === true) element.setAttribute(key, "");
    else if (value !== false && value != null) element.setAttribute(key, value);
  }
  element.append(...children.flat(9).filter((child) => child != null && child !== false));
  return element;
}

async function answer(response) {
  const value = await response.json();
  if (!response.ok) throw new Error(value.error);
  return value;
}
export const look = (action, query = {}, signal) =>
  fetch(`/api/${action}?${new URLSearchParams(query)}`, { headers, signal }).then(answer);
export const send = (action, body) =>
  fetch(`/api/${action}`, { method: "POST", headers: { ...headers, "Content-Type": "application/json" }, body: JSON.stringify(body) }).then(answer);

// Server-sent events by fetch, because EventSource cannot send the token in a header. A connection that ends is opened
// again, until the page is left.
export async function live(kind, query, onUpdate, signal) {
  for (;;) {
    const response = await fetch(`/api/live/${kind}?${new URLSearchParams(query)}`, { headers, signal });
    if (!response.ok) throw new Error((await response.json()).error);
    const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
    let rest = "";
    for (;;) {
      const { value, done } = await reader.read();
      if (done) break;
      const parts = (rest + value).split("\n\n");
      rest = parts.pop();
      for (const part of parts) onUpdate(JSON.parse(part.replace(/^data: /, "")));
    }
    await new Promise((wake) => setTimeout(wake, 1000));
  }
}

let silence;
export function say(text) {
  document.getElementById("said").textContent = text;
  clearTimeout(silence);
  silence = setTimeout(() => { document.getElementById("said").textContent = ""; }, 4000);
}
export const fail = (error) => {
  if (error.name === "AbortError") return;
  main.querySelector(":scope > .error")?.remove(); // the newest problem is enough
  main.prepend(h("p", { class: "error", role: "alert" }, error.message));
};

// Ask before a change: a dry run says what will happen.
export async function change(action, body, describe, label) {
  const plan = await send(action, { ...body, dry_run: true });
  const dialog = document.getElementById("ask");
  document.getElementById("ask-what").replaceChildren(describe(plan));
  const yes = document.getElementById("ask-yes");
  yes.textContent = label;
  yes.disabled = !status.allow_changes;
  if (yes.disabled) document.getElementById("ask-what").append(h("p", { class: "soft" }, "This console is read-only: start it with --allow-changes to do this."));
  dialog.returnValue = "";
  dialog.showModal();
  document.getElementById("ask-no").focus(); // Enter must not change anything by accident
  await new Promise((done) => dialog.addEventListener("close", done, { once: true }));
  if (dialog.returnValue !== "yes") return null;
  say("Working …");
  const result = await send(action, body);
  if (result.stopped_by) fail(new Error(`Stopped: ${result.stopped_by}`));
  say(result.stopped_by ? "Stopped." : "Done.");
  return result;
}

export let status = {};
async function showStatus() {
  status = await look("status");
  const calls = status.calls;
  const waiting = calls.waiting ? `, ${calls.waiting} waiting` : "";
  document.getElementById("server-link").hidden = !status.embedded;
  const text = `${status.place} · ${status.allow_changes ? "changes allowed" : "read-only"} · ${calls.last_minute} of ${calls.per_minute} calls/min${waiting}`;
  document.getElementById("status").textContent = text;
  const counts = Object.entries(calls.operations);
  document.getElementById("operations").replaceChildren(counts.length
    ? h("ul", {}, counts.map(([name, count]) => h("li", {}, `${name}: ${count}`)))
    : "No calls in the last minute.", ` ${calls.total} since the start.`);
}

async function show() {
  current.abort();
  current = new AbortController();
  const [path, query] = location.hash.slice(2).split("?");
  const [page, ...names] = (path || "streams").split("/").map(decodeURIComponent);
  for (const link of document.querySelectorAll("nav a")) {
    if (link.getAttribute("href") === `#/${page}`) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
  forgetCharts();
  main.replaceChildren(h("p", { class: "soft" }, "Loading …"));
  try {
    document.title = `${names.at(-1) || page} · Shardline console`;
    await (pages[page] ?? pages.streams)({ main, names, query: new URLSearchParams(query), signal: current.signal });
  } catch (error) {
    if (error.name !== "AbortError") main.replaceChildren();
    fail(error);
  }
}

document.getElementById("skip").addEventListener("click", (event) => {
  event.preventDefault(); // the address names the page
  main.focus();
});
addEventListener("hashchange", () => show().then(() => main.focus({ preventScroll: true })));
await showStatus().catch(fail);
setInterval(() => showStatus().catch((error) => say(error.message)), 3000);
await show();
