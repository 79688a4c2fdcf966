// The history of a metric on the true commit axis, as SVG.

function visible(stretch) {
  const { at, mean, sd, trials } = stretch;
  return at
    .map((position, i) => ({ at: position, mean: mean[i], sd: sd[i], trials: trials[i] }))
    .filter((point) => isVisible(point.at));
}

const isVisible = (at) => at >= state.low && at <= state.high;

function drawChart(task, metric) {
  const width = Math.max(320, chart.clientWidth);
  const stretches = metric.stretches.map(visible);
  const points = stretches.flat().sort((a, b) => a.at - b.at);
  const finite = points.filter((p) => p.mean !== null);
  const [bottom, top] = extent(finite, metric);
  const inner = width - MARGIN.left - MARGIN.right;
  // A commit takes the room from its edge to that of the next; its dot is in the middle.
  const edge = (at) => MARGIN.left + ((at - state.low) / (state.high - state.low + 1)) * inner;
  const x = (at) => edge(at + 0.5);
  const y = (value) =>
    MARGIN.top + (1 - (value - bottom) / (top - bottom || 1)) * (BOTTOM - MARGIN.top);
  const picture = svg("svg", {
    viewBox: `0 0 ${width} ${HEIGHT}`,
    height: HEIGHT,
    tabindex: 0,
    role: "slider",
    "aria-label": `${state.task} ${metric.name}, by commit`,
    "aria-orientation": "horizontal",
    "aria-valuemin": state.low,
    "aria-valuemax": state.high,
    "aria-valuenow": state.high,
    "aria-valuetext": "no commit selected",
  });
  shown = { task, metric, points, picture, edge, x, y, width, inner };
  cursor = -1;
  picture.append(hatching());
  drawGaps(points);
  drawGrid(bottom, top, metric);
  stretches.forEach(drawStretch);
  drawLevels(metric);
  drawEnvironments(stretches);
  drawMarks();
  drawCrosses(task, points);
  drawSigned(task);
  drawSteps(task, metric);
  draw("g", { class: "over" });
  chart.replaceChildren(picture);
  listen(picture);
  if (state.commit >= 0) pick(picture);
  headline(task, metric, points);
}

const draw = (...parts) => shown.picture.append(svg(...parts));
const vertical = (name, x, y1 = MARGIN.top) =>
  svg("line", { class: name, x1: x, x2: x, y1, y2: BOTTOM });
const strip = (name, x, end) =>
  svg("rect", {
    class: name,
    x,
    width: Math.max(1, end - x),
    y: MARGIN.top,
    height: BOTTOM - MARGIN.top,
  });

function extent(points, metric) {
  let low = Infinity,
    high = -Infinity;
  for (const p of points) {
    low = Math.max(-Number.MAX_VALUE / 4, Math.min(low, p.mean - (p.sd || 0)));
    high = Math.min(Number.MAX_VALUE / 4, Math.max(high, p.mean + (p.sd || 0)));
  }
  for (const stretch of metric.stretches)
    for (const [at, level] of stretch.levels)
      if (isVisible(at) && level !== null) {
        low = Math.min(low, level);
        high = Math.max(high, level);
      }
  if (low > high) return [0, 1];
  const margin = 0.08 * (high - low) || Math.abs(high) * 0.05 || 1;
  return [low - margin, high + margin];
}

function hatching() {
  const definitions = svg("defs");
  const pattern = svg("pattern", {
    id: "hatching",
    width: 7,
    height: 7,
    patternUnits: "userSpaceOnUse",
    patternTransform: "rotate(45)",
  });
  pattern.append(svg("line", { x1: 0, y1: 0, x2: 0, y2: 7, class: "hatch-line" }));
  definitions.append(pattern);
  return definitions;
}

function drawGaps(points) {
  let last = state.low - 1;
  for (const at of [...points.map((p) => p.at), state.high + 1]) {
    if (at - last > 1) shown.picture.append(strip("hatch", shown.edge(last + 1), shown.edge(at)));
    last = at;
  }
}

