// The page: what is asked for, its address, and what happens in between.

import { Trouble, ask, post } from "./api.js";
import * as detail from "./detail.js";
import * as grid from "./grid.js";
import { fileName, make } from "./make.js";
import { askToken, offerLogOut } from "./token.js";
import * as upload from "./upload.js";

const PAGE = 40;
const get = (id) => document.getElementById(id);
const query = get("query");
const where = get("where");
const photos = []; // those searched for on this page, so that going back finds them again

let facts = null; // of the index and the server's limits
let request = null; // {mode: "text" | "photo" | "similar", ..., kind, where}
let running = null; // the request under way
let fetched = 0; // results that came, also those that are not shown twice
let more = false; // whether there are further results
let preview = null;

const chosenKind = () => document.querySelector("#kinds :checked").value;
const say = (words) => (get("status").textContent = words);
const quoted = (words) => `“${words.length > 80 ? `${words.slice(0, 80)}…` : words}”`;

// ---- asking

function search(next, { remember = true } = {}) {
  request = { kind: chosenKind(), where: where.value.trim() || null, ...next };
  if (remember) history.pushState(keepable(request), "", addressOf(request));
  document.title = `${nameOf(request)} – Quintet`;
  document.body.classList.remove("fresh");
  get("welcome").hidden = true;
  get("trouble").replaceChildren();
  showChip();
  more = false;
  fetched = 0;
  get("more").hidden = true;
  running?.abort();
  running = null;
  grid.clear();
  grid.wait();
  window.scrollTo({ top: 0 });
  say("Searching …");
  return load();
}

/** The next page of what is wished for. */
async function load() {
  if (running) return;
  const mine = (running = new AbortController());
  try {
    const answer = await send(mine.signal);
    grid.add(answer.hits);
    fetched += answer.hits.length;
    more = answer.more;
    report(answer.seconds);
  } catch (error) {
    if (mine.signal.aborted) return;
    grid.settle();
    await fail(error);
  } finally {
    if (running === mine) running = null;
  }
  if (running === null && more && nearEnd()) load();
}

function send(signal) {
  const window = { kind: request.kind, limit: PAGE, offset: fetched, ...(request.where && { where: request.where }) };
  const options = { signal };
  const waiting = () => say("The server is busy; asking again …");
  if (request.mode === "text") return post("/api/search", { query: request.query, ...window }, options, waiting);
  if (request.mode === "similar") return ask(`/api/similar?${new URLSearchParams({ id: request.id, ...window })}`, options, waiting);
  const upload = { method: "POST", headers: { "Content-Type": request.file.type || "application/octet-stream" }, body: request.file };
  return ask(`/api/search/image?${new URLSearchParams(window)}`, { ...upload, ...options }, waiting);
}

function report(seconds) {
  const count = grid.size();
  const things = request.kind === "text" ? "text" : "photo";
  get("more").hidden = !more;
  if (count === 0) {
    say("");
    const reason = request.where ? "Nothing passes the filter." : `There are no ${things}s in this index.`;
    get("trouble").replaceChildren(make("p", {}, reason));
    return;
  }
  const counted = `${more ? "the best " : ""}${count} ${things}${count === 1 ? "" : "s"}`;
  say(`${nameOf(request)}: ${counted}, ${seconds < 1 ? `${Math.max(1, Math.round(1000 * seconds))} ms` : `${seconds.toFixed(1)} s`}`);
}

async function fail(error) {
  if (!(error instanceof Trouble)) throw error;
  say("");
  if (error.code === "token_needed") return askToken(start);
  const titles = {
    unreachable: "No connection",
    unknown_words: "None of these words is known",
    unreadable_image: "This is not a photo that can be read",
    empty_query: "Nothing to search for",
  };
  const again = make("button", { type: "button", className: "main" }, "Try again");
  again.addEventListener("click", () => search(request, { remember: false }));
  const mends = ["unreachable", "busy", "too_many_requests", "too_slow", "store_unavailable", "unavailable", "stale_index", "internal"];
  const parts = [make("strong", {}, titles[error.code] ?? "That did not work"), make("p", {}, error.message)];
  get("trouble").replaceChildren(...parts, ...(mends.includes(error.code) ? [again] : []));
}

function nearEnd() {
  return document.documentElement.scrollHeight - window.scrollY - window.innerHeight < 900;
}

// ---- what is shown of the request, and its address

function nameOf({ mode, query, file, name }) {
  if (mode === "text") return quoted(query);
  return mode === "similar" ? `Like ${name}` : `Like ${file.name || "the pasted photo"}`;
}

function showChip() {
  if (preview) URL.revokeObjectURL(preview);
  preview = request.mode === "photo" ? URL.createObjectURL(request.file) : null;
  get("chip").hidden = request.mode === "text";
  query.value = request.mode === "text" ? request.query : "";
  query.placeholder = request.mode === "text" ? "Describe a photo" : "";
  get("chip").querySelector("span").textContent = nameOf(request);
  const image = get("chip").querySelector("img");
  image.hidden = request.mode === "similar" && request.itemKind === "text";
  image.src = preview ?? (request.mode === "similar" ? `/api/thumbnail?${new URLSearchParams({ id: request.id, size: 160 })}` : "");
}

