// The home page's examples, and menus of years, folders, cameras, orientations and places with their counts.

import { thumbnail } from "./api.js";
import { write } from "./address.js";
import { make } from "./make.js";

const NAMES = { year: "Year", folder: "Folder", camera: "Camera", orientation: "Shape", place: "Place" };
const facets = document.getElementById("facets");
const examples = document.getElementById("examples");
let latest = null; // of an answer that comes late nothing is shown

/** `asked` says what the links keep; `load()` gives the server's answer. */
export async function showFacets(asked, load) {
  const mine = (latest = {});
  const answer = await load().catch(() => ({ facets: [] })); // the search itself says what is wrong with the filter
  if (mine === latest) facets.replaceChildren(...answer.facets.map((facet) => menu(facet, asked)));
}

function menu({ name, choices }, asked) {
  const chosen = choices.find((choice) => choice.chosen);
  const address = ({ where }) => write({ ...asked, where, photo: null });
  const summary = make("summary", {}, chosen ? make("span", { className: "unseen" }, `${NAMES[name]}: `) : "", chosen?.label ?? NAMES[name]);
  const links = choices.map((choice) => {
    const link = make("a", { href: address(choice) }, make("span", {}, choice.label), make("span", { className: "count" }, choice.count.toLocaleString("en")));
    if (choice.chosen) link.setAttribute("aria-current", "true");
    return make("li", {}, link);
  });
  const details = make("details", { className: chosen ? "menu on" : "menu", name: "facet" }, summary, make("ul", {}, ...links));
  details.dataset.name = name;
  const parts = [details];
  if (chosen) parts.push(make("a", { className: "remove", href: address(chosen), ariaLabel: `Remove the filter ${chosen.label}` }, "×"));
  return make("span", { className: "facet" }, ...parts);
}

export function closeMenus() {
  for (const menu of facets.querySelectorAll("details[open]")) menu.open = false;
}

/** Searches that lead to good results, each with its best photo. */
export async function showExamples(load) {
  if (examples.children.length) return;
  const found = (await load().catch(() => ({ examples: [] }))).examples; // the page works without
  examples.replaceChildren(...found.map(({ query, item }) => {
    const image = make("img", { alt: "", loading: "lazy", src: thumbnail(item.id, 320) });
    return make("li", {}, make("a", { href: write({ query }) }, image, make("span", {}, query)));
  }));
  document.getElementById("welcome").classList.toggle("empty", !found.length);
}

document.addEventListener("click", (event) => {
  for (const menu of facets.querySelectorAll("details[open]")) if (!menu.contains(event.target)) menu.open = false;
});
facets.addEventListener("keydown", (event) => {
  const menu = event.target.closest("details[open]");
  if (event.key !== "Escape" || !menu) return;
  event.stopPropagation();
  menu.open = false;
  menu.querySelector("summary").focus();
});
