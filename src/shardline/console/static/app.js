// Calls the console's server, and shows the page that the address names.

import { forgetCharts } from "/charts.js";
import { pages } from "/pages.js";

// All tabs share the token, so that links open in new tabs. The storage belongs to the port of the console, and is sent nowhere:
// a cookie would be sent to every port of this machine.
const headers = () => ({ Authorization: `Bearer ${localStorage.getItem("token")}` });
const main = document.getElementById("main");
let current = new AbortController();

// Control characters, and those that change the direction of a text, are shown as escapes: a key or a name must not hide
// characters, or change the order of the texts around it. Joiners, which emoji and some scripts need, are kept.
const HIDDEN = /[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u00ad\u061c\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb]/g;
export const visible = (text) => String(text).replace(HIDDEN, (found) => (found < "\u0100" ? "\\x" + found.charCodeAt(0).toString(16).padStart(2, "0") : "\\u" + found.charCodeAt(0).toString(16).padStart(4, "0")));
// An element that is replaced while it has the focus loses the focus, so a text is replaced only if it has changed.
export const write = (element, text) => { if (element.textContent !== visible(text)) element.textContent = visible(text); };

export function h(name, attributes = {}, ...children) {
  const element = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) {
    if (key.startsWith("on")) element.addEventListener(key.slice(2), value);
    else if (value === true) element.setAttribute(key, "");
    else if (value !== false && value != null) element.setAttribute(key, value);
  }
  element.append(...children.flat(9).filter((child) => child != null && child !== false).map((child) => (child instanceof Node ? child : visible(child))));
  return element;
}

// Thrown if the console has ended, or was restarted with another token. It may be back in a moment, so pages wait for it. The
// browser's own texts, such as "Failed to fetch", do not say what is wrong.
class Lost extends Error {}
const lose = (error) => {
  if (error.name === "AbortError") throw error;
  throw new Lost("The console does not answer. If its command was stopped, start it again, and open the address that it prints.");
};
const ask = (address, how) => fetch(address, how).catch(lose);

const NO_TOKEN = "This browser does not have the token of the console. Open the address that the command printed: then its links work in every tab.";
async function answer(response) {
  const value = await response.json().catch((error) => {
    if (error instanceof SyntaxError) throw new Lost(`The console did not answer, but another program did, with the status ${response.status}.`);
    return lose(error);
  });
  if (!response.ok) throw /needs its token/.test(value.error) ? new Lost(NO_TOKEN) : new Error(value.error);
  return value;
}
export const look = (action, query = {}, signal) =>
  ask(`/api/${action}?${new URLSearchParams(query)}`, { headers: headers(), signal }).then(answer);
export const send = (action, body) =>
  ask(`/api/${action}`, { method: "POST", headers: { ...headers(), "Content-Type": "application/json" }, body: JSON.stringify(body) }).then(answer);

// A new address may be opened in a tab that shows the console of the previous start: then only the fragment changes.
async function takeToken() {
  const given = new URLSearchParams(location.hash.slice(1)).get("token");
  if (given === null) return;
  history.replaceState(null, "", "#/streams"); // the address bar and the history must not keep the secret
  const { ok } = await ask("/api/status", { headers: { Authorization: `Bearer ${given}` } });
  if (ok) localStorage.setItem("token", given); // a wrong token must not lock the other tabs out
}

async function listen(address, onUpdate, signal) {
  const response = await ask(address, { headers: headers(), signal });
  if (!response.ok) await answer(response);
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { value, done } = await reader.read().catch(lose);
    if (done) return;
    const parts = (rest + value).split("\n\n");
    rest = parts.pop();
    for (const part of parts) {
      const update = JSON.parse(part.replace(/^data: /, ""));
      if (update.error) throw new Error(update.error);
      onUpdate(update);
    }
  }
}

// A browser has only six connections to a host for all its tabs, and a live page holds one of them. So a hidden tab lets go
// of its connection after other tabs have opened four, and a tab takes one only when it is shown.
const OTHERS_MAX = 4;
const tabs = new BroadcastChannel("shardline-live");
let [opened, letGo] = [0, () => {}];
document.addEventListener("visibilitychange", () => { opened = 0; });
tabs.addEventListener("message", () => { if (document.hidden && ++opened >= OTHERS_MAX) letGo(); });
const untilShown = () => new Promise((done) => {
  const look = () => { if (!document.hidden) { document.removeEventListener("visibilitychange", look); done(); } };
  document.addEventListener("visibilitychange", look);
  look();
});

// Server-sent events by fetch, because EventSource cannot send the token in a header. A connection that ends is opened
// again, until the page is left. `onGap` returns the query to continue with.
export async function live(kind, query, onUpdate, signal, onGap = () => query) {
  for (;;) {
    await untilShown();
    signal.throwIfAborted();
    const connection = new AbortController();
    const end = () => connection.abort();
    signal.addEventListener("abort", end);
    letGo = end;
    tabs.postMessage("opened");
    await listen(`/api/live/${kind}?${new URLSearchParams(query)}`, onUpdate, connection.signal).catch((error) => {
      if (signal.aborted || !(error instanceof Lost || connection.signal.aborted)) throw error;
    });
    signal.removeEventListener("abort", end);
    query = onGap();
    await new Promise((wake) => setTimeout(wake, 1000));
  }
}

