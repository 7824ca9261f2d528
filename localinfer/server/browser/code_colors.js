// Colors of source code. highlight.js is loaded when the first code block is complete.

import { element } from "./dom.js";

const LIBRARY = "/page/libraries/highlight.min.js";
const MAX_LENGTH = 50_000; // characters; longer code stays without colors

let library = null, loading = null;

/** Color the text of a <code> element, now or when the library is loaded. Code of unknown languages stays as it is. */
export function color(code, text, language) {
  if (!language || text.length > MAX_LENGTH) return;
  if (library) draw(code, text, language);
  else (loading ??= import(LIBRARY)).then(loaded => { library = loaded.default; draw(code, text, language); }, () => { loading = null; });
}

function draw(code, text, language) {
  const name = language.split(/[\s,{:]/)[0].toLowerCase();
  if (!library.getLanguage(name)) return;
  const { value } = library.highlight(text, { language: name, ignoreIllegals: true });
  // A document in which nothing runs or loads. Without <body>, it would not have the spaces that the code begins with.
  const parsed = new DOMParser().parseFromString(`<body>${value}`, "text/html");
  code.replaceChildren(...copies(parsed.body));
}

/** Copies of text and of spans with their class; nothing else gets into the page. */
function copies(parent) {
  return [...parent.childNodes].map(node => {
    if (node.nodeType === Node.TEXT_NODE) return node.data;
    return node.localName === "span" ? element("span", copies(node), node.className) : node.textContent;
  });
}