function drawGrid(bottom, top, metric) {
  const { x, y, width } = shown;
  for (const tick of ticks(bottom / metric.divisor, top / metric.divisor)) {
    const at = y(tick * metric.divisor);
    draw("line", { class: "grid", x1: MARGIN.left, x2: width - MARGIN.right, y1: at, y2: at });
    draw("text", { x: MARGIN.left - 8, y: at + 4, "text-anchor": "end" }, tickText(tick));
  }
  if (metric.unit) draw("text", { x: 4, y: MARGIN.top - 12 }, metric.unit);
  const span = axis.minute[state.high] - axis.minute[state.low];
  const wanted = Math.max(2, Math.floor(width / 110));
  let free = MARGIN.left;
  for (let i = 0; i < wanted; i++) {
    const at = Math.round(state.low + ((i + 0.5) / wanted) * (state.high - state.low));
    const text = tickDate(at, span);
    const half = 3.8 * text.length;
    if (x(at) - half < free || x(at) + half > width) continue;
    free = x(at) + half + 6;
    draw("text", { x: x(at), y: HEIGHT - 9, "text-anchor": "middle" }, text);
  }
}

function ticks(low, high) {
  const rough = (high - low) / 5;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 2.5, 5, 10].map((f) => f * power).find((s) => s >= rough);
  const first = Math.ceil(low / step);
  const list = Array.from({ length: 8 }, (_, i) => (first + i) * step);
  return list.filter((tick, i) => tick <= high && tick !== list[i - 1]);
}

const tickText = (value) =>
  Math.abs(value) >= 1e6 || (value && Math.abs(value) < 1e-3)
    ? value.toExponential(2)
    : String(Number(value.toPrecision(6)));

// Runs of commits that follow each other are joined; a commit between two gaps stands alone.
function runs(points) {
  const joined = [];
  for (const p of points) {
    const run = joined.at(-1);
    if (p.mean === null) continue;
    if (run && p.at - run.at(-1).at === 1) run.push(p);
    else joined.push([p]);
  }
  return joined;
}

function drawStretch(points) {
  const { x, y, inner } = shown;
  const dense = (state.high - state.low) / inner > 0.4;
  const radius = dense ? 1 : 2.4;
  const at = (p, deviations = 0) =>
    `${x(p.at).toFixed(1)} ${y(p.mean + deviations * (p.sd || 0)).toFixed(1)}`;
  const paths = { band: "", whisker: "", line: "", dot: "" };
  for (const run of runs(points)) {
    const lower = run.map((p) => at(p, -1));
    const upper = run.map((p) => at(p, 1));
    if (run.length > 1) {
      paths.line += "M" + run.map((p) => at(p)).join("L");
      paths.band += `M${upper.join("L")}L${lower.reverse().join("L")}Z`;
    } else if (run[0].sd) paths.whisker += `M${lower}L${upper}`;
    // With the round caps of the style, a line without a length is a dot.
    for (const p of run) paths.dot += `M${at(p)}h0`;
  }
  for (const [name, d] of Object.entries(paths))
    if (d) draw("path", { class: name, d, ...(name === "dot" && { "stroke-width": 2 * radius }) });
}

// How a metric stands at a commit: "bad" from the first bad commit to the one that mended it.
function wayAt(at) {
  const is = (mark) => at >= mark.at && !(mark.closed >= 0 && at >= mark.closed);
  const { marks } = shown.metric;
  if (marks.some((mark) => mark.way === "bad" && !mark.accepted && is(mark))) return "bad";
  return marks.some((mark) => mark.way === "doubt" && is(mark)) ? "doubt" : "";
}

