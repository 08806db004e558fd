// The one dialog of a page. Airflow's frame forbids confirm(), so questions are asked here.

import { el } from "./dom.js";
import { ask } from "./refresh.js";

const dialog = document.querySelector("#dialog");
dialog?.addEventListener("click", (event) => event.target === dialog && dialog.close());

/** Show `title` and `parts`; the browser gives focus back when it closes. */
export function show(title, ...parts) {
  const close = el("button", { type: "button", class: "icon-button", "aria-label": "Close" }, "\u00d7");
  close.addEventListener("click", () => dialog.close());
  const heading = el("h2", { id: "dialog-title", title }, title);
  dialog.replaceChildren(el("header", {}, heading, close), ...parts);
  if (!dialog.open) dialog.showModal();
}

/** Ask before an action; `done` is called after the broker agreed. */
export function confirm({ title, sentence, verb, danger, action, body, done }) {
  const alert = el("p", { role: "alert", class: "alert", hidden: "" });
  const yes = el("button", { type: "button", class: danger ? "danger" : "primary" }, verb);
  const no = el("button", { type: "button" }, "Cancel");
  no.addEventListener("click", () => dialog.close());
  const client = callId(); // One per question: pressed twice, it is done once.
  yes.addEventListener("click", async () => {
    yes.disabled = true;
    try {
      await act(action, { ...body, client_id: client });
      dialog.close();
      done();
    } catch (error) {
      alert.hidden = false;
      alert.textContent = error.message;
      yes.disabled = false;
    }
  });
  show(title, el("p", {}, sentence), alert, el("footer", {}, no, yes));
  yes.focus();
}

function act(action, body) {
  const root = document.body.dataset.root;
  return ask(`${root}/actions/${action}`, {
    method: "POST",
    headers: { "Content-Type": "application/json" },
    body: JSON.stringify(body),
  });
}

function callId() {
  const bytes = crypto.getRandomValues(new Uint8Array(16));
  return `page-${Array.from(bytes, (byte) => byte.toString(16).padStart(2, "0")).join("")}`;
}
