// Draws strip charts with uPlot, and the lineage of a stream.

/* global uPlot */
const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
const SECONDS = 120;

// Charts exist only while they are on the screen: a page with a thousand shards draws a dozen.
const charts = new Map();
const seen = new IntersectionObserver((entries) => {
  for (const entry of entries) {
    const chart = charts.get(entry.target);
    if (chart && entry.isIntersecting) chart.open();
    else chart?.close();
  }
}, { rootMargin: "100px" });
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => charts.forEach((chart) => chart.redraw()));
addEventListener("resize", () => charts.forEach((chart) => chart.resize()));

// A chart over time. `series` are {label, colour, fill}; `limit` draws a line; `axes` shows a scale.
export function timeChart(box, { series, limit, height = 48, axes = false, value = (number) => String(number), top = 1, seconds = SECONDS }) {
  let data = [[], ...series.map(() => [])];
  let [plot, now] = [null, Date.now() / 1000];
  const frame = axes ? { stroke: () => colour("--soft"), grid: { stroke: () => colour("--line"), width: 1 }, ticks: { show: false }, font: "11px system-ui" } : { show: false };
  const options = () => ({
    width: Math.max(60, box.clientWidth), height, pxAlign: 0, legend: { show: false }, cursor: { show: false }, padding: axes ? [8, 4, 0, 0] : [2, 0, 0, 0],
    scales: { x: { time: true, range: () => [now - Math.min(seconds, Math.max(SECONDS, now - (data[0][0] ?? now))), now] }, y: { range: (_, __, most) => [0, Math.max(top, most ?? 0)] } },
    axes: [{ ...frame, size: 22, space: 70, values: (_, ticks) => ticks.map((tick) => new Date(tick * 1000).toLocaleTimeString("en-GB")) }, { ...frame, size: 62, space: 26, values: (_, ticks) => ticks.map(value) }],
    series: [{}, ...series.map((line) => ({ label: line.label, stroke: () => colour(line.colour), fill: line.fill ? () => colour(line.fill) : undefined, width: 1.5, points: { show: false }, spanGaps: true, paths: line.bars ? uPlot.paths.bars({ size: [0.9, 12] }) : undefined }))],
    hooks: { draw: limit == null ? [] : [(u) => {
      const y = u.valToPos(limit, "y", true);
      u.ctx.strokeStyle = colour("--limit");
      u.ctx.setLineDash([4, 3]);
      u.ctx.beginPath();
      u.ctx.moveTo(u.bbox.left, y);
      u.ctx.lineTo(u.bbox.left + u.bbox.width, y);
      u.ctx.stroke();
      u.ctx.setLineDash([]);
    }] },
  });
  const chart = {
    open() { plot ??= new uPlot(options(), data, box); },
    close() { plot?.destroy(); plot = null; },
    redraw() { plot?.redraw(false, true); },
    resize() { plot?.setSize({ width: Math.max(60, box.clientWidth), height }); },
    set(rows, at) { now = at; data = rows; plot?.setData(rows); },
    remove() { chart.close(); seen.unobserve(box); charts.delete(box); },
  };
  box.setAttribute("role", "img");
  box.setAttribute("aria-label", `${series.map((line) => line.label).join(" and ")}: no figures yet`);
  charts.set(box, chart);
  seen.observe(box);
  return chart;
}

export const forgetCharts = () => charts.forEach((chart) => chart.remove());

const svg = (name, attributes, text) => {
  const element = document.createElementNS("http://www.w3.org/2000/svg", name);
  for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
  if (text !== undefined) element.textContent = text;
  return element;
};

// Time from left to right, hash keys from top to bottom. A sequence number contains no time that AWS documents, so
// time is the order in which the shards were created: one column for each generation.
export function drawLineage(shards) {
  const known = new Map(shards.map((shard) => [shard.shard_id, shard]));
  const generation = new Map();
  const find = (shard) => {
    if (!generation.has(shard.shard_id)) {
      const parents = shard.parents.map((id) => known.get(id)).filter(Boolean);
      generation.set(shard.shard_id, parents.length ? 1 + Math.max(...parents.map(find)) : 0);
    }
    return generation.get(shard.shard_id);
  };
  const oldestFirst = [...shards].sort((a, b) => (BigInt(a.starting_sequence_number) < BigInt(b.starting_sequence_number) ? -1 : 1));
  oldestFirst.forEach(find);
  const columns = 1 + Math.max(0, ...generation.values());
  const width = Math.min(1240, Math.max(280, innerWidth - 40)); // in pixels, so that the text stays readable
  const height = Math.min(420, Math.max(120, 26 * shards.length));
  const picture = svg("svg", { class: "lineage", viewBox: `0 0 ${width} ${height}`, role: "img" });
  picture.append(svg("title", {}, "The lineage of the shards: oldest on the left, hash keys from top to bottom"));
  const whole = 2 ** 128;
  for (const shard of shards) {
    const from = generation.get(shard.shard_id);
    const children = shard.children.map((id) => generation.get(id)).filter((value) => value !== undefined);
    const to = children.length ? Math.min(...children) : shard.state === "open" ? columns : from + 1;
    const x = (from / columns) * width;
    const y = (Number(shard.starting_hash_key) / whole) * height;
    const box = svg("rect", {
      x, y, width: ((to - from) / columns) * width - 2, height: Math.max(0.5, shard.share * height - 1), class: shard.state,
    });
    box.append(svg("title", {}, `${shard.shard_id}, ${shard.state}, ${(shard.share * 100).toFixed(2)} % of the hash keys`));
    picture.append(box);
    if (shard.share * height > 13) picture.append(svg("text", { x: x + 6, y: y + (shard.share * height) / 2 + 4 }, String(Number(shard.shard_id.slice(8)))));
  }
  return picture;
}
