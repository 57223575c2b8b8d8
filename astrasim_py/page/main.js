// The page: one or two runs, one clock.

import { timeText, unpack } from "./data.js";
import { PALETTE, STEPS, colourOf, isDark, lookOf, themeChanged } from "./view.js";
import { drawNetwork, hit, nameOf } from "./network.js";
import { drawGantt, ganttHeight, ganttTime, pathText } from "./gantt.js";
import { chunkKeys, drawChunks, hasChunks } from "./chunks.js";
import { element, showDetails } from "./details.js";

export const by = (id) => document.getElementById(id);
export const state = {
  runs: [], time: 0, span: 1, moments: [], playing: 0, chosen: null, of: 0, last: 0, dirty: true,
  view: { from: 0, to: 1, tall: false },
};
window.page = state; // for tests and for the curious

function block(kind, name, ...children) {
  return Object.assign(element(kind, null, ...children), { className: name });
}

function panelOf(run, index) {
  const parts = { title: block("h2", "title"), path: block("p", "path"), unseen: block("p", "unseen"), label: block("p", "label") };
  for (const name of ["network", "gantt", "chunks"]) parts[name] = block("canvas", name);
  const notes = [`engine: ${run.engine}`, ...(run.trainings || [])];
  if (run.aggregated) notes.push("too many messages to draw one by one: links show their use over time");
  if (run.status !== "done") notes.push(`${run.status}: ${run.cause}`);
  parts.title.append(`${run.title}: ${timeText(run.makespan)}`, block("small", "", notes.join("; ")));
  for (const name of ["network", "gantt"]) parts[name].setAttribute("aria-label", `${name} of ${run.title}`);
  parts.network.addEventListener("click", (event) => choose(index, hitAt(run, event)));
  parts.network.addEventListener("pointermove", (event) => (parts.network.title = nameOf(run, hitAt(run, event))));
  const seek = (event) => {
    if (event.buttons) setTime(ganttTime(parts.gantt, state.view, event.offsetX));
  };
  parts.gantt.addEventListener("pointerdown", seek);
  parts.gantt.addEventListener("pointermove", seek);
  run.parts = parts;
  const scene = block("div", "scene plain", block("div", "pane", parts.network));
  if (hasChunks(run)) {
    scene.className = "scene";
    scene.append(block("div", "grid", parts.label, block("div", "pane", parts.chunks)));
  }
  return block("section", "run", parts.title, scene, block("div", "pane gantt", parts.gantt), block("div", "below", parts.path, parts.unseen));
}

function hitAt(run, event) {
  return hit(run, Math.min(state.time, run.makespan), event.offsetX, event.offsetY);
}

/** A legend: text and colour of each key; `height` of a line, if it is one. */
function keysOf(title, keys) {
  return block("div", "keys", element("h3", title), ...keys.map(([text, colour, height]) => {
    const box = block("i", height ? "line" : "");
    box.style.background = colour;
    if (height) box.style.height = `${height}px`;
    return block("span", "", box, text);
  }));
}

/** Choose a link, a vertex or a message of a run; null: nothing. */
export function choose(of, chosen) {
  [state.of, state.chosen, state.dirty] = [of, chosen, true];
  if (!chosen) by("details").textContent = "Click a link, an NPU or a message.";
  document.dispatchEvent(new CustomEvent("chosen"));
}

/** Choose the link, NPU or switch of a name, in the first run that has it. */
function find(name) {
  for (const [of, { links, vertices }] of state.runs.entries()) {
    for (const [kind, names] of [["vertex", vertices.name], ["link", links.name]]) {
      const index = names.indexOf(name.trim());
      if (index < 0) continue;
      by("find").value = "";
      return choose(of, { kind, index });
    }
  }
  by("details").textContent = `Nothing is called "${name}": write the number of an NPU, the name of a switch, or a link as 0->1.`;
}

export function setTime(time) {
  state.time = Math.min(Math.max(time, 0), state.span);
  state.dirty = true;
}

/** Play forward (1), backward (-1), or stop (0). */
export function setPlaying(direction) {
  state.playing = Number(direction);
  if (direction > 0 && state.time >= state.span) state.time = 0;
  if (direction < 0 && state.time <= 0) state.time = state.span;
  state.last = 0;
  for (const [id, way, text] of [["play", 1, "Play ▶"], ["reverse", -1, "◀ Play"]]) {
    by(id).textContent = state.playing === way ? "Pause" : text;
    by(id).setAttribute("aria-pressed", String(state.playing === way));
  }
}

