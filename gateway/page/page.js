// The page as a whole: which view is shown, the key, and the state at the top.

import { getJson, key } from "./api.js";
import { setMlflow } from "./call.js";
import { followCalls } from "./live.js";
import { loadModels, setLayers, startPlayground } from "./playground.js";
import { byId, problem } from "./show.js";
import { showCache, showSpend, showStatus } from "./tables.js";

const REFRESH_MS = 3000;
const VIEWS = { live: async () => {}, playground: loadModels, cache: showCache, spend: showSpend, status: showStatus };
const viewOf = () => (location.hash.slice(1) in VIEWS ? location.hash.slice(1) : "live");

async function show({ isNew = true } = {}) {
  const shown = viewOf();
  for (const name of Object.keys(VIEWS)) byId(name).hidden = name !== shown;
  for (const link of document.querySelectorAll("nav a")) {
    if (link.hash === `#${shown}`) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
  if (isNew) {
    document.title = `${byId(`${shown}-title`).textContent} · Lamina`;
    window.scrollTo(0, 0);
  }
  try {
    await VIEWS[shown]();
    problem(null);
  } catch (refused) {
    problem(refused.status === 401 ? null : refused.message);
  }
}

async function state() {
  const pill = byId("ready");
  try {
    const status = await getJson("/admin/status");
    pill.textContent = status.ready.status;
    pill.className = `pill ${status.ready.status === "ready" ? "good" : "bad"}`;
    setLayers(status.layers);
    setMlflow(status.mlflow);
    byId("mlflow").hidden = !status.mlflow;
    if (status.mlflow) byId("mlflow").href = status.mlflow;
    byId("about").textContent = `Lamina ${status.version} · ${status.node}`;
    byId("key-form").hidden = true;
  } catch (refused) {
    pill.textContent = refused.status === 401 ? "locked" : "no answer";
    pill.className = "pill bad";
  }
}

async function refresh() {
  for (;;) {
    await new Promise((wake) => setTimeout(wake, REFRESH_MS));
    if (document.hidden) continue;
    await state();
    // What a reader fills in, or reads as it streams, is not touched.
    if (!["live", "playground"].includes(viewOf())) await show({ isNew: false });
  }
}

document.addEventListener("key-wanted", () => {
  if (key.get()) byId("key-note").textContent = "The key was refused: is it the master key?";
  if (!byId("key-form").hidden) return;
  byId("key-form").hidden = false;
  byId("key").focus();
});
byId("key-form").addEventListener("submit", async (event) => {
  event.preventDefault();
  key.set(byId("key").value.trim());
  byId("key").value = "";
  await state();
  await show();
});
byId("spend-window").addEventListener("change", () => show());
window.addEventListener("hashchange", () => show());

startPlayground();
await state();
show();
followCalls();
refresh();
