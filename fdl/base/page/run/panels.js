"use strict";
/* The parts of the page around the charts: tiles, load of the machine, time, epochs, facts. */

function tile(title, value, note, unit = "") {
  const text = element("p", { textContent: note || "\u00a0", title: note });
  const figure = element("strong", { textContent: value }, unit && element("small", { textContent: ` ${unit}` }));
  return element("article", { className: "card tile" }, element("h3", { textContent: title, title }), figure, text);
}

function metricTile(series) {
  const { last, best, limits, xs, ys } = series;
  let note = "";
  if (xs.length === 1 || series.unit === "step") note = `at ${series.unit} ${formatWhole(last.x)}`;
  else if (best) note = `best ${formatMetric(best.y)} at epoch ${best.x}`;
  else if (limits.low < limits.high) note = `${formatMetric(limits.low)} to ${formatMetric(limits.high)}`;
  const made = tile(series.name, formatMetric(last.y), note);
  if (!Number.isFinite(last.y)) made.querySelector("strong").classList.add("bad-value");
  if (xs.length > 1) {
    made.classList.add("sparked");
    made.append(sparkline(ys, { width: 68, height: 24 }));
  }
  return made;
}

function runTiles({ records, info, status, duration, progress }) {
  const last = records[records.length - 1];
  const mean = records.reduce((sum, record) => sum + (record.duration || 0), 0) / Math.max(1, records.length);
  const toGo = status === "running" && last && last.eta !== undefined ? `, ${formatDuration(last.eta)} to go` : "";
  const first = progress ? "in the first epoch" : "no epoch has finished yet";
  const per = records.length ? `${formatDuration(mean)} per epoch${toGo}` : first;
  const reached = last ? last.epoch : 0;
  const missing = info.total - reached;
  const rest = missing > 0 ? (status === "running" ? `${missing} to go` : `${missing} not trained`) : "all trained";
  const made = [tile("Duration", formatDuration(duration), per), tile("Epochs", `${reached} / ${info.total}`, rest)];
  const rates = records.map((record) => record.throughput).filter((rate) => rate > 0);
  if (rates.length) {
    const rate = rates.reduce((sum, one) => sum + one, 0) / rates.length;
    made.push(tile("Throughput", formatCount(rate * 1000), "mean over epochs", "samples/s"));
  } else if (progress?.rate) {
    made.push(tile("Throughput", formatCount(progress.rate), "in this epoch", "samples/s"));
  }
  const { parameters } = info.metadata;
  if (parameters && Number.isFinite(parameters.total)) {
    const { total, trainable } = parameters;
    const part = trainable === undefined ? "" : trainable === total ? "all trainable" : `${formatCount(trainable)} trainable`;
    made.push(tile("Parameters", formatCount(total), part));
  }
  return made;
}

function gauge(title, values, range, format, { note = "", live = false } = {}) {
  const known = values.filter((value) => value !== null && value !== undefined);
  const mean = known.reduce((sum, value) => sum + value, 0) / known.length;
  const peak = known.reduce((most, value) => Math.max(most, value), -Infinity);
  const shown = live ? known[known.length - 1] : mean;
  const head = element("header", {}, element("h3", { textContent: title }), element("strong", { textContent: format(shown) }));
  const text = [live ? `now, peak ${format(peak)}` : `mean, peak ${format(peak)}`, note].filter(Boolean).join(" · ");
  const curve = sparkline(values, { width: 240, height: 40, range: range || [0, peak || 1], area: true });
  return element("article", { className: "card gauge" }, head, element("p", { textContent: text, title: text }), curve);
}

