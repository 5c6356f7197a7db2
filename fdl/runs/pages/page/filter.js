"use strict";
/* Conditions on runs: the language of `fdl runs list --where`, which fdl/runs/query.py describes. */

const TOKEN = /\s*(?:(?<call>(?:min|max)\s*\((?:`[^`]*`|[^()`])*\))|(?<operator><=|>=|==|!=|!~|[<>=~])|(?<mark>[(),])|(?<text>'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*")|(?<name>`[^`]*`)|(?<word>[^\s()<>=!~,'"`]+)|(?<end>$))/y;
const OTHER_WORDS = { "&&": "and", "&": "and", "||": "or", "|": "or", "!": "not" };
const KEYWORDS = new Set(["and", "or", "not", "in"]);
const STATES = ["running", "complete", "interrupted", "diverged", "failed", "dead", "damaged"];
const OWN_METRICS = new Set(["lr", "grad_norm"]);
const DEEPEST = 50;
const SPAN_SECONDS = { s: 1, m: 60, h: 3600, d: 86400, w: 604800 };
const DATE = /^(\d{4})-(\d\d)-(\d\d)(?:[T ](\d\d)[:-](\d\d)(?:[:-](\d\d))?)?$/;

/** A filter: a function of a run. Text that is not a condition is searched in all texts of a run. */
function parseFilter(text, runs) {
  if (!text.trim()) return () => true;
  const parser = new FilterParser(text, new Names(runs));
  if (!/[<>=~]|\bin\s*\(/.test(text)) {
    try {
      const condition = parser.whole();
      if (parser.bare.every((quantity) => runs.some((run) => typeof quantity.value(run) === "boolean"))) return condition;
    } catch {
      // Words, and the beginning of a condition, are searched.
    }
    return wordsFilter(text);
  }
  return parser.whole();
}

function wordsFilter(text) {
  const words = text.toLowerCase().split(/\s+/).filter(Boolean);
  return (run) => words.every((word) => run.text.includes(word));
}

/** A name without the backquotes around it. */
function unquoted(text) {
  return /^`.*`$/.test(text) ? text.slice(1, -1) : text;
}

/** The facts, metrics and settings of runs by name. */
class Names {
  constructor(runs) {
    this.metrics = new Set(runs.flatMap((run) => Object.keys(run.metrics)));
    this.settings = new Set(runs.flatMap((run) => Object.keys(run.config)));
  }

  resolve(quoted) {
    const text = unquoted(quoted);
    if (Object.hasOwn(FILTER_FACTS, text)) return { spelling: text, ...FILTER_FACTS[text] };
    const called = /^(min|max)\s*\((.+)\)$/.exec(text);
    if (called) return this.#metric(text, unquoted(called[2].trim()), () => called[1]);
    if (text.startsWith("last:")) return this.#metric(text, text.slice(5), () => "latest");
    if (text.startsWith("best:")) {
      const [, name, direction] = /^(.*?)(?::(min|max))?$/.exec(text.slice(5));
      return this.#metric(text, name, (metric) => direction ?? (metric.higher ? "max" : "min"));
    }
    if (text.startsWith("config.")) {
      const name = [text.slice(7), text].find((one) => this.settings.has(one));
      if (name === undefined) throw unknownName(text.slice(7), "setting");
      return this.#setting(text, name);
    }
    const [isMetric, isSetting] = [this.metrics.has(text), this.settings.has(text)];
    if (isMetric && isSetting && !OWN_METRICS.has(text)) {
      throw new Error(`\`${text}\` is both a metric and a setting; write \`last:${text}\` or \`config.${text}\``);
    }
    if (isSetting) return this.#setting(text, text);
    if (isMetric) return this.#metric(text, text, () => "latest");
    throw unknownName(text, "metric, setting or fact");
  }

  #metric(spelling, name, which) {
    if (!this.metrics.has(name)) throw unknownName(name, "metric");
    const value = (run) => {
      const metric = run.metrics[name];
      return metric ? metric[which(metric)] : null;
    };
    return { spelling, value, isNumber: true };
  }

  #setting(spelling, name) {
    return { spelling, value: (run) => run.config[name]?.[0] ?? null };
  }
}

const dateOf = (text) => (text ? new Date(text) : null);
const FILTER_FACTS = {
  name: { value: (run) => run.name },
  path: { value: (run) => run.path },
  state: { value: (run) => run.state, isState: true },
  tags: { value: (run) => run.tags },
  note: { value: (run) => run.note || null },
  started: { value: (run) => dateOf(run.started), isDate: true },
  finished: { value: (run) => dateOf(run.finished), isDate: true },
  age: { value: (run) => (Date.now() - Date.parse(run.started)) / 1000, isNumber: true },
  seconds: { value: (run) => elapsed(run), isNumber: true },
  epochs: { value: (run) => run.epochs, isNumber: true },
  error: { value: (run) => run.error || null },
  resumed_from: { value: (run) => run.resumed_from || null },
  imported_from: { value: (run) => run.imported_from || null },
};

