// Draws charts over time with uPlot.

/* global uPlot */
const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
const SECONDS = 120;

// Charts exist only while they are on the screen, so that a page with a thousand shards draws only a dozen charts.
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

// A chart over time. `series` are {label, colour, fill}; `limit` draws a line; `axes` shows a scale. A chart that is not
// `always` open exists only while it is on the screen.
export function timeChart(box, { series, limit, height = 48, axes = false, value = (number) => String(number), top = 1, seconds = SECONDS, always = false }) {
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
    set(rows, at) { [now, data] = [at, rows]; if (plot) plot.setData(rows); else if (always && box.isConnected) chart.open(); },
    remove() { chart.close(); seen.unobserve(box); charts.delete(box); },
  };
  box.setAttribute("role", "img");
  box.setAttribute("aria-label", `${series.map((line) => line.label).join(" and ")}: no figures yet`);
  charts.set(box, chart);
  if (!always) seen.observe(box);
  return chart;
}

export const forgetCharts = () => charts.forEach((chart) => chart.remove());
