// The data of a run: decoded, with the indices that drawing needs. Times are ps.

import { colourOf } from "./view.js";

/** Decode base64 of gzip'd JSON. */
export async function unpack(text) {
  const bytes = Uint8Array.from(atob(text.trim()), (c) => c.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
  return indexed(JSON.parse(await new Response(stream).text()));
}

/** Bins of time, each with the hops that are requested or under way in it. */
function hopsByBin(hops, makespan) {
  const bins = 2048;
  const width = Math.max(makespan, 1) / bins;
  const bin = (time) => Math.min(Math.floor(time / width), bins - 1);
  const first = new Uint32Array(bins + 1);
  const n = hops.link.length;
  for (let i = 0; i < n; i++) for (let b = bin(hops.requested[i]); b <= bin(hops.arrive[i]); b++) first[b + 1]++;
  for (let b = 0; b < bins; b++) first[b + 1] += first[b];
  const rows = new Uint32Array(first[bins]);
  const next = first.slice();
  for (let i = 0; i < n; i++) for (let b = bin(hops.requested[i]); b <= bin(hops.arrive[i]); b++) rows[next[b]++] = i;
  return { at: (time) => rows.subarray(first[bin(time)], first[bin(time) + 1]) };
}

function indexed(run) {
  const { hops, messages, links } = run;
  // A message stays on a link until its last byte has arrived, a latency after it has left.
  hops.arrive = hops.end.map((end, i) => {
    const delivered = messages.delivered[hops.message[i]];
    const arrive = end + links.latency[hops.link[i]];
    return delivered >= end ? Math.min(arrive, delivered) : arrive;
  });
  run.bin = hopsByBin(run.hops, run.makespan);
  run.useRow = new Map(run.use.link.map((link, row) => [link, row]));
  const moments = Float64Array.from([0, run.makespan].concat(hops.start, hops.end, run.bars.start, run.bars.end)).sort();
  run.moments = moments.filter((time, i) => time >= 0 && time !== moments[i - 1]);
  run.colourOf = new Map(run.collectives.map(({ instance, type }) => [instance, colourOf(type)]));
  run.byRank = [];
  for (let i = 0; i < run.bars.rank.length; i++) (run.byRank[run.bars.rank[i]] ??= []).push(i);
  return run;
}

/** Share of a bin in which a link is busy (0 to 1), and its most waiting messages, at a time. */
export function useAt(run, link, time) {
  const row = run.useRow.get(link);
  if (row === undefined || time >= run.makespan) return { busy: 0, queue: 0 };
  const { bins } = run.use;
  const bin = Math.min(Math.floor((time / Math.max(run.makespan, 1)) * bins), bins - 1);
  return { busy: run.use.busy[row * bins + bin] / 100, queue: run.use.queue[row * bins + bin] };
}

/** Mean use of a link over the run, 0 to 1. */
export function meanUse(run, link) {
  const row = run.useRow.get(link);
  if (row === undefined) return 0;
  const { bins, busy } = run.use;
  let sum = 0;
  for (let b = 0; b < bins; b++) sum += busy[row * bins + b];
  return sum / bins / 100;
}

/** A time for people. */
export function timeText(ps) {
  for (const [unit, size] of [["s", 1e12], ["ms", 1e9], ["µs", 1e6], ["ns", 1e3]]) {
    if (Math.abs(ps) >= size) return `${(ps / size).toPrecision(4)} ${unit}`;
  }
  return `${Math.round(ps)} ps`;
}

/** A size for people. */
export function sizeText(bytes) {
  for (const [unit, size] of [["GiB", 2 ** 30], ["MiB", 2 ** 20], ["KiB", 2 ** 10]]) {
    if (bytes >= size) return `${Number((bytes / size).toPrecision(4))} ${unit}`;
  }
  return `${bytes} B`;
}
