
// One selection for the whole page: tables, figures, the panel and the address show the same records: trials or searches.

const search = JSON.parse(document.getElementById("records").textContent);
const records = new Map(search.rows.map((row) => [row[0], row]));
const state = { chosen: [], pinned: [], filter: "" };
const PINS = 2, framed = window.parent !== window;
const field = document.getElementById("filter"), said = document.getElementById("selection-said");
const panel = document.getElementById("trial-panel"), clear = document.getElementById("clear");
let matched = null, round = 0, byAxes = false;

const shown = (value) => typeof value === "number" ? String(Number(value.toPrecision(4))) : String(value ?? "");
const literal = (text) => String(text).replace(/[&<>]/g, (mark) => ({ "&": "&amp;", "<": "&lt;", ">": "&gt;" })[mark]);
const listOf = (entry) => [].concat(entry ?? []).filter((id) => records.has(id));
const picks = (scope) => [...scope.querySelectorAll("button.pick")];

/** The place of a column by its name, by its last part (`map_at_r`) or by how it begins, if only one does. */
function columnOf(name) {
  if (name === "time") return search.seconds;
  const tests = [(column) => column === name, (column) => column.endsWith(`/${name}`), (column) => column.startsWith(name)];
  for (const test of tests) {
    const found = search.columns.flatMap((column, place) => (test(column) ? [place] : []));
    if (found.length === 1) return found[0];
  }
  return -1;
}

const SIGNS = { "<": (a, b) => a < b, ">": (a, b) => a > b, "<=": (a, b) => a <= b, ">=": (a, b) => a >= b };

/** The tests of a filter, one for each word (a value with blanks is in quotes), and what is wrong with it. */
function parsed(text) {
  const tests = [], problems = [];
  for (const quoted of text.replace(/\s*(<=|>=|!=|<|>|=)\s*/g, "$1").match(/(?:"[^"]*"?|[^\s"])+/g) ?? []) {
    const word = quoted.replaceAll('"', "");
    const parts = word.match(/^([^<>=!]+)(<=|>=|!=|<|>|=)([^<>=!]+)$/);
    if (!parts && /[<>=]/.test(word)) {
      problems.push(`${word}: write a column, one of < > <= >= = != and a value`);
      continue;
    }
    if (!parts) {
      const wanted = word.toLowerCase();
      tests.push((row) => row.some((value) => typeof value !== "number" && String(value ?? "").toLowerCase().includes(wanted)));
      continue;
    }
    const [, name, sign, wanted] = parts, place = columnOf(name), number = Number(wanted);
    if (place < 0) problems.push(`no column '${name}': ${search.columns.join(", ")}`);
    else if (sign in SIGNS && Number.isNaN(number)) problems.push(`${word}: '${wanted}' is not a number`);
    else if (sign in SIGNS) tests.push((row) => typeof row[place] === "number" && SIGNS[sign](row[place], number));
    else {
      const longer = search.rows.map((row) => row[place]).find((value) => String(value ?? "").startsWith(`${wanted} `));
      if (longer && !quoted.includes('"')) problems.push(`${word}: write ${name}${sign}"${longer}"`);
      tests.push((row) => {
        const same = typeof row[place] === "number" ? row[place] === number || shown(row[place]) === wanted : String(row[place] ?? "") === wanted;
        return same === (sign === "=");
      });
    }
  }
  return { tests, problems };
}

/** The trials that stand out: the selected ones, else those that the filter finds; null for all. */
const lit = () => (state.chosen.length ? new Set(state.chosen) : matched);

function hover(id) {
  const row = records.get(id);
  const point = search.columns.slice(search.first, search.first + 12).flatMap((key, place) => {
    const value = row[search.first + place];
    return value === null ? [] : [`${literal(key)}: ${literal(shown(value))}`];
  });
  return [`${search.noun} ${literal(id)}, ${literal(row[1])}`, ...point].join("<br>");
}

