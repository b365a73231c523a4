// The pages: streams, one stream, groups, one group, records, put, and the embedded server.

import { change, fail, h, live, look, say } from "/app.js";
import { drawLineage, drawStrip } from "/charts.js";

const short = (id) => String(Number(id.replace("shardId-", "")));
const percent = (share) => `${(share * 100).toFixed(share < 0.1 ? 2 : 1)} %`;
const size = (bytes) => (bytes < 1024 ? `${bytes} B` : bytes < 1048576 ? `${(bytes / 1024).toFixed(1)} KiB` : `${(bytes / 1048576).toFixed(2)} MiB`);
const behind = (ms) => (ms == null ? "?" : ms < 60000 ? `${(ms / 1000).toFixed(1)} s` : ms < 7200000 ? `${Math.round(ms / 60000)} min` : `${Math.round(ms / 3600000)} h`);
const link = (path, text) => h("a", { href: `#/${path}` }, text);
const path = (...names) => names.map(encodeURIComponent).join("/");
const facts = (values) => h("dl", { class: "facts" }, Object.entries(values).map(([name, value]) => h("div", {}, h("dt", {}, name), h("dd", {}, String(value)))));
const every = (seconds, signal, work) => {
  const timer = setInterval(() => work().catch(fail), seconds * 1000);
  signal.addEventListener("abort", () => clearInterval(timer));
};

function table(columns, rows, empty) {
  if (!rows.length) return h("p", { class: "soft" }, empty);
  const kinds = columns.map((name) => (name.startsWith("#") ? "n" : null));
  return h("div", { class: "wide" }, h("table", {},
    h("thead", {}, h("tr", {}, columns.map((name, at) => h("th", { scope: "col", class: kinds[at] }, name.replace("#", ""))))),
    h("tbody", {}, rows.map((row) => h("tr", {}, row.map((cell, at) => h("td", { class: kinds[at] }, cell)))))));
}

function field(name, label, attributes = {}) {
  return h("label", {}, label, h("input", { name, autocomplete: "off", ...attributes }));
}
const valuesOf = (form) => Object.fromEntries(new FormData(form));
const bar = (onsubmit, ...children) =>
  h("form", { class: "bar", onsubmit: (event) => { event.preventDefault(); onsubmit(valuesOf(event.target), event.submitter).catch(fail); } }, ...children);

// ---- streams

async function streams({ main, signal }) {
  const found = (await look("streams", {}, signal)).streams;
  main.replaceChildren(h("h2", {}, "Streams"), table(
    ["name", "status", "mode", "#shards", "#capacity", "#retention", "encryption", "#fan-out consumers", "#channels"],
    found.map((stream) => [
      link(path("stream", stream.name), stream.name), stream.status, stream.mode === "ON_DEMAND" ? "on demand" : "provisioned",
      stream.open_shards ?? "?", stream.open_shards ? `${stream.open_shards} MiB/s, ${(stream.open_shards * 1000).toLocaleString("en")} records/s` : "?",
      `${stream.retention_hours} h`, stream.encryption, stream.consumer_count ?? "?", stream.channel_count ?? 0,
    ]), "There are no streams here."));
}

// ---- one stream

