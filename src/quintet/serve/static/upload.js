// Photos from outside: chosen, dropped or pasted.

const drop = document.getElementById("drop");
const input = document.getElementById("file");

/** `found(file)` for each photo that comes in, however it comes. */
export function listen(found) {
  input.addEventListener("change", () => {
    if (input.files.length) found(input.files[0]);
    input.value = ""; // the same file may be chosen again
  });

  let depth = 0; // dragenter and dragleave come for every element on the way
  const carries = (event) => event.dataTransfer?.types.includes("Files");
  const end = () => {
    depth = 0;
    drop.hidden = true;
  };
  document.addEventListener("dragenter", (event) => {
    if (!carries(event)) return;
    event.preventDefault();
    depth += 1;
    drop.hidden = false;
  });
  document.addEventListener("dragover", (event) => {
    if (carries(event)) event.preventDefault();
  });
  document.addEventListener("dragleave", (event) => {
    if (carries(event) && --depth <= 0) end();
  });
  document.addEventListener("drop", (event) => {
    if (!carries(event)) return;
    event.preventDefault();
    end();
    if (event.dataTransfer.files.length) found(event.dataTransfer.files[0]);
  });
  document.addEventListener("paste", (event) => {
    const file = [...(event.clipboardData?.files ?? [])].find(({ type }) => type.startsWith("image/"));
    if (!file) return; // text goes where the cursor is
    event.preventDefault();
    found(file);
  });
}
