// Changes of a run that a live engine serves: the form, and what is asked of the server.

import { timeText, unpack } from "./data.js";
import { element } from "./details.js";
import { by, choose, setRuns, state } from "./main.js";

const live = { offers: null, good: null, change: null, beside: null, base: 0, yaml: "", asked: 0, moving: -1 };
window.live = live; // for tests and for the curious

function button(text, title, act) {
  const made = element("button", text);
  made.type = "button";
  made.title = title;
  made.addEventListener("click", act);
  return made;
}

function labelled(text, control) {
  return element("label", `${text} `, control);
}

function makeForm() {
  const { sizes, algorithms } = live.offers;
  const fields = [];
  live.sizes = sizes.map(({ label, value }) => {
    const input = element("input", null);
    [input.value, input.maxLength] = [value, 64];
    fields.push(labelled(`size of ${label}`, input));
    return input;
  });
  if (!sizes.length) fields.push(element("p", "Its workload has no sizes of its own to change."));
  live.algorithms = algorithms.map(({ collective, choices }) => {
    const select = element("select", null, ...choices.map((text, index) => Object.assign(element("option", text), { value: index })));
    fields.push(labelled(`${collective} by`, select));
    return select;
  });
  live.compare = Object.assign(element("input", null), { type: "checkbox", checked: state.runs.length > 1 });
  live.compare.addEventListener("change", (event) => (event.stopPropagation(), show(state.runs[0])));
  const chosen = Object.assign(element("div", null), { id: "chosen" });
  const what = state.runs.length > 1 ? "compare with the second point" : "compare with the unchanged run";
  by("change").replaceChildren(...fields, chosen, element("label", null, live.compare, ` ${what}`), element("div", null,
    button("Undo all", "Back to the stored point", undoAll),
    button("Save as YAML", "Download a scenario that is this run", save),
    button("Stop", "Stop the run that is under way", () => post({ stop: true })),
  ));
  by("change").addEventListener("change", ask);
  by("change").addEventListener("submit", (event) => event.preventDefault());
  by("live").hidden = false;
}

/** What the form and the clicks ask for. */
function wanted() {
  const change = { ...live.change, sizes: {}, algorithms: {} };
  live.sizes.forEach((input, i) => {
    if (input.value.trim() !== live.offers.sizes[i].value) change.sizes[i] = input.value;
  });
  live.algorithms.forEach((select, i) => {
    if (select.value !== "0") change.algorithms[i] = Number(select.value);
  });
  return change;
}

async function post(body) {
  const response = await fetch(`${live.offers.path}run`, {
    method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify(body),
  });
  if (!response.ok) throw new Error(response.status === 503 ? "the server is busy; try again" : await response.text());
  return response.json();
}

function say(text, wrong = false) {
  by("answer").textContent = text;
  by("answer").classList.toggle("wrong", wrong);
}

/** Run what is wanted, and show it, unless something newer is wanted by then. */
export async function ask() {
  const mine = ++live.asked;
  const change = wanted();
  say("running …");
  let answer;
  try {
    answer = await post(change);
  } catch (error) {
    answer = { error: error instanceof TypeError ? "the server has ended" : error.message };
  }
  if (mine !== live.asked) return;
  if (answer.run) {
    const run = await unpack(answer.run);
    if (mine !== live.asked) return;
    [run.failed, live.good, live.yaml] = [change.failed, structuredClone(live.change), answer.yaml];
    const ratio = run.makespan / Math.max(live.base, 1);
    say(`${timeText(run.makespan)}, ${ratio.toFixed(3)} times the ${timeText(live.base)} of the stored point; ran in ${answer.seconds} s`);
    show(run);
  } else {
    live.change = structuredClone(live.good);
    say(answer.error ?? "stopped", Boolean(answer.error));
  }
  live.answered = mine;
}

function show(run) {
  const before = state.chosen && state.of === 0 ? { ...state.chosen, name: state.runs[0].links.name[state.chosen.index] } : null;
  setRuns(live.compare.checked ? [run, live.beside] : [run]);
  if (before?.kind === "vertex") choose(0, before);
  const index = before?.kind === "link" ? run.links.name.indexOf(before.name) : -1;
  if (index >= 0) choose(0, { kind: "link", index });
  showChosen();
}

function undoAll() {
  live.change = { links: [], failed: live.offers.failed, placement: null };
  live.offers.sizes.forEach(({ value }, i) => (live.sizes[i].value = value));
  live.algorithms.forEach((select) => (select.value = "0"));
  live.moving = -1;
  ask();
}

function save() {
  const name = /^name: (.*)$/m.exec(live.yaml)[1];
  const link = element("a", null);
  link.href = URL.createObjectURL(new Blob([live.yaml], { type: "application/yaml" }));
  link.download = `${name}.yaml`;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 1000);
}

/** A vertex as a scenario names it. */
function scenarioName(run, vertex) {
  return run.vertices.switch[vertex] ? run.vertices.name[vertex] : vertex;
}

function linkControls(run, link) {
  const ends = { from: scenarioName(run, run.links.src[link]), to: scenarioName(run, run.links.dst[link]) };
  const input = element("input", null);
  [input.value, input.maxLength] = [`${Number((run.links.bandwidth[link] / 1e9).toPrecision(6))} GB/s`, 64];
  const set = () => {
    const others = live.change.links.filter((one) => one.from !== ends.from || one.to !== ends.to);
    live.change.links = [...others, { ...ends, bandwidth: input.value }];
    ask();
  };
  input.addEventListener("change", (event) => (event.stopPropagation(), set()));
  input.addEventListener("keydown", (event) => event.key === "Enter" && (event.preventDefault(), input.blur()));
  const fail = () => {
    live.change.failed = [...(run.failed ?? live.offers.failed), [ends.from, ends.to]];
    ask();
  };
  return [labelled(`bandwidth of ${ends.from}–${ends.to}, both ways`, input), button("Break it", "Both directions fail before the run", fail)];
}

function brokenControls(run, index) {
  const repair = () => {
    live.change.failed = (run.failed ?? live.offers.failed).filter((_, i) => i !== index);
    ask();
  };
  return [button("Repair it", "The link works again", repair)];
}

function vertexControls(run, vertex) {
  if (run.vertices.switch[vertex]) return [];
  if (live.moving >= 0 && live.moving !== vertex) {
    const other = live.moving;
    const swapped = run.npu_of.map((npu) => (npu === vertex ? other : npu === other ? vertex : npu));
    [live.change.placement, live.moving] = [swapped, -1];
    ask();
    return [];
  }
  if (live.moving >= 0) return [element("p", "Choose the other NPU.")];
  return [button("Swap its rank with …", "Choose the other NPU next", () => ((live.moving = vertex), showChosen()))];
}

/** Controls of what is chosen in the run that can be changed. */
function showChosen() {
  const { chosen, of, runs } = state;
  const make = { link: linkControls, vertex: vertexControls, broken: brokenControls }[chosen?.kind];
  const none = element("p", "Choose a link to change or break it, or an NPU to move its rank.");
  by("chosen").replaceChildren(...(make && of === 0 ? make(runs[0], chosen.index) : [none]));
}

document.addEventListener("chosen", () => by("chosen") && showChosen());
document.addEventListener("ready", () => {
  live.offers = JSON.parse(document.body.dataset.server);
  live.yaml = live.offers.yaml;
  live.base = state.runs[0].makespan;
  live.beside = state.runs[1] ?? state.runs[0];
  live.change = { links: [], failed: live.offers.failed, placement: null };
  live.good = structuredClone(live.change);
  makeForm();
  showChosen();
});
