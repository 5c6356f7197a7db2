"use strict";
/* The table of runs, of which only the rows in view are elements; what differs between runs; and one of them in a box. */

const ROW_HEIGHT = 31;
const ROWS_AROUND = 8;
const [FIRST_SETTINGS, FIRST_METRICS] = [6, 3];
/** Up to so many runs are named beside the values that they have. */
const RUNS_NAMED = 6;
const VALUES_SHOWN = 12;
const ROWS_ON_PAPER = 1000;

class RunTable {
  #order = [];
  #columns = [];
  #first = -1;
  /** Whether rows are elements that are not in view, too: a page that prints does not scroll. */
  whole = false;

  constructor(page) {
    this.page = page;
    const { choices, runs } = page;
    const keys = () => this.columns.map((one) => one.key).filter((key) => key !== "name");
    this.picker = new Picker("Columns", () => [...runs.columns.values()].filter((one) => one.key !== "name").map((one) => [one.key, one.label]), keys, (columns) => choices.set({ columns }));
    this.hiding = button("Show all curves", () => choices.set({ hidden: [] }));
    place("table-tools").append(this.picker.box, this.hiding, button("Save CSV", () => save("runs.csv", "text/csv", this.csv())));
    this.head = element("thead");
    const point = ({ target }) => page.highlight(runs.byId.get(Number(target.closest("tr")?.dataset.id)) || null);
    this.body = element("tbody", { onpointerover: point, onpointerleave: () => page.highlight(null) });
    this.table = element("table", { className: "runs" }, element("caption", { className: "unseen", textContent: "Runs" }), this.head, this.body);
    this.scroll = scroller("Table of runs", this.table, "scroll card");
    place("table").append(this.scroll);
    this.scroll.addEventListener("scroll", soon(() => this.#fill()), { passive: true });
    new ResizeObserver(soon(() => this.#fill(true))).observe(this.scroll);
  }

  /** The columns to show, in their order. */
  get columns() {
    const { runs, choices } = this.page;
    const chosen = choices.columns;
    const keys = chosen ? ["name", ...[...runs.columns.keys()].filter((key) => key !== "name" && chosen.includes(key))] : this.#usual();
    return keys.map((key) => runs.column(key)).filter(Boolean);
  }

  show() {
    const { runs, choices } = this.page;
    this.#columns = this.columns;
    this.#order = sorted(runs.filtered, choices.sort, (key) => runs.column(key));
    this.hiding.hidden = runs.visible.length === runs.filtered.length;
    this.picker.show();
    this.#showHead();
    this.table.setAttribute("aria-rowcount", String(this.#order.length + 1));
    this.table.setAttribute("aria-colcount", String(this.#columns.length));
    this.#fill(true);
    const none = runs.all.length ? "No run meets the filter." : "There are no runs here yet. The page shows them as soon as they begin.";
    place("no-runs").textContent = this.#order.length ? "" : none;
  }

  point(run) {
    for (const row of this.body.children) row.classList.toggle("pointed", run !== null && row.dataset.id === String(run.id));
  }

  csv() {
    const plain = (value) => (Array.isArray(value) ? value.join(" ") : value);
    return csvText([this.#columns.map((one) => one.label), ...this.#order.map((run) => this.#columns.map((one) => plain(one.value(run))))]);
  }

  #usual() {
    const { runs } = this.page;
    const has = (key) => (runs.all.some((run) => run[key]?.length) ? [key] : []);
    const settings = runs.differing.slice(0, FIRST_SETTINGS).map((name) => `config.${name}`);
    return ["name", "state", ...has("tags"), ...runs.results.slice(0, FIRST_METRICS), ...settings, "epochs", "seconds", "started", ...has("note")];
  }

  #showHead() {
    const { choices, runs } = this.page;
    const sort = choices.sort;
    const [key, down] = [sort.replace(/^-/, ""), sort.startsWith("-")];
    const focused = this.head.contains(document.activeElement) ? document.activeElement.closest("th")?.dataset.key : null;
    const cells = this.#columns.map((column) => {
      const sorts = column.key === key;
      const turned = sorts ? !down : column.higher || column.key === "started";
      const made = button(column.label, () => choices.set({ sort: turned ? `-${column.key}` : column.key }), { title: `Sort by ${column.label}` });
      made.append(element("span", { className: "mark-sort", "aria-hidden": "true", textContent: sorts ? (down ? "↓" : "↑") : "" }));
      const cell = element("th", { scope: "col", className: column.numeric ? "number" : "", "data-key": column.key }, made);
      if (sorts) cell.setAttribute("aria-sort", down ? "descending" : "ascending");
      return cell;
    });
    const all = element("input", { type: "checkbox", "aria-label": "Draw all runs of the table", checked: runs.visible.length === runs.filtered.length, onchange: () => this.page.hide(runs.filtered, !all.checked) });
    all.indeterminate = !all.checked && runs.visible.length > 0;
    cells[0].prepend(all);
    this.head.replaceChildren(element("tr", {}, ...cells));
    if (focused) cells.find((cell) => cell.dataset.key === focused)?.querySelector("button").focus();
  }

  #fill(anew = false) {
    const count = this.whole ? ROWS_ON_PAPER : Math.ceil((this.scroll.clientHeight || 400) / ROW_HEIGHT) + 2 * ROWS_AROUND;
    // The place may lie behind the last row, if there are fewer rows than before.
    const top = Math.min(Math.floor(this.scroll.scrollTop / ROW_HEIGHT) - ROWS_AROUND, this.#order.length - count);
    const first = this.whole ? 0 : Math.max(0, top);
    if (!anew && first === this.#first) return;
    this.#first = first;
    const focused = this.body.contains(document.activeElement) ? [document.activeElement.closest("tr")?.dataset.id, document.activeElement.className] : null;
    const rows = this.#order.slice(first, first + count).map((run, index) => this.#row(run, first + index));
    const spacer = (lines) => {
      const cell = element("td", { colSpan: Math.max(1, this.#columns.length) });
      cell.style.height = `${lines * ROW_HEIGHT}px`;
      return element("tr", { className: "spacer", "aria-hidden": "true", hidden: lines <= 0 }, cell);
    };
    this.body.replaceChildren(spacer(first), ...rows, spacer(this.#order.length - first - rows.length));
    if (focused) rows.find((row) => row.dataset.id === focused[0])?.querySelector(`.${focused[1]}`)?.focus();
  }

  #row(run, index) {
    const { runs } = this.page;
    const isVisible = runs.visible.includes(run);
    const box = element("input", { type: "checkbox", className: "draws", checked: isVisible, "aria-label": `Draw ${run.title}`, onchange: () => this.page.hide([run], !box.checked) });
    const name = button(run.title, () => this.page.open(run), { className: "link", title: run.path });
    const head = element("th", { scope: "row" }, element("div", { className: "run-name" }, box, dot(isVisible ? runs.color(run) : null), name));
    const cells = this.#columns.slice(1).map((column) => this.#cell(column, run));
    return element("tr", { "aria-rowindex": String(index + 2), "data-id": String(run.id), className: `${isVisible ? "" : "unseen-run"} ${run.id === this.page.highlighted?.id ? "pointed" : ""}` }, head, ...cells);
  }

  #cell(column, run) {
    const cell = element("td", { className: column.numeric ? "number" : "" });
    if (column.key === "state") cell.append(stateBadge(run.state));
    else if (column.key === "tags") cell.append(...run.tags.map((tag) => element("span", { className: "tag", textContent: tag })));
    else {
      cell.textContent = column.show(column.value(run));
      if (column.kind === "setting") cell.title = run.config[column.name]?.[1] || "";
      else if (column.kind === "metric" && run.metrics[column.name]) cell.title = `best in epoch ${run.metrics[column.name].epoch ?? DASH}`;
      else if (cell.textContent.length > 30) cell.title = cell.textContent;
      cell.classList.toggle("missing", cell.textContent === DASH);
    }
    return cell;
  }
}

function stateBadge(state) {
  return element("span", { className: "state", "data-state": state, textContent: state });
}

/** Only what differs: settings and environment of the visible runs, each value with its origin. */
function showDifferences(page) {
  const { runs } = page;
  const { visible } = runs;
  const tables = [["Settings", "config"], ["Environment", "environment"]].map(([title, part]) => [title, part, runs.differingIn(visible, part)]).filter(([, , names]) => names.length);
  const same = runs.settings.length - (tables.find(([, part]) => part === "config")?.[2].length ?? 0);
  const compared = counted(visible.length, "visible run");
  const found = tables.length ? `Of ${compared}. ${counted(same, "setting")} ${same === 1 ? "is" : "are"} the same in all.` : `All settings and the environment of the ${compared} are the same.`;
  place("differences-note").textContent = visible.length < 2 ? "Two or more visible runs can be compared." : found;
  place("differences").replaceChildren(...tables.map(([title, part, names]) => {
    const rows = names.map((name) => [name, valuesOf(part, name, visible, page)]);
    const table = tableOf(`${title} that differ`, [title, "Values, and where they were set"], rows, { className: "facts" });
    return scroller(`${title} that differ`, table, "card scroll");
  }));
}

/** The distinct values of a name, which runs have each, and where it was set. */
function valuesOf(part, name, runs, page) {
  const groups = Map.groupBy(runs, (run) => formatSetting(plainOf(run, part, name)));
  const ordered = [...groups].sort(([a], [b]) => byValue(a, b));
  const items = ordered.slice(0, VALUES_SHOWN).map(([value, members]) => {
    const act = () => page.choices.set({ filter: `${quotedName(name)} = ${quotedValue(value)}` });
    const canFilter = part === "config" && value !== DASH;
    const chip = canFilter ? button(value, act, { className: "chip", title: `Show only these ${counted(members.length, "run")}` }) : element("span", { className: "chip", textContent: value });
    const named = (run) => Object.assign(dot(page.runs.color(run)), { title: run.title });
    const dots = () => element("span", { role: "img", "aria-label": members.map((run) => run.title).join(", ") }, ...members.map(named));
    const who = runs.length <= RUNS_NAMED ? dots() : element("span", { className: "count", textContent: `×${members.length}` });
    const origins = [...new Set(members.map((run) => part === "config" && run.config[name]?.[1]))].filter(Boolean);
    const where = `${origins.slice(0, 2).join(", ")}${origins.length > 2 ? ` +${origins.length - 2}` : ""}`;
    return element("div", { className: "value-of" }, chip, who, element("span", { className: "origin", textContent: where, title: origins.join("\n") }));
  });
  if (ordered.length > VALUES_SHOWN) items.push(element("span", { className: "origin", textContent: `and ${ordered.length - VALUES_SHOWN} more values` }));
  return element("div", { className: "values" }, ...items);
}

function quotedName(name) {
  return /^[\w.:/-]+$/.test(name) ? name : `\`${name}\``;
}

function quotedValue(value) {
  return /^[\w.+-]+$/.test(value) ? value : value.includes("'") ? `"${value}"` : `'${value}'`;
}

/** One run in a box: its facts, metrics, settings with their origins, environment, and the page of its own. */
function showDetails(run) {
  place("details-title").textContent = run.title;
  const facts = [
    ["State", stateBadge(run.state)], ["Error", run.error], ["Started", formatMoment(run.started)], ["Time", formatDuration(elapsed(run))], ["Epochs", String(run.epochs)],
    ["Tags", run.tags.join(", ")], ["Note", run.note], ["Continues", run.resumed_from], ["Folder", run.path], ["Show", `fdl runs show ${run.path}`],
  ].filter(([, value]) => value);
  const settings = Object.entries(run.config).map(([name, [value, origin]]) => [name, formatSetting(value), origin]);
  const metrics = Object.entries(run.metrics).map(([name, one]) => [name, formatNumber(one.last), `best ${formatNumber(one.best)}${one.epoch ? ` in epoch ${one.epoch}` : ""}`]);
  const environment = Object.entries(run.environment).map(([name, value]) => [name, formatSetting(value)]);
  const tables = [["Facts", facts], ["Metrics", metrics], ["Settings and where they were set", settings], ["Environment", environment]];
  const link = (href, text) => element("a", { className: "button", href, target: "_blank", rel: "noopener", textContent: text });
  const links = [run.has_page && link(`${run.id}/`, "Open the page of this run"), run.has_report && link(`${run.id}/report.html`, "Open the report")].filter(Boolean);
  place("details-body").replaceChildren(
    element("p", { className: "links" }, ...(links.length ? links : ["This run has no report."])),
    ...tables.filter(([, rows]) => rows.length).map(([title, rows]) => factTable(title, rows)),
  );
}
