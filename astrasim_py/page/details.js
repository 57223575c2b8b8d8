// What a clicked link, vertex or message carries, waits for, and why.

import { meanUse, sizeText, timeText, useAt } from "./data.js";

export function element(name, text, ...children) {
  const made = document.createElement(name);
  if (text !== null) made.textContent = text;
  made.append(...children);
  return made;
}

function list(pairs) {
  const made = element("dl", null);
  for (const [term, value] of pairs) made.append(element("dt", term), element("dd", String(value)));
  return made;
}

function rate(bytesPerSecond) {
  return `${Number((bytesPerSecond / 1e9).toPrecision(4))} GB/s`;
}

function messageName(run, m) {
  const { src, dst, bytes } = run.messages;
  return `rank ${src[m]} → ${dst[m]}, ${sizeText(bytes[m])}`;
}

/** Hops on a link that are under way and that wait, at a time. */
function onLink(run, link, time) {
  const under = [];
  const waiting = [];
  for (const row of run.bin.at(time)) {
    if (run.hops.link[row] !== link || run.hops.requested[row] > time || run.hops.arrive[row] <= time) continue;
    (run.hops.start[row] <= time ? under : waiting).push(run.hops.message[row]);
  }
  return { under, waiting };
}

function items(run, title, messages) {
  if (!messages.length) return [];
  const shown = messages.slice(0, 8).map((m) => element("li", messageName(run, m)));
  if (messages.length > 8) shown.push(element("li", `and ${messages.length - 8} more`));
  return [element("h3", `${title} (${messages.length})`), element("ul", null, ...shown)];
}

function onPath(run, test) {
  return run.path.filter(test).reduce((sum, [start, end]) => sum + end - start, 0);
}

/** Hops of messages by message, and messages by rank that gets them, in the order of time; made once. */
function indices(run) {
  if (run.indices) return run.indices;
  const [hopsOf, inbox] = [[], []];
  run.hops.message.forEach((m, row) => (hopsOf[m] ??= []).push(row));
  for (const rows of hopsOf) rows?.sort((a, b) => run.hops.start[a] - run.hops.start[b]);
  run.messages.dst?.forEach((rank, m) => run.messages.delivered[m] >= 0 && (inbox[rank] ??= []).push(m));
  for (const list of inbox) list?.sort((a, b) => run.messages.delivered[a] - run.messages.delivered[b]);
  return (run.indices = { hopsOf, inbox });
}

/** Messages that a link serves at a time, but for one. */
function servedBy(run, link, time, but) {
  const { hops } = run;
  const rows = [...run.bin.at(time)].filter((row) => hops.link[row] === link && hops.start[row] <= time && hops.end[row] > time);
  return rows.map((row) => hops.message[row]).filter((m) => m !== but);
}

function behind(run, link, time, m) {
  const served = servedBy(run, link, time, m);
  const more = served.length > 1 ? ` and ${served.length - 1} more` : "";
  return served.length ? `, behind ${messageName(run, served[0])}${more}` : "";
}

/** Where a message is at a time, and what it waits for. */
function whereabouts(run, m, time) {
  const { hops, messages, links } = run;
  if (messages.posted[m] > time) return `is sent at ${timeText(messages.posted[m])}`;
  if (messages.delivered[m] >= 0 && messages.delivered[m] <= time) return "has arrived";
  for (const row of indices(run).hopsOf[m] ?? []) {
    if (time < hops.start[row]) return `waits for link ${links.name[hops.link[row]]}${behind(run, hops.link[row], time, m)}`;
    if (time < hops.arrive[row]) return `is on link ${links.name[hops.link[row]]}`;
  }
  return "has crossed its links";
}

/** What a rank gets next, and where that is. */
function nextOf(run, rank, time) {
  const { delivered } = run.messages;
  const list = indices(run).inbox[rank] ?? [];
  const m = list.find((one) => delivered[one] > time);
  return m === undefined ? "nothing more" : `${messageName(run, m)} at ${timeText(delivered[m])}: ${whereabouts(run, m, time)}`;
}

