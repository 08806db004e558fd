// The fleet page: draws fleet.json. Every string comes from the server; here they are only placed.

import { confirm } from "./dialog.js";
import { attr, keyed, text } from "./dom.js";
import { drawGroups } from "./nodes.js";
import { ask, refresh } from "./refresh.js";
import { drawLeases, drawQueue } from "./tables.js";
import { relight } from "./tip.js";
import "./session.js";

const $ = (selector) => document.querySelector(selector);
const filter = $("#filter");
const BAR_LEASES = 24;
let data = JSON.parse($("#data").textContent);

const acts = {
  release: (lease) =>
    confirm({
      title: `Release ${lease.owner}?`,
      sentence: `Its job checkpoints and stops, then what it holds is free. The Airflow task that owns it will see it stopped.`,
      verb: "Release",
      danger: true,
      action: "release",
      body: { lease: lease.id, reason: "released on the fleet page" },
      done: () => once(),
    }),
  cordon: (node, on) =>
    confirm({
      title: on ? `Cordon ${node.id}?` : `Open ${node.id} again?`,
      sentence: on ? "It gets no new grants. What runs there goes on." : "It takes new grants again.",
      verb: on ? "Cordon" : "Open",
      action: "cordon",
      body: { node: node.id, on },
      done: () => once(),
    }),
  drain: (node) =>
    confirm({
      title: `Drain ${node.id}?`,
      sentence: "It gets no new grants, and its leases move away at their next checkpoint.",
      verb: "Drain",
      danger: true,
      action: "drain",
      body: { node: node.id },
      done: () => once(),
    }),
};

function draw() {
  if (data.error) {
    $("#error").hidden = false;
    text($("#error"), data.error);
    return;
  }
  $("#error").hidden = true;
  $("#frozen").hidden = !data.frozen;
  document.body.classList.toggle("is-operator", data.operator);
  const words = filter.value.trim().toLowerCase().split(/\s+/).filter(Boolean);
  const wanted = (line) => words.every((word) => line.includes(word));
  drawTotals(data);
  const nodes = drawGroups($("#groups"), data, wanted, acts);
  const leases = drawLeases($("#leases"), data.leases, wanted, acts);
  const queue = drawQueue($("#queue"), data.queue, wanted, acts);
  $("#no-nodes").hidden = data.totals.gpus > 0 || data.groups.length > 0;
  $("#no-match").hidden = !words.length || nodes + leases + queue > 0;
  $("#no-leases").hidden = data.leases.length > 0;
  $("#no-queue").hidden = data.queue.length > 0;
  relight();
}

function drawTotals({ totals, groups, holders }) {
  for (const element of document.querySelectorAll("[data-t]")) text(element, totals[element.dataset.t]);
  attr($("#use"), "aria-label", `GPUs: ${totals.use_note}`);
  keyed($("#use"), parts(groups, holders), ({ key }) => key, () => document.createElement("i"), (part, { kind, lease, number, words }) => {
    part.className = kind;
    part.style.flexGrow = number;
    attr(part, "data-lease", lease);
    attr(part, "data-tip", `${words}: ${number} GPUs`);
  });
}

/** The bar of all GPUs: the largest leases, the others together, what is free, what is not usable. */
function parts(groups, holders) {
  const held = new Map();
  const rest = { free: 0, off: 0 };
  for (const [kind, , holder] of groups.flatMap((group) => group.nodes.flatMap((node) => node.cells))) {
    if (kind === "h") held.set(holder, (held.get(holder) ?? 0) + 1);
    else rest[kind === "f" ? "free" : "off"] += 1;
  }
  const largest = [...held].sort((a, b) => b[1] - a[1]);
  const made = largest.slice(0, BAR_LEASES).map(([index, number]) => {
    const { id, hue, label } = holders[index];
    return { key: id, kind: `h${hue}`, lease: id, number, words: label };
  });
  const more = largest.slice(BAR_LEASES).reduce((sum, [, number]) => sum + number, 0);
  made.push({ key: "more", kind: "more", number: more, words: "other leases" });
  made.push({ key: "free", kind: "free", number: rest.free, words: "free" });
  made.push({ key: "off", kind: "off", number: rest.off, words: "not usable" });
  return made.filter(({ number }) => number > 0);
}

const once = refresh(
  async (signal) => {
    data = await (await ask("./fleet.json", { signal })).json();
    draw();
  },
  { at: data.error ? 0 : Date.now() },
);
filter.addEventListener("input", draw);
document.addEventListener("keydown", (event) => {
  const typing = event.target.closest?.("input, textarea, dialog");
  if (event.key === "/" && !typing) {
    event.preventDefault();
    filter.focus();
  }
});
draw();
