// The results: a list of buttons that arrow keys move among, growing as it is scrolled.

import { thumbnail } from "./api.js";
import { fileName, make } from "./make.js";

const list = document.getElementById("results");
const hits = [];
const seen = new Set();

export const size = () => hits.length;
export const hit = (position) => hits[position];

export function clear() {
  hits.length = 0;
  seen.clear();
  list.replaceChildren();
}

/** Grey cards while a first answer is awaited. */
export function wait(count = 12) {
  list.setAttribute("aria-busy", "true");
  list.replaceChildren(...Array.from({ length: count }, () => make("li", { className: "blank", ariaHidden: "true" })));
}

export function settle() {
  list.setAttribute("aria-busy", "false");
  for (const blank of list.querySelectorAll(".blank")) blank.remove();
}

/** Append what is not there yet: an index that was exchanged meanwhile may repeat some. */
export function add(more) {
  settle();
  for (const found of more) {
    if (seen.has(found.item.id)) continue;
    seen.add(found.item.id);
    list.append(make("li", {}, card(found, hits.length)));
    hits.push(found);
  }
}

export function focus(position) {
  const cards = list.querySelectorAll(".card");
  const wanted = cards[Math.max(0, Math.min(position, cards.length - 1))];
  if (!wanted) return;
  for (const other of list.querySelectorAll('.card[tabindex="0"]')) other.tabIndex = -1;
  wanted.tabIndex = 0;
  wanted.focus();
}

function card(found, position) {
  const { item, score } = found;
  const shown = score.toFixed(3);
  const words = item.kind === "text" ? item.text : fileName(item);
  const caption = make("span", { className: "caption" }, make("b", {}, String(position + 1)), make("span", { className: "file" }, item.kind === "text" ? "" : words), make("span", { className: "score" }, shown));
  const button = make("button", { type: "button", className: "card", tabIndex: position === 0 ? 0 : -1 }, item.kind === "text" ? make("span", { className: "said" }, words) : photo(item), caption);
  button.setAttribute("aria-label", `${position + 1}. ${words}, score ${shown}`);
  button.dataset.position = position;
  return button;
}

function photo(item) {
  const image = make("img", { alt: "", loading: "lazy", decoding: "async", width: 320, height: 320 });
  image.addEventListener("error", function again() {
    image.removeEventListener("error", again);
    image.addEventListener("error", () => image.replaceWith(make("span", { className: "gone" }, "The photo’s file is gone")));
    setTimeout(() => (image.src = `${thumbnail(item.id, 320)}&again`), 1500); // the server may only have been busy
  });
  image.src = thumbnail(item.id, 320);
  return image;
}

function step(key) {
  const columns = getComputedStyle(list).gridTemplateColumns.split(" ").length;
  return { ArrowRight: 1, ArrowLeft: -1, ArrowDown: columns, ArrowUp: -columns, Home: -Infinity, End: Infinity }[key];
}

/** `open(position)` when one is chosen, `leave()` when the keyboard goes up and out. */
export function listen(open, leave) {
  list.addEventListener("click", (event) => {
    const chosen = event.target.closest(".card");
    if (chosen) open(Number(chosen.dataset.position));
  });
  list.addEventListener("keydown", (event) => {
    const here = event.target.closest(".card");
    const by = step(event.key);
    if (!here || event.ctrlKey || event.metaKey || event.altKey) return;
    if (event.key === "Escape") return leave();
    if (by === undefined) return;
    event.preventDefault();
    const position = Number(here.dataset.position) + by;
    if (position < 0 && event.key === "ArrowUp") leave();
    else focus(position);
  });
}
