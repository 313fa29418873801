// The page: what is asked for, its address, and what happens in between.

import { Trouble, ask, post } from "./api.js";
import { follow, read, sameSearch, write } from "./address.js";
import * as detail from "./detail.js";
import { closeMenus, showExamples, showFacets } from "./facets.js";
import * as grid from "./grid.js";
import { counted, fileName, make, quoted, sentence } from "./make.js";
import * as selection from "./selection.js";
import { askToken, offerLogOut } from "./token.js";
import * as upload from "./upload.js";

const PAGE = 40;
const get = (id) => document.getElementById(id);
const [query, without, where] = [get("query"), get("without"), get("where")];
const photos = []; // those searched for on this page, so that going back finds them again

let first = JSON.parse(get("first").textContent || "{}"); // the server's answers that came with the page
let facts = null; // of the index and the server's limits
let request = null; // what is shown: {query, like, file, without, kind, where}
let like = null; // the item that results are like
let running = null; // the request under way
let fetched = 0; // results that came, also those that are not shown twice
let more = false; // whether there are further results
let preview = null;

const chosenKind = () => document.querySelector("#kinds :checked").value;
const say = (words) => (get("status").textContent = words);
const isSearch = ({ query, like, file }) => Boolean(query || like || file);
const isHome = (asked) => !isSearch(asked) && !asked.where && asked.kind === "image";

// ---- addresses

/** Go somewhere: a new entry of the history. A link that is gone then leaves its focus to the results. */
function go(asked, link) {
  if (asked.file) photos.push(asked.file);
  history.pushState(asked.file ? { file: photos.length - 1 } : null, "", write(asked));
  const arrived = arrive();
  if (link) get("results-head").focus({ preventScroll: true });
  return arrived;
}

/** Show what the address says: of another search its results, and the photo that is open. */
async function arrive() {
  const asked = { ...read(), file: photos[history.state?.file] ?? null };
  closeMenus();
  if (!asked.photo) detail.close();
  if (!request || !sameSearch(asked, request)) await search(asked);
  const { photo } = read(); // it may be another address by now
  if (!photo || photo !== asked.photo) return;
  const position = grid.positionOf(photo);
  if (position >= 0) return detail.open(grid.hit(position), request);
  try {
    const item = await known("item", `/api/item?${new URLSearchParams({ id: photo })}`);
    if (read().photo === item.id) detail.open({ item, score: null }, request);
  } catch (error) {
    detail.close();
    await fail(error);
  }
}

/** An answer that came with the page, once; or the server is asked. */
async function known(name, path, options) {
  const { [name]: answer, ...others } = first;
  first = others;
  return answer ?? ask(path, options);
}

function closeDetail() {
  if (history.state?.opened) return history.back(); // as the button of the browser and the phone does
  history.replaceState(history.state, "", write({ ...request, photo: null }));
  detail.close();
}

function openResult(position) {
  const { item } = grid.hit(position);
  history.pushState({ ...history.state, opened: true }, "", write({ ...request, photo: item.id }));
  detail.open(grid.hit(position), request);
}

// ---- asking

async function search(asked) {
  request = { ...asked, photo: null };
  running?.abort();
  const mine = (running = new AbortController());
  more = false;
  fetched = 0;
  showRequest();
  grid.clear(request);
  grid.wait();
  selection.clear();
  window.scrollTo({ top: 0 });
  say(isSearch(request) ? "Searching …" : "");
  const filter = request.where ? `?${new URLSearchParams({ where: request.where })}` : "";
  showFacets(request, () => known("facets", `/api/facets${filter}`));
  if (isHome(request)) showExamples(() => known("examples", "/api/examples"));
  like = null;
  try {
    if (request.like) like = await known("like", `/api/item?${new URLSearchParams({ id: request.like })}`, { signal: mine.signal });
  } catch (error) {
    if (!mine.signal.aborted) await fail(error);
    return;
  }
  if (mine.signal.aborted) return;
  showChip();
  running = null;
  return load();
}

/** The next page of what is asked for. */
async function load() {
  if (running) return;
  const mine = (running = new AbortController());
  try {
    const answer = await send(mine.signal);
    grid.add(answer.hits);
    fetched += answer.hits.length;
    more = answer.more;
    report(answer);
  } catch (error) {
    if (mine.signal.aborted) return;
    await fail(error);
  } finally {
    if (running === mine) running = null;
  }
  if (running === null && more && nearEnd()) load();
}

