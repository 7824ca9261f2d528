// Requests to the server that delivered this page.

import { settings } from "./preferences.js";

const RETRY_MS = 1000;
const UNREACHABLE = "The server cannot be reached. Is it still running?";
const BROKEN_OFF = "The connection to the server was lost before the response was complete.";

/** The models of the server, as objects with an `id`. Waits while the server loads its model. */
export async function models(onLoading) {
  for (;;) {
    const answer = await request("/v1/models");
    if (answer.ok) return (await answer.json()).data;
    if (answer.status !== 503) throw new Error(await reason(answer));
    onLoading();
    await new Promise(resolve => setTimeout(resolve, RETRY_MS));
  }
}

/** The properties of a model, such as its context length and what it can see. This loads the model. */
export async function properties(model) {
  const answer = await request(`/props?model=${encodeURIComponent(model)}`);
  if (!answer.ok) throw new Error(await reason(answer));
  return answer.json();
}

/** The origins that this page may connect to, besides its own. */
export async function allowedOrigins() {
  const policy = (await request("/", { method: "HEAD" })).headers.get("content-security-policy") ?? "";
  const sources = policy.split("; ").find(each => each.startsWith("connect-src ")) ?? "";
  return sources.split(" ").slice(2);
}

/** Stream the chunks of a chat completion. */
export async function* chunks(question, signal) {
  const answer = await request("/v1/chat/completions", {
    method: "POST", signal,
    body: JSON.stringify({ ...question, stream: true, return_progress: true, timings_per_token: true }),
  });
  if (!answer.ok) throw new Error(await reason(answer));
  let isComplete = false;
  for await (const data of connected(eventData(answer.body), signal)) {
    if (data === "[DONE]") { isComplete = true; continue; }
    const chunk = JSON.parse(data);
    if (chunk.error) throw new Error(chunk.error.message);
    yield chunk;
  }
  if (!isComplete) throw new Error(BROKEN_OFF);
}

/** Send a request. A server that cannot be reached is reported in plain words; an abort stays what it is. */
async function request(address, options = {}) {
  const complete = { ...options, headers: headers() };
  try { return await fetch(address, complete); } catch (error) {
    throw options.signal?.aborted ? error : new Error(UNREACHABLE, { cause: error });
  }
}

/** The same events; a lost connection is reported in plain words. */
async function* connected(events, signal) {
  try { yield* events; } catch (error) { throw signal.aborted ? error : new Error(BROKEN_OFF, { cause: error }); }
}

/** The data of each server-sent event. */
export async function* eventData(body) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  let held = "", data = [];
  for (;;) {
    const { done, value } = await reader.read();
    if (done) return;
    const lines = (held + value).split(/\r?\n/);
    held = lines.pop();
    for (const line of lines) {
      if (line.startsWith("data:")) data.push(line.slice(5).replace(/^ /, ""));
      else if (!line && data.length) { yield data.join("\n"); data = []; }
    }
  }
}

function headers() {
  if (/[^\x20-\x7e]/.test(settings.key ?? "")) throw new Error("The API key in the settings has characters that keys cannot have.");
  return { "Content-Type": "application/json", ...(settings.key ? { Authorization: `Bearer ${settings.key}` } : {}) };
}

async function reason(answer) {
  try { return (await answer.json()).error.message; } catch { return `the server answers with status ${answer.status}`; }
}
