"use strict";
/* What one record of media looks like: an image, bars, a heat map, a matrix, curves, a text, a table. */

const HEAT_HEIGHT = 132;
const BARS_HEIGHT = 96;
const LEFT_ROOM = 62;

/** Classes up to which every cell of a confusion matrix is shown. */
const MOST_CLASSES = 64;
const MOST_CONFUSIONS = 100;

const COUNT = new Intl.NumberFormat("en");

function mediaStep({ step, epoch }) {
  return `step ${COUNT.format(step)}${epoch === null ? "" : `, epoch ${epoch}`}`;
}

function imagePart(record, name) {
  const grid = record.count > 1 ? `${record.count} images` : `${record.width} × ${record.height}`;
  const image = element("img", { src: record.src, alt: `${name} at ${mediaStep(record)}`, width: record.width, height: record.height });
  // Enlarged, a small picture shows its pixels and not a blur.
  if (record.width < 400) image.className = "enlarged";
  return [element("div", { className: "media-image" }, image), element("p", { className: "media-note", textContent: grid })];
}

/** A field that leaves only what contains its words; `filter(words)` gives the text of what is left. */
function searchField(label, kept, filter) {
  const input = element("input", { type: "search", placeholder: "Search", value: kept.query || "", autocomplete: "off" });
  input.setAttribute("aria-label", label);
  const found = element("output");
  const apply = () => {
    kept.query = input.value;
    found.textContent = filter(input.value.toLowerCase().split(/\s+/).filter(Boolean));
  };
  input.addEventListener("input", apply);
  apply();
  return element("div", { className: "media-search" }, input, found);
}

function textPart(record, name, kept) {
  const lines = record.text.split("\n");
  const body = element("pre", { tabIndex: 0 });
  body.setAttribute("role", "region");
  body.setAttribute("aria-label", `Text of ${name}`);
  const search = searchField(`Search in ${name}`, kept, (words) => {
    const left = lines.filter((line) => words.every((word) => line.toLowerCase().includes(word)));
    body.textContent = left.join("\n");
    return words.length ? `${left.length} of ${lines.length} lines` : "";
  });
  return [...(lines.length > 1 || kept.query ? [search] : []), body, ...leftOut(record.left_out, "characters")];
}

function tablePart(record, name, kept) {
  const numeric = record.columns.map((_, index) => record.rows.some((cells) => typeof cells[index] === "number"));
  const head = element("tr", {}, ...record.columns.map((text, index) => element("th", { textContent: text, scope: "col", className: numeric[index] ? "number" : "" })));
  const rows = record.rows.map((cells) => {
    const shown = cells.map((cell) => element("td", { textContent: cellText(cell), title: String(cell), className: typeof cell === "number" ? "number" : "" }));
    return [cells.join(" ").toLowerCase(), element("tr", {}, ...shown)];
  });
  const body = element("tbody");
  const search = searchField(`Search in ${name}`, kept, (words) => {
    const left = rows.filter(([text]) => words.every((word) => text.includes(word)));
    body.replaceChildren(...left.map(([, row]) => row));
    return words.length ? `${left.length} of ${rows.length} rows` : `${rows.length} rows`;
  });
  const caption = element("caption", { className: "unseen", textContent: `${name} at ${mediaStep(record)}` });
  const scroll = element("div", { className: "scroll", tabIndex: 0 }, element("table", { className: "media-table" }, caption, element("thead", {}, head), body));
  scroll.setAttribute("role", "region");
  scroll.setAttribute("aria-label", `Table ${name}`);
  return [search, scroll, ...leftOut(record.left_out, "rows")];
}

function cellText(cell) {
  if (typeof cell === "number" && !Number.isInteger(cell)) return String(Number(cell.toPrecision(6)));
  return cell === null ? DASH : cell;
}

function leftOut(count, what) {
  return count ? [element("p", { className: "media-note", textContent: `${COUNT.format(count)} further ${what} were not recorded.` })] : [];
}

function histogramText(record) {
  const total = record.counts.reduce((sum, count) => sum + count, 0);
  const others = [[record.nan, "nan"], [record.posinf, "+inf"], [record.neginf, "-inf"]].filter(([count]) => count);
  const odd = others.map(([count, what]) => `${COUNT.format(count)} ${what}`).join(", ");
  if (!total) return [`no finite value`, odd];
  const moments = record.mean === null ? "" : `, mean ${formatMetric(record.mean)}, std ${formatMetric(record.std)}`;
  return [`${COUNT.format(total)} values from ${formatMetric(record.low)} to ${formatMetric(record.high)}${moments}`, odd];
}