function keepable({ file, ...others }) {
  if (!file) return others;
  photos.push(file);
  return { ...others, photo: photos.length - 1 };
}

function addressOf({ mode, query, id, kind, where }) {
  const parts = new URLSearchParams();
  if (mode === "text") parts.set("q", query);
  if (mode === "similar") parts.set("like", id);
  if (kind !== "image") parts.set("kind", kind);
  if (where) parts.set("where", where);
  return parts.size ? `/?${parts}` : "/";
}

async function fromAddress() {
  const parts = new URLSearchParams(location.search);
  const kept = history.state;
  where.value = parts.get("where") ?? "";
  get("filter").open = where.value !== "";
  const kind = document.querySelector(`#kinds [value="${parts.get("kind") === "text" ? "text" : "image"}"]`);
  kind.checked = true;
  if (parts.get("q")) return search({ mode: "text", query: parts.get("q") }, { remember: false });
  if (kept?.mode === "photo" && photos[kept.photo]) return search({ mode: "photo", file: photos[kept.photo] }, { remember: false });
  if (!parts.get("like")) return welcome();
  try {
    return similar(await ask(`/api/item?${new URLSearchParams({ id: parts.get("like") })}`), { remember: false });
  } catch (error) {
    return fail(error);
  }
}

function welcome() {
  running?.abort();
  request = null;
  more = false;
  grid.clear();
  grid.settle();
  document.title = "Quintet";
  document.body.classList.add("fresh");
  get("welcome").hidden = false;
  get("more").hidden = true;
  get("chip").hidden = true;
  get("trouble").replaceChildren();
  query.value = "";
  say("");
}

// ---- the ways to ask

function searchByText() {
  const words = query.value.trim();
  if (words) search({ mode: "text", query: words });
  else if (request && request.mode !== "text") search({ ...request, kind: chosenKind(), where: where.value.trim() || null });
  else query.focus();
}

function byPhoto(file) {
  if (facts && !mayUpload()) {
    const words = facts.access === "full" ? "This index cannot be searched by a photo." : "Your token is for searching by words only.";
    get("trouble").replaceChildren(make("strong", {}, "No search by a photo"), make("p", {}, words));
    return;
  }
  if (facts && file.size > facts.max_upload_bytes) {
    const limit = (facts.max_upload_bytes / 2 ** 20).toFixed(0);
    const words = `${file.name} is larger than the ${limit} MB that this server takes; choose a smaller one.`;
    get("trouble").replaceChildren(make("strong", {}, "This photo is too large"), make("p", {}, words));
    return;
  }
  search({ mode: "photo", file });
}

/** Not with a read-only token, nor where the matcher sees features instead of images. */
function mayUpload() {
  return facts.access === "full" && facts.index.can_search_by_image !== false;
}

function similar(item, options) {
  const name = item.kind === "text" ? quoted(item.text) : fileName(item);
  return search({ mode: "similar", id: item.id, name, itemKind: item.kind }, options);
}

// ---- listening

get("search").addEventListener("submit", (event) => {
  event.preventDefault();
  searchByText();
});
get("kinds").addEventListener("change", searchByText);
get("filter").addEventListener("toggle", () => {
  if (get("filter").open && document.activeElement?.tagName === "SUMMARY") where.focus();
});
get("unchip").addEventListener("click", () => {
  get("chip").hidden = true;
  query.placeholder = "Describe a photo";
  query.focus();
});
query.addEventListener("keydown", (event) => {
  if (event.key === "ArrowDown" && grid.size()) {
    event.preventDefault();
    grid.focus(0);
  }
});
document.addEventListener("keydown", (event) => {
  const typing = event.target.closest("input:not([type=radio], [type=file]), textarea, dialog");
  if (event.key === "/" && !typing && !event.ctrlKey && !event.metaKey) {
    event.preventDefault();
    query.select();
    query.focus();
  }
});
get("more").addEventListener("click", async () => {
  const from = grid.size();
  await load();
  grid.focus(from);
});
grid.listen((position) => detail.open(position, request.mode === "text" ? request.query : null), () => query.focus());
detail.listen(similar, load);
upload.listen(byPhoto);
new IntersectionObserver((entries) => {
  if (entries.some((entry) => entry.isIntersecting) && more) load();
}, { rootMargin: "900px" }).observe(get("rest"));
window.addEventListener("popstate", fromAddress);

async function start() {
  try {
    facts = await ask("/api/index");
  } catch (error) {
    return fail(error);
  }
  const counts = facts.index.counts ?? {};
  const name = (number, thing) => `${number.toLocaleString()} ${thing}${number === 1 ? "" : "s"}`;
  const parts = [name(counts.image ?? 0, "photo"), ...(counts.text ? [name(counts.text, "text")] : [])];
  get("facts").textContent = `${parts.join(" and ")}, searched with ${facts.index.matcher}.`;
  get("kinds").hidden = !counts.text;
  document.querySelector(".pick").hidden = get("file").disabled = !mayUpload();
  offerLogOut(facts.session);
  await fromAddress();
}

start();
