// Export and import of conversations as JSON. An imported file is checked as a whole before anything is stored.

import { add, newConversation, newId } from "./tree.js";

const FORMAT = "localinfer conversations";
const VERSION = 1;
const ROLES = ["user", "assistant", "tool"];
const TEXTS = ["reasoning", "note", "problem", "tool_call_id", "name"]; // optional fields of a message

export const exported = conversations => ({ format: FORMAT, version: VERSION, conversations });

/** The conversations of an exported file, with new ids. Raises an error whose message says what is wrong. */
export function imported(text) {
  let value;
  try { value = JSON.parse(text); } catch { fail("is not JSON"); }
  if (Array.isArray(value)) return [fromList(value)]; // messages from first to last, as earlier versions exported them
  if (Array.isArray(value?.messages)) return [fromList(value.messages)];
  if (value?.format !== FORMAT || !Array.isArray(value.conversations)) fail("has no conversations");
  if (value.version !== VERSION) fail("was exported by another version");
  return value.conversations.map(fromTree);
}

function fail(what) { throw new Error(what); }

function fromList(list) {
  const made = newConversation();
  for (const each of list) if (each?.role !== "system") add(made, made.leaf, message(each));
  if (!made.leaf) fail("has no messages");
  return made;
}

/** A conversation whose messages form a tree: each one follows a known one or none, without cycles. */
function fromTree(value) {
  if (!isObject(value) || !isObject(value.nodes) || typeof value.title !== "string") fail("has a conversation without title or messages");
  const made = newConversation(), ids = new Map([[null, null]]);
  const rest = new Map(Object.entries(value.nodes));
  for (let before = -1; rest.size && rest.size !== before;) {
    before = rest.size;
    for (const [id, node] of rest) {
      if (!isObject(node)) fail("has a message that is not an object");
      if (!ids.has(node.parent ?? null)) continue;
      ids.set(id, newId());
      made.nodes[ids.get(id)] = { id: ids.get(id), parent: ids.get(node.parent ?? null), ...message(node) };
      rest.delete(id);
    }
  }
  if (rest.size) fail("has a message that follows no other");
  if (!ids.has(value.leaf ?? null)) fail("has a conversation whose last message is missing");
  return Object.assign(made, { title: value.title, leaf: ids.get(value.leaf ?? null), changed: Number(value.changed) || made.changed });
}

/** The known fields of a message. */
function message(value) {
  if (!isObject(value) || !ROLES.includes(value.role)) fail("has a message with an unknown role");
  if (typeof (value.content ?? "") !== "string") fail("has a message whose content is not text");
  const made = { role: value.role, content: value.content ?? "" };
  for (const name of TEXTS) if (typeof value[name] === "string") made[name] = value[name];
  if (Number.isFinite(value.used)) made.used = value.used;
  if (typeof value.failed === "boolean") made.failed = value.failed;
  if (value.attachments?.length) made.attachments = checked(value.attachments, attachment);
  if (value.tool_calls?.length) made.tool_calls = checked(value.tool_calls, toolCall);
  return made;
}

const checked = (list, check) => Array.isArray(list) ? list.map(check) : fail("has a field that is not a list");

function attachment(value) {
  const { name, size, text, image, audio, video } = value ?? {};
  if (typeof name !== "string" || typeof (text ?? image ?? audio ?? video) !== "string") fail("has an invalid attachment");
  if (image !== undefined && !/^data:image\/[\w.+-]+;base64,[\w+/=]*$/.test(image)) fail("has an invalid image");
  if (audio !== undefined && !/^data:audio\/[\w.+-]+;base64,[\w+/=]*$/.test(audio)) fail("has an invalid sound");
  if (video !== undefined && !/^data:video\/[\w.+-]+;base64,[\w+/=]*$/.test(video)) fail("has an invalid video");
  const content = text !== undefined ? { text } : image !== undefined ? { image } : audio !== undefined ? { audio } : { video };
  return { name, size: Number(size) || 0, ...content };
}

function toolCall(value) {
  const { id, function: called } = value ?? {};
  if (typeof id !== "string" || typeof called?.name !== "string" || typeof called.arguments !== "string") fail("has an invalid tool call");
  return { id, type: "function", function: { name: called.name, arguments: called.arguments } };
}

const isObject = value => typeof value === "object" && value !== null && !Array.isArray(value);
