// The history of a metric on the true commit axis, as SVG.

function visible(stretch) {
  const points = [];
  stretch.at.forEach((at, i) => {
    if (at >= state.low && at <= state.high)
      points.push({
        at,
        mean: stretch.mean[i],
        sd: stretch.sd[i],
        trials: stretch.trials[i],
        stretch,
      });
  });
  return points;
}

function drawChart(task, metric) {
  const width = Math.max(320, chart.clientWidth);
  const stretches = metric.stretches.map(visible);
  const points = stretches.flat().sort((a, b) => a.at - b.at);
  const finite = points.filter((p) => p.mean !== null);
  const [bottom, top] = extent(finite, metric);
  const inner = width - MARGIN.left - MARGIN.right;
  const x = (at) => MARGIN.left + ((at - state.low + 0.5) / (state.high - state.low + 1)) * inner;
  const y = (value) =>
    MARGIN.top +
    (1 - (value - bottom) / (top - bottom || 1)) * (HEIGHT - MARGIN.top - MARGIN.bottom);
  shown = { task, metric, points, x, y, width, inner };
  cursor = -1;
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
  picture.append(hatching());
  drawGaps(picture, points);
  drawGrid(picture, bottom, top, metric);
  for (const own of stretches) drawStretch(picture, own);
  drawLevels(picture, metric);
  drawEnvironments(picture, task, stretches);
  drawMarks(picture);
  drawCrosses(picture, task, points);
  drawSteps(picture, metric);
  picture.append(svg("g", { class: "over" }));
  chart.replaceChildren(picture);
  listen(picture);
  if (state.commit >= 0) pick(picture);
  headline(task, metric, points);
}

