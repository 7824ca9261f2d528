// The chat page: sends requests, shows the messages and edits them.

import { copyText, element, show } from "./markdown.js";
import * as server from "./server.js";
import * as store from "./store.js";

const at = id => document.getElementById(id);
const SETTINGS = "localinfer.settings", DRAFT = "localinfer.draft", THEME = "localinfer.theme", THEMES = ["system", "light", "dark"];
const NUMBERS = ["temperature", "top_p", "top_k", "min_p", "repeat_penalty", "max_tokens", "seed"];

let conversation = store.all()[0] ?? store.made();
let settings = store.read(SETTINGS) ?? {};
let controller = null; // the AbortController of the running request

// ---- requests ----

async function ask(text) {
  store.add(conversation, conversation.leaf, { role: "user", content: text });
  await generate();
}

/** Generate the assistant's next message after the last one shown. */
async function generate() {
  const messages = store.path(conversation).map(({ role, content }) => ({ role, content }));
  if (settings.system) messages.unshift({ role: "system", content: settings.system });
  const mine = conversation;
  const node = store.add(mine, mine.leaf, { role: "assistant", content: "", reasoning: "", note: "" });
  controller = new AbortController();
  setBusy(true);
  showAll();
  announce("The model is responding.");
  try {
    for await (const chunk of server.chunks({ model: at("model").value, messages, ...sampling() }, settings.key, controller.signal)) addChunk(chunk, node);
    announce("The response is complete.");
  } catch (error) {
    node.note = controller.signal.aborted ? "stopped" : "";
    node.problem = controller.signal.aborted ? "" : error.message;
    announce(node.problem || "Stopped.");
  }
  controller = null;
  if (!store.save(mine)) node.problem = "The browser's storage is full; this conversation is not saved.";
  setBusy(false);
  showAll();
}

function sampling() {
  const chosen = Object.fromEntries(NUMBERS.filter(name => settings[name] !== undefined && settings[name] !== "").map(name => [name, Number(settings[name])]));
  if (settings.reasoning) chosen.chat_template_kwargs = { enable_thinking: settings.reasoning === "on" };
  return chosen;
}

function addChunk(chunk, node) {
  const [choice] = chunk.choices;
  node.content += choice?.delta.content ?? "";
  node.reasoning += choice?.delta.reasoning_content ?? "";
  if (chunk.timings) {
    const speed = `${chunk.timings.predicted_n} tokens, ${chunk.timings.predicted_per_second.toFixed(1)} tokens/s`;
    node.note = choice.finish_reason === "length" ? `${speed}, length limit reached` : speed;
  }
  scheduleUpdate(node);
}

// ---- rendering ----

let pendingNode = null; // the message to render in the next animation frame

function scheduleUpdate(node) {
  if (!pendingNode) requestAnimationFrame(() => { const next = pendingNode; pendingNode = null; keepAtEnd(() => update(next)); });
  pendingNode = node;
}

/** Render, and stay scrolled to the end if the end was visible. */
function keepAtEnd(draw) {
  const main = document.querySelector("main");
  const atEnd = main.scrollHeight - main.scrollTop - main.clientHeight < 60;
  draw();
  if (atEnd) main.scrollTop = main.scrollHeight;
}

function showAll() {
  const messages = store.path(conversation);
  keepAtEnd(() => at("messages").replaceChildren(...messages.map(messageItem)));
  at("empty").hidden = messages.length > 0;
  document.title = conversation.title ? `${conversation.title} · localinfer` : "localinfer";
  at("conversations").replaceChildren(...store.all().map(conversationItem));
}