async function send(signal) {
  const { problem, results, ...others } = first;
  first = others;
  if (problem) throw new Trouble(problem.code, problem.message);
  if (results) return results;
  const { query, like, file, without, kind, where } = request;
  const window = { kind, limit: PAGE, offset: fetched, ...(where && { where }) };
  const options = { signal };
  const waiting = () => say("The server is busy; asking again …");
  const parts = { ...(query && { query }), ...(without && { exclude: without }) };
  if (file) {
    const sent = { method: "POST", headers: { "Content-Type": file.type || "application/octet-stream" }, body: file };
    return ask(`/api/search/image?${new URLSearchParams({ ...window, ...parts, duplicates: false })}`, { ...sent, ...options }, waiting);
  }
  if (like) return ask(`/api/similar?${new URLSearchParams({ id: like, ...window, ...parts, duplicates: false })}`, options, waiting);
  if (!query) return ask(`/api/newest?${new URLSearchParams(window)}`, options, waiting);
  const exclude = without ? [without] : [];
  return post("/api/search", { query, ...window, exclude, duplicates: false }, options, waiting);
}

function report({ seconds, total, note }) {
  const count = grid.size();
  const thing = request.kind === "text" ? "text" : "photo";
  get("more").hidden = !more;
  get("select").hidden = !count || thing === "text";
  if (count === 0) {
    say("");
    const reason = request.where ? "Nothing passes the filter." : `There are no ${thing}s in this index.`;
    get("trouble").replaceChildren(make("p", {}, reason));
    return;
  }
  if (isHome(request)) return say(about());
  if (total !== null && total !== undefined) return say(counted(total, thing));
  const time = seconds < 1 ? `${Math.max(1, Math.round(1000 * seconds))} ms` : `${seconds.toFixed(1)} s`;
  say(`${nameOf(request)}: ${more ? "the best " : ""}${counted(count, thing)}, ${time}${note ? `. Note: ${note}` : ""}`);
}

function about() {
  const counts = facts.index.counts ?? {};
  const parts = [counted(counts.image ?? 0, "photo"), ...(counts.text ? [counted(counts.text, "text")] : [])];
  return parts.join(" and ");
}

async function fail(error) {
  if (!(error instanceof Trouble)) throw error;
  say("");
  grid.settle();
  running = null;
  if (error.code === "token_needed") return askToken(start);
  if (error.code === "unreadable_image") get("chip").hidden = true; // what is typed next is a search of its own
  const titles = {
    unreachable: "No connection",
    unknown_words: "None of these words is known",
    unknown_item: "This photo is not in the index any more",
    unreadable_image: "This is not a photo that can be read",
    empty_query: "Nothing to search for",
    invalid_filter: "The filter cannot be read",
  };
  const again = make("button", { type: "button", className: "main" }, "Try again");
  again.addEventListener("click", () => {
    request = null;
    arrive();
  });
  const mends = ["unreachable", "busy", "too_many_requests", "too_slow", "store_unavailable", "unavailable", "stale_index", "internal"];
  const parts = [make("strong", {}, titles[error.code] ?? "That did not work"), make("p", {}, sentence(error.message))];
  get("trouble").replaceChildren(...parts, ...(mends.includes(error.code) ? [again] : []));
}

function nearEnd() {
  return document.documentElement.scrollHeight - window.scrollY - window.innerHeight < 900;
}

// ---- what is shown of the request

function nameOf({ query, file, without }) {
  const likeness = file ? `Like ${file.name || "the pasted photo"}` : like ? `Like ${likeName()}` : "";
  const parts = [likeness, query ? quoted(query) : "", without ? `without ${quoted(without)}` : ""];
  return parts.filter(Boolean).join(", ");
}

const likeName = () => (like.kind === "text" ? quoted(like.text) : fileName(like));

