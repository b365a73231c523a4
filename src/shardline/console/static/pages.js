// The pages: streams, one stream, groups, one group, records, put, and the embedded server.

import { change, fail, h, live, look, say, write } from "/app.js";
import { timeChart } from "/charts.js";
import { lineageView } from "/lineage.js";
import { shardList } from "/shard_list.js";

const [RECORDS_MAX, BYTES_MAX] = [1000, 1048576];
const MEASURED_AT_ONCE = 10;
const NO_STREAMS = "There are no streams here.";
const TAIL_MAX = 200; // records that a tail keeps on the page
const short = (id) => String(Number(id.replace("shardId-", "")));
const percent = (share) => `${(share * 100).toFixed(share < 0.1 ? 2 : 1)} %`;
const number = (value) => value.toLocaleString("en");
const counted = (value, noun) => `${number(value)} ${noun}${value === 1 ? "" : "s"}`;
const size = (bytes) => (bytes < 1024 ? `${Math.round(bytes)} B` : bytes < 1048576 ? `${(bytes / 1024).toFixed(1)} KiB` : `${(bytes / 1048576).toFixed(2)} MiB`);
const behind = (ms) => (ms == null ? "?" : ms < 60000 ? `${(ms / 1000).toFixed(1)} s` : ms < 7200000 ? `${Math.round(ms / 60000)} min` : `${Math.round(ms / 3600000)} h`);
const PLAIN = { ON_DEMAND: "on demand", PROVISIONED: "provisioned", NONE: "none" };
const plain = (word) => PLAIN[word] ?? word;
const clockTime = (seconds) => new Date(seconds * 1000).toLocaleTimeString("en-GB");
const link = (path, text) => h("a", { href: `#/${path}` }, text);
const path = (...names) => names.map(encodeURIComponent).join("/");
const at = (values) => `records?${new URLSearchParams(values)}`;
const groupPath = (group) => path("group", group.store, group.group ?? "", group.stream ?? "");
const facts = (values) => h("dl", { class: "facts" }, Object.entries(values).map(([name, value]) => h("div", {}, h("dt", {}, name), h("dd", {}, value instanceof Node ? value : String(value)))));
const heading = (text) => h("h3", {}, text);
const soft = (...children) => h("p", { class: "soft" }, children);

function table(columns, rows, empty, label) {
  if (!rows.length) return soft(empty);
  const kinds = columns.map((name) => (name.startsWith("#") ? "n" : null));
  const made = rows.map((row) => (row instanceof Node ? row : h("tr", {}, row.map((cell, column) => h("td", { class: kinds[column] }, cell)))));
  for (const row of made) named(row, columns);
  return h("div", { class: "wide", role: "region", tabindex: "0", "aria-label": label }, h("table", { role: "table" },
    h("thead", { role: "rowgroup" }, h("tr", { role: "row" }, columns.map((name, column) => h("th", { scope: "col", role: "columnheader", class: kinds[column] }, name.replace("#", ""))))),
    h("tbody", { role: "rowgroup" }, made)));
}
// On a narrow screen, a row is shown as a list of names and values: the cells know the names of their columns, and the
// roles say that it is still a table.
function named(row, columns) {
  row.setAttribute("role", "row");
  [...row.children].forEach((cell, column) => {
    cell.setAttribute("role", "cell");
    cell.dataset.name = columns[column].replace("#", "");
  });
  return row;
}

function field(name, label, attributes = {}) {
  return h("label", {}, label, h("input", { name, autocomplete: "off", ...attributes }));
}
const together = (...children) => h("span", { class: "together" }, ...children);
const valuesOf = (form) => Object.fromEntries(new FormData(form));
const bar = (onsubmit, ...children) =>
  h("form", { class: "bar", onsubmit: (event) => { event.preventDefault(); onsubmit(valuesOf(event.target), event.submitter).catch(fail); } }, ...children);
const streamChoice = (names, chosen) => h("label", {}, "stream", h("select", { name: "stream" }, names.map((name) => h("option", { selected: name === chosen }, name))));

// Measure a few rows at once, and the others on demand: each measurement costs calls.
async function measure(cells, work, signal, atOnce = MEASURED_AT_ONCE) {
  const run = async ({ cell, row }) => {
    cell.replaceChildren("…");
    try {
      cell.replaceChildren(...[await work(row)].flat());
    } catch (error) {
      if (!signal.aborted) cell.replaceChildren(h("span", { class: "soft" }, error.message));
    }
  };
  for (const item of cells.slice(atOnce)) item.cell.replaceChildren(h("button", { onclick: () => run(item) }, "measure"));
  for (const item of cells.slice(0, atOnce)) {
    if (signal.aborted) return;
    await run(item);
  }
}

// ---- streams