function messageItem(node) {
  const item = element("li", [element("h2", [node.role === "user" ? "You" : "Model"])], node.role);
  item.dataset.id = node.id;
  if (node.role === "assistant") {
    const reasoning = element("details", [element("summary", ["Reasoning"]), element("div")]);
    item.append(reasoning);
  }
  item.append(element("div", [], "text"));
  if (node.problem) { const line = element("p", [node.problem], "problem"); line.setAttribute("role", "alert"); item.append(line); }
  const isGenerating = controller && node.id === conversation.leaf;
  item.classList.toggle("writing", Boolean(isGenerating));
  if (!isGenerating) item.append(tools(node));
  fill(item, node);
  return item;
}

function fill(item, node) {
  const text = item.querySelector(".text");
  if (node.role === "user") { text.textContent = node.content; return; }
  const reasoning = item.querySelector("details");
  reasoning.hidden = !node.reasoning?.trim();
  reasoning.lastChild.textContent = node.reasoning?.trim() ?? "";
  reasoning.firstChild.textContent = controller && !node.content && node.id === conversation.leaf ? "Reasoning …" : "Reasoning";
  show(text, node.content);
}

function update(node) {
  const item = at("messages").querySelector(`[data-id="${node.id}"]`);
  if (item) fill(item, node);
}

function tools(node) {
  const bar = element("div", [], "tools");
  const add = (label, title, act) => {
    const button = element("button", [label]);
    button.type = "button"; button.title = title; button.setAttribute("aria-label", title);
    button.addEventListener("click", () => act(button));
    bar.append(button);
  };
  add("Copy", "Copy this message", button => copyText(node.content, button));
  if (node.role === "user") add("Edit", "Edit this message and resend", () => edit(node));
  else add("Regenerate", "Regenerate this response", () => regenerate(node));
  const versions = store.versions(conversation, node), index = versions.findIndex(each => each.id === node.id);
  if (versions.length > 1) {
    if (index > 0) add("‹", "Previous version", () => showVersion(versions[index - 1], "Previous version"));
    bar.append(element("span", [`${index + 1}/${versions.length}`]));
    if (index + 1 < versions.length) add("›", "Next version", () => showVersion(versions[index + 1], "Next version"));
  }
  if (node.note) bar.append(element("span", [node.note]));
  return bar;
}

// ---- editing ----

function edit(node) {
  if (controller) return;
  const item = at("messages").querySelector(`[data-id="${node.id}"]`);
  const field = element("textarea", [], "edit"), send = element("button", ["Send"]), cancel = element("button", ["Cancel"]);
  field.value = node.content;
  field.setAttribute("aria-label", "Edit this message");
  const back = () => { showAll(); refocus(node, "Edit this message and resend"); };
  const done = () => { if (!field.value.trim()) return; conversation.leaf = node.parent; store.add(conversation, node.parent, { role: "user", content: field.value }); generate(); };
  send.addEventListener("click", done);
  cancel.addEventListener("click", back);
  field.addEventListener("keydown", event => { if (event.key === "Escape") back(); else if (sends(event)) { event.preventDefault(); done(); } });
  item.querySelector(".text").replaceWith(field);
  item.querySelector(".tools").replaceChildren(send, cancel);
  field.focus();
}

function regenerate(node) {
  if (controller) return;
  conversation.leaf = node.parent;
  generate().then(() => refocus({ id: conversation.leaf }, "Regenerate this response"));
}

function showVersion(node, title) {
  if (controller) return;
  store.selectVersion(conversation, node);
  store.save(conversation);
  showAll();
  refocus(node, title);
}

/** Restore the keyboard focus after rendering: focus the button that replaces the one that was pressed. */
function refocus(node, title) {
  if (document.activeElement !== document.body) return; // the user already moved the focus
  const tools = at("messages").querySelector(`[data-id="${node.id}"] .tools`);
  (tools?.querySelector(`[title="${title}"]`) ?? tools?.querySelector("[title$=version]"))?.focus();
}

// ---- conversations and settings ----