function extent(points, metric) {
  let low = Infinity,
    high = -Infinity;
  for (const p of points) {
    low = Math.max(-Number.MAX_VALUE / 4, Math.min(low, p.mean - (p.sd || 0)));
    high = Math.min(Number.MAX_VALUE / 4, Math.max(high, p.mean + (p.sd || 0)));
  }
  for (const stretch of metric.stretches)
    for (const step of stretch.steps)
      if (step.at >= state.low && step.at <= state.high) {
        low = Math.min(low, step.before, step.after);
        high = Math.max(high, step.before, step.after);
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

function drawGaps(picture, points) {
  const { x, inner } = shown;
  const half = inner / (state.high - state.low + 1) / 2;
  let last = state.low - 1;
  for (const at of [...points.map((p) => p.at), state.high + 1]) {
    if (at - last > 1)
      picture.append(
        svg("rect", {
          class: "hatch",
          x: x(last + 1) - half,
          width: Math.max(1, x(at - 1) - x(last + 1) + 2 * half),
          y: MARGIN.top,
          height: HEIGHT - MARGIN.top - MARGIN.bottom,
        }),
      );
    last = at;
  }
}

function drawGrid(picture, bottom, top, metric) {
  const { x, y, width } = shown;
  for (const tick of ticks(bottom / metric.divisor, top / metric.divisor)) {
    const at = y(tick * metric.divisor);
    picture.append(
      svg("line", { class: "grid", x1: MARGIN.left, x2: width - MARGIN.right, y1: at, y2: at }),
    );
    picture.append(
      svg("text", { x: MARGIN.left - 8, y: at + 4, "text-anchor": "end" }, tickText(tick)),
    );
  }
  if (metric.unit) picture.append(svg("text", { x: 4, y: MARGIN.top - 12 }, metric.unit));
  const span = axis.minute[state.high] - axis.minute[state.low];
  const wanted = Math.max(2, Math.floor(width / 110));
  let free = MARGIN.left;
  for (let i = 0; i < wanted; i++) {
    const at = Math.round(state.low + ((i + 0.5) / wanted) * (state.high - state.low));
    const text = tickDate(at, span);
    const half = 3.8 * text.length;
    if (x(at) - half < free || x(at) + half > width) continue;
    free = x(at) + half + 6;
    picture.append(svg("text", { x: x(at), y: HEIGHT - 9, "text-anchor": "middle" }, text));
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

function drawStretch(picture, points) {
  const { x, y, inner } = shown;
  const dense = (state.high - state.low) / inner > 0.4;
  const radius = dense ? 1 : 2.4;
  const verdicts = new Map(
    shown.task.verdicts.filter((v) => v[1] === shown.metric.name).map((v) => [v[0], v[2]]),
  );
  let line = "",
    band = "",
    whiskers = "",
    dots = "";
  for (const run of runs(points)) {
    if (run.length > 1) {
      line += "M" + run.map((p) => `${x(p.at).toFixed(1)} ${y(p.mean).toFixed(1)}`).join("L");
      const upper = run.map((p) => `${x(p.at).toFixed(1)} ${y(p.mean + (p.sd || 0)).toFixed(1)}`);
      const lower = run.map((p) => `${x(p.at).toFixed(1)} ${y(p.mean - (p.sd || 0)).toFixed(1)}`);
      band += `M${upper.join("L")}L${lower.reverse().join("L")}Z`;
    } else if (run[0].sd) {
      const p = run[0];
      whiskers += `M${x(p.at).toFixed(1)} ${y(p.mean - p.sd).toFixed(1)}V${y(p.mean + p.sd).toFixed(1)}`;
    }
    for (const p of run)
      dots += `M${(x(p.at) - radius).toFixed(1)} ${y(p.mean).toFixed(1)}a${radius} ${radius} 0 1 0 ${2 * radius} 0a${radius} ${radius} 0 1 0 ${-2 * radius} 0`;
  }
  for (const [name, d] of [
    ["band", band],
    ["whisker", whiskers],
    ["line", line],
    ["dot", dots],
  ])
    if (d) picture.append(svg("path", { class: name, d }));
  for (const p of points) {
    const verdict = verdicts.get(p.at);
    if (p.mean === null || !["regressed", "improved"].includes(verdict)) continue;
    picture.append(
      svg("circle", {
        class: `dot ${verdict === "regressed" ? "bad" : "good"}`,
        cx: x(p.at),
        cy: y(p.mean),
        r: radius + 1.6,
      }),
    );
  }
}

// The level of each segment, the number that `celedger drift` prints.
function drawLevels(picture, metric) {
  const { x, y, inner } = shown;
  const half = inner / (state.high - state.low + 1) / 2;
  for (const stretch of metric.stretches) {
    const ends = [stretch.at[0], ...stretch.steps.map((s) => s.at), stretch.at.at(-1) + 1];
    ends.slice(1).forEach((end, i) => {
      const step = stretch.steps[i - 1];
      const value = step ? step.after : stretch.steps[0]?.before;
      const low = Math.max(ends[i], state.low),
        high = Math.min(end - 1, state.high);
      if (value === undefined || low > high) return;
      picture.append(
        svg("line", {
          class: `level${i === ends.length - 2 && step && metric.state === "worse" && !step.better ? " bad" : ""}`,
          x1: x(low) - half,
          x2: x(high) + half,
          y1: y(value),
          y2: y(value),
        }),
      );
    });
  }
}

function drawSteps(picture, metric) {
  const { x, width, inner } = shown;
  const half = inner / (state.high - state.low + 1) / 2;
  const steps = metric.stretches.flatMap((s) => s.steps);
  const free = [Infinity, Infinity]; // the left edge of what stands on the two lines of labels
  for (const step of steps.reverse()) {
    const way = step.better ? "good" : "bad";
    for (const [first, last] of step.members) {
      const low = Math.max(first, state.low);
      const high = Math.min(last, state.high);
      if (low > high) continue;
      picture.append(
        svg("rect", {
          class: `set ${way}`,
          x: x(low) - half,
          width: Math.max(1, x(high) - x(low) + 2 * half),
          y: MARGIN.top,
          height: HEIGHT - MARGIN.top - MARGIN.bottom,
        }),
      );
    }
    if (step.at < state.low || step.at > state.high) continue;
    const at = x(step.at) - half; // beside the commit's own dot, which it must not hide
    picture.append(
      svg("line", {
        class: `change ${way}`,
        x1: at,
        x2: at,
        y1: MARGIN.top - 4,
        y2: HEIGHT - MARGIN.bottom,
      }),
    );
    const text = `${step.better ? "▼" : "▲"} ${step.change} ${step.among > 1 ? `one of ${step.among}` : "at " + hash(step.at).slice(0, 8)}`;
    const size = 7.4 * text.length,
      middle = Math.min(Math.max(at, MARGIN.left + size / 2), width - size / 2);
    const row = free.findIndex((edge) => middle + size / 2 < edge);
    if (row < 0) continue;
    free[row] = middle - size / 2 - 8;
    picture.append(
      svg(
        "text",
        { class: way, x: middle, y: MARGIN.top - 9 - 15 * row, "text-anchor": "middle" },
        text,
      ),
    );
  }
}

function drawEnvironments(picture, task, stretches) {
  const { x, inner } = shown;
  const half = inner / (state.high - state.low + 1) / 2;
  stretches.forEach((points, i) => {
    const whole = shown.metric.stretches[i];
    if (i === 0 || !points.length || points[0].at !== whole.at[0]) return;
    const at = x(points[0].at) - half;
    picture.append(
      svg("line", {
        class: "environment",
        x1: at,
        x2: at,
        y1: MARGIN.top,
        y2: HEIGHT - MARGIN.bottom,
      }),
    );
    const change = task.environments[whole.environment].change || "environment changed";
    picture.append(
      svg(
        "text",
        { x: at + 5, y: HEIGHT - MARGIN.bottom - 20 },
        change.length > 60 ? change.slice(0, 59) + "…" : change,
      ),
    );
  });
}

function drawMarks(picture) {
  const { x } = shown;
  const names = new Map(
    Object.entries(axis.tags).map(([at, tags]) => [Number(at), tags.join(", ")]),
  );
  for (const [at, act] of axis.baselines)
    names.set(
      at,
      [names.get(at), act === "pin" ? "pinned" : "accepted"].filter(Boolean).join(", "),
    );
  let free = Infinity;
  for (const [at, name] of [...names].sort((a, b) => b[0] - a[0])) {
    if (at < state.low || at > state.high) continue;
    picture.append(
      svg("line", {
        class: "mark",
        x1: x(at),
        x2: x(at),
        y1: MARGIN.top,
        y2: HEIGHT - MARGIN.bottom,
      }),
    );
    const text = name.length > 24 ? name.slice(0, 23) + "…" : name;
    if (x(at) + 4 + 7.2 * text.length > free) continue;
    free = x(at);
    picture.append(svg("text", { x: x(at) + 4, y: MARGIN.top + 12 }, text));
  }
}

function drawCrosses(picture, task, points) {
  const { x } = shown;
  const base = HEIGHT - MARGIN.bottom - 8;
  const cross = (at) => `M${x(at) - 4} ${base - 4}l8 8m0-8l-8 8`;
  const inside = (at) => at >= state.low && at <= state.high;
  const lost = points.filter((p) => p.mean === null).map((p) => p.at);
  const bad = [...new Set([...task.crashed, ...lost])].filter(inside);
  if (bad.length) picture.append(svg("path", { class: "cross", d: bad.map(cross).join("") }));
  const untestable = task.untestable.filter(inside);
  if (untestable.length)
    picture.append(svg("path", { class: "cross untestable", d: untestable.map(cross).join("") }));
}

function headline(task, metric, points) {
  find("#drift-title").textContent =
    `${state.task.slice(state.task.indexOf("/") + 1)} · ${metric.name}`;
  const stretch = metric.stretches.at(-1);
  const parts = [];
  const step = stretch?.steps.at(-1);
  if (!stretch) parts.push("Not measured.");
  else if (step)
    parts.push(
      `Level ${step.now} since ${date(step.at)}, was ${step.was}, ${step.change} (${step.sure} sure).`,
    );
  else if (metric.direction !== "info" && stretch.at.length < 3)
    parts.push("Too few measured commits to show a change.");
  else if (metric.direction !== "info")
    parts.push(`Steady over ${stretch.at.length} measured commits.`);
  const ways = { lower: "Lower is better.", higher: "Higher is better.", info: "Not judged." };
  parts.push(ways[metric.direction]);
  if (points.some((p) => p.sd)) parts.push("Shaded: one standard deviation of the trials.");
  if (points.length) parts.push("The axis does not start at 0.");
  if (points.length < state.high - state.low + 1)
    parts.push(
      `Hatched: ${state.high - state.low + 1 - points.length} of ${state.high - state.low + 1} commits are not measured.`,
    );
  if (task.crashed.some((at) => at >= state.low && at <= state.high))
    parts.push("✕: a trial failed.");
  if (metric.stretches.length > 1) parts.push("Dashed: the environment changed.");
  if (task.replaced) parts.push("Values of an earlier definition of the task are left out.");
  find("#drift-caption").textContent = parts.join(" ");
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
