// Answers: requests to the server, and calls of tools between them.

import { announce } from "./dom.js";
import { messages, options, results } from "./prompt.js";
import * as server from "./server.js";
import { announceChange, isBusy, model, save, state } from "./state.js";
import * as tools from "./tools.js";
import { add, path, select } from "./tree.js";

const DECLINED = { content: "The user declined this call.", failed: true, note: "declined" }; // the result of a call
const INCOMPLETE = "incomplete"; // the note of a response while it is generated, and afterwards if the page was closed meanwhile
const SAVE_INTERVAL = 2000; // milliseconds between saves of an answer that is being generated

/** Generate the assistant's next message after the last one shown. With `continues`, continue the last one. */
export async function generate(continues = false) {
  if (isBusy()) return;
  const mine = state.conversation, controller = state.controller = new AbortController();
  announce("The model is responding.");
  let node;
  try {
    do {
      node = continues ? mine.nodes[mine.leaf] : add(mine, mine.leaf, { role: "assistant", content: "", reasoning: "", note: "" });
      await respond(mine, node, continues, controller.signal);
      continues = false;
    } while (await runCalls(mine, node, controller.signal));
    announce("The response is complete.");
  } catch (error) {
    node.note = controller.signal.aborted ? "stopped" : "";
    if (!controller.signal.aborted) node.problem = error.message;
    announce(node.problem || "Stopped.");
  }
  await finish(mine);
}

/** Run the calls of the last response that were not run, and let the model go on. */
export async function resume() {
  if (isBusy()) return;
  const mine = state.conversation, controller = state.controller = new AbortController();
  const nodes = path(mine), index = nodes.findLastIndex(each => each.role === "assistant");
  let goesOn = false;
  try { goesOn = await runCalls(mine, nodes[index], controller.signal, results(nodes.slice(index + 1))); } catch { announce("Stopped."); }
  await finish(mine);
  if (goesOn) await generate();
}

async function finish(conversation) {
  state.controller = state.progress = state.speed = null;
  if (conversation.leaf) select(conversation, conversation.nodes[conversation.leaf]); // another tab may have gone on from there
  announceChange("conversation");
  await save(conversation);
}

/** Append the model's response to a message. */
async function respond(conversation, node, continues, signal) {
  node.problem = "";
  node.note = INCOMPLETE;
  save(conversation);
  state.progress = state.speed = null;
  announceChange("conversation");
  const nodes = path(conversation), offered = await unlessAborted(tools.definitions(), signal);
  const request = { model: model(), messages: messages(continues ? nodes : nodes.slice(0, -1)), ...options() };
  if (offered.length) request.tools = offered;
  let saved = Date.now();
  for await (const chunk of server.chunks(request, signal)) {
    addChunk(chunk, node);
    announceChange("message", node);
    if (Date.now() - saved > SAVE_INTERVAL) { saved = Date.now(); save(conversation); }
  }
  if (node.note === INCOMPLETE) node.note = ""; // it came without timings
}

/** Wait for a promise, at most until the signal aborts. */
function unlessAborted(promise, signal) {
  return Promise.race([promise, new Promise((_, reject) => signal.addEventListener("abort", () => reject(signal.reason)))]);
}

function addChunk(chunk, node) {
  const [choice] = chunk.choices, delta = choice?.delta ?? {};
  node.content += delta.content ?? "";
  node.reasoning += delta.reasoning_content ?? "";
  for (const part of delta.tool_calls ?? []) addCallPart(node, part);
  state.progress = chunk.prompt_progress ?? (delta.content || delta.reasoning_content || delta.tool_calls ? null : state.progress);
  if (!chunk.timings) return;
  if (!chunk.prompt_progress) state.speed = chunk.timings;
  if (!choice?.finish_reason) return;
  const { predicted_n, predicted_per_second, prompt_n, cache_n } = chunk.timings;
  const note = predicted_n ? `${predicted_n} tokens, ${predicted_per_second.toFixed(1)} tokens/s` : "the model wrote nothing";
  node.note = choice.finish_reason === "length" ? `${note}, length limit reached` : note;
  node.used = (prompt_n ?? 0) + (cache_n ?? 0) + predicted_n; // tokens of context
}

function addCallPart(node, part) {
  const calls = node.tool_calls ??= [];
  const call = calls[part.index] ??= { id: "", type: "function", function: { name: "", arguments: "" } };
  call.id ||= part.id ?? "";
  call.function.name ||= part.function?.name ?? "";
  call.function.arguments += part.function?.arguments ?? "";
}

/** Run the calls of a message that the user allows. Returns whether the model must go on. */
async function runCalls(conversation, node, signal, done = []) {
  const open = (node.tool_calls ?? []).filter(call => !done.some(each => each.tool_call_id === call.id));
  for (const call of open) {
    announce(`The model asks to run ${call.function.name}. Allow or decline it in the last message.`);
    const isAllowed = await tools.consent(call, signal);
    const result = isAllowed ? await tools.run(call, signal) : DECLINED;
    add(conversation, conversation.leaf, { role: "tool", tool_call_id: call.id, name: call.function.name, ...result });
    await save(conversation);
  }
  return open.length > 0;
}
