"use strict";
/* The timeline as the page needs it: curves to look up, spans and marks made from events. */

const MARKS = new Map([
  ["anchor", "Anchor changes"],
  ["throttle", "Throttles"],
  ["guard", "Guard"],
  ["skip", "Skipped averages"],
  ["worker_lost", "Lost ranks"],
  ["restart", "Restarts"],
  ["custom", "Custom"],
  ["idle", "Idle"],
]);

/** The first index whose time is at or after `t`. */
function lowerBound(times, t) {
  let [low, high] = [0, times.length];
  while (low < high) {
    const middle = (low + high) >> 1;
    if (times[middle] < t) low = middle + 1;
    else high = middle;
  }
  return low;
}

/** Pairs of start and end; an end without start reaches back by its own length. */
function spansOf(events, startKind, endKind, last) {
  const spans = [];
  let open = null;
  const close = (end, event) => {
    const start = open ? open.t : Math.max(0, end - ((event && event.ms) || 0));
    spans.push({ start, end, first: open, last: event });
    open = null;
  };
  for (const event of events) {
    if (event.k === startKind) {
      if (open) close(event.t, null);
      open = event;
    } else if (event.k === endKind) {
      close(event.t, event);
    }
  }
  if (open) close(last, null);
  return spans;
}

/** What a rank tells of itself alone; everything else happens once, although each rank tells of it. */
const OF_ONE_RANK = new Set(["wait", "idle"]);

/** Each event once, with the ranks that tell of it: the n-th of a kind on one rank is the n-th on the others. */
function onceOf(events) {
  const [found, counts] = [new Map(), new Map()];
  for (const event of events) {
    const { t: _t, r: rank, ms: _ms, loss: _loss, ...what } = event;
    const id = JSON.stringify([OF_ONE_RANK.has(event.k) ? rank : null, what]);
    const count = (counts.get(`${rank} ${id}`) || 0) + 1;
    counts.set(`${rank} ${id}`, count);
    const known = found.get(`${id} ${count}`);
    if (known) known.ranks.push(rank);
    else found.set(`${id} ${count}`, { ...event, ranks: [rank] });
  }
  return [...found.values()];
}

/** Spans that all ranks share, each once: as long as the slowest rank took for it. */
function sharedSpans(lists) {
  const lengthOf = (span) => span.last?.ms ?? span.end - span.start;
  const most = Math.max(0, ...lists.map((spans) => spans.length));
  return Array.from({ length: most }, (_, index) => {
    const same = lists.map((spans) => spans[index]).filter(Boolean);
    return same.reduce((slowest, span) => (lengthOf(span) > lengthOf(slowest) ? span : slowest));
  });
}

/** What came before the first epoch and after the last one. */
function phasesOf(epochs, end) {
  if (!epochs.length) return [];
  const [first, last] = [epochs[0].start, epochs[epochs.length - 1].end];
  const phase = (name, start, stop) => ({ start, end: stop, first: { name }, last: null });
  const phases = [phase("Set-up", 0, first), phase("Training", first, last), phase("After the last epoch", last, end)];
  return phases.filter((one) => one.end > one.start);
}

function phaseText(span) {
  return `${span.first.name}, ${lengthText(span.end - span.start)}`;
}

/** The events of the first rank that has one of a kind. */
function ofFirst(events, kind) {
  const first = events.find((event) => event.k === kind);
  return events.filter((event) => event.r === first?.r);
}

/** What was planned for each window, until the next plan. */
function windowsOf(events, last) {
  const plans = events.filter((event) => event.k === "plan");
  return plans.map((plan, index) => ({ start: plan.t, end: (plans[index + 1] || { t: last }).t, first: plan, last: plan }));
}

/** An event tells of a wait at its end. */
function waitsOf(events) {
  const waits = events.filter((event) => event.k === "wait");
  return waits.map((wait) => ({ start: Math.max(0, wait.t - (wait.ms || 0)), end: wait.t, first: null, last: wait }));
}

