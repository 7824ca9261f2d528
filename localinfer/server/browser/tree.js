// A conversation is a tree of messages; editing or regenerating a message adds a branch.
//
//   { id, title, changed, leaf, nodes: { id: { id, parent, role, content, ... } } }
//
// A message of the assistant may have reasoning, note, problem and tool_calls; one of the user may have attachments; one with
// the role "tool" has tool_call_id, name and failed. `leaf` is the last message that is shown.

const TITLE_LENGTH = 60;

export const newId = () => Date.now().toString(36) + Math.random().toString(36).slice(2, 8);
export const newConversation = () => ({ id: newId(), title: "", changed: Date.now(), nodes: {}, leaf: null });

/** Add a message after `parent` and make it the last one shown. */
export function add(conversation, parent, message) {
  const node = { id: newId(), parent, ...message };
  conversation.nodes[node.id] = node;
  conversation.leaf = node.id;
  if (!conversation.title && message.role === "user") conversation.title = titleOf(message);
  return node;
}

function titleOf(message) {
  return (message.content.trim() || message.attachments?.[0]?.name || "").slice(0, TITLE_LENGTH);
}

/** The messages from the first one to `last`; by default, those that are shown. */
export function path(conversation, last = conversation.leaf) {
  const found = [];
  for (let node = conversation.nodes[last]; node; node = conversation.nodes[node.parent]) found.unshift(node);
  return found;
}

const children = (conversation, id) => Object.values(conversation.nodes).filter(each => each.parent === id);

/** All versions of a message, including itself, in order of creation. */
export const versions = (conversation, node) => children(conversation, node.parent);

/** Show this message and the latest messages after it. */
export function select(conversation, node) {
  for (let next = node; next; next = children(conversation, next.id).at(-1)) conversation.leaf = next.id;
}

/**
 * A conversation with what another tab has made of it. Messages that only one of them has are kept if `mine` is being
 * changed (by a response or an edit); its last message is the one that is changed. Otherwise, what the other tab shows is
 * shown, with the messages after it that are shown here.
 */
export function merged(mine, other, isChanging) {
  if (isChanging) {
    for (const node of Object.values(other.nodes)) if (node.id !== mine.leaf) mine.nodes[node.id] = node;
    return mine;
  }
  if (path(other, mine.leaf).some(node => node.id === other.leaf)) other.leaf = mine.leaf;
  return other;
}

/** Remove a message and all that follow it. Another version of it is shown instead, or else what precedes it. */
export function remove(conversation, node) {
  const others = versions(conversation, node).filter(each => each !== node);
  const doomed = [node];
  for (const each of doomed) doomed.push(...children(conversation, each.id));
  for (const each of doomed) delete conversation.nodes[each.id];
  conversation.leaf = node.parent;
  if (others.length) select(conversation, others.at(-1));
}

/** A new conversation with the messages up to this one. */
export function branch(conversation, node) {
  const made = newConversation();
  for (const { id: _, parent: __, ...message } of path(conversation, node.id)) add(made, made.leaf, structuredClone(message));
  made.title = `${conversation.title.slice(0, TITLE_LENGTH)} (branch)`;
  return made;
}
