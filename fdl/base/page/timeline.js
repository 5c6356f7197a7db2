"use strict";
/* The timeline of a run: what happened as lanes, and the load of the machine as charts over the same time. */

const LANE_HEIGHT = 24;

/** Points of a load curve on the screen; of more, the extremes remain. */
const MOST_SAMPLES = 2000;

const MARKS = new Map([
  ["anchor", "Anchor changes"], ["throttle", "Throttles"], ["guard", "Guard"], ["skip", "Skipped averages"],
  ["worker_lost", "Lost ranks"], ["restart", "Restarts"], ["custom", "Custom"], ["idle", "Idle"],
]);

/** What a rank tells of itself alone; everything else happens once, although each rank tells of it. */
const OF_ONE_RANK = new Set(["wait", "idle"]);

/** Colours of the lanes. */
const LANES = { phase: "soft", epoch: "series-0", window: "series-3", wait: "series-7", sync: "series-1", average: "series-2", mark: "series-6" };

/** Pairs of start and end as spans {start, end, first, last}; an end without start reaches back by its own length. */
function spansOf(events, startKind, endKind, last) {
  const spans = [];
  let open = null;
  const close = (end, event) => {
    spans.push({ start: open ? open.t : Math.max(0, end - (event?.ms || 0) / 1000), end, first: open, last: event });
    open = null;
  };
  for (const event of events) {
    if (event.k === startKind) {
      if (open) close(event.t, null);
      open = event;
    } else if (event.k === endKind) close(event.t, event);
  }
  if (open) close(last, null);
  return spans;
}

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

/** The timeline as the page needs it, from what is saved as JSON; times are seconds. */
class TimelineData {
  constructor(raw) {
    const timed = (list) => list.map((one) => ({ ...one, t: one.t / 1000 }));
    const [samples, events] = [timed(raw.samples), timed(raw.events)];
    // Ranks on one machine have all measured the same load.
    const first = samples.reduce((least, { r }) => Math.min(least, r ?? Infinity), Infinity);
    this.samples = samples.filter(({ r }) => r === undefined || r === first);
    this.devices = Object.entries(raw.devices).map(([device, name]) => [Number(device), name]);
    this.sampleCount = samples.length;
    this.end = Math.max((raw.total_ms || 0) / 1000, this.samples.at(-1)?.t || 0, events.at(-1)?.t || 0, 0.001);
    this.#readRanks(samples, events);
    const ofFirst = (kind) => events.filter((event) => event.r === events.find((one) => one.k === kind)?.r);
    // Ranks train the same epochs: those of the first one that tells of them stand for all.
    this.epochs = spansOf(ofFirst("epoch_start"), "epoch_start", "epoch_end", this.end);
    const plans = ofFirst("plan").filter((event) => event.k === "plan");
    this.windows = plans.map((plan, index) => ({ start: plan.t, end: (plans[index + 1] || { t: this.end }).t, first: plan, last: plan }));
    this.happened = onceOf(events);
    this.marks = this.happened.filter((event) => MARKS.has(event.k));
  }

  /** What came before the first epoch, the training, and what came after the last epoch. */
  get phases() {
    if (!this.epochs.length) return [];
    const [first, last] = [this.epochs[0].start, this.epochs[this.epochs.length - 1].end];
    const phases = [["Set-up", 0, first], ["Training", first, last], ["After the last epoch", last, this.end]];
    return phases.filter(([, start, end]) => end > start).map(([name, start, end]) => ({ name, start, end }));
  }

  /** How busy each rank was, and what held it up. */
  #readRanks(samples, events) {
    const numbers = [...new Set([...samples, ...events].map(({ r }) => r).filter((rank) => rank !== undefined))].sort((a, b) => a - b);
    this.ranks = (numbers.length ? numbers : [undefined]).map((rank) => {
      const own = samples.filter(({ r, busy }) => r === rank && (r !== undefined || busy !== undefined));
      return { rank: rank ?? 0, samples: own, spans: this.#spans(numbers.length > 1 ? events.filter(({ r }) => r === rank) : events) };
    });
    this.many = this.ranks.length > 1;
  }

  #spans(events) {
    const waits = events.filter((event) => event.k === "wait"); // an event tells of a wait at its end
    return {
      wait: waits.map((wait) => ({ start: Math.max(0, wait.t - (wait.ms || 0) / 1000), end: wait.t, last: wait })),
      sync: spansOf(events, "sync_start", "sync_end", this.end),
      average: spansOf(events, "cpu_avg_start", "cpu_avg_end", this.end),
    };
  }
}

