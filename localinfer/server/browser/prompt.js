// The request that continues a conversation: its messages, and the options of the settings.

import { settings } from "./preferences.js";

export const SAMPLING = ["temperature", "top_p", "top_k", "min_p", "repeat_penalty", "max_tokens", "seed"];
const NOT_RUN = "This call was not run.";
const MAX_BYTES = 31 << 20; // of messages; the server accepts requests of 32 MiB, which have options and tools, too

/** The messages of the nodes of a conversation, in the format of the chat API. */
export function messages(nodes) {
  const made = settings.system ? [{ role: "system", content: settings.system }] : [];
  nodes.forEach((node, index) => {
    if (node.role === "user") made.push({ role: "user", content: userContent(node) });
    else if (node.role === "tool") made.push({ role: "tool", tool_call_id: node.tool_call_id, content: node.content });
    else if (node.tool_calls?.length) {
      made.push({ role: "assistant", content: node.content || null, tool_calls: node.tool_calls });
      made.push(...missingResults(node, nodes.slice(index + 1)));
    } else made.push({ role: "assistant", content: node.content });
  });
  return made;
}

/** Whether a request with the messages of these nodes is small enough for the server. */
export const fits = nodes => new Blob([JSON.stringify(messages(nodes))]).size <= MAX_BYTES;

/** Results of the calls that have none, because the answer was stopped: chat templates expect one for each. */
function missingResults(node, later) {
  const answered = new Set(results(later).map(each => each.tool_call_id));
  return node.tool_calls.filter(call => !answered.has(call.id)).map(call => ({ role: "tool", tool_call_id: call.id, content: NOT_RUN }));
}

/** The results of tool calls at the beginning of these nodes. */
export function results(nodes) {
  const end = nodes.findIndex(node => node.role !== "tool");
  return end < 0 ? nodes : nodes.slice(0, end);
}

/** The text of a message with its attached files in front, and images, sounds and videos as parts of their own. */
function userContent(node) {
  const files = node.attachments ?? [];
  const text = [...files.filter(each => each.text !== undefined).map(fenced), node.content].filter(Boolean).join("\n\n");
  const images = files.filter(each => each.image).map(each => ({ type: "image_url", image_url: { url: each.image } }));
  const sounds = files.filter(each => each.audio).map(soundPart);
  const videos = files.filter(each => each.video).map(each => ({ type: "input_video", input_video: { url: each.video } }));
  const media = [...images, ...sounds, ...videos];
  return media.length ? [...media, { type: "text", text }] : text;
}

function soundPart({ audio, name }) {
  return { type: "input_audio", input_audio: { data: audio.slice(audio.indexOf(",") + 1), format: name.split(".").pop().toLowerCase() } };
}

/** A file as a code block whose fence is longer than all fences in the file. */
function fenced(file) {
  const longest = Math.max(2, ...(file.text.match(/`+/g) ?? []).map(each => each.length));
  const fence = "`".repeat(longest + 1);
  return `${file.name}:\n${fence}\n${file.text.replace(/\n$/, "")}\n${fence}`;
}

/** The options of the settings, in the format of the chat API. */
export function options() {
  const given = SAMPLING.filter(name => settings[name] !== undefined && settings[name] !== "");
  const chosen = Object.fromEntries(given.map(name => [name, Number(settings[name])]));
  if (settings.reasoning) chosen.chat_template_kwargs = { enable_thinking: settings.reasoning === "on" };
  return chosen;
}
