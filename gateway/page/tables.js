// The views of the cache's decisions, of what was spent, and of how everything stands.

import { getJson } from "./api.js";
import { openCall } from "./call.js";
import { badge, byId, clock, cosine, count, dollars, gauge, h, milliseconds, percent, put, s, split, tile } from "./show.js";

export async function showCache() {
  const [status, { decisions, by_status: sums }] = await Promise.all([getJson("/admin/status"), getJson("/admin/cache/decisions?limit=100")]);
  const of = (name) => sums.find((row) => row.cache_status === name)?.calls ?? 0;
  const all = sums.reduce((sum, row) => sum + row.calls, 0);
  const { exact, semantic: configured } = status.cache;
  const semantic = { ...configured, ...(configured.enabled ? await applied() : {}) };
  put("cache-tiles",
    tile(percent(of("exact") + of("semantic"), all), "of a day's calls were hits"),
    tile(count(of("exact")), "exact hits"),
    tile(count(of("semantic")), "semantic hits"),
    tile(semantic.enabled ? cosine(semantic.threshold) : "off", `bar, policy ${semantic.policy}`),
    tile(exact.enabled ? hours(exact.ttl_s) : "off", "exact entries live"));
  split("cache-split", "cache-legend", ["exact", "semantic", "miss", "bypass"].map((name) => [name, of(name)]));
  put("cache-plot", plot(decisions, semantic.threshold));
  put("cache-rows", ...decisions.map((call) => h("tr", {},
    h("td", {}, h("button", { class: "open", type: "button", onclick: () => openCall(call.id) }, clock(call.received_at))),
    h("td", { class: "asked" }, call.question ? h("span", {}, call.question) : null),
    h("td", {}, gauge(call.cache)),
    h("td", {}, badge(call.cache.status, call.cache.status === "semantic" ? "served" : "not served"),
      h("span", { class: "sub" }, decisionOf(call.cache))),
    h("td", {}, call.requested_model ?? ""))));
  byId("cache-empty").hidden = decisions.length > 0;
}

/** Give the bar and the policy that were put in force while serving; nothing where the settings' own hold. */
async function applied() {
  const [newest] = (await getJson("/admin/cache/policy")).policies;
  return !newest || newest.policy === "settings" ? {} : { threshold: newest.threshold, policy: newest.policy };
}

/** Say why, where that is more than what stands beside it. */
function decisionOf(cache) {
  const why = cache.decision ?? cache.reason ?? "";
  return why === "served" ? "" : why.replaceAll("_", " ");
}

const hours = (seconds) => (seconds >= 7200 ? `${Math.round(seconds / 3600)} h` : `${Math.round(seconds / 60)} min`);

/** Draw the decisions along their similarity, newer ones to the top. */
function plot(all, bar) {
  const decisions = all.filter((call) => typeof call.cache.similarity === "number");
  const lowest = Math.floor(10 * Math.min(0.5, ...decisions.map((call) => call.cache.similarity))) / 10;
  const at = (value) => 20 + 760 * ((value - lowest) / (1 - lowest));
  const ticks = Array.from({ length: 6 }, (_, index) => lowest + ((1 - lowest) * index) / 5);
  return s("svg", { viewBox: "0 0 800 130", role: "img", "aria-label": `Similarities of ${decisions.length} decisions; the bar is ${bar}` },
    s("line", { class: "rail", x1: 20, x2: 780, y1: 104, y2: 104 }),
    ...ticks.map((value) => s("text", { x: at(value), y: 124, "text-anchor": "middle" }, value.toFixed(2))),
    s("line", { class: "limit", x1: at(bar), x2: at(bar), y1: 6, y2: 104 }),
    s("text", { x: at(bar) - 6, y: 14, "text-anchor": "end" }, `bar ${cosine(bar)}`),
    ...decisions.map((call, index) => s("circle", {
      class: call.cache.status === "semantic" ? "served" : "kept",
      cx: at(call.cache.similarity), cy: 24 + (70 * index) / Math.max(decisions.length - 1, 1), r: 5 },
    s("title", {}, `${call.cache.similarity.toFixed(4)} ${call.question ?? ""}`))));
}

