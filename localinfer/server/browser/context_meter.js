// How much of the context the conversation uses, with a warning near its end.

import { at } from "./dom.js";
import * as server from "./server.js";
import { model, state } from "./state.js";
import { path } from "./tree.js";

const NEAR_END = 0.85; // of the context

const lengths = new Map(); // context length by model
const number = value => value.toLocaleString("en-US");

/** Show the tokens of the last response and everything before it. */
export async function showContext() {
  const used = path(state.conversation).findLast(node => node.used)?.used ?? 0;
  at("context").hidden = !used;
  if (!used) return;
  const length = await contextLength(model());
  at("context").hidden = !length;
  const isNearEnd = used > length * NEAR_END;
  at("context").classList.toggle("near-end", isNearEnd);
  at("context-bar").max = length;
  at("context-bar").value = used;
  const counts = `${number(used)} of ${number(length)} tokens of context`;
  at("context-text").textContent = isNearEnd ? `${counts}: nearly full. A message that no longer fits is refused; start a new conversation.` : counts;
}

/** The context length of a model, or 0 if the server does not tell. The model has just answered, so that it is loaded. */
async function contextLength(name) {
  if (!lengths.has(name)) {
    try { lengths.set(name, (await server.properties(name)).default_generation_settings.n_ctx); } catch { return 0; }
  }
  return lengths.get(name);
}
