// What all parts of the page share.

import * as database from "./database.js";
import { newConversation } from "./tree.js";

export const state = {
  conversation: newConversation(),
  controller: null, // the AbortController of the running request
  progress: null, // of the prompt that is being read: llama.cpp's prompt_progress
  speed: null, // of the running answer: llama.cpp's timings
};

export const isBusy = () => state.controller !== null;
export const model = () => document.getElementById("model").value;

const listeners = {};

/** Call `act` whenever `announceChange` is called with the same name. */
export function onChange(name, act) {
  (listeners[name] ??= []).push(act);
}

export function announceChange(name, value) {
  for (const act of listeners[name] ?? []) act(value);
}

/** Save the conversation; a message tells if that is impossible. */
export async function save(conversation = state.conversation) {
  const isSaved = await database.save(conversation);
  announceChange("list");
  if (!isSaved) announceChange("problem", "The browser's storage is full or switched off; this conversation is not saved.");
}

/** Show another conversation. A running answer stops. */
export function show(conversation) {
  state.controller?.abort();
  state.conversation = conversation;
  announceChange("conversation");
}
