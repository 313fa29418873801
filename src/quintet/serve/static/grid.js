// The photos: links in justified rows that arrow keys move among, weak results below a line, growing as it is scrolled.

import { thumbnail } from "./api.js";
import { write } from "./address.js";
import { justify, ratioOf } from "./layout.js";
import { fileName, make } from "./make.js";
import * as selection from "./selection.js";

const [strong, weak] = [document.getElementById("results"), make("ol", { className: "grid", id: "weaker" })];
const line = make("section", { id: "weak", hidden: true }, make("h2", { id: "weak-head" }, "Weaker matches"), make("p", {}, "Random words fit these as well."), weak);
weak.setAttribute("aria-labelledby", "weak-head");
strong.after(line);

const cells = []; // {hit, element, link, rank}, as they are shown
const seen = new Set();
let asked = {}; // what the links add a photo to
let anchor = 0; // where a selected range begins

export const size = () => cells.length;
export const hit = (position) => cells[position].hit;
export const positionOf = (id) => cells.findIndex((cell) => cell.hit.item.id === id);
const lists = () => [strong, weak];

export function clear(next) {
  asked = next;
  cells.length = anchor = 0;
  seen.clear();
  line.hidden = true;
  for (const list of lists()) {
    for (const image of list.querySelectorAll("img")) if (!image.complete) image.removeAttribute("src"); // the next answer does not wait for it
    list.replaceChildren();
  }
}

/** Grey cards while a first answer is awaited. */
export function wait(count = 18) {
  strong.setAttribute("aria-busy", "true");
  strong.replaceChildren(...Array.from({ length: count }, () => make("li", { className: "blank", ariaHidden: "true" })));
  arrange();
}

export function settle() {
  strong.setAttribute("aria-busy", "false");
  for (const blank of strong.querySelectorAll(".blank")) blank.remove();
}

/** Append what is not there yet: an index that was exchanged meanwhile may repeat some. */
export function add(more) {
  settle();
  for (const found of more) {
    if (seen.has(found.item.id)) continue;
    seen.add(found.item.id);
    const cell = cellOf(found, seen.size);
    cells.push(cell);
    (found.weak ? weak : strong).append(cell.element);
  }
  line.hidden = !weak.children.length;
  if (cells.length && !document.querySelector('.open[tabindex="0"]')) current(0);
  arrange();
}

export function focus(position) {
  if (!cells.length) return;
  const wanted = Math.max(0, Math.min(position, cells.length - 1));
  current(wanted);
  cells[wanted].link.focus();
}

/** One stop for Tab: this photo and its box. */
function current(position) {
  for (const cell of cells) {
    cell.link.tabIndex = -1;
    if (cell.box) cell.box.tabIndex = -1;
  }
  cells[position].link.tabIndex = 0;
  if (cells[position].box) cells[position].box.tabIndex = 0;
}

// ---- one photo or text

function cellOf(found, rank, isCopy = false) {
  const { item, score } = found;
  const isText = item.kind === "text";
  const words = isText ? item.text : fileName(item);
  const link = make("a", { className: "open", href: write({ ...asked, photo: item.id }), tabIndex: -1 });
  const label = score === null ? [words, item.metadata.date].filter(Boolean).join(", ") : `${rank}. ${words}, score ${score.toFixed(3)}`;
  link.setAttribute("aria-label", isCopy ? `${words}, nearly the same` : label);
  link.append(isText ? make("span", { className: "said" }, words) : photo(item));
  if (!isText) link.append(make("span", { className: "caption", ariaHidden: "true" }, words));
  const element = make("li", { className: `card${isText ? " text" : ""}${isCopy ? " copy" : ""}` }, link);
  const cell = { hit: found, element, link, rank };
  if (!isText) element.append(tick(cell, words));
  if (found.duplicates?.length) element.append(alike(cell));
  return cell;
}

function photo(item) {
  const image = make("img", { alt: "", loading: "lazy", decoding: "async", draggable: false });
  const { width, height } = item.metadata;
  const address = thumbnail(item.id, Math.max(width, height) > 320 ? 640 : 320);
  image.addEventListener("error", function again() {
    image.removeEventListener("error", again);
    image.addEventListener("error", () => image.replaceWith(make("span", { className: "gone" }, "The photo’s file is gone")));
    setTimeout(() => (image.src = `${address}&again`), 1500); // the server may only have been busy
  });
  image.src = address;
  return image;
}

function tick(cell, words) {
  cell.box = make("input", { type: "checkbox", tabIndex: -1, checked: selection.has(cell.hit.item.id) });
  cell.box.setAttribute("aria-label", `Select ${words}`);
  return make("label", { className: "tick" }, cell.box);
}

/** "+3 alike": shows the photos that nearly equal this one behind it, or hides them again. */
function alike(cell) {
  const count = cell.hit.duplicates.length;
  const button = make("button", { type: "button", className: "alike" }, `+${count} alike`);
  button.setAttribute("aria-expanded", "false");
  button.addEventListener("click", () => {
    const at = cells.indexOf(cell) + 1;
    const open = button.getAttribute("aria-expanded") === "true";
    if (open) {
      for (const each of cells.splice(at, count)) each.element.remove();
      current(at - 1);
    } else {
      const copies = cell.hit.duplicates.map((item) => cellOf({ item, score: null }, cell.rank, true));
      cells.splice(at, 0, ...copies);
      cell.element.after(...copies.map((each) => each.element));
    }
    button.setAttribute("aria-expanded", String(!open));
    button.setAttribute("aria-label", open ? `+${count} alike` : "Hide alike");
    button.textContent = open ? `+${count} alike` : "Hide";
    arrange();
  });
  return button;
}

