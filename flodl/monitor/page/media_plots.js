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
const [CURVE_WIDTH, CURVE_HEIGHT, CURVE_ROOM] = [420, 300, 44];

/** ROC or precision-recall curves of all classes, with their areas; hover and arrow keys read values. */
function curvePart(record, name, kind, kept) {
  const [across, up, area] = CURVE_AXES[kind];
  kept.hidden ||= new Set();
  const x = (value) => CURVE_ROOM + value * (CURVE_WIDTH - CURVE_ROOM - 10);
  const y = (value) => 10 + (1 - value) * (CURVE_HEIGHT - CURVE_ROOM - 10);
  const label = (curve) => curve.name || "class 1";
  const areaText = (curve) => `${area} ${curve.area === null ? DASH : curve.area.toFixed(4)}`;
  const svg = svgElement("svg", { class: "media-curves", viewBox: `0 0 ${CURVE_WIDTH} ${CURVE_HEIGHT}`, role: "img", tabindex: 0 });
  svg.setAttribute("aria-label", `${up} by ${across.toLowerCase()}, ${name} at ${mediaStep(record)}: ${record.curves.map((one) => `${label(one)} ${areaText(one)}`).join(", ")}. Arrow keys read the values.`);
  for (const tick of [0, 0.25, 0.5, 0.75, 1]) {
    svg.append(svgElement("path", { class: "grid", d: `M${x(tick)} ${y(0)}V${y(1)}M${x(0)} ${y(tick)}H${x(1)}` }));
    svg.append(svgText(String(tick), x(tick), y(0) + 16, "middle"), svgText(String(tick), x(0) - 6, y(tick) + 4, "end"));
  }
  svg.append(svgText(across, x(0.5), CURVE_HEIGHT - 6, "middle"), svgText(up, -y(0.5), 12, "middle", "rotate(-90)"));
  if (kind === "roc") svg.append(svgElement("path", { class: "chance", d: `M${x(0)} ${y(0)}L${x(1)} ${y(1)}` }));
  const lines = record.curves.map((curve, at) => {
    const points = curve.x.map((value, index) => [value, curve.y[index]]).filter(([a, b]) => a !== null && b !== null);
    // Precision jumps from one threshold to the next, and the average precision sums these steps.
    const d = points.map(([a, b], index) => (index && kind === "pr" ? `H${x(a)}V${y(b)}` : `${index ? "L" : "M"}${x(a)} ${y(b)}`)).join("");
    const path = svgElement("path", { class: "curve", d });
    path.style.stroke = `var(--series-${at % 8})`;
    if (at >= 8) path.style.strokeDasharray = DASHES[Math.floor(at / 8) % 3].join(" ");
    svg.append(path);
    return { curve, points, path };
  });
  const dot = svgElement("circle", { r: 4, class: "reader" });
  svg.append(dot);
  const readout = element("p", { className: "media-note", textContent: "\u00a0" });
  readout.setAttribute("aria-live", "polite");
  const read = ({ curve, points }, index) => {
    [kept.line, kept.point] = [lines.findIndex((one) => one.curve === curve), index];
    const [a, b] = points[index];
    dot.setAttribute("cx", x(a));
    dot.setAttribute("cy", y(b));
    dot.classList.add("shown");
    readout.textContent = `${label(curve)}: ${across.toLowerCase()} ${a.toFixed(3)}, ${up.toLowerCase()} ${b.toFixed(3)}`;
  };
  const shown = () => lines.filter(({ curve, points }) => points.length && !kept.hidden.has(curve.name));
  svg.addEventListener("pointermove", (event) => {
    const box = svg.getBoundingClientRect();
    const [px, py] = [((event.clientX - box.left) / box.width) * CURVE_WIDTH, ((event.clientY - box.top) / box.height) * CURVE_HEIGHT];
    let best = [Infinity];
    for (const line of shown()) {
      line.points.forEach(([a, b], index) => {
        const distance = (x(a) - px) ** 2 + (y(b) - py) ** 2;
        if (distance < best[0]) best = [distance, line, index];
      });
    }
    if (best[1]) read(best[1], best[2]);
  });
  svg.addEventListener("keydown", (event) => {
    const by = { ArrowRight: 1, ArrowLeft: -1, ArrowUp: 0, ArrowDown: 0 }[event.key];
    const open = shown();
    if (by === undefined || !open.length) return;
    event.preventDefault();
    let at = Math.max(0, open.findIndex((one) => one === lines[kept.line]));
    if (!by) at = (at + (event.key === "ArrowDown" ? 1 : open.length - 1)) % open.length;
    const { points } = open[at];
    // The points of a PR curve fall in x.
    const forward = points[0][0] <= points[points.length - 1][0] ? by : -by;
    read(open[at], Math.max(0, Math.min(points.length - 1, (kept.point ?? 0) + forward)));
  });
  const mark = () => {
    for (const { curve, path, button } of lines) {
      const visible = !kept.hidden.has(curve.name);
      path.classList.toggle("gone", !visible);
      button.setAttribute("aria-pressed", String(visible));
    }
  };
  const legend = element("ul", { className: "legend" }, ...lines.map((line, at) => {
    const { curve } = line;
    const dash = at >= 8 ? DASHES[Math.floor(at / 8) % 3] : [];
    const text = element("span", { textContent: `${label(curve)} · ${areaText(curve)}` });
    line.button = element("button", { type: "button", title: `${curve.positives} positive, ${curve.negatives} negative samples` }, swatch({ token: `series-${at % 8}`, dash }), text);
    line.button.addEventListener("click", () => {
      kept.hidden[kept.hidden.has(curve.name) ? "delete" : "add"](curve.name);
      mark();
    });
    return element("li", {}, line.button);
  }));
  mark();
  return [svg, readout, legend];
}

function svgText(text, x, y, anchor, transform = "") {
  const made = svgElement("text", { x, y, "text-anchor": anchor, ...(transform ? { transform } : {}) });
  made.textContent = text;
  return made;
}
