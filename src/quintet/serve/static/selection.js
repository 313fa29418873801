// Which photos are selected, and the bar that says what to do with them.

import { ask } from "./api.js";
import { counted, fileName } from "./make.js";

const MOST = 200; // that the server puts into one file
const get = (id) => document.getElementById(id);
const items = new Map(); // id -> item
let changed = () => {};
let full = false; // whether the server tells where files lie

export const has = (id) => items.has(id);
export const count = () => items.size;
/** Whether a click selects instead of opening. */
export const active = () => items.size > 0 || get("select").getAttribute("aria-pressed") === "true";

export function set(some, on) {
  for (const item of some) {
    if (on) items.set(item.id, item);
    else items.delete(item.id);
  }
  show();
}

export function clear() {
  items.clear();
  get("select").setAttribute("aria-pressed", "false");
  show();
}

export function allowPaths(allowed) {
  full = allowed;
}

export function listen(then) {
  changed = then;
  get("select").addEventListener("click", () => {
    const on = get("select").getAttribute("aria-pressed") !== "true";
    if (!on) return clear();
    get("select").setAttribute("aria-pressed", "true");
    show();
  });
  get("clear").addEventListener("click", () => {
    clear();
    get("select").focus();
  });
  get("copy").addEventListener("click", copyPaths);
  get("download").addEventListener("click", (event) => {
    if (items.size <= MOST) return;
    event.preventDefault();
    get("selected").textContent = `At most ${MOST} photos go into one file; ${items.size} are selected.`;
  });
}

function show() {
  const on = active();
  get("bar").hidden = !on;
  document.body.classList.toggle("selecting", on);
  get("select").textContent = on ? "Cancel" : "Select";
  get("selected").textContent = items.size ? `${counted(items.size, "photo")} selected` : "Choose photos";
  const [first] = items.values();
  const link = get("download");
  link.hidden = get("copy").hidden = !items.size;
  link.download = items.size === 1 ? fileName(first) : "photos.zip";
  const ids = new URLSearchParams([...items.keys()].map((id) => ["id", id]));
  link.href = items.size === 1 ? `/api/image?${ids}` : `/api/download?${ids}`;
  changed();
}

/** Whole paths for who may know them, else those inside the indexed folder; a line each. */
async function copyPaths() {
  const ids = [...items.keys()];
  let paths = [];
  try {
    for (let start = 0; full && start < ids.length; start += MOST) {
      const some = new URLSearchParams(ids.slice(start, start + MOST).map((id) => ["id", id]));
      paths.push(...(await ask(`/api/paths?${some}`)).paths);
    }
    if (!full) paths = [...items.values()].map((item) => item.path ?? item.id);
    await write(paths.join("\n"));
    get("selected").textContent = `${counted(paths.length, "path")} copied`;
  } catch (error) {
    get("selected").textContent = error.message;
  }
}

/** The clipboard's interface is there on this computer and with HTTPS only. */
async function write(text) {
  if (navigator.clipboard) return navigator.clipboard.writeText(text);
  const area = document.createElement("textarea");
  area.value = text;
  document.body.append(area);
  area.select();
  const done = document.execCommand("copy");
  area.remove();
  if (!done) throw new Error("This browser does not let the page copy.");
}
