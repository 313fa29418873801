// A server with a token: ask for it once, and keep the cookie that stands for it.

import { ask, post } from "./api.js";

const get = (id) => document.getElementById(id);
let proceed = () => {};

/** `then()` when the server knows us. */
export function askToken(then) {
  proceed = then;
  if (!get("ask").open) get("ask").showModal();
}

/** The button is shown where a cookie stands for a token. */
export function offerLogOut(session) {
  get("log-out").hidden = !session;
}

get("log-out").addEventListener("click", async () => {
  await ask("/api/session", { method: "DELETE" });
  location.assign("/");
});
get("ask").addEventListener("cancel", (event) => event.preventDefault()); // nothing works without it
get("ask-form").addEventListener("submit", async (event) => {
  event.preventDefault();
  try {
    await post("/api/session", { token: get("token").value.trim() });
  } catch (error) {
    get("ask-trouble").textContent = error.message;
    return;
  }
  get("ask").close();
  get("token").value = "";
  proceed();
});