export async function showSpend() {
  const found = await getJson(`/admin/spend?window=${byId("spend-window").value}`);
  const total = (name) => found.by_model.reduce((sum, row) => sum + row[name], 0);
  put("spend-tiles", tile(dollars(total("cost_usd")), "spent"), tile(count(total("calls")), "calls"),
    tile(count(total("prompt_tokens")), "tokens read"), tile(count(total("completion_tokens")), "tokens written"));
  const nameOfKey = (row) => row.key ?? (row.tenant === "default" ? "no key" : `key ${row.tenant.slice(0, 8)}`);
  spendRows("spend-keys", found.by_key, nameOfKey, true);
  spendRows("spend-models", found.by_model, (row) => row.requested_model || "–", true);
  spendRows("spend-teams", found.by_team, (row) => row.team, false);
}

function spendRows(id, found, name, hasTokens) {
  const most = Math.max(...found.map((row) => row.cost_usd), 0);
  const none = h("tr", {}, h("td", { colspan: "4", class: "empty" }, "Nothing in this time."));
  const rows = found.map((row) => {
    const share = h("i", {});
    share.style.width = `${most ? (100 * row.cost_usd) / most : 0}%`;
    return h("tr", {}, h("td", {}, name(row), row.team && hasTokens ? h("span", { class: "sub" }, `team ${row.team}`) : null, h("div", { class: "track" }, share)),
      h("td", { class: "number" }, count(row.calls)),
      hasTokens ? h("td", { class: "number" }, count(row.prompt_tokens + row.completion_tokens)) : null,
      h("td", { class: "number" }, dollars(row.cost_usd)));
  });
  put(id, ...(rows.length ? rows : [none]));
}

export async function showStatus() {
  const [status, backends] = await Promise.all([getJson("/admin/status"), getJson("/admin/backends")]);
  const parts = Object.entries(status.ready.parts);
  const processes = Object.entries(status.processes);
  const isWell = (state) => state === "ready";
  put("status-tiles", tile(status.ready.status, "as a whole"),
    tile(`${parts.filter(([, word]) => word === "ok").length} of ${parts.length}`, "parts answer"),
    tile(count(backends.num_workers), backends.num_workers === 1 ? "worker" : "workers"),
    tile(status.content, "content in the log"), tile(status.node, "this node"));
  put("status-parts", ...parts.map(([name, word]) => line(name.replaceAll("_", " "), word, word === "ok")));
  put("status-processes", ...processes.map(([name, one]) =>
    line(name, `${one.state}, pid ${one.pid ?? "–"}${one.restarts ? `, ${one.restarts} restarts` : ""}`, isWell(one.state))));
  if (!processes.length) put("status-processes", line("no supervisor", "this process alone", true));
  put("status-layers", ...status.layers.map((name) => h("li", { class: "passed" }, name.replaceAll("_", " "))));
  put("status-models", ...backends.models.map(modelCard));
}

const line = (name, word, isGood) => h("li", {}, h("span", {}, name), h("span", { class: isGood ? "good" : "bad" }, word));

function modelCard(model) {
  const how = model.chooses ? `chooses among ${model.chooses.join(", ")}` : model.strategy.replaceAll("_", " ");
  const after = model.fallbacks.length ? `; falls back to ${model.fallbacks.join(", ")}` : "";
  return h("article", { class: "card" }, h("h3", {}, model.model), h("p", {}, how + after), ...model.backends.map(target));
}

function target(one) {
  const leftS = one.cooled_until === null ? 0 : Math.max(0, one.cooled_until - Date.now() / 1000);
  const numbers = [`${count(one.in_flight)} running`, `${count(one.attempts)} tried`, `${count(one.failures)} failed`,
    one.first_content_ewma_ms === null ? null : `first token ${milliseconds(one.first_content_ewma_ms)}`];
  return h("div", { class: "target" }, h("b", {}, one.name), one.weight === 1 ? null : ` weight ${one.weight}`,
    h("span", { class: "sub" }, numbers.filter(Boolean).join(" · ")),
    leftS ? h("span", { class: "cool" }, `left alone for ${leftS.toFixed(0)} s: ${one.cooled_for ?? ""}`) : null,
    one.last_error ? h("span", { class: "sub" }, `last error at ${clock(one.last_error_at)}: ${one.last_error}`) : null);
}
