// Files as attachments of a message: { name, size, text } or { name, size, image }, where image is a data URL.

import { pdfText } from "./pdf_text.js";
import * as server from "./server.js";
import { model } from "./state.js";

const MAX_TEXT = 4 << 20; // bytes; the server accepts no longer prompt
const MAX_BINARY = 32 << 20; // bytes of a PDF or an image

/** Read a file. Raises an error whose message is a line for the user. */
export async function readAttachment(file) {
  const fail = what => { throw new Error(`${file.name}: ${what}`); };
  const made = { name: file.name, size: file.size };
  const kind = kindOf(file);
  if (file.size > (kind === "text" ? MAX_TEXT : MAX_BINARY)) fail("is too large");
  if (kind === "image" || kind === "audio" || kind === "video") return { ...made, image: await readImage(file, kind, fail) };
  const text = kind === "pdf" ? await pdfText(await file.arrayBuffer()).catch(error => fail(error.message)) : decode(await file.arrayBuffer());
  if (text === null) fail("is neither text nor a PDF");
  if (!text.trim()) fail(kind === "pdf" ? "contains no text; its pages may be images" : "is empty");
  return { ...made, text };
}

function kindOf({ type, name }) {
  if (type === "application/pdf" || /\.pdf$/i.test(name)) return "pdf";
  if (type === "image/svg+xml" || (type === "video/mp2t" && /\.ts$/.test(name))) return "text"; // TypeScript is not a film
  return /^(image|audio|video)\//.exec(type)?.[1] ?? "text";
}

async function readImage(file, kind, fail) {
  let modalities;
  try { ({ modalities } = await server.properties(model())); } catch (error) { fail(error.message); }
  if (kind !== "image") fail(`${kind} is not supported`);
  if (!modalities?.vision) fail(`the model ${model()} cannot see images`);
  return new Promise((resolve, reject) => {
    const reader = new FileReader();
    reader.onload = () => resolve(reader.result);
    reader.onerror = () => reject(new Error(`${file.name}: cannot be read`));
    reader.readAsDataURL(file);
  });
}

/** The text of UTF-8 or UTF-16, or null if this is something else. */
function decode(content) {
  const [first, second] = new Uint8Array(content);
  const encoding = first === 0xff && second === 0xfe ? "utf-16le" : first === 0xfe && second === 0xff ? "utf-16be" : "utf-8";
  try {
    const text = new TextDecoder(encoding, { fatal: true }).decode(content);
    return text.includes("\0") ? null : text;
  } catch { return null; }
}
