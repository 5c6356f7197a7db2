"use strict";
/* What a page reads from its server: events and points of a run, runs and curves of many, and what people ask a training for. */

const POINTS = 2000;
const SURE_MS = 5000;

async function ask(address, options = {}) {
  const answer = await fetch(address, { cache: "no-store", ...options });
  if (!answer.ok) throw new Error(await answer.text());
  return answer.json();
}

/** Follows a run: events of the server into its record, and points of curves on request. */
class LiveFeed {
  #page;
  #session;
  #source = null;
  #failed = 0;
  /** Behind which record of the run the stream goes on. */
  #place;

  constructor(page, { session, after }) {
    this.#page = page;
    this.#session = session;
    this.#place = after;
  }

  start() {
    const page = this.#page;
    const { record } = page;
    const source = (this.#source = new EventSource(`events?after=${this.#place}`));
    const takes = {
      // Another run behind the same address: what is on the page belongs to the one before.
      info: (info) => (info.session === this.#session ? record.open(info) : window.location.reload()),
      epoch: (one) => record.record(one),
      steps: ({ series, clock }) => record.addSteps(series, clock),
      progress: (progress) => record.setProgress(progress),
      media: () => page.media.refresh(),
      ledger: (ledger) => record.set({ ledger }),
      acts: (state) => page.acts?.show(state),
      drawing: ({ version }) => record.set({ drawing: version }),
      complete: (summary) => {
        source.close();
        page.connect(null);
        page.acts?.close();
        record.finish(summary);
      },
    };
    for (const [kind, take] of Object.entries(takes)) {
      source.addEventListener(kind, (event) => {
        this.#place = Number(event.lastEventId) || this.#place;
        take(JSON.parse(event.data));
      });
    }
    source.addEventListener("open", () => {
      this.#failed = 0;
      page.connect("live");
      this.#catchUp();
      page.media.refresh();
    });
    source.addEventListener("error", () => this.#lost());
  }

  #lost() {
    // The first failure is a broken line; if the next try fails too, nobody answers any more.
    this.#failed += 1;
    this.#page.connect(this.#failed > 1 ? "gone" : "lost");
    // The browser comes back by itself after a broken line, but not after an answer it refused.
    if (this.#source.readyState !== EventSource.CLOSED) return;
    this.#source.close();
    window.setTimeout(() => this.start(), 2000);
  }

  /** Points that went by between the making of the page, or a broken line, and this stream. */
  async #catchUp() {
    try {
      const { names, clock } = await ask("api/series");
      if (names.length) this.#page.record.replaceSteps(await this.#read(names, null), clock);
    } catch {
      // The line is broken again; the next connection asks anew.
    }
  }

  /** Finer points of all curves for a range of steps; the coarse points stay if none come. */
  async detail(range) {
    try {
      return await this.#read([...this.#page.record.curves.keys()], range);
    } catch {
      return [];
    }
  }

  async #read(names, range) {
    const query = new URLSearchParams({ points: POINTS });
    for (const name of names) query.append("name", name);
    if (range) {
      query.set("from", Math.floor(range[0]));
      query.set("to", Math.ceil(range[1]));
    }
    return (await ask(`api/series?${query}`)).series;
  }
}

/** Buttons that act on the training; only on a page that was served with them. */
class ActButtons {
  #host;
  #token = window.location.pathname.split("/")[1];
  #state = {};
  #sure = 0;

