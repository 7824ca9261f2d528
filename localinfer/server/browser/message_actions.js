// The buttons of a message: copy, edit, regenerate, continue, branch, delete, and the switch between versions.

import { button, copyText, element } from "./dom.js";
import { generate, resume } from "./generation.js";
import { itemOf, showAll } from "./message_list.js";
import { results } from "./prompt.js";
import { announceChange, isBusy, save, show, state } from "./state.js";
import * as tree from "./tree.js";

const TITLES = { user: "Edit this message and resend", assistant: "Edit this response", regenerate: "Regenerate this response", respond: "Let the model respond" };

/** The bar of buttons of a message. */
export function actions(node, nodes) {
  const bar = element("div", [], "tools");
  const add = (label, title, act) => bar.append(button(label, title, act));
  add("Copy", "Copy this message", shown => copyText(node.content, shown));
  if (!node.tool_calls) add("Edit", TITLES[node.role], () => edit(node));
  if (node.role === "assistant") {
    add("Regenerate", TITLES.regenerate, () => regenerate(node));
    addContinue(add, node, nodes);
  } else if (node === nodes.at(-1) && !isBusy()) add("Respond", TITLES.respond, () => generate());
  add("Branch", "Continue from here in a new conversation", () => branch(node));
  add("Delete", "Delete this message and all that follow it", () => remove(node));
  const versions = tree.versions(state.conversation, node), index = versions.indexOf(node);
  if (versions.length > 1) {
    if (index > 0) add("‹", "Previous version", () => showVersion(versions[index - 1], "Previous version"));
    bar.append(element("span", [`${index + 1}/${versions.length}`]));
    if (index + 1 < versions.length) add("›", "Next version", () => showVersion(versions[index + 1], "Next version"));
  }
  if (node.note) bar.append(element("span", [node.note], "note"));
  return bar;
}

/** The last response can go on: with more text, or with the calls that were not run. */
function addContinue(add, node, nodes) {
  const later = nodes.slice(nodes.indexOf(node) + 1);
  if (node.tool_calls) {
    const done = results(later);
    if (done.length === later.length && !isBusy()) add("Continue", "Go on with the calls of this response", resume);
  } else if (!later.length && node.content) add("Continue", "Continue this response", () => generate(true));
}

// ---- editing ----

/** Replace the text of a message by a field. The edited text becomes a new version of the message. */
function edit(node) {
  if (isBusy()) return;
  const isQuestion = node.role === "user";
  const field = element("textarea", [], "edit");
  field.value = node.content;
  field.setAttribute("aria-label", isQuestion ? "Edit this message" : "Edit this response");
  const back = () => { showAll(); refocus(node, TITLES[node.role]); };
  const done = act => {
    if (!field.value.trim() && !node.attachments?.length) return;
    const { id: _, parent, problem: __, note: ___, used: ____, ...kept } = node;
    tree.add(state.conversation, parent, { ...kept, content: field.value, note: isQuestion ? "" : "edited" });
    act();
  };
  const sendEdited = () => done(() => generate(!isQuestion));
  const keepEdited = () => done(() => { save(); announceChange("conversation"); refocus({ id: state.conversation.leaf }, TITLES.assistant); });
  const buttons = isQuestion ? [button("Send", "", sendEdited)] : [button("Save", "", keepEdited), button("Save and continue", "", sendEdited)];
  field.addEventListener("keydown", event => {
    if (event.key === "Escape") { event.stopPropagation(); back(); }
    else if (isQuestion && sends(event)) { event.preventDefault(); sendEdited(); }
  });
  const item = itemOf(node);
  item.querySelector(".text").replaceWith(field);
  item.querySelector(".tools").replaceChildren(...buttons, button("Cancel", "", back));
  field.style.height = `${Math.min(field.scrollHeight + 4, innerHeight / 2)}px`;
  field.focus();
}

/** Whether a key in a text field sends the text. */
export const sends = event => event.key === "Enter" && !event.shiftKey && !event.isComposing;

/** Edit the user's last message. */
export function editLast() {
  const node = tree.path(state.conversation).findLast(each => each.role === "user");
  if (node) edit(node);
}

/** Generate a response to the last message, or another version of the last response. */
export function respondAgain() {
  const last = tree.path(state.conversation).findLast(each => each.role !== "tool");
  if (last?.role === "user") generate(); else if (last) regenerate(last);
}

function regenerate(node) {
  if (isBusy()) return;
  state.conversation.leaf = node.parent;
  generate().then(() => refocus({ id: state.conversation.leaf }, TITLES.regenerate));
}

function showVersion(node, title) {
  if (isBusy()) return;
  tree.select(state.conversation, node);
  save();
  showAll();
  refocus(node, title);
}

async function branch(node) {
  const made = tree.branch(state.conversation, node);
  await save(made);
  show(made);
}

function remove(node) {
  if (isBusy() || !confirm("Delete this message and all that follow it?")) return;
  tree.remove(state.conversation, node);
  save();
  announceChange("conversation");
}

/** Restore the keyboard focus after rendering: focus the button that replaces the one that was pressed. */
function refocus(node, title) {
  if (document.activeElement !== document.body) return; // the user already moved the focus
  const bar = itemOf(node)?.querySelector(".tools");
  (bar?.querySelector(`[title="${title}"]`) ?? bar?.querySelector("[title$=version]"))?.focus();
}