/** The lanes a timeline has something for: {name, spans, color, text} and {name, marks}. */
function lanesOf(data) {
  const length = ({ start, end, last }) => formatDuration(last?.ms !== undefined ? last.ms / 1000 : end - start);
  const epoch = ({ first, last }) => `Epoch ${(first || last).epoch + 1}${last ? `, loss ${formatMetric(last.loss)}` : ""}`;
  const bars = (one) => Object.entries(one.spans).flatMap(([kind, spans]) => spans.map((span) => ({ ...span, kind }))).sort((a, b) => a.start - b.start);
  const lanes = [
    { name: "Phases", spans: data.phases, color: () => LANES.phase, text: (span) => `${span.name}, ${length(span)}` },
    { name: "Epochs", spans: data.epochs, color: () => LANES.epoch, text: epoch },
    { name: "Windows", spans: data.windows, color: () => LANES.window, text: ({ first }) => `Window ${first.window}, ${first.counts.join(" : ")} batches` },
    ...(data.many ? data.ranks.map((one) => ({ name: `Rank ${one.rank}`, spans: bars(one), color: ({ kind }) => LANES[kind], text: (span) => `${span.kind} ${length(span)}` })) : []),
    ...(data.many ? [] : Object.entries(data.ranks[0].spans).map(([kind, spans]) => ({ name: { wait: "Waiting", sync: "Sync", average: "CPU average" }[kind], spans, color: () => LANES[kind], text: length }))),
    ...[...MARKS].map(([kind, name]) => ({ name, kind, marks: data.marks.filter((mark) => mark.k === kind) })),
  ];
  return lanes.filter((lane) => lane.name === "Epochs" || (lane.spans || lane.marks).length);
}

/** Spans and marks over time, one lane below the other. */
class LaneChart extends Chart {
  constructor(data, focus, loads) {
    super("What happened", focus, { id: "stage", "aria-label": "What happened over time. Arrow keys go from one event to the next." });
    Object.assign(this, { data, loads, lanes: lanesOf(data) });
    this.height = 52 + LANE_HEIGHT * this.lanes.length;
    const at = this.lanes.flatMap(({ spans, marks }) => (spans ? spans.flatMap(({ start, end }) => [start, end]) : marks.map(({ t }) => t)));
    this.places = [...new Set(at)].sort((a, b) => a - b);
    this.card.classList.add("lanes");
    const words = [["wait", "waiting"], ["sync", "sync"], ["average", "CPU average"]];
    if (data.many) this.foot.replaceChildren(...words.map(([kind, text]) => element("span", {}, dot(LANES[kind]), text)));
  }

  redraw() {
    const count = this.lanes.length;
    this.paint([], { bounds: { low: 0, high: count, first: 0, last: this.data.end }, yTicks: this.lanes.map(({ name }, index) => [count - index - 0.5, name]) });
  }

  decorate(context) {
    const { px, py, box } = this.scales;
    const count = this.lanes.length;
    this.lanes.forEach((lane, row) => {
      const middle = py(count - row - 0.5);
      let drawnTo = -Infinity;
      (lane.spans || []).forEach((span, index) => {
        const [left, right] = [px(span.start), Math.max(px(span.end), px(span.start) + 1)];
        if (right < box.left || left > box.right || right < drawnTo + 0.5) return; // outside, or within a pixel that is full
        drawnTo = right;
        wash(context, lane.color(span), left, middle - 8, right, middle + 8, index % 2 ? 0.55 : 0.35);
        const from = Math.max(left, box.left) + 6;
        const room = Math.min(right, box.right) - from - 6;
        const text = [lane.text(span), lane.text(span).split(",")[0]].find((one) => context.measureText(one).width < room);
        if (room > 24 && text) label(context, text, from, middle, "text");
      });
      for (const mark of lane.marks || []) disc(context, px(mark.t), middle, 4.5, LANES.mark);
    });
  }

  read(x) {
    const reach = Math.abs(this.scales.back(6) - this.scales.back(0));
    const rows = this.lanes.flatMap(({ name, kind, spans, marks, text }) => {
      if (marks) return marks.filter((mark) => Math.abs(mark.t - x) < reach).slice(0, 4).map((mark) => [kind, markText(mark, this.data.many)]);
      const span = spans.findLast((one) => one.start <= x && x <= one.end);
      return span ? [[name, text(span)]] : [];
    });
    rows.push(...this.loads.flatMap((chart) => chart.series.map((one) => [one.name, one.say(x)])));
    const step = (this.range[1] - this.range[0]) / 200;
    return { x, title: step < 1 ? `${x.toFixed(step < 0.01 ? 3 : step < 0.1 ? 2 : 1)} s` : clockText(x, 0, 1), rows, dots: [] };
  }
}

