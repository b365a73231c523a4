// Draws the lineage of a stream's shards: time from left to right, hash keys from top to bottom.

import { h } from "/app.js";

const svg = (name, attributes = {}, text) => {
  const element = document.createElementNS("http://www.w3.org/2000/svg", name);
  for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
  if (text !== undefined) element.textContent = text;
  return element;
};
const short = (id) => String(Number(id.replace("shardId-", "")));
const middle = (range) => (range.low + range.high) / 2;
const counted = (count, noun) => `${count.toLocaleString("en")} ${noun}${count === 1 ? "" : "s"}`;
const SOURCES = {
  number: "from the second in its sequence number",
  stream: "from the creation time of the stream",
  seen: "seen by this console",
  asked: "from ListShards at several times",
};
const [MINUTE, HOUR, DAY] = [60, 3600, 86400];
const STEPS = [1, 2, 5, 10, 15, 30, MINUTE, 2 * MINUTE, 5 * MINUTE, 10 * MINUTE, 15 * MINUTE, 30 * MINUTE, HOUR, 2 * HOUR, 3 * HOUR, 6 * HOUR, 12 * HOUR, DAY, 2 * DAY, 7 * DAY, 14 * DAY, 30 * DAY, 90 * DAY, 180 * DAY, 365 * DAY, 1825 * DAY];
const AGES = [10, MINUTE, 10 * MINUTE, HOUR, 6 * HOUR, DAY, 7 * DAY, 30 * DAY, 365 * DAY, 1825 * DAY];
const RECENT = 10; // seconds: up to this age, the recent scale is nearly even; for higher ages it is logarithmic
const AXIS = 20;

const two = (value) => String(value).padStart(2, "0");
export function shownMoment(seconds, withDate = true) {
  const at = new Date(seconds * 1000);
  const time = `${two(at.getHours())}:${two(at.getMinutes())}:${two(at.getSeconds())}`;
  return withDate ? `${at.getFullYear()}-${two(at.getMonth() + 1)}-${two(at.getDate())} ${time}` : time;
}
const shownAge = (age) => (age < MINUTE ? `${age} s` : age < HOUR ? `${age / MINUTE} min` : age < DAY ? `${age / HOUR} h` : age < 365 * DAY ? `${age / DAY} d` : `${age / 365 / DAY} y`);
const shownRange = (range) => (range.high - range.low <= 2
  ? `${shownMoment(range.low)} (${SOURCES[range.source]})`
  : `between ${shownMoment(range.low)} and ${shownMoment(range.high)} (estimated ${SOURCES[range.source]})`);

function describe(shard, note) {
  const came = shard.parents.length ? ` from shard ${shard.parents.map(short).join(" and ")}` : "";
  const went = shard.closed ? ` Closed ${shownRange(shard.closed)}${shard.children.length ? `; replaced by shard ${shard.children.map(short).join(" and ")}` : ""}.` : "";
  return `Shard ${short(shard.shard_id)}, ${shard.state}, ${(shard.share * 100).toFixed(2)} % of the hash keys${note ? `, ${note}` : ""}. Created${came} ${shownRange(shard.created)}.${went}`;
}

// Says in one sentence where the times of the shards come from.
function explain(shards) {
  const ranges = shards.flatMap((shard) => [shard.created, shard.closed]).filter(Boolean);
  const texts = [
    ["number", "the second in a sequence number (exact to about a second; AWS does not document it)"], ["stream", "the creation time of the stream"],
    ["seen", "what this console saw"], ["asked", "ListShards, asked for several times"],
  ].filter(([source]) => ranges.some((range) => range.source === source)).map(([, text]) => text);
  const wide = ranges.filter((range) => range.high - range.low > MINUTE).length;
  return `The times come from ${texts.join("; ")}.${wide ? ` ${counted(wide, "time")} ${wide === 1 ? "is" : "are"} known only roughly: the pale part of a shard shows the possible range.` : ""}`;
}

// Returns a function that maps a time to its place on the chosen scale, from 0 to 1.
function scaleOf(kind, from, now) {
  const span = Math.max(1, now - from);
  if (kind === "even") return (time) => Math.min(1, Math.max(0, (time - from) / span));
  return (time) => Math.min(1, Math.max(0, 1 - Math.log1p(Math.max(0, now - time) / RECENT) / Math.log1p(span / RECENT)));
}