// ---- rows

function arrange() {
  for (const list of lists()) {
    const elements = [...list.children];
    if (!elements.length || !list.clientWidth) continue;
    list.classList.toggle("texts", elements[0].classList.contains("text"));
    if (list.classList.contains("texts")) continue;
    const shapes = new Map(cells.map(({ element, hit }) => [element, ratioOf(hit.item)]));
    justify(elements, elements.map((element, number) => shapes.get(element) ?? [1.5, 1, 0.75][number % 3]), list.clientWidth);
  }
}

let width = 0;
new ResizeObserver(([{ contentRect }]) => {
  if (contentRect.width === width) return;
  width = contentRect.width;
  arrange();
}).observe(strong);

// ---- keys and mouse

/** The position that an arrow key leads to; up and down go to what is nearest in the next row. */
function step(key, position) {
  if (key === "Home") return 0;
  if (key === "End") return cells.length - 1;
  if (key === "ArrowLeft" || key === "ArrowRight") return position + (key === "ArrowLeft" ? -1 : 1);
  const boxes = cells.map(({ element }) => element.getBoundingClientRect());
  const here = boxes[position];
  const beyond = boxes.map((box, number) => ({ box, number })).filter(({ box }) => (key === "ArrowDown" ? box.top >= here.bottom - 1 : box.bottom <= here.top + 1));
  if (!beyond.length) return key === "ArrowUp" ? -1 : cells.length - 1;
  const row = key === "ArrowDown" ? Math.min(...beyond.map(({ box }) => box.top)) : Math.max(...beyond.map(({ box }) => box.top));
  const away = ({ left, right }) => Math.abs((left + right) / 2 - (here.left + here.right) / 2);
  return beyond.filter(({ box }) => Math.abs(box.top - row) < 2).reduce((a, b) => (away(b.box) < away(a.box) ? b : a)).number;
}

function select(position, { range = false, on = null } = {}) {
  const { hit } = cells[position];
  const wanted = on ?? (range || !selection.has(hit.item.id));
  const [first, last] = range ? [Math.min(anchor, position), Math.max(anchor, position)] : [position, position];
  selection.set(cells.slice(first, last + 1).map((cell) => cell.hit.item).filter(({ kind }) => kind === "image"), wanted);
  if (!range) anchor = position;
}

/** `open(position)` when one is chosen, `leave()` when the keyboard goes up and out. */
export function listen(open, leave) {
  const at = (event) => cells.findIndex(({ element }) => element.contains(event.target));
  for (const list of lists()) {
    list.addEventListener("click", (event) => {
      const position = at(event);
      if (position < 0) return;
      const { target, shiftKey } = event;
      if (target.type === "checkbox") {
        current(position);
        select(position, { range: shiftKey, on: target.checked });
      } else if (target.closest(".open") && !event.ctrlKey && !event.metaKey && !event.altKey) {
        event.preventDefault();
        if (!shiftKey && !selection.active()) return open((anchor = position));
        current(position);
        select(position, { range: shiftKey });
      }
    });
    list.addEventListener("keydown", (event) => {
      const position = at(event);
      if (position < 0 || event.target.closest(".alike")) return;
      if (event.key === "a" && (event.ctrlKey || event.metaKey)) {
        event.preventDefault();
        selection.set(cells.map(({ hit }) => hit.item).filter(({ kind }) => kind === "image"), true);
      }
      if (event.ctrlKey || event.metaKey || event.altKey) return;
      if (event.key === "Escape") return selection.count() ? selection.clear() : leave();
      if (event.key === " " && event.target.closest(".open")) {
        event.preventDefault();
        return select(position, { range: event.shiftKey });
      }
      if (!["ArrowRight", "ArrowLeft", "ArrowDown", "ArrowUp", "Home", "End"].includes(event.key)) return;
      event.preventDefault();
      const next = step(event.key, position);
      if (next < 0 && event.key === "ArrowUp") return leave();
      focus(next);
      if (event.shiftKey) select(Math.max(0, Math.min(next, cells.length - 1)), { range: true });
    });
    list.addEventListener("dragstart", (event) => {
      const cell = cells[at(event)];
      if (cell?.hit.item.kind === "image") carry(event.dataTransfer, cell.hit.item);
    });
  }
  selection.listen(() => {
    for (const { hit, box, element } of cells) {
      if (box) box.checked = selection.has(hit.item.id);
      element.classList.toggle("chosen", selection.has(hit.item.id));
    }
  });
}

/** Dragged out of the window, a photo is its file. */
function carry(data, item) {
  const types = { jpg: "jpeg", jpeg: "jpeg", png: "png", webp: "webp", gif: "gif", avif: "avif", heic: "heic" };
  const name = fileName(item);
  const type = types[name.split(".").pop().toLowerCase()];
  const address = new URL(`/api/image?${new URLSearchParams({ id: item.id })}`, location.href).href;
  data.setData("DownloadURL", `${type ? `image/${type}` : "application/octet-stream"}:${name.replaceAll(":", "_")}:${address}`);
  data.setData("text/uri-list", address);
}