async function streams({ main, signal }) {
  const found = await look("streams", {}, signal);
  const groupCells = new Map(found.streams.map((stream) => [stream.name, h("div", {})]));
  const storeProblem = h("p", { class: "soft", hidden: true }, "Not every lease store could be read, so groups may be missing: see ", link("groups", "Groups"), ".");
  const cells = found.streams.map((stream) => ({ row: stream, cell: h("div", {}) }));
  const again = h("button", {}, "Measure again");
  main.replaceChildren(h("h2", {}, "Streams"), table(
    ["name", "status", "mode", "#shards", "rate against the limit", "groups", "#retention", "encryption", "#fan-out consumers", "#channels"],
    found.streams.map((stream, row) => [
      h("div", {}, link(path("stream", stream.name), stream.name), stream.problem && h("div", { class: "soft" }, stream.problem)),
      stream.status ?? "?", plain(stream.mode ?? "?"), stream.open_shards ?? "?", cells[row].cell, groupCells.get(stream.name),
      stream.retention_hours == null ? "?" : `${stream.retention_hours} h`, plain(stream.encryption ?? "?"), stream.consumer_count ?? "?",
      stream.channel_count ?? (stream.problem ? "?" : 0),
    ]), NO_STREAMS, "Streams"),
  soft("The rates are estimates from the last seconds of up to four shards. A shard takes 1 MiB/s or 1,000 records/s. ", again), storeProblem);
  look("groups", {}, signal).then(({ groups, problems }) => { // a store may be slow, and the list of streams does not need it
    for (const [name, cell] of groupCells) {
      cell.append(...groups.filter((group) => group.stream === name).flatMap((group, index) => [index ? ", " : "", link(groupPath(group), group.group)]));
    }
    storeProblem.hidden = !problems.length;
  }).catch(() => { storeProblem.hidden = signal.aborted; });
  const work = async (stream) => {
    const load = await look("load", { stream: stream.name }, signal);
    if (!load.measured_shards) return load.problem ?? "no open shard";
    const whole = Math.max(load.records_per_second / (load.open_shards * RECORDS_MAX), load.bytes_per_second / (load.open_shards * BYTES_MAX));
    const hot = load.hottest_load >= 0.8;
    const among = load.measured_shards < load.open_shards ? ` of ${load.measured_shards} measured` : "";
    return h("div", {}, h("span", {}, `${number(Math.round(load.records_per_second))} records/s, ${size(load.bytes_per_second)}/s (${percent(whole)})`),
      load.hottest_load > 0 ? h("div", { class: hot ? "hot" : "soft" }, hot ? "hot: " : `highest${among}: `, link(path("stream", stream.name), `shard ${short(load.hottest)} at ${percent(load.hottest_load)}`)) : "",
      load.failed_shards.length ? h("div", { class: "soft" }, `not measured: shard ${load.failed_shards.map(short).join(", ")} (${load.problem})`) : "");
  };
  const measureAll = () => measure(cells, work, signal).catch(fail);
  again.addEventListener("click", measureAll);
  measureAll();
}

// ---- one stream

// The rows stay in place, so that a button keeps the focus while the figures change.
function hotTable(planner) {
  const rows = Array.from({ length: 5 }, () => {
    const row = { id: "", split: null, cells: [h("td"), h("td", { class: "n" }), h("td"), h("td")] };
    row.why = h("span", {});
    row.button = h("button", { onclick: () => { planner.shard.value = short(row.id); planner.at.value = row.split; planner.shard.focus(); } });
    row.cells[3].append(row.why, row.button);
    row.element = h("tr", {}, row.cells);
    return row;
  });
  const element = h("div", { hidden: true }, table(["shard", "#load", "hot keys", "a split that would help"], rows.map((row) => row.element), "", "Shards with the highest load"));
  const show = (hottest, now) => {
    element.hidden = !hottest.length;
    rows.forEach((row, place) => {
      row.element.hidden = place >= hottest.length;
      if (row.element.hidden) return;
      const [id, traffic] = hottest[place];
      const [first] = traffic.keys;
      [row.id, row.split] = [id, traffic.split_at];
      const past = !traffic.hot && traffic.peak ? ` (${percent(traffic.peak[0])}, ${behind((now - traffic.peak[1]) * 1000)} ago)` : "";
      row.cells[0].className = traffic.hot || past ? "hot" : "";
      write(row.cells[0], `shard ${short(id)}${traffic.hot ? " (hot)" : past ? " (was hot)" : ""}${traffic.closed ? ", closed" : ""}`);
      write(row.cells[1], percent(traffic.load) + past);
      write(row.cells[2], traffic.keys.slice(0, 3).map((key) => `${key.key} (${percent(key.share)})`).join(", ") || "-");
      const oneKey = first?.share > 0.5;
      row.button.hidden = oneKey || !traffic.split_at || traffic.closed;
      write(row.why, traffic.closed ? "closed by a reshard" : oneKey ? `none: ${percent(first.share)} is the key ${first.key}, which one shard must take` : traffic.split_at ? "" : traffic.keys.length > 1 ? "not known yet" : "none: only one key was seen");
      write(row.button, row.button.hidden ? "" : `at ${percent(Number(traffic.split_at) / 2 ** 128)} of all hash keys`);
      row.button.title = `at the hash key ${traffic.split_at}`;
    });
  };
  return { element, show };
}