/** Load while training runs from the live samples, afterwards from the epochs. */
function gauges({ records, loads, status, progress }) {
  const newest = progress && records.length < 2 ? [progress] : [];
  const samplesNow = loads.length ? loads : newest;
  const live = samplesNow.length > 0 && (status === "running" || records.length < 2);
  const made = [];
  if (records.length) made.push(gauge("Time per epoch", records.map((record) => record.duration), null, formatDuration));
  const samples = live ? samplesNow : records;
  const add = (title, read, range, format, note) => {
    const values = samples.map(read);
    if (values.some((value) => value !== null && value !== undefined)) made.push(gauge(title, values, range, format, { note, live }));
  };
  const host = (key) => (sample) => (sample.resources ? sample.resources[key] : null);
  const ram = samples.map(host("ram_total")).find((total) => total > 0);
  add("Processor", host("cpu"), [0, 100], formatPercent);
  add("Memory", host("ram_used"), ram ? [0, ram] : null, formatBytes, ram && `of ${formatBytes(ram)}`);
  const gpus = samples.map((sample) => sample.gpus).find((list) => list && list.length) || [];
  gpus.forEach((gpu, index) => {
    const one = (key) => (sample) => (sample.gpus && sample.gpus[index] ? sample.gpus[index][key] : null);
    const title = gpus.length > 1 ? `GPU ${gpu.device}` : "GPU";
    add(title, one("util"), [0, 100], formatPercent, gpu.name);
    add(`${title} memory`, one("reserved"), [0, gpu.total], formatBytes, `of ${formatBytes(gpu.total)}`);
  });
  return made;
}

/** What each rank did in all epochs together, and how the last epoch was shared out. */
function rankParts(records) {
  const many = records.filter((record) => record.ranks);
  if (!many.length) return [];
  const sums = [];
  for (const { ranks, gpus, epoch } of many) {
    ranks.each.forEach((one, rank) => {
      const sum = (sums[rank] ||= { batches: 0, samples: 0, busy: 0 });
      sum.batches += one.batches;
      sum.samples += one.samples;
      sum.busy += one.busy_ms || 0;
      const memory = gpus?.find(({ device }) => one.device === `cuda:${device}`);
      Object.assign(sum, { loss: measured(one.loss), device: one.device, memory, epoch });
    });
  }
  const batches = sums.reduce((sum, one) => sum + one.batches, 0);
  const rows = sums.map((one, rank) => [
    String(rank),
    one.device,
    String(one.batches),
    batches ? `${((100 * one.batches) / batches).toFixed(1)} %` : DASH,
    one.busy > 0 ? formatCount((1000 * one.samples) / one.busy) : DASH,
    formatDuration(one.busy / 1000),
    formatMetric(one.loss),
    one.memory ? `${formatBytes(one.memory.reserved)} / ${formatBytes(one.memory.total)}` : DASH,
    `epoch ${one.epoch}`,
  ]);
  const heads = ["Rank", "Device", "Batches", "Share of batches", "Samples/s", "Busy for", "Last loss", "Memory", "Last seen"];
  const table = numberTable("What each rank did", heads, rows);
  const newest = many[many.length - 1].epoch;
  sums.forEach(({ epoch }, rank) => table.tBodies[0].rows[rank].classList.toggle("bad-value", epoch < newest));
  const scroll = element("div", { className: "scroll", tabIndex: 0 }, table);
  scroll.setAttribute("role", "region");
  scroll.setAttribute("aria-label", "Table of ranks");
  return [element("div", { className: "card" }, scroll), element("p", { className: "note", textContent: rankNote(many[many.length - 1]) })];
}

function rankNote({ duration, ranks }) {
  const part = (ms) => (duration > 0 && ms !== null ? `${(ms / (10 * duration)).toFixed(1)} %` : DASH);
  const counts = ranks.counts.length ? [`${ranks.counts.join(" : ")} batches between two averages`] : [];
  const anchor = ranks.anchor === null ? [] : [`anchor ${ranks.anchor}`];
  return ["Last epoch", ...anchor, ...counts, `exchanging ${part(ranks.comm_ms)}`, `waiting ${part(ranks.wait_ms)}`].join(" · ");
}

function ledgerTotal(ledger) {
  return Object.values(ledger).reduce((sum, seconds) => sum + (seconds || 0), 0);
}

/** Where the time went: one bar, and the same as a list. */
function ledgerParts(ledger) {
  const accounts = Object.entries(ledger).filter(([, seconds]) => seconds > 0);
  const total = ledgerTotal(ledger);
  const bar = element("div", { className: "ledger-bar" });
  bar.setAttribute("aria-hidden", "true");
  const list = element("ul", { className: "ledger" });
  // Accounts keep the colour of their place in the ledger, whatever their size.
  accounts.forEach(([account, seconds], index) => {
    const token = `series-${index % 8}`;
    const part = element("span", { title: `${account}: ${formatDuration(seconds)}` });
    part.style.flexGrow = seconds / total;
    part.style.backgroundColor = `var(--${token})`;
    if (index >= 8) part.style.opacity = 0.55;
    bar.append(part);
    const share = `${((100 * seconds) / total).toFixed(1)} %`;
    const dot = element("i", { className: "dot" });
    dot.style.cssText = part.style.cssText;
    list.append(element("li", {}, dot, element("span", { textContent: account }), element("b", { textContent: formatDuration(seconds) }), element("em", { textContent: share })));
  });
  return accounts.length ? [bar, list] : [];
}

