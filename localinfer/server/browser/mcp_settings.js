// The part of the settings that lists MCP servers.

import { at, button, element } from "./dom.js";
import * as server from "./server.js";
import * as tools from "./tools.js";

/** Show the servers, and what this page must be allowed to connect to. */
export async function fillServers() {
  at("servers").replaceChildren(...tools.servers().map(serverItem));
  const origins = await server.allowedOrigins().catch(() => []);
  at("origins").textContent = origins.length ? `Addresses that are allowed: ${origins.join(", ")}.` : "No address is allowed yet.";
}

function serverItem({ url, enabled }) {
  const box = element("input");
  box.type = "checkbox";
  box.checked = enabled;
  box.addEventListener("change", () => change(url, { enabled: box.checked }));
  const drop = button("×", `Remove ${url}`, () => { tools.setServers(tools.servers().filter(each => each.url !== url)); fillServers(); });
  return element("li", [element("label", [box, url]), drop]);
}

const change = (url, changes) => tools.setServers(tools.servers().map(each => each.url === url ? { ...each, ...changes } : each));

/** Add a server if it answers; otherwise tell why it cannot be used. */
async function addServer(say) {
  const url = at("server-url").value.trim(), token = at("server-token").value.trim();
  let origin;
  try { ({ origin } = new URL(url)); } catch { say("The address of an MCP server looks like http://127.0.0.1:3000/mcp."); return; }
  if (origin !== location.origin && !(await server.allowedOrigins()).includes(origin)) {
    say(`This page may not connect to ${origin}. Start the server with --webui-connect ${origin}`);
    return;
  }
  say(`Connecting to ${url} …`);
  try {
    const names = await tools.check({ url, token });
    tools.setServers([...tools.servers().filter(each => each.url !== url), { url, token, enabled: true }]);
    at("server-url").value = at("server-token").value = "";
    say(names.length ? `${url} has the tools ${names.join(", ")}.` : `${url} has no tools.`);
  } catch (error) { say(`${url}: ${error.message}`); }
  fillServers();
}

export function wireServers(say) {
  at("add-server").addEventListener("click", () => addServer(say));
  for (const id of ["server-url", "server-token"]) {
    at(id).addEventListener("keydown", event => { if (event.key === "Enter") { event.preventDefault(); addServer(say); } });
  }
}
