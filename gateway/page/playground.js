// The playground: one question at a time over HTTP or the WebSocket, and what became of it.

import { ask, eventsOf, getJson, key } from "./api.js";
import { byId, dollars, gauge, h, milliseconds, nameOf, put } from "./show.js";

let talk = [];
let stopRunning = null;
let layers = [];

export function setLayers(names) {
  layers = names;
}

export async function startPlayground() {
  byId("ask").addEventListener("submit", (event) => {
    event.preventDefault();
    if (!stopRunning) send();
  });
  byId("ask-prompt").addEventListener("keydown", (event) => {
    if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) byId("ask").requestSubmit();
  });
  document.addEventListener("keydown", (event) => {
    if (event.key === "Escape" && !byId("call").open) stopRunning?.();
  });
  byId("ask-stop").addEventListener("click", () => stopRunning?.());
  byId("ask-clear").addEventListener("click", clear);
  byId("ask-temperature").addEventListener("input", showTemperature);
  showTemperature();
}

/** Fill the choice of models with those that chat. */
export async function loadModels() {
  const chosen = byId("ask-model").value;
  const { data } = await getJson("/v1/models");
  const names = data.filter((model) => !model.kinds || model.kinds.includes("chat")).map((model) => model.id);
  put("ask-model", ...names.map((name) => h("option", { value: name, selected: name === chosen }, name)));
}

function showTemperature() {
  byId("ask-temperature-value").textContent = Number(byId("ask-temperature").value).toFixed(1);
}

function clear() {
  talk = [];
  put("talk", h("p", { class: "empty" }, "The answer streams in here."));
  byId("outcome").hidden = true;
  byId("ask-prompt").focus();
}

function requestOf() {
  const system = byId("ask-system").value.trim();
  const turns = [...(byId("ask-keep").checked ? talk : []), { role: "user", content: byId("ask-prompt").value }];
  return {
    model: byId("ask-model").value,
    messages: [...(system ? [{ role: "system", content: system }] : []), ...turns],
    temperature: Number(byId("ask-temperature").value),
    max_tokens: Number(byId("ask-tokens").value) || undefined,
  };
}

async function send() {
  const prompt = byId("ask-prompt").value;
  const turn = h("p", { class: "turn assistant" });
  if (!byId("ask-keep").checked) {
    talk = [];
    put("talk");
  }
  byId("talk").querySelector(".empty")?.remove();
  byId("talk").append(h("p", { class: "turn user" }, prompt), turn);
  const run = { begun: performance.now(), first: null, text: "", facts: {}, raw: [], turn };
  busy(true);
  const over = byId("ask-transport").value === "socket" ? overSocket : overHttp;
  try {
    await over(requestOf(), run);
    if (run.text) talk = [...talk, { role: "user", content: prompt }, { role: "assistant", content: run.text }];
  } catch (error) {
    if (error.headers) run.raw = [...error.headers];
    const isStopped = error.name === "AbortError";
    turn.before(h("p", { class: isStopped ? "turn reasoning" : "turn error" }, isStopped ? "Stopped." : error.message));
    if (!run.text) turn.remove();
  } finally {
    run.ended = performance.now();
    busy(false);
    outcome(run);
  }
}

function busy(isBusy) {
  byId("talk").setAttribute("aria-busy", String(isBusy));
  byId("ask-send").disabled = isBusy;
  byId("ask-stop").disabled = !isBusy;
  if (!isBusy) stopRunning = null;
}

function grow(run, piece) {
  run.first ??= performance.now();
  run.text += piece;
  run.turn.append(piece);
}

function think(run, piece) {
  run.first ??= performance.now();
  if (!run.thought) run.turn.before((run.thought = h("p", { class: "turn reasoning" })));
  run.thought.append(piece);
}

async function overHttp(request, run) {
  const leaving = new AbortController();
  stopRunning = () => leaving.abort();
  const control = byId("ask-cache").value;
  const response = await ask("/v1/chat/completions", {
    method: "POST",
    signal: leaving.signal,
    cache: "default",
    headers: { "content-type": "application/json", ...(control ? { "cache-control": control } : {}) },
    body: JSON.stringify({ ...request, stream: true, stream_options: { include_usage: true } }),
  });
  run.raw = [...response.headers];
  const header = (name) => response.headers.get(`x-lamina-${name}`);
  run.facts = {
    call: header("call"), cache: header("cache"), backend: header("backend"),
    similarity: number(header("similarity")), threshold: number(header("threshold")),
    overheadMs: number(header("overhead-ms")), cost: number(header("cost-usd")),
  };
  for await (const { data } of eventsOf(response)) {
    if (data === "[DONE]") return;
    const chunk = JSON.parse(data);
    if (chunk.error) throw new Error(chunk.error.message);
    if (chunk.usage) run.facts.usage = chunk.usage;
    const choice = chunk.choices?.[0];
    if (choice?.delta?.reasoning_content) think(run, choice.delta.reasoning_content);
    if (choice?.delta?.content) grow(run, choice.delta.content);
    if (choice?.finish_reason) run.facts.finish = choice.finish_reason;
  }
}

