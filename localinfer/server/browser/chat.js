// The conversation on the screen: asking, showing, editing.

import { copied, element, show } from "./markdown.js";
import * as server from "./server.js";
import * as store from "./store.js";

const at = id => document.getElementById(id);
const SETTINGS = "localinfer.settings", THEME = "localinfer.theme", THEMES = ["system", "light", "dark"];
const NUMBERS = ["temperature", "top_p", "top_k", "min_p", "repeat_penalty", "max_tokens", "seed"];

let conversation = store.all()[0] ?? store.made();
let settings = store.read(SETTINGS) ?? {};
let leaving = null; // the AbortController of the answer that is coming

// ---- asking ----

async function ask(text) {
  store.add(conversation, conversation.leaf, { role: "user", content: text });
  await answer();
}

/** The model's next message, behind the last one that is shown. */
async function answer() {
  const messages = store.path(conversation).map(({ role, content }) => ({ role, content }));
  if (settings.system) messages.unshift({ role: "system", content: settings.system });
  const mine = conversation;
  const node = store.add(mine, mine.leaf, { role: "assistant", content: "", reasoning: "", note: "" });
  leaving = new AbortController();
  busy(true);
  showAll();
  say("The model is answering.");
  try {
    for await (const chunk of server.chunks({ model: at("model").value, messages, ...sampling() }, settings.key, leaving.signal)) take(chunk, node);
    say("The answer is complete.");
  } catch (error) {
    node.note = leaving.signal.aborted ? "stopped" : "";
    node.problem = leaving.signal.aborted ? "" : error.message;
    say(node.problem || "Stopped.");
  }
  leaving = null;
  if (!store.save(mine)) node.problem = "There is no room in this browser to keep this conversation.";
  busy(false);
  showAll();
}

function sampling() {
  const chosen = Object.fromEntries(NUMBERS.filter(name => settings[name] !== undefined && settings[name] !== "").map(name => [name, Number(settings[name])]));
  if (settings.thoughts) chosen.chat_template_kwargs = { enable_thinking: settings.thoughts === "on" };
  return chosen;
}

function take(chunk, node) {
  const [choice] = chunk.choices;
  node.content += choice?.delta.content ?? "";
  node.reasoning += choice?.delta.reasoning_content ?? "";
  if (chunk.timings) {
    const speed = `${chunk.timings.predicted_n} tokens, ${chunk.timings.predicted_per_second.toFixed(1)} a second`;
    node.note = choice.finish_reason === "length" ? `${speed}, cut off` : speed;
  }
  soon(node);
}

// ---- showing ----

let waiting = null; // the message that is to be drawn with the next picture

function soon(node) {
  if (!waiting) requestAnimationFrame(() => { const drawn = waiting; waiting = null; follow(() => update(drawn)); });
  waiting = node;
}

/** Stay at the end, if that is what is seen. */
function follow(draw) {
  const main = document.querySelector("main");
  const atEnd = main.scrollHeight - main.scrollTop - main.clientHeight < 60;
  draw();
  if (atEnd) main.scrollTop = main.scrollHeight;
}

function showAll() {
  const messages = store.path(conversation);
  follow(() => at("messages").replaceChildren(...messages.map(shown)));
  at("empty").hidden = messages.length > 0;
  document.title = conversation.title ? `${conversation.title} · localinfer` : "localinfer";
  at("conversations").replaceChildren(...store.all().map(listed));
}

function shown(node) {
  const item = element("li", [element("h2", [node.role === "user" ? "You" : "Model"])], node.role);
  item.dataset.id = node.id;
  if (node.role === "assistant") {
    const thoughts = element("details", [element("summary", ["Thoughts"]), element("div")]);
    item.append(thoughts);
  }
  item.append(element("div", [], "text"));
  if (node.problem) { const line = element("p", [node.problem], "problem"); line.setAttribute("role", "alert"); item.append(line); }
  const coming = leaving && node.id === conversation.leaf;
  item.classList.toggle("writing", Boolean(coming));
  if (!coming) item.append(tools(node));
  fill(item, node);
  return item;
}

function fill(item, node) {
  const text = item.querySelector(".text");
  if (node.role === "user") { text.textContent = node.content; return; }
  const thoughts = item.querySelector("details");
  thoughts.hidden = !node.reasoning?.trim();
  thoughts.lastChild.textContent = node.reasoning?.trim() ?? "";
  thoughts.firstChild.textContent = leaving && !node.content && node.id === conversation.leaf ? "Thinking …" : "Thoughts";
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
  add("Copy", "Copy this message", button => copied(node.content, button));
  if (node.role === "user") add("Edit", "Edit this message and ask anew", () => edit(node));
  else add("Again", "Have this answered once more", () => again(node));
  const versions = store.versions(conversation, node), place = versions.findIndex(each => each.id === node.id);
  if (versions.length > 1) {
    if (place > 0) add("‹", "The version before", () => turn(versions[place - 1], "The version before"));
    bar.append(element("span", [`${place + 1}/${versions.length}`]));
    if (place + 1 < versions.length) add("›", "The next version", () => turn(versions[place + 1], "The next version"));
  }
  if (node.note) bar.append(element("span", [node.note]));
  return bar;
}

