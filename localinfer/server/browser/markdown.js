// Markdown to DOM nodes. Text becomes text nodes and never HTML, so that a response cannot run scripts.

import { color } from "./code_colors.js";
import { copyText, element } from "./dom.js";
import { formula } from "./math.js";

const MAX_DEPTH = 32; // of quotes, lists and emphasis; what is nested deeper is shown as text
const FENCE = /^ {0,3}(`{3,}|~{3,})\s*([^`]*)$/;
const HEADING = /^ {0,3}(#{1,6})\s(.*)$/;
const RULE = /^ {0,3}([-*_])(\s*\1){2,}\s*$/;
const ITEM = /^(\s*)([-*+]|\d{1,9}[.)])\s+(.*)$/;
const QUOTE = /^ {0,3}> ?(.*)$/;
const DIVIDER = /^\s*\|?\s*:?-+:?\s*(\|\s*:?-+:?\s*)*\|?\s*$/;
const FORMULA = /^\s*(?:\$\$([^]*)\$\$|\\\[([^]*)\\\])\s*$/; // a block
const FORMULA_ENDS = { "$$": "$$", "\\[": "\\]" }; // how a block begins, and how it ends
const INLINE_FORMULA = /\$\$([^$]{1,2000}?)\$\$|\\\[([^]{1,2000}?)\\\]|\\\(([^]{1,2000}?)\\\)|\$(?=\S)([^$\n`]{0,400}?[^$\s\\`])\$(?!\d)/;
const MARKS = /(`+)(.+?)\1(?!`)|\*\*(?=\S)(.+?)\*\*|__(?=\S)(.+?)__|~~(?=\S)(.+?)~~|\*(?=\S)([^*]+?)\*|(?<!\w)_(?=\S)([^_]+?)_(?!\w)|\[([^\]]+)\]\(([^()\s]+)\)|(https?:\/\/[^\s<>)\]]+)/;
const INLINE = new RegExp(`${MARKS.source}|${INLINE_FORMULA.source}`);

/** Render `text` in `container`. Unchanged leading blocks stay in the DOM, and with them the user's selection. */
export function show(container, text) {
  const sources = blocks(text), before = container.sources ?? [];
  let same = 0;
  while (same < sources.length && sources[same] === before[same]) same++;
  while (container.children.length > same) container.lastChild.remove();
  for (const source of sources.slice(same)) container.append(block(source));
  container.sources = sources;
}

/** Split the text into blocks at empty lines and around fenced code. */
export function blocks(text) {
  const found = [];
  let lines = [], fence = "", formulaEnd = "";
  const close = () => { if (lines.length) found.push(lines.join("\n")); lines = []; };
  for (const line of text.split("\n")) {
    const mark = FENCE.exec(line), formulaStart = line.trim().slice(0, 2);
    if (formulaEnd) {
      if (line.trim()) lines.push(line);
      if (!line.trim() || line.includes(formulaEnd)) { formulaEnd = ""; close(); }
    } else if (!fence && formulaStart in FORMULA_ENDS && !line.trim().slice(2).includes(FORMULA_ENDS[formulaStart])) {
      close(); lines.push(line); formulaEnd = FORMULA_ENDS[formulaStart];
    } else if (fence) {
      lines.push(line);
      if (mark && !mark[2].trim() && mark[1].startsWith(fence)) { fence = ""; close(); }
    } else if (mark) {
      close(); fence = mark[1]; lines.push(line);
    } else if (!line.trim()) {
      close();
    } else {
      const alone = HEADING.test(line) || RULE.test(line);
      if (alone || kind(line) !== kind(lines.at(-1) ?? line)) close();
      lines.push(line);
      if (alone) close();
    }
  }
  close();
  return found;
}

/** The kind of a line. Consecutive lines of one kind form a block; an indented line continues a list. */
function kind(line) {
  return ITEM.test(line) || /^\s{2,}\S/.test(line) ? "item" : QUOTE.test(line) ? "quote" : "text";
}

