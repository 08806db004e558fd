// Small helpers that change only what differs, so that focus, scroll and hover survive a refresh.

/** An element; `attributes` that are null are left out. Children are elements or text, never HTML. */
export function el(tag, attributes = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) attr(made, name, value);
  made.append(...children);
  return made;
}

export function attr(element, name, value) {
  if (value === null || value === undefined || value === false) {
    if (element.hasAttribute(name)) element.removeAttribute(name);
  } else if (element.getAttribute(name) !== String(value)) {
    element.setAttribute(name, value);
  }
}

export function text(element, value) {
  const wanted = String(value);
  if (element.textContent !== wanted) element.textContent = wanted;
}

/** Make the children of `parent` match `items`: one element per key, made once, updated in place, moved if needed. */
export function keyed(parent, items, key, make, update) {
  const old = new Map([...parent.children].map((child) => [child.dataset.key, child]));
  let place = parent.firstElementChild;
  for (const item of items) {
    const name = String(key(item));
    let child = old.get(name);
    if (!child) {
      child = make(item);
      child.dataset.key = name;
    }
    old.delete(name);
    update(child, item);
    if (child === place) place = place.nextElementSibling;
    else parent.insertBefore(child, place);
  }
  for (const gone of old.values()) gone.remove();
}

/** Make `live` look like `fresh` (both elements of one tag); elements with `data-keep` are left alone. */
export function morph(live, fresh) {
  if (live.dataset?.keep !== undefined) return;
  for (const { name } of [...live.attributes]) if (!fresh.hasAttribute(name) && name !== "open") live.removeAttribute(name);
  for (const { name, value } of fresh.attributes) attr(live, name, value);
  const wanted = [...fresh.childNodes];
  wanted.forEach((node, index) => {
    const have = live.childNodes[index];
    if (!have) live.append(node);
    else if (have.nodeType !== node.nodeType || have.nodeName !== node.nodeName) have.replaceWith(node);
    else if (node.nodeType === Node.ELEMENT_NODE) morph(have, node);
    else if (have.data !== node.data) have.data = node.data;
  });
  while (live.childNodes.length > wanted.length) live.lastChild.remove();
}
