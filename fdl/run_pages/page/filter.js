"use strict";
/* Conditions on runs, such as `val_loss < 0.1 and lr >= 0.01`, with the names of `fdl runs list`. */

const TOKEN = /\s*(?:(<=|>=|==|!=|!~|[<>=~])|([(),])|'([^']*)'|"([^"]*)"|`([^`]*)`|([^\s()<>=!~,'"`]+))/y;
const OPERATORS = new Set(["<", "<=", ">", ">=", "=", "==", "!=", "~", "!~"]);

/** A filter: a function of a run. Plain words are searched in names, tags, notes and settings. */
function parseFilter(text, resolve) {
  if (!text.trim()) return () => true;
  const tokens = tokensOf(text);
  const isCondition = tokens.some(({ operator, word }) => operator || word === "in");
  return isCondition ? new FilterParser(tokens, resolve).whole() : wordsFilter(text);
}

function wordsFilter(text) {
  const words = text.toLowerCase().split(/\s+/).filter(Boolean);
  return (run) => words.every((word) => run.text.includes(word));
}

function tokensOf(text) {
  const tokens = [];
  TOKEN.lastIndex = 0;
  while (TOKEN.lastIndex < text.trimEnd().length) {
    const from = TOKEN.lastIndex;
    const found = TOKEN.exec(text);
    if (!found) throw new Error(`${text.slice(from).trim().charAt(0)} is not expected here`);
    const [, operator, mark, single, double, name, word] = found;
    const quoted = single ?? double;
    tokens.push({ operator, mark, quoted, name, word });
  }
  return tokens;
}

class FilterParser {
  #at = 0;

  constructor(tokens, resolve) {
    this.tokens = tokens;
    this.resolve = resolve;
  }

  whole() {
    const condition = this.#any();
    if (this.#at < this.tokens.length) throw new Error(`join conditions by and or or`);
    return (run) => condition(run) === true;
  }

  #any() {
    const parts = [this.#all()];
    while (this.#accept("or")) parts.push(this.#all());
    return (run) => parts.some((part) => part(run) === true);
  }

  #all() {
    const parts = [this.#one()];
    while (this.#accept("and")) parts.push(this.#one());
    return (run) => parts.every((part) => part(run) === true);
  }

  #one() {
    if (this.#accept("not")) {
      const condition = this.#one();
      // A missing value is unknown, and so is its opposite.
      return (run) => {
        const result = condition(run);
        return result === null ? null : !result;
      };
    }
    if (this.#mark("(")) {
      const condition = this.#any();
      if (!this.#mark(")")) throw new Error(") is missing");
      return condition;
    }
    return this.#comparison();
  }

  #comparison() {
    const token = this.#take("a name is missing");
    const name = token.name ?? token.word ?? token.quoted;
    if (name === undefined) throw new Error("a condition begins with a name, such as lr");
    const value = this.resolve(name);
    if (!value) throw new Error(`no run has ${name}`);
    const isIn = this.#accept("in") ? 1 : this.#peek("not") && this.tokens[this.#at + 1]?.word === "in" ? 2 : 0;
    if (isIn === 2) this.#at += 2;
    if (isIn) {
      const wanted = this.#list();
      return (run) => {
        const found = value(run);
        if (found === undefined || found === null) return null;
        return wanted.some((one) => compared(found, "=", one)) === (isIn === 1);
      };
    }
    const operator = this.tokens[this.#at]?.operator;
    if (!OPERATORS.has(operator)) return (run) => Boolean(value(run));
    this.#at++;
    const wanted = this.#value(this.#take(`a value is missing after ${operator}`));
    if (operator.endsWith("~")) return matcher(value, operator, wanted);
    return (run) => {
      const found = value(run);
      return found === undefined || found === null ? null : compared(found, operator, wanted);
    };
  }

  #list() {
    if (!this.#mark("(")) throw new Error("( is missing after in");
    const wanted = [this.#value(this.#take("a value is missing"))];
    while (this.#mark(",")) wanted.push(this.#value(this.#take("a value is missing")));
    if (!this.#mark(")")) throw new Error(") is missing");
    return wanted;
  }

  #value({ quoted, name, word }) {
    const text = quoted ?? name ?? word;
    if (text === undefined) throw new Error("a value is missing");
    return text;
  }

  #peek(word) {
    return this.tokens[this.#at]?.word === word;
  }

  #accept(word) {
    if (!this.#peek(word)) return false;
    this.#at++;
    return true;
  }

  #mark(mark) {
    if (this.tokens[this.#at]?.mark !== mark) return false;
    this.#at++;
    return true;
  }

  #take(otherwise) {
    const token = this.tokens[this.#at++];
    if (!token) throw new Error(otherwise);
    return token;
  }
}

function matcher(value, operator, wanted) {
  let pattern;
  try {
    pattern = new RegExp(wanted, "u");
  } catch {
    throw new Error("the regular expression is wrong");
  }
  return (run) => {
    const found = value(run);
    return found === undefined || found === null ? null : pattern.test(String(found)) === (operator === "~");
  };
}

/** Numbers are compared as numbers, everything else as text; a list holds what one of it equals. */
function compared(found, operator, wanted) {
  if (Array.isArray(found)) {
    const has = found.some((one) => String(one) === wanted);
    return operator === "!=" ? !has : has;
  }
  const number = Number(wanted);
  const both = typeof found === "number" && wanted.trim() !== "" && !Number.isNaN(number);
  const [a, b] = both ? [found, number] : [String(found), wanted];
  if (operator === "=" || operator === "==") return a === b;
  if (operator === "!=") return a !== b;
  if (!both && typeof found === "number") return null;
  return operator === "<" ? a < b : operator === "<=" ? a <= b : operator === ">" ? a > b : a >= b;
}
