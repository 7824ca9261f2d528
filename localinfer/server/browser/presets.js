// Presets: named sets of a system prompt and sampling options.

import { read, write } from "./preferences.js";
import { SAMPLING } from "./prompt.js";

const PRESETS = "localinfer.presets";
const FORMAT = "localinfer presets";
const FIELDS = ["system", "reasoning", ...SAMPLING];

/** All presets, by name: { name: { system, temperature, ... } }. */
export const all = () => new Map(Object.entries(read(PRESETS) ?? {}).sort(([a], [b]) => a.localeCompare(b)));

const store = presets => write(PRESETS, Object.fromEntries(presets));

/** The fields of the settings that belong to a preset; missing ones are empty. */
export const fieldsOf = settings => Object.fromEntries(FIELDS.map(name => [name, settings[name] ?? ""]));

export const save = (name, settings) => store(all().set(name, fieldsOf(settings)));

export function remove(name) {
  const presets = all();
  presets.delete(name);
  return store(presets);
}

export const exported = () => ({ format: FORMAT, version: 1, presets: Object.fromEntries(all()) });

/** Add the presets of an exported file, and return their names. One whose name is in use gets another name. */
export function importFrom(text) {
  let value;
  try { value = JSON.parse(text); } catch { throw new Error("is not JSON"); }
  if (value?.format !== FORMAT || typeof value.presets !== "object" || !value.presets) throw new Error("has no presets");
  const added = Object.entries(value.presets).map(([name, fields]) => [name, checked(name, fields)]);
  const presets = all();
  const names = added.map(([name, fields]) => {
    let free = name;
    for (let n = 2; presets.has(free); n++) free = `${name} (${n})`;
    presets.set(free, fields);
    return free;
  });
  if (!store(presets)) throw new Error("does not fit into the browser's storage");
  return names;
}

function checked(name, fields) {
  if (typeof fields !== "object" || !fields || !name.trim()) throw new Error("has an invalid preset");
  const made = fieldsOf(fields);
  for (const [field, value] of Object.entries(made)) {
    const isValid = typeof value === "string" && (!SAMPLING.includes(field) || value === "" || Number.isFinite(Number(value)));
    if (!isValid) throw new Error(`${name}: ${field} is invalid`);
  }
  return made;
}
