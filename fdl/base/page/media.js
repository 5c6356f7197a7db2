"use strict";
/* Media: groups by the first part of a name, a panel with a step slider per name, and what one record looks like. */

const KIND_TITLES = { image: "image", histogram: "histogram", text: "text", table: "table", confusion_matrix: "confusion matrix", roc: "ROC curve", pr: "precision-recall curve" };

/** Panels that are open when the page is opened. */
const OPEN_PANELS = 12;

/** Classes up to which every cell of a confusion matrix is shown. */
const MOST_CLASSES = 64;
const MOST_CONFUSIONS = 100;

class MediaSection {
  #groups = new Map();
  #panels = new Map();
  panels = [];
  /** Ask the server what there is, once for all news of a second; after a broken line, the next connection asks anew. */
  refresh = soon(() => this.#load(), (act) => window.setTimeout(act, 1000));
  #test = () => true;
  #asked = null;

  /** `media` is what the page holds; a live page loads it from its server. */
  constructor(media, live) {
    this.visible = new IntersectionObserver((seen) => {
      for (const { target, isIntersecting } of seen) target.panel.seen(isIntersecting);
    }, { rootMargin: "300px" });
    this.#offer(media?.entries || [], media?.left_out);
    if (live) this.#load();
  }

  #load() {
    const asked = (this.#asked = ask("api/media"));
    asked.then(({ entries }) => this.#asked === asked && this.#offer(entries), () => {}); // a newer answer may have come first
  }

  #offer(entries, left = null) {
    place("media-section").hidden = !entries.length && !left?.records;
    place("media-count").textContent = entries.length;
    const fresh = entries.filter(({ kind, name }) => !this.#panels.has(`${kind} ${name}`)).length;
    const open = fresh <= OPEN_PANELS - this.#panels.size;
    for (const one of entries) entry(this.#panels, `${one.kind} ${one.name}`, () => this.#add(one, open)).offer(one);
    for (const { made, note, panels } of this.#groups.values()) made.dataset.panels = note.textContent = panels.length;
    if (left?.records) {
      place("media-note").textContent =
        `${formatWhole(left.records)} media records (${formatBytes(left.bytes)}) are left out: this file holds at most ` +
        `${formatBytes(left.budget)} of media. The folder media of the run directory has them.`;
    }
    this.filter();
  }

  #add(one, open) {
    const cut = one.name.indexOf("/");
    const title = cut > 0 ? one.name.slice(0, cut) : "General";
    if (!this.#groups.has(title)) {
      const [note, grid] = [element("span"), element("div", { className: "media-panels" })];
      const made = element("details", { className: "media-group", open: open || !this.#groups.size }, element("summary", { textContent: title }, note), grid);
      place("media").append(made);
      this.#groups.set(title, { made, note, grid, panels: [] });
    }
    const group = this.#groups.get(title);
    const panel = new MediaPanel(one, cut > 0 ? one.name.slice(cut + 1) : one.name);
    for (const list of [this.panels, group.panels]) list.push(panel);
    group.grid.append(panel.card);
    this.visible.observe(panel.card);
    return panel;
  }

  /** Leave the media that the search of the page finds. */
  filter(test = this.#test, searching = false) {
    this.#test = test;
    for (const { made, panels } of this.#groups.values()) {
      for (const panel of panels) panel.card.hidden = !test(panel.name);
      made.hidden = panels.every((panel) => panel.card.hidden);
      if (searching && !made.hidden) made.open = true;
    }
  }
}

/** The records of one kind and name, one of them shown. */
class MediaPanel {
  #records = [];
  #seen = false;
  #stale = false;
  #newest = "";
  #asked = null;
  /** What the reader chose, which the next record keeps. */
  #kept = {};
  index = -1;
  plot = null;

  constructor({ kind, name }, title) {
    Object.assign(this, { kind, name });
    this.body = element("div", { className: "media-body" });
    this.slider = element("input", { type: "range", min: 0, value: 0, step: 1, autocomplete: "off", "aria-label": `Step of ${name}`, oninput: () => this.show(Number(this.slider.value)) });
    this.output = element("output");
    const head = element("header", { className: "chart-head" }, element("h3", { textContent: title, title: name }), element("span", { textContent: KIND_TITLES[kind] }));
    this.card = element("article", { className: "card media-panel" }, head, this.body, element("footer", { className: "media-steps" }, this.slider, this.output));
    this.card.dataset.kind = kind;
    this.card.panel = this;
  }

  /** Take the records of an entry, or note that the server has newer ones. */
  offer({ records, count, step }) {
    if (records) return this.#take(records);
    const newest = `${count} ${step}`;
    this.#stale ||= this.#newest !== newest;
    this.#newest = newest;
    this.seen(this.#seen);
  }

  seen(seen) {
    this.#seen = seen;
    if (seen && this.#stale) {
      this.#stale = false;
      const asked = (this.#asked = ask(`api/media?${new URLSearchParams({ kind: this.kind, name: this.name })}`));
      asked.then(({ records }) => this.#asked === asked && this.#take(records), () => (this.#stale = true));
    } else if (seen && this.index < 0 && this.#records.length) this.show(this.#records.length - 1);
  }

  /** A panel at its newest record follows; a reader who went back stays at that step. */
  #take(records) {
    const follows = this.index < 0 || this.index === this.#records.length - 1;
    const step = this.#records[this.index]?.step;
    this.#records = records;
    this.slider.max = records.length - 1;
    this.slider.hidden = records.length < 2;
    const index = follows ? records.length - 1 : Math.max(0, records.findIndex((one) => one.step >= step));
    this.slider.value = index;
    this.output.textContent = mediaStep(records[index]);
    if (this.#seen || this.index >= 0) this.show(index);
  }

  show(index) {
    this.index = index;
    this.slider.value = index;
    const record = this.#records[index];
    this.output.textContent = mediaStep(record);
    this.slider.setAttribute("aria-valuetext", mediaStep(record));
    const Plotted = { histogram: HistogramChart, roc: RateChart, pr: RateChart }[this.kind];
    if (!Plotted) {
      const parts = { image: imagePart, text: textPart, table: tablePart, confusion_matrix: matrixPart }[this.kind];
      return this.body.replaceChildren(...parts(record, this.name, this.#kept));
    }
    this.plot ||= new Plotted(this.name, this.kind);
    if (!this.body.firstChild) this.body.append(...this.plot.parts);
    this.plot.show(record, this.#records);
  }
}

function mediaStep({ step, epoch }) {
  return `step ${formatWhole(step)}${epoch === null ? "" : `, epoch ${epoch}`}`;
}

function mediaNote(text) {
  return element("p", { className: "media-note", textContent: text });
}

function imagePart(record, name) {
  const grid = record.count > 1 ? `${record.count} images` : `${record.width} × ${record.height}`;
  const image = element("img", { src: record.src, alt: `${name} at ${mediaStep(record)}`, width: record.width, height: record.height });
  // Enlarged, a small picture shows its pixels and not a blur.
  if (record.width < 400) image.className = "enlarged";
  return [element("div", { className: "media-image" }, image), mediaNote(grid)];
}

function textPart(record, name) {
  return [element("pre", { tabIndex: 0, role: "region", "aria-label": `Text of ${name}`, textContent: record.text }), ...leftOut(record.left_out, "characters")];
}

function tablePart(record, name) {
  const text = (cell) => (typeof cell === "number" && !Number.isInteger(cell) ? String(Number(cell.toPrecision(6))) : (cell ?? DASH));
  const rows = record.rows.map((cells) => element("tr", {}, ...cells.map((cell) => element("td", { textContent: text(cell), title: String(cell), className: typeof cell === "number" ? "number" : "" }))));
  const table = tableOf(`${name} at ${mediaStep(record)}`, record.columns, [], { className: "media-table" });
  table.tBodies[0].append(...rows);
  return [scroller(`Table ${name}`, table), mediaNote(counted(rows.length, "row")), ...leftOut(record.left_out, "rows")];
}

function leftOut(count, what) {
  return count ? [mediaNote(`${formatWhole(count)} further ${what} were not recorded.`)] : [];
}

/** The records of one histogram over each other: the one that is shown, and a thin outline of the others. */
class HistogramChart extends Chart {
  #record = null;
  #records = [];

  constructor(name) {
    super(name, new Focus(new Axis("value")));
    this.name = name;
    this.height = 200;
    [this.text, this.odd] = ["", ""].map(mediaNote);
    this.odd.classList.add("bad-value");
    this.parts = [this.area, this.resetButton, this.text, this.odd];
  }

  show(record, records) {
    [this.#record, this.#records] = [record, records];
    const total = record.counts.reduce((sum, count) => sum + count, 0);
    const moments = record.mean === null ? "" : `, mean ${formatMetric(record.mean)}, std ${formatMetric(record.std)}`;
    const text = total ? `${formatWhole(total)} values from ${formatMetric(record.low)} to ${formatMetric(record.high)}${moments}` : "no finite value";
    const others = [[record.nan, "nan"], [record.posinf, "+inf"], [record.neginf, "-inf"]].filter(([count]) => count);
    const odd = others.length ? `not finite: ${others.map(([count, what]) => `${formatWhole(count)} ${what}`).join(", ")}` : "";
    this.text.textContent = text;
    this.odd.textContent = odd;
    const over = records.length > 1 ? ` over ${records.length} steps, from ${mediaStep(records[0])} to ${mediaStep(records[records.length - 1])}` : "";
    this.area.setAttribute("aria-label", [`${this.name}${over}; at ${mediaStep(record)}: ${text}`, odd].filter(Boolean).join(", "));
    this.redraw();
  }

  redraw() {
    const known = this.#records.filter(({ counts }) => counts.some((count) => count > 0));
    const lines = known.filter((one) => one !== this.#record).map((one) => ({ ...outlineOf(one), color: "soft", width: 1, alpha: Math.max(0.1, 2 / known.length) }));
    if (known.includes(this.#record)) {
      const line = outlineOf(this.#record);
      lines.push({ ...line, color: "accent", low: line.y.map(() => 0), high: line.y });
    }
    // A few records far outside do not flatten the others.
    const { low: first, high: last } = robustLimits(known.flatMap(({ low, high }) => [low, high]), 0.25, 20);
    const most = lines.reduce((high, { y }) => Math.max(high, ...y), 0);
    this.paint(lines, { bounds: known.length ? { low: 0, high: most, first, last } : null, empty: "no finite value" });
  }

  get places() {
    const { low, high, counts } = this.#record;
    return counts.map((_, bin) => edgeOf(low, high, (bin + 0.5) / counts.length));
  }

  read(x) {
    const { low, high, counts } = this.#record;
    const bin = nearestIndex(this.places, x);
    if (x < low || x > high) return null;
    const [from, to] = [bin, bin + 1].map((at) => formatMetric(edgeOf(low, high, at / counts.length)));
    return { x, title: mediaStep(this.#record), rows: [[`${from} to ${to}`, `${formatWhole(counts[bin])} values`]], dots: [] };
  }
}

/** A place between the ends of a histogram, whose distance need not be a number. */
function edgeOf(low, high, part) {
  return low * (1 - part) + high * part;
}

/** The steps over the bins of a histogram. */
function outlineOf({ low, high, counts }) {
  const edges = [...counts.keys(), counts.length].map((at) => edgeOf(low, high, at / counts.length));
  return { x: edges.flatMap((edge) => [edge, edge]), y: [0, ...counts.flatMap((count) => [count, count]), 0] };
}

const NORMAL_FORMS = [[null, "counts"], ["true", "% of true class"], ["pred", "% of predicted class"], ["all", "% of all"]];

function matrixPart(record, name, kept) {
  const { classes, counts } = record;
  const rows = counts.map((row) => row.reduce((sum, count) => sum + count, 0));
  const columns = counts[0].map((_, at) => counts.reduce((sum, row) => sum + row[at], 0));
  const all = rows.reduce((sum, count) => sum + count, 0);
  const share = (i, j, by) => counts[i][j] / ({ true: rows[i], pred: columns[j], all }[by || "true"] || 1);
  const right = counts.reduce((sum, row, at) => sum + row[at], 0);
  const summary = `${formatWhole(right)} of ${formatWhole(all)} right (${all ? ((100 * right) / all).toFixed(1) : 0} %)`;
  const readout = element("p", { className: "media-note matrix-readout", "aria-live": "polite", textContent: summary });
  if (classes.length > MOST_CLASSES) return [confusionList(record, name), readout];
  if (kept.form === undefined) kept.form = record.normalize;
  const told = (i, j) => `true ${classes[i]}, predicted ${classes[j]}: ${formatWhole(counts[i][j])} (${(100 * share(i, j, "true")).toFixed(1)} % of ${formatWhole(rows[i])} ${classes[i]})`;
  const cells = classes.map((_, i) => classes.map((_, j) => {
    const tell = () => (readout.textContent = told(i, j));
    return element("td", { title: told(i, j), tabIndex: i || j ? -1 : 0, "aria-label": told(i, j), onpointerenter: tell, onfocus: tell });
  }));
  const buttons = NORMAL_FORMS.map(([form, text]) => [form, button(text, () => paint((kept.form = form)), { className: "toggle" })]);
  const paint = () => {
    cells.forEach((row, i) => row.forEach((cell, j) => {
      const part = share(i, j, kept.form);
      cell.textContent = !kept.form ? formatWhole(counts[i][j]) : counts[i][j] ? (100 * part).toFixed(classes.length > 12 ? 0 : 1) : "0";
      cell.style.background = `color-mix(in srgb, var(--${i === j ? "accent" : "bad"}) ${Math.round(88 * Math.sqrt(part))}%, transparent)`;
      cell.classList.toggle("strong", part > 0.35);
    }));
    for (const [form, made] of buttons) press(made, form === kept.form);
  };
  const choices = element("div", { className: "media-search", role: "group", "aria-label": `Numbers of ${name}` }, ...buttons.map(([, made]) => made));
  const table = tableOf(`${name} at ${mediaStep(record)}: ${summary}`, ["true \\ predicted", ...classes], classes.map((text, i) => [text, ...cells[i]]), { className: "matrix", role: "grid" });
  table.onpointerleave = () => (readout.textContent = summary);
  table.onkeydown = (event) => moveCell(event, cells.flat(), classes.length);
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
  return scroller(title, tableOf(title, ["True", "Predicted", "Samples"], most.map(([count, i, j]) => [classes[i], classes[j], formatWhole(count)]), { className: "numbers" }));
}

const CURVE_AXES = { roc: ["False positive rate", "True positive rate", "AUC"], pr: ["Recall", "Precision", "AP"] };

/** ROC or precision-recall curves of all classes, with their areas. Precision jumps from one threshold to the next. */
class RateChart extends Chart {
  #curves = [];

  constructor(name, kind) {
    const [across, up, area] = CURVE_AXES[kind];
    super(name, new Focus(new Axis("value", { title: across.toLowerCase() })));
    Object.assign(this, { name, kind, across, up, measure: area });
    this.reading = mediaNote("");
    this.legend = new Legend(() => this.redraw());
    this.parts = [this.area, this.reading, this.resetButton, this.legend.list];
  }

  show(record) {
    this.hit = null;
    this.#curves = record.curves.map((curve, index) => ({ ...risingPoints(curve), ...lookOf(index), stepped: this.kind === "pr", name: `${curve.name || "class 1"} · ${this.measure} ${curve.area === null ? DASH : curve.area.toFixed(4)}`, curve }));
    const title = `${this.up} by ${this.across.toLowerCase()}`;
    const areas = this.#curves.map((one) => one.name.replace(" · ", " ")).join(", ");
    this.area.setAttribute("aria-label", `${title}, ${this.name} at ${mediaStep(record)}: ${areas}. Arrow keys read the values.`);
    this.reading.textContent = title;
    this.legend.offer(this.#curves, true);
    this.redraw();
  }

  redraw() {
    // Guessing gives the diagonal of a ROC curve; in both kinds, the line opens the whole range.
    const guess = { name: "", color: "soft", dash: [3, 4], width: 1, alpha: this.kind === "roc" ? 1 : 0, x: [0, 1], y: [0, 1] };
    this.paint([guess, ...this.#curves.filter(({ name, x }) => x.length && !this.legend.hidden.has(name))], { empty: "no curve" });
  }

  /** Of each curve the point nearest to a place; the height tells those of a steep curve apart. */
  found(x, level) {
    const { px, py } = this.scales;
    const away = ([a, b]) => (level === null ? Math.abs(a - x) : Math.hypot(px(a) - px(x), py(b) - level));
    return this.lines.slice(1).map((line) => {
      const points = line.x.map((at, index) => [at, line.y[index]]);
      const point = points.reduce((best, one) => (away(one) < away(best) ? one : best));
      return { line, point, x: point[0], height: py(point[1]) };
    });
  }

  read(at) {
    const hit = this.nearest(at);
    if (!hit) return null;
    const { curve, name, color } = hit.line;
    const [a, b] = hit.point.map((part) => part.toFixed(3));
    this.reading.textContent = `${curve.name || "class 1"}: ${this.across.toLowerCase()} ${a}, ${this.up.toLowerCase()} ${b}`;
    const rows = [[this.across, a], [this.up, b], ["positive samples", String(curve.positives)], ["negative samples", String(curve.negatives)]];
    return { x: hit.x, title: name, rows, dots: [[hit.height, color]] };
  }
}

/** The points of a curve with rising x, no two at the same place. */
function risingPoints({ x, y }) {
  const known = x.map((at, index) => [at, y[index]]).filter(([a, b]) => a !== null && b !== null);
  if (known.length && known[0][0] > known[known.length - 1][0]) known.reverse();
  return { x: known.map(([a], index) => a + 1e-9 * index), y: known.map(([, b]) => b) };
}
