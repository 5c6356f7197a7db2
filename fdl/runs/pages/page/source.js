"use strict";
/* Where runs and curves come from: the server of the page, or the page itself. */

/** A curve: positions, means, and if they are known the lowest and highest values. */
function curveOf(x, mean, low = null, high = null, gaps = []) {
  return { x, mean, low, high, gaps };
}

class Served {
  #version = -1;
  /** Whether the server is still reading runs that it has not told of. */
  isReading = false;
  /** How many runs there are, those that are still being read included. */
  total = 0;

  /** The rows that changed since the last call, and the order of all. */
  async runs() {
    const reply = await this.#ask(`runs?since=${this.#version}`);
    const found = await reply.json();
    for (const row of found.rows) {
      row.report = row.has_report ? `${row.id}/report.html` : null;
      row.page = row.has_page ? `${row.id}/` : null;
    }
    const fresh = found.version !== this.#version || found.more !== this.isReading;
    this.isReading = found.more;
    this.total = found.total;
    this.#version = found.version;
    return fresh ? found : null;
  }

  /** Curves of some runs: run -> curve. */
  async curves({ metric, axis, ids, count, range, band, signal }) {
    const query = new URLSearchParams({ metric, axis, count, runs: ranges(ids), band: band ? 1 : 0 });
    if (range) {
      query.set("first", range[0]);
      query.set("last", range[1]);
    }
    const reply = await this.#ask(`curves?${query}`, signal);
    return unpacked(await reply.arrayBuffer(), band);
  }

  async #ask(address, signal) {
    const reply = await fetch(address, { signal, cache: "no-store" });
    if (!reply.ok) throw new Error(await reply.text());
    return reply;
  }
}

class Embedded {
  isReading = false;
  #content;
  #columns = new Map();
  #told = false;

  constructor(content) {
    this.#content = content;
    this.found = new Map();
    for (const [id, metric, axis, gaps, ...columns] of content.curves) {
      this.found.set(`${axis} ${id} ${metric}`, { gaps, columns });
    }
  }

  async runs() {
    if (this.#told) return null;
    this.#told = true;
    return this.#content.runs;
  }

  async curves({ metric, axis, ids }) {
    const made = new Map();
    for (const id of ids) {
      const entry = this.found.get(`${axis} ${id} ${metric}`);
      if (!entry) continue;
      const [x, low, high, mean] = entry.columns.map((column) => this.#column(column));
      made.set(id, curveOf(x, mean, low, high, entry.gaps));
    }
    return made;
  }

  #column(number) {
    if (!this.#columns.has(number)) {
      const text = atob(this.#content.columns[number]);
      const bytes = Uint8Array.from(text, (char) => char.charCodeAt(0));
      this.#columns.set(number, doubles(bytes.buffer, 0, bytes.length / 8));
    }
    return this.#columns.get(number);
  }
}

/** Numbers of runs as text: [0, 1, 2, 7] -> "0-2,7" */
function ranges(ids) {
  const sorted = [...ids].sort((a, b) => a - b);
  const parts = [];
  for (let start = 0; start < sorted.length; ) {
    let end = start;
    while (sorted[end + 1] === sorted[end] + 1) end++;
    parts.push(end > start ? `${sorted[start]}-${sorted[end]}` : `${sorted[start]}`);
    start = end + 1;
  }
  return parts.join(",");
}

/** The curves in a block of bytes, as the server packs them. */
function unpacked(buffer, band) {
  const length = new DataView(buffer).getUint32(0, true);
  const head = JSON.parse(new TextDecoder().decode(new Uint8Array(buffer, 4, length)));
  const made = new Map();
  let offset = 4 + length;
  const column = (count) => {
    const numbers = doubles(buffer, offset, count);
    offset += 8 * count;
    return numbers;
  };
  for (const [id, count, gaps] of head) {
    const [x, mean] = [column(count), column(count)];
    const [low, high] = band ? [column(count), column(count)] : [null, null];
    if (count) made.set(id, curveOf(x, mean, low, high, gaps));
  }
  return made;
}

/** Little-endian doubles; nearly every machine has them in this order already. */
function doubles(buffer, offset, count) {
  if (new Uint8Array(new Uint16Array([1]).buffer)[0] === 1) return new Float64Array(buffer, offset, count);
  const view = new DataView(buffer, offset);
  return Float64Array.from({ length: count }, (_, index) => view.getFloat64(8 * index, true));
}