/** A load over time; `read(sample)` gives a percentage and its text, or null. */
function loadSeries(name, samples, read) {
  const [t, values] = [samples.map((one) => one.t), samples.map((one) => read(one)?.[0] ?? null)];
  const made = Object.assign(new Series(name, "time"), { xs: t, ys: values, goal: null });
  made.say = (x) => (t.length && read(samples[nearestIndex(t, x)])?.[1]) || DASH;
  made.within = (range) => {
    const [from, to] = range ? [Math.max(0, nearestIndex(t, range[0]) - 1), nearestIndex(t, range[1]) + 2] : [0, t.length];
    const [xs, ys] = thinned(t.slice(from, to), values.slice(from, to), MOST_SAMPLES);
    return { xs, ys };
  };
  return made;
}

/** The charts of the load of the machine and of each GPU, and of how busy the ranks were. */
function loadCharts(data, focus) {
  const { samples, devices } = data;
  const percent = (value) => (value ?? null) !== null && [value, formatPercent(value)];
  const memory = (used, total) => total > 0 && (used ?? null) !== null && [(100 * used) / total, `${formatBytes(used)} / ${formatBytes(total)}`];
  const whole = (totals) => formatBytes(totals.findLast((one) => one) || 0);
  const charts = [];
  const add = (title, series, { top = "100 %", note = "" } = {}) => {
    const chart = new LineChart(title, focus);
    chart.fixed = { bounds: { low: 0, high: 100, first: 0, last: data.end }, yTicks: [[0, "0"], [50, ""], [100, top]] };
    chart.logButton.remove();
    chart.foot.textContent = note;
    chart.show(title, series);
    charts.push(chart);
  };
  const [busy, cpu, ram] = [(one) => percent(one.busy), (one) => percent(one.cpu), (one) => one.ram && memory(...one.ram)];
  const ranks = data.ranks.filter((one) => one.samples.some(busy));
  if (ranks.length) add("Busy", ranks.map((one) => loadSeries(data.many ? `Rank ${one.rank} busy` : "Busy", one.samples, busy)));
  if (samples.some(cpu)) add("CPU", [loadSeries("CPU", samples, cpu)]);
  if (samples.some(ram)) add("RAM", [loadSeries("RAM", samples, ram)], { top: whole(samples.map((one) => one.ram?.[1])) });
  for (const [device, note] of devices) {
    const of = ({ gpus }) => gpus.find(({ d }) => d === device) ?? {};
    const name = `GPU ${device}`;
    const series = [loadSeries(name, samples, (one) => percent(of(one).u)), loadSeries(`${name} memory`, samples, (one) => memory(of(one).va, of(one).vt))];
    add(`${name}, memory ${whole(samples.map((one) => of(one).vt))}`, series, { note });
  }
  return charts;
}

/** The section of the timeline. */
class Timeline {
  constructor(raw) {
    const data = (this.data = new TimelineData(raw));
    this.focus = new Focus(new Axis("time"));
    this.loads = loadCharts(data, this.focus);
    this.lanes = new LaneChart(data, this.focus, this.loads);
    place("timeline").hidden = false;
    place("timeline-facts").textContent = [formatDuration(data.end), `${data.sampleCount} samples`, `${data.happened.length} events`].join(" · ");
    place("timeline-charts").replaceChildren(...this.charts.map((chart) => chart.card));
  }

  get charts() {
    return [this.lanes, ...this.loads];
  }
}

/** What a mark says; of `many` ranks, the one that alone tells of it is named. */
function markText(mark, many) {
  const says = {
    anchor: () => `anchor ${mark.from} to ${mark.to}`, throttle: () => `throttle rank ${mark.rank}`, idle: () => `idle GPU ${mark.dev}, ${formatDuration(mark.ms / 1000)}`,
    guard: () => `guard rank ${mark.rank}, ${mark.what}`, skip: () => `average left out, ${mark.count} so far`, worker_lost: () => `lost rank ${mark.rank}`, restart: () => `restart ${mark.count}`,
  };
  const text = says[mark.k]?.() ?? mark.label;
  return many && mark.r !== undefined && mark.ranks.length === 1 ? `rank ${mark.r}: ${text}` : text;
}

