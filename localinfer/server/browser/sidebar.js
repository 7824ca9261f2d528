// The list of conversations: search, new, rename, remove. On narrow screens it covers the messages.

import * as database from "./database.js";
import { at, button, element } from "./dom.js";
import { itemOf } from "./message_list.js";
import { announceChange, save, show, state } from "./state.js";
import { search } from "./search.js";
import { newConversation, path, select } from "./tree.js";

const NARROW = matchMedia("(max-width: 44rem)");

/** Render the list: all conversations, or those that have what is searched for. */
export function showList() {
  if (at("conversations").querySelector("input")) return; // a title is being edited
  const text = at("search").value.trim();
  const found = text ? search(database.all(), text) : database.all().map(conversation => ({ conversation, node: null, snippet: "" }));
  at("conversations").replaceChildren(...found.map(conversationItem));
  at("nothing-found").hidden = !text || found.length > 0;
}

function conversationItem({ conversation, node, snippet }) {
  const title = conversation.title || "Conversation";
  const open = button(title, "", () => go(conversation, node));
  open.title = title;
  if (snippet) open.append(element("small", [snippet]));
  if (conversation.id === state.conversation.id) open.setAttribute("aria-current", "true");
  const item = element("li", [open]);
  item.append(button("✎", `Rename: ${title}`, () => rename(conversation, item)), button("×", `Remove: ${title}`, () => remove(conversation)));
  return item;
}

/** Open a conversation, and show the message that was found. */
function go(conversation, node = null) {
  if (node && !path(conversation).includes(node)) select(conversation, node);
  show(conversation);
  if (NARROW.matches) toggleList(false);
  const item = node && itemOf(node);
  if (item) item.scrollIntoView({ block: "center" }); else at("question").focus();
}

function rename(conversation, item) {
  const field = element("input");
  field.value = conversation.title;
  field.setAttribute("aria-label", "Title of the conversation");
  let isDone = false;
  const done = async isKept => {
    if (isDone) return;
    isDone = true;
    item.replaceChildren();
    const title = field.value.trim();
    if (isKept && title && title !== conversation.title) {
      conversation.title = title;
      await save(conversation);
    }
    announceChange("conversation");
  };
  field.addEventListener("keydown", event => {
    if (event.key === "Enter" && !event.isComposing) done(true);
    if (event.key === "Escape") { event.stopPropagation(); done(false); }
  });
  field.addEventListener("blur", () => done(true));
  item.replaceChildren(field);
  field.select();
  field.focus();
}

async function remove(conversation) {
  if (!confirm(`Remove “${conversation.title}”?`)) return;
  await database.remove(conversation);
  if (conversation.id === state.conversation.id) show(newConversation()); else showList();
}

export function startNew() {
  show(newConversation());
  if (NARROW.matches) toggleList(false);
  at("question").focus();
}

export const isListOpen = () => !document.body.classList.contains("narrow");

export function toggleList(isOpen = !isListOpen()) {
  document.body.classList.toggle("narrow", !isOpen);
  at("toggle-list").ariaExpanded = String(isOpen);
  const isCovering = isOpen && NARROW.matches;
  at("cover").hidden = !isCovering;
  for (const each of [document.querySelector("main"), at("ask")]) each.inert = isCovering;
}

/** Open the list and search in it. */
export function startSearch() {
  toggleList(true);
  at("search").focus();
  at("search").select();
}

export function wireSidebar() {
  at("new").addEventListener("click", startNew);
  at("search").addEventListener("input", showList);
  at("search").addEventListener("keydown", event => {
    if (event.key === "Escape" && at("search").value) { event.stopPropagation(); at("search").value = ""; showList(); }
  });
  at("toggle-list").addEventListener("click", () => toggleList());
  at("cover").addEventListener("click", () => toggleList(false));
  NARROW.addEventListener("change", () => toggleList(!NARROW.matches));
  toggleList(!NARROW.matches);
}
