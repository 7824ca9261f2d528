// The dialog of the settings: presets, options of requests, and the files of conversations and presets.

import * as database from "./database.js";
import { at, chooseFiles, download, element } from "./dom.js";
import { fillServers, wireServers } from "./mcp_settings.js";
import { changeSettings, settings } from "./preferences.js";
import * as presets from "./presets.js";
import { announceChange, state } from "./state.js";
import { exported, imported } from "./transfer.js";

const form = () => at("settings").querySelector("form");
const say = text => { at("settings-message").textContent = text; };

export function openSettings() {
  fillFields(settings);
  fillPresets();
  fillServers();
  say("");
  if (!at("settings").open) at("settings").showModal();
}

function fillFields(values) {
  for (const field of form().elements) if (field.name) field.value = values[field.name] ?? "";
}

const fieldValues = () => Object.fromEntries(new FormData(form()));

// ---- presets ----

function fillPresets(chosen = settings.preset ?? "") {
  const names = [...presets.all().keys()];
  at("preset").replaceChildren(element("option", ["(none)"]), ...names.map(name => element("option", [name])));
  at("preset").firstChild.value = "";
  at("preset").value = names.includes(chosen) ? chosen : "";
  at("remove-preset").disabled = !at("preset").value;
}

function usePreset() {
  const chosen = presets.all().get(at("preset").value);
  changeSettings({ preset: at("preset").value });
  if (chosen) fillFields({ ...fieldValues(), ...chosen });
  fillPresets();
}

function savePreset() {
  const name = at("preset-name").value.trim() || at("preset").value;
  if (!name) { say("A preset needs a name."); at("preset-name").focus(); return; }
  if (!presets.save(name, fieldValues())) { say("The browser's storage is full."); return; }
  changeSettings({ preset: name });
  at("preset-name").value = "";
  fillPresets();
  say(`Saved as “${name}”.`);
}

function removePreset() {
  const name = at("preset").value;
  if (!name || !confirm(`Remove the preset “${name}”?`)) return;
  presets.remove(name);
  fillPresets("");
}

// ---- files ----

/** Import each file as a whole or not at all, and tell what became of it. */
async function importFiles(files, use) {
  const lines = [];
  for (const file of files) {
    try { lines.push(`${file.name}: ${await use(await file.text())}`); } catch (error) { lines.push(`${file.name}: ${error.message}`); }
  }
  say(lines.join("; "));
}

async function importConversations(text) {
  const found = imported(text);
  let nSaved = 0;
  for (const each of found) if (await database.save(each, each.changed)) nSaved++;
  announceChange("list");
  if (nSaved < found.length) throw new Error("the browser's storage is full or switched off");
  return `${found.length} ${found.length === 1 ? "conversation" : "conversations"} imported`;
}

function importPresets(text) {
  const names = presets.importFrom(text);
  fillPresets();
  return `${names.length} ${names.length === 1 ? "preset" : "presets"} imported`;
}

function fileName(title) {
  const short = title.replace(/[^\p{L}\p{N}]+/gu, "-").replace(/^-|-$/g, "").slice(0, 40);
  return `${short || "conversation"}.json`;
}

export function wireSettings(onClose) {
  const click = (id, act) => at(id).addEventListener("click", act);
  click("open-settings", openSettings);
  at("settings").addEventListener("close", () => { changeSettings(fieldValues()); onClose(); });
  at("preset").addEventListener("change", usePreset);
  click("save-preset", savePreset);
  click("remove-preset", removePreset);
  click("export-presets", () => download("presets.json", presets.exported()));
  click("import-presets", () => chooseFiles(".json", files => importFiles(files, importPresets)));
  click("export", () => download(fileName(state.conversation.title), exported([state.conversation])));
  click("export-all", () => download("conversations.json", exported(database.all())));
  click("import", () => chooseFiles(".json", files => importFiles(files, importConversations)));
  at("preset-name").addEventListener("keydown", event => { if (event.key === "Enter") { event.preventDefault(); savePreset(); } });
  wireServers(say);
}
