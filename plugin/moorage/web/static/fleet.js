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
  const say = (name, value) => text($(`[data-t="${name}"]`), value);
  for (const name of ["held", "rate", "rate_note", "running", "queued", "oldest"]) say(name, totals[name]);
  say("held_of", `of ${totals.gpus} held`);
  say("use_note", `${totals.held} held · ${totals.free} free · ${totals.unusable} not usable`);
  const others = [totals.starting && `${totals.starting} starting`, totals.stopping && `${totals.stopping} stopping`];
  say("lease_note", others.filter(Boolean).join(" · ") || "none is starting or stopping");
  say("nodes_note", totals.nodes + (totals.not_ready ? `, ${totals.not_ready} not ready` : ""));
  attr($("#use"), "aria-label", `${totals.held} GPUs held, ${totals.free} free, ${totals.unusable} not usable`);
  const counts = new Map();
  for (const group of groups)
    for (const node of group.nodes)
      for (const [kind, , holder] of node.cells) {
        const key = kind === "h" ? holder : kind === "f" ? "free" : "off";
        counts.set(key, (counts.get(key) ?? 0) + 1);
      }
  const parts = [...counts].filter(([key]) => typeof key === "number").sort((a, b) => b[1] - a[1]);
  for (const key of ["free", "off"]) if (counts.has(key)) parts.push([key, counts.get(key)]);
  keyed(
    $("#use"),
    parts,
    ([key]) => (typeof key === "number" ? holders[key].id : key),
    () => document.createElement("i"),
    (part, [key, number]) => {
      const holder = holders[key];
      part.className = holder ? `h${holder.hue}` : key;
      part.style.flexGrow = number;
      attr(part, "data-lease", holder?.id);
      attr(part, "data-tip", holder ? `${holder.label}: ${number} GPUs` : `${number} ${key === "free" ? "free" : "not usable"}`);
    },
  );
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
