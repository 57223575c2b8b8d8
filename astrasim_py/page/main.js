// The page: one or two runs, one clock.

import { timeText, unpack } from "./data.js";
import { KIND_COLOURS, themeChanged } from "./view.js";
import { drawNetwork, hit } from "./network.js";
import { drawGantt, ganttAt } from "./gantt.js";
import { drawChunks } from "./chunks.js";
import { showDetails } from "./details.js";

const by = (id) => document.getElementById(id);
const state = { runs: [], time: 0, span: 1, playing: false, chosen: null, of: 0, last: 0, frames: [], dirty: true };
window.page = state; // for tests and for the curious

function panelOf(run, index) {
  const section = document.createElement("section");
  section.className = "run";
  const parts = {};
  for (const [name, kind] of [["title", "h2"], ["note", "p"], ["network", "canvas"], ["gantt", "canvas"], ["label", "p"], ["chunks", "canvas"]]) {
    parts[name] = document.createElement(kind);
    parts[name].classList.add(name);
    section.append(parts[name]);
  }
  parts.title.textContent = `${run.title}: ${timeText(run.makespan)}`;
  const notes = [`engine: ${run.engine}`];
  if (run.aggregated) notes.push("too many messages to draw one by one: links show their use over time");
  if (run.status !== "done") notes.push(`${run.status}: ${run.cause}`);
  parts.note.textContent = notes.join("; ");
  parts.label.classList.add("note");
  for (const name of ["network", "gantt"]) parts[name].setAttribute("aria-label", `${name} of ${run.title}`);
  parts.network.addEventListener("click", (event) => {
    state.chosen = hit(run, state.time, event.offsetX, event.offsetY);
    state.of = index;
    state.dirty = true;
    document.dispatchEvent(new CustomEvent("chosen"));
  });
  const seek = (event) => {
    if (event.buttons) setTime(ganttAt(parts.gantt, run, state.span, event.offsetX, event.offsetY).time);
  };
  parts.gantt.addEventListener("pointerdown", seek);
  parts.gantt.addEventListener("pointermove", seek);
  run.parts = parts;
  return section;
}

export function setTime(time) {
  state.time = Math.min(Math.max(time, 0), state.span);
  state.dirty = true;
}

export function setPlaying(playing) {
  state.playing = playing;
  if (playing && state.time >= state.span) state.time = 0;
  state.last = 0;
  state.frames = [];
  by("play").textContent = playing ? "Pause" : "Play";
  by("play").setAttribute("aria-pressed", String(playing));
}

/** Go to the next (1) or the previous (-1) event of any run. */
function step(direction) {
  setPlaying(false);
  let best = direction > 0 ? state.span : 0;
  for (const { moments } of state.runs) {
    let [low, high] = [0, moments.length];
    while (low < high) {
      const middle = (low + high) >> 1;
      if (moments[middle] < state.time + (direction > 0 ? 0.5 : -0.5)) low = middle + 1;
      else high = middle;
    }
    const found = direction > 0 ? moments[low] : moments[low - 1];
    if (found !== undefined) best = direction > 0 ? Math.min(best, found) : Math.max(best, found);
  }
  setTime(best);
}

function frame(now) {
  if (state.playing) {
    if (state.last) setTime(state.time + ((now - state.last) / 1000) * (state.span / Number(by("speed").value)));
    state.last = now;
    state.frames.push(now);
    while (state.frames[0] < now - 1000) state.frames.shift();
    by("rate").textContent = `${state.frames.length} frames/s`;
    if (state.time >= state.span) setPlaying(false);
  }
  if (state.dirty) draw();
  requestAnimationFrame(frame);
}

function draw() {
  state.dirty = false;
  by("now").textContent = `${timeText(state.time)} of ${timeText(state.span)}`;
  by("time").value = String(Math.round((10000 * state.time) / state.span));
  state.runs.forEach((run, index) => {
    const mine = state.of === index ? state.chosen : null;
    run.drawn = drawNetwork(run.parts.network, run, Math.min(state.time, run.makespan), mine);
    drawGantt(run.parts.gantt, run, state.time, state.span);
    drawChunks(run.parts.chunks, run.parts.label, run, state.time);
  });
  if (state.chosen) showDetails(by("details"), state.runs[state.of], state.chosen, Math.min(state.time, state.runs[state.of].makespan));
}

export function setRuns(runs) {
  state.runs = runs;
  state.span = Math.max(1, ...runs.map((run) => run.makespan));
  state.chosen = null;
  by("runs").replaceChildren(...runs.map(panelOf));
  const kinds = new Set(runs.flatMap((run) => run.bars.kind.map((kind) => run.bars.kinds[kind])));
  const keys = [...kinds].map((kind) => [kind, KIND_COLOURS[kind] ?? KIND_COLOURS.metadata]);
  by("legend").replaceChildren(
    ...[...keys, ["busy link", "hsl(0 90% 35%)"], ["idle link", "var(--idle)"], ["critical path", "var(--path)"]].map(([text, colour]) => {
      const [span, box] = [document.createElement("span"), document.createElement("i")];
      box.style.background = colour;
      span.append(box, text);
      return span;
    }),
  );
  setTime(0);
}

function toggleTheme() {
  const root = document.documentElement;
  const dark = root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
  root.dataset.theme = dark ? "light" : "dark";
  themeChanged();
  state.dirty = true;
}

function listen() {
  by("play").addEventListener("click", () => setPlaying(!state.playing));
  by("back").addEventListener("click", () => step(-1));
  by("forward").addEventListener("click", () => step(1));
  by("theme").addEventListener("click", toggleTheme);
  by("time").addEventListener("input", () => setTime((Number(by("time").value) / 10000) * state.span));
  window.addEventListener("resize", () => (state.dirty = true));
  window.addEventListener("keydown", (event) => {
    if (["INPUT", "SELECT", "TEXTAREA"].includes(event.target.tagName) && event.target.type !== "range") return;
    const act = { " ": () => setPlaying(!state.playing), ArrowRight: () => step(1), ArrowLeft: () => step(-1), Home: () => setTime(0), End: () => setTime(state.span), t: toggleTheme }[event.key];
    if (!act || (event.key === " " && event.target.tagName === "BUTTON")) return;
    event.preventDefault();
    act();
  });
}

async function begin() {
  const texts = [...document.querySelectorAll("script.run")].map((one) => one.textContent);
  setRuns(await Promise.all(texts.map(unpack)));
  listen();
  requestAnimationFrame(frame);
  document.body.dataset.ready = "yes";
}

begin();
