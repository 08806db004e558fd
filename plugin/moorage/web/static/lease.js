// A lease's page: fetched again and morphed in place; its log read from where the last piece ended.

import { confirm } from "./dialog.js";
import { morph, text } from "./dom.js";
import { ask, refresh } from "./refresh.js";
import "./session.js";
import "./tip.js";

const KEPT = 64 * 1024;
const PIECES = 8; // Of the log, at one refresh.

const main = document.querySelector("#lease");
const id = main.dataset.id;
const log = document.querySelector("#log");
const note = document.querySelector("#log-note");
let offset = 0;
let cut = false;

async function look(signal) {
  if (main.dataset.liveLease === "yes") {
    const answer = await ask(`./${id}`, { signal, headers: { Accept: "text/html" } });
    const fresh = new DOMParser().parseFromString(await answer.text(), "text/html").querySelector("#lease");
    if (fresh) morph(main, fresh);
  }
  await readLog(signal);
}

async function readLog(signal) {
  for (let piece = 0; piece < PIECES; piece += 1) {
    const said = await (await ask(`./${id}/log.json?offset=${offset}`, { signal })).json();
    if (said.next === offset) break;
    append(said.text, offset === 0);
    offset = said.next;
  }
  if (offset === 0) text(log, "The job has written nothing yet.");
}

function append(added, first) {
  const atEnd = log.scrollTop + log.clientHeight >= log.scrollHeight - 8;
  let whole = (first ? "" : log.textContent) + added;
  if (whole.length > KEPT) {
    whole = whole.slice(-KEPT);
    cut = true;
  }
  log.textContent = whole;
  text(note, cut ? "its last 64 KiB; all of it: moorage logs" : "");
  if (atEnd) log.scrollTop = log.scrollHeight;
}

const once = refresh(look);
main.addEventListener("click", ({ target }) => {
  if (!target.closest("[data-release]")) return;
  confirm({
    title: "Release this lease?",
    sentence: "Its job checkpoints and stops, then its GPUs are free. The Airflow task that owns it will see it stopped.",
    verb: "Release",
    danger: true,
    action: "release",
    body: { lease: id, reason: "released on the fleet page" },
    done: once,
  });
});
once();