/** One rank: how busy it was, and what held it up. */
class RankData {
  constructor({ rank, t, busy }, events, ranks, last) {
    this.rank = rank;
    this.t = t;
    this.busy = busy;
    this.events = ranks > 1 ? events.filter((event) => event.r === rank) : events;
    this.syncs = spansOf(this.events, "sync_start", "sync_end", last);
    this.averages = spansOf(this.events, "cpu_avg_start", "cpu_avg_end", last);
    this.waits = waitsOf(this.events);
  }
}

/** Times in which a GPU is used less than this percentage for so long are hatched. */
const [IDLE_BELOW, SHORTEST_GAP_MS] = [5, 500];

/** From the first idle sample to the next busy one, or to the last one; unknown use is not idle. */
function gapsOf(t, util) {
  const gaps = [];
  let start = null;
  for (let index = 0; index <= t.length; index++) {
    const isIdle = index < t.length && util[index] !== null && util[index] < IDLE_BELOW;
    if (isIdle) start ??= t[index];
    else if (start !== null) {
      gaps.push([start, t[Math.min(index, t.length - 1)]]);
      start = null;
    }
  }
  return gaps.filter(([from, to]) => to - from >= SHORTEST_GAP_MS);
}

/** The curves of each GPU, from the samples of one rank. */
function gpusOf(devices, samples, t) {
  return Object.entries(devices).map(([device, name]) => {
    const known = samples.map(({ gpus }) => gpus.find(({ d }) => d === Number(device)));
    const column = (key) => known.map((gpu) => gpu?.[key] ?? null);
    const util = column("u");
    return { device: Number(device), name, util, used: column("va"), total: column("vt"), gaps: gapsOf(t, util) };
  });
}

/** How busy each rank was; nothing for a single rank without such values. */
function busyOf(samples, events) {
  const ranks = new Set([...samples, ...events].map(({ r }) => r).filter((rank) => rank !== undefined));
  const found = new Map([...ranks].sort((a, b) => a - b).map((rank) => [rank, { rank, t: [], busy: [] }]));
  for (const { r, t, busy } of samples) {
    if (r === undefined && busy === undefined) continue;
    if (!found.has(r)) found.set(r, { rank: r ?? 0, t: [], busy: [] });
    found.get(r).t.push(t);
    found.get(r).busy.push(busy ?? null);
  }
  const curves = [...found.values()];
  return curves.length > 1 || curves.some(({ busy }) => busy.some((value) => value !== null)) ? curves : [];
}

class TimelineData {
  /** Takes what a timeline saves as JSON. */
  constructor(raw) {
    const { samples, events, devices } = raw;
    // Ranks on one machine have all measured the same load.
    const first = samples.reduce((least, { r }) => Math.min(least, r ?? Infinity), Infinity);
    const own = samples.filter(({ r }) => r === undefined || r === first);
    const t = own.map((sample) => sample.t);
    this.t = t;
    const cpu = own.map((sample) => sample.cpu);
    this.cpu = cpu.some((value) => value !== null) ? cpu : null;
    const [used, total] = [0, 1].map((index) => own.map(({ ram }) => ram?.[index] ?? null));
    this.ram = total.some((value) => value !== null) ? { used, total } : null;
    this.gpus = gpusOf(devices, own, t);
    this.events = events;
    const lastSample = t.length ? t[t.length - 1] : 0;
    const lastEvent = events.length ? events[events.length - 1].t : 0;
    this.end = Math.max(raw.total_ms || 0, lastSample, lastEvent, 1);
    this.sampleCount = samples.length;
    const busy = busyOf(samples, events);
    this.ranks = busy.map((rank) => new RankData(rank, events, busy.length, this.end));
    this.many = this.ranks.length > 1;
    // Ranks train the same epochs: those of the first one that tells of them stand for all.
    this.epochs = spansOf(ofFirst(events, "epoch_start"), "epoch_start", "epoch_end", this.end);
    this.phases = phasesOf(this.epochs, this.end);
    this.windows = windowsOf(ofFirst(events, "plan"), this.end);
    const each = this.many ? this.ranks.map((rank) => rank.events) : [events];
    this.syncs = sharedSpans(each.map((own) => spansOf(own, "sync_start", "sync_end", this.end)));
    this.averages = sharedSpans(each.map((own) => spansOf(own, "cpu_avg_start", "cpu_avg_end", this.end)));
    this.waits = each.flatMap(waitsOf);
    this.happened = onceOf(events);
    this.marks = this.happened.filter((event) => MARKS.has(event.k));
    this.markTimes = this.marks.map((mark) => mark.t);
    for (const gpu of this.gpus) {
      gpu.idles = this.marks.filter((mark) => mark.k === "idle" && mark.dev === gpu.device);
      gpu.share = gpu.used.map((used, index) => partOf(used, gpu.total[index]));
    }
    if (this.ram) this.ramShare = this.ram.used.map((used, index) => partOf(used, this.ram.total[index]));
  }

