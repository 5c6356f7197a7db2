"use strict";
/* The parts of a run around its charts: progress, tiles, load of the machine, ranks, time, epochs, facts. */

const MOST_TILES = 8;
const MOST_ROWS = 1000;
const SVG = document.querySelector(".mark").namespaceURI;

function svgElement(tag, attributes) {
  const made = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  return made;
}

/** A small curve without axes; `range` fixes what its bottom and top mean. */
function sparkline(values, width, height, range = null, area = false) {
  const svg = svgElement("svg", { class: "spark", viewBox: `0 0 ${width} ${height}`, preserveAspectRatio: "none", "aria-hidden": "true" });
  const finite = values.filter(Number.isFinite);
  if (!finite.length) return svg;
  const limits = robustLimits(finite);
  const [low, high] = range || [limits.low, limits.high];
  const y = (value) => (high > low ? height - 1 - Math.min(1, Math.max(0, (value - low) / (high - low))) * (height - 2) : height / 2);
  const [xs, ys] = values.length > width ? thinned([...values.keys()], values, width) : [[...values.keys()], values];
  const pieces = [];
  xs.forEach((x, index) => {
    if (!Number.isFinite(ys[index])) return;
    if (!Number.isFinite(ys[index - 1])) pieces.push([]);
    pieces.at(-1).push(`${((x / Math.max(1, values.length - 1)) * width).toFixed(1)} ${y(ys[index]).toFixed(1)}`);
  });
  for (const piece of pieces) {
    const line = `M${piece.join("L")}`;
    if (area && piece.length > 1) svg.append(svgElement("path", { class: "area", d: `${line}V${height}H${parseFloat(piece[0])}Z` }));
    // One value alone is a level; a lone value between gaps is a short stroke.
    svg.append(svgElement("path", { d: piece.length > 1 ? line : `${line}${values.length > 1 ? "h0" : `H${width}`}` }));
  }
  return svg;
}

/** How far the training is: the strip below the head while a run goes on. */
class ProgressStrip {
  #timer = 0;
  what = element("strong");
  facts = element("dl", { className: "facts-line" });
  fill = element("span");

  constructor(host, record) {
    Object.assign(this, { host, record });
    this.bar = element("div", { className: "progress-bar", role: "progressbar", "aria-label": "Progress of the run" }, this.fill);
    host.replaceChildren(element("div", { className: "progress-head" }, this.what, this.facts), this.bar);
  }

