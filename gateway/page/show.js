// What every view needs to show things. Text reaches the document as text alone: nothing here takes markup.

const SVG = "http://www.w3.org/2000/svg";

/** Make an element: `h("td", {class: "x", onclick: f}, "text", child)`. Null children are left out. */
export function h(name, attributes = {}, ...children) {
  return filled(document.createElement(name), attributes, children);
}

/** Make an element of SVG. */
export function s(name, attributes = {}, ...children) {
  return filled(document.createElementNS(SVG, name), attributes, children);
}

function filled(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...children.filter((child) => child !== null && child !== undefined && child !== ""));
  return element;
}

export const byId = (id) => document.getElementById(id);

/** Replace what an element holds. */
export function put(id, ...children) {
  byId(id).replaceChildren(...children.filter((child) => child !== null && child !== undefined));
}

export const tile = (value, label) => h("div", { class: "tile" }, h("b", {}, value), h("span", {}, label));

export function milliseconds(value) {
  if (value === null || value === undefined) return "–";
  if (value < 1) return `${value.toFixed(2)} ms`;
  if (value < 1000) return `${value < 10 ? value.toFixed(1) : Math.round(value)} ms`;
  return `${(value / 1000).toFixed(value < 10000 ? 2 : 1)} s`;
}

export function dollars(value) {
  if (value === null || value === undefined) return "–";
  if (value === 0) return "$0";
  if (value >= 0.01) return `$${value.toLocaleString("en-US", { minimumFractionDigits: 2, maximumFractionDigits: 2 })}`;
  return `$${Number(value.toPrecision(2)).toFixed(10).replace(/0+$/, "")}`;
}

export const count = (value) => (value ?? 0).toLocaleString("en-US");
export const clock = (seconds) => new Date(seconds * 1000).toLocaleTimeString([], { hour12: false });
export const percent = (part, whole) => (whole ? `${((100 * part) / whole).toFixed(part === whole ? 0 : 1)} %` : "–");

export function median(values) {
  const known = values.filter((value) => value !== null && value !== undefined).sort((a, b) => a - b);
  return known.length ? known[Math.floor((known.length - 1) / 2)] : null;
}

const NAMES = {
  exact: "exact cache", semantic: "semantic cache", backend: "backend", checks: "blocked by a check", limits: "limit reached",
  none: "not answered", running: "running", miss: "miss", bypass: "not looked up", refused: "refused or failed",
};
export const nameOf = (layer) => NAMES[layer] ?? layer;
export const badge = (layer, text) => h("span", { class: `badge ${layer}` }, text ?? nameOf(layer));

/** Write a bar as it was set, in thousandths where it has them: 0.95, 0.802. */
export const cosine = (value) => value.toFixed(3).replace(/0$/, "");

/** Show a similarity against its bar, from 0.5 to 1, in figures and as a small picture. */
export function gauge(cache) {
  const { similarity, threshold } = cache;
  if (similarity === null || similarity === undefined) return null;
  const at = (value) => 4 + 80 * Math.min(Math.max((value - 0.5) / 0.5, 0), 1);
  const isServed = cache.status === "semantic";
  const limit = threshold === null || threshold === undefined ? null
    : s("line", { class: "limit", x1: at(threshold), x2: at(threshold), y1: 1, y2: 15 });
  const picture = s("svg", { viewBox: "0 0 88 16", "aria-hidden": "true" },
    s("line", { class: "rail", x1: 4, x2: 84, y1: 8, y2: 8 }), limit,
    s("circle", { class: isServed ? "served" : "kept", cx: at(similarity), cy: 8, r: 4 }));
  const against = threshold === null || threshold === undefined ? "" : ` / ${cosine(threshold)}`;
  return h("span", { class: "gauge" }, picture, h("span", {}, similarity.toFixed(3), h("small", {}, against)));
}

/** Fill a bar of shares and its legend from `[[layer, number], ...]`. */
export function split(barId, legendId, shares) {
  const whole = shares.reduce((sum, [, number]) => sum + number, 0);
  const shown = shares.filter(([, number]) => number > 0);
  put(barId, ...shown.map(([layer, number]) => {
    const piece = h("i", { class: layer });
    piece.style.flexGrow = number;
    return piece;
  }));
  byId(barId).setAttribute("aria-label", shown.map(([layer, number]) => `${nameOf(layer)}: ${number}`).join(", ") || "nothing yet");
  put(legendId, ...shown.map(([layer, number]) =>
    h("li", { class: layer }, h("i", {}), `${nameOf(layer)} ${count(number)} (${percent(number, whole)})`)));
}

/** Say what went wrong, where everyone can read it; nothing takes it away. */
export function problem(text) {
  byId("problem").textContent = text ?? "";
  byId("problem").hidden = !text;
}