/** Limits of the value axis over all records; a few records far outside do not flatten the others. */
function valueLimits(records) {
  const known = records.filter((record) => record.counts.some((count) => count > 0));
  if (!known.length) return null;
  const at = (values, share) => values.sort((a, b) => a - b)[Math.round(share * (values.length - 1))];
  const [lows, highs] = [known.map((one) => one.low), known.map((one) => one.high)];
  const whole = [at(lows, 0), at(highs, 1)];
  const usual = [at(lows, 0.25), at(highs, 0.75)];
  if (usual[1] > usual[0] && whole[1] / 20 - whole[0] / 20 > usual[1] - usual[0]) {
    const room = usual[1] - usual[0];
    return [Math.max(whole[0], usual[0] - room), Math.min(whole[1], usual[1] + room)];
  }
  return whole;
}

/** Records of one histogram over the steps: one column per record, darker where values are frequent. */
class HistogramPlot {
  #records = [];
  #index = 0;
  #name;

  constructor(name, choose) {
    this.#name = name;
    this.heat = element("canvas", { className: "heat" });
    this.bars = element("canvas");
    this.text = element("p", { className: "media-note" });
    this.odd = element("p", { className: "media-note bad-value" });
    this.hover = element("p", { className: "media-note", textContent: "\u00a0" });
    for (const canvas of [this.heat, this.bars]) canvas.setAttribute("role", "img");
    this.heat.addEventListener("click", (event) => choose(this.#columnAt(event.offsetX)));
    this.bars.addEventListener("pointermove", (event) => this.#tell(event.offsetX));
    this.bars.addEventListener("pointerleave", () => (this.hover.textContent = "\u00a0"));
    this.parts = [this.heat, this.bars, this.text, this.odd, this.hover];
  }

  show(records, index) {
    [this.#records, this.#index] = [records, index];
    const record = records[index];
    const [text, odd] = histogramText(record);
    this.text.textContent = text;
    this.odd.textContent = odd ? `not finite: ${odd}` : "";
    this.odd.hidden = !odd;
    this.heat.hidden = records.length < 2;
    this.heat.setAttribute("aria-label", `${this.#name} over ${records.length} steps, from ${mediaStep(records[0])} to ${mediaStep(records[records.length - 1])}`);
    this.bars.setAttribute("aria-label", `${this.#name} at ${mediaStep(record)}: ${text}${odd ? `, not finite: ${odd}` : ""}`);
    this.draw();
  }

  draw() {
    const width = this.bars.parentElement?.clientWidth || 0;
    if (width < LEFT_ROOM + 40 || !this.#records.length) return;
    if (!this.heat.hidden) this.#drawHeat(width);
    this.#drawBars(width);
  }

  #columnAt(x) {
    const share = (x - LEFT_ROOM) / Math.max(1, this.heat.clientWidth - LEFT_ROOM);
    return Math.max(0, Math.min(this.#records.length - 1, Math.floor(share * this.#records.length)));
  }

  #drawHeat(width) {
    const context = prepare(this.heat, width, HEAT_HEIGHT);
    const limits = valueLimits(this.#records);
    const [top, bottom] = [6, HEAT_HEIGHT - 20];
    context.fillStyle = ink.get("inset");
    context.fillRect(LEFT_ROOM, top, width - LEFT_ROOM, bottom - top);
    if (!limits) return;
    const [low, high] = limits;
    const y = (value) => bottom - ((value / 2 - low / 2) / (high / 2 - low / 2 || 1)) * (bottom - top);
    const column = (width - LEFT_ROOM) / this.#records.length;
    context.save();
    context.beginPath();
    context.rect(LEFT_ROOM, top, width - LEFT_ROOM, bottom - top);
    context.clip();
    context.fillStyle = ink.get("accent");
    this.#records.forEach((record, index) => {
      const most = Math.max(...record.counts, 1);
      const size = record.high / record.counts.length - record.low / record.counts.length;
      record.counts.forEach((count, bin) => {
        if (!count) return;
        context.globalAlpha = 0.08 + 0.92 * Math.sqrt(count / most);
        const [from, to] = [y(record.low + (bin + 1) * size), y(record.low + bin * size)];
        context.fillRect(LEFT_ROOM + index * column, from, Math.ceil(column), Math.max(1, to - from));
      });
    });
    context.restore();
    context.strokeStyle = ink.get("text");
    context.strokeRect(LEFT_ROOM + this.#index * column + 0.5, top + 0.5, Math.max(2, column - 1), bottom - top - 1);
    context.fillStyle = ink.get("soft");
    context.textAlign = "right";
    context.fillText(formatMetric(high), LEFT_ROOM - 6, top + 9);
    context.fillText(formatMetric(low), LEFT_ROOM - 6, bottom);
    context.fillText(`step ${COUNT.format(this.#records[this.#records.length - 1].step)}`, width, HEAT_HEIGHT - 5);
    context.textAlign = "left";
    context.fillText(`step ${COUNT.format(this.#records[0].step)}`, LEFT_ROOM, HEAT_HEIGHT - 5);
  }

  #drawBars(width) {
    const record = this.#records[this.#index];
    const context = prepare(this.bars, width, BARS_HEIGHT);
    const [bottom, most] = [BARS_HEIGHT - 18, Math.max(...record.counts, 1)];
    const size = (width - LEFT_ROOM) / record.counts.length;
    context.fillStyle = ink.get("accent");
    record.counts.forEach((count, bin) => {
      const height = count ? Math.max(1, (count / most) * (bottom - 8)) : 0;
      context.fillRect(LEFT_ROOM + bin * size, bottom - height, Math.max(1, size - (size > 4 ? 1 : 0)), height);
    });
    strokeLine(context, LEFT_ROOM, bottom + 0.5, width, bottom + 0.5, ink.get("line"));
    context.fillStyle = ink.get("soft");
    context.textAlign = "right";
    context.fillText(COUNT.format(most), LEFT_ROOM - 6, 14);
    context.fillText("values", LEFT_ROOM - 6, 28);
    context.fillText(formatMetric(record.high), width, BARS_HEIGHT - 4);
    context.textAlign = "left";
    context.fillText(formatMetric(record.low), LEFT_ROOM, BARS_HEIGHT - 4);
  }

  #tell(x) {
    const { low, high, counts } = this.#records[this.#index];
    const bin = Math.floor(((x - LEFT_ROOM) / (this.bars.clientWidth - LEFT_ROOM)) * counts.length);
    if (!(bin >= 0 && bin < counts.length)) return;
    const edge = (at) => formatMetric(low * (1 - at / counts.length) + high * (at / counts.length));
    this.hover.textContent = `${edge(bin)} to ${edge(bin + 1)}: ${COUNT.format(counts[bin])} values`;
  }
}

const NORMAL_FORMS = [[null, "counts"], ["true", "% of true class"], ["pred", "% of predicted class"], ["all", "% of all"]];

function matrixShares({ counts }) {
  const rows = counts.map((row) => row.reduce((sum, count) => sum + count, 0));
  const columns = counts[0].map((_, at) => counts.reduce((sum, row) => sum + row[at], 0));
  const all = rows.reduce((sum, count) => sum + count, 0);
  const part = (count, whole) => (whole ? count / whole : 0);
  return { rows, columns, all, share: (i, j, by) => part(counts[i][j], { true: rows[i], pred: columns[j], all }[by || "true"]) };
}

function matrixPart(record, name, kept) {
  const { classes, counts } = record;
  const { rows, all, share } = matrixShares(record);
  const readout = element("p", { className: "media-note matrix-readout" });
  readout.setAttribute("aria-live", "polite");
  const right = counts.reduce((sum, row, at) => sum + row[at], 0);
  const summary = `${COUNT.format(right)} of ${COUNT.format(all)} right (${all ? ((100 * right) / all).toFixed(1) : 0} %)`;
  readout.textContent = summary;
  if (classes.length > MOST_CLASSES) return [confusionList(record, name), readout];
  if (kept.form === undefined) kept.form = record.normalize;
  const cells = [];
  const told = (i, j) =>
    `true ${classes[i]}, predicted ${classes[j]}: ${COUNT.format(counts[i][j])} (${(100 * share(i, j, "true")).toFixed(1)} % of ${COUNT.format(rows[i])} ${classes[i]})`;
  const body = classes.map((label, i) =>
    element("tr", {}, element("th", { textContent: label, scope: "row", title: label }), ...classes.map((_, j) => {
      const cell = element("td", { title: told(i, j), tabIndex: i || j ? -1 : 0 });
      cell.setAttribute("aria-label", told(i, j));
      const tell = () => (readout.textContent = told(i, j));
      cell.addEventListener("pointerenter", tell);
      cell.addEventListener("focus", tell);
      cells.push(cell);
      return cell;
    })),
  );
  const paint = () => {
    cells.forEach((cell, at) => {
      const [i, j] = [Math.floor(at / classes.length), at % classes.length];
      const part = share(i, j, kept.form);
      cell.textContent = kept.form ? (counts[i][j] ? (100 * part).toFixed(classes.length > 12 ? 0 : 1) : "0") : COUNT.format(counts[i][j]);
      cell.style.background = `color-mix(in srgb, var(--${i === j ? "accent" : "bad"}) ${Math.round(88 * Math.sqrt(part))}%, transparent)`;
      cell.classList.toggle("strong", part > 0.35);
    });
    for (const [button, form] of buttons) button.setAttribute("aria-pressed", String(form === kept.form));
  };
  const buttons = NORMAL_FORMS.map(([form, text]) => {
    const button = element("button", { type: "button", className: "toggle", textContent: text });
    button.addEventListener("click", () => {
      kept.form = form;
      paint();
    });
    return [button, form];
  });
  const choices = element("div", { className: "media-search" }, ...buttons.map(([button]) => button));
  choices.setAttribute("role", "group");
  choices.setAttribute("aria-label", `Numbers of ${name}`);
  const heads = ["true \\ predicted", ...classes].map((text) => element("th", { textContent: text, scope: "col", title: text }));
  const caption = element("caption", { className: "unseen", textContent: `${name} at ${mediaStep(record)}: ${summary}` });
  const table = element("table", { className: "matrix" }, caption, element("thead", {}, element("tr", {}, ...heads)), element("tbody", {}, ...body));
  table.setAttribute("role", "grid");
  table.addEventListener("pointerleave", () => (readout.textContent = summary));
  table.addEventListener("keydown", (event) => moveCell(event, cells, classes.length));
  paint();
  return [choices, element("div", { className: "matrix-scroll" }, table), readout];
}

/** Arrow keys, Home and End move between the cells of a matrix, which are one stop of the Tab key. */
function moveCell(event, cells, across) {
  const now = cells.indexOf(event.target);
  const by = { ArrowLeft: -1, ArrowRight: 1, ArrowUp: -across, ArrowDown: across, Home: -(now % across), End: across - 1 - (now % across) }[event.key];
  const sideways = Math.abs(by) === 1 && Math.floor((now + by) / across) !== Math.floor(now / across);
  if (now < 0 || by === undefined || sideways || !cells[now + by]) return;
  event.preventDefault();
  cells[now].tabIndex = -1;
  cells[now + by].tabIndex = 0;
  cells[now + by].focus();
}

/** The most frequent confusions, where there are too many classes for a matrix. */
function confusionList({ classes, counts }, name) {
  const all = counts.flatMap((row, i) => row.map((count, j) => [count, i, j])).filter(([count, i, j]) => count && i !== j);
  const most = all.sort((a, b) => b[0] - a[0]).slice(0, MOST_CONFUSIONS);
  const title = `Most frequent confusions of ${name}, ${classes.length} classes`;
  const table = numberTable(title, ["True", "Predicted", "Samples"], most.map(([count, i, j]) => [classes[i], classes[j], COUNT.format(count)]));
  const scroll = element("div", { className: "scroll", tabIndex: 0 }, table);
  scroll.setAttribute("role", "region");
  scroll.setAttribute("aria-label", title);
  return scroll;
}

const CURVE_AXES = { roc: ["False positive rate", "True positive rate", "AUC"], pr: ["Recall", "Precision", "AP"] };

/** An axis of rates from 0 to 1. */
class RateAxis extends Axis {
  #title;

  constructor(title) {
    super("rate");
    this.#title = title;
  }

  get title() {
    return this.#title.toLowerCase();
  }

  label(x) {
    return x.toFixed(3);
  }

  say(x) {
    return `${this.title} ${this.label(x)}`;
  }

  ticks(first, last, wanted) {
    return linearScale(first, last, wanted, true).ticks;
  }
}

/** ROC or precision-recall curves of all classes, with their areas. */
class RateChart extends Chart {
  #curves = [];
  #hit = null;

  constructor(name, kind) {
    const [across, up, area] = CURVE_AXES[kind];
    super(name, new Focus(new RateAxis(across)));
    Object.assign(this, { name, kind, across, up, measure: area });
    this.reading = element("p", { className: "media-note" });
    this.legend = new Legend((label) => this.#look(label), () => this.redraw());
    this.parts = [this.area, this.reading, this.resetButton, this.legend.list];
  }

  show(record) {
    this.#hit = null;
    this.#curves = record.curves.map((curve) => ({ ...linesOf(curve, this.kind), name: `${curve.name || "class 1"} · ${this.measure} ${curve.area === null ? DASH : curve.area.toFixed(4)}`, curve }));
    const areas = this.#curves.map((one) => one.name.replace(" · ", " ")).join(", ");
    const title = `${this.up} by ${this.across.toLowerCase()}`;
    this.area.setAttribute("aria-label", `${title}, ${this.name} at ${mediaStep(record)}: ${areas}. Arrow keys read the values.`);
    this.reading.textContent = title;
    this.legend.offer(this.#curves.map((one) => one.name));
    this.legend.list.hidden = false;
    this.redraw();
  }

  #look(label) {
    const at = this.#curves.findIndex((one) => one.name === label);
    return { token: `series-${at % 8}`, dash: DASHES[Math.floor(at / 8) % 3] };
  }

  get #shown() {
    return this.#curves.filter(({ name, points }) => points.length && this.legend.shows(name));
  }

  redraw() {
    const looks = this.#shown.map((one) => ({ ...one, color: ink.get(this.#look(one.name).token), dash: this.#look(one.name).dash }));
    // Guessing gives the diagonal of a ROC curve; in both kinds, the line opens the whole range.
    const guess = { name: "", color: ink.get("soft"), dash: [3, 4], width: 1, alpha: this.kind === "roc" ? 1 : 0, x: [0, 1], y: [0, 1] };
    this.paint([guess, ...looks], { empty: "no curve" });
  }

  get places() {
    return (this.#hit?.one ?? this.#shown[0])?.points.map(([x]) => x) ?? [];
  }

  /** Go to the next curve. */
  turn(step) {
    const shown = this.#shown;
    const now = shown.findIndex(({ name }) => name === this.#hit?.one.name);
    const one = shown[(now + step + shown.length) % shown.length];
    this.#hit = { one };
    this.focus.point(one.points[nearestIndex(this.places, this.focus.x)][0], this);
  }

  read(x) {
    const shown = this.#shown;
    const one = this.#hit?.one ?? shown[0];
    const exact = one?.points.find(([at]) => at === x);
    const found = exact ? { one, point: exact } : this.#nearest(shown, x);
    if (!found) return null;
    this.#hit = found;
    const { curve, name } = found.one;
    const [a, b] = found.point;
    const label = curve.name || "class 1";
    const spoken = `${label}: ${this.across.toLowerCase()} ${a.toFixed(3)}, ${this.up.toLowerCase()} ${b.toFixed(3)}`;
    this.reading.textContent = spoken;
    const samples = `${curve.positives} positive, ${curve.negatives} negative samples`;
    const lines = [name, `${this.across} ${a.toFixed(3)}`, `${this.up} ${b.toFixed(3)}`, samples].map((text) => element("span", { textContent: text }));
    return { x: a, lines, spoken, dots: [[this.scales.py(b), ink.get(this.#look(name).token)]] };
  }

  /** The point nearest to the pointer. */
  #nearest(shown, x) {
    const { px, py } = this.scales;
    let [best, distance] = [null, Infinity];
    for (const one of shown) {
      for (const point of one.points) {
        const away = (px(point[0]) - px(x)) ** 2 + (py(point[1]) - (this.pointer ?? 0)) ** 2;
        if (away < distance) [best, distance] = [{ one, point }, away];
      }
    }
    return best;
  }
}

/** The points of a curve with rising x, no two at the same place, and the line through them. */
function linesOf({ x, y }, kind) {
  const known = x.map((at, index) => [at, y[index]]).filter(([a, b]) => a !== null && b !== null);
  if (known.length && known[0][0] > known[known.length - 1][0]) known.reverse();
  const points = known.map(([a, b], index) => [a + 1e-9 * index, b]);
  // Precision jumps from one threshold to the next, and the average precision sums these steps.
  const line = kind === "pr" ? points.flatMap(([a, b], index) => (index + 1 < points.length ? [[a, b], [a, points[index + 1][1]]] : [[a, b]])) : points;
  return { points, x: line.map(([a]) => a), y: line.map(([, b]) => b) };
}