function throttleView() {
  const box = h("div", { class: "chart" });
  const text = h("p", { class: "soft" }, "…");
  const includes = h("p", { class: "soft" });
  const chart = timeChart(box, { series: [{ label: "writes", colour: "--hot", bars: true, fill: "--hot" }, { label: "reads", colour: "--second", bars: true }], height: 90, axes: true, top: 5, seconds: 1800, value: (tick) => (Number.isInteger(tick) ? number(tick) : "") });
  const show = (throttles, now) => {
    box.hidden = !throttles;
    if (!throttles) {
      write(text, "Unknown: Kinesis does not tell readers what it throttled. Start the console with --cloudwatch (the calls of all programs, by the minute) or with --metrics and the address of a producer's metrics (the records of that producer).");
      return;
    }
    const rows = new Map(throttles.seconds.map((row) => [row[0], row]));
    const [step, count] = throttles.step ? [throttles.step, 30] : [1, 120];
    const last = Math.floor(now / step) * step;
    const seconds = Array.from({ length: count + 1 }, (_, back) => last - (count - back) * step);
    const [writes, reads] = [1, 2].map((column) => seconds.map((second) => rows.get(second)?.[column] ?? 0));
    const [w, r] = [writes, reads].map((values) => values.reduce((sum, value) => sum + value, 0));
    const most = throttles.shards?.length ? ` Most writes: ${throttles.shards.map(([id, sum]) => `shard ${short(id)} (${number(sum)})`).join(", ")}.` : "";
    write(text, throttles.problem ?? `${counted(w, "throttled write")} and ${counted(r, "throttled read")} in ${step > 1 ? "30" : "two"} minutes.${most}`);
    write(includes, `Source: ${throttles.source}. It includes ${throttles.includes}.`);
    text.className = w || throttles.problem ? "hot" : "soft";
    box.setAttribute("aria-label", text.textContent);
    chart.set([seconds, ...[writes, reads].map((counts) => counts.map((count) => count || null))], now); // no bar for 0
  };
  return { parts: [text, box, includes], show };
}

const reshardPlan = (name, plan) => h("div", {}, h("p", {}, `${name}: `, h("b", {}, plan.sentence)), plan.ranges ? table(
  ["becomes", "#share of all hash keys", "first hash key", "last hash key"],
  plan.ranges.map((range, place) => [`new shard ${place + 1}`, percent(range.share), h("code", {}, range.starting_hash_key), h("code", {}, range.ending_hash_key)]), "", "The shards after the change") : "",
soft("Shardline's consumers and the KCL read the old shards to their end first, so that the records of a key stay in order."));

async function stream({ main, names: [name], signal }) {
  let shown = await look("stream", { stream: name }, signal);
  const list = shardList((id) => at({ stream: name, shard: id }), signal);
  const lineage = lineageView();
  const state = h("p", { class: "soft" }, "Sampling … the rates appear as records arrive.");
  const count = h("span", {});
  let marks = "";
  const showShards = () => {
    const now = shown.shards.map((shard) => shard.shard_id + shard.state).join();
    if (now === marks) return;
    const isFirst = !marks;
    marks = now;
    lineage.set(shown);
    list.set(shown.shards.filter((shard) => shard.state === "open").map((shard) => shard.shard_id));
    write(count, `${shown.open_shards} open, ${shown.closed_shards} closed`);
    if (!isFirst) say(`The stream has ${list.count} open shards now.`);
  };
  const planner = bar(async (values, button) => {
    const wish = button.value === "split" ? { split: values.shard, at: values.at } : button.value === "merge" ? { merge: [values.shard, values.other] } : { shards: Number(values.count) };
    const done = await change("reshard", { stream: name, ...wish }, (plan) => reshardPlan(name, plan), "Reshard");
    if (done) shown = await look("stream", { stream: name });
    showShards();
  }, together(field("shard", "shard", { size: 6 }), field("at", "split at hash key", { placeholder: "the middle", size: 22 }), h("button", { value: "split" }, "Plan a split")),
  together(field("other", "merge with shard", { size: 6 }), h("button", { value: "merge" }, "Plan a merge")), together(field("count", "number of shards", { type: "number", min: 1, size: 6 }), h("button", { value: "count" }, "Plan a new number")));
  const hot = hotTable(planner);
  const throttled = throttleView();
  main.replaceChildren(h("h2", {}, name),
    facts({ status: shown.status, mode: plain(shown.mode), shards: count, retention: `${shown.retention_hours} h`, encryption: plain(shown.encryption), channels: shown.channel_count ?? 0, consumers: shown.consumers?.map((one) => one.name).join(", ") || "none" }),
    h("p", {}, link(at({ stream: name }), "records"), " · ", link(`put?stream=${encodeURIComponent(name)}`, "put a record")),
    heading("Hot shards and keys"), state, hot.element,
    heading("Throttles"), ...throttled.parts,
    heading("Reshard"), planner,
    heading("Lineage"), soft("The life of each shard: time runs from left to right, and hash keys from top to bottom. Closed shards are pale, hot shards are red."), lineage.element,
    heading("Shards"), soft("Two minutes of records/s (filled) and bytes/s (line), as shares of 1,000 records/s and 1 MiB/s. The dashed line is the limit."), list.element);
  showShards();
  let isAsking = false;
  const again = async () => { // called when the server says that the shards have changed
    isAsking = true;
    shown = await look("stream", { stream: name }, signal).finally(() => { isAsking = false; });
    showShards();
  };
  live("stream", { stream: name }, (update) => {
    const { shards, now, read } = update.traffic;
    const busy = Object.values(shards).some((traffic) => traffic.load > 0);
    const hottest = Object.entries(shards).map(([id, traffic]) => [id, { ...traffic, closed: !list.has(id) }])
      .filter(([, traffic]) => (traffic.load > 0 && !traffic.closed) || traffic.peak)
      .sort(([, a], [, b]) => b.load - a.load || (b.peak?.[0] ?? 0) - (a.peak?.[0] ?? 0)).slice(0, 5);
    list.update(shards, now);
    lineage.mark(new Set(hottest.filter(([, traffic]) => traffic.hot && !traffic.closed).map(([id]) => id)));
    lineage.tick(now);
    if (update.lineage != null && update.lineage !== shown.lineage && !isAsking) again().catch(fail);
    hot.show(hottest, now);
    const pace = update.read_every > 1.5 ? ` Within the budget of calls, each of the ${update.open} shards is read about every ${Math.round(update.read_every)} s.` : "";
    write(state, update.problem ?? (busy ? `Sampled from ${number(read)} records.${pace}` : `No records in the last seconds (${number(read)} records were sampled before).${pace}`));
    state.className = update.problem ? "error" : "soft";
    throttled.show(update.throttles, now);
  }, signal).catch(fail);
}

