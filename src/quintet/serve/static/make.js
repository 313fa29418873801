// A small helper to build elements; text is always text, never markup. And what things are called.

/** make("p", {className: "x"}, "words", otherElement) */
export function make(tag, properties = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(properties)) {
    if (name in element) element[name] = value;
    else element.setAttribute(name, value);
  }
  element.append(...children);
  return element;
}

export function fileName(item) {
  return item.path?.split("/").pop() ?? item.id;
}

export function counted(number, thing) {
  return `${number.toLocaleString("en")} ${thing}${number === 1 ? "" : "s"}`;
}

export const quoted = (words) => `“${words.length > 80 ? `${words.slice(0, 80)}…` : words}”`;

/** With a capital letter, unless it begins with a name. */
export const sentence = (words) => words.replace(/^[a-z]+(?= )/, (first) => first[0].toUpperCase() + first.slice(1));
