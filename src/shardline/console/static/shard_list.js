// Shows the shards of a stream as cards. Only the cards on the screen exist: they are moved and filled again while the
// user scrolls, so that a thousand shards cost as much as thirty.

import { h, visible, write } from "/app.js";
import { timeChart } from "/charts.js";

const [RECORDS_MAX, BYTES_MAX] = [1000, 1048576];
const [CARD_WIDTH, CARD_HEIGHT, GAP] = [250, 108, 10];
const ALL_MAX = 60; // up to this many cards are all drawn at once, so that the browser also finds text in them
const KEPT = 125;
const AHEAD = 1; // rows above and below the screen, which also keeps the Tab key going from card to card
const SECONDS = 122;

const short = (id) => String(Number(id.replace("shardId-", "")));
const percent = (share) => `${(share * 100).toFixed(share < 0.1 ? 2 : 1)} %`;
const number = (value) => value.toLocaleString("en");
const size = (bytes) => (bytes < 1024 ? `${Math.round(bytes)} B` : bytes < BYTES_MAX ? `${(bytes / 1024).toFixed(1)} KiB` : `${(bytes / BYTES_MAX).toFixed(2)} MiB`);

// The traffic that is known about one shard, whether the shard is on the screen or not.
class Traffic {
  constructor(id) {
    this.id = id;
    this.rows = new Map();
    [this.load, this.hot, this.keys] = [0, false, ""];
  }

  add(traffic, now) {
    for (const row of traffic?.seconds ?? []) this.rows.set(row[0], row);
    for (const second of this.rows.keys()) {
      if (second >= now - KEPT) break; // the oldest come first
      this.rows.delete(second);
    }
    [this.load, this.hot] = [traffic?.load ?? 0, traffic?.hot ?? false];
    if (traffic?.keys.length) this.keys = `top keys: ${traffic.keys.slice(0, 3).map((key) => `${key.key} ${percent(key.share)}`).join(", ")}`;
  }
}

class Card {
  constructor(pathOf) {
    this.pathOf = pathOf;
    this.place = -1;
    this.link = h("a", {});
    this.rate = h("span", { class: "soft" });
    this.box = h("div", { class: "strip" });
    this.keys = h("div", { class: "soft keys" });
    this.item = h("li", {}, h("div", { class: "row" }, this.link, this.rate), this.box, this.keys);
    this.chart = timeChart(this.box, { series: [{ label: "records", colour: "--bar", fill: "--fill" }, { label: "bytes", colour: "--second" }], limit: 1, top: 1.15, always: true });
  }

  bind(traffic, place, count) {
    [this.place, this.traffic] = [place, traffic];
    write(this.link, `shard ${short(traffic.id)}`);
    this.link.setAttribute("href", `#/${this.pathOf(traffic.id)}`);
    this.item.setAttribute("aria-posinset", place + 1);
    this.item.setAttribute("aria-setsize", count);
  }

  show(now) {
    const { rows, hot, load, keys, id } = this.traffic;
    const last = Math.floor(now) - 1;
    const recent = rows.get(last) ?? rows.get(last - 1) ?? rows.get(last - 2);
    write(this.rate, recent ? `${number(recent[1])} records/s, ${size(recent[2])}/s` : "idle");
    this.rate.className = hot ? "hot" : "soft";
    this.item.classList.toggle("is-hot", hot);
    write(this.keys, keys);
    this.keys.title = visible(keys);
    this.box.setAttribute("aria-label", `shard ${short(id)} uses ${percent(load)} of its limit${hot ? ", it is hot" : ""}`);
    if (!rows.size && this.empty) return; // an empty chart looks like any other empty chart
    this.empty = !rows.size;
    const [seconds, records, bytes] = [[], [], []];
    for (let second = last - SECONDS + 1; second <= last; second++) {
      const row = rows.get(second);
      seconds.push(second);
      records.push(row ? row[1] / RECORDS_MAX : 0);
      bytes.push(row ? row[2] / BYTES_MAX : 0);
    }
    this.chart.set([seconds, records, bytes], now);
  }
}

