// Settings, presets and other small values, in the browser's local storage.

const SETTINGS = "localinfer.settings";

export function read(key) {
  try { return JSON.parse(localStorage.getItem(key)); } catch { return null; }
}

/** Returns false if the storage is full or switched off. */
export function write(key, value) {
  try { localStorage.setItem(key, JSON.stringify(value)); return true; } catch { return false; }
}

export const settings = { ...read(SETTINGS) };

export function changeSettings(changes) {
  Object.assign(settings, changes);
  return write(SETTINGS, settings);
}
