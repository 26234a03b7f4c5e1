"use strict";
// Draws the figures that the page carries as JSON, in the colours of the reader's theme; sorts and copies tables.

const figures = JSON.parse(document.getElementById("figures").textContent);
const dark = matchMedia("(prefers-color-scheme: dark)");
/** What another script of the page does to a figure: before and after it is drawn, and its further buttons. */
const hooks = { before: () => {}, after: () => {}, buttons: () => [] };

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

/** A text in lines of at most so many characters, broken at these places alone; a longer part stays whole. */
function inLines(text, most, at = / /) {
  const lines = [];
  for (const part of text.split(new RegExp(`(?<=${at.source})`))) {
    if (lines.length && (lines.at(-1) + part).trimEnd().length <= most) lines[lines.length - 1] += part;
    else lines.push(part);
  }
  return lines.map((line) => line.trimEnd());
}

/** The labels of parallel axes in as many lines as the longest needs, above their axes; the names left of the first
 * axis have room, at most a third of the width, and are shortened where they need more. */
function aboveAxes(trace, layout, node) {
  const names = trace.dimensions[0].ticktext ?? [], letters = Math.floor(node.clientWidth / 3 / 6.5) - 2;
  const shown = names.map((name) => name.length > letters ? `${name.slice(0, letters - 1)}…` : name);
  if (shown.length) trace.dimensions[0].ticktext = shown;
  const left = Math.max(layout.margin.l, ...shown.map((name) => Math.ceil(6.5 * name.length) + 13));
  const between = (node.clientWidth - left - layout.margin.r) / (trace.dimensions.length - 1);
  const most = Math.min(20, Math.max(8, Math.floor(between / 6.5)));  // 20 fit beside the first and the last axis
  const labels = trace.dimensions.map(({ label }) => label.split("<br>").flatMap((line) => inLines(line, most, /[ _/]/)));
  const lines = Math.max(...labels.map((label) => label.length));
  trace.dimensions.forEach((one, place) => {
    one.label = [...Array(lines - labels[place].length).fill("\u00a0"), ...labels[place]].join("<br>");
  });
  node.style.setProperty("--more-lines", lines - 1);
  layout.margin = { ...layout.margin, l: left, t: layout.margin.t + 14 * (lines - 1) };
}

/** What depends on the width: what stands beside the axes, lines of the title below, and how many numbers have room. */
function fitted({ data: [first], layout }, node) {
  if (first.type === "parcoords") aboveAxes(first, layout, node);
  const axis = layout.xaxis, room = node.clientWidth - (layout.margin?.l ?? 56) - 16;
  if (!axis) return;
  const inside = layout.shapes?.filter((shape) => shape.xref === "x");
  if (layout.meta?.beside && room < 450) Object.assign(layout, { shapes: inside, annotations: [], xaxis: Object.assign(axis, { domain: [0, 1] }) });
  if (axis.title?.text) axis.title = { ...axis.title, text: inLines(axis.title.text, Math.max(12, Math.floor(room / 7))).join("<br>") };
  if (axis.type !== "category") axis.nticks ??= Math.min(12, Math.max(3, Math.floor(room / 60)));
}

function draw(node) {
  const style = getComputedStyle(document.documentElement);
  const figure = coloured(figures[node.id], style);
  figure.layout.template = template(style);
  fitted(figure, node);
  hooks.before(figure);
  Plotly.react(node, figure.data, figure.layout, {
    responsive: true, displaylogo: false, toImageButtonOptions: { format: "svg", filename: node.id },
    // named one by one: plotly's own set has an upload to its cloud
    modeBarButtons: [figure.data[0].type === "parcoords" ? ["toImage"] : ["toImage", "zoom2d", "pan2d", ...hooks.buttons(figure), "resetScale2d"]] });
  hooks.after(node);
  node.dataset.drawn = "yes";
  // one stop of the keyboard for all buttons of a figure; the arrows go from one to the next
  node.querySelectorAll(".modebar-btn").forEach((button, place) => { button.tabIndex = place ? -1 : 0; });
}

