// One call with every decision, in a dialog.

import { getJson } from "./api.js";
import { badge, byId, dollars, gauge, h, milliseconds, put } from "./show.js";

let mlflowUrl = null;

/** Say where MLflow is, for the links to it. */
export function setMlflow(url) {
  mlflowUrl = url;
}

export async function openCall(id) {
  byId("call-title").textContent = id;
  put("call-body", h("p", { class: "empty" }, "Reading the record"));
  byId("call").showModal();
  try {
    show(await getJson(`/admin/calls/${encodeURIComponent(id)}`));
  } catch (refused) {
    put("call-body", h("p", { class: "problem" }, refused.message));
  }
}

function show(record) {
  const usage = record.usage ?? {};
  put("call-body",
    h("dl", { class: "facts" },
      fact("Outcome", `${record.outcome} (${record.status})`),
      fact("Cache", badge(record.cache.status)),
      fact("Similarity", gauge({ ...record.cache, similarity: record.cache.similarity ?? nearest(record.cache) })),
      fact("Semantic cache", record.extra?.semantic?.replaceAll("_", " ")),
      fact("Model", record.model ?? record.requested_model),
      fact("Backend", record.backend),
      fact("First token", milliseconds(record.ttft_ms)),
      fact("Total", milliseconds(record.duration_ms)),
      fact("Ours", milliseconds(record.overhead_ms)),
      fact("Tokens", usage.prompt_tokens === undefined ? null : `${usage.prompt_tokens} → ${usage.completion_tokens}`),
      fact("Cost", dollars(record.cost_usd))),
    record.error ? h("p", { class: "problem" }, `${record.error.code}: ${record.error.message ?? ""}`) : null,
    ...texts(record),
    h("h3", {}, "Layers"), layers(record),
    ...listed("Checks", record.checks, (check) => `${check.stage}: ${check.check}: ${check.verdict} (${check.action})${check.reason ? `, ${check.reason}` : ""}`),
    ...listed("Attempts", record.attempts, (attempt) => `${attempt.backend}: ${attempt.error ?? "answered"} after ${milliseconds(attempt.duration_ms)}`),
    ...listed("Without", record.degraded, (reason) => reason),
    mlflowUrl ? h("p", {}, h("a", { href: mlflowUrl, target: "_blank", rel: "noopener noreferrer" }, "Its trace is in MLflow")) : null,
    h("details", {}, h("summary", {}, "The whole record"), h("pre", {}, JSON.stringify(record, null, 2))));
}

const fact = (label, value) => (value === null || value === undefined || value === "" ? null
  : h("div", {}, h("dt", {}, label), h("dd", {}, value)));

/** A call that was not served has no similarity of its own: that of its nearest neighbour says why. */
const nearest = (cache) => (cache.candidates?.length ? Math.max(...cache.candidates.map((one) => one.similarity)) : null);

function texts(record) {
  const shown = [];
  for (const turn of record.content.request?.messages ?? []) {
    shown.push(h("h3", {}, String(turn.role)), h("pre", {}, typeof turn.content === "string" ? turn.content : JSON.stringify(turn.content, null, 2)));
  }
  for (const choice of record.content.answer ?? []) {
    shown.push(h("h3", {}, "answer"), h("pre", {}, typeof choice.text === "string" ? choice.text : JSON.stringify(choice, null, 2)));
  }
  return shown;
}

function layers(record) {
  const end = (span) => (span.end_ms === undefined ? "" : ` to ${milliseconds(span.end_ms)}`);
  return h("ol", { class: "path" }, ...record.spans.map((span) =>
    h("li", { class: "passed" }, h("span", {}, span.name), h("span", {}, `${milliseconds(span.start_ms)}${end(span)}`))));
}

function listed(title, items, say) {
  return items?.length ? [h("h3", {}, title), h("ul", {}, ...items.map((item) => h("li", {}, say(item))))] : [];
}
