// How the page asks the gateway: with the reader's key, which this tab alone keeps.

const KEY = "lamina.key";

export const key = {
  get: () => sessionStorage.getItem(KEY) ?? "",
  set: (value) => sessionStorage.setItem(KEY, value),
};

export class Refused extends Error {
  constructor(status, message) {
    super(message);
    this.status = status;
  }
}

export const withKey = (headers) => (key.get() ? { ...headers, authorization: `Bearer ${key.get()}` } : headers);

/** Ask, and raise `Refused` for an error; a missing or wrong key asks the reader for one. */
export async function ask(path, options = {}) {
  const response = await fetch(path, { cache: "no-store", ...options, headers: withKey(options.headers ?? {}) });
  if (response.ok) return response;
  const body = await response.json().catch(() => null);
  if (response.status === 401) document.dispatchEvent(new CustomEvent("key-wanted"));
  const refused = new Refused(response.status, body?.error?.message ?? `The gateway answered ${response.status}.`);
  refused.headers = response.headers;
  throw refused;
}

export const getJson = async (path) => (await ask(path)).json();

/** Give a stream's server-sent events as `{event, data}`; comments are left out. */
export async function* eventsOf(response) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let text = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    text += value;
    const frames = text.split("\n\n");
    text = frames.pop();
    for (const frame of frames) {
      const found = { event: "message", data: "" };
      for (const line of frame.split("\n")) {
        if (line.startsWith("event: ")) found.event = line.slice(7);
        if (line.startsWith("data: ")) found.data += line.slice(6);
      }
      if (found.data) yield found;
    }
  }
}
