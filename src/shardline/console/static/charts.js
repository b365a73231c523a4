// Draws the strip chart of a shard and the lineage of a stream.

const LIMITS = [1000, 1024 * 1024];
const SECONDS = 120;
const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

// A strip of two minutes: each second's share of the nearer of the two limits of a shard.
export function drawStrip(canvas, seconds, now) {
  const width = (canvas.width = Math.max(canvas.clientWidth, 60) * devicePixelRatio);
  const height = (canvas.height = 44 * devicePixelRatio);
  const context = canvas.getContext("2d");
  const limit = height * 0.2;
  context.strokeStyle = colour("--line");
  context.beginPath();
  context.moveTo(0, limit);
  context.lineTo(width, limit);
  context.stroke();
  const step = width / SECONDS;
  for (const [second, records, bytes] of seconds) {
    const share = Math.max(records / LIMITS[0], bytes / LIMITS[1]);
    const top = Math.max(0, height - share * (height - limit));
    context.fillStyle = colour(share >= 0.8 ? "--hot" : "--bar");
    context.fillRect(width - (now - second) * step, top, Math.max(1, step - 0.5), height - top);
  }
}

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
  const [width, height] = [1000, Math.min(420, Math.max(120, 26 * shards.length))];
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
