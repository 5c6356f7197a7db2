"use strict";
/* Buttons, choices and lists, the colours of many things, and files to save. */

/** A group of buttons of which one is pressed. */
function choice(label, options, chosen, act) {
  const group = element("div", { className: "choice", role: "group", "aria-label": label });
  for (const [value, text] of options) {
    group.append(button(text, () => act(value), { "aria-pressed": String(value === chosen), "data-value": value }));
  }
  return group;
}

function press(group, chosen) {
  for (const one of group.children) one.setAttribute("aria-pressed", String(one.dataset.value === chosen));
}

/** A list to choose one value from; its options may come later. */
function selection(label, act) {
  const list = element("select", { "aria-label": label });
  list.addEventListener("change", () => act(list.value));
  return list;
}

function fill(list, options, chosen) {
  const wanted = JSON.stringify(options);
  if (list.dataset.options !== wanted) {
    list.dataset.options = wanted;
    list.replaceChildren(...options.map(([value, text]) => element("option", { value, textContent: text })));
  }
  list.value = chosen;
}

const FEW_COLORS = 8;

/** The colour of one of many things: a fixed palette for a few, hues by the golden angle for more. */
function colorOf(index, many) {
  if (!many) return ink.get(`series-${index % FEW_COLORS}`);
  const hue = (index * 137.508) % 360;
  const light = (ink.dark ? 0.76 : 0.56) + (index % 3) * 0.05;
  return ink.get(`oklch(${light.toFixed(2)} 0.15 ${hue.toFixed(1)})`);
}

/** Text that fits into a width, with an ellipsis if it is cut. */
function fitted(context, text, width) {
  if (context.measureText(text).width <= width) return text;
  let end = text.length;
  while (end > 1 && context.measureText(`${text.slice(0, end)}…`).width > width) end -= Math.ceil(end / 12);
  return `${text.slice(0, Math.max(1, end))}…`;
}

/** Offer a text as a file to save. */
function save(name, kind, text) {
  const address = URL.createObjectURL(new Blob([text], { type: kind }));
  const link = element("a", { href: address, download: name });
  link.click();
  setTimeout(() => URL.revokeObjectURL(address), 10_000);
}