  constructor(host) {
    this.#host = host;
    this.pause = button("Pause", () => this.#ask({ act: this.#state.paused ? "continue" : "pause" }));
    this.save = button("Save a checkpoint", () => this.#ask({ act: "checkpoint" }));
    this.stop = button("Stop", () => this.#stopIfSure());
    this.rate = this.#field("Learning rate", "1e-4", (value) => ({ act: "lr", value }));
    this.key = selection("Setting", () => this.#showSetting());
    this.setting = this.#field("Setting", "", (value) => ({ act: "set", key: this.key.value, value }));
    this.setting.input.before(this.key);
    this.answer = element("p", { className: "act-answer", role: "status" });
    host.replaceChildren(element("div", { className: "act-row" }, this.pause, this.save, this.stop, this.rate.form, this.setting.form), this.answer);
    host.hidden = false;
  }

  /** The state of the training; fields that are missing stay as they were. */
  show(state) {
    this.#state = { ...this.#state, ...state };
    const { paused, stopping, settings = {}, answer } = this.#state;
    this.pause.textContent = paused ? "Continue" : "Pause";
    for (const one of this.#host.querySelectorAll("button, input, select")) one.disabled = Boolean(stopping);
    const names = Object.keys(settings);
    this.setting.form.hidden = !names.length;
    fill(this.key, names.map((name) => [name, name]), names.includes(this.key.value) ? this.key.value : names[0]);
    this.#showSetting();
    if (answer) this.#say(answer.ok ? answer.text : answer.error, answer.ok);
  }

  close() {
    this.#host.hidden = true;
  }

  #field(label, example, wish) {
    const input = element("input", { type: "text", placeholder: example, autocomplete: "off", spellcheck: false, ariaLabel: label });
    const send = element("button", { type: "submit", textContent: "Set", "aria-label": `Set ${label.toLowerCase()}` });
    const form = element("form", { className: "act-field" }, element("span", { textContent: label }), input, send);
    form.addEventListener("submit", (event) => {
      event.preventDefault();
      if (input.value.trim()) this.#ask(wish(input.value.trim()));
    });
    return { form, input };
  }

  #showSetting() {
    this.setting.input.placeholder = String(this.#state.settings?.[this.key.value] ?? "");
  }

  #stopIfSure() {
    window.clearTimeout(this.#sure);
    const sure = this.stop.dataset.sure;
    const unsure = () => {
      delete this.stop.dataset.sure;
      this.stop.textContent = "Stop";
    };
    if (sure) {
      unsure();
      this.#ask({ act: "stop" });
      return;
    }
    this.stop.dataset.sure = "yes";
    this.stop.textContent = "Stop this training?";
    this.#sure = window.setTimeout(unsure, SURE_MS);
  }

  async #ask(wish) {
    this.#say("Waiting for the end of a step …", true);
    const headers = { "Content-Type": "application/json", "X-Flodl-Token": this.#token };
    try {
      const answer = await fetch("api/act", { method: "POST", headers, body: JSON.stringify({ flodl: 1, ...wish }) });
      if (!answer.ok) this.#say(await answer.text(), false);
    } catch {
      this.#say("The training cannot be reached.", false);
    }
  }

  #say(text, good) {
    this.answer.textContent = text;
    this.answer.classList.toggle("bad-value", !good);
  }
}

/** Runs and curves from the server of the page. */
class Served {
  #version = -1;
  /** Whether the server is still reading runs that it has not told of. */
  isReading = false;
  /** How many runs there are, those that are still being read included. */
  total = 0;

  /** The rows that changed since the last call, and the order of all; null if nothing did. */
  async runs() {
    const found = await ask(`runs?since=${this.#version}`);
    for (const row of found.rows) {
      row.report = row.has_report ? `${row.id}/report.html` : null;
      row.page = row.has_page ? `${row.id}/` : null;
    }
    const fresh = found.version !== this.#version || found.more !== this.isReading;
    Object.assign(this, { isReading: found.more, total: found.total });
    this.#version = found.version;
    return fresh ? found : null;
  }

  /** The runs that meet a filter, or why it is not one. */
  async where(text) {
    const { ids, problem } = await ask(`where?${new URLSearchParams({ text })}`);
    return { ids: ids && new Set(ids), problem };
  }

  /** Curves of some runs: run -> curve. */
  async curves({ metric, axis, ids, count, range, band, signal }) {
    const query = new URLSearchParams({ metric, axis, count, runs: ids, band: band ? 1 : 0 });
    if (range) {
      query.set("first", range[0]);
      query.set("last", range[1]);
    }
    const reply = await fetch(`curves?${query}`, { signal, cache: "no-store" });
    if (!reply.ok) throw new Error(await reply.text());
    return unpacked(await reply.arrayBuffer(), band);
  }
}

/** The curves in a block of bytes, as the server packs them. */
function unpacked(buffer, band) {
  const length = new DataView(buffer).getUint32(0, true);
  let offset = 4 + length;
  const column = (count) => new Float64Array(buffer, (offset += 8 * count) - 8 * count, count);
  const head = JSON.parse(new TextDecoder().decode(new Uint8Array(buffer, 4, length)));
  return new Map(head.map(([id, count, gaps]) => {
    const [x, mean] = [column(count), column(count)];
    return [id, { x, mean, gaps, ...(band ? { low: column(count), high: column(count) } : {}) }];
  }));
}
