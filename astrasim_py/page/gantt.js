// The Gantt chart: a row for each rank, the critical path over it, and the time cursor.

import { timeText } from "./data.js";
import { colourOf, colours, font, prepared, textOn, zoom } from "./view.js";

/** Heights of a row at most, and of one that is read, CSS pixels; of a row with computation above communication. */
const [ROW, SPLIT] = [17, 28];
const MOST_CANVAS = 16000;
/** A bar narrower than this is not told from its neighbours, CSS pixels. */
const NARROW = 0.5;

/** What of the chart is shown: its time from `from` to `to`; `tall`: rows that can be read, else all in sight. */
function axisOf(width, view) {
  const left = 60 * zoom();
  return { left, x: (time) => left + ((width - left - 8) * (time - view.from)) / Math.max(view.to - view.from, 1) };
}

function topOf() {
  return 19 * zoom();
}

function localKinds(bars) {
  return bars.kinds.map((kind) => ["compute", "forward", "backward", "optimizer", "other compute", "memory"].includes(kind));
}

/** Whether rows have computation in their upper half, so that communication beside it is seen. */
function isSplit({ bars }) {
  const local = (bars.local ??= localKinds(bars));
  const present = (bars.present ??= [...new Set(bars.kind)]);
  return present.some((kind) => local[kind]) && present.some((kind) => !local[kind]);
}

/** Height that a chart takes if there is room. */
export function ganttHeight(run) {
  return topOf() + run.bars.ranks.length * (isSplit(run) ? SPLIT : ROW) * zoom() + 6;
}