async function stream({ main, names: [name], signal }) {
  let shown = await look("stream", { stream: name }, signal);
  const cards = new Map();
  const list = h("ul", { class: "shards" });
  const lineage = h("div", {});
  const hot = h("p", {}, "Sampling … the rates appear as records arrive.");
  const note = h("p", { class: "soft" });
  let marks = "";
  const showShards = () => {
    const now = shown.shards.map((shard) => shard.shard_id + shard.state).join();
    if (now === marks) return;
    marks = now;
    lineage.replaceChildren(drawLineage(shown.shards));
    for (const shard of shown.shards.filter((one) => one.state === "open")) {
      if (cards.has(shard.shard_id)) continue;
      const card = { canvas: h("canvas", { role: "img" }), rate: h("span", { class: "soft" }), keys: h("div", { class: "soft" }) };
      card.item = h("li", {}, h("div", { class: "row" }, link(`records?stream=${encodeURIComponent(name)}&shard=${shard.shard_id}`, `shard ${short(shard.shard_id)}`), card.rate), card.canvas, card.keys);
      cards.set(shard.shard_id, card);
      list.append(card.item);
    }
    for (const shard of shown.shards.filter((one) => one.state !== "open")) {
      cards.get(shard.shard_id)?.item.remove();
      cards.delete(shard.shard_id);
    }
    say(`${cards.size} open shards`);
  };
  const planner = bar(async (values, button) => {
    const wish = button.value === "split" ? { split: values.shard, at: values.at } : button.value === "merge" ? { merge: [values.shard, values.other] } : { shards: Number(values.count) };
    const done = await change("reshard", { stream: name, ...wish }, (plan) => h("p", {}, `${name}: `, h("b", {}, plan.sentence)), "Reshard");
    if (done) shown = await look("stream", { stream: name });
    showShards();
  }, field("shard", "shard", { size: 6 }), field("at", "split at hash key", { placeholder: "the middle", size: 22 }), h("button", { value: "split" }, "Plan a split"),
  field("other", "merge with shard", { size: 6 }), h("button", { value: "merge" }, "Plan a merge"), field("count", "number of shards", { type: "number", min: 1, size: 6 }), h("button", { value: "count" }, "Plan a new number"));
  main.replaceChildren(h("h2", {}, name), facts({ status: shown.status, mode: shown.mode, open: shown.open_shards, closed: shown.closed_shards, retention: `${shown.retention_hours} h`, encryption: shown.encryption, consumers: shown.consumers?.map((one) => one.name).join(", ") || "none" }),
    h("p", {}, link(`records?stream=${encodeURIComponent(name)}`, "records"), " · ", link(`put?stream=${encodeURIComponent(name)}`, "put a record")),
    h("h3", {}, "Hot shards"), hot, h("h3", {}, "Reshard"), planner, h("h3", {}, "Lineage"), lineage,
    h("h3", {}, "Rate of each shard in the last two minutes"), note, list);
  note.textContent = "Each bar is one second, as a share of 1 MiB/s or 1,000 records/s, whichever is nearer; the line is the limit.";
  showShards();
  every(5, signal, async () => { shown = await look("stream", { stream: name }, signal); showShards(); });
  live(name, {}, (update) => {
    const { shards, now } = update.traffic;
    for (const [id, card] of cards) {
      const traffic = shards[id] ?? { seconds: [], load: 0, keys: [], hot: false };
      const last = traffic.seconds.findLast(([second]) => second < now - 1) ?? [0, 0, 0];
      card.rate.textContent = last[0] > now - 5 ? `${last[1]} records/s, ${size(last[2])}/s` : "idle";
      card.rate.className = traffic.hot ? "hot" : "soft";
      card.item.classList.toggle("is-hot", traffic.hot);
      card.canvas.setAttribute("aria-label", `shard ${short(id)} uses ${percent(traffic.load)} of its limit`);
      card.keys.textContent = traffic.keys.length ? `top keys: ${traffic.keys.slice(0, 3).map((key) => `${key.key} ${percent(key.share)}`).join(", ")}` : "";
      if (traffic.seconds.length || card.drawn) drawStrip(card.canvas, traffic.seconds, now);
      card.drawn = traffic.seconds.length > 0;
    }
    const hottest = Object.entries(shards).filter(([id, traffic]) => cards.has(id) && traffic.load > 0).sort((a, b) => b[1].load - a[1].load).slice(0, 5);
    hot.replaceChildren(update.problem ? h("span", { class: "error" }, update.problem) : hottest.length ? table(["shard", "#load", "hot keys", "a split that would help"], hottest.map(([id, traffic]) => [
      h("span", { class: traffic.hot ? "hot" : null }, `shard ${short(id)}`), percent(traffic.load), traffic.keys.slice(0, 3).map((key) => `${key.key} (${percent(key.share)})`).join(", ") || "-",
      traffic.keys[0]?.share > 0.5 ? `none: ${percent(traffic.keys[0].share)} is the key ${traffic.keys[0].key}, which one shard must take` : traffic.split_at ? h("button", { title: `at the hash key ${traffic.split_at}`, onclick: () => { planner.shard.value = short(id); planner.at.value = traffic.split_at; planner.shard.focus(); } }, `at ${percent(Number(traffic.split_at) / 2 ** 128)} of all hash keys`) : "none: one key",
    ])) : `No records since this page was opened (${update.traffic.read} read).`);
  }, signal).catch(fail);
}