// ---- groups

async function groups({ main, signal }) {
  const { groups: found, problems, stores } = await look("groups", {}, signal);
  const cells = found.map((group) => ({ row: group, cell: h("div", {}) }));
  const lags = new Map();
  main.replaceChildren(h("h2", {}, "Consumer groups"), ...problems.map((text) => h("p", { class: "error" }, text)), problems.length && !found.length ? "" : table(["group", "stream", "most behind", "#shards", "#held", "owners", "store"],
    found.map((group, row) => [link(groupPath(group), group.group ?? "?"), group.stream ? link(path("stream", group.stream), group.stream) : "?", cells[row].cell, group.rows, group.held, group.owners.map((owner) => `${owner.worker} (${owner.leases})`).join(", ") || "no owner", group.store_name]),
    stores ? "The lease store contains no groups yet. A group appears when its first consumer has started." : "No groups. Start the console with --store URL to see the groups of a lease store.", "Consumer groups"));
  const work = async (group) => {
    const lag = await look("lag", { store: group.store, group: group.group, stream: group.stream }, signal);
    if (lag.shard_id == null) return lag.unknown ? "unknown" : "no shards";
    lags.set(group, lag.lag_ms);
    return h("span", { class: lag.lag_ms > 60000 ? "hot" : null }, `${behind(lag.lag_ms)} (shard ${short(lag.shard_id)})`);
  };
  const measureAndSort = (atOnce) => measure(cells, work, signal, atOnce).then(() => { // the group that is furthest behind comes first, unless the user is already among the rows
    const body = main.querySelector("tbody");
    if (signal.aborted || !body || body.contains(document.activeElement)) return;
    const rows = [...cells].sort((a, b) => (lags.get(b.row) ?? -1) - (lags.get(a.row) ?? -1)).map(({ cell }) => cell.closest("tr"));
    body.append(...rows);
  }).catch(fail);
  if (cells.length > MEASURED_AT_ONCE) main.append(soft(`The first ${MEASURED_AT_ONCE} groups are measured immediately, because each measurement costs calls. `, h("button", { onclick: () => measureAndSort(cells.length) }, "Measure all")));
  measureAndSort();
}

const LAG_COLUMNS = ["shard", "state", "#handling lag", "#reading lag", "lag over ten minutes", "owner", "checkpoint"];
function shardRow(shard) {
  const cells = Object.fromEntries(["state", "handling", "reading", "over", "owner", "checkpoint"].map((name) => [name, h("td", { class: ["handling", "reading"].includes(name) ? "n" : null })]));
  const box = h("div", { class: "strip lag" });
  cells.over.append(box);
  const row = { cells, box, history: [], element: named(h("tr", {}, h("td", {}, short(shard.shard_id)), Object.values(cells)), LAG_COLUMNS) };
  row.chart = timeChart(box, { series: [{ label: "handling lag", colour: "--bar", fill: "--fill" }, { label: "reading lag", colour: "--second" }], height: 34, top: 1, seconds: 600 });
  return row;
}

