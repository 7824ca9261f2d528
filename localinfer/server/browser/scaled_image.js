// Large images are scaled down before they are attached, because each request has all images of its conversation.

const MAX_BYTES = 2 << 20, MAX_SIDE = 2048, JPEG_QUALITY = 0.9;

/** The file, or a smaller image if it is larger than 2 MiB: at most 2048 pixels wide and high, a PNG if it was one, else a JPEG. */
export async function scaledDown(file) {
  if (file.size <= MAX_BYTES) return file;
  let image;
  try { image = await createImageBitmap(file); } catch { return file; } // a format that only the server may know
  const canvas = document.createElement("canvas"), isPng = file.type === "image/png";
  const scale = Math.min(1, MAX_SIDE / Math.max(image.width, image.height));
  canvas.width = Math.max(1, Math.round(scale * image.width));
  canvas.height = Math.max(1, Math.round(scale * image.height));
  const context = canvas.getContext("2d");
  if (!isPng) { context.fillStyle = "white"; context.fillRect(0, 0, canvas.width, canvas.height); } // a JPEG is not transparent
  context.imageSmoothingQuality = "high";
  context.drawImage(image, 0, 0, canvas.width, canvas.height);
  image.close();
  const made = await new Promise(resolve => canvas.toBlob(resolve, isPng ? "image/png" : "image/jpeg", JPEG_QUALITY));
  return made && made.size < file.size ? made : file;
}