/** The table of epochs, the newest first; scrolling and focus survive new rows. */
class EpochTable {
  #all = false;
  #newestFirst = true;
  #model;
  #shows;

  /** `shows(name)` says whether a metric has a column. */
  constructor(model, shows) {
    this.#model = model;
    this.#shows = shows;
    this.head = element("thead");
    this.body = element("tbody");
    const caption = element("caption", { className: "unseen", textContent: "Every epoch with its metrics; the best value of a metric is bold." });
    this.scroll = element("div", { className: "scroll", tabIndex: 0 }, element("table", { className: "numbers" }, caption, this.head, this.body));
    this.scroll.setAttribute("role", "region");
    this.scroll.setAttribute("aria-label", "Table of epochs");
    this.note = element("p");
    this.more = element("button", { type: "button" });
    this.more.addEventListener("click", () => {
      this.#all = true;
      this.render();
    });
    this.order = place("epoch-order");
    this.order.addEventListener("click", () => {
      this.#newestFirst = !this.#newestFirst;
      this.scroll.scrollTop = 0;
      this.render();
    });
    this.foot = element("div", { className: "table-foot" }, this.note, this.more);
    place("epochs").replaceChildren(element("div", { className: "card" }, this.scroll), this.foot);
  }

  render() {
    const { records, series } = this.#model;
    place("epochs-section").hidden = !records.length;
    if (!records.length) return;
    const kept = this.#all ? records : records.slice(-MOST_ROWS);
    const shown = this.#newestFirst ? kept.slice().reverse() : kept;
    this.order.textContent = this.#newestFirst ? "newest first" : "oldest first";
    const columns = [...series.values()].filter(({ name }) => this.#shows(name));
    const heads = ["Epoch", ...columns.map((one) => one.name), "Time"];
    this.head.replaceChildren(element("tr", {}, ...heads.map((text) => element("th", { textContent: text, scope: "col" }))));
    const { scrollHeight, scrollTop, clientHeight } = this.scroll;
    const atEnd = scrollTop > 0 && scrollHeight - scrollTop - clientHeight < 40;
    this.body.replaceChildren(...shown.map((record) => epochRow(record, columns)));
    // New rows must not move what is being read.
    if (this.#newestFirst && scrollTop > 0) this.scroll.scrollTop = scrollTop + this.scroll.scrollHeight - scrollHeight;
    else if (!this.#newestFirst && atEnd) this.scroll.scrollTop = this.scroll.scrollHeight;
    const part = shown.length < records.length ? `The last ${shown.length} of ${records.length} epochs. ` : "";
    this.note.textContent = part + (columns.some((one) => one.best) ? "Bold marks the best value of a metric." : "");
    this.more.textContent = `Show all ${records.length}`;
    this.more.hidden = !part;
  }
}

function epochRow(record, columns) {
  const row = element("tr", {}, element("th", { textContent: record.epoch, scope: "row" }));
  for (const { name, best } of columns) {
    const own = ["lr", "grad_norm"].includes(name) ? record[name] : undefined;
    const value = Object.hasOwn(record.metrics, name) ? record.metrics[name] : own;
    const cell = element("td");
    if (value === undefined) cell.className = "missing";
    else if (!Number.isFinite(value)) cell.className = "bad-value";
    cell.append(best && record.epoch === best.x ? element("b", { textContent: formatMetric(value) }) : formatMetric(value));
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

/** Where the drawing comes from: the page itself, or the server that made the page. */
function drawingSource({ info, drawing }) {
  if (drawing) return `graph.svg?v=${drawing}`;
  if (!info.svg) return "";
  let text = "";
  for (const byte of new TextEncoder().encode(info.svg)) text += String.fromCharCode(byte);
  return `data:image/svg+xml;base64,${btoa(text)}`;
}