function showLag(row, shard, reading, news, now) {
  const newest = row.history.at(-1)?.[0] ?? 0; // a connection that is opened again brings the whole history
  row.history = [...row.history, ...news.filter(([at]) => at > newest)].slice(-240);
  const { cells } = row;
  write(cells.state, shard.finished ? "finished" : shard.state ?? "?");
  write(cells.handling, shard.finished ? "-" : behind(shard.lag_ms));
  cells.handling.className = shard.lag_ms > 60000 ? "n hot" : "n";
  write(cells.reading, shard.finished ? "-" : reading == null ? "?" : behind(reading * 1000));
  write(cells.owner, shard.owner ? `${shard.owner}${shard.owner_alive || shard.finished ? "" : " (silent)"}${shard.next_owner ? ` → ${shard.next_owner}` : ""}` : "-");
  write(cells.checkpoint, shard.checkpoint?.sequence_number ?? shard.checkpoint?.kind ?? "no row");
  if (!news.length || row.history.length < 2) return;
  row.chart.set([0, 1, 2].map((column) => row.history.map((entry) => (column ? (entry[column] == null ? null : entry[column] / 1000) : entry[0]))), now);
  const lags = row.history.map((entry) => entry[1] ?? 0);
  row.box.setAttribute("aria-label", `handling lag between ${behind(Math.min(...lags))} and ${behind(Math.max(...lags))}`);
}

const HAND_OVERS = {
  asked: (event) => `${event.after} asked ${event.before} for it`,
  changed: (event) => `${event.before ?? "no owner"} → ${event.after ?? "no owner"}`,
  begins: (event) => `begins${event.after ? `, with ${event.after}` : ""}`,
  finished: (event) => `finished by ${event.before ?? "its owner"}`,
};

async function group({ main, names: [store, name, on], signal }) {
  const rows = new Map();
  const listed = new Set(); // the hand-overs on the page
  const body = h("tbody", { role: "rowgroup" });
  const events = h("ul", { class: "events" }, h("li", { class: "soft" }, "Hand-overs appear here as they happen."));
  const [notices, summary, letters, problem] = [h("div", {}), h("div", {}), h("div", {}), h("p", { class: "error", hidden: true })];
  const form = bar(async (values) => {
    const describe = (plan) => h("div", {}, h("p", {}, `The group ${name} on ${on} moves to ${values.to}:`), table(["shard", "row", "effect", "owner now"], plan.shards.map((shard) => [
      short(shard.shard_id), shard.action, shard.effect + (shard.effect_ms == null ? "" : ` ${behind(shard.effect_ms)}`), shard.owner ?? "-"]), "nothing changes", "What the reset does"));
    await change("reset", { store: Number(store), group: name, stream: on, to: values.to, force: values.force === "on" }, describe, "Reset the group");
  }, field("to", "reset to", { placeholder: "TRIM_HORIZON, LATEST, 15m", required: true, size: 28 }), h("label", { class: "inline check" }, h("input", { type: "checkbox", name: "force" }), "even if the group is alive"), h("button", {}, "Show what a reset does"));
  const showLetters = async () => {
    const found = await look("letters", { group: name }, signal);
    if (!found.is_known) letters.replaceChildren(soft(`Start the console with --dead-letters ${name}=FILE or ${name}=stream:NAME to see them.`));
    else if (found.stream) letters.replaceChildren(h("p", {}, "They are in the stream ", link(at({ stream: found.stream }), found.stream), "."));
    else letters.replaceChildren(...found.letters.length ? [h("ul", { class: "records" }, found.letters.map((letter) => letterItem(letter)))] : [soft(`${found.file} has no dead letters.`)],
      found.more ? soft("Older dead letters are in the file.") : "", found.unreadable ? soft(`${counted(found.unreadable, "line")} of the file cannot be read as ${found.unreadable === 1 ? "a record" : "records"}.`) : "");
  };
  const reported = h("p", { class: "soft" });
  main.replaceChildren(h("h2", {}, `${name} on ${on}`), problem, summary, notices,
    h("div", { class: "wide", role: "region", tabindex: "0", "aria-label": "Shards of the group" }, h("table", { role: "table" }, h("thead", { role: "rowgroup" }, h("tr", { role: "row" }, LAG_COLUMNS.map((column) => h("th", { scope: "col", role: "columnheader", class: column.startsWith("#") ? "n" : null }, column.replace("#", ""))))), body)),
    reported, heading("Hand-overs"), events, heading("Dead letters"), letters, heading("Reset"), form);
  showLetters().catch(fail);
  const timer = setInterval(() => { if (!letters.querySelector("details[open]")) showLetters().catch(fail); }, 10000);
  signal.addEventListener("abort", () => clearInterval(timer));
  live("group", { store, group: name, stream: on }, (update) => {
    problem.hidden = !update.problem;
    write(problem, update.problem ?? "");
    if (!update.group) return;
    const { metrics } = update;
    const now = Date.now() / 1000;
    for (const shard of update.shards) {
      if (!rows.has(shard.shard_id)) {
        rows.set(shard.shard_id, shardRow(shard));
        body.append(rows.get(shard.shard_id).element);
      }
      const news = update.history[shard.shard_id] ?? [];
      showLag(rows.get(shard.shard_id), shard, metrics.reading_lag[shard.shard_id] ?? metrics.reading_lag[""], news, news.at(-1)?.[0] ?? now);
    }
    const known = new Set(update.shards.map((shard) => shard.shard_id));
    for (const [id, row] of rows) {
      if (known.has(id)) continue;
      row.chart.remove();
      row.element.remove();
      rows.delete(id);
    }
    for (const event of update.hand_overs) {
      const name = `${event.at} ${event.shard_id} ${event.kind}`;
      if (listed.has(name)) continue;
      listed.add(name);
      events.querySelector(".soft")?.remove();
      const text = `shard ${short(event.shard_id)}: ${HAND_OVERS[event.kind](event)}`;
      events.prepend(h("li", {}, h("time", {}, clockTime(event.at)), ` ${text}`));
      say(text);
    }
    while (events.children.length > 100) events.lastChild.remove();
    const slow = update.shards.filter((shard) => shard.lag_ms != null).sort((a, b) => b.lag_ms - a.lag_ms)[0];
    const texts = { shards: update.group.rows, held: update.group.held, finished: update.group.finished, "most behind": slow ? `shard ${short(slow.shard_id)}, ${behind(slow.lag_ms)}` : `measuring …${update.measured_in > 10000 ? ` (about ${behind(update.measured_in)}, within the budget of calls)` : ""}` };
    if (metrics.dead_lettered != null) texts["dead-lettered since the workers started"] = number(metrics.dead_lettered);
    const next = facts(texts);
    if (summary.textContent !== next.textContent) summary.replaceChildren(next);
    if (notices.textContent !== update.notices.join("")) notices.replaceChildren(...update.notices.map((text) => h("p", { class: "error" }, text)));
    write(reported, metrics.problems.join("; ") || (metrics.asked ? "Blue: handling lag, the age of the oldest record that is not done. Orange: reading lag, as the workers report it." : "The reading lag is known only to the workers: start the console with --metrics and the address of each worker's metrics."));
  }, signal).catch(fail);
}