function toggle(direction) {
  setPlaying(state.playing === direction ? 0 : direction);
}

/** How many events of any run are at a time or before it. */
function eventsUntil(time) {
  let [low, high] = [0, state.moments.length];
  while (low < high) {
    const middle = (low + high) >> 1;
    if (state.moments[middle] <= time) low = middle + 1;
    else high = middle;
  }
  return low;
}

/** Go to the next (1) or the previous (-1) event of any run. */
function step(direction) {
  setPlaying(0);
  const place = direction > 0 ? eventsUntil(state.time + 0.5) : eventsUntil(state.time - 0.5) - 1;
  setTime(state.moments[place] ?? (direction > 0 ? state.span : 0));
}

function frame(now) {
  if (state.playing) {
    const past = state.last ? ((now - state.last) / 1000) * (state.span / Number(by("speed").value)) : 0;
    setTime(state.time + state.playing * past);
    state.last = now;
    if (state.time >= state.span ? state.playing > 0 : state.time <= 0 && past) setPlaying(0);
  }
  if (state.dirty) draw();
  requestAnimationFrame(frame);
}

/** Turn over the page of an enlarged chart when the time leaves it. */
function follow() {
  const { view } = state;
  const length = view.to - view.from;
  if (state.time >= view.from && state.time <= view.to) return;
  view.from = Math.min(Math.floor(state.time / length) * length, state.span - length);
  view.to = view.from + length;
}

/** Show less (2) or more (0.5) of the time in the chart, around the time of the page. */
function enlarge(times) {
  const { view } = state;
  const length = Math.min(Math.max((view.to - view.from) / times, Math.min(1000, state.span)), state.span);
  const share = (state.time - view.from) / (view.to - view.from);
  view.from = Math.min(Math.max(state.time - share * length, 0), state.span - length);
  view.to = view.from + length;
  state.dirty = true;
}

function toggleRows() {
  state.view.tall = !state.view.tall;
  by("rows").setAttribute("aria-pressed", String(state.view.tall));
  state.dirty = true;
}

function draw() {
  state.dirty = false;
  follow();
  by("now").textContent = `${timeText(state.time)} of ${timeText(state.span)}, event ${eventsUntil(state.time)} of ${state.moments.length}`;
  by("time").value = String(Math.round((10000 * state.time) / state.span));
  const room = Math.max(document.documentElement.clientHeight, 400) * (document.body.classList.contains("present") ? 0.32 : 0.36);
  by("runs").style.setProperty("--gantt", `${Math.ceil(Math.min(room, Math.max(...state.runs.map(ganttHeight)) + 2))}px`);
  state.runs.forEach((run, index) => {
    const mine = state.of === index ? state.chosen : null;
    run.parts.path.textContent = pathText(run, state.time);
    const unseen = drawGantt(run.parts.gantt, run, state.time, state.view);
    if (run.parts.unseen.textContent !== unseen) run.parts.unseen.textContent = unseen;
    if (run.parts.chunks.isConnected) drawChunks(run.parts.chunks, run.parts.label, run, state.time);
    run.drawn = drawNetwork(run.parts.network, run, Math.min(state.time, run.makespan), mine);
  });
  if (state.chosen) showDetails(by("details"), state.runs[state.of], state.chosen, Math.min(state.time, state.runs[state.of].makespan));
}

export function setRuns(runs) {
  state.runs = runs;
  const span = Math.max(1, ...runs.map((run) => run.makespan));
  if (span !== state.span) [state.span, state.view.from, state.view.to] = [span, 0, span];
  const moments = Float64Array.from(runs.flatMap((run) => Array.from(run.moments))).sort();
  state.moments = moments.filter((time, i) => time !== moments[i - 1]);
  choose(0, null);
  document.body.classList.toggle("compare", runs.length > 1);
  by("runs").replaceChildren(...runs.map(panelOf));
  const kinds = new Set(runs.flatMap((run) => run.bars.kind.map((kind) => run.bars.kinds[kind])));
  state.kinds = Object.keys(PALETTE).filter((kind) => kinds.has(kind)).concat([...kinds].filter((kind) => !PALETTE[kind]));
  showLegend();
  setTime(state.time);
}