// ---- groups

async function groups({ main, signal }) {
  const found = (await look("groups", {}, signal)).groups;
  main.replaceChildren(h("h2", {}, "Consumer groups"), table(["group", "stream", "store", "#shards", "#held", "owners"],
    found.map((group) => [link(path("group", group.store, group.group ?? "", group.stream ?? ""), group.group ?? "?"), group.stream ?? "?", group.store_name, group.rows, group.held, group.owners.map((owner) => `${owner.worker} (${owner.leases})`).join(", ") || "no owner"]),
    "No groups. Start the console with --store URL to see the groups of a lease store."));
}

async function group({ main, names: [store, name, on], signal }) {
  const history = new Map();
  const owners = new Map();
  const events = h("ul", {}, h("li", { class: "soft" }, "Hand-overs appear here as they happen."));
  const body = h("div", {});
  const update = async () => {
    const found = await look("group", { store, group: name, stream: on }, signal);
    for (const shard of found.shards) {
      const lags = history.get(shard.shard_id) ?? [];
      history.set(shard.shard_id, [...lags, shard.lag_ms].slice(-60));
      if (owners.has(shard.shard_id) && owners.get(shard.shard_id) !== shard.owner) {
        events.prepend(h("li", {}, `${new Date().toLocaleTimeString()} shard ${short(shard.shard_id)}: ${owners.get(shard.shard_id) ?? "no owner"} → ${shard.owner ?? "no owner"}`));
        say(`shard ${short(shard.shard_id)} changed its owner`);
      }
      owners.set(shard.shard_id, shard.owner);
    }
    const slow = found.shards.filter((shard) => shard.lag_ms != null).sort((a, b) => b.lag_ms - a.lag_ms)[0];
    body.replaceChildren(
      facts({ rows: found.rows, held: found.held, finished: found.finished, "most behind": slow ? `shard ${short(slow.shard_id)}, ${behind(slow.lag_ms)}` : "unknown" }),
      h("div", {}, found.notices.map((text) => h("p", { class: "error" }, text))),
      table(["shard", "state", "#lag", "lag over time", "owner", "checkpoint"], found.shards.map((shard) => [
        short(shard.shard_id), shard.finished ? "finished" : shard.state ?? "?", shard.finished ? "-" : h("span", { class: shard.lag_ms > 60000 ? "hot" : null }, behind(shard.lag_ms)),
        spark(history.get(shard.shard_id)), shard.owner ?? "-", h("code", {}, shard.checkpoint?.sequence_number ?? shard.checkpoint?.kind ?? "no row"),
      ]), "This group has no rows."));
  };
  const form = bar(async (values) => {
    const describe = (plan) => h("div", {}, h("p", {}, `The group ${name} on ${on} moves to ${values.to}:`), table(["shard", "row", "effect", "owner now"], plan.shards.map((shard) => [
      short(shard.shard_id), shard.action, shard.effect + (shard.effect_ms == null ? "" : ` ${behind(shard.effect_ms)}`), shard.owner ?? "-"]), "nothing changes"));
    await change("reset", { store: Number(store), group: name, stream: on, to: values.to, force: values.force === "on" }, describe, "Reset the group");
    await update();
  }, field("to", "reset to", { placeholder: "TRIM_HORIZON, LATEST, 15m", required: true }), h("label", {}, "also if alive", h("input", { type: "checkbox", name: "force" })), h("button", {}, "Show what a reset does"));
  main.replaceChildren(h("h2", {}, `${name} on ${on}`), body, h("h3", {}, "Hand-overs"), events, h("h3", {}, "Reset"), form);
  await update();
  every(5, signal, update);
}