// ---- records

// A header may have any name, so headers are kept apart from the facts about the record.
const headerFacts = (headers) => (Object.keys(headers).length ? h("div", { role: "group", "aria-label": "Headers" }, soft("Headers"), facts(headers)) : "");

// Shows the views of a record, with buttons that choose a view, and a button that sends the record again.
function recordBody(record, stream, ...links) {
  const shown = h("pre", { tabindex: "0", "aria-label": "Data" });
  const choices = h("span", { class: "views" });
  const choose = (wanted) => {
    const chosen = wanted in record.views ? wanted : Object.keys(record.views)[0];
    write(shown, record.views[chosen]);
    for (const button of choices.children) button.setAttribute("aria-pressed", String(button.textContent === chosen));
  };
  const showViews = (wanted) => {
    choices.replaceChildren(...Object.keys(record.views).map((name) => h("button", { onclick: () => choose(name) }, name)));
    choose(wanted);
  };
  showViews();
  const readWhole = async () => {
    const found = (await look("records", { stream, shard: record.shard_id, from: record.sequence_number, limit: record.sub_sequence + 1, whole: "yes" })).records.at(-1);
    if (found?.sequence_number !== record.sequence_number) throw new Error("The record is no longer in the stream.");
    return found;
  };
  const cut = record.cut ? h("p", { class: "soft" }, `The data is cut here: it has ${size(record.size)}. `) : null;
  if (cut && !("failed_at" in record)) cut.append(h("button", { onclick: () => readWhole().then((whole) => {
    const had = new Set(Object.keys(record.views));
    record.views = whole.views; // a msgpack or CBOR view exists only for uncut data
    showViews(Object.keys(whole.views).find((name) => !had.has(name)) ?? choices.querySelector("[aria-pressed=true]").textContent);
    cut.replaceChildren(whole.cut ? "Only the beginning is shown." : "");
    shown.focus();
  }).catch(fail) }, "Show all"));
  const again = async () => {
    const body = { stream, key: record.key, base64: record.base64 ?? (await readWhole()).base64, headers: record.headers, explicit_hash_key: record.key ? record.explicit_hash_key : null };
    await change("put", body, (plan) => h("p", {}, `Send this record again: ${plan.sentence}. Readers will get it twice.`), "Send again");
  };
  return [h("div", { class: "views", role: "group", "aria-label": "Show as" }, choices, links, stream ? h("button", { onclick: () => again().catch(fail) }, "Send again …") : null),
    cut, shown];
}

function recordItem(stream, record) {
  const where = at({ stream, shard: record.shard_id, from: record.sequence_number, sub: record.sub_sequence });
  // Most records of a tail are never opened, so the body of a record is created when the record is opened.
  const open = (event) => {
    if (!event.target.open || event.target.children.length > 1) return;
    event.target.append(facts({ sequence: record.sequence_number, "in aggregate": record.sub_sequence }), headerFacts(record.headers), ...recordBody(record, stream, link(where, "link to this record")).filter(Boolean));
  };
  return h("li", {}, h("details", { ontoggle: open },
    h("summary", {}, h("b", {}, record.key ?? "(no key)"), " ", h("span", { class: "soft" }, `${record.arrived_at ?? ""} · shard ${short(record.shard_id)} · ${size(record.size)}${record.aggregated ? " · from an aggregate" : ""} `), h("code", {}, record.views.text.slice(0, 80) || "(no data)"))));
}

