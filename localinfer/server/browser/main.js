// The chat page: puts its parts together.

import { showBusy, wireComposer } from "./composer.js";
import { showContext } from "./context_meter.js";
import * as database from "./database.js";
import { announce, at, element, notify } from "./dom.js";
import { scheduleUpdate, showAll } from "./message_list.js";
import { changeSettings, read, settings, write } from "./preferences.js";
import * as server from "./server.js";
import { wireSettings } from "./settings_dialog.js";
import { wireShortcuts } from "./shortcuts.js";
import { showList, wireSidebar } from "./sidebar.js";
import { isBusy, onChange, save, state } from "./state.js";
import { merged } from "./tree.js";

const THEME = "localinfer.theme", THEMES = ["system", "light", "dark"];

async function fillModels() {
  try {
    const names = (await server.models(() => announceLoading())).map(each => each.id), chosen = settings.model;
    at("model").replaceChildren(...names.map(name => element("option", [name])));
    if (names.includes(chosen)) at("model").value = chosen;
    notify("");
    showContext();
  } catch (error) { notify(error.message); announce(error.message); }
}

function announceLoading() {
  if (at("notice").hidden) announce("The server is loading the model.");
  notify("The server is loading the model …", false);
}

function useTheme(theme) {
  document.documentElement.dataset.theme = theme;
  at("theme").title = `Color theme: ${theme}`;
}

function showConversation() {
  showBusy();
  showAll();
  showList();
  if (!isBusy()) showContext();
}

/** Another tab has changed a conversation: show it, and keep what this tab is changing. */
function onOtherTab(id) {
  const changed = database.get(id), isChanging = isBusy() || at("messages").querySelector(".edit") !== null;
  if (id === state.conversation.id && changed) {
    state.conversation = merged(state.conversation, changed, isChanging);
    if (!isChanging) showAll();
  }
  showList();
}

function wire() {
  onChange("conversation", showConversation);
  onChange("message", scheduleUpdate);
  onChange("list", showList);
  onChange("problem", text => { notify(text); announce(text); });
  at("stop").addEventListener("click", () => state.controller?.abort());
  at("model").addEventListener("change", () => { changeSettings({ model: at("model").value }); showContext(); });
  at("close-notice").addEventListener("click", () => notify(""));
  at("theme").addEventListener("click", () => {
    const theme = THEMES[(THEMES.indexOf(read(THEME) ?? "system") + 1) % THEMES.length];
    write(THEME, theme);
    useTheme(theme);
  });
  window.addEventListener("pagehide", () => { if (isBusy()) save(); });
  wireSidebar();
  wireComposer();
  wireSettings(fillModels);
  wireShortcuts();
}

useTheme(read(THEME) ?? "system");
wire();
await database.open(onOtherTab);
state.conversation = database.all()[0] ?? state.conversation;
showConversation();
await fillModels();
