// Calls of tools and their results, as blocks that can be unfolded, and the question whether a call may run.

import { at, button, element } from "./dom.js";
import { results } from "./prompt.js";
import { decide, isWaiting } from "./tools.js";

/** A block for each call of a message. */
export function callBlocks(node, nodes) {
  const done = node.tool_calls ? results(nodes.slice(nodes.indexOf(node) + 1)) : [];
  return (node.tool_calls ?? []).filter(Boolean).map(call => callBlock(call, done.find(each => each.tool_call_id === call.id)));
}

function callBlock(call, result) {
  const state = result ? result.note || (result.failed ? "failed" : "done") : isWaiting(call) ? "may it run?" : "not run";
  const block = element("details", [element("summary", [`Tool call: ${call.function.name} (${state})`])], "call");
  block.append(element("h3", ["Arguments"]), element("pre", [readable(call.function.arguments)]));
  if (result) block.append(element("h3", ["Result"]), element("pre", [readable(result.content)]));
  if (!isWaiting(call)) return block;
  block.open = true;
  const answer = isAllowed => { decide(call, isAllowed); at("question").focus(); }; // the buttons go away
  const run = button("Run", `Run ${call.function.name}`, () => answer(true));
  run.className = "primary";
  const question = element("div", [run, button("Decline", `Decline ${call.function.name}`, () => answer(false))], "consent");
  question.setAttribute("role", "group");
  question.setAttribute("aria-label", `May ${call.function.name} run with these arguments?`);
  block.append(question);
  return block;
}

/** JSON with line breaks; other text as it is. */
function readable(text) {
  try { return JSON.stringify(JSON.parse(text), null, 1); } catch { return text; }
}
