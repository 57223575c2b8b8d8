// The page: one or two runs, one clock.

import { timeText, unpack } from "./data.js";
import { PALETTE, colourOf, heat, isDark, themeChanged } from "./view.js";
import { drawNetwork, hit } from "./network.js";
import { drawGantt, ganttTime, pathText } from "./gantt.js";
import { drawChunks } from "./chunks.js";
import { showDetails } from "./details.js";

export const by = (id) => document.getElementById(id);
export const state = { runs: [], time: 0, span: 1, playing: false, chosen: null, of: 0, last: 0, frames: [], dirty: true };
window.page = state; // for tests and for the curious

function panelOf(run, index) {
  const section = document.createElement("section");
  section.className = "run";
  const parts = {};
  for (const [name, kind] of [["title", "h2"], ["note", "p"], ["network", "canvas"], ["gantt", "canvas"], ["path", "p"], ["label", "p"], ["chunks", "canvas"]]) {
    parts[name] = document.createElement(kind);
    parts[name].classList.add(name);
    section.append(parts[name]);
  }
  parts.title.textContent = `${run.title}: ${timeText(run.makespan)}`;
  const notes = [`engine: ${run.engine}`];
  if (run.bars.note) notes.push(run.bars.note);
  if (run.aggregated) notes.push("too many messages to draw one by one: links show their use over time");
  if (run.status !== "done") notes.push(`${run.status}: ${run.cause}`);
  parts.note.textContent = notes.join("; ");
  parts.label.classList.add("note");
  parts.path.classList.add("note");
  for (const name of ["network", "gantt"]) parts[name].setAttribute("aria-label", `${name} of ${run.title}`);
  parts.network.addEventListener("click", (event) => {
    choose(index, hit(run, Math.min(state.time, run.makespan), event.offsetX, event.offsetY));
  });
  const seek = (event) => {
    if (event.buttons) setTime(ganttTime(parts.gantt, state.span, event.offsetX));
  };
  parts.gantt.addEventListener("pointerdown", seek);
  parts.gantt.addEventListener("pointermove", seek);
  run.parts = parts;
  return section;
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
    run.parts.path.textContent = pathText(run, state.time);
    drawChunks(run.parts.chunks, run.parts.label, run, state.time);
  });
  if (state.chosen) showDetails(by("details"), state.runs[state.of], state.chosen, Math.min(state.time, state.runs[state.of].makespan));
}

export function setRuns(runs) {
  state.runs = runs;
  state.span = Math.max(1, ...runs.map((run) => run.makespan));
  choose(0, null);
  by("runs").replaceChildren(...runs.map(panelOf));
  const kinds = new Set(runs.flatMap((run) => run.bars.kind.map((kind) => run.bars.kinds[kind])));
  state.kinds = [...kinds].map((kind) => [kind, colourOf(kind)]);
  showLegend();
  setTime(state.time);
}

function showLegend() {
  const use = `linear-gradient(90deg, ${[0, 0.5, 1].map(heat).join()})`;
  const keys = [...state.kinds, ["critical path", "var(--path)"], ["idle link", "var(--idle)"], ["link busy 0 to 100 %; thicker: messages wait", use]];
  if (state.runs.some((run) => run.broken.length)) keys.push(["broken link (dashed)", PALETTE.broken]);
  by("legend").replaceChildren(
    ...keys.map(([text, colour]) => {
      const [span, box] = [document.createElement("span"), document.createElement("i")];
      box.style.background = colour;
      if (colour === use) box.classList.add("wide");
      span.append(box, text);
      return span;
    }),
    "Dots are messages, in the colour of their collective.",
  );
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
  by("play").addEventListener("click", () => setPlaying(!state.playing));
  by("back").addEventListener("click", () => step(-1));
  by("forward").addEventListener("click", () => step(1));
  by("theme").addEventListener("click", toggleTheme);
  by("time").addEventListener("input", () => setTime((Number(by("time").value) / 10000) * state.span));
  by("find").addEventListener("change", () => find(by("find").value));
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", ({ matches }) => setTheme(matches ? "dark" : "light"));
  listenToPrinter();
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
  document.dispatchEvent(new CustomEvent("ready"));
}

begin();