// The levels of the state, which are adjusted for seeds.
function drawLevels(metric) {
  const { edge, y } = shown;
  for (const stretch of metric.stretches) {
    const last = stretch.at.at(-1) + 1;
    stretch.levels.forEach(([begin, level], i) => {
      const end = stretch.levels[i + 1]?.[0] ?? last;
      const turns = shown.metric.marks.flatMap((mark) => [mark.at, mark.closed ?? -1]);
      const inside = turns.filter((at) => at > begin && at < end).sort((a, b) => a - b);
      const cuts = [begin, ...inside, end];
      cuts.slice(1).forEach((cut, k) => {
        const low = Math.max(cuts[k], state.low);
        const high = Math.min(cut - 1, state.high);
        if (level === null || low > high) return;
        const ends = { x1: edge(low), x2: edge(high + 1), y1: y(level), y2: y(level) };
        draw("line", { class: `level ${wayAt(low)}`, ...ends });
      });
    });
  }
}

const whereOf = (mark) => {
  if (mark.among > 1 && !mark.named) return `one of ${mark.among}`;
  return mark.named ? `first bad ${mark.named}` : `at ${hash(mark.at).slice(0, 8)}`;
};

function drawSteps(task, metric) {
  const { edge, picture, width } = shown;
  const free = [Infinity, Infinity]; // the left edge of what stands on the two lines of labels
  const labels = [];
  for (const mark of marksOf(task, metric)) {
    for (const [first, last] of mark.members) {
      const low = Math.max(first, state.low);
      const high = Math.min(last, state.high);
      if (low <= high) picture.append(strip(`set ${mark.way}`, edge(low), edge(high + 1)));
    }
    labels.push([mark.at, mark.way, `${mark.text} ${whereOf(mark)}`]);
    if (mark.closed >= 0) labels.push([mark.closed, "good", `✓ ${mark.state.split(" by ")[0]}`]);
  }
  for (const [position, way, text] of labels.sort((a, b) => b[0] - a[0])) {
    if (!isVisible(position)) continue;
    const at = edge(position); // beside the commit's own dot, which it must not hide
    picture.append(vertical(`change ${way}`, at, MARGIN.top - 4));
    const size = 7.4 * text.length;
    const middle = Math.min(Math.max(at, MARGIN.left + size / 2), width - size / 2);
    const row = free.findIndex((left) => middle + size / 2 < left);
    if (row < 0) continue;
    free[row] = middle - size / 2 - 8;
    const y = MARGIN.top - 9 - 15 * row;
    draw("text", { class: way, x: middle, y, "text-anchor": "middle" }, text);
  }
}

function drawEnvironments(stretches) {
  const changes = [];
  stretches.forEach((points, i) => {
    const whole = shown.metric.stretches[i];
    if (i === 0 || !points.length || points[0].at !== whole.at[0]) return;
    changes.push([shown.edge(points[0].at), whole.change || "environment changed"]);
  });
  let free = MARGIN.left; // where the label before ends
  changes.forEach(([at, text], i) => {
    shown.picture.append(vertical("environment", at));
    // To its left where there is more room; the caption has the whole of it.
    const [before, after] = [at - free, (changes[i + 1]?.[0] ?? shown.width) - at];
    const isLeft = after < before && after < 7 * text.length + 5;
    const change = clip(text, Math.floor((isLeft ? before : after) / 7) - 1);
    const anchor = isLeft ? "end" : "start";
    draw("text", { x: at + (isLeft ? -5 : 5), y: BOTTOM - 20, "text-anchor": anchor }, change);
    free = isLeft ? at : at + 5 + 7 * change.length;
  });
}

const clip = (text, most) =>
  text.length > most ? text.slice(0, Math.max(0, most - 1)) + "…" : text;

function drawMarks() {
  const names = new Map(
    Object.entries(axis.tags).map(([at, tags]) => [Number(at), tags.join(", ")]),
  );
  for (const [at, act] of axis.baselines)
    names.set(at, [names.get(at), act].filter(Boolean).join(", "));
  let free = Infinity;
  for (const [at, name] of [...names].sort((a, b) => b[0] - a[0])) {
    if (!isVisible(at)) continue;
    const x = shown.x(at);
    shown.picture.append(vertical("mark", x));
    const text = clip(name, 24);
    if (x + 4 + 7.2 * text.length > free) continue;
    free = x;
    draw("text", { x: x + 4, y: MARGIN.top + 12 }, text);
  }
}

