// A client of MCP servers (Model Context Protocol) over streamable HTTP: JSON-RPC in POST requests.

import { eventData } from "./server.js";

const VERSION = "2025-06-18"; // of the protocol
const MAX_PAGES = 100; // of a list of tools
const TIMEOUT = 10_000; // milliseconds for everything but calls of tools

/** Connect to a server: { url, token }. Raises an error whose message is a line for the user. */
export async function connect({ url, token }) {
  const client = new Client(url, token);
  await client.begin();
  return client;
}

class Client {
  constructor(url, token) {
    this.url = url;
    this.token = token;
    this.version = this.session = "";
    this.lastId = 0;
  }

  async begin() {
    this.version = this.session = "";
    const info = { protocolVersion: VERSION, capabilities: {}, clientInfo: { name: "localinfer", version: "1" } };
    this.version = (await this.request("initialize", info)).protocolVersion;
    await this.post({ jsonrpc: "2.0", method: "notifications/initialized" });
  }

  /** All tools: { name, description, inputSchema }. */
  async listTools() {
    const found = [];
    let cursor;
    for (let page = 0; page < MAX_PAGES; page++) {
      const { tools, nextCursor } = await this.request("tools/list", cursor ? { cursor } : {});
      found.push(...tools.filter(each => typeof each.name === "string"));
      if (!(cursor = nextCursor)) break;
    }
    return found;
  }

  /** Call a tool: { content, failed }. A server that has forgotten the session gets a new one. */
  async callTool(name, values, signal) {
    const call = () => this.request("tools/call", { name, arguments: values }, signal);
    let result;
    try { result = await call(); } catch (error) {
      if (error.status !== 404 || !this.session) throw error;
      await this.begin();
      result = await call();
    }
    const texts = (result.content ?? []).map(part => part.text ?? part.resource?.text ?? `[${part.type}]`);
    const isEmpty = !texts.length && result.structuredContent;
    return { content: isEmpty ? JSON.stringify(result.structuredContent) : texts.join("\n"), failed: Boolean(result.isError) };
  }

  async request(method, params, signal = AbortSignal.timeout(TIMEOUT)) {
    const id = ++this.lastId;
    const answer = await this.post({ jsonrpc: "2.0", id, method, params }, signal);
    this.session = answer.headers.get("mcp-session-id") ?? this.session;
    for await (const message of received(answer)) {
      if (message.id !== id) continue;
      if (message.error) throw new Error(message.error.message);
      return message.result;
    }
    throw new Error("the server sent no response");
  }

  async post(message, signal = AbortSignal.timeout(TIMEOUT)) {
    const headers = { "Content-Type": "application/json", Accept: "application/json, text/event-stream" };
    if (this.token) headers.Authorization = `Bearer ${this.token}`;
    if (this.version) headers["MCP-Protocol-Version"] = this.version;
    if (this.session) headers["Mcp-Session-Id"] = this.session;
    let answer;
    try { answer = await fetch(this.url, { method: "POST", headers, body: JSON.stringify(message), signal }); } catch (error) {
      if (signal.aborted) throw error;
      throw new Error("no connection: the server is not running, or it does not allow this page's origin (CORS)");
    }
    if (!answer.ok) throw Object.assign(new Error(`the server answers with status ${answer.status}`), { status: answer.status });
    return answer;
  }
}

/** The JSON-RPC messages of a response: one, or a stream of them. */
async function* received(answer) {
  const isStream = answer.headers.get("content-type")?.startsWith("text/event-stream");
  if (!isStream) { yield await answer.json(); return; }
  for await (const data of eventData(answer.body)) yield JSON.parse(data);
}
