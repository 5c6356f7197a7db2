"use strict";
/* The lanes of the swimlane view, drawn on one canvas. */

/** Room for the names of lanes, left of them; a narrow page has less. */
const [GUTTER, NARROW_GUTTER, NARROW] = [140, 88, 560];
const AXIS = 26;
const STEPS = [1, 2, 5, 10, 20, 50, 100, 200, 500, 1e3, 2e3, 5e3, 1e4, 15e3, 3e4, 6e4, 12e4, 3e5, 6e5, 9e5, 18e5, 36e5, 72e5, 216e5, 432e5, 864e5];

/** What all lanes draw with: the canvas, the colours of the theme, and where a moment lies. */
class Sheet {
  #hatching = null;

  constructor(canvas) {
    this.canvas = canvas;
  }

  /** Begin a drawing of [from, to] in milliseconds. */
  begin(width, height, from, to) {
    Object.assign(this, { width, height, from, to });
    this.gutter = width < NARROW ? NARROW_GUTTER : GUTTER;
    this.scale = (width - this.gutter) / (to - from);
    this.brush = prepare(this.canvas, width, height);
    this.brush.textBaseline = "middle";
    this.#hatching = null;
  }

  x(t) {
    return this.gutter + (t - this.from) * this.scale;
  }

  t(x) {
    return this.from + (x - this.gutter) / this.scale;
  }

  /** Draw only right of the names. */
  clipped(draw) {
    this.brush.save();
    this.brush.beginPath();
    this.brush.rect(this.gutter, 0, this.width - this.gutter, this.height);
    this.brush.clip();
    draw();
    this.brush.restore();
  }

  label(text, y, color = ink.get("text")) {
    this.brush.fillStyle = color;
    this.brush.textAlign = "left";
    this.brush.fillText(shortened(this.brush, text, this.gutter - 10), 0, y);
  }

  hatching() {
    if (this.#hatching) return this.#hatching;
    const tile = document.createElement("canvas");
    tile.width = tile.height = 8;
    const brush = tile.getContext("2d");
    brush.strokeStyle = ink.get("gap");
    brush.lineWidth = 1.4;
    brush.beginPath();
    for (const shift of [-8, 0, 8]) {
      brush.moveTo(shift, 8);
      brush.lineTo(shift + 8, 0);
    }
    brush.stroke();
    return (this.#hatching = this.brush.createPattern(tile, "repeat"));
  }
}

function shortened(brush, text, width) {
  if (brush.measureText(text).width <= width) return text;
  let kept = text.slice(0, Math.ceil(width / 3));
  while (kept && brush.measureText(`${kept}…`).width > width) kept = kept.slice(0, -1);
  return `${kept}…`;
}

/** Times along the top, with lines through all lanes. */
function drawAxis(sheet) {
  const { brush } = sheet;
  const wanted = 90 / sheet.scale;
  const step = STEPS.find((one) => one >= wanted) || STEPS[STEPS.length - 1];
  brush.textAlign = "center";
  sheet.clipped(() => {
    for (let at = Math.ceil(sheet.from / step) * step; at <= sheet.to; at += step) {
      const x = Math.round(sheet.x(at)) + 0.5;
      brush.fillStyle = ink.get("line");
      brush.fillRect(x - 0.5, AXIS - 4, 1, sheet.height - AXIS + 4);
      brush.fillStyle = ink.get("soft");
      brush.textAlign = x - sheet.gutter < 24 ? "left" : sheet.width - x < 24 ? "right" : "center";
      brush.fillText(momentText(at, step), x, 10);
    }
  });
}

/** Bars with a start and an end, such as epochs. */
class SpanLane {
  height = 26;

  constructor(name, spans, colors, text = null) {
    Object.assign(this, { name, spans, colors, text });
  }

  draw(sheet, top) {
    const { brush } = sheet;
    const [y, high] = [top + 4, this.height - 8];
    sheet.label(this.name, top + this.height / 2);
    const colors = this.colors.map((name) => ink.get(name));
    const textColor = ink.get("text");
    let drawnTo = -Infinity;
    sheet.clipped(() => {
      this.spans.forEach((span, index) => {
        if (span.end < sheet.from || span.start > sheet.to) return;
        const left = sheet.x(span.start);
        const right = Math.max(sheet.x(span.end), left + 1);
        if (right < drawnTo + 0.5) return; // within a pixel that is already full
        drawnTo = right;
        brush.fillStyle = colors[index % colors.length];
        brush.fillRect(left, y, right - left, high);
        if (this.text && right - left > 30) this.#write(sheet, textColor, span, left, right, y + high / 2);
      });
    });
  }

  #write({ brush, width, gutter }, color, span, left, right, y) {
    const from = Math.max(left, gutter);
    const room = Math.min(right, width) - from - 12;
    brush.fillStyle = color;
    brush.textAlign = "left";
    const full = this.text(span);
    const text = brush.measureText(full).width < room ? full : full.split(",")[0];
    if (brush.measureText(text).width < room) brush.fillText(text, from + 6, y);
  }

  legend() {
    if (!this.spans.length) return [];
    const word = /^[A-Z]{2}/.test(this.name) ? this.name : this.name.toLowerCase();
    if (this.name === "Phases") {
      return this.spans.map(({ first }, index) => [this.colors[index], "block", first.name.toLowerCase()]);
    }
    const both = this.colors.length > 1;
    return this.colors.map((color, index) => [color, "block", both ? `${word} (${index ? "even" : "odd"})` : word]);
  }

  rows(t) {
    const span = spanAt(this.spans, t);
    if (!span) return [];
    return [[this.name, this.text ? this.text(span) : lengthText(span.last?.ms ?? span.end - span.start)]];
  }
}

/** Single moments: a form for each kind. */
class MarkLane {
  height = 26;
  name = "Events";