export function shardList(pathOf, signal) {
  const element = h("ul", { class: "shards" });
  const known = new Map();
  let [order, cards, now, columns, width] = [[], [], Date.now() / 1000, 0, 0];

  // Returns the range of places of the list that are on the screen or near it.
  const window_ = () => {
    if (order.length <= ALL_MAX) return [0, order.length];
    const top = element.getBoundingClientRect().top;
    const row = CARD_HEIGHT + GAP;
    const rows = Math.ceil(order.length / columns);
    // When the list is scrolled off the screen, its nearest row stays, so that the Tab key and screen readers find the list.
    const first = Math.min(rows - 1, Math.max(0, Math.floor(-top / row) - AHEAD));
    const last = Math.max(first + 1 + AHEAD, Math.ceil((innerHeight - top) / row) + AHEAD);
    return [Math.min(first * columns, order.length), Math.min(last * columns, order.length)];
  };
  const position = (card) => {
    card.item.style.transform = `translate(${(card.place % columns) * (width + GAP)}px, ${Math.floor(card.place / columns) * (CARD_HEIGHT + GAP)}px)`;
    card.item.style.width = `${width}px`;
  };
  const measure = () => {
    const whole = element.clientWidth;
    const [before, widthBefore] = [columns, width];
    columns = Math.max(1, Math.floor((whole + GAP) / (CARD_WIDTH + GAP)));
    width = Math.floor((whole - (columns - 1) * GAP) / columns);
    element.style.height = `${Math.ceil(order.length / columns) * (CARD_HEIGHT + GAP)}px`;
    return before !== columns || widthBefore !== width;
  };
  const layout = (isMoved = false) => {
    const wanted = new Set();
    const want = (from, to) => { for (let place = Math.max(0, from); place < Math.min(to, order.length); place++) wanted.add(place); };
    want(...window_());
    // The card with the focus stays, and so do its neighbours, which the Tab key reaches next.
    const held = cards.find((card) => card.item.contains(document.activeElement) && order[card.place] === card.traffic);
    if (held) want(held.place - columns, held.place + columns + 1);
    const shown = new Map();
    const [free, fresh] = [[], []];
    for (const card of cards) {
      if (wanted.has(card.place) && order[card.place] === card.traffic) shown.set(card.place, card);
      else free.push(card);
    }
    for (const place of wanted) {
      if (shown.has(place)) continue;
      const card = free.pop() ?? new Card(pathOf);
      card.bind(order[place], place, order.length);
      shown.set(place, card);
      fresh.push(card);
    }
    for (const card of free) {
      card.chart.remove();
      card.item.remove();
    }
    cards = [...shown.keys()].sort((a, b) => a - b).map((place) => shown.get(place));
    for (const card of fresh) card.item.remove(); // so that only these move: an element that moves loses the focus
    let next = element.firstChild; // the elements are in the order of the shards, for the Tab key and screen readers
    for (const card of cards) {
      if (card.item === next) next = next.nextSibling;
      else element.insertBefore(card.item, next);
    }
    for (const card of isMoved ? cards : fresh) position(card);
    for (const card of isMoved ? cards : []) card.chart.resize();
    for (const card of fresh) card.show(now);
  };

  let waiting = false;
  const onScroll = () => {
    if (waiting || order.length <= ALL_MAX) return;
    waiting = true;
    requestAnimationFrame(() => { waiting = false; layout(); });
  };
  addEventListener("scroll", onScroll, { passive: true, signal });
  element.addEventListener("focusin", () => layout());
  const observer = new ResizeObserver(() => { if (measure()) layout(true); });
  observer.observe(element);
  signal.addEventListener("abort", () => observer.disconnect());

  return {
    element,
    get count() { return order.length; },
    has: (id) => known.has(id),
    // Takes the current open shards. A shard that was in the list before keeps its figures.
    set(ids) {
      const open = new Set(ids);
      for (const id of known.keys()) if (!open.has(id)) known.delete(id);
      for (const id of ids) if (!known.has(id)) known.set(id, new Traffic(id));
      order = ids.map((id) => known.get(id));
      if (!element.isConnected) return;
      measure();
      layout(true);
      cards.forEach((card) => card.item.setAttribute("aria-setsize", order.length));
    },
    update(shards, at) {
      now = at;
      for (const [id, traffic] of known) if (shards[id] || traffic.rows.size || traffic.load) traffic.add(shards[id], now);
      for (const card of cards) card.show(now);
    },
    goTo(id) {
      const place = order.findIndex((traffic) => traffic.id === id);
      if (place < 0) return;
      const row = Math.floor(place / columns) * (CARD_HEIGHT + GAP);
      scrollTo(0, scrollY + element.getBoundingClientRect().top + row - innerHeight / 3);
      layout();
      cards.find((card) => card.place === place)?.link.focus({ preventScroll: true });
    },
  };
}
