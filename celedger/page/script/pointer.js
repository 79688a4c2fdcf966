// Hover, click, drag, touch and keys on the chart.

// Where the pointer is in the units of the picture.
function pointerX(clientX) {
  const box = shown.picture.getBoundingClientRect();
  return ((clientX - box.left) * shown.width) / box.width;
}

function nearest(clientX) {
  const at = pointerX(clientX);
  const distance = (p) => Math.abs(shown.x(p.at) - at);
  return shown.points.reduce((a, b) => (distance(b) < distance(a) ? b : a), shown.points[0]);
}

function positionAt(clientX) {
  const share = (pointerX(clientX) - MARGIN.left) / shown.inner;
  const size = state.high - state.low + 1;
  return Math.min(state.high, Math.max(state.low, state.low + Math.floor(share * size)));
}

function listen(picture) {
  let from = null;
  picture.addEventListener("pointermove", (event) => {
    if (from === null || event.pointerType === "touch") {
      const point = nearest(event.clientX);
      if (point) hover(picture, point);
    } else drawZoom(picture, from, event.clientX);
  });
  picture.addEventListener("pointerleave", () => {
    if (from === null) leave(picture);
  });
  picture.addEventListener("pointerdown", (event) => {
    if (event.button) return;
    from = event.clientX;
    if (event.pointerType !== "touch") picture.setPointerCapture(event.pointerId);
  });
  picture.addEventListener("pointercancel", () => (from = null));
  picture.addEventListener("pointerup", (event) => {
    const start = from;
    from = null;
    if (start === null) return;
    const [low, high] = [start, event.clientX].sort((a, b) => a - b).map(positionAt);
    if (event.pointerType !== "touch" && Math.abs(event.clientX - start) > 8) {
      if (high > low) go({ span: 0, low, high });
      return;
    }
    const point = nearest(event.clientX);
    if (point) go({ commit: point.at });
  });
  picture.addEventListener("keydown", (event) => keyed(picture, event));
}

function drawZoom(picture, from, to) {
  const [low, high] = [from, to].sort((a, b) => a - b).map(pointerX);
  find(".over", picture).replaceChildren(strip("zoom", low, high));
}

function keyed(picture, event) {
  const points = shown.points;
  const here = points.findIndex((p) => p.at === cursor);
  const current = here < 0 ? points.length : here;
  const changes = marksOf(shown.task, shown.metric).flatMap((mark) => [mark.at, mark.closed]);
  const moves = {
    ArrowLeft: () => points[Math.max(0, current - 1)],
    ArrowRight: () => points[Math.min(points.length - 1, here + 1)],
    Home: () => points[0],
    End: () => points.at(-1),
    PageUp: () =>
      points.findLast((p) => p.at < (here < 0 ? Infinity : cursor) && changes.includes(p.at)),
    PageDown: () => points.find((p) => p.at > cursor && changes.includes(p.at)),
  };
  if (moves[event.key]) {
    const point = moves[event.key]();
    if (point) hover(picture, point);
  } else if (event.key === "Enter" && cursor >= 0) go({ commit: cursor });
  else if (event.key === "Escape" && state.span !== SPANS[0]) go({ span: SPANS[0], commit: -1 });
  else return;
  event.preventDefault();
}

document.addEventListener("keydown", (event) => {
  const typing = event.target.closest("input, select, textarea");
  if (typing || event.ctrlKey || event.metaKey || event.altKey || !["n", "p"].includes(event.key))
    return;
  const links = every(".card a.open").filter((each) => each.offsetParent);
  const at = links.findIndex((each) => each.closest(".card").classList.contains("current"));
  const next = links[Math.min(links.length - 1, Math.max(0, at + (event.key === "n" ? 1 : -1)))];
  if (!next) return;
  next.focus();
  next.click();
});

function hover(picture, point) {
  const { x, y, metric, width } = shown;
  cursor = point.at;
  const parts = [vertical("cursor", x(point.at))];
  if (point.mean !== null)
    parts.push(svg("circle", { class: "cursor-dot", cx: x(point.at), cy: y(point.mean), r: 5 }));
  find(".over", picture).replaceChildren(...parts);
  const news = shown.task.news.filter((n) => n[0] === point.at && ["", metric.name].includes(n[1]));
  const said = news.map((n) => n[2]).join(", ");
  const value = number(point.mean, metric);
  const spread = point.sd ? ` ± ${number(point.sd, metric)}` : "";
  const trials = `${point.trials} trial${point.trials === 1 ? "" : "s"}`;
  const sha = hash(point.at).slice(0, 8);
  const lines = [
    element("p", {}, element("b", {}, value), `${spread}, ${trials}`),
    element("p", {}, element("span", { class: "sha" }, sha), ` ${axis.subject[point.at]}`),
    element("p", {}, `${author(point.at)}, ${date(point.at)}`),
  ];
  if (said) lines.push(element("p", {}, said));
  const signed = shown.task.signed.find((s) => s[0] === point.at);
  if (signed) lines.push(element("p", {}, signedText(signed[1], signed[2])));
  const tags = axis.tags[point.at];
  if (tags) lines.push(element("p", {}, tags.join(", ")));
  const tip = find(".tip", chart) || element("div", { class: "tip" });
  tip.replaceChildren(...lines);
  const right = x(point.at) > width / 2; // the tip sits on the other side of the line
  tip.style.left = right ? "" : `${(100 * x(point.at)) / width + 2}%`;
  tip.style.right = right ? `${100 - (100 * x(point.at)) / width + 2}%` : "";
  chart.append(tip);
  picture.setAttribute("aria-valuenow", point.at);
  picture.setAttribute(
    "aria-valuetext",
    `${value}, ${date(point.at)}, ${sha} ${axis.subject[point.at]}, ${author(point.at)}${said && ", " + said}`,
  );
}

function leave(picture) {
  find(".over", picture).replaceChildren();
  find(".tip", chart)?.remove();
  cursor = -1;
}

function pick(picture) {
  const point = shown.points.find((p) => p.at === state.commit);
  if (!point || point.mean === null) return;
  picture.insertBefore(
    svg("circle", { class: "picked", cx: shown.x(point.at), cy: shown.y(point.mean), r: 6.5 }),
    find(".over", picture),
  );
  cursor = point.at;
}
