"use strict";
/* What a page reads from its server: events and points of a run, runs and curves of many, and what people ask a training for. */

const POINTS = 2000;
const SURE_MS = 5000;

/** What the server answers; `read` says as what. */
async function ask(address, { read = "json", ...options } = {}) {
  const answer = await fetch(address, { cache: "no-store", ...options });
  if (!answer.ok) throw new Error(await answer.text());
  return answer[read]();
}

/** Follows a run: events of the server into its record, and points of curves on request. */
class LiveFeed {
  #failed = 0;
  #source = null;
  #hasEnded = false;

  /** `after` is the record of the run behind which the stream goes on. */
  constructor(page, { session, after }) {
    Object.assign(this, { page, session, after });
    // Browsers open few connections to one server: a page that nobody sees leaves them to the others.
    document.addEventListener("visibilitychange", () => (document.hidden ? this.#source?.close() : this.start()));
  }

  start() {
    if (document.hidden || this.#hasEnded) return;
    const { page } = this;
    const { record } = page;
    this.#source?.close();
    const source = (this.#source = new EventSource(`events?after=${this.after}`));
    const takes = {
      // Another run behind the same address: what is on the page belongs to the one before.
      info: (info) => (info.session === this.session ? record.take({ info }) : window.location.reload()),
      epoch: (one) => record.take({ records: [one] }),
      steps: (points) => record.take(points),
      progress: (progress) => record.take({ progress }),
      media: () => page.media.refresh(),
      ledger: (ledger) => record.take({ ledger }),
      acts: (state) => page.acts?.show(state),
      drawing: ({ version }) => record.take({ drawing: version }),
      complete: (summary) => {
        source.close();
        this.#hasEnded = true;
        page.connect(null);
        place("acts").hidden = true;
        record.take({ finish: summary });
      },
    };
    for (const [kind, take] of Object.entries(takes)) {
      source.addEventListener(kind, (event) => {
        this.after = Number(event.lastEventId) || this.after;
        take(JSON.parse(event.data));
      });
    }
    source.addEventListener("open", () => {
      this.#failed = 0;
      page.connect("live");
      this.#catchUp().catch(() => {}); // the line is broken again; the next connection asks anew
      page.media.refresh();
    });
    source.addEventListener("error", () => {
      // The first failure is a broken line; if the next try fails too, nobody answers any more.
      this.#failed += 1;
      page.connect(this.#failed > 1 ? "gone" : "lost");
      // The browser comes back by itself after a broken line, but not after an answer it refused.
      if (source.readyState === EventSource.CLOSED) window.setTimeout(() => this.start(), 2000);
    });
  }

  /** Points that went by between the making of the page, or a broken line, and this stream. */
  async #catchUp() {
    const { names, clock } = await ask("api/series");
    if (names.length) this.page.record.replaceSteps(await this.#read(names, null), clock);
  }

  /** Finer points of all curves for a range of steps; the coarse points stay if none come. */
  detail(range) {
    return this.#read([...this.page.record.curves.keys()], range).catch(() => []);
  }

  async #read(names, range) {
    const ends = range ? [["from", Math.floor(range[0])], ["to", Math.ceil(range[1])]] : [];
    const query = new URLSearchParams([["points", POINTS], ...names.map((name) => ["name", name]), ...ends]);
    return (await ask(`api/series?${query}`)).series;
  }
}

/** Buttons that act on the training; only on a page that was served with them. */
class ActButtons {
  #token = window.location.pathname.split("/")[1];
  #state = {};
  #sure = 0;

  constructor(host) {
    this.host = host;
    this.pause = button("Pause", () => this.#ask({ act: this.#state.paused ? "continue" : "pause" }));
    const save = button("Save a checkpoint", () => this.#ask({ act: "checkpoint" }));
    this.stop = button("Stop", () => this.#stopIfSure());
    this.rate = this.#field("Learning rate", "1e-4", (value) => ({ act: "lr", value }));
    this.key = selection("Setting", () => this.show({}));
    this.setting = this.#field("Setting", "", (value) => ({ act: "set", key: this.key.value, value }));
    this.setting.input.before(this.key);
    this.answer = element("p", { className: "act-answer", role: "status" });
    host.replaceChildren(element("div", { className: "act-row" }, this.pause, save, this.stop, this.rate.form, this.setting.form), this.answer);
    host.hidden = false;
  }

  /** The state of the training; fields that are missing stay as they were. */
  show(state) {
    this.#state = { ...this.#state, ...state };
    const { paused, stopping, settings = {} } = this.#state;
    this.pause.textContent = paused ? "Continue" : "Pause";
    for (const one of this.host.querySelectorAll("button, input, select")) one.disabled = Boolean(stopping);
    const names = Object.keys(settings);
    this.setting.form.hidden = !names.length;
    fill(this.key, names.map((name) => [name, name]), names.includes(this.key.value) ? this.key.value : names[0]);
    this.setting.input.placeholder = String(settings[this.key.value] ?? "");
    if (state.answer) this.#say(state.answer.ok ? state.answer.text : state.answer.error, state.answer.ok);
  }

  #field(label, example, wish) {
    const input = element("input", { type: "text", placeholder: example, autocomplete: "off", spellcheck: false, ariaLabel: label });
    const send = element("button", { type: "submit", textContent: "Set", "aria-label": `Set ${label.toLowerCase()}` });
    const submit = (event) => {
      event.preventDefault();
      if (input.value.trim()) this.#ask(wish(input.value.trim()));
    };
    return { form: element("form", { className: "act-field", onsubmit: submit }, element("span", { textContent: label }), input, send), input };
  }

  /** The first click asks, a second one soon after it stops the training. */
  #stopIfSure() {
    window.clearTimeout(this.#sure);
    const asks = (on) => {
      this.stop.classList.toggle("sure", on);
      this.stop.textContent = on ? "Stop this training?" : "Stop";
    };
    const isSure = this.stop.classList.contains("sure");
    asks(!isSure);
    if (isSure) this.#ask({ act: "stop" });
    else this.#sure = window.setTimeout(() => asks(false), SURE_MS);
  }

  async #ask(wish) {
    this.#say("Waiting for the end of a step …", true);
    const headers = { "Content-Type": "application/json", "X-Flodl-Token": this.#token };
    try {
      await ask("api/act", { method: "POST", headers, body: JSON.stringify({ flodl: 1, ...wish }), read: "text" });
    } catch (error) {
      this.#say(error instanceof TypeError ? "The training cannot be reached." : error.message, false);
    }
  }

  #say(text, good) {
    this.answer.textContent = text;
    this.answer.classList.toggle("bad-value", !good);
  }
}

/** Runs and curves from the server of the page. */
class Served {
  #session = null;
  #version = -1;
  /** Whether the server is still reading runs that it has not told of. */
  isReading = false;
  /** How many runs there are, those that are still being read included. */
  total = 0;

  /** The rows that changed since the last call, and the order of all; null if nothing did. */
  async runs() {
    const found = await ask(`runs?since=${this.#version}`);
    // Another server at the same address: the numbers of runs on the page belong to the one before.
    if ((this.#session ??= found.session) !== found.session) window.location.reload();
    const fresh = found.version !== this.#version || found.more !== this.isReading;
    Object.assign(this, { isReading: found.more, total: found.total });
    this.#version = found.version;
    return fresh ? found : null;
  }

  /** Curves of some runs: run -> curve. */
  async curves({ metric, axis, ids, count, range, band, signal }) {
    const ends = range && { first: range[0], last: range[1] };
    const query = new URLSearchParams({ metric, axis, count, runs: ids, band: band ? 1 : 0, ...ends });
    return unpacked(await ask(`curves?${query}`, { read: "arrayBuffer", signal }), band);
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
