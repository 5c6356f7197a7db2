"use strict";
/* How far the training is: the strip below the head while a run goes on, and what is said when it is lost. */

class ProgressStrip {
  #model;
  #timer = 0;

  constructor(host, model) {
    this.#model = model;
    this.host = host;
    this.what = element("strong");
    this.facts = element("dl", { className: "facts-line" });
    this.fill = element("span");
    this.bar = element("div", { className: "progress-bar" }, this.fill);
    this.bar.setAttribute("role", "progressbar");
    this.bar.setAttribute("aria-label", "Progress of the run");
    host.replaceChildren(element("div", { className: "progress-head" }, this.what, this.facts), this.bar);
  }

  render() {
    const { progress, status, following } = this.#model;
    this.host.hidden = !progress || status !== "running";
    window.clearTimeout(this.#timer);
    if (this.host.hidden) return;
    const share = shareOf(progress);
    this.what.textContent = progressText(progress);
    this.fill.style.width = `${(100 * (share ?? 0)).toFixed(2)}%`;
    this.bar.classList.toggle("unknown", share === null);
    if (share === null) this.bar.removeAttribute("aria-valuenow");
    else this.bar.setAttribute("aria-valuenow", Math.round(100 * share));
    const facts = progressFacts(this.#model);
    this.bar.setAttribute("aria-valuetext", [this.what.textContent, ...facts.map(([name, text]) => `${name} ${text}`)].join(", "));
    this.facts.replaceChildren(...facts.map(([name, text]) => element("div", {}, element("dt", { textContent: name }), element("dd", { textContent: text }))));
    // Between two messages time goes on.
    if (following) this.#timer = window.setTimeout(() => this.render(), 1000);
  }
}

/** The part of the whole run that is done; null if the length of an epoch is unknown. */
function shareOf({ epoch, total, step, steps }) {
  if (!steps) return null;
  return Math.min(1, (epoch - 1 + step / steps) / Math.max(1, total));
}

function progressText({ epoch, total, step, steps, phase }) {
  const place = `Epoch ${epoch} of ${total}`;
  if (phase === "evaluating") return `${place}, evaluating`;
  const paused = phase === "paused" ? ", paused" : "";
  return `${place}, step ${formatWhole(step)}${steps ? ` of ${formatWhole(steps)}` : ""}${paused}`;
}

function progressFacts(model) {
  const { rate, eta } = model.progress;
  const facts = [];
  if (rate) facts.push(["Speed", `${formatCount(rate)} samples/s`]);
  if (eta !== undefined && eta !== null) facts.push(["Time left", eta > 0 ? formatDuration(eta) : "almost done"]);
  facts.push(["Running for", formatDuration(Math.floor(model.duration))]);
  return facts;
}
