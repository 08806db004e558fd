// Nodes in their racks, and the dialog of one node.

import { show } from "./dialog.js";
import { attr, el, keyed, text } from "./dom.js";

const WORDS = { h: "held", f: "free", c: "closed to new grants", b: "unhealthy", u: "not known" };
const ROOMY = 48;
const COMPACT = 200;

/** Returns how many nodes are shown. */
export function drawGroups(parent, data, wanted, acts) {
  const total = data.groups.reduce((sum, group) => sum + group.nodes.length, 0);
  attr(parent, "data-density", total <= ROOMY ? "roomy" : total <= COMPACT ? "compact" : "dense");
  const groups = data.groups
    .map((group) => ({ ...group, nodes: group.nodes.filter((node) => wanted(line(group, node, data.holders))) }))
    .filter((group) => group.nodes.length);
  keyed(parent, groups, (group) => group.id, makeGroup, (element, group) => {
    text(element.querySelector("h3"), group.title);
    text(element.querySelector(".above"), group.above);
    text(element.querySelector(".count"), `${group.held} of ${group.gpus} held`);
    attr(element, "aria-label", `${group.title}: ${group.held} of ${group.gpus} GPUs held, ${group.free} free`);
    const makeOne = () => makeNode(element, acts, data);
    keyed(element.querySelector(".nodes"), group.nodes, (node) => node.id, makeOne, (row, node) => drawNode(row, node, data));
  });
  return groups.reduce((sum, group) => sum + group.nodes.length, 0);
}

function line(group, node, holders) {
  const held = node.cells.map(([, , holder]) => (holder < 0 ? "" : `${holders[holder].label} ${holders[holder].id}`));
  const own = [node.id, node.pool, node.capacity, node.condition, node.model, group.title, group.above];
  return [...own, ...new Set(held)].join(" ").toLowerCase();
}

function makeGroup() {
  const head = el("header", {}, el("h3"), el("span", { class: "above" }), el("span", { class: "count" }));
  const group = el("section", { class: "group" }, head, el("div", { class: "nodes" }));
  group.addEventListener("keydown", rove);
  return group;
}

function makeNode(group, acts) {
  const row = el("button", { type: "button", class: "node" });
  const facts = el("span", { class: "facts" }, el("span", { class: "capacity" }), el("span", { class: "price" }), el("span", { class: "model" }));
  row.append(el("span", { class: "name" }), el("span", { class: "condition" }), facts, el("span", { class: "cells" }));
  row.addEventListener("click", ({ target }) => {
    const lease = target.closest(".cell")?.dataset.lease;
    if (lease) location.assign(`./leases/${encodeURIComponent(lease)}`);
    else openNode(row.node, row.holders, acts);
  });
  return row;
}

function drawNode(row, node, { holders, operator }) {
  row.node = node;
  row.holders = holders;
  row.operator = operator;
  attr(row, "data-condition", node.condition);
  attr(row, "tabindex", row.previousElementSibling ? -1 : 0);
  text(row.querySelector(".name"), node.id);
  attr(row.querySelector(".name"), "title", node.id);
  const condition = row.querySelector(".condition");
  text(condition, node.badge);
  attr(condition, "title", node.note);
  const capacity = row.querySelector(".capacity");
  text(capacity, node.capacity);
  attr(capacity, "class", `capacity ${node.capacity}`);
  text(row.querySelector(".price"), node.price);
  text(row.querySelector(".model"), node.model);
  attr(row.querySelector(".price"), "title", `pool ${node.pool}: ${node.price} per GPU-hour`);
  const held = node.cells.filter(([kind]) => kind === "h").length;
  attr(row, "aria-label", `${node.id}, ${node.capacity}, ${node.condition}${node.note ? `: ${node.note}` : ""}. ${held} of ${node.cells.length} GPUs held. Open details.`);
  keyed(row.querySelector(".cells"), node.cells, ([, index]) => index, () => el("span", { role: "img" }), (cell, value) => drawCell(cell, node, value, holders));
}

function drawCell(cell, node, [kind, index, holder], holders) {
  const lease = holders[holder];
  const key = `${kind}${lease?.id ?? ""}${node.condition}${lease?.label ?? ""}`;
  if (cell.drawn === key) return;
  cell.drawn = key;
  attr(cell, "class", lease ? `cell h${lease.hue} p${lease.letter.charCodeAt(0) % 4}` : `cell ${kind}`);
  attr(cell, "data-lease", lease?.id);
  const words = `${node.id} GPU ${index}: ${lease ? lease.label : WORDS[kind]}`;
  attr(cell, "data-tip", node.condition === "ready" ? words : `${words} (${node.condition})`);
  attr(cell, "aria-label", words);
  text(cell, lease ? lease.letter : kind === "u" ? "?" : "");
}

/** Arrow keys move between the nodes of a group; Tab goes to the next group. */
function rove(event) {
  const step = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 }[event.key];
  const node = event.target.closest(".node");
  if (!step || !node) return;
  const next = step > 0 ? node.nextElementSibling : node.previousElementSibling;
  if (!next) return;
  event.preventDefault();
  node.tabIndex = -1;
  next.tabIndex = 0;
  next.focus();
}

function openNode(node, holders, acts) {
  const facts = [
    ["Condition", node.note ? `${node.condition}: ${node.note}` : node.condition],
    ["GPUs", node.model || "none reported"],
    ["GPU pool", `${node.pool}, ${node.capacity}, ${node.price}${node.price.startsWith("$") ? " per GPU-hour" : ""}`],
    ["Host", node.size],
  ];
  const list = el("dl", { class: "facts" }, ...facts.map(([term, value]) => el("div", {}, el("dt", {}, term), el("dd", {}, value))));
  const gpus = el("ul", { class: "gpus" }, ...node.cells.map((cell) => gpuLine(cell, holders)));
  show(node.id, list, gpus, ...(document.body.classList.contains("is-operator") ? [nodeActions(node, acts)] : []));
}

function gpuLine([kind, index, holder], holders) {
  const lease = holders[holder];
  const cell = el("span", { class: lease ? `cell h${lease.hue}` : `cell ${kind}`, "aria-hidden": "true" }, lease?.letter ?? (kind === "u" ? "?" : ""));
  const what = lease ? el("a", { href: `./leases/${encodeURIComponent(lease.id)}`, title: lease.label }, lease.label) : WORDS[kind];
  return el("li", {}, cell, el("span", { class: "soft" }, `GPU ${index}`), what);
}

function nodeActions(node, acts) {
  const cordon = el("button", { type: "button" }, node.cordoned ? "Open again" : "Cordon");
  cordon.addEventListener("click", () => acts.cordon(node, !node.cordoned));
  const drain = el("button", { type: "button", class: "danger" }, "Drain");
  drain.addEventListener("click", () => acts.drain(node));
  return el("footer", {}, cordon, drain);
}
