// Hovering: a quick tooltip for [data-tip], and every GPU of one lease lit together for [data-lease].

const tip = document.createElement("div");
tip.className = "tip";
tip.setAttribute("aria-hidden", "true"); // The same words are in aria-label.
document.body.append(tip);
let lit = null;

document.addEventListener("pointerover", ({ target }) => {
  if (!(target instanceof Element)) return;
  place(target.closest("[data-tip]"));
  light(target.closest("[data-lease]")?.dataset.lease ?? null);
});
document.addEventListener("pointerleave", () => light(null));
document.addEventListener("scroll", () => place(null), { passive: true, capture: true });

function place(over) {
  tip.classList.toggle("on", Boolean(over));
  if (!over) return;
  tip.textContent = over.dataset.tip;
  const box = over.getBoundingClientRect();
  const half = tip.offsetWidth / 2;
  const x = Math.min(Math.max(box.left + box.width / 2, half + 8), window.innerWidth - half - 8);
  const above = box.top > tip.offsetHeight + 12;
  tip.style.left = `${x - half}px`;
  tip.style.top = `${above ? box.top - tip.offsetHeight - 8 : box.bottom + 8}px`;
}

function light(lease) {
  if (lease === lit) return;
  lit = lease;
  relight();
}

/** Called after a refresh too: new cells of the lit lease join. */
export function relight() {
  document.body.classList.toggle("lighting", lit !== null);
  for (const old of document.querySelectorAll(".lit")) if (old.dataset.lease !== lit) old.classList.remove("lit");
  if (lit === null) return;
  for (const one of document.querySelectorAll(`[data-lease="${CSS.escape(lit)}"]`)) one.classList.add("lit");
}