function spark(lags) {
  const known = lags.map((lag) => lag ?? 0);
  const top = Math.max(1000, ...known);
  const points = known.map((lag, at) => `${(at / Math.max(1, known.length - 1)) * 100},${18 - (lag / top) * 16}`).join(" ");
  const picture = document.createElementNS("http://www.w3.org/2000/svg", "svg");
  for (const [key, value] of Object.entries({ viewBox: "0 0 100 20", width: 100, height: 20, role: "img", "aria-label": `lag between ${behind(Math.min(...known))} and ${behind(Math.max(...known))}` })) picture.setAttribute(key, value);
  const line = document.createElementNS("http://www.w3.org/2000/svg", "polyline");
  for (const [key, value] of Object.entries({ points, fill: "none", stroke: "currentColor" })) line.setAttribute(key, value);
  picture.append(line);
  return picture;
}

// ---- records

function recordItem(stream, record) {
  const views = Object.entries(record.views);
  const shown = h("pre", {}, views[0][1]);
  const where = `records?stream=${encodeURIComponent(stream)}&shard=${record.shard_id}&from=${record.sequence_number}&limit=1`;
  const again = async () => {
    const body = { stream, key: record.key, base64: record.base64, headers: record.headers, explicit_hash_key: record.explicit_hash_key };
    await change("put", body, (plan) => h("p", {}, `Send this record again: ${plan.sentence}. Readers will get it twice.`), "Send again");
  };
  return h("li", {}, h("details", {},
    h("summary", {}, h("b", {}, record.key ?? "(no key)"), " ", h("span", { class: "soft" }, `${record.arrived_at ?? ""} · shard ${short(record.shard_id)} · ${size(record.size)}${record.aggregated ? " · from an aggregate" : ""} `), h("code", {}, record.views.text.slice(0, 80))),
    facts({ sequence: record.sequence_number, "in aggregate": record.sub_sequence, ...record.headers }),
    h("div", { role: "group", "aria-label": "Show as" }, views.map(([name, text]) => h("button", { onclick: () => { shown.textContent = text; } }, name)), " ", link(where, "link to this record"), " ", h("button", { onclick: () => again().catch(fail) }, "Send again")),
    record.cut ? h("p", { class: "soft" }, "The data is cut here.") : null, shown));
}

