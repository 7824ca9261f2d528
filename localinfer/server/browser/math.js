// Formulas as MathML. KaTeX is loaded when the first formula is shown.

import { element } from "./dom.js";

const LIBRARY = "/page/libraries/katex.min.js";
const MAX_LENGTH = 4000;
const FORBIDDEN = /^(on|style$|href$|xlink|src$)/i; // attributes that no formula needs

let loading = null;

/** An element that shows a formula: its source at first, and MathML once KaTeX is loaded. */
export function formula(source, isDisplay, whole) {
  const made = element("span", [whole], isDisplay ? "formula display" : "formula");
  if (source.length > MAX_LENGTH) return made;
  if (globalThis.katex) draw(made, source, isDisplay);
  else (loading ??= import(LIBRARY)).then(() => draw(made, source, isDisplay), () => { loading = null; });
  return made;
}

/** Replace the source by MathML; a formula that KaTeX cannot read stays as it is. */
function draw(container, source, isDisplay) {
  const made = element("span");
  try {
    globalThis.katex.render(source, made, { output: "mathml", displayMode: isDisplay, throwOnError: true, trust: false, strict: "ignore", maxSize: 20, maxExpand: 300 });
  } catch { return; }
  for (const each of made.querySelectorAll("*")) {
    for (const name of each.getAttributeNames()) if (FORBIDDEN.test(name)) each.removeAttribute(name);
  }
  container.replaceChildren(...made.childNodes);
}
