// The messages of the conversation, and how they are updated while the model responds.

import { at, element } from "./dom.js";
import { show } from "./markdown.js";
import { actions } from "./message_actions.js";
import { isBusy, state } from "./state.js";
import { callBlocks } from "./tool_blocks.js";
import { path } from "./tree.js";

const PICTURE_HEIGHT = 96; // pixels

let pendingNode = null; // the message to render in the next animation frame

/** Render all messages. */
export function showAll() {
  const nodes = path(state.conversation);
  keepAtEnd(() => at("messages").replaceChildren(...nodes.filter(node => node.role !== "tool").map(node => messageItem(node, nodes))));
  at("empty").hidden = nodes.length > 0;
  document.title = state.conversation.title ? `${state.conversation.title} · localinfer` : "localinfer";
}

/** Render a message that has changed, in the next animation frame. */
export function scheduleUpdate(node) {
  if (!pendingNode) requestAnimationFrame(() => { const next = pendingNode; pendingNode = null; keepAtEnd(() => update(next)); });
  pendingNode = node;
}

/** Render, and stay scrolled to the end if the end was visible. */
function keepAtEnd(draw) {
  const main = document.querySelector("main");
  const atEnd = main.scrollHeight - main.scrollTop - main.clientHeight < 60;
  draw();
  if (atEnd) scrollToEnd();
}

/** Scroll to the last message. */
export function scrollToEnd() {
  const main = document.querySelector("main");
  main.scrollTop = main.scrollHeight;
}

export const itemOf = node => at("messages").querySelector(`[data-id="${node.id}"]`);

function messageItem(node, nodes) {
  const item = element("li", [element("h2", [node.role === "user" ? "You" : "Model"])], node.role);
  item.dataset.id = node.id;
  if (node.role === "assistant") item.append(element("details", [element("summary", ["Reasoning"]), element("div")], "reasoning"));
  if (node.attachments?.length) item.append(element("ul", node.attachments.map(attachmentItem), "attachments"));
  item.append(element("div", [], "text"));
  item.append(...callBlocks(node, nodes));
  if (node.problem) { const line = element("p", [node.problem], "problem"); line.setAttribute("role", "alert"); item.append(line); }
  const isGenerating = isBusy() && node.id === state.conversation.leaf && !node.tool_calls;
  item.classList.toggle("writing", isGenerating);
  item.append(isGenerating ? element("div", [], "progress") : actions(node, nodes));
  fill(item, node);
  return item;
}

/** A file of a message. Its text can be unfolded; images are drawn on a canvas; of sounds and videos there is the name. */
function attachmentItem(file) {
  if (file.image) return element("li", [picture(file), file.name]);
  if (file.audio || file.video) return element("li", [file.name]);
  const text = element("pre"), details = element("details", [element("summary", [file.name]), text]);
  details.addEventListener("toggle", () => { text.textContent = file.text; }, { once: true }); // it may be long
  return element("li", [details]);
}

/** A canvas with an image, which nothing has to load. It goes away if the image is damaged. */
export function picture(file) {
  const canvas = element("canvas");
  canvas.setAttribute("role", "img");
  canvas.setAttribute("aria-label", file.name);
  drawImage(canvas, file.image).catch(() => canvas.remove());
  return canvas;
}

async function drawImage(canvas, address) {
  const content = Uint8Array.from(atob(address.split(",")[1]), each => each.charCodeAt(0));
  const image = await createImageBitmap(new Blob([content]));
  canvas.height = PICTURE_HEIGHT;
  canvas.width = Math.round(PICTURE_HEIGHT * image.width / image.height);
  canvas.getContext("2d").drawImage(image, 0, 0, canvas.width, canvas.height);
}

function fill(item, node) {
  const text = item.querySelector(".text");
  if (node.role === "user") { text.textContent = node.content; text.hidden = !node.content; return; }
  const reasoning = item.querySelector(".reasoning");
  reasoning.hidden = !node.reasoning?.trim();
  reasoning.lastChild.textContent = node.reasoning?.trim() ?? "";
  const isThinking = isBusy() && !node.content && node.id === state.conversation.leaf;
  reasoning.firstChild.textContent = isThinking ? "Reasoning …" : "Reasoning";
  show(text, node.content);
  fillProgress(item.querySelector(".progress"), node);
}

/** Show that the model has not begun, how much of the prompt is read, or how fast the answer is. */
function fillProgress(line, node) {
  if (!line) return;
  const { progress, speed } = state;
  if (progress && progress.processed < progress.total) {
    if (!line.querySelector("progress")) line.replaceChildren(element("progress"), element("span"));
    const bar = line.firstChild;
    bar.max = progress.total;
    bar.value = progress.processed;
    bar.setAttribute("aria-label", "Reading the prompt");
    line.lastChild.textContent = `Reading the prompt: ${number(progress.processed)} of ${number(progress.total)} tokens`;
  } else if (speed?.predicted_n > 1) {
    line.textContent = `${number(speed.predicted_n)} tokens, ${speed.predicted_per_second.toFixed(1)} tokens/s`;
  } else line.textContent = node.content || node.reasoning ? "" : "Waiting for the first token …";
}

const number = value => value.toLocaleString("en-US");

function update(node) {
  const item = itemOf(node);
  if (!item) return;
  fill(item, node);
  if (!node.tool_calls) return;
  for (const each of item.querySelectorAll(".call")) each.remove();
  item.querySelector(".text").after(...callBlocks(node, path(state.conversation)));
}
