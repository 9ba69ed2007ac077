"use strict";
// A button that copies a block of code, and tables that can be read on a telephone. Needs no other script and no network.

// What a block would be typed as: of a session in a terminal, only the commands.
function codeOf(block) {
  const text = block.querySelector("pre").textContent.replace(/\n$/, "");
  if (!block.matches(".highlight-console *")) return text;
  const commands = text.split("\n").filter((line) => line.startsWith("$ "));
  return commands.length ? commands.map((line) => line.slice(2)).join("\n") : text;
}

async function copy(text) {
  // Pages that were not fetched over HTTPS have no clipboard.
  if (navigator.clipboard) return navigator.clipboard.writeText(text);
  const area = document.createElement("textarea");
  area.value = text;
  document.body.append(area);
  area.select();
  const copied = document.execCommand("copy");
  area.remove();
  if (!copied) throw new Error("the browser refuses to copy");
}

function addButton(block) {
  const button = document.createElement("button");
  button.type = "button";
  button.className = "copy";
  button.textContent = "Copy";
  button.addEventListener("click", async () => {
    try {
      await copy(codeOf(block));
      button.textContent = "Copied";
    } catch {
      button.textContent = "Not copied";
    }
    setTimeout(() => { button.textContent = "Copy"; }, 2000);
  });
  block.append(button);
}

// Longer names than this may break, where a browser sees fit.
const NAME_MAX = 36;

function keepNames(table) {
  for (const code of table.querySelectorAll("td code")) {
    const name = code.textContent;
    if (name.length <= NAME_MAX && !/\s/.test(name)) code.classList.add("name");
  }
}

// A table with sentences in it becomes a list on a small screen (site.css), in which each cell says what it is.
const SENTENCE = 60;

function mark(table) {
  const cells = [...table.querySelectorAll("tbody td")];
  if (!cells.some((cell) => cell.textContent.length > SENTENCE)) return;
  table.classList.add("sentences");
  const titles = [...table.querySelectorAll("thead th")].map((cell) => cell.textContent.trim());
  for (const cell of cells) cell.dataset.title = titles[cell.cellIndex] || "";
}

document.addEventListener("DOMContentLoaded", () => {
  document.querySelectorAll("article div.highlight").forEach(addButton);
  for (const table of document.querySelectorAll("article table.docutils")) {
    keepNames(table);
    mark(table);
  }
});