/** The height of a row: all share the height of the chart, or as high as they are read. */
function rowHeight(run, height, tall) {
  const count = Math.max(run.bars.ranks.length, 1);
  const full = (isSplit(run) ? SPLIT : ROW) * zoom();
  const least = Math.min(0.5, MOST_CANVAS / count);
  return Math.max(tall ? Math.min(full, MOST_CANVAS / count) : least, Math.min(full, (height - topOf() - 6) / count));
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

/** A step of 1, 2 or 5 times a power of ten, so that there are at most `most` of them. */
function stepFor(span, most) {
  const power = 10 ** Math.floor(Math.log10(Math.max(span, 1) / most));
  return [1, 2, 5, 10].map((times) => times * power).find((step) => span / step <= most);
}

function drawAxis(context, run, x, view, width, row) {
  const { ranks } = run.bars;
  const top = topOf();
  context.font = font(11);
  context.textBaseline = "top";
  context.textAlign = "center";
  const step = stepFor(view.to - view.from, Math.max((width - x(view.from)) / (95 * zoom()), 1));
  for (let time = Math.ceil(view.from / step) * step; time <= view.to; time += step) {
    const text = timeText(time).replace(/\.0+(?= )|(?<=\.\d*[1-9])0+(?= )/, "");
    context.fillStyle = colours().line;
    context.fillRect(x(time), top - 4, 1, 4);
    context.fillStyle = colours().soft;
    context.fillText(text, Math.min(x(time), width - context.measureText(text).width / 2 - 2), 2);
  }
  context.textAlign = "right";
  context.textBaseline = "middle";
  const every = 2 ** Math.ceil(Math.log2(Math.max((13 * zoom()) / row, 1)));
  for (let place = 0; place < ranks.length; place += every) {
    context.fillText(`rank ${ranks[place]}`, x(view.from) - 6, top + (place + 0.5) * row);
  }
}

function drawBars(context, run, x, view, row) {
  const { bars } = run;
  const split = row >= 6 && isSplit(run);
  const top = new Map(bars.ranks.map((rank, place) => [rank, topOf() + place * row]));
  const bar = (split ? row / 2 : row) - (row > 3 ? 1 : 0);
  context.font = font(Math.min(11, (bar - 1.5) / zoom()));
  context.textAlign = "left";
  context.textBaseline = "middle";
  let narrow = 0;
  for (let i = 0; i < bars.rank.length; i++) {
    if (bars.end[i] < view.from || bars.start[i] > view.to) continue;
    const begin = x(Math.max(bars.start[i], view.from));
    const wide = x(Math.min(bars.end[i], view.to)) - begin;
    if (wide < NARROW) narrow++;
    const kind = bars.kinds[bars.kind[i]];
    const y = top.get(bars.rank[i]) + (split && !bars.local[bars.kind[i]] ? row / 2 : 0);
    context.fillStyle = colourOf(kind);
    // A receive is posted long before its message comes.
    context.globalAlpha = kind === "recv" ? 0.35 : 1;
    // Whole pixels: thin rows look alike.
    const high = split ? Math.floor(bar) : Math.round(y + bar) - Math.round(y);
    context.fillRect(begin, Math.round(y), Math.max(wide, 0.5), Math.max(high, 1));
    context.globalAlpha = 1;
    const text = bars.names[bars.name[i]];
    if (bar < 10 || !text || wide < 3 * text.length || context.measureText(text).width > wide - 6) continue;
    context.fillStyle = textOn(colourOf(kind));
    context.fillText(text, begin + 3, y + bar / 2 + 0.5);
  }
  return narrow;
}

function drawPath(context, run, x, view, row) {
  context.strokeStyle = colours().path;
  context.lineWidth = 1.6 * zoom();
  context.beginPath();
  let last = null;
  for (const [start, end, , rank] of run.path) {
    if (rank < 0 || end < view.from || start > view.to) continue;
    const y = topOf() + (placeOf(run.bars.ranks, rank) + 0.5) * row;
    if (last !== null && last !== y) context.lineTo(x(start), last), context.lineTo(x(start), y);
    else context.moveTo(x(start), y);
    context.lineTo(x(end), y);
    last = y;
  }
  context.stroke();
}

/** The chart without the cursor is drawn once and kept, for it holds very many bars. */
function background(run, width, height, row, view) {
  const key = [width, height, row, view.from, view.to, colours().back, zoom()].join();
  if (run.gantt?.key === key) return run.gantt;
  const canvas = document.createElement("canvas");
  const ratio = window.devicePixelRatio || 1;
  [canvas.width, canvas.height] = [Math.round(width * ratio), Math.round(height * ratio)];
  const context = canvas.getContext("2d");
  context.scale(ratio, ratio);
  const { left, x } = axisOf(width, view);
  drawAxis(context, run, x, view, width, row);
  context.beginPath();
  context.rect(left, 0, width - left, height);
  context.clip();
  const narrow = drawBars(context, run, x, view, row);
  drawPath(context, run, x, view, row);
  return (run.gantt = { key, canvas, row, narrow });
}

/** Draw the chart; returns what a person should know of what cannot be seen in it. */
export function drawGantt(canvas, run, time, view) {
  const pane = canvas.parentElement.clientHeight;
  const row = rowHeight(run, pane, view.tall);
  const wanted = Math.max(topOf() + run.bars.ranks.length * row + 6, pane);
  const { context, width, height } = prepared(canvas, wanted);
  const chart = background(run, width, height, row, view);
  context.drawImage(chart.canvas, 0, 0, width, height);
  const { x } = axisOf(width, view);
  // A pale edge, so that the cursor is seen on bars of every colour.
  for (const [colour, wide] of [[colours().back, 4], [colours().cursor, 1.5]]) {
    context.strokeStyle = colour;
    context.lineWidth = wide * zoom();
    context.beginPath();
    context.moveTo(x(Math.min(time, view.to)), topOf() - 4);
    context.lineTo(x(Math.min(time, view.to)), height);
    context.stroke();
  }
  return unseen(run, chart, pane, wanted);
}

function unseen(run, { row, narrow }, pane, wanted) {
  const count = run.bars.ranks.length;
  const notes = [];
  if (run.bars.note) notes.push(run.bars.note);
  const rows = Math.floor((pane - topOf()) / row);
  if (wanted > pane + 1 && rows < count) notes.push(`${count - rows} of ${count} rows are out of sight: scroll the chart`);
  else if (row < 5 && !run.bars.note) notes.push(`${count} rows in sight: r makes them taller`);
  if (narrow) notes.push(`${narrow.toLocaleString("en")} bars are too short to be told apart: + enlarges the time`);
  return notes.join("; ");
}

/** What the critical path does at a time. */
export function pathText(run, time) {
  const piece = run.path.find(([start, end]) => start <= time && time < end);
  if (!piece) return "";
  const [, , category, rank, link] = piece;
  const parts = [`Critical path now: ${category.replaceAll("_", " ")}`];
  if (rank >= 0) parts.push(`rank ${rank}`);
  if (link >= 0) parts.push(`link ${run.links.name[link]}`);
  return parts.join(", ");
}

/** The time at a place of the chart. */
export function ganttTime(canvas, view, px) {
  const { left } = axisOf(0, view);
  const share = (px - left) / ((canvas.clientWidth || 600) - left - 8);
  return view.from + Math.min(Math.max(share, 0), 1) * (view.to - view.from);
}
