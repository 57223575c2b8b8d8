// The topology and the messages that move on its links.

import { useAt } from "./data.js";
import { PALETTE, STEPS, colours, font, lookOf, prepared, stepOf, zoom } from "./view.js";

const MARGIN = 28;
/** How much a link is bent: the part of its length by which its middle stands aside, twice. */
const BENDS = [0.09, 0.05, 0.13, 0.17, 0.22, 0.26, 0.32, 0.4];
/** More links × vertices than this are all bent alike. */
const MOST_PAIRS = 500_000;

/** The curve of a link in the plane: bent to one side, so that both directions are seen apart. */
function curveOf(x, y, from, to, bend) {
  const [dx, dy] = [x[to] - x[from], y[to] - y[from]];
  return [x[from], y[from], (x[from] + x[to]) / 2 - dy * bend, (y[from] + y[to]) / 2 + dx * bend, x[to], y[to]];
}

/** How near a curve comes to a vertex that it does not join. */
function clearanceOf(curve, x, y, from, to) {
  let least = Infinity;
  for (let i = 1; i < 24; i++) {
    const [cx, cy] = pointOn(curve, i / 24);
    for (let v = 0; v < x.length; v++) {
      if (v === from || v === to) continue;
      const square = (x[v] - cx) ** 2 + (y[v] - cy) ** 2;
      if (square < least) least = square;
    }
  }
  return Math.sqrt(least);
}

/** Distance of the two vertices that are closest. */
function closest(px, py) {
  const order = px.map((_, v) => v).sort((a, b) => px[a] - px[b]);
  let least = Infinity;
  for (let i = 0; i < order.length; i++) {
    for (let j = i + 1; j < order.length && px[order[j]] - px[order[i]] < least; j++) {
      const distance = Math.hypot(px[order[i]] - px[order[j]], py[order[i]] - py[order[j]]);
      if (distance > 1e-6) least = Math.min(least, distance);
    }
  }
  return Number.isFinite(least) ? least : 1;
}

/** The curve of every link, as little bent as it stands clear of other vertices, and the least distance from one. */
function curvesOf(x, y, ends) {
  const near = closest(x, y);
  const many = ends.length * x.length > MOST_PAIRS;
  let clear = Infinity;
  const plane = ends.map(([from, to]) => {
    let [best, most] = [null, -1];
    const long = Math.hypot(x[to] - x[from], y[to] - y[from]) > 1.6 * near;
    for (const bend of many ? [long ? 0.18 : 0.09] : BENDS) {
      const curve = curveOf(x, y, from, to, bend);
      const distance = many ? near : clearanceOf(curve, x, y, from, to);
      if (distance > most + 0.02 * near) [best, most] = [curve, distance];
      if (most > 0.32 * near) break;
    }
    clear = Math.min(clear, most);
    return best;
  });
  return { plane, clear: Math.max(clear, 0.1 * near) };
}

/** Places of vertices in pixels, and the curve of every link. */
export function laidOut(run, width, height) {
  const { x, y } = run.vertices;
  const { src, dst } = run.links;
  // Links that failed before the run come last.
  const { plane, clear } = (run.plane ??= curvesOf(x, y, [...src.map((from, link) => [from, dst[link]]), ...run.broken]));
  // A quadratic curve reaches half of the way to its control point.
  let [x0, x1, y0, y1] = [Infinity, -Infinity, Infinity, -Infinity];
  const include = (a, b) => ([x0, x1, y0, y1] = [Math.min(x0, a), Math.max(x1, a), Math.min(y0, b), Math.max(y1, b)]);
  x.forEach((value, v) => include(value, y[v]));
  for (const [ax, ay, bx, by, cx, cy] of plane) include((ax + 2 * bx + cx) / 4, (ay + 2 * by + cy) / 4);
  const fit = (space, span) => Math.max(space - 2 * MARGIN, 20) / Math.max(span, 1e-9);
  const unit = Math.min(fit(width, x1 - x0), fit(height, y1 - y0), 400);
  const placeX = (value) => width / 2 + (value - (x0 + x1) / 2) * unit;
  const placeY = (value) => height / 2 - (value - (y0 + y1) / 2) * unit;
  const curves = plane.map((curve) => curve.map((value, i) => (i % 2 ? placeY(value) : placeX(value))));
  const [px, py] = [x.map(placeX), y.map(placeY)];
  const room = Math.min((zoom() > 1 ? 0.27 : 0.32) * closest(px, py), 0.9 * clear * unit);
  return { px, py, curves, radius: Math.max(1.5, Math.min(13 * zoom(), room)), width, height, zoom: zoom() };
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
  const { context, width, height } = prepared(canvas);
  const before = run.layout;
  if (!before || before.width !== width || before.height !== height || before.zoom !== zoom()) {
    run.layout = laidOut(run, width, height);
    run.layout.idle = pathOf(run.layout.curves.slice(0, run.links.src.length));
  }
  const { px, py, curves, radius } = run.layout;
  const colour = colours();
  context.lineWidth = 1;
  context.strokeStyle = colour.idle;
  context.stroke(run.layout.idle);
  drawUse(context, run, time, curves, Math.max(0.35, Math.min(radius / 12, zoom())));
  const first = run.links.src.length;
  for (const curve of curves.slice(first)) outline(context, curve, PALETTE.broken);
  if (chosen?.kind === "link") outline(context, curves[chosen.index], colour.cursor);
  if (chosen?.kind === "broken") outline(context, curves[first + chosen.index], colour.cursor);
  const drawn = drawMessages(context, run, time, curves, radius, chosen);
  drawVertices(context, run, px, py, radius, colour, chosen);
  return drawn;
}

