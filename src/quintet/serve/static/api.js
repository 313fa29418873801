// Questions to the server. Every failure becomes a Trouble with words for people.

export class Trouble extends Error {
  constructor(code, message) {
    super(message);
    this.code = code;
  }
}

const PATIENCE = 3; // a busy server is asked this many times

/** The answer as JSON (or null). `waiting` is called before a busy server is asked again. */
export async function ask(path, options = {}, waiting = () => {}) {
  for (let attempt = 1; ; attempt++) {
    let response;
    try {
      response = await fetch(path, { credentials: "same-origin", ...options });
    } catch (error) {
      if (error.name === "AbortError") throw error;
      throw new Trouble("unreachable", "The server does not answer. Is it still running?");
    }
    if (response.ok) return response.status === 204 ? null : response.json();
    const problem = await response.json().catch(() => ({}));
    if (![429, 503].includes(response.status) || attempt === PATIENCE) {
      throw new Trouble(problem.code ?? `http_${response.status}`, problem.message ?? response.statusText);
    }
    waiting();
    await pause(1000 * (Number(response.headers.get("Retry-After")) || 1), options.signal);
  }
}

export function post(path, body, options, waiting) {
  const headers = { "Content-Type": "application/json" };
  return ask(path, { method: "POST", headers, body: JSON.stringify(body), ...options }, waiting);
}

export function thumbnail(id, size) {
  return `/api/thumbnail?${new URLSearchParams({ id, size })}`;
}

function pause(milliseconds, signal) {
  return new Promise((resolve, reject) => {
    const timer = setTimeout(resolve, milliseconds);
    signal?.addEventListener("abort", () => {
      clearTimeout(timer);
      reject(signal.reason);
    });
  });
}