let silence;
export function say(text) {
  write(document.getElementById("said"), text);
  clearTimeout(silence);
  silence = setTimeout(() => { document.getElementById("said").textContent = ""; }, 4000);
}
export const fail = (error) => {
  if (error.name === "AbortError") return;
  main.querySelector(":scope > .error")?.remove(); // only the newest problem is shown
  main.prepend(h("p", { class: "error", role: "alert" }, error.message));
};

// Asks before a change, and shows what the change will do, according to a dry run. Only one question is open at a time, so
// that a double click makes a change only once. Leaving a page closes its question.
const dialog = document.getElementById("ask");
let isPlanning = false; // from the click until the question is open
export async function change(action, body, describe, label) {
  if (isPlanning || dialog.open) return null;
  if (!(await agrees(action, body, describe, label))) return null;
  say("Working …");
  const result = await send(action, body);
  if (result.stopped_by) fail(new Error(`Stopped: ${result.stopped_by}`));
  say(result.stopped_by ? "Stopped." : "Done.");
  return result;
}

async function agrees(action, body, describe, label) {
  const { signal } = current;
  isPlanning = true;
  const plan = await send(action, { ...body, dry_run: true }).finally(() => { isPlanning = false; });
  if (signal.aborted) return false;
  document.getElementById("ask-what").replaceChildren(describe(plan));
  const yes = document.getElementById("ask-yes");
  yes.textContent = label;
  yes.disabled = !status.allow_changes;
  if (yes.disabled) document.getElementById("ask-what").append(h("p", { class: "soft" }, "This console is read-only: start it with --allow-changes to do this."));
  dialog.returnValue = "";
  dialog.showModal();
  document.getElementById("ask-no").focus(); // Enter must not change anything by accident
  await new Promise((done) => dialog.addEventListener("close", done, { once: true }));
  return dialog.returnValue === "yes" && !signal.aborted;
}

export let status = {};
async function showStatus() {
  status = await look("status", {}, AbortSignal.timeout(STATUS_WITHIN));
  const calls = status.calls;
  const waiting = calls.waiting ? `, ${calls.waiting} waiting` : "";
  document.getElementById("server-link").hidden = !status.embedded;
  const text = `${status.place} · ${status.allow_changes ? "changes allowed" : "read-only"} · ${calls.last_minute} of ${calls.per_minute} calls/min${waiting}`;
  write(document.getElementById("status"), text);
  const counts = Object.entries(calls.operations);
  document.getElementById("operations").replaceChildren(counts.length
    ? h("ul", {}, counts.map(([name, count]) => h("li", {}, `${name}: ${count}`)))
    : "No calls in the last minute.", ` ${calls.total} since the start.`);
}

// A page without updates looks like a page on which nothing happens, so every page says if the console does not answer. When the
// console answers again, live pages continue by themselves, and a page that could not be shown is shown.
const [STATUS_EVERY, STATUS_WITHIN] = [3000, 8000];
let [lost, isBroken] = [null, false];
async function watchStatus() {
  let problem = null;
  await showStatus().catch((error) => { problem = error.message; });
  if (problem) write(document.getElementById("status"), problem);
  const isNew = problem && !lost;
  lost ??= h("p", { class: "error lost", role: "alert" });
  if (problem) write(lost, problem);
  if (isNew && main.querySelector(":scope > .error")?.textContent !== lost.textContent) main.before(lost);
  if (problem) return;
  lost.remove();
  lost = null;
  if (isBroken) await show();
}
async function keepWatching() {
  for (;;) {
    await new Promise((wake) => setTimeout(wake, STATUS_EVERY));
    await watchStatus();
  }
}

async function show() {
  current.abort();
  dialog.close();
  isBroken = false;
  const { signal } = (current = new AbortController());
  await takeToken().catch(fail);
  if (signal.aborted) return; // another page was opened
  const [path, query] = location.hash.slice(2).split("?");
  const [page] = (path || "streams").split("/");
  for (const link of document.querySelectorAll("nav a")) {
    const target = link.getAttribute("href");
    if (target === `#/${page}`) link.setAttribute("aria-current", "page");
    else if (target === `#/${page}s`) link.setAttribute("aria-current", "true"); // the link to the streams also stands for one stream
    else link.removeAttribute("aria-current");
  }
  forgetCharts();
  main.replaceChildren(h("p", { class: "soft" }, "Loading …"));
  document.title = `${page} · Shardline console`;
  try {
    const [, ...names] = path.split("/").map(decodeURIComponent);
    if (path && !Object.hasOwn(pages, page)) throw new Error(`There is no page ${page}.`);
    await pages[page]({ main, names, query: new URLSearchParams(query), signal });
    if (!signal.aborted) document.title = `${main.querySelector("h2").textContent} · Shardline console`;
  } catch (error) {
    if (error.name !== "AbortError") main.replaceChildren();
    isBroken = error instanceof Lost;
    fail(error);
  }
}

document.getElementById("skip").addEventListener("click", (event) => {
  event.preventDefault(); // the address names the page
  main.focus();
});
addEventListener("hashchange", () => show().then(() => main.focus({ preventScroll: true })));
await takeToken().catch(fail);
await showStatus().catch(fail);
keepWatching();
await show();