function unknownName(name, what) {
  return new Error(`no run has the ${what} \`${name}\``);
}

/** Reads one text, by recursive descent. */
class FilterParser {
  #end = 0;
  #depth = 0;
  #next = null;
  /** What conditions without an operator are about. */
  bare = [];

  constructor(text, names) {
    this.text = text;
    this.names = names;
  }

  whole() {
    this.#next = this.#read();
    const condition = this.#any();
    if (this.#next.kind !== "end") this.#refuse(`\`${this.#next.text}\` is not expected here; \`and\` and \`or\` join conditions`);
    return (run) => condition(run) === true;
  }

  #any() {
    const parts = [this.#all()];
    while (this.#accept("or")) parts.push(this.#all());
    return (run) => decided(parts.map((part) => part(run)), true);
  }

  #all() {
    const parts = [this.#one()];
    while (this.#accept("and")) parts.push(this.#one());
    return (run) => decided(parts.map((part) => part(run)), false);
  }

  #one() {
    if (++this.#depth > DEEPEST) this.#refuse(`conditions are nested in more than ${DEEPEST} levels`);
    let condition;
    if (this.#accept("not")) condition = opposite(this.#one());
    else if (this.#accept("(", "mark")) {
      condition = this.#any();
      if (!this.#accept(")", "mark")) this.#refuse("`)` is missing");
    } else condition = this.#comparison();
    this.#depth--;
    return condition;
  }

  #comparison() {
    const name = this.#take();
    if (!["word", "name", "call"].includes(name.kind) || KEYWORDS.has(name.text)) {
      this.#refuse(name.text ? `\`${name.text}\` is, where a name is expected` : "the condition ends too early", name.place);
    }
    const quantity = this.#resolve(name);
    if (this.#accept("not")) {
      if (!this.#accept("in")) this.#refuse("`in` is missing after `not`");
      return opposite(this.#membership(quantity));
    }
    if (this.#accept("in")) return this.#membership(quantity);
    if (this.#next.kind !== "operator") {
      this.bare.push(quantity);
      return (run) => foundIn(quantity.value(run), (text) => text === "true");
    }
    const operator = this.#take().text;
    const value = this.#take();
    if (operator.endsWith("~")) return this.#expression(quantity, value, operator === "!~");
    const other = this.#value(quantity, operator, value);
    return (run) => compared(quantity.value(run), operator, other(run));
  }

  #membership(quantity) {
    if (!this.#accept("(", "mark")) this.#refuse("`(` is missing after `in`");
    const values = [this.#value(quantity, "=", this.#take())];
    while (this.#accept(",", "mark")) values.push(this.#value(quantity, "=", this.#take()));
    if (!this.#accept(")", "mark")) this.#refuse("`)` is missing");
    return (run) => decided(values.map((one) => compared(quantity.value(run), "=", one(run))), true);
  }

  #expression(quantity, token, isOpposite) {
    if (!["text", "word"].includes(token.kind)) this.#refuse("a regular expression in quotes is expected", token.place);
    const quoted = token.kind === "text";
    let pattern;
    try {
      pattern = new RegExp(quoted ? token.text.slice(1, -1) : token.text, "u");
    } catch {
      this.#refuse("the regular expression is wrong", token.place);
    }
    const condition = (run) => foundIn(quantity.value(run), (text) => pattern.test(text));
    return isOpposite ? opposite(condition) : condition;
  }

  /** The right side of a comparison, which must fit the left one: a function of a run. */
  #value(quantity, operator, token) {
    const { kind, text, place } = token;
    if (kind === "call" || (kind === "word" && /^(?:(?:last|best):.|config\..)/.test(text))) return this.#resolve(token).value;
    if (!["text", "word"].includes(kind) || KEYWORDS.has(text)) {
      this.#refuse(`\`${operator}\` needs a value${text ? `, not \`${text}\`` : ""}`, place);
    }
    const value = kind === "text" ? constantOf(text.slice(1, -1).replace(/\\(['"\\])/g, "$1"), true) : constantOf(text);
    if (quantity.isDate && !value.start) this.#refuse(`\`${quantity.spelling}\` takes a date, such as 2026-01-31`, place);
    if (quantity.isNumber && value.number === null) this.#refuse(`\`${quantity.spelling}\` is compared with a number`, place);
    if (!["=", "==", "!="].includes(operator) && value.number === null && !value.start) {
      this.#refuse(`\`${operator}\` compares numbers and dates; \`=\`, \`in\` and \`~\` compare text`, place);
    }
    if (quantity.isState && !STATES.includes(value.text)) this.#refuse(`\`${value.text}\` is not a state of a run`, place);
    return () => value;
  }

  #resolve({ text, place }) {
    try {
      return this.names.resolve(text);
    } catch (problem) {
      return this.#refuse(problem.message, place);
    }
  }

  #accept(text, kind = "word") {
    if (this.#next.kind !== kind || this.#next.text !== text) return false;
    this.#take();
    return true;
  }

  #take() {
    const token = this.#next;
    if (token.kind !== "end") this.#next = this.#read();
    return token;
  }

  #read() {
    TOKEN.lastIndex = this.#end;
    const found = TOKEN.exec(this.text);
    if (!found) {
      const place = this.text.length - this.text.slice(this.#end).trimStart().length;
      const char = this.text[place];
      this.#refuse(/['"`]/.test(char) ? `the quote ${char} is not closed` : `\`${char}\` is not expected here${remedy(char)}`, place);
    }
    this.#end = TOKEN.lastIndex;
    const [kind, text] = Object.entries(found.groups).find(([, one]) => one !== undefined);
    const place = this.#end - text.length;
    if (text in OTHER_WORDS) this.#refuse(`\`${text}\` is not a word here${remedy(text)}`, place);
    return { kind, text, place };
  }

  #refuse(problem, place = this.#next.place) {
    throw Object.assign(new Error(problem), { place });
  }
}

function remedy(text) {
  return text in OTHER_WORDS ? `; write \`${OTHER_WORDS[text]}\`` : "";
}

/** Whether any result decides; unknown (null) if none does and one is unknown. */
function decided(results, decisive) {
  if (results.includes(decisive)) return decisive;
  return results.includes(null) ? null : !decisive;
}

/** A missing value is unknown, and so is its opposite. */
function opposite(condition) {
  return (run) => {
    const result = condition(run);
    return result === null ? null : !result;
  };
}

/** A constant: its text, the number or the seconds that it spells, and the span of a date. */
function constantOf(text, quoted = false) {
  const date = DATE.exec(text);
  if (date) {
    const [year, month, day, hour = 0, minute = 0, second = 0] = date.slice(1).map((part) => (part === undefined ? undefined : Number(part)));
    const start = new Date(year, month - 1, day, hour, minute, second);
    const isReal = start.getMonth() === month - 1 && start.getDate() === day && hour < 24 && minute < 60 && second < 60;
    const end = new Date(year, month - 1, date[4] ? day : day + 1, hour, date[4] && !date[6] ? minute + 1 : minute, date[6] ? second + 1 : second);
    return isReal ? { text, number: null, start, end } : { text, number: null };
  }
  if (quoted) return { text, number: null };
  const span = /^(\d+(?:\.\d+)?)([smhdw])$/.exec(text);
  return { text, number: span ? Number(span[1]) * SPAN_SECONDS[span[2]] : numberOf(text) };
}

/** A number, also one that is kept as text; a truth value is not a number. */
function numberOf(value) {
  if (typeof value === "number") return value;
  if (typeof value !== "string") return null;
  const text = value.trim().replace(/(?<=\d)_(?=\d)/g, "");
  if (/^[+-]?(?:\d+\.?\d*|\.\d+)(?:e[+-]?\d+)?$/i.test(text)) return Number(text);
  const infinite = /^([+-]?)inf(?:inity)?$/i.exec(text);
  return infinite ? (infinite[1] === "-" ? -Infinity : Infinity) : null;
}

/** Whether `value operator other` holds; null if a side is missing or they do not compare. */
function compared(value, operator, other) {
  if (value === null || value === undefined || other === null || other === undefined) return null;
  if (operator === "=" || operator === "==") return isEqual(value, other);
  if (operator === "!=") {
    const equal = isEqual(value, other);
    return equal === null ? null : !equal;
  }
  const isConstant = other.text !== undefined;
  if (value instanceof Date) {
    if (other instanceof Date) return isOrdered(Number(value), operator, Number(other));
    if (!isConstant || !other.start) return null;
    // A day is one span: `<= 2026-01-31` includes all of that day.
    const bound = operator === "<" || operator === ">=" ? other.start : other.end;
    return operator.startsWith("<") ? value < bound : value >= bound;
  }
  const [left, right] = [numberOf(value), isConstant ? other.number : numberOf(other)];
  return left === null || right === null ? null : isOrdered(left, operator, right);
}

function isEqual(value, other) {
  if (other.text === undefined) return value instanceof Date ? Number(value) === Number(other) : value === other;
  if (value instanceof Date) return other.start ? other.start <= value && value < other.end : null;
  if (Array.isArray(value)) return value.includes(other.text);
  const number = numberOf(value);
  if (number !== null && other.number !== null) return number === other.number;
  return String(value) === other.text;
}

function isOrdered(left, operator, right) {
  if (operator === "<") return left < right;
  if (operator === "<=") return left <= right;
  return operator === ">" ? left > right : left >= right;
}

/** Whether a text, or one of several, passes a test. */
function foundIn(value, test) {
  if (value === null || value === undefined) return null;
  return (Array.isArray(value) ? value : [value]).map((one) => (one instanceof Date ? one.toISOString() : String(one))).some(test);
}