function brokenDetails(run, index) {
  const [a, b] = run.broken[index].map((v) => run.vertices.name[v]);
  return [element("h3", `Link ${a}–${b} is broken`), element("p", "It failed before the run; messages take other routes.")];
}

function linkDetails(run, link, time) {
  const { name, bandwidth, latency } = run.links;
  const now = onLink(run, link, time);
  const critical = onPath(run, (piece) => piece[4] === link);
  return [
    element("h3", `Link ${name[link]}`),
    list([
      ["bandwidth", rate(bandwidth[link])],
      ["latency", timeText(latency[link])],
      ["busy now", `${Math.round(100 * useAt(run, link, time).busy)} %`],
      ["busy in the run", `${(100 * meanUse(run, link)).toFixed(1)} %`],
      ["on the critical path", timeText(critical)],
    ]),
    ...items(run, "Carries", now.under),
    ...items(run, "Wait for it", now.waiting),
  ];
}

function vertexDetails(run, vertex, time) {
  const { name, switch: isSwitch } = run.vertices;
  const rank = isSwitch[vertex] ? -1 : run.npu_of.indexOf(vertex);
  const title = isSwitch[vertex] ? `Switch ${name[vertex]}` : `NPU ${name[vertex]}`;
  const parts = [element("h3", title)];
  if (rank >= 0) {
    const doing = (run.byRank[rank] ?? []).filter((i) => run.bars.start[i] <= time && run.bars.end[i] > time);
    const names = doing.map((i) => run.bars.names[run.bars.name[i]] || run.bars.kinds[run.bars.kind[i]]);
    const now = run.bars.ranks.includes(rank) ? names.join(", ") || "nothing" : "not known: its bars are left out";
    parts.push(list([["rank", rank], ["does now", now], ...(run.aggregated ? [] : [["gets next", nextOf(run, rank, time)]]), ["on the critical path", timeText(onPath(run, (p) => p[3] === rank))]]));
  }
  const ends = run.links.src.map((src, link) => [src, run.links.dst[link], link]).filter(([a, b]) => a === vertex || b === vertex);
  const rows = ends.map(([, , link]) => onLink(run, link, time));
  parts.push(...items(run, "Messages on its links", rows.flatMap((row) => row.under)));
  parts.push(...items(run, "Messages that wait for its links", rows.flatMap((row) => row.waiting)));
  return parts;
}

function messageDetails(run, m, time) {
  const { instance, posted, delivered, first, count, of } = run.messages;
  const collective = run.collectives.find((one) => one.instance === instance[m]);
  const pairs = [
    ["of", collective?.name ?? "the workload"],
    ["sent at", timeText(posted[m])],
    ["delivered at", delivered[m] < 0 ? "never" : timeText(delivered[m])],
  ];
  if (first?.[m] >= 0) pairs.push(["chunks", `${first[m]}–${first[m] + count[m] - 1} of ${of[m]}`]);
  pairs.push(["now", whereabouts(run, m, time)]);
  const hops = (indices(run).hopsOf[m] ?? []).map((row) => {
    const { requested, start, end, link } = run.hops;
    const waited = start[row] - requested[row];
    const text = `${run.links.name[link[row]]}: ${timeText(start[row])} to ${timeText(end[row])}`;
    return element("li", waited > 0 ? `${text}, after waiting ${timeText(waited)} for the link${behind(run, link[row], requested[row], m)}` : text);
  });
  const critical = onPath(run, (piece) => run.path.length && piece[5] === m);
  pairs.push(["on the critical path", critical ? timeText(critical) : "no"]);
  return [element("h3", `Message ${messageName(run, m)}`), list(pairs), element("ul", null, ...hops)];
}

/** Fill the panel with what is known of the chosen thing. */
export function showDetails(panel, run, chosen, time) {
  const make = { link: linkDetails, vertex: vertexDetails, message: messageDetails, broken: brokenDetails }[chosen.kind];
  panel.replaceChildren(...make(run, chosen.index, time));
}
