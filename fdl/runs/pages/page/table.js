"use strict";
/* The table of all runs. Only the rows in view are elements, so that thousands stay smooth. */

const ROW_HEIGHT = 31;
const ROWS_AROUND = 8;
const [FIRST_SETTINGS, FIRST_METRICS] = [6, 3];

class RunTable {
  #order = [];
  #columns = [];
  #first = -1;

  constructor(page) {
    this.page = page;
    const { choices } = page;
    this.picker = new Picker(
      "Columns",
      () => [...page.model.columns.values()].filter((one) => one.key !== "name").map((one) => [one.key, one.label]),
      () => this.columns.filter((one) => one.key !== "name").map((one) => one.key),
      (columns) => choices.set({ columns }),
    );
    this.differing = button("Only what differs", () => choices.set({ differing: !choices.get("differing") }), { className: "toggle" });
    this.hiding = button("Show all curves", () => choices.set({ hidden: [] }), { className: "small" });
    place("table-tools").append(
      this.picker.box,
      this.differing,
      this.hiding,
      button("Save CSV", () => save("runs.csv", "text/csv", this.csv()), {}),
      button("Save JSON", () => save("runs.json", "application/json", this.json()), {}),
    );
    this.head = element("thead");
    this.body = element("tbody");
    this.table = element("table", { className: "runs" }, element("caption", { className: "unseen", textContent: "Runs" }), this.head, this.body);
    this.scroll = element("div", { className: "scroll card", tabIndex: 0, role: "region", "aria-label": "Table of runs" }, this.table);
    place("table").append(this.scroll);
    this.scroll.addEventListener("scroll", soon(() => this.#fill()), { passive: true });
    new ResizeObserver(soon(() => this.#fill(true))).observe(this.scroll);
    this.body.addEventListener("pointerover", (event) => page.highlight(this.#runOf(event)));
    this.body.addEventListener("pointerleave", () => page.highlight(null));
  }

  /** The columns to show, in their order. */
  get columns() {
    const { model, choices } = this.page;
    const chosen = choices.get("columns");
    const keys = chosen ? ["name", ...[...model.columns.keys()].filter((key) => key !== "name" && chosen.includes(key))] : this.#usual();
    let columns = keys.map((key) => model.column(key)).filter(Boolean);
    if (choices.get("differing")) columns = columns.filter((one) => one.key === "name" || this.#differs(one));
    return columns;
  }

  show() {
    const { model, choices } = this.page;
    this.#columns = this.columns;
    this.#order = sorted(model.filtered, choices.get("sort"), (key) => model.column(key));
    this.differing.setAttribute("aria-pressed", String(choices.get("differing")));
    this.hiding.hidden = model.visible.length === model.filtered.length;
    this.picker.show();
    this.#showHead();
    this.table.setAttribute("aria-rowcount", String(this.#order.length + 1));
    this.table.setAttribute("aria-colcount", String(this.#columns.length));
    this.#fill(true);
    place("no-runs").hidden = this.#order.length > 0;
    place("no-runs").textContent = model.runs.length ? "No run meets the filter." : "There are no runs here yet. The page shows them as soon as they begin.";
  }

  point(run) {
    for (const row of this.body.children) row.classList.toggle("pointed", run !== null && row.dataset.id === String(run.id));
  }

  csv() {
    const rows = [csvRow(this.#columns.map((one) => one.label))];
    for (const run of this.#order) rows.push(csvRow(this.#columns.map((one) => plainCell(one, run))));
    return `${rows.join("\n")}\n`;
  }

  json() {
    const runs = this.#order.map(({ text, id, has_report, has_page, report, page, ...run }) => ({
      ...run,
      config: Object.fromEntries(Object.entries(run.config).map(([name, [value, origin]]) => [name, { value, origin }])),
    }));
    return `${JSON.stringify({ runs }, null, 2)}\n`;
  }

  #usual() {
    const { model } = this.page;
    const has = (key) => model.runs.some((run) => run[key]?.length);
    const names = model.curveNames.filter((name) => model.column(`best:${name}`)).slice(0, FIRST_METRICS);
    const differing = model.differing.slice(0, FIRST_SETTINGS).map((name) => `config.${name}`);
    const facts = ["name", "state", ...(has("tags") ? ["tags"] : [])];
    return [...facts, ...names.map((name) => `best:${name}`), ...differing, "epochs", "seconds", "started", ...(has("note") ? ["note"] : [])];
  }

  #differs(column) {
    const [first, ...others] = this.page.model.filtered.map((run) => JSON.stringify(column.value(run) ?? null));
    return others.some((value) => value !== first);
  }

  #showHead() {
    const sort = this.page.choices.get("sort");
    const [key, down] = [sort.replace(/^-/, ""), sort.startsWith("-")];
    const focused = this.head.contains(document.activeElement) ? document.activeElement.closest("th")?.dataset.key : null;
    const cells = this.#columns.map((column) => {
      const sorts = column.key === key;
      const act = () => this.page.choices.set({ sort: sorts && !down ? `-${column.key}` : sorts ? column.key : column.higher || column.key === "started" ? `-${column.key}` : column.key });
      const mark = element("span", { className: "mark-sort", "aria-hidden": "true", textContent: sorts ? (down ? "↓" : "↑") : "" });
      const cell = element("th", { scope: "col", className: cellClass(column), "data-key": column.key }, button(column.label, act, { title: `Sort by ${column.label}` }));
      cell.firstChild.append(mark);
      if (sorts) cell.setAttribute("aria-sort", down ? "descending" : "ascending");
      return cell;
    });
    const all = element("input", { type: "checkbox", "aria-label": "Draw all runs of the table", checked: this.page.model.visible.length === this.page.model.filtered.length });
    all.indeterminate = !all.checked && this.page.model.visible.length > 0;
    all.addEventListener("change", () => this.page.hide(this.page.model.filtered, !all.checked));
    cells[0].prepend(all);
    this.head.replaceChildren(element("tr", {}, ...cells));
    if (focused) [...this.head.querySelectorAll("th")].find((cell) => cell.dataset.key === focused)?.querySelector("button").focus();
  }

  #fill(anew = false) {
    const height = this.scroll.clientHeight || 400;
    const first = Math.max(0, Math.floor(this.scroll.scrollTop / ROW_HEIGHT) - ROWS_AROUND);
    const count = Math.ceil(height / ROW_HEIGHT) + 2 * ROWS_AROUND;
    if (!anew && first === this.#first) return;
    this.#first = first;
    const focused = this.body.contains(document.activeElement) ? [document.activeElement.closest("tr")?.dataset.id, document.activeElement.className] : null;
    const rows = this.#order.slice(first, first + count).map((run, index) => this.#row(run, first + index));
    const above = spacer(first * ROW_HEIGHT, this.#columns.length);
    const below = spacer(Math.max(0, this.#order.length - first - rows.length) * ROW_HEIGHT, this.#columns.length);
    this.body.replaceChildren(above, ...rows, below);
    if (focused) rows.find((row) => row.dataset.id === focused[0])?.querySelector(`.${focused[1]}`)?.focus();
  }

  #row(run, index) {
    const { model } = this.page;
    const isVisible = model.visible.includes(run);
    const box = element("input", { type: "checkbox", className: "draws", checked: isVisible, "aria-label": `Draw ${run.name}` });
    box.addEventListener("change", () => this.page.hide([run], !box.checked));
    const swatch = element("span", { className: "dot", "aria-hidden": "true" });
    swatch.style.background = isVisible ? model.color(run) : "transparent";
    swatch.style.borderColor = isVisible ? "transparent" : ink.get("soft");
    const name = button(run.title, () => this.page.open(run), { className: "link", title: run.path });
    const cells = this.#columns.slice(1).map((column) => this.#cell(column, run));
    const row = element("tr", { "aria-rowindex": String(index + 2), "data-id": String(run.id) }, element("th", { scope: "row" }, element("div", { className: "run-name" }, box, swatch, name)), ...cells);
    if (!isVisible) row.classList.add("unseen-run");
    return row;
  }

  #cell(column, run) {
    const value = column.value(run);
    const cell = element("td", { className: cellClass(column) });
    if (column.key === "state") cell.append(stateBadge(run.state));
    else if (column.key === "tags") cell.append(...value.map((tag) => element("span", { className: "tag", textContent: tag })));
    else {
      cell.textContent = shownCell(column, run);
      if (column.kind === "setting") cell.title = run.config[column.name]?.[1] || "";
      else if (column.kind === "metric" && run.metrics[column.name]) cell.title = `best in epoch ${run.metrics[column.name].epoch ?? DASH}`;
      else if (cell.textContent.length > 30) cell.title = cell.textContent;
      if (cell.textContent === DASH) cell.classList.add("missing");
    }
    return cell;
  }

  #runOf(event) {
    const id = event.target.closest("tr")?.dataset.id;
    return id === undefined ? null : this.page.model.run(Number(id)) || null;
  }
}

function stateBadge(state) {
  return element("span", { className: "state", "data-state": state, textContent: state });
}

function cellClass(column) {
  return column.numeric ? "number" : "";
}

function shownCell(column, run) {
  const value = column.value(run);
  if (column.key === "seconds") return formatDuration(value);
  if (column.key === "started") return formatMoment(value);
  if (column.kind === "metric") return formatMeasured(value);
  if (column.kind === "setting") return formatSetting(value);
  return value === "" || value === undefined || value === null ? DASH : String(value);
}

/** A cell as data: numbers in full. */
function plainCell(column, run) {
  const value = column.value(run);
  return Array.isArray(value) ? value.join(" ") : value;
}

function spacer(height, columns) {
  const cell = element("td", { colSpan: Math.max(1, columns) });
  const row = element("tr", { className: "spacer", "aria-hidden": "true" }, cell);
  cell.style.height = `${height}px`;
  row.hidden = height === 0;
  return row;
}
