"use strict";
// Draws the figures that the page carries as JSON, in the colours of the reader's theme; sorts and copies tables.

const figures = JSON.parse(document.getElementById("figures").textContent);
const dark = matchMedia("(prefers-color-scheme: dark)");

/** The same structure with each "var(--name)" replaced by what the style sheet says now. */
function coloured(part, style) {
  if (typeof part === "string") {
    return part.startsWith("var(--") ? style.getPropertyValue(part.slice(4, -1)).trim() : part;
  }
  if (Array.isArray(part)) return part.map((inner) => coloured(inner, style));
  if (part && typeof part === "object") {
    return Object.fromEntries(Object.entries(part).map(([key, inner]) => [key, coloured(inner, style)]));
  }
  return part;
}

function template(style) {
  const colour = (name) => style.getPropertyValue(name).trim();
  const axis = { gridcolor: colour("--grid"), linecolor: colour("--line"), zerolinecolor: colour("--grid"),
    automargin: true, title: { standoff: 8 } };
  return { layout: {
    paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)", xaxis: axis, yaxis: axis,
    font: { color: colour("--ink"), size: 12, family: getComputedStyle(document.body).fontFamily },
    hoverlabel: { bgcolor: colour("--panel"), bordercolor: colour("--line"), font: { color: colour("--ink") } },
    legend: { orientation: "h", y: 1.02, yanchor: "bottom", x: 0, bgcolor: "rgba(0,0,0,0)" },
    modebar: { bgcolor: "rgba(0,0,0,0)", color: colour("--line"), activecolor: colour("--accent") },
    margin: { l: 56, r: 16, t: 34, b: 44 } } };
}

function draw(node) {
  const style = getComputedStyle(document.documentElement);
  const figure = coloured(figures[node.id], style);
  figure.layout.template = template(style);
  Plotly.react(node, figure.data, figure.layout, {
    responsive: true, displaylogo: false, toImageButtonOptions: { format: "svg", filename: node.id },
    // named one by one: plotly's own set has an upload to its cloud
    modeBarButtons: [figure.data[0].type === "parcoords" ? ["toImage"] : ["toImage", "zoom2d", "pan2d", "resetScale2d"]] });
  node.dataset.drawn = "yes";
}

const plots = [...document.querySelectorAll(".plot")];
(function next(place) {  // one after the other, so that the page can be read and scrolled meanwhile
  if (place < plots.length) {
    draw(plots[place]);
    setTimeout(next, 0, place + 1);
  }
})(0);
dark.addEventListener("change", () => plots.filter((node) => node.dataset.drawn).forEach(draw));

for (const table of document.querySelectorAll("table.sortable")) {
  const heads = [...table.tHead.rows[0].cells];
  heads.forEach((head, column) => {
    const button = head.querySelector("button");
    button?.addEventListener("click", () => {
      const up = head.getAttribute("aria-sort") !== "ascending";
      heads.forEach((other) => other.removeAttribute("aria-sort"));
      head.setAttribute("aria-sort", up ? "ascending" : "descending");
      const key = (row) => row.cells[column].dataset.value ?? row.cells[column].textContent;
      const rows = [...table.tBodies[0].rows].sort((one, other) => {
        const [a, b] = [key(one), key(other)];
        if (a === "" || b === "") return (a === "") - (b === "");  // empty cells stay last
        const order = isNaN(a) || isNaN(b) ? a.localeCompare(b) : a - b;
        return up ? order : -order;
      });
      table.tBodies[0].append(...rows);
    });
  });
}

function copied(button, text) {
  const area = document.createElement("textarea");  // a sandboxed frame has no clipboard of its own
  area.value = text;
  document.body.append(area);
  area.select();
  const done = document.execCommand("copy");
  area.remove();
  button.focus();
  const before = button.textContent;
  button.textContent = done ? "Copied" : "Could not copy";
  setTimeout(() => { button.textContent = before; }, 1500);
}

for (const button of document.querySelectorAll(".copy")) {
  button.addEventListener("click", () => {
    const target = document.getElementById(button.dataset.of);
    const cells = (row) => [...row.cells].map((cell) => cell.innerText.trim()).join("\t");
    copied(button, target.rows ? [...target.rows].map(cells).join("\n") : target.textContent);
  });
}

// In a sandboxed frame, as MLflow's, a browser takes a link to a part of the page for one to another file, and opens none
if (window.parent !== window) {
  document.querySelectorAll('a:not([href^="#"])').forEach((link) => link.replaceWith(link.textContent));
  document.addEventListener("click", (event) => {
    const link = event.target.closest('a[href^="#"]'), part = link && document.getElementById(link.getAttribute("href").slice(1));
    if (!part) return;
    event.preventDefault();
    part.tabIndex = -1;
    part.focus({ preventScroll: true });
    part.scrollIntoView();
  });
}