  constructor(data) {
    this.data = data;
  }

  draw(sheet, top) {
    const { brush } = sheet;
    const y = top + this.height / 2;
    sheet.label(this.name, y);
    brush.fillStyle = brush.strokeStyle = ink.get("event");
    const { marks, markTimes } = this.data;
    let drawn = -Infinity;
    sheet.clipped(() => {
      for (let index = lowerBound(markTimes, sheet.t(sheet.gutter - 8)); index < marks.length; index++) {
        const x = sheet.x(marks[index].t);
        if (x > sheet.width + 8) break;
        if (x < drawn + 1) continue;
        drawn = x;
        this.#form(brush, marks[index].k, x, y);
      }
    });
  }

  #form(brush, kind, x, y) {
    brush.beginPath();
    const form = FORMS[kind];
    if (form === "circle" || form === "ring") brush.arc(x, y, 4, 0, 2 * Math.PI);
    else OUTLINES[form].forEach(([right, down], index) => (index ? brush.lineTo(x + right, y + down) : brush.moveTo(x + right, y + down)));
    if (form !== "circle" && form !== "ring") brush.closePath();
    if (form !== "ring") return brush.fill();
    brush.lineWidth = 2;
    brush.stroke();
  }

  legend() {
    const known = new Set(this.data.marks.map((mark) => mark.k));
    return [...MARKS].filter(([kind]) => known.has(kind)).map(([kind, name]) => ["event", FORMS[kind], name.toLowerCase()]);
  }

  rows(t, reach) {
    const { marks, markTimes } = this.data;
    const found = marks.slice(lowerBound(markTimes, t - reach), lowerBound(markTimes, t + reach));
    const rows = found.slice(0, 4).map((mark) => [mark.k, markText(mark, this.data.many)]);
    if (found.length > 4) rows.push(["", `and ${found.length - 4} more`]);
    return rows;
  }
}

/** Each kind of event has a form of its own. */
const FORMS = {
  anchor: "up", throttle: "square", guard: "diamond", skip: "plus",
  worker_lost: "cross", restart: "ring", custom: "circle", idle: "down",
};
const PLUS = [[-1.5, -5], [1.5, -5], [1.5, -1.5], [5, -1.5], [5, 1.5], [1.5, 1.5], [1.5, 5], [-1.5, 5], [-1.5, 1.5], [-5, 1.5], [-5, -1.5], [-1.5, -1.5]];
/** Corners of the forms that have some, in pixels from their middle. */
const OUTLINES = {
  up: [[-5, 5], [5, 5], [0, -5]],
  down: [[-5, -5], [5, -5], [0, 5]],
  square: [[-4, -4], [4, -4], [4, 4], [-4, 4]],
  diamond: [[0, -6], [6, 0], [0, 6], [-6, 0]],
  plus: PLUS,
  cross: PLUS.map(([right, down]) => [(right - down) * Math.SQRT1_2, (right + down) * Math.SQRT1_2]),
};

/** Curves of percentages over time; `gaps` are hatched, and `top` is what 100 % stands for. */
class CurveLane {
  height = 64;

  constructor(name, data, curves, { gaps = [], rows, top = "100 %" }) {
    Object.assign(this, { name, data, curves, gaps, rows, top });
  }

  legend() {
    const curves = this.curves.map(({ color, filled, meaning }) => [color, filled ? "area" : "line", meaning]);
    return [...curves, ...(this.gaps.length ? [["gap", "hatch", "GPU idle for half a second or more"]] : [])];
  }

