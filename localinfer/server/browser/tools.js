// Tools of MCP servers: which there are, the user's consent, and their calls.

import { connect } from "./mcp.js";
import { read, write } from "./preferences.js";
import { announceChange } from "./state.js";

const SERVERS = "localinfer.mcp";

const connections = new Map(); // address -> a promise of { client, tools }
const waiting = new Map(); // a call -> the function that decides on it

/** The configured servers: { url, token, enabled }. */
export const servers = () => read(SERVERS) ?? [];

export function setServers(list) {
  connections.clear();
  return write(SERVERS, list);
}

/** Connect to a server, and return the names of its tools. Raises an error if that fails. */
export async function check(server) {
  connections.delete(server.url);
  return (await connected(server)).tools.map(each => each.name);
}

function connected(server) {
  if (!connections.has(server.url)) {
    const connecting = connect(server).then(async client => ({ client, tools: await client.listTools() }));
    connecting.catch(() => connections.delete(server.url));
    connections.set(server.url, connecting);
  }
  return connections.get(server.url);
}

/** The tools of all servers that can be reached, by name. Of several tools with one name, the first server's counts. */
async function available() {
  const found = new Map();
  for (const server of servers().filter(each => each.enabled)) {
    try {
      const { client, tools } = await connected(server);
      for (const tool of tools) if (!found.has(tool.name)) found.set(tool.name, { client, tool });
    } catch (error) { announceChange("problem", `${server.url}: ${error.message}`); }
  }
  return found;
}

/** The tools in the format of the chat API. */
export async function definitions() {
  return [...(await available()).values()].map(({ tool }) => ({
    type: "function", function: { name: tool.name, description: tool.description ?? "", parameters: tool.inputSchema ?? { type: "object" } },
  }));
}

/** Wait until the user allows or declines a call. An abort of the signal raises its reason. */
export function consent(call, signal) {
  return new Promise((resolve, reject) => {
    waiting.set(call, isAllowed => { waiting.delete(call); announceChange("conversation"); resolve(isAllowed); });
    signal.addEventListener("abort", () => { waiting.delete(call); reject(signal.reason); });
    announceChange("conversation");
  });
}

export const isWaiting = call => waiting.has(call);
export const decide = (call, isAllowed) => waiting.get(call)?.(isAllowed);

/** Call a tool. Returns the content of its result, and whether it failed. */
export async function run(call, signal) {
  const found = (await available()).get(call.function.name);
  if (!found) return { content: `There is no tool ${call.function.name}.`, failed: true };
  try {
    return await found.client.callTool(call.function.name, parsedArguments(call), signal);
  } catch (error) {
    if (signal.aborted) throw error;
    return { content: `The call failed: ${error.message}`, failed: true };
  }
}

function parsedArguments(call) {
  let values;
  try { values = JSON.parse(call.function.arguments || "{}"); } catch { values = null; }
  if (typeof values !== "object" || !values || Array.isArray(values)) throw new Error("its arguments are not an object");
  return values;
}