  /** The sample nearest to a moment, or -1. */
  nearest(t) {
    return nearestOf(this.t, t);
  }
}

/** The index of the time nearest to a moment, or -1. */
function nearestOf(times, t) {
  const after = lowerBound(times, t);
  if (after === 0) return times.length ? 0 : -1;
  if (after === times.length) return after - 1;
  return t - times[after - 1] < times[after] - t ? after - 1 : after;
}

function partOf(used, total) {
  return used === null || !total ? null : (100 * used) / total;
}

function spanAt(spans, t) {
  for (let index = spans.length - 1; index >= 0; index--) {
    if (spans[index].start <= t && t <= spans[index].end) return spans[index];
  }
  return null;
}

function epochText(span) {
  const number = (span.first || span.last).epoch + 1;
  if (!span.last) return `Epoch ${number}`;
  return `Epoch ${number}, loss ${formatMetric(span.last.loss)}`;
}

function windowText(span) {
  return `Window ${span.first.window}, ${span.first.counts.join(" : ")} batches`;
}

/** What a mark says; of `many` ranks, the one that alone tells of it is named. */
function markText(mark, many = false) {
  const text = markWords(mark);
  return many && mark.r !== undefined && mark.ranks.length === 1 ? `rank ${mark.r}: ${text}` : text;
}

function markWords(mark) {
  if (mark.k === "anchor") return `anchor ${mark.from} to ${mark.to}`;
  if (mark.k === "throttle") return `throttle rank ${mark.rank}`;
  if (mark.k === "idle") return `idle GPU ${mark.dev}, ${lengthText(mark.ms)}`;
  if (mark.k === "guard") return `guard rank ${mark.rank}, ${mark.what}`;
  if (mark.k === "skip") return `average left out, ${mark.count} so far`;
  if (mark.k === "worker_lost") return `lost rank ${mark.rank}`;
  if (mark.k === "restart") return `restart ${mark.count}`;
  return mark.label;
}

/** Milliseconds as people read them, with the digits short moments need. */
function lengthText(ms) {
  if (ms === null || ms === undefined) return DASH;
  return ms < 10 ? `${Number(ms.toPrecision(2))}ms` : formatDuration(ms / 1000);
}

/** A moment on the axis: "1:02:03", "2:05", "12.4 s". `step` says how fine the axis is. */
function momentText(ms, step) {
  if (step < 1000) return `${(ms / 1000).toFixed(step < 10 ? 3 : step < 100 ? 2 : 1)} s`;
  const seconds = Math.round(ms / 1000);
  if (seconds < 60) return `${seconds} s`;
  const two = (part) => String(part).padStart(2, "0");
  const [hours, minutes] = [Math.floor(seconds / 3600), Math.floor((seconds % 3600) / 60)];
  return hours ? `${hours}:${two(minutes)}:${two(seconds % 60)}` : `${minutes}:${two(seconds % 60)}`;
}