function overSocket(request, run) {
  const socket = new WebSocket(`${location.protocol === "https:" ? "wss" : "ws"}://${location.host}/v1/stream`);
  const control = byId("ask-cache").value;
  const asked = { ...request, ...(control ? { headers: { "cache-control": control } } : {}) };
  stopRunning = () => socket.send(JSON.stringify({ type: "cancel" }));
  return new Promise((resolve, reject) => {
    socket.addEventListener("open", () => {
      if (key.get()) socket.send(JSON.stringify({ type: "auth", key: key.get() }));
      socket.send(JSON.stringify(asked));
    });
    socket.addEventListener("message", ({ data }) => hear(JSON.parse(data)));
    socket.addEventListener("close", ({ code, reason }) => reject(new Error(`The socket closed (${code}${reason ? `: ${reason}` : ""}).`)));

    function hear(message) {
      if (message.type !== "token") run.raw.push([message.type, JSON.stringify(message)]);
      switch (message.type) {
        case "start":
          run.facts = { call: message.call, cache: message.cache.status, backend: message.backend, similarity: message.cache.similarity,
            threshold: message.cache.threshold, overheadMs: message.overhead_ms };
          break;
        case "token": grow(run, message.text); break;
        case "reasoning": think(run, message.text); break;
        case "done":
          Object.assign(run.facts, { usage: message.usage, cost: message.cost_usd, finish: message.finish_reason });
          end(resolve);
          break;
        case "cancelled": end(() => reject(new DOMException("stopped", "AbortError"))); break;
        case "error": end(() => reject(new Error(message.error.message))); break;
      }
    }

    function end(settle) {
      settle();
      socket.close();
    }
  });
}

const number = (text) => (text === null || text === undefined ? null : Number(text));

function outcome(run) {
  const { facts } = run;
  const seconds = run.first === null ? 0 : (run.ended - run.first) / 1000;
  const tokens = facts.usage?.completion_tokens;
  const isHit = facts.cache === "exact" || facts.cache === "semantic";
  const shown = [
    ["Answered by", isHit ? nameOf(facts.cache) : (facts.backend ?? "nobody")],
    ["First token", run.first === null ? "–" : milliseconds(run.first - run.begun)],
    ["Total", milliseconds(run.ended - run.begun)],
    ["Tokens", tokens === undefined ? null : `${facts.usage.prompt_tokens} → ${tokens}`],
    ["Tokens a second", tokens > 1 && seconds > 0.005 && !isHit ? ((tokens - 1) / seconds).toFixed(1) : null],
    ["Gateway's own time", facts.overheadMs === null || facts.overheadMs === undefined ? null : milliseconds(facts.overheadMs)],
    ["Cost", facts.cost === null || facts.cost === undefined ? null : dollars(facts.cost)],
    ["Ended by", facts.finish],
    ["Similarity", gauge({ status: facts.cache, similarity: facts.similarity, threshold: facts.threshold })],
    ["Call", facts.call],
  ];
  put("outcome-facts", ...shown.filter(([, value]) => value !== null && value !== undefined)
    .map(([label, value]) => h("div", { class: label === "Call" ? "wide" : null }, h("dt", {}, label), h("dd", {}, value))));
  put("outcome-headers", ...run.raw.flatMap(([name, value]) => [h("dt", {}, name), h("dd", {}, value)]));
  path(facts);
  byId("outcome").hidden = false;
}

/** Mark how deep the call went: the layers are those of the settings, the last one is the backend. */
function path(facts) {
  const cut = { exact: layers.indexOf("exact_cache"), semantic: layers.indexOf("semantic_cache") }[facts.cache] ?? layers.length - 1;
  const isAnswered = facts.backend || facts.cache === "exact" || facts.cache === "semantic";
  put("outcome-path", ...layers.map((name, at) => {
    const tone = facts.cache === "exact" || facts.cache === "semantic" ? facts.cache : "backend";
    const state = isAnswered && at === cut ? `answered ${tone}` : at < cut ? "passed" : "";
    const word = tone === "backend" ? `answered by ${facts.backend}` : "answered";
    return h("li", { class: state }, h("span", {}, name.replaceAll("_", " ")), h("span", {}, isAnswered && at === cut ? word : ""));
  }));
}