function ticksOf(kind, from, now, width) {
  if (kind === "even") {
    const step = STEPS.find((each) => (now - from) / each <= width / 95) ?? STEPS.at(-1);
    const zone = new Date(now * 1000).getTimezoneOffset() * 60;
    const ticks = [];
    for (let at = Math.ceil((from - zone) / step) * step + zone; at <= now; at += step) {
      const moment = shownMoment(at);
      ticks.push([at, step >= DAY ? moment.slice(0, 10) : step >= MINUTE ? moment.slice(11, 16) : moment.slice(11)]);
    }
    return ticks;
  }
  return [[now, "now"], ...AGES.filter((age) => age < now - from).map((age) => [now - age, shownAge(age)])];
}

export function lineageView() {
  const picture = svg("svg", { class: "lineage", role: "img" });
  const text = h("p", { class: "soft", role: "status" });
  const source = h("p", { class: "soft" });
  const choice = h("select", { onchange: () => choose(choice.value) });
  const buttons = [["even", "even time"], ["recent", "recent time wider"]].map(([kind, label]) => h("button", { type: "button", onclick: () => { chosenScale = kind; draw(); } }, label));
  const rows = h("div", {});
  const list = h("details", { ontoggle: () => showRows() }, h("summary", {}, "As a table"), rows);
  const boxes = new Map();
  let [shards, notes, now, chosenScale, width] = [[], {}, 0, null, 0];

  const choose = (id) => {
    picture.querySelector(".chosen")?.classList.remove("chosen");
    const shard = shards.find((each) => each.shard_id === id);
    text.textContent = shard ? describe(shard, notes[id]) : "Choose a shard, in the picture or here, to see when it was created and closed.";
    choice.value = shard ? id : "";
    boxes.get(id)?.box.classList.add("chosen");
  };
  picture.addEventListener("click", (event) => { if (event.target.dataset.shard) choose(event.target.dataset.shard); });

  const showRows = () => {
    if (!list.open) return;
    const cells = (name, values) => h("tr", {}, values.map((value) => h(name, name === "th" ? { scope: "col" } : {}, value)));
    rows.replaceChildren(h("div", { class: "wide", role: "region", tabindex: "0", "aria-label": "Shards by time" }, h("table", {},
      h("thead", {}, cells("th", ["shard", "state", "created", "closed", "from", "replaced by"])),
      h("tbody", {}, shards.map((shard) => cells("td", [short(shard.shard_id), shard.state, shownRange(shard.created), shard.closed ? shownRange(shard.closed) : "-", shard.parents.map(short).join(", ") || "-", shard.children.map(short).join(", ") || "-"]))))));
  };

  // On an even time scale, shards with short lives are too narrow to see. If there are any, recent time gets more room by default.
  const defaultScale = (from) => {
    const starts = [...new Set(shards.map((shard) => Math.round(middle(shard.created))))].sort((a, b) => a - b);
    const gaps = [...starts.slice(1), now].map((at, place) => at - starts[place]);
    return starts.length > 1 && Math.min(...gaps) < 0.04 * (now - from) ? "recent" : "even";
  };

  // In pixels, so that the text stays readable
  const room = () => Math.min(1240, Math.max(280, (picture.parentElement?.clientWidth || innerWidth - 40) - 2));

  const draw = () => {
    if (!shards.length) return;
    width = room();
    const open = shards.filter((shard) => shard.state === "open").length;
    const height = Math.min(420, Math.max(120, 26 * Math.max(open, 4)));
    const from = Math.min(...shards.map((shard) => shard.created.low));
    const kind = chosenScale ?? defaultScale(from);
    const place = scaleOf(kind, from, now);
    const x = (time) => place(time) * width;
    const starts = new Map(shards.map((shard) => [shard.shard_id, middle(shard.created)]));
    picture.setAttribute("viewBox", `0 0 ${width} ${height + AXIS}`);
    buttons.forEach((button, at) => button.setAttribute("aria-pressed", String(["even", "recent"][at] === kind)));
    for (const shard of shards) {
      const { box, haze, label } = boxes.get(shard.shard_id);
      const heirs = shard.children.map((id) => starts.get(id)).filter((at) => at !== undefined); // no gap where one second ends and the next begins
      const [left, right] = [x(starts.get(shard.shard_id)), heirs.length ? x(Math.min(...heirs)) : shard.closed ? x(middle(shard.closed)) : width];
      const [top, tall] = [(Number(shard.starting_hash_key) / 2 ** 128) * height, shard.share * height];
      const size = { x: left.toFixed(1), y: top.toFixed(2), width: Math.max(1.5, right - left - 1).toFixed(1), height: Math.max(0.4, tall - (tall > 4 ? 1 : 0.1)).toFixed(2) };
      for (const [name, value] of Object.entries(size)) box.setAttribute(name, value);
      const [low, high] = [x(shard.created.low), x(shard.created.high)];
      const isHazy = shard.created.high - shard.created.low > 2 && high - low >= 4;
      haze.toggleAttribute("hidden", !isHazy);
      if (isHazy) for (const [name, value] of Object.entries({ ...size, x: low.toFixed(1), width: (high - low).toFixed(1) })) haze.setAttribute(name, value);
      const isLabelled = tall > 13 && right - left > 9 * label.textContent.length + 8;
      label.toggleAttribute("hidden", !isLabelled);
      if (isLabelled) [label.setAttribute("x", (left + 6).toFixed(1)), label.setAttribute("y", (top + tall / 2 + 4).toFixed(1))];
    }
    drawAxis(ticksOf(kind, from, now, width), x, height);
    const resharded = new Set(shards.filter((shard) => shard.parents.length).map((shard) => Math.round(middle(shard.created)))).size;
    const closed = shards.length - open;
    picture.setAttribute("aria-label", `The lineage of the shards, from ${shownMoment(from)} to ${shownMoment(now)}: ${open} open, ${closed} closed, resharded at ${counted(resharded, "time")}. The choice of a shard and the table below have the details.`);
  };

  const axis = svg("g", { class: "axis" });
  const drawAxis = (ticks, x, height) => {
    let free = width; // labels are placed from now backwards, where there is room
    axis.replaceChildren(...ticks.sort((a, b) => b[0] - a[0]).flatMap(([time, label]) => {
      const at = x(time);
      const half = label.length * 3.4 + 4;
      const middleAt = Math.min(at, width - half);
      if (middleAt + half > free || middleAt - half < 0) return [];
      free = middleAt - half;
      return [svg("line", { x1: at, x2: at, y1: 0, y2: height }), svg("text", { x: middleAt, y: height + 14, "text-anchor": "middle" }, label)];
    }));
  };

  const set = (found) => {
    [shards, notes, now] = [found.shards, found.notes, found.now];
    boxes.clear();
    const parts = [];
    for (const shard of shards) {
      const parts1 = { box: svg("rect", { class: shard.state, "data-shard": shard.shard_id }), haze: svg("rect", { class: "haze" }), label: svg("text", {}, short(shard.shard_id)) };
      boxes.set(shard.shard_id, parts1);
      parts.push(parts1.box);
    }
    picture.replaceChildren(axis, ...parts, ...[...boxes.values()].flatMap(({ haze, label }) => [haze, label]));
    const kept = choice.value;
    choice.replaceChildren(h("option", { value: "" }, "none"), ...shards.map((shard) => h("option", { value: shard.shard_id }, `${short(shard.shard_id)} (${shard.state})`)));
    source.textContent = explain(shards);
    draw();
    choose(kept);
    showRows();
  };
  // Marks the shards that are hot now in red, as in the list of shards.
  const mark = (hot) => {
    for (const box of picture.querySelectorAll(".is-hot")) if (!hot.has(box.dataset.shard)) box.classList.remove("is-hot");
    for (const id of hot) boxes.get(id)?.box.classList.add("is-hot");
  };
  // Moves the picture on with the time, without a call to the console.
  const tick = (time) => {
    if (time < now + 5) return;
    now = time;
    draw();
  };
  const element = h("div", {}, h("div", { class: "views" }, h("span", { role: "group", "aria-label": "Time scale", class: "views" }, buttons), h("label", { class: "inline" }, "shard ", choice)), picture, text, source, list);
  new ResizeObserver(() => { if (room() !== width) draw(); }).observe(element);
  return { element, set, tick, mark };
}
