// Who has which chunk: a matrix of ranks and chunks of the collective that is under way.

import { PALETTE, channels, colours, prepared, zoom } from "./view.js";

/** For each collective with chunks: its deliveries in the order of time, and how often each cell gets something. */
function deliveries(run) {
  if (run.deliveries) return run.deliveries;
  const found = new Map();
  const { messages } = run;
  for (let m = 0; m < (messages.first?.length ?? 0); m++) {
    if (messages.first[m] < 0 || messages.delivered[m] < 0) continue;
    let one = found.get(messages.instance[m]);
    if (!one) found.set(messages.instance[m], (one = { chunks: messages.of[m], rows: [], row: new Map() }));
    one.rows.push(m);
    one.row.set(messages.dst[m], 0);
  }
  for (const one of found.values()) {
    one.rows.sort((a, b) => messages.delivered[a] - messages.delivered[b]);
    one.ranks = [...one.row.keys()].sort((a, b) => a - b);
    one.ranks.forEach((rank, row) => one.row.set(rank, row));
    one.all = new Uint32Array(one.ranks.length * one.chunks);
    for (const m of one.rows) eachCell(one, messages, m, (cell) => one.all[cell]++);
    one.canvas = document.createElement("canvas");
    [one.canvas.width, one.canvas.height] = [one.chunks, one.ranks.length];
    reset(one);
  }
  return (run.deliveries = found);
}

function eachCell(one, messages, m, act) {
  const from = one.row.get(messages.dst[m]) * one.chunks + messages.first[m];
  for (let cell = from; cell < from + messages.count[m]; cell++) act(cell);
}

function reset(one) {
  one.got = new Uint32Array(one.all.length);
  one.next = 0;
  one.image = new ImageData(one.chunks, one.ranks.length);
}

/** Play deliveries up to a time: only cells that change are coloured again, a pixel each. */
function playTo(one, messages, time) {
  const [part, full] = [PALETTE.chunk_part, PALETTE.chunk_all].map(channels);
  if (one.next && messages.delivered[one.rows[one.next - 1]] > time) reset(one);
  while (one.next < one.rows.length && messages.delivered[one.rows[one.next]] <= time) {
    eachCell(one, messages, one.rows[one.next++], (cell) => {
      const share = ++one.got[cell] / one.all[cell];
      // From pale to full, then another colour when all is there.
      one.image.data.set(share === 1 ? [...full, 255] : [...part, 90 + 165 * share], 4 * cell);
    });
  }
  one.canvas.getContext("2d").putImageData(one.image, 0, 0);
}

/** The collective to show at a time: the last one that has begun, of those with chunks. */
function collectiveAt(run, time) {
  let best = null;
  for (const one of run.collectives) {
    if (one.start <= time && deliveries(run).has(one.instance) && (!best || one.start >= best.start)) best = one;
  }
  return best ?? run.collectives.find((one) => deliveries(run).has(one.instance)) ?? null;
}

function ranksText(ranks) {
  const [first, last] = [ranks[0], ranks.at(-1)];
  if (last - first === ranks.length - 1) return `ranks ${first}–${last}`;
  return `ranks ${ranks.length > 6 ? [...ranks.slice(0, 3), "…", last].join(", ") : ranks.join(", ")}`;
}

/** Whether a run has a collective whose chunks are known. */
export function hasChunks(run) {
  return deliveries(run).size > 0;
}

export function drawChunks(canvas, label, run, time) {
  const collective = collectiveAt(run, time);
  if (!collective) return;
  const one = deliveries(run).get(collective.instance);
  playTo(one, run.messages, time);
  const { context, width, height } = prepared(canvas);
  const high = Math.min(height, 26 * zoom() * one.ranks.length);
  context.fillStyle = colours().panel;
  context.fillRect(0, 0, width, high);
  context.imageSmoothingEnabled = false;
  context.drawImage(one.canvas, 0, 0, width, high);
  drawLattice(context, width / one.chunks, high / one.ranks.length, width, high);
  label.textContent =
    `Chunks of ${collective.name}: ${ranksText(one.ranks)} × ${one.chunks} chunks`;
}

/** Lines between cells that are large enough. */
function drawLattice(context, wide, high, width, height) {
  if (wide < 6 || high < 5) return;
  context.fillStyle = colours().back;
  for (let x = wide; x < width - 1; x += wide) context.fillRect(x - 0.5, 0, 1, height);
  for (let y = high; y < height - 1; y += high) context.fillRect(0, y - 0.5, width, 1);
}

/** What the colours of cells mean: text and colour of each. */
export function chunkKeys() {
  const part = PALETTE.chunk_part;
  return [
    ["nothing yet", "var(--panel)"],
    ["a part of what it gets, the fuller the more", `linear-gradient(90deg, ${part}5a, ${part})`],
    ["all that it gets", PALETTE.chunk_all],
  ];
}
