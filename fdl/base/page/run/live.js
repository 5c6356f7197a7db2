"use strict";
/* Following a run: events of the server into the model, and points of curves on request. */

const POINTS = 2000;

class LiveFeed {
  #model;
  #session;
  #view;
  #source = null;
  #failed = 0;
  /** Behind which record of the run the stream goes on. */
  #place;

  constructor(model, view, { session, after }) {
    this.#model = model;
    this.#view = view;
    this.#session = session;
    this.#place = after;
    view.detail = (names, range) => this.#detail(names, range);
  }

  start() {
    const source = (this.#source = new EventSource(`events?after=${this.#place}`));
    const on = (kind, take) =>
      source.addEventListener(kind, (event) => {
        this.#place = Number(event.lastEventId) || this.#place;
        take(JSON.parse(event.data));
      });
    source.addEventListener("open", () => {
      this.#failed = 0;
      this.#view.connect("live");
      this.#catchUp();
      this.#view.media.refresh();
    });
    source.addEventListener("error", () => this.#lost());
    on("info", (info) => {
      // Another run behind the same address: what is on the page belongs to the one before.
      if (info.session !== this.#session) window.location.reload();
      else this.#model.open(info);
    });
    on("epoch", (record) => this.#model.record(record));
    on("steps", ({ series, clock }) => this.#model.addSteps(series, clock));
    on("progress", (progress) => this.#model.setProgress(progress));
    on("media", () => this.#view.media.refresh());
    on("ledger", (ledger) => this.#model.setLedger(ledger));
    on("acts", (state) => this.#view.acts?.show(state));
    on("drawing", ({ version }) => this.#model.setDrawing(version));
    on("complete", (summary) => {
      source.close();
      this.#view.connect(null);
      this.#view.acts?.close();
      this.#model.finish(summary);
    });
  }

  #lost() {
    // The first failure is a broken line; if the next try fails too, nobody answers any more.
    this.#failed += 1;
    this.#view.connect(this.#failed > 1 ? "gone" : "lost");
    // The browser comes back by itself after a broken line, but not after an answer it refused.
    if (this.#source.readyState !== EventSource.CLOSED) return;
    this.#source.close();
    window.setTimeout(() => this.start(), 2000);
  }

  /** Points that went by between the making of the page, or a broken line, and this stream. */
  async #catchUp() {
    try {
      const { names, clock } = await ask("api/series");
      if (names.length) this.#model.replaceSteps(await this.#read(names, null), clock);
    } catch {
      // The line is broken again; the next connection asks anew.
    }
  }

  async #detail(names, range) {
    try {
      return await this.#read(names, range);
    } catch {
      return []; // the coarse points stay
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

async function ask(address) {
  const answer = await fetch(address);
  if (!answer.ok) throw new Error(`${address}: ${answer.status}`);
  return answer.json();
}
