// Markdown to DOM nodes. Text becomes text nodes and never HTML, so that a response cannot run scripts.

import { color } from "./code_colors.js";
import { copyText, element } from "./dom.js";
import { parse } from "./markdown_parser.js";
import { formula } from "./math.js";

const TAGS = {
  paragraph: "p", blockquote: "blockquote", bullet_list: "ul", ordered_list: "ol", list_item: "li", table: "table",
  thead: "thead", tbody: "tbody", tr: "tr", th: "th", td: "td", strong: "strong", em: "em", s: "s",
};
const TASK = /^\[([ xX])\] /; // at the beginning of an item

/** Render `text` in `container`. Unchanged leading blocks stay in the DOM, and with them the user's selection. */
export function show(container, text) {
  const blocks = parse(text), before = container.sources ?? [];
  let same = 0;
  while (same < blocks.length && blocks[same].source === before[same]) same++;
  while (container.children.length > same) container.lastChild.remove();
  for (const { tokens } of blocks.slice(same)) container.append(...nodes(tokens));
  container.sources = blocks.map(each => each.source);
}

/** The nodes of a list of tokens, in which each opened element is closed. */
function nodes(tokens) {
  const root = element("div"), open = [root];
  for (const token of tokens) {
    if (token.nesting < 0) { finish(open.pop(), token); continue; }
    const made = token.nesting > 0 ? [container(token)] : leaf(token);
    if (!token.hidden) open.at(-1).append(...made); // paragraphs of a list without empty lines are hidden
    if (token.nesting > 0) open.push(token.hidden ? open.at(-1) : made[0]);
  }
  return [...root.childNodes];
}

function container(token) {
  const kind = token.type.replace(/_open$/, "");
  if (kind === "heading") return element(`h${Math.min(Number(token.tag[1]) + 2, 6)}`);
  if (kind === "link") return link(token.attrGet("href"), []);
  const made = element(TAGS[kind]);
  if (kind === "ordered_list") made.start = token.attrGet("start") ?? 1;
  const alignment = /^text-align:(\w+)$/.exec(token.attrGet("style") ?? "");
  if (alignment) made.style.textAlign = alignment[1];
  return made;
}

/** What an element needs once its content is complete. */
function finish(made, token) {
  if (token.type === "table_close") { // it scrolls to the side within a box
    const box = element("div", [], "table");
    made.replaceWith(box);
    box.append(made);
  } else if (token.type === "list_item_close") markTask(made);
}

/** Replace the brackets of a task by a box. */
function markTask(item) {
  const first = item.firstChild?.localName === "p" ? item.firstChild.firstChild : item.firstChild;
  const found = first?.nodeType === Node.TEXT_NODE && TASK.exec(first.data);
  if (!found) return;
  first.data = `${found[1] === " " ? "☐" : "☑"} ${first.data.slice(4)}`;
  item.className = "task";
}

/** The nodes of a token without an end of its own. */
function leaf(token) {
  switch (token.type) {
    case "inline": return nodes(token.children);
    case "text": return textNodes(token.content);
    case "softbreak": return ["\n"];
    case "hardbreak": return [element("br")];
    case "code_inline": return [element("code", [token.content])];
    case "hr": return [element("hr")];
    case "fence": case "code_block": return [code(token)];
    case "formula": return [token.map ? element("p", [formulaOf(token)]) : formulaOf(token)];
    case "image": return [link(token.attrGet("src"), [token.content || token.attrGet("src")])]; // nothing is loaded from elsewhere
    default: return [token.content];
  }
}

const formulaOf = token => formula(token.content, token.block, token.markup);

/** Text in which `<br>` is a line break, because a cell of a table has no other one. */
function textNodes(text) {
  return text.split(/<br *\/?>/i).flatMap((part, index) => index ? [element("br"), part] : [part]);
}

function code(token) {
  const text = token.content.replace(/\n$/, ""), language = token.info.trim(), [begin, end] = token.map;
  const isComplete = token.type === "fence" && end - begin > text.split("\n").length + 1; // it has a last line
  const copy = element("button", ["Copy"]), shown = element("code", [text]);
  copy.type = "button";
  copy.addEventListener("click", () => copyText(text, copy));
  if (isComplete) color(shown, text, language);
  return element("div", [element("div", [language || "code", copy]), element("pre", [shown])], "code");
}

function link(address, content) {
  const anchor = element("a", content);
  anchor.href = address; anchor.rel = "noopener noreferrer"; anchor.target = "_blank";
  return anchor;
}
