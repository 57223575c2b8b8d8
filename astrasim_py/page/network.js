// The topology and the messages that move on its links.

import { useAt } from "./data.js";
import { PALETTE, colours, heat, prepared } from "./view.js";

const MARGIN = 26;

/** The curve of a link in the plane: bent to one side, so that both directions and long links are seen apart. */
function curveOf(x, y, from, to, near) {
  const [dx, dy] = [x[to] - x[from], y[to] - y[from]];
  const bend = Math.hypot(dx, dy) > 1.6 * near ? 0.18 : 0.09;
  return [x[from], y[from], (x[from] + x[to]) / 2 - dy * bend, (y[from] + y[to]) / 2 + dx * bend, x[to], y[to]];
}

/** Distance of the two vertices that are closest, among those that follow each other from left to right or upwards. */
function closest(px, py) {
  let least = Infinity;
  for (const [first, second] of [[px, py], [py, px]]) {
    const order = px.map((_, v) => v).sort((a, b) => first[a] - first[b] || second[a] - second[b]);
    for (let i = 1; i < order.length; i++) {
      const [a, b] = [order[i - 1], order[i]];
      const distance = Math.hypot(px[a] - px[b], py[a] - py[b]);
      if (distance > 0.5) least = Math.min(least, distance);
    }
  }
  return least;
}

/** Places of vertices in pixels, and the curve of every link. */
export function laidOut(run, width, height) {
  const { x, y } = run.vertices;
  const { src, dst } = run.links;
  // Links that failed before the run come last.
  const ends = [...src.map((from, link) => [from, dst[link]]), ...run.broken];
  const lengths = src.map((from, link) => Math.hypot(x[from] - x[dst[link]], y[from] - y[dst[link]])).filter((one) => one > 0);
  const near = lengths.length ? Math.min(...lengths.slice(0, 5000)) : 1;
  const plane = ends.map(([from, to]) => curveOf(x, y, from, to, near));
  // A quadratic curve reaches half of the way to its control point.
  let [x0, x1, y0, y1] = [Infinity, -Infinity, Infinity, -Infinity];
  const include = (a, b) => ([x0, x1, y0, y1] = [Math.min(x0, a), Math.max(x1, a), Math.min(y0, b), Math.max(y1, b)]);
  x.forEach((value, v) => include(value, y[v]));
  for (const [ax, ay, bx, by, cx, cy] of plane) include((ax + 2 * bx + cx) / 4, (ay + 2 * by + cy) / 4);
  const fit = (space, span) => (space - 2 * MARGIN) / Math.max(span, 1e-9);
  const unit = Math.min(fit(width, x1 - x0), fit(height, y1 - y0), 400);
  const placeX = (value) => width / 2 + (value - (x0 + x1) / 2) * unit;
  const placeY = (value) => height / 2 - (value - (y0 + y1) / 2) * unit;
  const curves = plane.map((curve) => curve.map((value, i) => (i % 2 ? placeY(value) : placeX(value))));
  const [px, py] = [x.map(placeX), y.map(placeY)];
  return { px, py, curves, radius: Math.max(2, Math.min(13, 0.3 * closest(px, py))), width, height };
}

export function pointOn(curve, share) {
  const [ax, ay, bx, by, cx, cy] = curve;
  const rest = 1 - share;
  return [
    rest * rest * ax + 2 * rest * share * bx + share * share * cx,
    rest * rest * ay + 2 * rest * share * by + share * share * cy,
  ];
}

/** How far a hop is at a time: 0 to 1; -1 while it waits. */
function progress(hops, row, time) {
  if (time < hops.start[row]) return -1;
  return hops.arrive[row] > hops.start[row] ? (time - hops.start[row]) / (hops.arrive[row] - hops.start[row]) : 1;
}

export function drawNetwork(canvas, run, time, chosen) {
  const wanted = Math.min(Math.max(300, (canvas.clientWidth || 600) * 0.62), 560);
  const { context, width, height } = prepared(canvas, wanted);
  if (!run.layout || run.layout.width !== width || run.layout.height !== height) {
    run.layout = laidOut(run, width, height);
    run.layout.idle = new Path2D();
    for (const [ax, ay, bx, by, cx, cy] of run.layout.curves.slice(0, run.links.src.length)) {
      run.layout.idle.moveTo(ax, ay);
      run.layout.idle.quadraticCurveTo(bx, by, cx, cy);
    }
  }
  const { px, py, curves, radius } = run.layout;
  const colour = colours();
  context.lineWidth = 1;
  context.strokeStyle = colour.idle;
  context.stroke(run.layout.idle);
  const thin = Math.max(0.8, Math.min(3, 60 / Math.sqrt(curves.length)));
  for (const link of run.use.link) {
    const { busy, queue } = useAt(run, link, time);
    if (!busy && !queue) continue;
    const [ax, ay, bx, by, cx, cy] = curves[link];
    context.beginPath();
    context.moveTo(ax, ay);
    context.quadraticCurveTo(bx, by, cx, cy);
    context.strokeStyle = heat(busy);
    context.lineWidth = thin + Math.min(2 * Math.log2(1 + queue), 9);
    context.stroke();
  }
  const first = run.links.src.length;
  for (const curve of curves.slice(first)) outline(context, curve, PALETTE.broken);
  if (chosen?.kind === "link") outline(context, curves[chosen.index], colour.cursor);
  if (chosen?.kind === "broken") outline(context, curves[first + chosen.index], colour.cursor);
  const drawn = drawMessages(context, run, time, curves, radius, chosen);
  drawVertices(context, run, px, py, radius, colour, chosen);
  return drawn;
}

