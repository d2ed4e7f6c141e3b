"use strict";
// Everything works without this file. It reloads the part of a page that is marked as live, and
// keeps the end button of a form disabled until the id has been typed.

const LIVE_MS = 3000;

function live() {
  const part = document.querySelector("[data-live]");
  const box = document.querySelector("#live");
  if (!part || !box) return;
  box.closest("label").hidden = false;
  box.checked = sessionStorage.getItem("live") !== "off";
  box.addEventListener("change", () => sessionStorage.setItem("live", box.checked ? "on" : "off"));
  setInterval(async () => {
    if (!box.checked || document.hidden) return;
    try {
      const answer = await fetch(location.href, { redirect: "error" });
      if (!answer.ok) return;
      const page = new DOMParser().parseFromString(await answer.text(), "text/html");
      const fresh = page.querySelector("[data-live]");
      const now = document.querySelector("[data-live]");
      if (fresh && now) now.replaceWith(fresh);
    } catch {
      // The next round tries again.
    }
  }, LIVE_MS);
}

function confirmations() {
  for (const form of document.querySelectorAll("form[data-confirm]")) {
    const typed = form.querySelector("input[name=confirmation]");
    const button = form.querySelector("button");
    const check = () => { button.disabled = typed.value !== form.dataset.confirm; };
    typed.addEventListener("input", check);
    check();
  }
}

live();
confirmations();