function letterItem(letter) {
  const original = letter.shard_id && letter.sequence_number ? [link(at({ stream: letter.stream, shard: letter.shard_id, from: letter.sequence_number, sub: letter.sub_sequence ?? 0 }), "the record in the stream")] : [];
  return h("li", {}, h("details", {},
    h("summary", {}, h("b", {}, letter.key ?? "(no key)"), " ", h("span", { class: "soft" }, `${letter.failed_at ?? ""} · `), h("span", { class: "hot" }, letter.message ?? letter.error ?? "")),
    facts({ attempts: letter.attempts ?? "?", stream: letter.stream ?? "?" }), headerFacts(letter.headers), ...recordBody(letter, letter.stream, ...original)));
}

async function records({ main, query, signal }) {
  const known = (await look("names", {}, signal)).streams;
  if (!known.length) return void main.replaceChildren(h("h2", {}, "Records"), soft(NO_STREAMS));
  const given = (name, other = "") => query.get(name) ?? other;
  const list = h("ul", { class: "records" });
  const note = h("p", { class: "soft", role: "status" });
  const more = h("button", { hidden: true }, "Read on");
  let [tail, paused, missed] = [null, false, 0];
  const pause = h("button", { type: "button", hidden: true, onclick: () => {
    [paused, missed] = [!paused, 0];
    write(pause, paused ? "Continue" : "Pause");
    say(paused ? "The tail is paused." : "The tail continues.");
  } }, "Pause");
  const follow = (name, wanted) => {
    let [seen, drawn] = [0, 0];
    [paused, missed] = [false, 0];
    write(pause, "Pause");
    note.setAttribute("aria-live", "off"); // the text changes each second
    write(note, "Waiting for records …");
    let waiting = []; // records that came since the last frame; a tab in the background draws no frames
    const draw = () => {
      const items = waiting.reverse().map((record) => recordItem(name, record));
      waiting = [];
      list.prepend(...items);
      for (let item = list.children[TAIL_MAX]; item;) {
        const next = item.nextElementSibling;
        if (!item.firstChild.open) item.remove();
        item = next;
      }
    };
    let gaps = "";
    const query = { stream: name, ...wanted, traffic: "no" };
    const afterGap = () => { // the records before the gap were shown already
      if (seen) [query.from, gaps] = ["LATEST", " Records may be missing: this page was not connected for a while."];
      return query;
    };
    live("stream", query, (update) => {
      seen += update.matched;
      missed += paused ? update.matched : 0;
      if (!paused && update.records.length) {
        if (!waiting.length) requestAnimationFrame(draw);
        waiting = [...waiting, ...update.records].slice(-TAIL_MAX);
        drawn += update.records.length;
      }
      write(note, (update.problem ?? (paused ? `Paused; ${counted(missed, "record")} matched meanwhile.` : drawn < seen ? `A sample: ${number(drawn)} of ${number(seen)} records are shown (at most 50 a second).` : `${counted(seen, "record")}.`)) + gaps);
    }, tail.signal, afterGap).catch(fail);
  };
  const find = async (name, wanted) => {
    const { signal: isWanted } = tail;
    note.setAttribute("aria-live", "polite");
    write(note, "Reading …");
    const { sub, ...rest } = wanted;
    const found = await look("records", { stream: name, ...rest, ...(sub == null ? {} : { limit: Number(sub) + 1 }) }, isWanted);
    if (sub != null) found.records = found.records.filter((record) => record.sequence_number === wanted.from && record.sub_sequence === Number(sub));
    list.replaceChildren(...found.records.map((record) => recordItem(name, record)));
    if (found.records.length === 1) list.querySelector("details").open = true;
    if (sub != null) return void write(note, found.records.length ? "The record of this link." : "The record of this link is no longer in the stream.");
    let [count, read, shards] = [0, 0, new Set()];
    const showFound = (part) => {
      count += part.records.length;
      read += part.read;
      part.shards.forEach((id) => shards.add(id));
      const where = shards.size > 8 ? counted(shards.size, "shard") : `shard ${[...shards].map(short).join(", ")}`;
      const end = part.is_end ? ", up to the newest record" : `${part.read_to ? `, up to ${part.read_to}` : ""}. More records follow`;
      write(note, `${number(count)} of ${counted(read, "record")} that ${read === 1 ? "was" : "were"} read from ${where}${end}.`);
      more.hidden = !part.next;
      write(more, "Read on");
      more.onclick = () => {
        more.onclick = null; // not disabled, so that it keeps the focus
        write(more, "Reading …");
        look("records", { next: part.next }, isWanted).then((next) => {
          list.append(...next.records.map((record) => recordItem(name, record)));
          showFound(next);
        }).catch((error) => { more.hidden = true; fail(error); });
      };
    };
    showFound(found);
  };
  const sub = query.get("sub");
  const form = bar(async (values, button) => {
    tail?.abort();
    tail = new AbortController();
    signal.addEventListener("abort", () => tail.abort());
    list.replaceChildren();
    more.hidden = true;
    const { stream: name, ...wanted } = Object.fromEntries(Object.entries(values).filter(([, value]) => value));
    pause.hidden = button?.value !== "follow";
    if (button?.value === "follow") follow(name, wanted);
    else await find(name, sub != null && wanted.from === query.get("from") ? { ...wanted, sub } : wanted);
  },
  streamChoice(known, given("stream")),
  field("key", "key", { value: given("key") }), field("text", "text in the data", { value: given("text") }), field("header", "header (name=value)", { value: given("header") }),
  field("shard", "shard", { value: given("shard"), placeholder: "any" }), field("from", "from", { value: given("from"), placeholder: "15m, a time, LATEST" }), field("to", "to", { value: given("to"), placeholder: "5m, a time" }),
  h("button", { value: "find" }, "Find"), h("button", { value: "follow" }, "Follow live"), pause);
  main.replaceChildren(h("h2", {}, "Records"), form, soft("Find reads the shard, the shards of the key, or a part of each shard, oldest record first. Follow live shows the new records of the shard, or of all shards; with “from”, it starts there."), note, list, more);
  if (query.get("shard") || query.get("key")) form.requestSubmit(form.querySelector("[value=find]"));
}

