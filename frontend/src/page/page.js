// Puts what has changed in place every two seconds, and filters while one types. Without it the page is one that is loaded by hand.
"use strict";

const EVERY = 2000;
const TYPING = 200;

const live = document.getElementById("live");
const stale = document.getElementById("stale");
const field = document.getElementById("q");
let timer = 0;
let asked = 0;

async function refresh() {
  clearTimeout(timer);
  const number = ++asked;
  try {
    const answer = await fetch("live" + location.search, { signal: AbortSignal.timeout(5000) });
    if (!answer.ok) throw new Error(answer.statusText);
    const html = await answer.text();
    // Of several that are under way the last counts.
    if (number === asked) put(html);
    stale.hidden = true;
  } catch {
    stale.hidden = false;
  }
  if (number === asked) timer = setTimeout(refresh, document.hidden ? 5 * EVERY : EVERY);
}

function put(html) {
  if (live.innerHTML === html || holdsSelection()) return;
  const scrolled = [...live.querySelectorAll(".table")].map((table) => table.scrollLeft);
  const focused = live.contains(document.activeElement) && document.activeElement.getAttribute("aria-labelledby");
  live.innerHTML = html;
  live.querySelectorAll(".table").forEach((table, at) => (table.scrollLeft = scrolled[at] || 0));
  if (focused) live.querySelector(`.table[aria-labelledby="${focused}"]`)?.focus({ preventScroll: true });
}

// What somebody is about to copy stays.
function holdsSelection() {
  const selection = getSelection();
  return !selection.isCollapsed && live.contains(selection.anchorNode);
}

function filter() {
  const query = new URLSearchParams(location.search);
  if (field.value.trim()) query.set("q", field.value.trim());
  else query.delete("q");
  const text = query.toString();
  history.replaceState(null, "", text ? "?" + text : location.pathname);
  refresh();
}

let typing = 0;
field.addEventListener("input", () => {
  clearTimeout(typing);
  typing = setTimeout(filter, TYPING);
});
field.form.addEventListener("submit", (event) => {
  event.preventDefault();
  filter();
});
document.addEventListener("visibilitychange", () => document.hidden || refresh());
document.documentElement.classList.add("live");
timer = setTimeout(refresh, EVERY);
