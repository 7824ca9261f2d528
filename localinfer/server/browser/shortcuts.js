// Keyboard shortcuts, and the overview of them.

import { at, element } from "./dom.js";
import { respondAgain } from "./message_actions.js";
import { openSettings } from "./settings_dialog.js";
import { isListOpen, startNew, startSearch, toggleList } from "./sidebar.js";
import { state } from "./state.js";

// A key with Ctrl (⌘ on a Mac), what it does, and the function that does it. "Shift+" is part of the key.
const WITH_CONTROL = {
  "K": ["Search all conversations", startSearch],
  "Shift+O": ["New conversation", startNew],
  "B": ["Show or hide the conversations", () => toggleList()],
  ",": ["Settings", openSettings],
  "Shift+U": ["Attach files", () => at("attach").click()],
  "Shift+E": ["Regenerate the last response", respondAgain],
};
const OTHERS = [
  ["Enter", "Send the message"], ["Shift+Enter", "Insert a line break"], ["↑", "Edit your last message, if the field is empty"],
  ["Esc", "Stop the response, or close what is open"], ["/", "Go to the message field"], ["?", "This overview"],
];

const isMac = /Mac|iPhone|iPad/.test(navigator.platform);
const isTyping = target => /^(INPUT|TEXTAREA|SELECT)$/.test(target.tagName);

export function showShortcuts() {
  const rows = [...Object.entries(WITH_CONTROL).map(([key, [what]]) => [`${isMac ? "⌘" : "Ctrl"}+${key}`, what]), ...OTHERS];
  at("shortcut-list").replaceChildren(...rows.flatMap(([keys, what]) => [
    element("dt", keys.split("+").filter(Boolean).map(each => element("kbd", [each]))), element("dd", [what])]));
  at("shortcuts").showModal();
}

function onKey(event) {
  if (document.querySelector("dialog[open]")) return; // it has keys of its own
  if (event.key === "Escape") {
    if (isListOpen() && !at("cover").hidden) { toggleList(false); at("toggle-list").focus(); } else state.controller?.abort();
  } else if ((isMac ? event.metaKey : event.ctrlKey) && !event.altKey) {
    const found = WITH_CONTROL[(event.shiftKey ? "Shift+" : "") + event.key.toUpperCase()];
    if (found) { event.preventDefault(); found[1](); }
  } else if (!isTyping(event.target) && event.key === "?") showShortcuts();
  else if (!isTyping(event.target) && event.key === "/") { event.preventDefault(); at("question").focus(); }
}

export function wireShortcuts() {
  document.addEventListener("keydown", onKey);
  at("open-shortcuts").addEventListener("click", showShortcuts);
}
