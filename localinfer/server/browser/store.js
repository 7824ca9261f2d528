// Conversations in the browser's local storage. A conversation is a tree; editing or regenerating adds a branch.
//
//   { id, title, changed, nodes: { id: { id, parent, role, content, reasoning, note } }, leaf }

const PREFIX = "localinfer.conversation.";

export const made = () => ({ id: newId(), title: "", changed: Date.now(), nodes: {}, leaf: null });
const newId = () => Date.now().toString(36) + Math.random().toString(36).slice(2, 8);

export function all() {
  const found = Object.keys(localStorage).filter(key => key.startsWith(PREFIX)).map(key => read(key)).filter(Boolean);
  return found.sort((a, b) => b.changed - a.changed);
}

export function read(key) {
  try { return JSON.parse(localStorage.getItem(key)); } catch { return null; }
}

/** Save a conversation; returns false if the storage is full. */
export function save(conversation) {
  conversation.changed = Date.now();
  return write(PREFIX + conversation.id, conversation);
}

export function write(key, value) {
  try { localStorage.setItem(key, JSON.stringify(value)); return true; } catch { return false; }
}

export const remove = conversation => localStorage.removeItem(PREFIX + conversation.id);

/** Add a message after `parent` and make it the last one shown. */
export function add(conversation, parent, message) {
  const node = { id: newId(), parent, ...message };
  conversation.nodes[node.id] = node;
  conversation.leaf = node.id;
  if (!conversation.title && message.role === "user") conversation.title = message.content.trim().slice(0, 60);
  return node;
}

/** The messages that are shown, from first to last. */
export function path(conversation) {
  const found = [];
  for (let node = conversation.nodes[conversation.leaf]; node; node = conversation.nodes[node.parent]) found.unshift(node);
  return found;
}

/** All versions of a message, including itself, in order of creation. */
export const versions = (conversation, node) => Object.values(conversation.nodes).filter(each => each.parent === node.parent);

/** Show this version and the latest messages after it. */
export function selectVersion(conversation, node) {
  for (let next = node; next; next = Object.values(conversation.nodes).filter(each => each.parent === next.id).at(-1)) conversation.leaf = next.id;
}