// ---- put, and the embedded server

const headersOf = (text) => Object.fromEntries(text.split("\n").filter((line) => line.trim()).map((line) => {
  const [name, ...value] = line.split(":");
  return [name.trim(), value.join(":").trim()];
}));

async function put({ main, query, signal }) {
  const known = (await look("names", {}, signal)).streams;
  if (!known.length) return void main.replaceChildren(h("h2", {}, "Put a record"), soft(NO_STREAMS));
  const result = h("p", { role: "status" });
  main.replaceChildren(h("h2", {}, "Put a record"), bar(async ({ headers, ...values }) => {
    const done = await change("put", { ...values, headers: headersOf(headers) }, (plan) => h("p", {}, `Put ${plan.sentence}.`), "Put");
    if (done) result.replaceChildren("Stored in ", link(at({ stream: values.stream, shard: done.shard_id, from: done.sequence_number, sub: 0 }), `shard ${short(done.shard_id)}`), ".");
  }, streamChoice(known, query.get("stream")), field("key", "key", { placeholder: "none: any shard" }),
  h("label", { class: "data" }, "data", h("textarea", { name: "data" })), h("label", { class: "data" }, "headers, one per line (name: value)", h("textarea", { name: "headers", class: "small" })), h("button", {}, "Put …")), result);
}

// The browser's own message names a position in the text, which is hard for the user to find.
function jsonOf(text) {
  try {
    return JSON.parse(text);
  } catch {
    throw new Error('The fault is not JSON. It must be an object such as {"kind": "throttle", "operation": "PutRecords", "count": 3}.');
  }
}

async function server({ main, signal }) {
  const time = h("p", {});
  const faults = h("div", {});
  const say1 = (plan) => h("p", {}, plan.sentence, ".");
  const clock = (body, text) => h("button", { onclick: () => change("clock", body, say1, text).then(update).catch(fail) }, text);
  const [freeze, resume] = [clock({ freeze: true }, "Freeze"), clock({ resume: true }, "Resume")];
  let known = "";
  const update = async () => {
    const found = await look("server", {}, signal);
    write(time, `${new Date(found.now * 1000).toISOString()}${found.frozen ? ", frozen" : ""}`);
    [freeze.disabled, resume.disabled] = [found.frozen, !found.frozen];
    const now = JSON.stringify(found.faults);
    if (now === known) return; // a button that is replaced would lose the focus
    known = now;
    faults.replaceChildren(table(["#id", "rule", "#hits", "change"], found.faults.map((fault) => [fault.id, h("code", {}, JSON.stringify(fault)), fault.hits,
      h("button", { onclick: () => change("fault", { remove: fault.id }, say1, "Remove").then(update).catch(fail) }, "Remove …")]), "No faults.", "Faults"));
  };
  main.replaceChildren(h("h2", {}, "Embedded server"), heading("Clock"), time,
    h("p", { class: "views" }, freeze, resume, clock({ advance: 60 }, "Advance 1 minute"), clock({ advance: 3600 }, "Advance 1 hour")),
    heading("Faults"), faults,
    bar(async (values, button) => {
      const body = button.value === "clear" ? { clear: true } : { fault: jsonOf(values.fault) };
      await change("fault", body, say1, button.value === "clear" ? "Remove all" : "Add the fault");
      await update();
    }, h("label", { class: "long" }, "a fault, as JSON", h("input", { name: "fault", autocomplete: "off", value: '{"kind": "throttle", "operation": "PutRecords", "count": 3}', size: 52 })), h("button", { value: "add" }, "Add …"), h("button", { value: "clear" }, "Remove all …")));
  await update();
  const timer = setInterval(() => update().catch(() => {}), 2000); // if the console does not answer, the status line says so
  signal.addEventListener("abort", () => clearInterval(timer));
}

export const pages = { streams, stream, groups, group, records, put, server };
