// What a clicked link, vertex or message carries, waits for, and why.

import { meanUse, sizeText, timeText, useAt } from "./data.js";

function element(name, text, ...children) {
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
    parts.push(list([["rank", rank], ["does now", names.join(", ") || "nothing"], ["on the critical path", timeText(onPath(run, (p) => p[3] === rank))]]));
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
  const rows = [];
  for (let row = 0; row < run.hops.message.length; row++) if (run.hops.message[row] === m) rows.push(row);
  rows.sort((a, b) => run.hops.start[a] - run.hops.start[b]);
  const hops = rows.map((row) => {
    const { requested, start, end, link } = run.hops;
    const waited = start[row] - requested[row];
    const text = `${run.links.name[link[row]]}: ${timeText(start[row])} to ${timeText(end[row])}`;
    return element("li", waited > 0 ? `${text}, after waiting ${timeText(waited)} for the link` : text);
  });
  const critical = onPath(run, (piece) => run.path.length && piece[5] === m);
  pairs.push(["on the critical path", critical ? timeText(critical) : "no"]);
  return [element("h3", `Message ${messageName(run, m)}`), list(pairs), element("ul", null, ...hops)];
}

/** Fill the panel with what is known of the chosen thing. */
export function showDetails(panel, run, chosen, time) {
  const make = { link: linkDetails, vertex: vertexDetails, message: messageDetails }[chosen.kind];
  panel.replaceChildren(...make(run, chosen.index, time));
}