function drawCrosses(task, points) {
  const base = BOTTOM - 8;
  const lost = points.filter((p) => p.mean === null).map((p) => p.at);
  const kinds = { cross: [...task.crashed, ...lost], "cross untestable": task.untestable };
  for (const [name, positions] of Object.entries(kinds)) {
    const inside = [...new Set(positions)].filter(isVisible);
    const d = inside.map((at) => `M${shown.x(at) - 4} ${base - 4}l8 8m0-8l-8 8`).join("");
    if (d) draw("path", { class: name, d });
  }
}

// Below the chart, the first steps of each commit: where the bits changed, where the work rose.
function drawSigned(task) {
  for (const [at, bits, work] of task.signed) {
    if (!isVisible(at)) continue;
    const left = shown.edge(at);
    const place = { x: left, width: Math.max(1, shown.edge(at + 1) - left - 1) };
    const box = svg("rect", { class: `signed ${bits}`, ...place, y: BOTTOM + 2, height: 5 });
    box.append(svg("title", {}, signedText(bits, work)));
    shown.picture.append(box);
    if (work) draw("path", { class: "rose", d: `M${shown.x(at) - 4} ${BOTTOM + 11}l4 -6l4 6z` });
  }
}

const signedText = (bits, work) =>
  [{ new: "bits: new", same: "bits: =", first: "bits: signed" }[bits], work]
    .filter(Boolean)
    .join("; ");

function told(mark) {
  const name = mark.id ? `${mark.id}, ${mark.state}: ` : "";
  const levels = mark.levels ? ` (${mark.levels})` : "";
  const sure = mark.among > 1 && !mark.named ? " commits" : `, ${mark.sure} sure`;
  return `${name}${mark.text.slice(2)}${levels}, ${whereOf(mark)}${sure}.`;
}

const changesOf = (metric) => {
  const changes = metric.stretches.slice(1).map((stretch) => stretch.change);
  return changes.filter(Boolean).join("; ") || "the environment or the suite changed";
};

function headline(task, metric, points) {
  find("#drift-title").textContent =
    `${state.task.slice(state.task.indexOf("/") + 1)} · ${metric.name}`;
  const stretch = metric.stretches.at(-1);
  const size = state.high - state.low + 1;
  const ways = { lower: "Lower is better.", higher: "Higher is better.", info: "Not judged." };
  const mark = openMark(task, metric) ?? marksOf(task, metric).at(-1);
  let course = "";
  if (mark) course = told(mark);
  else if (!stretch) course = "Not measured.";
  else if (metric.state === "steady")
    course = `No change seen over ${stretch.at.length} measured commits.`;
  else if (metric.state === "undecided") course = "Too noisy, or measured too seldom, to tell.";
  const parts = [
    course,
    ways[metric.direction],
    points.some((p) => p.sd) && "Shaded: one standard deviation of the trials.",
    points.length && "The axis does not start at 0.",
    points.length < size && `Hatched: ${size - points.length} of ${size} commits are not measured.`,
    task.crashed.some(isVisible) && "✕: a trial failed.",
    task.signed.length && "Strip: where the first steps compute something new; ▲: more work.",
    metric.stretches.length > 1 && `Dashed: ${changesOf(metric)}.`,
    stretch?.levels.length && "Lines: the level, adjusted for seeds.",
  ];
  find("#drift-caption").textContent = parts.filter(Boolean).join(" ");
  find(".keys").hidden = false;
  const spans = find(".spans");
  spans.hidden = false;
  spans.replaceChildren(
    ...SPANS.filter((s, i) => i === 0 || s === Infinity || s < axis.sha.length).map((span) => {
      const button = element(
        "button",
        { type: "button", "aria-pressed": String(state.span === span) },
        span === Infinity ? `All ${axis.sha.length.toLocaleString("en")}` : `Last ${span}`,
      );
      button.addEventListener("click", () => go({ span }));
      return button;
    }),
  );
}