const plots = [...document.querySelectorAll(".plot")];
document.addEventListener("keydown", (event) => {
  const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key], button = event.target.closest?.(".modebar-btn");
  if (!step || !button) return;
  const all = [...button.closest(".plot").querySelectorAll(".modebar-btn")];
  all[(all.indexOf(button) + step + all.length) % all.length].focus();
  event.preventDefault();
});

for (const group of document.querySelectorAll(".chosen")) {
  const all = [...group.querySelectorAll("figure")], choice = group.querySelector("select");
  const show = (event) => all.forEach((one, place) => {
    one.hidden = place !== (choice?.selectedIndex ?? 0);
    const node = one.querySelector(".plot");
    if (event && window.Plotly && !one.hidden && !node.dataset.drawn) draw(node);
  });
  choice?.addEventListener("change", show);
  show();
}

/** How far a figure is from what is seen. */
const away = (node) => {
  const box = node.getBoundingClientRect();
  return Math.max(0, box.top - innerHeight, -box.bottom);
};
function drawAll() {  // one after the other, the nearest first, so that the page can be read and scrolled meanwhile
  const left = plots.filter((node) => !node.dataset.drawn && node.checkVisibility());
  if (left.length) {
    draw(left.reduce((one, other) => (away(other) < away(one) ? other : one)));
    setTimeout(drawAll, 0);
  }
}

/** Unpacks the drawing library, which the page carries compressed, so that its text is there first. */
async function unpack(held) {
  const bytes = Uint8Array.from(atob(held.textContent.trim()), (letter) => letter.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
  const code = document.createElement("script");
  code.text = await new Response(stream).text();
  document.head.append(code);
  held.remove();
  drawAll();
  hooks.ready?.();
}
const held = document.getElementById("plotly");
if (held) unpack(held);
dark.addEventListener("change", () => plots.filter((node) => node.dataset.drawn).forEach(draw));

/** Tables without room for their columns break all texts where little is missing, and always on paper; without room even
 *  then they show the cells of a row under each other. */
const tables = [...document.querySelectorAll("table.sortable")];
function fit() {
  for (const table of tables) {
    table.classList.remove("stacked", "tight");
    const room = table.parentElement.clientWidth, narrow = () => room && table.scrollWidth > room + 1;
    const little = table.scrollWidth < 1.25 * room || document.body.classList.contains("printing");
    if (little && narrow()) table.classList.add("tight");
    if (narrow()) table.classList.add("stacked");
  }
}
let waiting = 0, wide = innerWidth;
addEventListener("resize", () => {
  clearTimeout(waiting);
  waiting = setTimeout(() => {
    fit();
    if (wide !== innerWidth && window.Plotly) plots.filter((node) => node.dataset.drawn && node.checkVisibility()).forEach(draw);
    wide = innerWidth;
  }, 50);
});
document.addEventListener("toggle", () => {
  fit();
  if (window.Plotly) drawAll();  // figures that were folded are drawn when they are opened
}, true);

const PAPER = 700;  // pixels that a page of paper has room for
addEventListener("beforeprint", () => {
  document.body.style.width = `${PAPER}px`;
  document.body.classList.add("printing");
  const seen = window.Plotly ? plots.filter((node) => node.checkVisibility()) : [];
  seen.forEach((node) => {
    draw(node);
    Plotly.relayout(node, { autosize: false, width: node.clientWidth });
  });
  fit();
});
addEventListener("afterprint", () => {
  document.body.style.width = "";
  document.body.classList.remove("printing");
  if (window.Plotly) plots.filter((node) => node.checkVisibility()).forEach(draw);
  fit();
});

for (const table of tables) {
  const heads = [...table.tHead.rows[0].cells];
  for (const row of table.tBodies[0].rows) {
    [...row.cells].forEach((cell, column) => { cell.dataset.label = heads[column].textContent.trim(); });
  }
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

fit();

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

for (const button of document.querySelectorAll(".copy[data-of]")) {
  button.addEventListener("click", () => {
    const target = document.getElementById(button.dataset.of);
    const cells = (row) => [...row.cells].map((cell) => cell.innerText.trim()).join("\t");
    copied(button, target.rows ? [...target.rows].map(cells).join("\n") : target.textContent);
  });
}

// In a sandboxed frame, as MLflow's, a browser takes a link to a part of the page for one to another file, and opens none
if (window.parent !== window) {
  document.documentElement.classList.add("framed");
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