hooks.before = (figure) => {
  const among = lit();
  for (const trace of figure.data) {
    if (trace.type === "parcoords") {
      if (among && !byAxes) {
        const colour = getComputedStyle(document.documentElement);
        trace.line = { color: trace.customdata.map((id) => Number(among.has(id))), cmin: 0, cmax: 1, showscale: false,
          colorscale: [[0, colour.getPropertyValue("--line").trim()], [1, colour.getPropertyValue("--best").trim()]] };
      }
      trace.uirevision = byAxes ? "axes" : `all-${round}`;
    } else if (listOf(trace.meta).length) {
      const found = among && listOf(trace.meta).some((id) => among.has(id));
      if (among) trace.opacity = found ? 1 : 0.08;
      if (found && trace.line) trace.line.width = 3;
    } else if (Array.isArray(trace.customdata) && ["scatter", "bar"].includes(trace.type)) {
      if (String(trace.hovertemplate).includes("%{text}") && !trace.text) trace.text = trace.customdata.map(hover);
      if (among) {
        trace.selectedpoints = trace.customdata.flatMap((entry, place) => (listOf(entry).some((id) => among.has(id)) ? [place] : []));
        trace.unselected = { marker: { opacity: 0.1 } };
        trace.selected = { marker: { opacity: 1 } };
      }
    }
  }
  Object.assign(figure.layout, { uirevision: "kept", selectionrevision: round, selections: [] });
};

hooks.buttons = (figure) =>
  figure.data.some((trace) => trace.customdata && ["scatter", "bar"].includes(trace.type)) ? ["select2d", "lasso2d"] : [];

hooks.after = (node) => {
  if (node.dataset.connected) return;
  node.dataset.connected = "yes";
  const idsOf = (points) => points.flatMap((point) => listOf(point.data.meta ?? point.customdata));
  node.on("plotly_click", (event) => toggle(idsOf(event.points.slice(-1))));
  node.on("plotly_selected", (event) => (event?.range || event?.lassoPoints) && choose(idsOf(event.points)));
  node.on("plotly_doubleclick", () => ["select", "lasso"].includes(node._fullLayout.dragmode) && choose([]));
  if (node.data[0].type !== "parcoords") return;
  node.on("plotly_restyle", () => {
    const { dimensions, customdata } = node.data[0];
    const bands = dimensions.map(({ constraintrange: range }) => !range?.length ? null : [].concat(range[0]).length > 1 ? range : [range]);
    const inside = (value, band) => !band || band.some(([low, high]) => low <= value && value <= high);
    const none = bands.every((band) => !band);
    byAxes = !none;
    const kept = customdata.filter((_, line) => dimensions.every((one, place) => inside(one.values[line], bands[place])));
    choose(none ? [] : kept, true);
  });
};

function choose(ids, axes = false) {
  byAxes = axes && ids.length > 0;
  state.chosen = [...new Set(ids)].filter((id) => records.has(id));
  apply();
}

function toggle(ids) {
  const known = new Set(state.chosen), all = ids.every((id) => known.has(id));
  choose(all ? state.chosen.filter((id) => !ids.includes(id)) : [...state.chosen, ...ids]);
}

function pin(id) {
  state.pinned = state.pinned.includes(id) ? state.pinned.filter((one) => one !== id) : [...state.pinned, id].slice(-PINS);
  apply();
}

/** An element with a class, a text and children; texts are never read as HTML. */
function element(tag, { text, ...rest } = {}, ...children) {
  const made = Object.assign(document.createElement(tag), rest);
  if (text !== undefined) made.textContent = text;
  made.append(...children);
  return made;
}

function tableOf(heads, rows, caption) {
  const line = (cells, tag) => element("tr", {}, ...cells.map((text) => element(tag, { text })));
  return element("table", {}, element("caption", { text: caption }), element("thead", {}, line(heads, "th")),
    element("tbody", {}, ...rows.map((row) => line(row, "td"))));
}

