"use strict";
/* The page around the charts: heading, tiles, machine load, epoch table, details. */

const MOST_TILES = 8;
const MOST_ROWS = 1000;

const STATUS = {
  running: ["live", "Running"],
  complete: ["good", "Complete"],
  interrupted: ["warn", "Interrupted"],
  diverged: ["bad", "Diverged"],
  failed: ["bad", "Failed"],
};

const DETAIL_TITLES = { config: "Configuration", environment: "Environment", parameters: "Parameters" };

class ReportView {
  #charts = new Map();
  #cursor = new Cursor();
  #allRows = false;
  #open = new Map();

  constructor(model, written) {
    this.model = model;
    this.written = written;
  }

  render() {
    this.#heading();
    this.#tiles();
    this.#metricCharts();
    this.#machine();
    this.#epochTable();
    this.#details();
    place("footer").textContent = this.written
      ? `Written by flodl on ${formatMoment(this.written)}. This file needs no network.`
      : "Live from flodl.";
  }

  #heading() {
    const { info, status } = this.model;
    const [tone, word] = STATUS[status] || ["warn", status];
    place("label").textContent = info.label || "Training run";
    const facts = [];
    if (info.run) facts.push(element("span", { textContent: info.run }));
    if (info.hash) facts.push(element("code", { textContent: info.hash.slice(0, 8), title: `Structural hash ${info.hash}` }));
    if (info.started) facts.push(element("span", { textContent: `started ${formatMoment(info.started)}` }));
    place("facts").replaceChildren(...facts);
    place("status").textContent = word;
    place("status").dataset.tone = tone;
    document.title = [info.label || "Training run", info.run].filter(Boolean).join(" · ");
  }

  #tiles() {
    const all = [...this.model.series.values()];
    const judged = [...all.filter((one) => one.goal), ...all.filter((one) => !one.goal)];
    place("tiles").replaceChildren(...judged.slice(0, MOST_TILES).map(metricTile), ...this.#runTiles());
  }

  #runTiles() {
    const { records, info, status, duration } = this.model;
    const last = records[records.length - 1];
    const mean = records.reduce((sum, record) => sum + (record.duration || 0), 0) / Math.max(1, records.length);
    const toGo = status === "running" && last && last.eta !== undefined ? `, ${formatDuration(last.eta)} to go` : "";
    const per = records.length ? `${formatDuration(mean)} per epoch${toGo}` : "no epoch has finished yet";
    const reached = last ? last.epoch : 0;
    const missing = info.total - reached;
    const rest = missing > 0 ? (status === "running" ? `${missing} to go` : `${missing} not trained`) : "all trained";
    const made = [tile("Duration", formatDuration(duration), per), tile("Epochs", `${reached} / ${info.total}`, rest)];
    const rates = records.map((record) => record.throughput).filter((rate) => rate > 0);
    if (rates.length) {
      const rate = rates.reduce((sum, one) => sum + one, 0) / rates.length;
      made.push(tile("Throughput", `${formatCount(rate * 1000)}/s`, "samples, mean over epochs"));
    }
    const parameters = info.metadata.parameters;
    if (parameters && Number.isFinite(parameters.total)) {
      const { total, trainable } = parameters;
      const part = trainable === undefined ? "" : trainable === total ? "all trainable" : `${formatCount(trainable)} trainable`;
      made.push(tile("Parameters", formatCount(total), part));
    }
    return made;
  }

  #metricCharts() {
    const groups = chartGroups(this.model);
    const host = place("charts");
    const none = place("no-metrics");
    none.hidden = groups.length > 0;
    none.textContent = this.model.records.length ? "This run recorded no metrics." : "No epoch has finished yet.";
    const wanted = new Set(groups.map((group) => group.key));
    for (const [key, chart] of this.#charts) {
      if (!wanted.has(key)) this.#charts.delete(key) && chart.card.remove();
    }
    groups.forEach(({ key, title, series }, index) => {
      if (!this.#charts.has(key)) this.#charts.set(key, new LineChart(title, this.#cursor));
      const chart = this.#charts.get(key);
      if (host.children[index] !== chart.card) host.insertBefore(chart.card, host.children[index] || null);
      chart.show(title, series);
    });
  }

  #machine() {
    const { records } = this.model;
    const gauges = records.length ? [timeGauge(records), ...loadGauges(records)] : [];
    place("machine-section").hidden = !gauges.length;
    place("machine").replaceChildren(...gauges);
  }

  #epochTable() {
    const { records, series } = this.model;
    place("epochs-section").hidden = !records.length;
    if (!records.length) return;
    const shown = this.#allRows ? records : records.slice(-MOST_ROWS);
    const columns = [...series.values()];
    const heads = ["Epoch", ...columns.map((one) => one.name), "Time"];
    const head = element("tr", {}, ...heads.map((text) => element("th", { textContent: text, scope: "col" })));
    const rows = shown.map((record) => epochRow(record, columns));
    const caption = element("caption", { className: "unseen", textContent: "Every epoch with its metrics; the best value of a metric is bold." });
    const table = element("table", { className: "numbers" }, caption, element("thead", {}, head), element("tbody", {}, ...rows));
    const scroll = element("div", { className: "scroll", tabIndex: 0 }, table);
    scroll.setAttribute("role", "region");
    scroll.setAttribute("aria-label", "Table of epochs");
    const foot = element("div", { className: "table-foot" });
    const bold = columns.some((one) => one.best) ? "Bold marks the best value of a metric." : "";
    const part = shown.length < records.length ? `The last ${shown.length} of ${records.length} epochs. ` : "";
    foot.append(element("p", { textContent: part + bold }));
    if (part) {
      const more = element("button", { type: "button", textContent: `Show all ${records.length}` });
      more.addEventListener("click", () => {
        this.#allRows = true;
        this.#epochTable();
      });
      foot.append(more);
    }
    place("epochs").replaceChildren(element("div", { className: "card" }, scroll), foot);
  }

  #details() {
    const { metadata, svg } = this.model.info;
    const { config, environment, parameters, ...rest } = metadata;
    const blocks = [];
    for (const [key, value, open] of [["config", config, true], ["environment", environment, false], ["parameters", parameters, false]]) {
      const rows = value === undefined ? [] : factRows(value);
      if (rows.length) blocks.push(this.#block(DETAIL_TITLES[key], `${rows.length} values`, factTable(DETAIL_TITLES[key], rows), open));
    }
    const further = factRows(rest);
    if (further.length) blocks.push(this.#block("Metadata", `${further.length} values`, factTable("Metadata", further), false));
    if (svg) blocks.push(this.#block("Model", "drawing of the graph", drawing(svg), false));
    place("details-section").hidden = !blocks.length;
    place("details").replaceChildren(...blocks);
  }

  /** A part that folds; what the reader opened or closed stays so when the page changes. */
  #block(title, note, content, open) {
    const summary = element("summary", { textContent: title }, element("span", { textContent: note }));
    const made = element("details", { className: "card", open: this.#open.get(title) ?? open }, summary, content);
    made.addEventListener("toggle", () => this.#open.set(title, made.open));
    return made;
  }
}

function place(id) {
  return document.getElementById(id);
}

function tile(title, value, note) {
  const text = element("p", { textContent: note || "\u00a0", title: note });
  return element("article", { className: "card tile" }, element("h3", { textContent: title, title }), element("strong", { textContent: value }), text);
}

function metricTile(series) {
  let note = "";
  if (series.points.length === 1) note = `at epoch ${series.last.epoch}`;
  else if (series.best) note = `best ${formatMetric(series.best.value)} at epoch ${series.best.epoch}`;
  else if (series.min < series.max) note = `${formatMetric(series.min)} to ${formatMetric(series.max)}`;
  const made = tile(series.name, formatMetric(series.last.value), note);
  if (series.last.value === null) made.querySelector("strong").classList.add("bad-value");
  if (series.points.length > 1) {
    made.classList.add("sparked");
    made.append(sparkline(series.points.map((point) => point.value), { width: 68, height: 24 }));
  }
  return made;
}

function gauge(title, values, range, format, note = "") {
  const known = values.filter((value) => value !== null && value !== undefined);
  const mean = known.reduce((sum, value) => sum + value, 0) / known.length;
  const peak = known.reduce((most, value) => Math.max(most, value), -Infinity);
  const head = element("header", {}, element("h3", { textContent: title }), element("strong", { textContent: format(mean) }));
  const text = [`mean, peak ${format(peak)}`, note].filter(Boolean).join(" · ");
  const curve = sparkline(values, { width: 240, height: 40, range: range || [0, peak || 1], area: true });
  return element("article", { className: "card gauge" }, head, element("p", { textContent: text, title: text }), curve);
}

function timeGauge(records) {
  return gauge("Time per epoch", records.map((record) => record.duration), null, formatDuration);
}

function loadGauges(records) {
  const made = [];
  const add = (title, read, range, format, note) => {
    const values = records.map(read);
    if (values.some((value) => value !== null && value !== undefined)) made.push(gauge(title, values, range, format, note));
  };
  const host = (key) => (record) => (record.resources ? record.resources[key] : null);
  const ram = records.map(host("ram_total")).find((total) => total > 0);
  add("Processor", host("cpu"), [0, 100], formatPercent);
  add("Memory", host("ram_used"), ram ? [0, ram] : null, formatBytes, ram && `of ${formatBytes(ram)}`);
  const gpus = records.map((record) => record.gpus).find((list) => list && list.length) || [];
  gpus.forEach((gpu, index) => {
    const one = (key) => (record) => (record.gpus && record.gpus[index] ? record.gpus[index][key] : null);
    const title = gpus.length > 1 ? `GPU ${gpu.device}` : "GPU";
    add(title, one("util"), [0, 100], formatPercent, gpu.name);
    add(`${title} memory`, one("reserved"), [0, gpu.total], formatBytes, `of ${formatBytes(gpu.total)}`);
  });
  return made;
}

function epochRow(record, columns) {
  const row = element("tr", {}, element("th", { textContent: record.epoch, scope: "row" }));
  for (const series of columns) {
    const value = Object.hasOwn(record.metrics, series.name) ? record.metrics[series.name] : undefined;
    const cell = element("td");
    if (value === undefined) cell.className = "missing";
    if (value === null) cell.className = "bad-value";
    const best = series.best && value === series.best.value && record.epoch === series.best.epoch;
    cell.append(best ? element("b", { textContent: formatMetric(value) }) : formatMetric(value));
    row.append(cell);
  }
  row.append(element("td", { textContent: formatDuration(record.duration) }));
  return row;
}

/** Leaves of a tree of facts as [dotted name, text, origin]. */
function factRows(value, name = "") {
  const isObject = (one) => one !== null && typeof one === "object" && !Array.isArray(one);
  if (!isObject(value)) return [[name, factText(value), ""]];
  if ("value" in value && typeof value.origin === "string") return [[name, factText(value.value), value.origin]];
  return Object.entries(value).flatMap(([key, item]) => {
    const rows = factRows(item, name ? `${name}.${key}` : key);
    return rows.length || !isObject(item) ? rows : [[name ? `${name}.${key}` : key, "{}", ""]];
  });
}

function factText(value) {
  if (typeof value === "string") return value === "" ? '""' : value;
  return JSON.stringify(value);
}

function factTable(title, rows) {
  const origins = rows.some(([, , origin]) => origin);
  const heads = ["Name", "Value", ...(origins ? ["Set in"] : [])];
  const head = element("tr", {}, ...heads.map((text) => element("th", { textContent: text, scope: "col" })));
  const body = rows.map(([name, text, origin]) => {
    const row = element("tr", {}, element("th", { textContent: name, scope: "row" }), element("td", { textContent: text }));
    if (origins) row.append(element("td", { className: "origin", textContent: origin || DASH }));
    return row;
  });
  const caption = element("caption", { className: "unseen", textContent: title });
  return element("table", { className: "facts" }, caption, element("thead", {}, head), element("tbody", {}, ...body));
}

/** The drawing as an image: scripts and links inside it stay dead. */
function drawing(svg) {
  const bytes = new TextEncoder().encode(svg);
  let text = "";
  for (const byte of bytes) text += String.fromCharCode(byte);
  const image = element("img", { alt: "Drawing of the model's graph", src: `data:image/svg+xml;base64,${btoa(text)}` });
  return element("div", { className: "drawing" }, image);
}
