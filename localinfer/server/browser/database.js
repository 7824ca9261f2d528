// All conversations: in memory, and in the browser's IndexedDB. Other tabs learn of changes.

import * as preferences from "./preferences.js";

const STORE = "conversations";
const OLD_PREFIX = "localinfer.conversation."; // of conversations that earlier versions kept in the local storage

const conversations = new Map();
const removed = new Set(); // ids of conversations that are not saved any more, for example by an answer that ends later
const channel = new BroadcastChannel("localinfer.conversations");
let database = null;

/** Read all conversations. `onChange(id)` is called when another tab has changed one. */
export async function open(onChange) {
  try {
    database = await opened();
    for (const each of await result(store("readonly").getAll())) conversations.set(each.id, each);
  } catch { database = null; }
  await moveOldConversations();
  channel.onmessage = async ({ data: id }) => {
    const found = database && await result(store("readonly").get(id));
    if (found) conversations.set(id, found); else conversations.delete(id);
    onChange(id);
  };
}

function opened() {
  const request = indexedDB.open("localinfer", 1);
  request.onupgradeneeded = () => request.result.createObjectStore(STORE, { keyPath: "id" });
  return result(request);
}

const store = mode => database.transaction(STORE, mode).objectStore(STORE);

const result = request => new Promise((resolve, reject) => {
  request.onsuccess = () => resolve(request.result);
  request.onerror = () => reject(request.error);
});

/** Move conversations here from the local storage; each is removed there once it is stored here. */
async function moveOldConversations() {
  for (const key of Object.keys(localStorage).filter(each => each.startsWith(OLD_PREFIX))) {
    const old = preferences.read(key);
    if (!old?.id || !old.nodes) continue;
    if (!conversations.has(old.id)) {
      conversations.set(old.id, old);
      if (!await put(old)) continue;
    }
    if (database) localStorage.removeItem(key);
  }
}

async function put(conversation) {
  if (!database) return false;
  try {
    const transaction = database.transaction(STORE, "readwrite");
    transaction.objectStore(STORE).put(conversation);
    await new Promise((resolve, reject) => { transaction.oncomplete = resolve; transaction.onabort = () => reject(transaction.error); });
    channel.postMessage(conversation.id);
    return true;
  } catch { return false; }
}

/** All conversations, the one that was changed last first. */
export const all = () => [...conversations.values()].sort((a, b) => b.changed - a.changed);

export const get = id => conversations.get(id);

/** Save a conversation; returns false if the storage is full or switched off. */
export async function save(conversation, changed = Date.now()) {
  if (removed.has(conversation.id)) return true;
  conversation.changed = changed;
  conversations.set(conversation.id, conversation);
  return put(conversation);
}

export async function remove(conversation) {
  removed.add(conversation.id);
  conversations.delete(conversation.id);
  localStorage.removeItem(OLD_PREFIX + conversation.id);
  if (!database) return;
  await result(store("readwrite").delete(conversation.id));
  channel.postMessage(conversation.id);
}
