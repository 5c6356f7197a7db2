"use strict";
/* The timeline as the page needs it: curves to look up, spans and marks made from events. */

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

class TimelineData {
  constructor(raw) {
    const { t, events } = raw;
    this.t = t;
    this.cpu = t.length && raw.cpu.some((value) => value !== null) ? raw.cpu : null;
    this.ram = raw.ram.total.some((value) => value !== null) ? raw.ram : null;
    this.gpus = raw.gpus;
    this.idleBelow = raw.idle_below;
    this.events = events;
    const lastSample = t.length ? t[t.length - 1] : 0;
    const lastEvent = events.length ? events[events.length - 1].t : 0;
    this.end = Math.max(raw.total_ms || 0, lastSample, lastEvent, 1);
    this.epochs = spansOf(events, "epoch_start", "epoch_end", this.end);
    this.syncs = spansOf(events, "sync_start", "sync_end", this.end);
    this.averages = spansOf(events, "cpu_avg_start", "cpu_avg_end", this.end);
    this.marks = events.filter((event) => ["anchor", "throttle", "custom", "idle"].includes(event.k));
    this.markTimes = this.marks.map((mark) => mark.t);
    for (const gpu of this.gpus) {
      gpu.idles = this.marks.filter((mark) => mark.k === "idle" && mark.dev === gpu.device);
      gpu.share = gpu.used.map((used, index) => shareOf(used, gpu.total[index]));
    }
    if (this.ram) this.ramShare = this.ram.used.map((used, index) => shareOf(used, this.ram.total[index]));
  }

  /** The sample nearest to a moment, or -1. */
  nearest(t) {
    const after = lowerBound(this.t, t);
    if (after === 0) return this.t.length ? 0 : -1;
    if (after === this.t.length) return after - 1;
    return t - this.t[after - 1] < this.t[after] - t ? after - 1 : after;
  }
}

function shareOf(used, total) {
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

function markText(mark) {
  if (mark.k === "anchor") return `anchor ${mark.from} to ${mark.to}`;
  if (mark.k === "throttle") return `throttle rank ${mark.rank}`;
  if (mark.k === "idle") return `idle GPU ${mark.dev}, ${lengthText(mark.ms)}`;
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
