// Files as attachments of a message: { name, size, text }, or { name, size } with an image, audio or video, which are
// data URLs.

import { pdfText } from "./pdf_text.js";
import { scaledDown } from "./scaled_image.js";
import * as server from "./server.js";
import { model } from "./state.js";

const MAX_TEXT = 4 << 20; // bytes; the server accepts no longer prompt
const MAX_BYTES = { text: MAX_TEXT, pdf: 32 << 20, image: 20 << 20, audio: 20 << 20, video: 20 << 20 }; // a request may have 32 MiB, in base64
const SENSES = {
  image: { modality: "vision", name: "see images" },
  audio: { modality: "audio", name: "hear audio" },
  video: { modality: "video", name: "watch videos" },
};

/** Read a file. Raises an error whose message is a line for the user. */
export async function readAttachment(file) {
  const fail = what => { throw new Error(`${file.name}: ${what}`); };
  const made = { name: file.name, size: file.size };
  const kind = kindOf(file);
  if (file.size > MAX_BYTES[kind]) fail("is too large");
  if (kind in SENSES) {
    await requireSense(SENSES[kind], fail);
    const content = kind === "image" ? await scaledDown(file) : file;
    return { ...made, size: content.size, [kind]: await dataUrl(content, fail) };
  }
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

async function requireSense(sense, fail) {
  let modalities;
  try { ({ modalities } = await server.properties(model())); } catch (error) { fail(error.message); }
  if (!modalities?.[sense.modality]) fail(`the model ${model()} cannot ${sense.name}`);
}

async function dataUrl(content, fail) {
  const reader = new FileReader();
  const isRead = await new Promise(resolve => {
    reader.onload = () => resolve(true);
    reader.onerror = () => resolve(false);
    reader.readAsDataURL(content);
  });
  return isRead ? reader.result : fail("cannot be read");
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
