// One result, large: its facts, the words that mattered, and where each of them looked.

import { post, thumbnail } from "./api.js";
import { write } from "./address.js";
import * as grid from "./grid.js";
import { fileName, make } from "./make.js";

const SVG = "http://www.w3.org/2000/svg";
const SWIPE = 50; // pixels
const get = (id) => document.getElementById(id);
const dialog = get("detail");
let position = -1; // among the results; -1: it is none of them
let shown = null; // the item
let query = null;
let explaining = null;
let moved = () => {};
let loadMore = async () => {};

/** `asked` is what was searched for, whose text is explained. `score` is null where nothing was. */
export function open({ item, score }, asked) {
  query = asked.query;
  position = grid.positionOf(item.id);
  shown = item;
  if (!dialog.open) dialog.showModal();
  show(item, score);
}

export function close() {
  if (dialog.open) dialog.close();
}

export const isOpen = () => dialog.open;

/** `onMove(item)` when another result is shown, `onClose()` when the reader closes it; `more()` loads further results. */
export function listen(onMove, onClose, more) {
  moved = onMove;
  loadMore = more;
  get("close").addEventListener("click", onClose);
  get("previous").addEventListener("click", () => go(-1));
  get("next").addEventListener("click", () => go(1));
  dialog.addEventListener("cancel", (event) => {
    event.preventDefault(); // Escape: the address changes, too
    onClose();
  });
  dialog.addEventListener("close", () => {
    explaining?.abort();
    get("detail-photo").removeAttribute("src");
    const back = grid.positionOf(shown.id);
    if (back >= 0) grid.focus(back);
  });
  dialog.addEventListener("click", (event) => {
    if (event.target === dialog) onClose(); // the backdrop
  });
  dialog.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    if (event.key === "ArrowLeft") go(-1);
    if (event.key === "ArrowRight") go(1);
  });
  listenForSwipes(dialog.querySelector(".stage"), onClose);
}

/** Left and right lead to the next and the previous result, down closes. */
function listenForSwipes(stage, onClose) {
  let start = null;
  stage.addEventListener("pointerdown", (event) => {
    start = event.pointerType === "mouse" || !event.isPrimary ? null : event;
  });
  stage.addEventListener("pointerup", (event) => {
    if (!start || !event.isPrimary || visualViewport?.scale > 1.05) return; // a photo that is zoomed is moved
    const [x, y] = [event.clientX - start.clientX, event.clientY - start.clientY];
    start = null;
    if (Math.abs(x) > SWIPE && Math.abs(x) > 1.5 * Math.abs(y)) go(x < 0 ? 1 : -1);
    else if (y > 2 * SWIPE && y > 1.5 * Math.abs(x)) onClose();
  });
  stage.addEventListener("pointercancel", () => (start = null));
}

async function go(by) {
  if (position < 0 || position + by < 0) return;
  if (position + by >= grid.size()) await loadMore();
  if (!dialog.open || position + by >= grid.size()) return;
  position += by;
  const { item, score } = grid.hit(position);
  shown = item;
  show(item, score);
  moved(item);
}

function show(item, score) {
  const isText = item.kind === "text";
  get("detail-name").textContent = isText ? "A text" : fileName(item);
  const number = position < 0 ? "" : `Result ${position + 1}`;
  get("position").textContent = [number, score === null ? "" : `score ${score.toFixed(3)}`].filter(Boolean).join(", ");
  get("previous").disabled = position <= 0;
  get("next").disabled = position < 0;
  get("detail-facts").replaceChildren(...facts(item));
  get("detail-text").hidden = !isText;
  get("detail-text").textContent = item.text ?? "";
  const file = `/api/image?${new URLSearchParams({ id: item.id })}`;
  for (const id of ["original", "save"]) {
    get(id).hidden = isText;
    get(id).href = file;
  }
  get("save").download = fileName(item);
  get("similar").href = write({ like: item.id });
  get("regions").replaceChildren();
  dialog.querySelector(".frame").hidden = isText;
  if (!isText) showPhoto(item);
  for (const by of [1, -1]) prepare(position + by);
  explain(item);
}

/** The neighbours are loaded, so that the next step is quick. */
function prepare(number) {
  if (position < 0 || number < 0 || number >= grid.size()) return;
  const { item } = grid.hit(number);
  if (item.kind === "image") new Image().src = thumbnail(item.id, 1600);
}

function showPhoto(item) {
  const image = get("detail-photo");
  image.alt = fileName(item);
  image.classList.toggle("small", Math.max(item.metadata.width ?? 999, item.metadata.height ?? 999) < 400);
  const { width, height } = item.metadata;
  image.style.setProperty("--ratio", width > 0 && height > 0 ? width / height : 1); // its place, before it has come
  image.src = thumbnail(item.id, 1600);
}

