"use strict";
/* The axis of a run: epochs or steps, or the time at which they ended. */

const AXIS_KINDS = ["number", "relative", "wall"];

/** One x axis. `unit` is "epoch" or "step", `kind` one of AXIS_KINDS. */
class RunAxis extends Axis {
  #model;

  constructor(model, unit, kind) {
    super({ number: unit, relative: "time", wall: "wall" }[kind], model.zone);
    this.#model = model;
    this.unit = unit;
  }

  /** The curve with its x on this axis; its values are shared. */
  of(series) {
    if (this.numbers) return series;
    const times = (xs) => this.#times(xs);
    const made = Object.create(series);
    made.unit = "time";
    made.xs = times(series.xs);
    made.best = series.best && { ...series.best, x: times([series.best.x])[0] };
    made.ranks = series.ranks.map((one) => this.of(one));
    const { detail } = series;
    made.detail = detail && { range: times(detail.range), xs: times(detail.xs), ys: detail.ys };
    return made;
  }

  get #start() {
    return this.kind === "wall" ? this.#model.startSeconds : 0;
  }

  /** Steps at the ends of a range of x. */
  steps(range) {
    if (this.numbers) return range;
    const { steps, seconds } = this.#model.clock;
    return range.map((x) => between(seconds, steps, x - this.#start));
  }

  #times(xs) {
    const { steps, seconds } = this.unit === "step" ? this.#model.clock : this.#model.epochClock;
    return xs.map((x) => this.#start + between(steps, seconds, x));
  }
}

/** The y at x on a line through points with rising xs; it goes on to the left, down to 0, and ends at the right. */
function between(xs, ys, x) {
  const index = nearestIndex(xs, x);
  if (index < 0) return 0;
  const [a, b] = xs[index] <= x ? [index, index + 1] : [index - 1, index];
  if (a < 0) return xs.length > 1 ? Math.max(0, ys[0] - ((ys[1] - ys[0]) * (xs[0] - x)) / (xs[1] - xs[0])) : ys[0];
  if (b >= xs.length || xs[b] === xs[a]) return ys[a];
  return ys[a] + ((ys[b] - ys[a]) * (x - xs[a])) / (xs[b] - xs[a]);
}