async function records({ main, query, signal }) {
  const known = (await look("streams", {}, signal)).streams.map((one) => one.name);
  const given = (name, other = "") => query.get(name) ?? other;
  const list = h("ul", { class: "records" });
  const note = h("p", { class: "soft", role: "status" });
  let tail = null;
  let paused = false;
  const pause = h("button", { type: "button", hidden: true, onclick: () => { paused = !paused; pause.textContent = paused ? "Continue" : "Pause"; } }, "Pause");
  const form = bar(async (values, button) => {
    tail?.abort();
    tail = new AbortController();
    signal.addEventListener("abort", () => tail.abort());
    list.replaceChildren();
    const { stream: name, ...wanted } = Object.fromEntries(Object.entries(values).filter(([, value]) => value));
    pause.hidden = button?.value !== "follow";
    if (button?.value === "follow") {
      let [seen, drawn] = [0, 0];
      note.textContent = "Waiting for records …";
      live(name, wanted, (update) => {
        seen += update.matched;
        if (paused) return;
        for (const record of update.records) list.prepend(recordItem(name, record));
        while (list.children.length > 300) list.lastChild.remove();
        drawn += update.records.length;
        note.textContent = update.problem ?? (drawn < seen ? `A sample: ${drawn.toLocaleString("en")} of ${seen.toLocaleString("en")} records are shown (at most 50 a second).` : `${seen.toLocaleString("en")} records.`);
      }, tail.signal).catch(fail);
      return;
    }
    const found = await look("records", { stream: name, ...wanted }, signal);
    list.replaceChildren(...found.records.map((record) => recordItem(name, record)));
    if (found.records.length === 1) list.querySelector("details").open = true;
    note.textContent = `${found.records.length} of ${found.read} records that were read from shard ${found.shards.map(short).join(", ")}${found.is_end ? ", up to the newest record" : ": more follow"}.`;
  },
  h("label", {}, "stream", h("select", { name: "stream" }, known.map((name) => h("option", { selected: name === given("stream") }, name)))),
  field("key", "key", { value: given("key") }), field("text", "text in the data", { value: given("text") }), field("header", "header (name=value)", { value: given("header") }),
  field("shard", "shard", { value: given("shard"), placeholder: "that of the key" }), field("from", "from", { value: given("from"), placeholder: "TRIM_HORIZON, 15m, a time" }), h("input", { type: "hidden", name: "limit", value: given("limit", "100") }),
  h("button", { value: "find" }, "Find"), h("button", { value: "follow" }, "Follow live"), pause);
  main.replaceChildren(h("h2", {}, "Records"), form, note, list);
  if (query.get("shard") || query.get("key")) form.requestSubmit(form.querySelector("[value=find]"));
}

// ---- put, and the embedded server

async function put({ main, query, signal }) {
  const known = (await look("streams", {}, signal)).streams.map((one) => one.name);
  const result = h("p", { role: "status" });
  main.replaceChildren(h("h2", {}, "Put a record"), bar(async (values) => {
    const done = await change("put", values, (plan) => h("p", {}, `Put ${plan.sentence}.`), "Put");
    if (done) result.replaceChildren("Stored in ", link(`records?stream=${encodeURIComponent(values.stream)}&shard=${done.shard_id}&from=${done.sequence_number}&limit=1`, `shard ${short(done.shard_id)}`), ".");
  }, h("label", {}, "stream", h("select", { name: "stream" }, known.map((name) => h("option", { selected: name === query.get("stream") }, name)))), field("key", "key"),
  h("label", { class: "data" }, "data", h("textarea", { name: "data" })), h("button", {}, "Put …")), result);
}

async function server({ main, signal }) {
  const update = async () => {
    const found = await look("server", {}, signal);
    const clock = (body, text) => h("button", { onclick: () => change("clock", body, (plan) => h("p", {}, plan.sentence), text).then(update).catch(fail) }, text);
    main.replaceChildren(h("h2", {}, "Embedded server"), h("h3", {}, "Clock"), h("p", {}, `${new Date(found.now * 1000).toISOString()}${found.frozen ? ", frozen" : ""}`),
      h("p", {}, found.frozen ? clock({ resume: true }, "Resume") : clock({ freeze: true }, "Freeze"), " ", clock({ advance: 60 }, "Advance 1 minute"), " ", clock({ advance: 3600 }, "Advance 1 hour")),
      h("h3", {}, "Faults"), table(["#id", "rule", "#hits"], found.faults.map((fault) => [fault.id, h("code", {}, JSON.stringify(fault)), fault.hits]), "No faults."),
      bar(async (values, button) => {
        const body = button.value === "clear" ? { clear: true } : { fault: JSON.parse(values.fault) };
        await change("fault", body, () => h("p", {}, button.value === "clear" ? "Remove all faults." : `Add ${values.fault}`), "Do it");
        await update();
      }, field("fault", "a fault, as JSON", { value: '{"kind": "throttle", "count": 3}', size: 40 }), h("button", {}, "Add …"), h("button", { value: "clear" }, "Remove all …")));
  };
  await update();
}

export const pages = { streams, stream, groups, group, records, put, server };