// ---- editing ----

function edit(node) {
  if (leaving) return;
  const item = at("messages").querySelector(`[data-id="${node.id}"]`);
  const field = element("textarea", [], "edit"), send = element("button", ["Send"]), cancel = element("button", ["Cancel"]);
  field.value = node.content;
  field.setAttribute("aria-label", "Edit this message");
  const back = () => { showAll(); refocus(node, "Edit this message and ask anew"); };
  const done = () => { if (!field.value.trim()) return; conversation.leaf = node.parent; store.add(conversation, node.parent, { role: "user", content: field.value }); answer(); };
  send.addEventListener("click", done);
  cancel.addEventListener("click", back);
  field.addEventListener("keydown", event => { if (event.key === "Escape") back(); else if (sends(event)) { event.preventDefault(); done(); } });
  item.querySelector(".text").replaceWith(field);
  item.querySelector(".tools").replaceChildren(send, cancel);
  field.focus();
}

function again(node) {
  if (leaving) return;
  conversation.leaf = node.parent;
  answer().then(() => refocus({ id: conversation.leaf }, "Have this answered once more"));
}

function turn(node, title) {
  if (leaving) return;
  store.turnTo(conversation, node);
  store.save(conversation);
  showAll();
  refocus(node, title);
}

/** Messages are drawn anew, and the button that was pressed is gone: who has no mouse goes on from the same one. */
function refocus(node, title) {
  if (document.activeElement !== document.body) return; // they are elsewhere already
  const tools = at("messages").querySelector(`[data-id="${node.id}"] .tools`);
  (tools?.querySelector(`[title="${title}"]`) ?? tools?.querySelector("[title*=version]"))?.focus();
}

// ---- around it ----

function listed(each) {
  const open = element("button", [each.title || "Conversation"]), remove = element("button", ["×"]);
  if (each.id === conversation.id) open.setAttribute("aria-current", "true");
  open.addEventListener("click", () => go(each));
  remove.setAttribute("aria-label", `Remove: ${each.title}`);
  remove.addEventListener("click", () => { if (!confirm(`Remove “${each.title}”?`)) return; store.remove(each); go(each.id === conversation.id ? store.made() : conversation); });
  return element("li", [open, remove]);
}

function go(to) {
  leaving?.abort();
  conversation = to;
  showAll();
  at("question").focus();
}

function busy(now) {
  const leaves = now ? at("send") : at("stop");
  const focused = document.activeElement === leaves;
  at("send").hidden = now;
  at("stop").hidden = !now;
  if (focused) at(now ? "stop" : "question").focus();
}

const say = text => { at("status").textContent = text; };
const sends = event => event.key === "Enter" && !event.shiftKey && !event.isComposing;

function grow() {
  at("question").style.height = "auto";
  at("question").style.height = `${at("question").scrollHeight + 2}px`;
}

function submit(event) {
  event.preventDefault();
  const text = at("question").value;
  if (leaving || !text.trim()) return;
  at("question").value = "";
  grow();
  ask(text);
}

async function fillModels() {
  try {
    const names = await server.models(settings.key), chosen = settings.model;
    at("model").replaceChildren(...names.map(name => element("option", [name])));
    if (names.includes(chosen)) at("model").value = chosen;
  } catch (error) { at("empty").textContent = error.message; say(error.message); }
}

function useTheme(theme) {
  document.documentElement.dataset.theme = theme;
  at("theme").title = `Colours: ${theme === "system" ? "as the system has them" : theme}`;
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
at("question").addEventListener("input", grow);
at("question").addEventListener("keydown", event => { if (sends(event)) submit(event); });
at("stop").addEventListener("click", () => leaving?.abort());
document.addEventListener("keydown", event => { if (event.key === "Escape" && !at("settings").open) leaving?.abort(); });
at("new").addEventListener("click", () => go(store.made()));
at("model").addEventListener("change", () => { settings.model = at("model").value; store.write(SETTINGS, settings); });
at("toggle-list").addEventListener("click", () => { at("toggle-list").ariaExpanded = String(!document.body.classList.toggle("narrow")); });
at("theme").addEventListener("click", () => {
  const theme = THEMES[(THEMES.indexOf(store.read(THEME) ?? "system") + 1) % THEMES.length];
  store.write(THEME, theme);
  useTheme(theme);
});
window.addEventListener("pagehide", () => leaving && store.save(conversation));
document.body.classList.toggle("narrow", innerWidth < 700);
at("toggle-list").ariaExpanded = String(innerWidth >= 700);
useTheme(store.read(THEME) ?? "system");
wireSettings();
fillModels();
showAll();
