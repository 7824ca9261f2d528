// Markdown to the tokens of markdown-it: CommonMark with tables, struck text, bare links and formulas, without HTML.

import MarkdownIt from "/page/libraries/markdown-it.esm.min.mjs";

const ENDS = { "$$": "$$", "\\[": "\\]" }; // how a block of a formula begins, and how it ends
const MAX_LINES = 100; // of a block of a formula
const INLINE_FORMULA = /\$\$([^$]{1,2000}?)\$\$|\\\[([^]{1,2000}?)\\\]|\\\(([^]{1,2000}?)\\\)|\$(?=\S)([^$\n`]{0,400}?[^$\s\\`])\$(?!\d)/y;

const parser = new MarkdownIt({ html: false, linkify: true });
parser.linkify.set({ fuzzyLink: false, fuzzyEmail: false });
parser.validateLink = address => /^(https?|mailto):/i.test(address);
parser.block.ruler.before("fence", "formula", formulaBlock, { alt: ["paragraph", "blockquote", "list"] });
parser.inline.ruler.before("escape", "formula", inlineFormula);

/** The top-level blocks of a text: { source, tokens }. Blocks of equal sources look alike: a source contains the addresses of the text. */
export function parse(text) {
  const lines = text.split(/\r\n?|\n/), found = [], environment = {};
  const tokens = parser.parse(text, environment), addresses = JSON.stringify(environment.references ?? {}); // [name]: address
  let begun = [];
  for (const token of tokens) {
    begun.push(token);
    if (token.level || token.nesting > 0) continue;
    const [begin, end] = begun[0].map;
    found.push({ source: lines.slice(begin, end).join("\n") + addresses, tokens: begun });
    begun = [];
  }
  return found;
}

/** A rule of markdown-it: a formula whose first and last line begin and end with its marks, without empty lines. */
function formulaBlock(state, start, last, isProbe) {
  if (state.sCount[start] - state.blkIndent >= 4) return false; // indented code
  const line = index => state.getLines(index, index + 1, state.blkIndent, false).trim();
  const mark = line(start).slice(0, 2), end = ENDS[mark];
  if (!end) return false;
  const lines = [line(start).slice(2)];
  let next = start + 1;
  while (!lines.at(-1).includes(end)) {
    if (next >= Math.min(last, start + MAX_LINES) || state.isEmpty(next) || state.sCount[next] < state.blkIndent) return false;
    lines.push(line(next++));
    if (mark !== end && lines.at(-1).startsWith(mark)) return false;
  }
  const source = lines.join("\n");
  if (source.indexOf(end) !== source.length - 2) return false; // text follows
  if (isProbe) return true;
  const token = state.push("formula", "", 0);
  Object.assign(token, { content: source.slice(0, -2), markup: mark + source, block: true, map: [start, next] });
  state.line = next;
  return true;
}

/** A rule of markdown-it: a formula within a line. */
function inlineFormula(state, isProbe) {
  INLINE_FORMULA.lastIndex = state.pos;
  const found = INLINE_FORMULA.exec(state.src);
  if (!found) return false;
  const [all, display, display2, inline, inline2] = found;
  if (!isProbe) {
    const token = state.push("formula", "", 0);
    Object.assign(token, { content: display ?? display2 ?? inline ?? inline2, markup: all, block: (display ?? display2) !== undefined });
  }
  state.pos += all.length;
  return true;
}
