// The view of live calls: a feed, kept in order, shown as rows that are made once and changed only when the call changes.

import { ask, eventsOf, getJson } from "./api.js";
import { openCall } from "./call.js";
import { badge, byId, clock, count, dollars, gauge, h, median, milliseconds, percent, put, split, tile } from "./show.js";

const MAX_SHOWN = 300;
const REFUSED = ["checks", "limits", "none"];
const calls = new Map();
const rows = new Map();
let running = [];
let isPaused = false;
let numRunning = 0;

export async function followCalls() {
  byId("live-filter").addEventListener("change", draw);
  byId("live-pause").addEventListener("click", pause);
  byId("live-older").addEventListener("click", older);
  for (;;) {
    try {
      const response = await ask("/admin/live", { headers: { accept: "text/event-stream" } });
      for await (const { data } of eventsOf(response)) take(JSON.parse(data));
    } catch {
      // The gateway is being started again, or wants a key: asked again below, and the state says so meanwhile.
    }
    await new Promise((wake) => setTimeout(wake, 1500));
  }
}

function take(view) {
  for (const call of view.ended) calls.set(call.id, call);
  running = view.running.filter((call) => !calls.has(call.id));
  numRunning = view.num_running;
  bound();
  if (!isPaused) draw();
}

/** Forget the oldest: ids sort by time. */
function bound() {
  for (const id of [...calls.keys()].sort().slice(0, Math.max(0, calls.size - MAX_SHOWN))) calls.delete(id);
}

function pause() {
  isPaused = !isPaused;
  byId("live-pause").setAttribute("aria-pressed", String(isPaused));
  if (!isPaused) draw();
}

async function older() {
  const oldest = [...calls.keys()].sort()[0];
  const page = await getJson(`/admin/calls?limit=100${oldest ? `&before=${encodeURIComponent(oldest)}` : ""}`);
  for (const call of page.calls) calls.set(call.id, call);
  byId("live-older").disabled = page.calls.length === 0;
  draw();
}

function draw() {
  const ended = [...calls.values()];
  drawSums(ended);
  const wanted = byId("live-filter").value;
  const shown = [...running, ...ended].filter((call) => isWanted(call, wanted)).sort((a, b) => (a.id < b.id ? 1 : -1));
  const kept = new Set(shown.map((call) => call.id));
  for (const [id, row] of rows) {
    if (!kept.has(id)) {
      row.element.remove();
      rows.delete(id);
    }
  }
  let after = null;
  for (const call of shown) after = place(call, after);
  byId("live-empty").hidden = shown.length > 0;
}

function isWanted(call, wanted) {
  const layer = call.layer ?? "running";
  return !wanted || layer === wanted || (wanted === "refused" && REFUSED.includes(layer));
}

/** Put a call's row after another; it keeps its place, and the focus in it, while nothing about the call changes. */
function place(call, after) {
  const body = byId("live-rows");
  const isRunning = call.layer === undefined;
  const known = rows.get(call.id);
  const row = known && !known.isRunning && !isRunning ? known : { isRunning, element: rowOf(call, !known) };
  if (known && known !== row) {
    const hadFocus = known.element.contains(document.activeElement);
    known.element.replaceWith(row.element);
    if (hadFocus) row.element.querySelector("button")?.focus();
  }
  rows.set(call.id, row);
  const next = after ? after.nextSibling : body.firstChild;
  if (row.element !== next) body.insertBefore(row.element, next);
  return row.element;
}

function rowOf(call, isNew) {
  const isRunning = call.layer === undefined;
  const tokens = isRunning ? "" : `${count(call.prompt_tokens)} → ${count(call.completion_tokens)}`;
  const trouble = call.error_code ?? (call.is_fallback ? "fallback" : null);
  const id = h("button", { class: "open", type: "button", onclick: () => openCall(call.id) }, clock(call.received_at));
  return h("tr", { class: isNew ? "new" : null, "data-call": call.id },
    h("td", {}, isRunning ? h("span", {}, clock(call.received_at)) : id),
    h("td", {}, badge(isRunning ? "running" : call.layer), trouble ? h("span", { class: "sub" }, trouble) : null),
    h("td", {}, call.requested_model ?? "", h("span", { class: "sub" }, call.backend ?? "")),
    h("td", { class: "asked" }, call.question ? h("span", {}, call.question) : null),
    h("td", {}, gauge(call.cache)),
    h("td", { class: "number", "data-label": "first token" }, isRunning ? "" : milliseconds(call.ttft_ms)),
    h("td", { class: "number", "data-label": "total" }, milliseconds(call.duration_ms)),
    h("td", { class: "number", "data-label": "tokens" }, tokens),
    h("td", { class: "number", "data-label": "cost" }, isRunning ? "" : dollars(call.layer === "backend" ? call.cost_usd : (call.cost_usd ?? 0))),
    h("td", { class: "from", "data-label": "from" }, call.key ?? call.tenant.slice(0, 8), h("span", { class: "sub" }, call.worker)));
}

function drawSums(ended) {
  const by = (layer) => ended.filter((call) => call.layer === layer).length;
  const refused = ended.filter((call) => REFUSED.includes(call.layer)).length;
  const hits = by("exact") + by("semantic");
  const cost = ended.reduce((sum, call) => sum + (call.cost_usd ?? 0), 0);
  put("live-tiles",
    tile(count(numRunning), "running now"),
    tile(count(ended.length), "shown below"),
    tile(percent(hits, ended.length), "answered by a cache"),
    tile(milliseconds(median(ended.filter((call) => call.layer === "backend").map((call) => call.ttft_ms))), "median first token, backends"),
    tile(milliseconds(median(ended.filter((call) => call.layer === "exact" || call.layer === "semantic").map((call) => call.ttft_ms))), "median first token, hits"),
    tile(dollars(cost), "spent on these"));
  split("live-split", "live-legend", [["exact", by("exact")], ["semantic", by("semantic")], ["backend", by("backend")], ["refused", refused]]);
}
