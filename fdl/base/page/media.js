"use strict";
/* Media: groups by the first part of a name, a panel with a step slider per name, and what one record looks like. */

const KIND_TITLES = { image: "image", histogram: "histogram", text: "text", table: "table", confusion_matrix: "confusion matrix", roc: "ROC curve", pr: "precision-recall curve" };

/** Panels that are open when the page is opened. */
const OPEN_PANELS = 12;
const HEAT_HEIGHT = 132;
const BARS_HEIGHT = 96;
const LEFT_ROOM = 62;

/** Classes up to which every cell of a confusion matrix is shown. */
const MOST_CLASSES = 64;
const MOST_CONFUSIONS = 100;

class MediaSection {
  #groups = new Map();
  #panels = new Map();
  #live;
  #asked = false;
  #again = false;

  /** `media` is what the page holds; a live page loads it from its server. */
  constructor(media, live) {
    this.#live = live;
    this.search = searchField("Search names of media", () => this.#filter(), { placeholder: "Search names" });
    place("media-count").after(this.search);
    this.visible = new IntersectionObserver((seen) => {
      for (const { target, isIntersecting } of seen) target.panel.seen(isIntersecting);
    }, { rootMargin: "300px" });
    this.sizes = new ResizeObserver((changes) => {
      for (const { target } of changes) target.panel.plot?.draw();
    });
    this.#offer(media?.entries || [], media?.left_out);
    if (live) this.refresh();
  }

  get panels() {
    return [...this.#panels.values()];
  }

  /** Draw what is drawn with the colours of the theme. */
  repaint() {
    for (const panel of this.panels) if (panel.plot) panel.show(panel.index);
  }

  /** Ask the server what there is; news during a request make one more. */
  async refresh() {
    if (this.#asked) {
      this.#again = true;
      return;
    }
    this.#asked = true;
    try {
      this.#offer((await ask("api/media")).entries);
    } catch {
      // The line is broken; the next connection asks anew.
    }
    window.setTimeout(() => {
      this.#asked = false;
      if (this.#again) this.refresh();
      this.#again = false;
    }, 1000);
  }

  #offer(entries, left = null) {
    place("media-section").hidden = !entries.length && !left?.records;
    place("media-count").textContent = entries.length;
    const fresh = entries.filter(({ kind, name }) => !this.#panels.has(`${kind} ${name}`)).length;
    const open = fresh <= OPEN_PANELS - this.#panels.size;
    for (const entry of entries) {
      const key = `${entry.kind} ${entry.name}`;
      if (!this.#panels.has(key)) this.#panels.set(key, this.#add(entry, open));
      this.#panels.get(key).offer(entry);
    }
    for (const { made, note, panels } of this.#groups.values()) made.dataset.panels = note.textContent = panels.length;
    place("media-note").hidden = !left?.records;
    if (left?.records) {
      place("media-note").textContent =
        `${formatWhole(left.records)} media records (${formatBytes(left.bytes)}) are left out: this file holds at most ` +
        `${formatBytes(left.budget)} of media. The folder media of the run directory has them.`;
    }
    this.#filter();
  }

  #add(entry, open) {
    const cut = entry.name.indexOf("/");
    const title = cut > 0 ? entry.name.slice(0, cut) : "General";
    if (!this.#groups.has(title)) {
      const [note, grid] = [element("span"), element("div", { className: "media-panels" })];
      const made = element("details", { className: "media-group", open: open || !this.#groups.size }, element("summary", { textContent: title }, note), grid);
      place("media").append(made);
      this.#groups.set(title, { made, note, grid, panels: [] });
    }
    const group = this.#groups.get(title);
    const panel = new MediaPanel(entry, cut > 0 ? entry.name.slice(cut + 1) : entry.name);
    group.panels.push(panel);
    group.grid.append(panel.card);
    this.visible.observe(panel.card);
    this.sizes.observe(panel.card);
    return panel;
  }

  #filter() {
    const test = worded(this.search.value);
    for (const { made, panels } of this.#groups.values()) {
      for (const panel of panels) panel.card.hidden = !test(panel.name);
      made.hidden = panels.every((panel) => panel.card.hidden);
      if (this.search.value.trim() && !made.hidden) made.open = true;
    }
  }
}

/** The records of one kind and name, one of them shown. */
class MediaPanel {
  #records = [];
  #seen = false;
  #stale = false;
  #newest = "";
  /** What the reader searched or chose, which the next record keeps. */
  #kept = {};
  index = -1;
  plot = null;

  constructor({ kind, name }, title) {
    Object.assign(this, { kind, name });
    this.body = element("div", { className: "media-body" });
    this.slider = element("input", { type: "range", min: 0, value: 0, step: 1, autocomplete: "off", "aria-label": `Step of ${name}` });
    this.output = element("output");
    this.slider.addEventListener("input", () => this.show(Number(this.slider.value)));
    const head = element("header", { className: "chart-head" }, element("h3", { textContent: title, title: name }), element("span", { textContent: KIND_TITLES[kind] }));
    this.card = element("article", { className: "card media-panel" }, head, this.body, element("footer", { className: "media-steps" }, this.slider, this.output));
    this.card.dataset.kind = kind;
    this.card.panel = this;
  }

  /** Take the records of an entry, or note that the server has newer ones. */
  offer({ records, count, step }) {
    if (records) this.#take(records);
    else if (this.#newest !== `${count} ${step}`) {
      this.#newest = `${count} ${step}`;
      this.#stale = true;
      if (this.#seen) this.#load();
    }
  }

  seen(seen) {
    this.#seen = seen;
    if (seen && this.#stale) this.#load();
    else if (seen && this.index < 0 && this.#records.length) this.show(this.#records.length - 1);
  }

  async #load() {
    this.#stale = false;
    try {
      this.#take((await ask(`api/media?${new URLSearchParams({ kind: this.kind, name: this.name })}`)).records);
    } catch {
      this.#stale = true;
    }
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
    const Plotted = { histogram: HistogramPlot, roc: RateChart, pr: RateChart }[this.kind];
    if (!Plotted) {
      const parts = { image: imagePart, text: textPart, table: tablePart, confusion_matrix: matrixPart }[this.kind];
      return this.body.replaceChildren(...parts(record, this.name, this.#kept));
    }
    this.plot ||= new Plotted(this.name, this.kind, (at) => this.show(at));
    if (!this.body.firstChild) this.body.append(...this.plot.parts);
    this.plot.show(record, this.#records, index);
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

/** A field that leaves only what contains its words; `filter(test, searching)` gives the text of what is left. */
function keptSearch(name, kept, filter) {
  const found = element("output");
  const apply = (text, test) => {
    kept.query = text;
    found.textContent = filter(test, Boolean(text.trim()));
  };
  apply(kept.query || "", worded(kept.query || ""));
  return element("div", { className: "media-search" }, searchField(`Search in ${name}`, apply, { value: kept.query }), found);
}

function textPart(record, name, kept) {
  const lines = record.text.split("\n");
  const body = element("pre", { tabIndex: 0, role: "region", "aria-label": `Text of ${name}` });
  const search = keptSearch(name, kept, (test, searching) => {
    const left = lines.filter(test);
    body.textContent = left.join("\n");
    return searching ? `${left.length} of ${lines.length} lines` : "";
  });
  return [...(lines.length > 1 || kept.query ? [search] : []), body, ...leftOut(record.left_out, "characters")];
}

function tablePart(record, name, kept) {
  const text = (cell) => (typeof cell === "number" && !Number.isInteger(cell) ? String(Number(cell.toPrecision(6))) : (cell ?? DASH));
  const rows = record.rows.map((cells) => {
    const shown = cells.map((cell) => element("td", { textContent: text(cell), title: String(cell), className: typeof cell === "number" ? "number" : "" }));
    return [cells.join(" "), element("tr", {}, ...shown)];
  });
  const table = tableOf(`${name} at ${mediaStep(record)}`, record.columns, [], { className: "media-table" });
  const search = keptSearch(name, kept, (test, searching) => {
    const left = rows.filter(([words]) => test(words));
    table.tBodies[0].replaceChildren(...left.map(([, row]) => row));
    return searching ? `${left.length} of ${rows.length} rows` : `${rows.length} rows`;
  });
  return [search, scroller(`Table ${name}`, table), ...leftOut(record.left_out, "rows")];
}

function leftOut(count, what) {
  return count ? [mediaNote(`${formatWhole(count)} further ${what} were not recorded.`)] : [];
}

/** Limits of the value axis over all records; a few records far outside do not flatten the others. */
function valueLimits(records) {
  const known = records.filter((record) => record.counts.some((count) => count > 0));
  if (!known.length) return null;
  const at = (values, share) => values.sort((a, b) => a - b)[Math.round(share * (values.length - 1))];
  const [lows, highs] = [known.map((one) => one.low), known.map((one) => one.high)];
  const whole = [at(lows, 0), at(highs, 1)];
  const usual = [at(lows, 0.25), at(highs, 0.75)];
  const room = usual[1] - usual[0];
  return room > 0 && whole[1] / 20 - whole[0] / 20 > room ? [Math.max(whole[0], usual[0] - room), Math.min(whole[1], usual[1] + room)] : whole;
}

/** Records of one histogram over the steps: one column per record, darker where values are frequent. */
class HistogramPlot {
  #records = [];
  #index = 0;

  constructor(name, _kind, choose) {
    this.name = name;
    this.heat = element("canvas", { className: "heat", role: "img" });
    this.bars = element("canvas", { role: "img" });
    [this.text, this.odd, this.hover] = ["", "", "\u00a0"].map(mediaNote);
    this.odd.classList.add("bad-value");
    this.heat.addEventListener("click", (event) => {
      const share = (event.offsetX - LEFT_ROOM) / Math.max(1, this.heat.clientWidth - LEFT_ROOM);
      choose(Math.max(0, Math.min(this.#records.length - 1, Math.floor(share * this.#records.length))));
    });
    this.bars.addEventListener("pointermove", (event) => this.#tell(event.offsetX));
    this.bars.addEventListener("pointerleave", () => (this.hover.textContent = "\u00a0"));
    this.parts = [this.heat, this.bars, this.text, this.odd, this.hover];
  }

  show(record, records, index) {
    [this.#records, this.#index] = [records, index];
    const total = record.counts.reduce((sum, count) => sum + count, 0);
    const moments = record.mean === null ? "" : `, mean ${formatMetric(record.mean)}, std ${formatMetric(record.std)}`;
    const text = total ? `${formatWhole(total)} values from ${formatMetric(record.low)} to ${formatMetric(record.high)}${moments}` : "no finite value";
    const others = [[record.nan, "nan"], [record.posinf, "+inf"], [record.neginf, "-inf"]].filter(([count]) => count);
    const odd = others.length ? `not finite: ${others.map(([count, what]) => `${formatWhole(count)} ${what}`).join(", ")}` : "";
    this.text.textContent = text;
    this.odd.textContent = odd;
    this.odd.hidden = !odd;
    this.heat.hidden = records.length < 2;
    this.heat.setAttribute("aria-label", `${this.name} over ${records.length} steps, from ${mediaStep(records[0])} to ${mediaStep(records[records.length - 1])}`);
    this.bars.setAttribute("aria-label", `${this.name} at ${mediaStep(record)}: ${[text, odd].filter(Boolean).join(", ")}`);
    this.draw();
  }

  draw() {
    const width = this.bars.parentElement?.clientWidth || 0;
    if (width < LEFT_ROOM + 40 || !this.#records.length) return;
    if (!this.heat.hidden) this.#drawHeat(width);
    this.#drawBars(width);
  }

  #drawHeat(width) {
    const records = this.#records;
    const context = prepare(this.heat, width, HEAT_HEIGHT);
    const limits = valueLimits(records);
    const box = { left: LEFT_ROOM, right: width, top: 6, bottom: HEAT_HEIGHT - 20 };
    context.fillStyle = ink.get("inset");
    context.fillRect(box.left, box.top, box.right - box.left, box.bottom - box.top);
    if (!limits) return;
    const [low, high] = limits;
    const y = (value) => box.bottom - ((value / 2 - low / 2) / (high / 2 - low / 2 || 1)) * (box.bottom - box.top);
    const column = (box.right - box.left) / records.length;
    inside(context, box, () => {
      context.fillStyle = ink.get("accent");
      records.forEach((record, index) => {
        const most = Math.max(...record.counts, 1);
        const size = record.high / record.counts.length - record.low / record.counts.length;
        record.counts.forEach((count, bin) => {
          if (!count) return;
          context.globalAlpha = 0.08 + 0.92 * Math.sqrt(count / most);
          const [from, to] = [y(record.low + (bin + 1) * size), y(record.low + bin * size)];
          context.fillRect(box.left + index * column, from, Math.ceil(column), Math.max(1, to - from));
        });
      });
    });
    context.strokeStyle = ink.get("text");
    context.strokeRect(box.left + this.#index * column + 0.5, box.top + 0.5, Math.max(2, column - 1), box.bottom - box.top - 1);
    label(context, formatMetric(high), box.left - 6, box.top + 5, "soft", "right");
    label(context, formatMetric(low), box.left - 6, box.bottom - 5, "soft", "right");
    label(context, `step ${formatWhole(records[records.length - 1].step)}`, width, HEAT_HEIGHT - 9, "soft", "right");
    label(context, `step ${formatWhole(records[0].step)}`, box.left, HEAT_HEIGHT - 9);
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
    label(context, formatWhole(most), LEFT_ROOM - 6, 10, "soft", "right");
    label(context, "values", LEFT_ROOM - 6, 24, "soft", "right");
    label(context, formatMetric(record.high), width, BARS_HEIGHT - 8, "soft", "right");
    label(context, formatMetric(record.low), LEFT_ROOM, BARS_HEIGHT - 8);
  }

  #tell(x) {
    const { low, high, counts } = this.#records[this.#index];
    const bin = Math.floor(((x - LEFT_ROOM) / (this.bars.clientWidth - LEFT_ROOM)) * counts.length);
    if (!(bin >= 0 && bin < counts.length)) return;
    const edge = (at) => formatMetric(low * (1 - at / counts.length) + high * (at / counts.length));
    this.hover.textContent = `${edge(bin)} to ${edge(bin + 1)}: ${formatWhole(counts[bin])} values`;
  }
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
    const cell = element("td", { title: told(i, j), tabIndex: i || j ? -1 : 0, "aria-label": told(i, j) });
    for (const kind of ["pointerenter", "focus"]) cell.addEventListener(kind, () => (readout.textContent = told(i, j)));
    return cell;
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
  table.addEventListener("pointerleave", () => (readout.textContent = summary));
  table.addEventListener("keydown", (event) => moveCell(event, cells.flat(), classes.length));
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
  return scroller(title, numberTable(title, ["True", "Predicted", "Samples"], most.map(([count, i, j]) => [classes[i], classes[j], formatWhole(count)])));
}

const CURVE_AXES = { roc: ["False positive rate", "True positive rate", "AUC"], pr: ["Recall", "Precision", "AP"] };

/** ROC or precision-recall curves of all classes, with their areas. */
class RateChart extends Chart {
  #curves = [];
  #hit = null;

  constructor(name, kind) {
    const [across, up, area] = CURVE_AXES[kind];
    super(name, new Focus(new PartAxis(across.toLowerCase())));
    Object.assign(this, { name, kind, across, up, measure: area });
    this.reading = mediaNote("");
    this.legend = new Legend((name) => this.#look(name), () => this.redraw());
    this.parts = [this.area, this.reading, this.resetButton, this.legend.list];
  }

  show(record) {
    this.#hit = null;
    this.#curves = record.curves.map((curve) => ({ ...linesOf(curve, this.kind), name: `${curve.name || "class 1"} · ${this.measure} ${curve.area === null ? DASH : curve.area.toFixed(4)}`, curve }));
    const title = `${this.up} by ${this.across.toLowerCase()}`;
    const areas = this.#curves.map((one) => one.name.replace(" · ", " ")).join(", ");
    this.area.setAttribute("aria-label", `${title}, ${this.name} at ${mediaStep(record)}: ${areas}. Arrow keys read the values.`);
    this.reading.textContent = title;
    this.legend.offer(this.#curves.map((one) => one.name), true);
    this.redraw();
  }

  #look(name) {
    return lookOf(this.#curves.findIndex((one) => one.name === name));
  }

  get #shown() {
    return this.#curves.filter(({ name, points }) => points.length && this.legend.shows(name));
  }

  redraw() {
    // Guessing gives the diagonal of a ROC curve; in both kinds, the line opens the whole range.
    const guess = { name: "", color: ink.get("soft"), dash: [3, 4], width: 1, alpha: this.kind === "roc" ? 1 : 0, x: [0, 1], y: [0, 1] };
    this.paint([guess, ...this.#shown.map((one) => ({ ...one, ...this.#look(one.name) }))], { empty: "no curve" });
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
    const [a, b] = found.point.map((part) => part.toFixed(3));
    const spoken = `${curve.name || "class 1"}: ${this.across.toLowerCase()} ${a}, ${this.up.toLowerCase()} ${b}`;
    this.reading.textContent = spoken;
    const lines = [name, `${this.across} ${a}`, `${this.up} ${b}`, `${curve.positives} positive, ${curve.negatives} negative samples`].map((text) => element("span", { textContent: text }));
    return { x: found.point[0], lines, spoken, dots: [[this.scales.py(found.point[1]), this.#look(name).color]] };
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
