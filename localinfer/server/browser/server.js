// Requests to the server that delivered this page.

export async function models(key) {
  const answer = await fetch("/v1/models", { headers: headers(key) });
  if (!answer.ok) throw new Error(await reason(answer));
  return (await answer.json()).data.map(each => each.id);
}

/** Stream the chunks of a chat completion. */
export async function* chunks(question, key, signal) {
  const answer = await fetch("/v1/chat/completions", {
    method: "POST", headers: headers(key), body: JSON.stringify({ ...question, stream: true }), signal,
  });
  if (!answer.ok) throw new Error(await reason(answer));
  const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
  let held = "";
  for (;;) {
    const { done, value } = await reader.read();
    if (done) return;
    const lines = (held + value).split("\n");
    held = lines.pop();
    for (const line of lines) {
      if (!line.startsWith("data: ") || line === "data: [DONE]") continue;
      const chunk = JSON.parse(line.slice(6));
      if (chunk.error) throw new Error(chunk.error.message);
      yield chunk;
    }
  }
}

const headers = key => ({ "Content-Type": "application/json", ...(key ? { Authorization: `Bearer ${key}` } : {}) });

async function reason(answer) {
  try { return (await answer.json()).error.message; } catch { return `the server answers with status ${answer.status}`; }
}
