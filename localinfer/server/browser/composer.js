// The field for a message, and its attachments: chosen, dropped or pasted.

import { readAttachment } from "./attachments.js";
import { at, button, chooseFiles, element, notify } from "./dom.js";
import { generate } from "./generation.js";
import { editLast, sends } from "./message_actions.js";
import { picture, scrollToEnd } from "./message_list.js";
import { fits } from "./prompt.js";
import { isBusy, state } from "./state.js";
import { add, path } from "./tree.js";

const DRAFT = "localinfer.draft";
const TOO_LARGE = "this conversation with all its attachments would be larger than the 32 MiB that the server accepts";

let attachments = [];
let nReading = 0; // files that are being read

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
  if (isBusy() || nReading || (!text.trim() && !attachments.length)) return;
  const message = messageWith(text, attachments);
  if (!fits([...path(state.conversation), message])) { notify(TOO_LARGE[0].toUpperCase() + TOO_LARGE.slice(1)); return; }
  add(state.conversation, state.conversation.leaf, message);
  at("question").value = "";
  attachments = [];
  showAttachments();
  keepDraft();
  grow();
  notify("");
  generate();
  scrollToEnd();
}

const messageWith = (content, files) => ({ role: "user", content, ...(files.length ? { attachments: files } : {}) });

/** Read a file and attach it. Raises an error whose message is a line for the user. */
async function attachOne(file) {
  const made = await readAttachment(file), message = messageWith(at("question").value, [...attachments, made]);
  if (!fits([...path(state.conversation), message])) throw new Error(`${file.name}: ${TOO_LARGE}`);
  attachments.push(made);
}

/** Read files and attach them. A file that cannot be attached is reported in a line. */
async function attach(files) {
  const problems = [];
  nReading += files.length;
  showAttachments();
  for (const file of files) {
    try { await attachOne(file); } catch (error) { problems.push(error.message); }
    nReading--;
    showAttachments();
  }
  notify(problems.join("; "));
  at("question").focus();
}

function showAttachments() {
  const items = attachments.map(file => {
    const drop = button("×", `Remove ${file.name}`, () => { attachments = attachments.filter(each => each !== file); showAttachments(); at("question").focus(); });
    return element("li", [...(file.image ? [picture(file)] : []), element("span", [file.name]), element("small", [sizeText(file.size)]), drop]);
  });
  if (nReading) items.push(element("li", ["Reading …"]));
  at("attachments").replaceChildren(...items);
  at("attachments").hidden = !items.length;
}

function sizeText(bytes) {
  return bytes < 1024 ? `${bytes} B` : bytes < 1 << 20 ? `${(bytes / 1024).toFixed(1)} KiB` : `${(bytes / (1 << 20)).toFixed(1)} MiB`;
}

const hasFiles = event => event.dataTransfer?.types.includes("Files");

function wireDrop() {
  const toggle = isOver => document.body.classList.toggle("dropping", isOver);
  document.addEventListener("dragover", event => { if (hasFiles(event)) { event.preventDefault(); toggle(true); } });
  document.addEventListener("dragleave", event => { if (!event.relatedTarget) toggle(false); });
  document.addEventListener("drop", event => {
    if (!hasFiles(event)) return;
    event.preventDefault();
    toggle(false);
    attach([...event.dataTransfer.files]);
  });
}

export function wireComposer() {
  const field = at("question");
  at("ask").addEventListener("submit", submit);
  field.addEventListener("input", () => { grow(); keepDraft(); });
  field.addEventListener("keydown", event => {
    if (sends(event)) submit(event);
    else if (event.key === "ArrowUp" && !field.value && !isBusy()) { event.preventDefault(); editLast(); }
  });
  field.addEventListener("paste", event => {
    const files = [...event.clipboardData.files];
    if (files.length) { event.preventDefault(); attach(files); }
  });
  at("attach").addEventListener("click", () => chooseFiles("", attach));
  wireDrop();
  restoreDraft();
}

/** Show the button that stops instead of the one that sends, or the other way round. The focus moves with it. */
export function showBusy() {
  const hiddenButton = isBusy() ? at("send") : at("stop");
  const hadFocus = document.activeElement === hiddenButton;
  at("send").hidden = isBusy();
  at("stop").hidden = !isBusy();
  if (hadFocus) at(isBusy() ? "stop" : "question").focus();
}
