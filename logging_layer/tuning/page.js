"use strict";
const data = JSON.parse(document.getElementById("data").textContent);
const points = data.points;
const $ = (id) => document.getElementById(id);
const W = 400, H = 230, LEFT = 46, RIGHT = 12, TOP = 8, BOTTOM = 24;
let price = data.wrong_usd, bar = null;

// The price slider runs from 1 to 1,000 calls on a log scale.
const ratioOf = (step) => Math.pow(10, step / 100);
const usd = (value) => (value < 0 ? "−$" : "$") + Math.abs(value).toFixed(Math.abs(value) < 0.1 ? 4 : 2);
const percent = (share) => (100 * share).toFixed(share < 0.01 ? 2 : 1) + " %";
const valueOf = (point) => point.hits * data.call_usd - point.wrong * price;
const surely = (point) => point.hits * data.call_usd - point.wrong_high * price;

function recommended() {
  let best = null;
  for (const point of points) {
    if (point.hits > 0 && surely(point) > 0 && (best === null || surely(point) >= surely(best))) best = point;
  }
  return best;
}

function element(name, attributes, text) {
  const made = document.createElementNS("http://www.w3.org/2000/svg", name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  if (text !== undefined) made.textContent = text;
  return made;
}

// An empty chart with its axes; x and y turn values into places.
function chart(id, [x0, x1], [y0, y1], { xTicks, yTicks, xText = String, yText = String }) {
  const svg = $(id);
  svg.setAttribute("viewBox", `0 0 ${W} ${H}`);
  svg.replaceChildren();
  const x = (value) => LEFT + ((value - x0) / (x1 - x0 || 1)) * (W - LEFT - RIGHT);
  const y = (value) => H - BOTTOM - ((value - y0) / (y1 - y0 || 1)) * (H - TOP - BOTTOM);
  for (const tick of yTicks) {
    svg.append(element("line", { x1: LEFT, x2: W - RIGHT, y1: y(tick), y2: y(tick), class: "axis" }));
    svg.append(element("text", { x: LEFT - 6, y: y(tick) + 4, "text-anchor": "end" }, yText(tick)));
  }
  for (const tick of xTicks) {
    const anchor = tick === x1 ? "end" : "middle"; // the last one would stand over the card's edge
    svg.append(element("text", { x: x(tick), y: H - 6, "text-anchor": anchor }, xText(tick)));
  }
  const line = (dots, colour, extra = {}) => svg.append(element("polyline", {
    points: dots.map(([a, b]) => `${x(a).toFixed(1)},${y(b).toFixed(1)}`).join(" "),
    fill: "none", stroke: colour, "stroke-width": 2, ...extra,
  }));
  const upright = (at, colour, dash) => svg.append(element("line", {
    x1: x(at), x2: x(at), y1: TOP, y2: H - BOTTOM, stroke: colour, "stroke-width": 1.5, "stroke-dasharray": dash,
  }));
  const dot = (a, b, colour) => svg.append(element("circle", { cx: x(a), cy: y(b), r: 4.5, fill: colour }));
  return { svg, x, y, line, upright, dot };
}

const ticks = (low, high, count) => Array.from({ length: count + 1 }, (_, n) => low + ((high - low) * n) / count);
const bars = [points[0].threshold, points[points.length - 1].threshold];
const cosine = (value) => value.toFixed(2);

function drawValue(best) {
  const values = points.flatMap((point) => [valueOf(point), surely(point)]);
  const top = Math.max(0.01, ...values), low = Math.max(Math.min(0, ...values), -2 * top);
  const clip = (value) => Math.max(value, low);
  const c = chart("value", bars, [low, top], { xTicks: ticks(...bars, 4), yTicks: ticks(low, top, 4), xText: cosine,
    yText: (tick) => tick.toFixed(2) });
  c.line(points.map((point) => [point.threshold, clip(surely(point))]), "var(--dim)", { "stroke-dasharray": "4 3" });
  c.line(points.map((point) => [point.threshold, clip(valueOf(point))]), "var(--good)");
  if (best) c.upright(best.threshold, "var(--good)", "2 3");
  c.upright(bar.threshold, "var(--mark)", "");
}

function drawRates() {
  const lift = (share) => Math.log10(Math.max(share, 1e-4));
  const c = chart("rates", bars, [-4, 0], { xTicks: ticks(...bars, 4), yTicks: [-4, -3, -2, -1, 0], xText: cosine,
    yText: (tick) => percent(Math.pow(10, tick)) });
  const band = [...points.map((p) => [p.threshold, p.wrong_high / 1000]), ...[...points].reverse().map((p) => [p.threshold, p.wrong_low / 1000])];
  c.svg.append(element("polygon", { points: band.map(([a, b]) => `${c.x(a)},${c.y(lift(b))}`).join(" "), fill: "var(--bad)", opacity: 0.15 }));
  c.line(points.map((p) => [p.threshold, lift(p.hits / 1000)]), "var(--good)");
  c.line(points.map((p) => [p.threshold, lift(p.wrong / 1000)]), "var(--bad)");
  c.upright(bar.threshold, "var(--mark)", "");
}

function drawHistogram() {
  const bins = data.histogram, most = Math.max(1, ...bins.map((bin) => bin.right + bin.wrong + bin.unknown));
  const range = [bins[0].low, 1];
  const c = chart("histogram", range, [0, most], { xTicks: ticks(...range, 4), yTicks: ticks(0, most, 4), xText: cosine,
    yText: (tick) => String(Math.round(tick)) });
  for (const bin of bins) {
    let floor = 0;
    for (const [kind, colour] of [["right", "var(--good)"], ["wrong", "var(--bad)"], ["unknown", "var(--line)"]]) {
      const height = c.y(floor) - c.y(floor + bin[kind]);
      if (bin[kind]) c.svg.append(element("rect", { x: c.x(bin.low), width: Math.max(1, c.x(bin.high) - c.x(bin.low) - 1),
        y: c.y(floor + bin[kind]), height, fill: colour }));
      floor += bin[kind];
    }
  }
  c.upright(bar.threshold, "var(--mark)", "");
}

function drawPrices() {
  const curve = data.price_curve.filter((point) => point.threshold !== null).map((p) => [Math.log10(p.ratio), p.threshold]);
  const c = chart("prices", [0, 3], bars, { xTicks: [0, 1, 2, 3], yTicks: ticks(...bars, 4),
    xText: (tick) => Math.pow(10, tick) + (tick ? " calls" : " call"), yText: cosine });
  c.line(curve, "var(--mark)");
  c.upright(Math.min(3, Math.max(0, Math.log10(price / data.call_usd))), "var(--bad)", "2 3");
}

function drawPareto() {
  const all = data.policies.flatMap((policy) => policy.points);
  const most = Math.max(0.001, ...all.map((p) => p.wrong / 1000)), hits = Math.max(0.01, ...all.map((p) => p.hits / 1000));
  const c = chart("pareto", [0, most], [0, hits], { xTicks: ticks(0, most, 4), yTicks: ticks(0, hits, 4), xText: percent, yText: percent });
  data.policies.forEach((policy, n) => {
    const colour = ["var(--mark)", "var(--good)", "var(--bad)", "var(--dim)"][n % 4];
    c.line(policy.points.map((p) => [p.wrong / 1000, p.hits / 1000]), colour);
    if (data.policies.length > 1) c.svg.append(element("text", { x: W - RIGHT, y: H - BOTTOM - 14 * (n + 1), "text-anchor": "end", style: `fill:${colour}` }, policy.name));
  });
  c.dot(bar.wrong / 1000, bar.hits / 1000, "var(--mark)");
}

function drawReliability() {
  const rows = data.reliability;
  $("reliability-figure").hidden = rows.length === 0;
  if (!rows.length) return;
  const c = chart("reliability", [0, 1], [0, 1], { xTicks: [0, 0.5, 1], yTicks: [0, 0.5, 1], xText: percent, yText: percent });
  c.line([[0, 0], [1, 1]], "var(--line)");
  for (const row of rows) c.line([[row.claimed, row.low], [row.claimed, row.high]], "var(--dim)");
  c.line(rows.map((row) => [row.claimed, row.value]), "var(--mark)");
  for (const row of rows) c.dot(row.claimed, row.value, "var(--mark)");
}

function tile(value, text, kind = "") {
  const made = document.createElement("div"), strong = document.createElement("b"), note = document.createElement("span");
  made.className = "tile " + kind;
  strong.textContent = value;
  note.textContent = text;
  made.append(strong, note);
  return made;
}

function showTiles(best) {
  const value = valueOf(bar);
  $("tiles").replaceChildren(
    tile(best ? best.threshold.toFixed(3) : "none", "recommended bar"),
    tile(usd(value), "value per 1,000 requests", value < 0 ? "bad" : "good"),
    tile(percent(bar.hits / 1000), "of requests served"),
    tile(percent(bar.wrong / 1000), `wrong, of requests (at most ${percent(bar.wrong_high / 1000)})`, "bad"),
    tile(percent(bar.wrong_per_hit), "wrong, of hits"),
    tile(percent(bar.wrong_per_trap), "served, of traps"),
    tile(percent(Math.max(0, 1 - data.call_usd / price)), "P(correct) that pays"));
}

function showWrong() {
  const shown = data.wrong.filter((row) => row.similarity >= bar.threshold);
  const isCut = data.wrong_left_out > 0 && shown.length === data.wrong.length;
  $("count").textContent = isCut ? `more than ${shown.length}` : String(shown.length);
  $("wrong").replaceChildren(...shown.slice(0, 300).map((row) => {
    const line = document.createElement("tr");
    for (const text of [row.similarity.toFixed(4), row.question ?? "not logged", row.neighbour ?? "not logged"]) {
      line.append(Object.assign(document.createElement("td"), { textContent: text }));
    }
    const cell = document.createElement("td");
    if (row.trace) cell.append(Object.assign(document.createElement("a"), { href: row.trace, textContent: row.call, target: "_top" }));
    else cell.textContent = row.call ?? "";
    line.append(cell);
    return line;
  }));
}

function show() {
  const best = recommended();
  $("price-label").textContent = `${usd(price)}, ${(price / data.call_usd).toFixed(1)} calls`;
  $("bar-label").textContent = bar.threshold.toFixed(3);
  $("bar").value = points.indexOf(bar);
  // The sliders' own numbers are steps; these are what they stand for.
  $("price").setAttribute("aria-valuetext", $("price-label").textContent);
  $("bar").setAttribute("aria-valuetext", $("bar-label").textContent);
  showTiles(best);
  drawValue(best); drawRates(); drawHistogram(); drawPrices(); drawPareto(); drawReliability();
  showWrong();
}

$("about").textContent = data.about;
$("bar").max = points.length - 1;
$("price").value = Math.round(100 * Math.log10(Math.min(1000, Math.max(1, price / data.call_usd))));
$("price").addEventListener("input", () => { price = ratioOf($("price").value) * data.call_usd; bar = recommended() ?? bar; show(); });
$("bar").addEventListener("input", () => { bar = points[$("bar").value]; show(); });
$("take").addEventListener("click", () => { bar = recommended() ?? bar; show(); });
bar = recommended() ?? points[points.length - 1];
show();
