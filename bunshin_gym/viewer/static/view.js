// SPDX-License-Identifier: Apache-2.0
"use strict";

const cards = new Map();
const MIB = 1 << 20;

function makeCard(id) {
  const card = document.createElement("article");
  card.id = `workspace-${id}`;
  for (const name of ["screen", "name", "action", "result", "memory"]) {
    const part = document.createElement(name === "screen" ? "img" : "p");
    part.className = name;
    card.append(part);
  }
  cards.set(id, card);
  return card;
}

function part(card, name) {
  return card.querySelector(`.${name}`);
}

function fill(card, entry) {
  const { notes } = entry;
  const screen = part(card, "screen");
  if (entry.frame !== null && screen.dataset.frame !== entry.frame) {
    screen.dataset.frame = entry.frame;
    screen.src = `frame/${entry.id}?at=${entry.frame}`;
  }
  screen.alt = `screen of ${entry.id}`;
  part(card, "name").textContent = `${entry.id} ${notes.task ?? entry.image}`;
  part(card, "action").textContent = notes.last_action || "no action yet";
  const reward = notes.reward === undefined ? "" : `, reward ${notes.reward}`;
  part(card, "result").textContent = notes.steps === undefined ? "" : `${notes.steps} steps${reward}`;
  const memory = entry.memory_bytes == null ? "" : `${(entry.memory_bytes / MIB).toFixed(1)} MiB of its own`;
  part(card, "memory").textContent = memory;
  card.classList.toggle("done", Boolean(notes.done) && notes.reward > 0);
  card.classList.toggle("failed", Boolean(notes.done) && notes.reward <= 0);
  card.classList.toggle("quiet", entry.frame === null);
}

function show(entries) {
  const idle = document.getElementById("idle").checked;
  const shown = entries.filter((entry) => idle || entry.frame !== null);
  const groups = new Map();
  for (const entry of shown) {
    const key = entry.snapshot ?? "booted";
    if (!groups.has(key)) groups.set(key, []);
    groups.get(key).push(entry);
  }
  const sections = [];
  for (const [key, members] of groups) {
    const section = document.getElementById(`group-${key}`) ?? document.createElement("section");
    section.id = `group-${key}`;
    const title = document.createElement("h2");
    title.textContent = key === "booted" ? "booted" : `branches of snapshot ${key}`;
    const grid = document.createElement("div");
    grid.className = "group";
    for (const entry of members) {
      const card = cards.get(entry.id) ?? makeCard(entry.id);
      fill(card, entry);
      grid.append(card);
    }
    section.replaceChildren(title, grid);
    sections.push(section);
  }
  document.getElementById("groups").replaceChildren(...sections);
  for (const id of cards.keys()) if (!shown.some((entry) => entry.id === id)) cards.delete(id);
  const memory = entries.reduce((sum, entry) => sum + (entry.memory_bytes ?? 0), 0) / MIB;
  document.getElementById("summary").textContent =
    `${entries.length} running, ${shown.length} shown, ${memory.toFixed(0)} MiB of their own`;
}

async function look() {
  try {
    const answer = await fetch("api/state");
    if (!answer.ok) throw new Error(await answer.text());
    show(await answer.json());
  } catch (error) {
    document.getElementById("summary").textContent = `no answer: ${error.message}`;
  }
  setTimeout(look, 500);
}

look();