function outline(context, [ax, ay, bx, by, cx, cy], colour) {
  context.beginPath();
  context.moveTo(ax, ay);
  context.quadraticCurveTo(bx, by, cx, cy);
  context.strokeStyle = colour;
  context.lineWidth = 2;
  context.setLineDash([5, 4]);
  context.stroke();
  context.setLineDash([]);
}

function drawMessages(context, run, time, curves, radius, chosen) {
  const { hops, messages } = run;
  const size = Math.max(1.6, Math.min(5, radius * 0.5));
  const byColour = new Map();
  let drawn = 0;
  for (const row of run.bin.at(time)) {
    if (time < hops.start[row] || time > hops.arrive[row]) continue;
    const [x, y] = pointOn(curves[hops.link[row]], progress(hops, row, time));
    const message = hops.message[row];
    const name = run.colourOf.get(messages.instance[message]) ?? PALETTE.send;
    if (!byColour.has(name)) byColour.set(name, new Path2D());
    const path = byColour.get(name);
    path.moveTo(x + size, y);
    path.arc(x, y, chosen?.kind === "message" && chosen.index === message ? 2 * size : size, 0, 7);
    drawn++;
  }
  context.lineWidth = 1.2;
  context.strokeStyle = colours().back; // an edge, so that dots are seen on a link of their colour
  byColour.forEach((path, name) => {
    context.stroke(path);
    context.fillStyle = name;
    context.fill(path);
  });
  return drawn;
}

function drawVertices(context, run, px, py, radius, colour, chosen) {
  const { name, switch: isSwitch, failed } = run.vertices;
  const named = px.length <= 144 && radius >= 7;
  const switchesNamed = named || isSwitch.reduce((sum, one) => sum + one, 0) <= 32;
  context.textAlign = "center";
  context.textBaseline = "middle";
  context.font = `${Math.max(8, radius * 0.95)}px system-ui, sans-serif`;
  for (let v = 0; v < px.length; v++) {
    context.beginPath();
    if (isSwitch[v]) context.rect(px[v] - radius, py[v] - radius, 2 * radius, 2 * radius);
    else context.arc(px[v], py[v], radius, 0, 7);
    context.fillStyle = failed[v] ? PALETTE.broken : isSwitch[v] ? colour.line : colour.vertex;
    context.fill();
    context.lineWidth = chosen?.kind === "vertex" && chosen.index === v ? 3 : 1;
    context.strokeStyle = colour.text;
    context.stroke();
    if (isSwitch[v] ? switchesNamed : named) {
      context.fillStyle = colour.text;
      const y = isSwitch[v] ? py[v] - radius - 7 : py[v];
      if (isSwitch[v]) [context.lineWidth, context.strokeStyle] = [3, colour.back]; // an edge, to be read on links
      if (isSwitch[v]) context.strokeText(name[v], px[v], y);
      context.fillText(name[v], px[v], y);
    }
  }
}

/** What is at a place of the canvas: {kind: "message" | "vertex" | "link" | "broken", index}, or null. */
export function hit(run, time, x, y) {
  const { px, py, curves, radius } = run.layout;
  for (let v = 0; v < px.length; v++) if (Math.hypot(px[v] - x, py[v] - y) <= radius + 1) return { kind: "vertex", index: v };
  let best = null;
  let least = 8;
  for (const row of run.bin.at(time)) {
    if (time < run.hops.start[row] || time > run.hops.arrive[row]) continue;
    const [mx, my] = pointOn(curves[run.hops.link[row]], progress(run.hops, row, time));
    const distance = Math.hypot(mx - x, my - y);
    if (distance < least) [least, best] = [distance, { kind: "message", index: run.hops.message[row] }];
  }
  if (best) return best;
  curves.forEach((curve, link) => {
    for (let i = 1; i < 20; i++) {
      const [cx, cy] = pointOn(curve, i / 20);
      const distance = Math.hypot(cx - x, cy - y);
      const broken = link - run.links.src.length;
      if (distance < least) [least, best] = [distance, broken < 0 ? { kind: "link", index: link } : { kind: "broken", index: broken }];
    }
  });
  return best;
}