function showLegend() {
  const keys = state.kinds.map((kind) => [kind, colourOf(kind)]);
  const busy = STEPS.map((most, step) => [`${step ? STEPS[step - 1] : 0}–${most} %`, lookOf(step).colour, lookOf(step).width]);
  const { waiting, broken } = PALETTE;
  const waits = `linear-gradient(${waiting} 30%, ${lookOf(4).colour} 30% 70%, ${waiting} 70%)`;
  const others = [["idle", "var(--idle)", 1], ["messages wait for it, the wider the more", waits, 12]];
  if (state.runs.some((run) => run.broken.length)) others.push(["broken (dashed)", broken, 2]);
  const groups = [
    ["Bars and messages", [...keys, ["critical path", "var(--path)", 2]]],
    ["Links busy", [...busy, ...others]],
  ];
  if (state.runs.some(hasChunks)) groups.push(["Chunks: a rank (row) has received of a chunk (column)", chunkKeys()]);
  by("legend").replaceChildren(...groups.map(([title, entries]) => keysOf(title, entries)));
  by("legend").children[2]?.classList.add("of-chunks");
}

function setTheme(name) {
  document.documentElement.dataset.theme = name;
  themeChanged();
  showLegend();
  state.dirty = true;
}

function toggleTheme() {
  setTheme(isDark() ? "light" : "dark");
}

/** Large type for a projector, without what is not needed to play. */
function setPresent(on) {
  document.body.classList.toggle("present", on);
  by("large").setAttribute("aria-pressed", String(on));
  if (by("find") === document.activeElement) by("find").blur();
  state.dirty = true;
}

function togglePresent() {
  setPresent(!document.body.classList.contains("present"));
}

/** `?present` or `#present` in the address: large type; `embed`: the run alone, as part of another page. */
function readAddress() {
  const words = `${location.search.slice(1)}&${location.hash.slice(1)}`.split("&");
  document.body.classList.add(words.includes("embed") ? "embed" : "whole");
  if (words.includes("present")) setPresent(true);
  if (words.includes("play")) setPlaying(1);
}

/** Paper is white: canvases are drawn again in the light theme before printing. */
function listenToPrinter() {
  let before = null;
  window.addEventListener("beforeprint", () => {
    before = isDark() ? "dark" : "light";
    setTheme("light");
    draw();
  });
  window.addEventListener("afterprint", () => setTheme(before ?? "light"));
}

function listen() {
  const clicks = {
    play: () => toggle(1), reverse: () => toggle(-1), back: () => step(-1), forward: () => step(1), theme: toggleTheme,
    large: togglePresent, rows: toggleRows, wider: () => enlarge(2), narrower: () => enlarge(0.5),
  };
  for (const [id, act] of Object.entries(clicks)) by(id).addEventListener("click", act);
  by("time").addEventListener("input", () => setTime((Number(by("time").value) / 10000) * state.span));
  by("find").addEventListener("change", () => find(by("find").value));
  const system = matchMedia("(prefers-color-scheme: dark)");
  const likeSystem = () => setTheme(system.matches ? "dark" : "light");
  system.addEventListener("change", likeSystem);
  likeSystem();
  listenToPrinter();
  window.addEventListener("resize", () => (state.dirty = true));
  window.addEventListener("hashchange", readAddress);
  const keys = {
    " ": clicks.play, b: clicks.reverse, ArrowRight: clicks.forward, ArrowLeft: clicks.back, Home: () => setTime(0),
    End: () => setTime(state.span), t: toggleTheme, p: togglePresent, Escape: () => setPresent(false), r: toggleRows,
    "+": clicks.wider, "=": clicks.wider, "-": clicks.narrower,
  };
  window.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    if (["INPUT", "SELECT", "TEXTAREA"].includes(event.target.tagName) && event.target.type !== "range") return;
    const act = keys[event.key.length === 1 ? event.key.toLowerCase() : event.key];
    if (!act || (event.key === " " && event.target.tagName === "BUTTON")) return;
    event.preventDefault();
    act();
  });
}

async function begin() {
  const texts = [...document.querySelectorAll("script.run")].map((one) => one.textContent);
  setRuns(await Promise.all(texts.map(unpack)));
  listen();
  readAddress();
  requestAnimationFrame(frame);
  document.body.dataset.ready = "yes";
  document.dispatchEvent(new CustomEvent("ready"));
}

begin();