function card(id, place) {
  const row = records.get(id), winner = records.get(search.winner), more = search.more[id] ?? {}, pinned = state.pinned.includes(id);
  const keep = element("button", { type: "button", className: "copy", text: pinned ? "Unpin" : "Pin", onclick: () => pin(id) });
  keep.dataset.pin = id;
  keep.setAttribute("aria-pressed", String(pinned));
  keep.setAttribute("aria-label", `${pinned ? "Unpin" : "Pin"} ${search.noun} ${id}`);
  const facts = search.columns.slice(1, search.first).map((column, at) => at + 1 === search.seconds && more.time ? ["time", more.time] : [column, shown(row[at + 1])]);
  if (more.resources) facts.push(["machine", more.resources]);
  if (more.reason) facts.push(["note", more.reason]);
  const list = element("dl", {}, ...facts.flatMap(([name, text]) => [element("dt", { text: name }), element("dd", { text })]));
  const parts = [element("h2", { text: `${search.noun[0].toUpperCase()}${search.noun.slice(1)} ${id}` }), keep, list];
  if (id === search.winner) parts.push(element("p", { text: "It is the winner." }));
  else if (winner) {
    const rows = search.columns.slice(search.first).flatMap((key, at) => {
      const [mine, its] = [row[search.first + at], winner[search.first + at]];
      return mine === its ? [] : [[search.names[key] ?? key, shown(mine), shown(its)]];
    });
    parts.push(rows.length ? tableOf(["setting", `${search.noun} ${id}`, `winner ${search.winner}`], rows, "Settings that differ from the winner's")
      : element("p", { text: "Its searched settings are the winner's." }));
  }
  const box = element("div", { className: "panel-plot" });
  if (more.curve) parts.push(element("p", { className: "empty", text: more.thinned ? "Curves, thinned out for this page" : "Curves" }), box);
  else parts.push(element("p", { className: "empty", text: `The page of so many ${search.plural} holds no curve of this one.` }));
  if (more.page) {
    const text = search.leads;
    parts.push(element("p", {}, framed ? element("span", { text: `${text}: ${search.framed}` }) : element("a", { href: more.page, text })));
  }
  const made = element("article", {}, ...parts);
  made.dataset.card = id;
  return [made, () => more.curve && plot(box, id, more)];
}

/** The validation curve, and the training loss on an axis of its own, over what was trained until then. */
function plot(box, id, more) {
  const style = getComputedStyle(document.documentElement);
  const line = (name, y, colour, rest) => ({ type: "scatter", mode: y.length > 1 ? "lines" : "markers", name, x: more.at, y, line: { color: colour }, marker: { color: colour }, ...rest });
  const data = [line(literal(search.metric), more.curve, "var(--best)", {})];
  if (more.loss?.some((value) => value !== null)) data.push(line("train loss", more.loss, "var(--pruned)", { yaxis: "y2" }));
  const figure = coloured({ data, layout: { height: 230, xaxis: { title: { text: search.unit } }, yaxis2: { overlaying: "y", side: "right", showgrid: false },
    margin: { l: 44, r: 44, t: 34, b: 40 } } }, style);
  figure.layout.template = template(style);
  Plotly.react(box, figure.data, figure.layout, { responsive: true, displayModeBar: false });
}

function fill() {
  const current = state.chosen.at(-1);
  const ids = [...new Set([...state.pinned, ...(current ? [current] : [])])].slice(0, PINS);
  const focused = document.activeElement?.dataset?.pin;
  panel.hidden = !ids.length;
  document.body.classList.toggle("panelled", ids.length > 0);
  document.body.classList.toggle("paired", ids.length > 1);
  const cards = ids.map(card);
  panel.querySelector(".cards").replaceChildren(...cards.map(([made]) => made));
  if (window.Plotly) cards.forEach(([, draw]) => draw());
  if (focused) panel.querySelector(`[data-pin="${CSS.escape(focused)}"]`)?.focus();
}

/** Show the state everywhere: rows, what is said, figures, panel, address. */
function apply(write = true) {
  round += 1;
  const { tests, problems } = parsed(state.filter);
  matched = tests.length && !problems.length ? new Set(search.rows.filter((row) => tests.every((test) => test(row))).map(([id]) => id)) : null;
  field.setAttribute("aria-invalid", String(problems.length > 0));
  const selected = new Set(state.chosen);
  for (const button of picks(document)) {
    const id = button.dataset.trial, row = button.closest("tr");
    button.setAttribute("aria-pressed", String(selected.has(id)));
    row.classList.toggle("selected", selected.has(id));
    row.hidden = matched !== null && records.has(id) && !matched.has(id);
  }
  rove();
  const words = [];
  if (matched) words.push(`${matched.size} of ${records.size} ${search.plural} match`);
  if (selected.size) words.push(`${selected.size} selected`);
  said.textContent = problems.length ? problems.join("; ") : words.join(", ");
  clear.hidden = !selected.size && !state.filter && !state.pinned.length;
  const before = document.body.className;
  fill();
  if (before !== document.body.className) dispatchEvent(new Event("resize"));
  redraw();
  if (write) remember();
}