  render() {
    const { progress, status, following, duration } = this.record;
    this.host.hidden = !progress || status !== "running";
    window.clearTimeout(this.#timer);
    if (this.host.hidden) return;
    const { epoch, total, step, steps, phase, rate, eta } = progress;
    // The part of the whole run that is done; unknown without the length of an epoch.
    const share = steps ? Math.min(1, (epoch - 1 + step / steps) / Math.max(1, total)) : null;
    const at = phase === "evaluating" ? ", evaluating" : `, step ${formatWhole(step)}${steps ? ` of ${formatWhole(steps)}` : ""}${phase === "paused" ? ", paused" : ""}`;
    this.what.textContent = `Epoch ${epoch} of ${total}${at}`;
    this.fill.style.width = `${(100 * (share ?? 0)).toFixed(2)}%`;
    this.bar.classList.toggle("unknown", share === null);
    this.bar.ariaValueNow = share === null ? null : Math.round(100 * share);
    const facts = [
      ...(rate ? [["Speed", `${formatCount(rate)} samples/s`]] : []),
      ...(eta !== undefined && eta !== null ? [["Time left", eta > 0 ? formatDuration(eta) : "almost done"]] : []),
      ["Running for", formatDuration(Math.floor(duration))],
    ];
    this.bar.setAttribute("aria-valuetext", [this.what.textContent, ...facts.map((one) => one.join(" "))].join(", "));
    this.facts.replaceChildren(...facts.map(([name, text]) => element("div", {}, element("dt", { textContent: name }), element("dd", { textContent: text }))));
    // Between two messages time goes on.
    if (following) this.#timer = window.setTimeout(() => this.render(), 1000);
  }
}

/** A card with a title, a figure and a note. */
function tile(title, value, note, unit = "") {
  const figure = element("strong", { textContent: value }, unit && element("small", { textContent: ` ${unit}` }));
  return element("article", { className: "card tile" }, element("h3", { textContent: title, title }), figure, element("p", { textContent: note || "\u00a0", title: note }));
}

function metricTile({ name, unit, last, best, min, max, xs, ys }) {
  let note = "";
  if (xs.length === 1 || unit === "step") note = `at ${unit} ${formatWhole(last.x)}`;
  else if (best) note = `best ${formatMetric(best.y)} at epoch ${best.x}`;
  else if (min < max) note = `${formatMetric(min)} to ${formatMetric(max)}`;
  const made = tile(name, formatMetric(last.y), note);
  made.querySelector("strong").classList.toggle("bad-value", !Number.isFinite(last.y));
  if (xs.length > 1) {
    made.classList.add("sparked");
    made.append(sparkline(ys, 68, 24));
  }
  return made;
}

/** The newest value of each metric, then how long, how far and how fast the run is. */
function tilesOf({ series, curves, records, info, status, duration, progress }) {
  // In the first epoch, the newest step is all that is known.
  const all = [...(series.size ? series : curves).values()];
  const judged = [...all.filter((one) => one.goal), ...all.filter((one) => !one.goal)];
  const last = records[records.length - 1];
  const mean = records.reduce((sum, record) => sum + (record.duration || 0), 0) / Math.max(1, records.length);
  const toGo = status === "running" && last && last.eta !== undefined ? `, ${formatDuration(last.eta)} to go` : "";
  const per = records.length ? `${formatDuration(mean)} per epoch${toGo}` : progress ? "in the first epoch" : "no epoch has finished yet";
  const reached = last ? last.epoch : 0;
  const missing = info.total - reached;
  const rest = missing > 0 ? `${missing} ${status === "running" ? "to go" : "not trained"}` : "all trained";
  const made = [...judged.slice(0, MOST_TILES).map(metricTile), tile("Duration", formatDuration(duration), per), tile("Epochs", `${reached} / ${info.total}`, rest)];
  const rates = records.map((record) => record.throughput).filter((rate) => rate > 0);
  if (rates.length) made.push(tile("Throughput", formatCount((1000 * rates.reduce((sum, one) => sum + one, 0)) / rates.length), "mean over epochs", "samples/s"));
  else if (progress?.rate) made.push(tile("Throughput", formatCount(progress.rate), "in this epoch", "samples/s"));
  const { total, trainable } = info.metadata.parameters || {};
  if (Number.isFinite(total)) made.push(tile("Parameters", formatCount(total), trainable === undefined ? "" : trainable === total ? "all trainable" : `${formatCount(trainable)} trainable`));
  return made;
}

function gauge(title, values, range, format, note = "", live = false) {
  const known = values.filter((value) => value !== null && value !== undefined);
  const mean = known.reduce((sum, value) => sum + value, 0) / known.length;
  const peak = known.reduce((most, value) => Math.max(most, value), -Infinity);
  const made = tile(title, format(live ? known[known.length - 1] : mean), [`${live ? "now" : "mean"}, peak ${format(peak)}`, note].filter(Boolean).join(" · "));
  made.classList.replace("tile", "gauge");
  made.append(sparkline(values, 240, 40, range || [0, peak || 1], true));
  return made;
}

/** Load while training runs from the live samples, afterwards from the epochs. */
function gauges({ records, loads, status, progress }) {
  const newest = progress && records.length < 2 ? [progress] : [];
  const samplesNow = loads.length ? loads : newest;
  const live = samplesNow.length > 0 && (status === "running" || records.length < 2);
  const made = records.length ? [gauge("Time per epoch", records.map((record) => record.duration), null, formatDuration)] : [];
  const samples = live ? samplesNow : records;
  const add = (title, read, range, format, note) => {
    const values = samples.map(read);
    if (values.some((value) => value !== null && value !== undefined)) made.push(gauge(title, values, range, format, note, live));
  };
  const host = (key) => (sample) => sample.resources?.[key] ?? null;
  const ram = samples.map(host("ram_total")).find((total) => total > 0);
  add("Processor", host("cpu"), [0, 100], formatPercent);
  add("Memory", host("ram_used"), ram ? [0, ram] : null, formatBytes, ram && `of ${formatBytes(ram)}`);
  const gpus = samples.map((sample) => sample.gpus).find((list) => list && list.length) || [];
  gpus.forEach((gpu, index) => {
    const one = (key) => (sample) => sample.gpus?.[index]?.[key] ?? null;
    const title = gpus.length > 1 ? `GPU ${gpu.device}` : "GPU";
    add(title, one("util"), [0, 100], formatPercent, gpu.name);
    add(`${title} memory`, one("reserved"), [0, gpu.total], formatBytes, `of ${formatBytes(gpu.total)}`);
  });
  return made;
}

/** What each rank did in all epochs together, when it was last heard of, and how the last epoch was shared out. */
function rankParts(record) {
  const { records, epochClock, startSeconds, zone } = record;
  const many = records.flatMap((one, index) => (one.ranks ? [{ ...one, seconds: epochClock.ys[index] }] : []));
  if (!many.length) return [];
  const sums = [];
  for (const { ranks, gpus, epoch, seconds } of many) {
    ranks.each.forEach((one, rank) => {
      const sum = (sums[rank] ||= { batches: 0, samples: 0, busy: 0 });
      sum.batches += one.batches;
      sum.samples += one.samples;
      sum.busy += one.busy_ms || 0;
      const memory = gpus?.find(({ device }) => one.device === `cuda:${device}`);
      Object.assign(sum, { loss: measured(one.loss), device: one.device, memory, epoch, seconds });
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
    `${clockText(startSeconds + one.seconds, zone, 1)}, epoch ${one.epoch}`,
  ]);
  const table = tableOf("What each rank did", ["Rank", "Device", "Batches", "Share of batches", "Samples/s", "Busy for", "Last loss", "Memory", "Last seen"], rows, { className: "numbers" });
  const { duration, ranks, epoch: newest } = many[many.length - 1];
  sums.forEach(({ epoch }, rank) => table.tBodies[0].rows[rank].classList.toggle("bad-value", epoch < newest));
  const part = (ms) => (duration > 0 && ms !== null ? `${(ms / (10 * duration)).toFixed(1)} %` : DASH);
  const counts = ranks.counts.length ? [`${ranks.counts.join(" : ")} batches between two averages`] : [];
  const note = ["Last epoch", ...(ranks.anchor === null ? [] : [`anchor ${ranks.anchor}`]), ...counts, `exchanging ${part(ranks.comm_ms)}`, `waiting ${part(ranks.wait_ms)}`];
  return [scroller("Table of ranks", table, "card scroll"), element("p", { className: "note", textContent: note.join(" · ") })];
}

/** Where the time went: one bar, and the same as a list. */
function ledgerParts(ledger, total) {
  const accounts = Object.entries(ledger).filter(([, seconds]) => seconds > 0);
  const bar = element("div", { className: "ledger-bar", "aria-hidden": "true" });
  const list = element("ul", { className: "ledger" });
  // Accounts keep the colour of their place in the ledger, whatever their size.
  accounts.forEach(([account, seconds], index) => {
    const part = element("span", { title: `${account}: ${formatDuration(seconds)}` });
    Object.assign(part.style, { flexGrow: seconds / total, background: `var(--series-${index % FEW_COLORS})`, opacity: index < FEW_COLORS ? 1 : 0.55 });
    bar.append(part);
    const share = `${((100 * seconds) / total).toFixed(1)} %`;
    list.append(element("li", {}, dot(`series-${index % FEW_COLORS}`), element("span", { textContent: account }), element("b", { textContent: formatDuration(seconds) }), element("em", { textContent: share })));
  });
  return accounts.length ? [bar, list] : [];
}

/** The table of epochs, the newest first; scrolling and focus survive new rows. */
class EpochTable {
  #all = false;

  constructor(page) {
    this.page = page;
    this.scroll = scroller("Table of epochs", "");
    this.note = element("p");
    this.more = button("", () => {
      this.#all = true;
      this.render();
    });
    place("epochs").replaceChildren(element("div", { className: "card" }, this.scroll), element("div", { className: "table-foot" }, this.note, this.more));
  }

  render() {
    const { records, series } = this.page.record;
    place("epochs-section").hidden = !records.length;
    if (!records.length) return;
    const kept = this.#all ? records : records.slice(-MOST_ROWS);
    const shown = kept.toReversed();
    const columns = [...series.values()].filter(({ name }) => this.page.curves.test(name));
    const { scrollHeight, scrollTop } = this.scroll;
    const rows = shown.map((record) => [String(record.epoch), ...columns.map((one) => epochCell(record, one)), formatDuration(record.duration)]);
    this.scroll.replaceChildren(tableOf("Every epoch with its metrics; the best value of a metric is bold.", ["Epoch", ...columns.map((one) => one.name), "Time"], rows, { className: "numbers" }));
    // New rows must not move what is being read.
    if (scrollTop > 0) this.scroll.scrollTop = scrollTop + this.scroll.scrollHeight - scrollHeight;
    const part = shown.length < records.length ? `The last ${shown.length} of ${records.length} epochs. ` : "";
    this.note.textContent = part + (columns.some((one) => one.best) ? "Bold marks the best value of a metric." : "");
    this.more.textContent = `Show all ${records.length}`;
    this.more.hidden = !part;
  }
}

function epochCell({ epoch, metrics }, { name, best }) {
  const value = Object.hasOwn(metrics, name) ? metrics[name] : undefined;
  const text = formatMetric(value);
  const cell = element("td", { className: value === undefined ? "missing" : Number.isFinite(value) ? "" : "bad-value" });
  cell.append(best && epoch === best.x ? element("b", { textContent: text }) : text);
  return cell;
}

/** Leaves of a tree of facts as [dotted name, text, origin]. */
function factRows(value, name = "") {
  const isObject = (one) => one !== null && typeof one === "object" && !Array.isArray(one);
  const text = (one) => (typeof one === "string" && one !== "" ? one : JSON.stringify(one));
  if (!isObject(value)) return [[name, text(value), ""]];
  if ("value" in value && typeof value.origin === "string") return [[name, text(value.value), value.origin]];
  return Object.entries(value).flatMap(([key, item]) => {
    const rows = factRows(item, name ? `${name}.${key}` : key);
    return rows.length || !isObject(item) ? rows : [[name ? `${name}.${key}` : key, "{}", ""]];
  });
}

/** Blocks that fold: acts, configuration with origins, environment, parameters, and further metadata. */
function detailBlocks({ acts, config, environment, parameters, ...rest }, opened) {
  const blocks = [["Acts while it trained", acts, true], ["Configuration", config, true], ["Environment", environment, false], ["Parameters", parameters, false], ["Metadata", rest, false]];
  return blocks.flatMap(([title, value, open]) => {
    const rows = value === undefined ? [] : factRows(value);
    if (!rows.length) return [];
    const summary = element("summary", { textContent: title }, element("span", { textContent: `${rows.length} values` }));
    // What the reader opened or closed stays so when the page changes.
    const made = element("details", { className: "card", open: opened.get(title) ?? open }, summary, factTable(title, rows, ["Name", "Value", "Set in"]));
    made.ontoggle = () => opened.set(title, made.open);
    return [made];
  });
}