function conversationItem(each) {
  const open = element("button", [each.title || "Conversation"]), remove = element("button", ["×"]);
  if (each.id === conversation.id) open.setAttribute("aria-current", "true");
  open.addEventListener("click", () => go(each));
  remove.setAttribute("aria-label", `Remove: ${each.title}`);
  remove.addEventListener("click", () => { if (!confirm(`Remove “${each.title}”?`)) return; store.remove(each); go(each.id === conversation.id ? store.made() : conversation); });
  return element("li", [open, remove]);
}

function go(to) {
  controller?.abort();
  conversation = to;
  showAll();
  at("question").focus();
}

function setBusy(isBusy) {
  const hiddenButton = isBusy ? at("send") : at("stop");
  const hadFocus = document.activeElement === hiddenButton;
  at("send").hidden = isBusy;
  at("stop").hidden = !isBusy;
  if (hadFocus) at(isBusy ? "stop" : "question").focus();
}

const announce = text => { at("status").textContent = text; };
const sends = event => event.key === "Enter" && !event.shiftKey && !event.isComposing;

function grow() {
  at("question").style.height = "auto";
  at("question").style.height = `${at("question").scrollHeight + 2}px`;
}

/** Keep the text of the message field while the page is reloaded. Each tab has its own. */
function keepDraft() {
  try { sessionStorage.setItem(DRAFT, at("question").value); } catch { /* storage is full or switched off */ }
}

function restoreDraft() {
  try { at("question").value = sessionStorage.getItem(DRAFT) ?? ""; } catch { return; }
  grow();
}

function submit(event) {
  event.preventDefault();
  const text = at("question").value;
  if (controller || !text.trim()) return;
  at("question").value = "";
  keepDraft();
  grow();
  ask(text);
}

async function fillModels() {
  try {
    const names = await server.models(settings.key), chosen = settings.model;
    at("model").replaceChildren(...names.map(name => element("option", [name])));
    if (names.includes(chosen)) at("model").value = chosen;
  } catch (error) { at("empty").textContent = error.message; announce(error.message); }
}

function useTheme(theme) {
  document.documentElement.dataset.theme = theme;
  at("theme").title = `Color theme: ${theme}`;
}

function wireSettings() {
  const form = at("settings").querySelector("form");
  at("open-settings").addEventListener("click", () => {
    for (const field of form.elements) if (field.name) field.value = settings[field.name] ?? "";
    at("settings").showModal();
  });
  at("settings").addEventListener("close", () => {
    settings = { ...settings, ...Object.fromEntries(new FormData(form)) };
    store.write(SETTINGS, settings);
    fillModels();
  });
  at("export").addEventListener("click", () => {
    const link = element("a");
    link.href = URL.createObjectURL(new Blob([JSON.stringify(store.path(conversation), null, 1)], { type: "application/json" }));
    link.download = "conversation.json";
    link.click();
    URL.revokeObjectURL(link.href);
  });
}

at("ask").addEventListener("submit", submit);
at("question").addEventListener("input", () => { grow(); keepDraft(); });
at("question").addEventListener("keydown", event => { if (sends(event)) submit(event); });
at("stop").addEventListener("click", () => controller?.abort());
document.addEventListener("keydown", event => { if (event.key === "Escape" && !at("settings").open) controller?.abort(); });
at("new").addEventListener("click", () => go(store.made()));
at("model").addEventListener("change", () => { settings.model = at("model").value; store.write(SETTINGS, settings); });
at("toggle-list").addEventListener("click", () => { at("toggle-list").ariaExpanded = String(!document.body.classList.toggle("narrow")); });
at("theme").addEventListener("click", () => {
  const theme = THEMES[(THEMES.indexOf(store.read(THEME) ?? "system") + 1) % THEMES.length];
  store.write(THEME, theme);
  useTheme(theme);
});
window.addEventListener("pagehide", () => controller && store.save(conversation));
document.body.classList.toggle("narrow", innerWidth < 700);
at("toggle-list").ariaExpanded = String(innerWidth >= 700);
useTheme(store.read(THEME) ?? "system");
wireSettings();
fillModels();
showAll();
restoreDraft();
