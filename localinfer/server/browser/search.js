// Search for words in all conversations.

const CONTEXT = 30; // characters before a match in a snippet
const SNIPPET = 90;

/**
 * The conversations that have all the words, in their title or in one message: { conversation, node, snippet }. `node` is the
 * message, or null if the title has them.
 */
export function search(conversations, text) {
  const words = text.toLowerCase().split(/\s+/).filter(Boolean);
  return conversations.map(conversation => match(conversation, words)).filter(Boolean);
}

function match(conversation, words) {
  const has = text => words.every(word => text.toLowerCase().includes(word));
  if (has(conversation.title)) return { conversation, node: null, snippet: "" };
  for (const node of Object.values(conversation.nodes)) {
    const text = [node.content, ...(node.attachments ?? []).map(each => `${each.name}\n${each.text ?? ""}`)].join("\n");
    if (has(text)) return { conversation, node, snippet: snippet(text, words[0]) };
  }
  return null;
}

function snippet(text, word) {
  const begin = Math.max(0, text.toLowerCase().indexOf(word) - CONTEXT);
  const cut = text.slice(begin, begin + SNIPPET).replace(/\s+/g, " ").trim();
  return `${begin ? "…" : ""}${cut}${begin + SNIPPET < text.length ? "…" : ""}`;
}
