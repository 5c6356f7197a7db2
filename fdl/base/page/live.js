"use strict";
/* Following a run: events of the server into its record, and points of curves on request. */

const POINTS = 2000;

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
      ledger: (ledger) => record.setLedger(ledger),
      acts: (state) => page.acts?.show(state),
      drawing: ({ version }) => record.setDrawing(version),
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