function block(source, depth = 0) {
  if (depth > MAX_DEPTH) return element("p", [source]);
  const lines = source.split("\n");
  const fence = FENCE.exec(lines[0]), heading = HEADING.exec(lines[0]), math = FORMULA.exec(source);
  if (fence) return code(lines, fence[2].trim());
  if (math) return element("p", [formula(math[1] ?? math[2], true, source)]);
  if (heading) return element(`h${Math.min(heading[1].length + 2, 6)}`, inline(heading[2].trim().replace(/#+$/, "").trimEnd()));
  if (RULE.test(lines[0])) return element("hr");
  if (ITEM.test(lines[0])) return list(lines, depth);
  if (QUOTE.test(lines[0])) {
    const quote = element("blockquote");
    for (const inner of blocks(lines.map(line => QUOTE.exec(line)?.[1] ?? line).join("\n"))) quote.append(block(inner, depth + 1));
    return quote;
  }
  if (lines.length > 1 && lines[0].includes("|") && DIVIDER.test(lines[1])) return table(lines);
  return element("p", inline(source));
}

function code(lines, language) {
  const isComplete = lines.length > 1 && FENCE.test(lines.at(-1));
  const text = lines.slice(1, isComplete ? -1 : undefined).join("\n");
  const copy = element("button", ["Copy"]), shown = element("code", [text]);
  copy.type = "button";
  copy.addEventListener("click", () => copyText(text, copy));
  if (isComplete) color(shown, text, language);
  return element("div", [element("div", [language || "code", copy]), element("pre", [shown])], "code");
}

/** A list. Items that are indented further form a nested list in the preceding item. */
function list(lines, depth) {
  const [, indent, mark] = ITEM.exec(lines[0]);
  const whole = element(/\d/.test(mark) ? "ol" : "ul");
  if (/\d/.test(mark)) whole.start = parseInt(mark);
  let inner = [];
  const close = () => { if (inner.length) whole.lastChild.append(nested(inner, depth + 1)); inner = []; };
  for (const line of lines) {
    const item = ITEM.exec(line);
    if (item && item[1].length <= indent.length + 1) { close(); whole.append(element("li", inline(item[3]))); } else inner.push(line);
  }
  close();
  return whole;
}

/** What is indented within an item of a list. */
function nested(lines, depth) {
  if (depth > MAX_DEPTH) return element("p", [lines.join("\n")]);
  return ITEM.test(lines[0]) ? list(lines, depth) : element("p", inline(lines.join(" ")));
}

function table(lines) {
  const cells = line => line.trim().replace(/^\||\|$/g, "").split("|").map(each => each.trim());
  const row = (line, name) => element("tr", cells(line).map(each => element(name, inline(each))));
  const [head, , ...body] = lines;
  return element("table", [element("thead", [row(head, "th")]), element("tbody", body.map(line => row(line, "td")))]);
}

/** The nodes of inline Markdown: emphasis, code, links and formulas. */
function inline(text, depth = 0) {
  const nodes = [];
  let found;
  if (depth > MAX_DEPTH) return [text];
  while ((found = INLINE.exec(text))) {
    const [all, , codeText, strong, strong2, struck, weak, weak2, label, address, bare, ...formulas] = found;
    const math = formulas.find(each => each !== undefined);
    if (found.index) nodes.push(text.slice(0, found.index));
    if (codeText !== undefined) nodes.push(element("code", [codeText]));
    else if (strong ?? strong2) nodes.push(element("strong", inline(strong ?? strong2, depth + 1)));
    else if (struck) nodes.push(element("s", inline(struck, depth + 1)));
    else if (weak ?? weak2) nodes.push(element("em", inline(weak ?? weak2, depth + 1)));
    else if (math !== undefined) nodes.push(formula(math, formulas[0] === math || formulas[1] === math, all));
    else nodes.push(link(label ?? bare, address ?? bare, all));
    text = text.slice(found.index + all.length);
  }
  return text ? [...nodes, text] : nodes;
}

function link(label, address, all) {
  if (!/^(https?|mailto):/i.test(address)) return all;
  const anchor = element("a", [label]);
  anchor.href = address; anchor.rel = "noopener noreferrer"; anchor.target = "_blank";
  return anchor;
}
