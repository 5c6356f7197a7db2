"use strict";
/* Buttons that act on the training; only on a page that was served with them. */

const SURE_MS = 5000;

class ActButtons {
  #host;
  #token = window.location.pathname.split("/")[1];
  #state = {};
  #sure = 0;

  constructor(host) {
    this.#host = host;
    const button = (text, act) => {
      const made = element("button", { type: "button", textContent: text });
      made.addEventListener("click", () => act());
      return made;
    };
    this.pause = button("Pause", () => this.#ask({ act: this.#state.paused ? "continue" : "pause" }));
    this.save = button("Save a checkpoint", () => this.#ask({ act: "checkpoint" }));
    this.stop = button("Stop", () => this.#stopIfSure());
    this.rate = this.#field("Learning rate", "1e-4", (value) => ({ act: "lr", value }));
    this.key = element("select", { ariaLabel: "Setting" });
    this.key.addEventListener("change", () => this.#showSetting());
    this.setting = this.#field("Setting", "", (value) => ({ act: "set", key: this.key.value, value }));
    this.setting.input.before(this.key);
    this.answer = element("p", { className: "act-answer" });
    this.answer.setAttribute("role", "status");
    const row = element("div", { className: "act-row" }, this.pause, this.save, this.stop, this.rate.form, this.setting.form);
    host.replaceChildren(row, this.answer);
    host.hidden = false;
  }

  /** The state of the training; fields that are missing stay as they were. */
  show(state) {
    this.#state = { ...this.#state, ...state };
    const { paused, stopping, settings, answer } = this.#state;
    this.pause.textContent = paused ? "Continue" : "Pause";
    for (const one of this.#host.querySelectorAll("button, input, select")) one.disabled = Boolean(stopping);
    this.#offer(settings || {});
    if (answer) this.#say(answer.ok ? answer.text : answer.error, answer.ok);
  }

  close() {
    this.#host.hidden = true;
  }

  #field(label, example, wish) {
    const input = element("input", { type: "text", placeholder: example, autocomplete: "off", spellcheck: false, ariaLabel: label });
    const send = element("button", { type: "submit", textContent: "Set" });
    send.setAttribute("aria-label", `Set ${label.toLowerCase()}`);
    const title = element("span", { textContent: label });
    const form = element("form", { className: "act-field" }, title, input, send);
    form.addEventListener("submit", (event) => {
      event.preventDefault();
      if (input.value.trim()) this.#ask(wish(input.value.trim()));
    });
    return { form, input };
  }

  #offer(settings) {
    const names = Object.keys(settings);
    this.setting.form.hidden = names.length === 0;
    const known = [...this.key.options].map((option) => option.value);
    if (names.join() === known.join()) return this.#showSetting();
    this.key.replaceChildren(...names.map((name) => element("option", { value: name, textContent: name })));
    this.#showSetting();
  }

  #showSetting() {
    const value = (this.#state.settings || {})[this.key.value];
    this.setting.input.placeholder = value === undefined ? "" : String(value);
  }

  #stopIfSure() {
    window.clearTimeout(this.#sure);
    if (this.stop.dataset.sure) {
      this.#unsure();
      this.#ask({ act: "stop" });
      return;
    }
    this.stop.dataset.sure = "yes";
    this.stop.textContent = "Stop this training?";
    this.#sure = window.setTimeout(() => this.#unsure(), SURE_MS);
  }

  #unsure() {
    delete this.stop.dataset.sure;
    this.stop.textContent = "Stop";
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
