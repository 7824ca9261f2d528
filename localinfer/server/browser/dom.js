// Small helpers for the DOM.

export const at = id => document.getElementById(id);

export function element(name, children = [], className = "") {
  const made = document.createElement(name);
  made.append(...children);
  if (className) made.className = className;
  return made;
}

/** A button. `title` is also its accessible name. */
export function button(label, title, act) {
  const made = element("button", [label]);
  made.type = "button";
  if (title) { made.title = title; made.setAttribute("aria-label", title); }
  made.addEventListener("click", () => act(made));
  return made;
}

/** Copy to the clipboard and show the result on the button. */
export async function copyText(text, shown) {
  const label = shown.textContent;
  try { await navigator.clipboard.writeText(text); shown.textContent = "Copied"; } catch { shown.textContent = "Not allowed"; }
  setTimeout(() => { shown.textContent = label; }, 1200);
}

/** Let the user save a value as a JSON file. */
export function download(name, value) {
  const link = element("a");
  link.href = URL.createObjectURL(new Blob([JSON.stringify(value, null, 1)], { type: "application/json" }));
  link.download = name;
  link.click();
  URL.revokeObjectURL(link.href);
}

/** Let the user choose files. */
export function chooseFiles(accept, use) {
  const field = element("input");
  field.type = "file";
  field.accept = accept;
  field.multiple = true;
  field.addEventListener("change", () => use([...field.files]));
  field.click();
}

/** Tell screen readers, without showing it. */
export const announce = text => { at("status").textContent = text; };

/** Show a line until the user closes it or another one takes its place. */
export function notify(text, isProblem = true) {
  const line = at("notice");
  line.classList.toggle("problem", isProblem);
  line.querySelector("span").textContent = text;
  line.hidden = !text;
}