function showRequest() {
  const home = isHome(request);
  get("trouble").replaceChildren();
  get("more").hidden = get("select").hidden = true;
  get("welcome").hidden = !home;
  get("results-head").textContent = home ? "Recent photos" : isSearch(request) ? "Results" : request.kind === "text" ? "Texts" : "Photos";
  query.value = request.query ?? "";
  without.value = request.without ?? "";
  where.value = request.where ?? "";
  document.querySelector(`#kinds [value="${request.kind}"]`).checked = true;
  get("chip").hidden = true;
  document.title = home ? "Quintet" : `${isSearch(request) ? nameOf(request) : (request.where ?? "Texts")} – Quintet`;
}

function showChip() {
  if (preview) URL.revokeObjectURL(preview);
  preview = request.file ? URL.createObjectURL(request.file) : null;
  get("chip").hidden = !request.file && !like;
  query.placeholder = get("chip").hidden ? "Describe a photo" : "Add words";
  if (get("chip").hidden) return;
  document.title = `${nameOf(request)} – Quintet`;
  get("chip").querySelector("span").textContent = nameOf({ file: request.file });
  const image = get("chip").querySelector("img");
  image.hidden = like?.kind === "text";
  image.src = preview ?? `/api/thumbnail?${new URLSearchParams({ id: like.id, size: 160 })}`;
}

// ---- the ways to ask

/** What the form says. */
function searchByForm() {
  const words = query.value.trim();
  const next = { query: words || null, without: without.value.trim() || null, where: where.value.trim() || null, kind: chosenKind() };
  const shown = get("chip").hidden ? {} : { like: request?.like ?? null, file: request?.file ?? null };
  if (next.without && !words && !shown.like && !shown.file) {
    get("trouble").replaceChildren(make("strong", {}, "Nothing to search for"), make("p", {}, "Say also what the photo shows."));
    return query.focus();
  }
  return go({ ...next, ...shown });
}

function byPhoto(file) {
  if (!facts) return;
  const refuse = (title, words) => get("trouble").replaceChildren(make("strong", {}, title), make("p", {}, words));
  if (!mayUpload()) {
    return refuse("No search by a photo", facts.access === "full" ? "This index cannot be searched by a photo." : "Your token is for searching by words only.");
  }
  if (file.size > facts.max_upload_bytes) {
    const limit = (facts.max_upload_bytes / 2 ** 20).toFixed(0);
    return refuse("This photo is too large", `${file.name} is larger than the ${limit} MB that this server takes; choose a smaller one.`);
  }
  go({ query: query.value.trim() || null, without: null, where: where.value.trim() || null, kind: chosenKind(), file });
}

/** Not with a read-only token, nor where the matcher sees features instead of images. */
function mayUpload() {
  return facts.access === "full" && facts.index.can_search_by_image !== false;
}

// ---- listening

get("search").addEventListener("submit", (event) => {
  event.preventDefault();
  searchByForm();
});
get("kinds").addEventListener("change", searchByForm);
get("unchip").addEventListener("click", () => {
  get("chip").hidden = true;
  query.placeholder = "Describe a photo";
  query.focus();
  if (query.value.trim()) searchByForm();
});
query.addEventListener("keydown", (event) => {
  if (event.key === "ArrowDown" && grid.size()) {
    event.preventDefault();
    grid.focus(0);
  }
});
document.addEventListener("keydown", (event) => {
  const typing = event.target.closest("input:not([type=radio], [type=file], [type=checkbox]), textarea, dialog");
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
grid.listen(openResult, () => query.focus());
detail.listen((item) => history.replaceState(history.state, "", write({ ...request, photo: item.id })), closeDetail, load);
upload.listen(byPhoto);
for (const part of [document.querySelector("h1"), get("facets"), get("examples"), get("detail")]) follow(part, go);
new IntersectionObserver((entries) => {
  if (entries.some((entry) => entry.isIntersecting) && more) load();
}, { rootMargin: "900px" }).observe(get("rest"));
window.addEventListener("popstate", arrive);

async function start() {
  try {
    facts = await known("facts", "/api/index");
  } catch (error) {
    return fail(error);
  }
  get("kinds").hidden = !facts.index.counts?.text;
  document.querySelector(".pick").hidden = get("file").disabled = !mayUpload();
  selection.allowPaths(facts.access === "full");
  offerLogOut(facts.session);
  request = null;
  if (isHome(read()) && matchMedia("(hover: hover)").matches) query.focus({ preventScroll: true });
  await arrive();
}

start();