let waits = 0;
function redraw() {
  clearTimeout(waits);
  const left = plots.filter((node) => node.dataset.drawn).sort((one, other) => away(one) - away(other));
  (function next() {
    const node = left.shift();
    if (!node) return;
    if (node.checkVisibility()) draw(node);
    waits = setTimeout(next, 0);
  })();
}

/** One stop of the keyboard for the trials of a table. */
function rove() {
  for (const table of tables) {
    const all = picks(table).filter((button) => !button.closest("tr").hidden);
    const stop = all.find((button) => button.tabIndex === 0) ?? all[0];
    for (const button of picks(table)) button.tabIndex = button === stop ? 0 : -1;
  }
}

function remember() {
  const words = new URLSearchParams();
  if (state.chosen.length) words.set(search.plural, state.chosen.join(","));
  if (state.pinned.length) words.set("pinned", state.pinned.join(","));
  if (state.filter) words.set("filter", state.filter);
  const address = words.size ? `#${words}` : location.hash.includes("=") ? location.pathname + location.search : null;
  if (address === null) return;
  try { history.replaceState(null, "", address); } catch { /* a sandboxed frame has no address of its own */ }
}

function recall() {
  if (!location.hash.includes("=")) return;
  const words = new URLSearchParams(location.hash.slice(1));
  const ids = (name) => (words.get(name) ?? "").split(",").filter((id) => records.has(id));
  state.chosen = ids(search.plural);
  state.pinned = ids("pinned").slice(0, PINS);
  state.filter = field.value = words.get("filter") ?? "";
  apply(false);
}

function reset() {
  state.pinned = [];
  state.filter = field.value = "";
  choose([]);
}

document.addEventListener("click", (event) => {
  const button = event.target.closest("button.pick");
  const row = event.target.closest("tbody tr");
  const own = button ?? (!event.target.closest("a, button, summary") && !String(getSelection()) && row?.querySelector("button.pick"));
  if (own) toggle([own.dataset.trial]);
});
document.addEventListener("keydown", (event) => {
  const typing = event.target.matches?.("input, select, textarea");
  if (event.key === "/" && !typing && !event.ctrlKey && !event.metaKey) {
    event.preventDefault();
    field.focus();
  }
  if (event.key === "Escape") (typing ? event.target.blur() : reset());
  const button = event.target.closest?.("button.pick"), step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
  if (!button || !step) return;
  event.preventDefault();
  const all = picks(button.closest("table")).filter((one) => !one.closest("tr").hidden);
  const next = all[Math.min(all.length - 1, Math.max(0, all.indexOf(button) + step))];
  button.tabIndex = -1;
  next.tabIndex = 0;
  next.focus();
});
let typed = 0;
field.addEventListener("input", () => {
  clearTimeout(typed);
  typed = setTimeout(() => { state.filter = field.value.trim(); apply(); }, 150);
});
clear.addEventListener("click", reset);
document.getElementById("panel-close").addEventListener("click", () => { state.pinned = []; choose([]); });
addEventListener("hashchange", recall);
for (const table of tables) picks(table).forEach((button, place) => { button.tabIndex = place ? -1 : 0; });
if (!framed) {  // a link to a section keeps the selection in the address
  document.addEventListener("click", (event) => {
    const link = event.target.closest('a[href^="#"]'), part = link && document.getElementById(link.getAttribute("href").slice(1));
    const folded = part?.closest("details:not([open])");
    if (folded) folded.open = true;
    if (!part || !location.hash.includes("=")) return;
    event.preventDefault();
    part.tabIndex = -1;
    part.focus({ preventScroll: true });
    part.scrollIntoView();
  });
}
hooks.ready = fill;
recall();
