// Asks again every two seconds while the page is seen, and says honestly when there is no answer.

import { text } from "./dom.js";

const EVERY_MS = 2000;
const PATIENCE_MS = 15000;

/** Calls `look(signal)` again and again; it throws when there is no answer. Returns how to look at once. */
export function refresh(look, { at = Date.now() } = {}) {
  const live = document.querySelector("[data-live]");
  let answered = at;
  let timer = 0;
  let running = false;
  const say = (state, sentence) => {
    live.dataset.state = state;
    text(live.querySelector("[data-say]"), sentence);
  };
  const once = async () => {
    clearTimeout(timer);
    if (running) return;
    running = true;
    try {
      await look(AbortSignal.timeout(PATIENCE_MS));
      answered = Date.now();
      say("live", "live");
    } catch (error) {
      const age = answered ? `, shown as of ${ago(answered)} ago` : "";
      say(error.status === 401 ? "out" : "old", `${error.message}${age}`);
    } finally {
      running = false;
      if (!document.hidden) timer = setTimeout(once, EVERY_MS);
    }
  };
  document.addEventListener("visibilitychange", () => document.hidden || once());
  timer = setTimeout(once, EVERY_MS);
  return once;
}

/** The answer, or an error with the broker's own sentence and `status`. */
export async function ask(url, options = {}) {
  let answer;
  try {
    answer = await fetch(url, { credentials: "same-origin", ...options });
  } catch (error) {
    throw Object.assign(new Error(error.name === "TimeoutError" ? "no answer in time" : "no answer"), { status: 0 });
  }
  if (answer.ok) return answer;
  throw Object.assign(new Error(await sentence(answer)), { status: answer.status });
}

async function sentence(answer) {
  if (answer.status === 401) return "signed out: load the page again";
  const kind = answer.headers.get("content-type") ?? "";
  if (!kind.includes("json")) return `the server answered ${answer.status}`;
  const said = await answer.json();
  return said.detail ?? `the server answered ${answer.status}`;
}

function ago(at) {
  const seconds = Math.round((Date.now() - at) / 1000);
  return seconds < 90 ? `${seconds} s` : `${Math.round(seconds / 60)} min`;
}