  /** What the top and the bottom of the curves mean, left of them. */
  #scale(sheet, base, high) {
    const { brush } = sheet;
    brush.fillStyle = ink.get("soft");
    brush.textAlign = "right";
    brush.fillText(this.top, sheet.gutter - 6, base - high + 4);
    brush.fillText("0", sheet.gutter - 6, base - 4);
    brush.fillStyle = ink.get("line");
    brush.fillRect(sheet.gutter - 3, base - high, 3, 1);
    brush.fillRect(sheet.gutter, Math.round(base - high / 2), sheet.width - sheet.gutter, 1);
  }

  draw(sheet, top) {
    const { brush } = sheet;
    const [base, high] = [top + this.height - 5, this.height - 12];
    sheet.label(this.name, top + 17);
    this.curves.forEach((curve, index) => {
      // A narrow page has no room for them; the legend tells the colours.
      if (curve.label && sheet.gutter === GUTTER) sheet.label(curve.label, top + 34 + 15 * index, ink.get(curve.color));
    });
    if (this.curves.length) this.#scale(sheet, base, high);
    sheet.clipped(() => {
      brush.fillStyle = sheet.hatching();
      for (const [start, end] of this.gaps) {
        if (end < sheet.from || start > sheet.to) continue;
        const left = sheet.x(start);
        brush.fillRect(left, base - high, Math.max(1, sheet.x(end) - left), high);
      }
      for (const curve of this.curves) this.#curve(sheet, curve, base, high);
    });
    brush.fillStyle = ink.get("line");
    brush.fillRect(sheet.gutter, base, sheet.width - sheet.gutter, 1);
  }

  #curve(sheet, { values, color, filled }, base, high) {
    const { brush } = sheet;
    brush.strokeStyle = brush.fillStyle = ink.get(color);
    brush.lineWidth = 1.4;
    brush.lineJoin = "round";
    const y = (value) => base - (Math.min(100, Math.max(0, value)) / 100) * high;
    for (const run of this.runs(sheet, values)) {
      brush.beginPath();
      run.forEach(([x, value], index) => (index ? brush.lineTo(x, y(value)) : brush.moveTo(x, y(value))));
      if (run.length === 1) brush.lineTo(run[0][0] + 1, y(run[0][1]));
      brush.stroke();
      if (!filled) continue;
      brush.lineTo(run[run.length - 1][0], base);
      brush.lineTo(run[0][0], base);
      brush.globalAlpha = 0.14;
      brush.fill();
      brush.globalAlpha = 1;
    }
  }

  /** Runs of [x, value] without a hole; of many samples per pixel only the extremes remain. */
  runs(sheet, values) {
    const { t } = this.data;
    const from = Math.max(0, lowerBound(t, sheet.from) - 1);
    const to = Math.min(t.length, lowerBound(t, sheet.to) + 1);
    const dense = to - from > 2 * (sheet.width - sheet.gutter);
    const runs = [];
    let run = [];
    for (let index = from; index < to; ) {
      const value = values[index];
      if (value === null) {
        if (run.length) runs.push(run);
        run = [];
        index++;
      } else if (dense) {
        index = this.#pixel(sheet, values, index, to, run);
      } else {
        run.push([sheet.x(t[index]), value]);
        index++;
      }
    }
    if (run.length) runs.push(run);
    return runs;
  }

  /** Add lowest and highest value of the pixel that begins at `index`; return where it ends. */
  #pixel(sheet, values, index, to, run) {
    const { t } = this.data;
    const until = sheet.t(Math.floor(sheet.x(t[index])) + 1);
    let [low, high] = [index, index];
    let end = index + 1;
    for (; end < to && t[end] < until && values[end] !== null; end++) {
      if (values[end] < values[low]) low = end;
      if (values[end] > values[high]) high = end;
    }
    const pair = low < high ? [low, high] : [high, low];
    run.push([sheet.x(t[pair[0]]), values[pair[0]]]);
    if (low !== high) run.push([sheet.x(t[pair[1]]), values[pair[1]]]);
    return end;
  }
}

