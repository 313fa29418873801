// The address of a search and of an open result, and what it says.

const PARTS = { query: "q", like: "like", without: "without", kind: "kind", where: "where", photo: "photo" };

/** What an address asks for; absent parts are null. */
export function read(search = location.search) {
  const parts = new URLSearchParams(search);
  const found = Object.fromEntries(Object.entries(PARTS).map(([name, key]) => [name, parts.get(key)?.trim() || null]));
  return { ...found, kind: found.kind === "text" ? "text" : "image" };
}

export function write(asked) {
  const parts = new URLSearchParams();
  for (const [name, key] of Object.entries(PARTS)) {
    if (asked[name] && !(name === "kind" && asked.kind === "image")) parts.set(key, asked[name]);
  }
  return parts.size ? `/?${parts}` : "/";
}

/** Whether two addresses are of the same search, whichever result is open. */
export function sameSearch(one, other) {
  return write({ ...one, photo: null }) === write({ ...other, photo: null }) && one.file === other.file;
}

/** Clicks on links of this page without a key are followed by `go(asked)`; others are the browser's. */
export function follow(element, go) {
  element.addEventListener("click", (event) => {
    const link = event.target.closest("a[href^='/?'], a[href='/']");
    if (!link || event.defaultPrevented || event.button || event.ctrlKey || event.metaKey || event.shiftKey || event.altKey) return;
    event.preventDefault();
    go(read(new URL(link.href).search), link);
  });
}
