// The Gantt chart: a row for each rank, the critical path over it, and the time cursor.

import { timeText } from "./data.js";
import { colourOf, colours, prepared, textOn } from "./view.js";

const LEFT = 52;
const TOP = 18;
const MOST_HEIGHT = 420;
const MOST_CANVAS = 4000;

function axis(run, width, span) {
  return { x: (time) => LEFT + ((width - LEFT - 8) * time) / Math.max(span, 1) };
}

/** The ranks that have a row, and its height: many share the height of the chart, very many make it higher. */
function rowsOf(run) {
  const { ranks } = run.bars;
  const least = Math.min(2, MOST_CANVAS / ranks.length);
  return { ranks, height: Math.max(least, Math.min(16, (MOST_HEIGHT - TOP - 8) / ranks.length)) };
}

/** Where the row of a rank begins, in rows; of a rank without one, between its neighbours. */
function placeOf(ranks, rank) {
  let [low, high] = [0, ranks.length];
  while (low < high) {
    const middle = (low + high) >> 1;
    if (ranks[middle] < rank) low = middle + 1;
    else high = middle;
  }
  return ranks[low] === rank ? low : low - 0.5;
}

/** The chart without the cursor is drawn once and kept, for it holds very many bars. */
function background(run, width, height, span) {
  const { ranks, height: row } = rowsOf(run);
  const key = [width, height, span, colours().back].join();
  if (run.gantt?.key === key) return run.gantt.canvas;
  const canvas = document.createElement("canvas");
  const ratio = window.devicePixelRatio || 1;
  [canvas.width, canvas.height] = [Math.round(width * ratio), Math.round(height * ratio)];
  const context = canvas.getContext("2d");
  context.scale(ratio, ratio);
  const { x } = axis(run, width, span);
  const colour = colours();
  context.font = "10px system-ui, sans-serif";
  context.fillStyle = colour.soft;
  context.textBaseline = "top";
  context.textAlign = "center";
  for (let tick = 0; tick <= 4; tick++) context.fillText(timeText((span * tick) / 4), Math.min(x((span * tick) / 4), width - 26), 3);
  const { bars } = run;
  const top = new Map(ranks.map((rank, place) => [rank, TOP + place * row]));
  // Computation covers the upper half of a row, so that communication beside it is seen.
  const local = bars.kinds.map((kind) => kind === "compute" || kind === "memory");
  const half = row >= 6 && bars.kind.some((kind) => local[kind]);
  for (let i = 0; i < bars.rank.length; i++) {
    const y = top.get(bars.rank[i]);
    const begin = x(bars.start[i]);
    const wide = Math.max(x(bars.end[i]) - begin, 0.5);
    const kind = bars.kinds[bars.kind[i]];
    context.fillStyle = colourOf(kind);
    const below = half && !local[bars.kind[i]];
    // A receive is posted long before its message comes.
    context.globalAlpha = kind === "recv" ? 0.35 : 1;
    context.fillRect(begin, y + (below ? row / 2 : 0), wide, (half ? row / 2 : row) - (row > 3 ? 0.8 : 0));
    context.globalAlpha = 1;
    const text = bars.names[bars.name[i]];
    if (row >= 12 && text && wide > 7 * text.length) {
      context.fillStyle = textOn(colourOf(kind));
      context.textAlign = "left";
      context.fillText(text, begin + 3, y + (below ? row / 2 : 0));
    }
  }
  context.fillStyle = colour.soft;
  context.textAlign = "right";
  const every = Math.ceil(11 / row);
  for (let place = 0; place < ranks.length; place += every) context.fillText(`rank ${ranks[place]}`, LEFT - 5, TOP + place * row);
  context.strokeStyle = colour.path;
  context.lineWidth = 1.6;
  context.beginPath();
  let last = null;
  for (const [start, end, , rank] of run.path) {
    if (rank < 0) continue;
    const y = TOP + (placeOf(ranks, rank) + 0.5) * row;
    if (last !== null && last !== y) context.lineTo(x(start), last), context.lineTo(x(start), y);
    else context.moveTo(x(start), y);
    context.lineTo(x(end), y);
    last = y;
  }
  context.stroke();
  run.gantt = { key, canvas };
  return canvas;
}

export function drawGantt(canvas, run, time, span) {
  const { ranks, height: row } = rowsOf(run);
  const { context, width, height } = prepared(canvas, TOP + ranks.length * row + 6);
  context.drawImage(background(run, width, height, span), 0, 0, width, height);
  const { x } = axis(run, width, span);
  // A pale edge, so that the cursor is seen on bars of every colour.
  for (const [colour, wide] of [[colours().back, 4], [colours().cursor, 1.5]]) {
    context.strokeStyle = colour;
    context.lineWidth = wide;
    context.beginPath();
    context.moveTo(x(Math.min(time, span)), TOP - 4);
    context.lineTo(x(Math.min(time, span)), height);
    context.stroke();
  }
}

/** What the critical path does at a time. */
export function pathText(run, time) {
  const piece = run.path.find(([start, end]) => start <= time && time < end);
  if (!piece) return "";
  const [, , category, rank, link, message] = piece;
  const parts = [`Critical path now: ${category.replaceAll("_", " ")}`];
  if (rank >= 0) parts.push(`rank ${rank}`);
  if (link >= 0) parts.push(`link ${run.links.name[link]}`);
  return parts.join(", ");
}

/** The time at a place of the chart. */
export function ganttTime(canvas, span, px) {
  const share = (px - LEFT) / ((canvas.clientWidth || 600) - LEFT - 8);
  return Math.min(Math.max(share, 0), 1) * span;
}
