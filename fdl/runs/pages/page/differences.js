"use strict";
/* Only what differs: settings and environment of the visible runs, each value with its origin. */

const SIDE_BY_SIDE = 6;
const VALUES_SHOWN = 12;

class DifferencesPanel {
  constructor(page) {
    this.page = page;
  }

  show() {
    const { model } = this.page;
    const runs = model.visible;
    const area = place("differences");
    const tables = [
      ["Settings", "config", model.differingIn(runs, "config")],
      ["Environment", "environment", model.differingIn(runs, "environment")],
    ].filter(([, , names]) => names.length);
    const same = model.settings.length - (tables.find(([, part]) => part === "config")?.[2].length ?? 0);
    place("differences-note").textContent =
      runs.length < 2
        ? "Two or more visible runs can be compared."
        : tables.length
          ? `Of ${counted(runs.length, "visible run")}. ${counted(same, "setting")} ${same === 1 ? "is" : "are"} the same in all.`
          : `All settings and the environment of the ${counted(runs.length, "visible run")} are the same.`;
    const make = runs.length <= SIDE_BY_SIDE ? sideBySide : byValues;
    area.replaceChildren(...tables.map(([title, part, names]) => make(title, part, names, runs, this.page)));
  }
}

/** A table with one column per run. */
function sideBySide(title, part, names, runs, page) {
  const heads = runs.map((run) => {
    const swatch = element("span", { className: "dot", "aria-hidden": "true" });
    swatch.style.background = page.model.color(run);
    return element("th", { scope: "col" }, swatch, button(run.title, () => page.open(run), { className: "link" }));
  });
  const rows = names.map((name) =>
    element("tr", {}, element("th", { scope: "row", textContent: name }), ...runs.map((run) => valueCell(part, run, name))),
  );
  return differenceTable(title, element("tr", {}, element("th", { scope: "col", textContent: title }), ...heads), rows);
}

function valueCell(part, run, name) {
  const [value, origin] = part === "config" ? run.config[name] || [undefined, ""] : [run.environment[name], ""];
  const cell = element("td", {}, element("span", { className: "value", textContent: formatSetting(value) }));
  if (origin) cell.append(element("span", { className: "origin", textContent: origin }));
  if (value === undefined) cell.classList.add("missing");
  return cell;
}

/** A table with the distinct values of each name, how many runs have each, and where it was set. */
function byValues(title, part, names, runs, page) {
  const rows = names.map((name) => {
    const values = new Map();
    for (const run of runs) {
      const [value, origin] = part === "config" ? run.config[name] || [undefined, ""] : [run.environment[name], ""];
      const key = formatSetting(value);
      const entry = values.get(key) || { count: 0, origins: new Set() };
      entry.count++;
      if (origin) entry.origins.add(origin);
      values.set(key, entry);
    }
    const ordered = [...values].sort(([a], [b]) => byValue(a, b));
    const items = ordered.slice(0, VALUES_SHOWN).map(([value, { count, origins }]) => {
      const act = () => page.choices.set({ filter: `${quotedName(name)} = ${quotedValue(value)}` });
      const chip = part === "config" && value !== DASH ? button(value, act, { className: "chip", title: `Show only these ${counted(count, "run")}` }) : element("span", { className: "chip", textContent: value });
      chip.append(element("span", { className: "count", textContent: `×${count}` }));
      const listed = [...origins];
      const where = listed.length > 2 ? `${listed.slice(0, 2).join(", ")} +${listed.length - 2}` : listed.join(", ");
      return element("div", { className: "value-of" }, chip, element("span", { className: "origin", textContent: where, title: listed.join("\n") }));
    });
    if (ordered.length > VALUES_SHOWN) items.push(element("span", { className: "origin", textContent: `and ${ordered.length - VALUES_SHOWN} more values` }));
    return element("tr", {}, element("th", { scope: "row", textContent: name }), element("td", {}, element("div", { className: "values" }, ...items)));
  });
  const head = element("tr", {}, element("th", { scope: "col", textContent: title }), element("th", { scope: "col", textContent: "Values, and where they were set" }));
  return differenceTable(title, head, rows);
}

function differenceTable(title, head, rows) {
  const table = element("table", { className: "facts" }, element("caption", { className: "unseen", textContent: `${title} that differ` }), element("thead", {}, head), element("tbody", {}, ...rows));
  return element("div", { className: "card scroll", tabIndex: 0, role: "region", "aria-label": `${title} that differ` }, table);
}

function quotedName(name) {
  return /^[\w.:/-]+$/.test(name) ? name : `\`${name}\``;
}

function quotedValue(value) {
  return /^[\w.+-]+$/.test(value) ? value : value.includes("'") ? `"${value}"` : `'${value}'`;
}
