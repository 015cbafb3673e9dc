// Replaces the live part of the page every two seconds, and filters while the user types. The page works without it.
"use strict";

const REFRESH_MS = 2000;
const TYPING_DELAY_MS = 200;

const live = document.getElementById("live");
const stale = document.getElementById("stale");
const field = document.getElementById("q");
let timer = 0;
let lastRequest = 0;

async function refresh() {
  clearTimeout(timer);
  const request = ++lastRequest;
  try {
    const response = await fetch("live" + location.search, { signal: AbortSignal.timeout(5000) });
    if (!response.ok) throw new Error(response.statusText);
    const html = await response.text();
    // Ignores responses to older requests.
    if (request === lastRequest) replaceLive(html);
    stale.hidden = true;
  } catch {
    stale.hidden = false;
  }
  if (request === lastRequest) timer = setTimeout(refresh, document.hidden ? 5 * REFRESH_MS : REFRESH_MS);
}

function replaceLive(html) {
  if (live.innerHTML === html || hasSelection()) return;
  const scrolled = [...live.querySelectorAll(".table")].map((table) => table.scrollLeft);
  const focused = live.contains(document.activeElement) && document.activeElement.getAttribute("aria-labelledby");
  live.innerHTML = html;
  live.querySelectorAll(".table").forEach((table, at) => (table.scrollLeft = scrolled[at] || 0));
  if (focused) live.querySelector(`.table[aria-labelledby="${focused}"]`)?.focus({ preventScroll: true });
}

// Whether the user has selected text, which a refresh would deselect.
function hasSelection() {
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
  typing = setTimeout(filter, TYPING_DELAY_MS);
});
field.form.addEventListener("submit", (event) => {
  event.preventDefault();
  filter();
});
document.addEventListener("visibilitychange", () => document.hidden || refresh());
document.documentElement.classList.add("live");
timer = setTimeout(refresh, REFRESH_MS);
