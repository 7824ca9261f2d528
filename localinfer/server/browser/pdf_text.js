// The text of PDF files. pdf.js is loaded when the first one is attached.

const LIBRARY = "/page/libraries/pdf.min.mjs", WORKER = "/page/libraries/pdf.worker.min.mjs";

/** The text of a PDF, with an empty line between pages. Raises an error whose message says what is wrong with it. */
export async function pdfText(data) {
  const { getDocument, GlobalWorkerOptions, VerbosityLevel } = await import(LIBRARY);
  GlobalWorkerOptions.workerSrc = WORKER;
  const task = getDocument({
    data, useWasm: false, useSystemFonts: false, disableFontFace: true, enableXfa: false, verbosity: VerbosityLevel.ERRORS,
  });
  task.onPassword = () => task.destroy();
  try {
    const document = await task.promise, pages = [];
    for (let number = 1; number <= document.numPages; number++) {
      const { items } = await (await document.getPage(number)).getTextContent();
      pages.push(items.map(item => (item.str ?? "") + (item.hasEOL ? "\n" : "")).join("").trim());
    }
    return pages.join("\n\n");
  } catch (error) {
    throw new Error(task.destroyed ? "needs a password" : "is not a valid PDF", { cause: error });
  } finally { task.destroy(); }
}
