
// A served page looks whether its search has gone on, and is loaded again then; the address keeps the selection.

const live = JSON.parse(document.getElementById("live").textContent);
const told = Object.assign(document.createElement("p"), { className: "live" });
const heard = Object.assign(document.createElement("span"), { textContent: `as of ${new Date().toISOString().slice(0, 19).replace("T", " ")} UTC` });
const hold = Object.assign(document.createElement("button"), { type: "button", className: "copy", textContent: "Hold" });
heard.setAttribute("role", "status");
told.append(heard, " ", hold);
document.querySelector("main").append(told);
let holding = false, touched = 0;
hold.addEventListener("click", () => {
  holding = !holding;
  hold.textContent = holding ? "Go on" : "Hold";
});
for (const kind of ["keydown", "pointerdown", "wheel"]) addEventListener(kind, () => { touched = Date.now(); }, { passive: true });

/** The element with the keyboard's focus is found again after the page was loaded again. */
const FOCUS = `focus ${location.pathname}`;
function keepFocus() {
  const { id, dataset } = document.activeElement ?? {};
  const mark = id ? `#${CSS.escape(id)}` : dataset?.trial ? `button.pick[data-trial="${CSS.escape(dataset.trial)}"]` : "";
  try { sessionStorage.setItem(FOCUS, mark); } catch { /* a browser that keeps nothing */ }
}
try {
  const mark = sessionStorage.getItem(FOCUS);
  if (mark) document.querySelector(mark)?.focus({ preventScroll: true });
  sessionStorage.removeItem(FOCUS);
} catch { /* the same */ }

async function look() {
  const busy = holding || document.hidden || Date.now() - touched < 1000 * live.quiet;
  try {
    const answer = busy ? null : await fetch(live.address, { cache: "no-store" });
    if (answer?.ok && (await answer.text()) !== live.version) {
      keepFocus();
      location.reload();
      return;
    }
    told.classList.remove("lost");
  } catch {
    heard.textContent = "orchestrator watch does not answer: it has ended";
    told.classList.add("lost");
  }
  setTimeout(look, 1000 * live.seconds);
}
setTimeout(look, 1000 * live.seconds);