/** One rank: how busy it was, and below the curve its waits, exchanges and averages. */
class RankLane extends CurveLane {
  constructor(rank, many) {
    const name = many ? `Rank ${rank.rank}` : "Busy";
    const curves = rank.busy.some((value) => value !== null) ? [{ values: rank.busy, color: "busy", filled: true, meaning: "time that a rank is busy" }] : [];
    super(name, rank, curves, { rows: (t) => this.#rows(t) });
    this.rank = rank;
    this.height = curves.length ? 64 : 30;
    this.bars = many ? [["wait", rank.waits], ["sync", rank.syncs], ["average", rank.averages]] : [];
  }

  legend() {
    const words = { wait: "waiting", sync: "sync", average: "CPU average" };
    const bars = this.bars.filter(([, spans]) => spans.length).map(([color]) => [color, "block", words[color]]);
    return [...super.legend(), ...bars];
  }

  draw(sheet, top) {
    super.draw(sheet, top);
    sheet.clipped(() => {
      for (const [color, spans] of this.bars) this.#bars(sheet, top, ink.get(color), spans);
    });
  }

  #bars(sheet, top, color, spans) {
    const { brush } = sheet;
    brush.fillStyle = color;
    let drawnTo = -Infinity;
    for (const { start, end } of spans) {
      if (end < sheet.from || start > sheet.to) continue;
      const left = sheet.x(start);
      const right = Math.max(sheet.x(end), left + 1);
      if (right < drawnTo + 0.5) continue; // within a pixel that is already full
      drawnTo = right;
      brush.fillRect(left, top + this.height - 14, right - left, 8);
    }
  }

  #rows(t) {
    const { rank, name } = this;
    const index = nearestOf(rank.t, t);
    const words = index >= 0 && rank.busy[index] !== null ? [`${formatPercent(rank.busy[index])} busy`] : [];
    for (const [kind, spans] of this.bars) {
      const span = spanAt(spans, t);
      if (span) words.push(`${kind} ${lengthText(span.last?.ms ?? span.end - span.start)}`);
    }
    return words.length ? [[name, words.join(", ")]] : [];
  }
}

/** The lanes a timeline has something for; processor and epochs always. */
function lanesOf(data) {
  const percent = (value) => (value === null || value === undefined ? DASH : formatPercent(value));
  const lanes = data.phases.length ? [new SpanLane("Phases", data.phases, data.phases.map(({ first }) => (first.name === "Training" ? "phase-next" : "phase")), phaseText)] : [];
  lanes.push(new SpanLane("Epochs", data.epochs, ["epoch", "epoch-next"], epochText));
  if (data.windows.length) lanes.push(new SpanLane("Windows", data.windows, ["window", "window-next"], windowText));
  if (!data.many) {
    if (data.waits.length) lanes.push(new SpanLane("Waiting", data.waits, ["wait"]));
    if (data.syncs.length) lanes.push(new SpanLane("Sync", data.syncs, ["sync"]));
    if (data.averages.length) lanes.push(new SpanLane("CPU average", data.averages, ["average"]));
  }
  for (const rank of data.ranks) lanes.push(new RankLane(rank, data.many));
  if (data.marks.length) lanes.push(new MarkLane(data));
  const cpu = data.cpu || [];
  lanes.push(new CurveLane("CPU", data, data.cpu ? [{ values: cpu, color: "cpu", filled: true, meaning: "processor" }] : [], {
    rows: (_t, _reach, index) => [["CPU", percent(cpu[index])]],
  }));
  if (data.ram) {
    lanes.push(new CurveLane("RAM", data, [{ values: data.ramShare, color: "ram", filled: true, meaning: "memory of the machine" }], {
      top: totalText(data.ram.total),
      rows: (_t, _reach, index) => [["RAM", bytesOf(data.ram.used[index], data.ram.total[index])]],
    }));
  }
  for (const gpu of data.gpus) {
    const name = `GPU ${gpu.device}`;
    const curves = [
      { values: gpu.util, color: "gpu", filled: true, label: "use, 100 %", meaning: "GPU use" },
      { values: gpu.share, color: "vram", label: `memory, ${totalText(gpu.total)}`, meaning: "GPU memory" },
    ];
    const gaps = [...gpu.gaps, ...gpu.idles.map((idle) => [idle.t - (idle.ms || 0), idle.t])];
    lanes.push(new CurveLane(name, data, curves, {
      gaps,
      top: "full",
      rows: (_t, _reach, index) => [
        [name, percent(gpu.util[index])],
        [`${name} memory`, bytesOf(gpu.used[index], gpu.total[index])],
      ].filter(([, text]) => text !== DASH),
    }));
  }
  return lanes;
}

/** What a curve of bytes ends at; the last total that is known. */
function totalText(totals) {
  const known = totals.filter((one) => one);
  return known.length ? formatBytes(known[known.length - 1]) : "100 %";
}

function bytesOf(used, total) {
  return used === null || used === undefined ? DASH : `${formatBytes(used)} / ${formatBytes(total)}`;
}
