// The lease table and the queue.

import { attr, el, keyed, text } from "./dom.js";

const line = (row) => Object.values(row).join(" ").toLowerCase();

/** Returns how many rows are shown. */
export function drawLeases(body, leases, wanted, acts) {
  const shown = leases.filter((lease) => wanted(line(lease)));
  keyed(body, shown, (lease) => lease.id, () => leaseRow(acts), (row, lease) => {
    row.lease = lease;
    who(row, lease);
    const cell = (name) => row.querySelector(`[data-c="${name}"]`);
    for (const name of ["team", "workers", "gpus", "phase", "step", "loss", "spent", "started", "where"]) {
      text(cell(name), lease[name]);
    }
    for (const name of ["team", "where"]) attr(cell(name), "title", lease[name]);
    attr(cell("started"), "title", lease.started_title);
    const state = row.querySelector(".state");
    text(state, lease.state);
    attr(state, "class", `state ${lease.state}`);
    attr(state, "title", lease.reason);
    const meter = row.querySelector("meter");
    meter.hidden = lease.done === null;
    meter.value = lease.done ?? 0;
    attr(meter, "title", `${lease.done} % of the samples`);
    row.querySelector("button").hidden = lease.state === "stopping";
  });
  return shown.length;
}

/** Returns how many rows are shown. */
export function drawQueue(body, queue, wanted, acts) {
  const shown = queue.filter((lease) => wanted(line(lease)));
  keyed(body, shown, (lease) => lease.id, () => queueRow(acts), (row, lease) => {
    row.lease = lease;
    who(row, lease);
    const cell = (name) => row.querySelector(`[data-c="${name}"]`);
    for (const name of ["position", "team", "asks", "since", "reason"]) text(cell(name), lease[name]);
    attr(cell("team"), "title", lease.team);
    attr(cell("since"), "title", lease.since_title);
    attr(cell("reason"), "title", lease.reason);
  });
  return shown.length;
}

function who(row, lease) {
  attr(row, "data-lease", lease.id);
  const tag = row.querySelector(".tag");
  attr(tag, "class", `tag h${lease.hue}`);
  text(tag, lease.letter);
  const link = row.querySelector("a");
  text(link, lease.owner);
  attr(link, "href", `./leases/${encodeURIComponent(lease.id)}`);
  attr(link, "title", lease.owner_title || lease.owner);
  text(row.querySelector(".id"), lease.short);
  attr(row.querySelector("button"), "aria-label", `Release ${lease.owner}`);
}

function whoCell() {
  const tag = el("span", { class: "tag", "aria-hidden": "true" });
  const words = el("span", { class: "lease-text" }, el("a", { href: "#" }), el("span", { class: "id" }));
  return el("th", { scope: "row", class: "lease" }, el("span", { class: "lease-cell" }, tag, words));
}

function actions(row, acts) {
  const button = el("button", { type: "button", class: "quiet" }, "Release");
  button.addEventListener("click", () => acts.release(row.lease));
  return el("td", { class: "operator" }, button);
}

const td = (name, kind = "") => el("td", { "data-c": name, class: kind });

function leaseRow(acts) {
  const row = el("tr");
  const state = el("td", {}, el("span", { class: "state" }));
  const meter = el("meter", { min: 0, max: 100, "aria-label": "Samples done, percent" });
  const step = el("td", { class: "n step" }, el("span", { "data-c": "step" }), meter);
  row.append(whoCell(), td("team", "cut team"), state, td("workers", "n"), td("gpus", "n"), td("phase"), step);
  row.append(td("loss", "n"), td("spent", "n money"), td("started", "n"), td("where", "cut where"), actions(row, acts));
  return row;
}

function queueRow(acts) {
  const row = el("tr");
  const why = el("td", { class: "why" }, el("span", { "data-c": "reason", class: "clamp" }));
  row.append(td("position", "n"), whoCell(), td("team", "cut team"), td("asks", "asks"), td("since", "n"), why, actions(row, acts));
  return row;
}