function pathOf(curves) {
  const path = new Path2D();
  for (const [ax, ay, bx, by, cx, cy] of curves) {
    path.moveTo(ax, ay);
    path.quadraticCurveTo(bx, by, cx, cy);
  }
  return path;
}

/** Links that are busy: colour and width by their use; a bright edge is the wider the more messages wait. */
function drawUse(context, run, time, curves, thin) {
  const steps = STEPS.map(() => []);
  const waiting = new Map();
  for (const link of run.use.link) {
    const { busy, queue } = useAt(run, link, time);
    if (!busy && !queue) continue;
    const step = busy ? stepOf(busy) : 0;
    steps[step].push(curves[link]);
    const edge = queue ? Math.round(3 + Math.min(2 * Math.log2(1 + queue), 8)) : 1;
    const key = `${step} ${edge}`;
    if (!waiting.has(key)) waiting.set(key, []);
    waiting.get(key).push(curves[link]);
  }
  for (const [key, rows] of waiting) {
    const [step, edge] = key.split(" ").map(Number);
    context.strokeStyle = edge > 1 ? PALETTE.waiting : colours().soft;
    context.lineWidth = lookOf(step).width * thin + edge * Math.max(thin, 0.6);
    context.stroke(pathOf(rows));
  }
  steps.forEach((rows, step) => {
    if (!rows.length) return;
    const look = lookOf(step);
    [context.strokeStyle, context.lineWidth] = [look.colour, look.width * thin];
    context.stroke(pathOf(rows));
  });
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
  const size = Math.max(1.8, Math.min(5 * zoom(), radius * 0.5));
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
  for (let v = 0; v < px.length; v++) {
    context.beginPath();
    if (isSwitch[v]) context.rect(px[v] - radius, py[v] - radius, 2 * radius, 2 * radius);
    else context.arc(px[v], py[v], radius, 0, 7);
    context.fillStyle = failed[v] ? PALETTE.broken : isSwitch[v] ? colour.line : colour.vertex;
    context.fill();
    context.lineWidth = chosen?.kind === "vertex" && chosen.index === v ? 3 : 1;
    context.strokeStyle = colour.text;
    context.stroke();
  }
  context.textAlign = "center";
  context.textBaseline = "middle";
  context.fillStyle = colour.text;
  [context.lineWidth, context.strokeStyle] = [3, colour.back]; // an edge, to be read on links
  const written = [];
  const beside = (v, x, y) => {
    const half = context.measureText(name[v]).width / 2 + 2;
    if (written.some((other) => Math.abs(other.x - x) < other.half + half && Math.abs(other.y - y) < 10 * zoom())) return;
    written.push({ x, y, half });
    context.strokeText(name[v], x, y);
    context.fillText(name[v], x, y);
  };
  const inside = radius >= 6 * zoom();
  const npus = isSwitch.flatMap((one, v) => (one ? [] : [v]));
  const switches = isSwitch.flatMap((one, v) => (one ? [v] : []));
  // Names inside of NPUs where they can be read, else beside about sixteen of them.
  const every = inside ? 1 : 2 ** Math.max(Math.ceil(Math.log2(npus.length / 16)), 0);
  context.font = inside ? `${Math.max(8, radius * 0.95)}px system-ui, sans-serif` : font(10);
  npus.forEach((v, place) => {
    if (inside) context.fillText(name[v], px[v], py[v]);
    else if (place % every === 0) beside(v, px[v] - radius - 5 * zoom(), py[v] - radius - 3 * zoom());
  });
  context.font = font(11);
  for (const v of switches) beside(v, px[v], py[v] - radius - 7 * zoom());
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

/** What a person calls something that `hit` returns. */
export function nameOf(run, thing) {
  const { links, vertices, messages } = run;
  if (!thing) return "";
  const names = {
    vertex: (v) => `${vertices.switch[v] ? "switch" : "NPU"} ${vertices.name[v]}`,
    link: (link) => `link ${links.name[link]}`,
    message: (m) => `message from rank ${messages.src[m]} to ${messages.dst[m]}`,
    broken: (index) => `broken link ${run.broken[index].map((v) => vertices.name[v]).join("–")}`,
  };
  return names[thing.kind](thing.index);
}
