// The map: which of its pictures, which class, closer or farther; and the image under the pointer or the arrow keys.

const known = JSON.parse(document.getElementById("points").textContent);
const map = document.getElementById("points-map");

if (map) {
  const dots = [...map.querySelectorAll("circle")];
  const kind = document.getElementById("map-kind"), chosen = document.getElementById("map-class");
  const card = document.getElementById("point"), tile = card.querySelector(".tile"), words = card.querySelector("p");
  const said = document.getElementById("said");
  const whole = map.viewBox.baseVal.width;
  const view = { x: 0, y: 0, side: whole };
  // arrow keys go through the images class by class
  const order = dots.map((_, place) => place).sort((a, b) => known.class[a] - known.class[b] || a - b);
  let at = -1;

  function place(name) {
    known.maps[name].forEach(([x, y], number) => { dots[number].setAttribute("cx", x); dots[number].setAttribute("cy", y); });
  }

  function look() {
    view.x = Math.min(Math.max(view.x, 0), whole - view.side);
    view.y = Math.min(Math.max(view.y, 0), whole - view.side);
    map.setAttribute("viewBox", `${view.x} ${view.y} ${view.side} ${view.side}`);
    dots.forEach((dot) => dot.setAttribute("r", 4.5 * Math.sqrt(view.side / whole)));
    if (at >= 0) show(at, false);
  }

  function zoom(factor) {
    const side = Math.min(whole, Math.max(whole / 16, view.side * factor));
    view.x += (view.side - side) / 2;
    view.y += (view.side - side) / 2;
    view.side = side;
    look();
  }

  function fade(group) {
    dots.forEach((dot, number) => dot.classList.toggle("faded", group !== null && known.class[number] !== group));
    if (group !== null) map.append(...dots.filter((_, number) => known.class[number] === group));  // on top
  }

  const selected = () => (chosen.value === "" ? null : Number(chosen.value));

  function show(number, aloud) {
    if (at >= 0) dots[at].classList.remove("at");
    at = number;
    if (number < 0) { card.hidden = true; fade(selected()); return; }
    const dot = dots[number], group = known.class[number];
    fade(selected() ?? group);
    dot.classList.add("at");
    map.append(dot);
    const level = known.uncertainty.length ? `, uncertainty ${known.uncertainty[number].toFixed(2)}` : "";
    const text = known.names[group] + level;
    words.textContent = text;
    if (aloud) said.textContent = text;
    tile.style.backgroundPosition =
      `-${(number % known.columns) * known.tile}px -${Math.floor(number / known.columns) * known.tile}px`;
    card.hidden = false;
    const box = map.getBoundingClientRect(), scale = box.width / view.side;
    const x = (dot.getAttribute("cx") - view.x) * scale, y = (dot.getAttribute("cy") - view.y) * scale;
    card.style.left = `${Math.min(Math.max(0, x + 14), box.width - card.offsetWidth)}px`;
    card.style.top = `${y + 14 + card.offsetHeight > box.height ? Math.max(0, y - 14 - card.offsetHeight) : y + 14}px`;
  }

  /** The nearest point within some pixels of the pointer. */
  function under(event) {
    const box = map.getBoundingClientRect(), scale = view.side / box.width;
    const x = view.x + (event.clientX - box.left) * scale, y = view.y + (event.clientY - box.top) * scale;
    const places = known.maps[kind.value];
    let best = -1, least = (18 * scale) ** 2;
    places.forEach(([a, b], number) => {
      const squared = (a - x) ** 2 + (b - y) ** 2;
      if (squared < least && (selected() === null || known.class[number] === selected())) [best, least] = [number, squared];
    });
    return best;
  }

  let drag = null;
  map.addEventListener("pointerdown", (event) => { drag = { x: event.clientX, y: event.clientY, from: { ...view } }; });
  addEventListener("pointerup", () => { drag = null; });
  map.addEventListener("pointermove", (event) => {
    if (drag && view.side < whole && event.buttons) {
      const scale = view.side / map.getBoundingClientRect().width;
      view.x = drag.from.x - (event.clientX - drag.x) * scale;
      view.y = drag.from.y - (event.clientY - drag.y) * scale;
      look();
      return;
    }
    const found = under(event);
    if (found !== at) show(found, false);
  });
  map.addEventListener("click", (event) => show(under(event), true));
  map.addEventListener("pointerleave", () => { if (document.activeElement !== map) show(-1); });
  map.addEventListener("blur", () => show(-1));
  map.addEventListener("keydown", (event) => {
    const step = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 }[event.key];
    if (event.key === "Escape") show(-1);
    if (event.key === "+" || event.key === "-") zoom(event.key === "+" ? 1 / 1.6 : 1.6);
    if (!step) return;
    event.preventDefault();
    const open = order.filter((number) => selected() === null || known.class[number] === selected());
    const now = open.indexOf(at);
    show(open[now < 0 ? 0 : (now + step + open.length) % open.length], true);
  });
  kind.addEventListener("change", () => { place(kind.value); show(-1); });
  chosen.addEventListener("change", () => show(-1));
  document.getElementById("map-in").addEventListener("click", () => zoom(1 / 1.6));
  document.getElementById("map-out").addEventListener("click", () => zoom(1.6));
  document.getElementById("map-reset").addEventListener("click", () => { Object.assign(view, { x: 0, y: 0, side: whole }); look(); });
}
