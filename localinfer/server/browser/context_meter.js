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
  const shown = state.conversation, used = path(shown).findLast(node => node.used)?.used ?? 0;
  const length = used ? await contextLength(model()) : 0;
  if (shown !== state.conversation) return; // another conversation was opened meanwhile
  const isNearEnd = Boolean(length) && used > length * NEAR_END;
  at("context").hidden = !used;
  at("context").classList.toggle("near-end", isNearEnd);
  at("context-bar").hidden = !length;
  at("context-bar").max = length || 1;
  at("context-bar").value = used;
  const counts = `${number(used)}${length ? ` of ${number(length)}` : ""} tokens of context`;
  at("context-text").textContent = isNearEnd ? `${counts}: nearly full. A message that no longer fits is refused; start a new conversation.` : counts;
}

/** The context length of a model, or 0 while it is not loaded: the server tells it then without loading the model. */
async function contextLength(name) {
  if (!lengths.has(name)) {
    try {
      const found = (await server.models(() => {})).find(each => each.id === name);
      if (!found?.meta) return 0;
      lengths.set(name, found.meta.n_ctx);
    } catch { return 0; }
  }
  return lengths.get(name);
}