function facts(item) {
  const { width, height, ...others } = item.metadata;
  const rows = {};
  if (item.path) rows.path = item.path;
  if (width && height) rows.size = `${width} × ${height}`;
  for (const [name, value] of Object.entries(others)) {
    rows[name] = name === "bytes" ? `${Math.max(1, Math.round(value / 1000)).toLocaleString()} kB` : String(value);
  }
  return Object.entries(rows).flatMap(([name, value]) => [make("dt", {}, name), make("dd", {}, value)]);
}

async function explain(item) {
  explaining?.abort();
  const mine = (explaining = new AbortController());
  get("why").hidden = query === null;
  get("words").replaceChildren();
  if (query === null) return;
  get("why-note").textContent = "Looking …";
  try {
    const answer = await post("/api/explain", { query, id: item.id }, { signal: mine.signal });
    if (!mine.signal.aborted) showWords(answer);
  } catch (error) {
    if (error.name !== "AbortError") get("why-note").textContent = error.message;
  }
}

function showWords({ words, regions }) {
  const largest = Math.max(...words.map(({ weight }) => Math.abs(weight)), 1e-9);
  const looks = align(words, regions ?? []);
  const buttons = words.map(({ word, weight }, number) => chip(word, weight, largest, looks[number]));
  get("why-note").textContent = regions
    ? "The longer its bar, the more a word mattered. Choose one to see where it looks."
    : "The longer its bar, the more a word mattered.";
  get("words").replaceChildren(...buttons.map((button) => make("li", {}, button)));
  const order = words.map((_, number) => number).sort((a, b) => words[b].weight - words[a].weight);
  const first = order.find((number) => looks[number]);
  if (first !== undefined) choose(buttons[first], looks[first]);
}

/** For each word what its tokens look at: a matcher may write "Running," as "run", "##ning" and ",". */
function align(words, regions) {
  const plain = (text) => text.toLowerCase().replace(/[^\p{L}\p{N}]/gu, "");
  const tokens = regions.filter(({ word }) => plain(word));
  let at = 0;
  return words.map(({ word }) => {
    for (let start = at; start < tokens.length; start++) {
      let [end, joined] = [start, ""];
      while (end < tokens.length && joined.length < plain(word).length) joined += plain(tokens[end++].word);
      if (!joined || joined !== plain(word)) continue;
      at = end;
      return together(tokens.slice(start, end));
    }
    return null;
  });
}

function together(tokens) {
  const weights = tokens[0].weights.map((_, box) => Math.max(...tokens.map((token) => token.weights[box])));
  return { boxes: tokens[0].boxes, weights };
}

function chip(word, weight, largest, look) {
  const bar = make("i", { className: weight < 0 ? "against" : "" });
  bar.style.width = `${(100 * Math.abs(weight)) / largest}%`;
  const chip = make(look ? "button" : "span", { className: "word", title: `the score falls by ${weight.toFixed(3)} without it` }, word, make("span", { className: "unseen" }, `, weight ${weight.toFixed(3)}`), bar);
  if (look) {
    chip.type = "button";
    chip.setAttribute("aria-pressed", "false");
    chip.addEventListener("click", () => choose(chip, look));
  }
  return chip;
}

/** Leave in the light what a word looks at, the brighter the more; pressing it again shows the bare photo. */
function choose(chip, { boxes, weights }) {
  const on = chip.getAttribute("aria-pressed") !== "true";
  for (const other of get("words").querySelectorAll("button")) other.setAttribute("aria-pressed", "false");
  chip.setAttribute("aria-pressed", String(on));
  get("regions").replaceChildren(...(on ? light(boxes, weights) : []));
}

function light(boxes, weights) {
  const largest = Math.max(...weights, 1e-9);
  const strengths = weights.map((weight) => Math.max(weight / largest, 0));
  const mask = svg("mask", { id: "looked-at" });
  mask.append(svg("rect", { width: 1, height: 1, fill: "white" }));
  mask.append(...boxes.map((box, number) => rectangle(box, { "fill-opacity": strengths[number] })));
  const edges = boxes.map((box, number) => rectangle(box, { class: "edge", "stroke-opacity": strengths[number] > 0.6 ? 1 : 0 }));
  return [mask, svg("rect", { class: "veil", width: 1, height: 1, mask: "url(#looked-at)" }), ...edges];
}

function rectangle([left, top, right, bottom], attributes) {
  return svg("rect", { x: left, y: top, width: right - left, height: bottom - top, ...attributes });
}

function svg(tag, attributes) {
  const element = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  return element;
}
