// The chart, the commit panel and the table's filters of the page of `celedger report`. The address
// holds what is shown. Nothing is fetched; text from the ledger reaches the page as text only.
"use strict";
(() => {
  const find = (selector, root = document) => root.querySelector(selector);
  const every = (selector, root = document) => [...root.querySelectorAll(selector)];
  const index = JSON.parse(find("#index").textContent);
  for (const button of every(".copy")) {
    button.hidden = false;
    button.addEventListener("click", () => copy(button));
  }
  if (!index.first.length) return;

  const SPANS = [100, 500, Infinity];
  const HEIGHT = 330;
  const MARGIN = { left: 62, right: 10, top: 40, bottom: 28 };
  const chart = find("#chart");
  const cache = new Map(); // of unpacked parts
  let axis = null; // the commits, columns of equal length
  let state = {}; // task, metric, commit, span; first and last position
  let shown = null; // what the chart draws: scales, points by position
  let cursor = -1; // the position under the pointer or the arrow keys

  // --- data

  async function unpack(element) {
    const bytes = Uint8Array.from(atob(element.textContent), (c) => c.charCodeAt(0));
    const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
    return JSON.parse(await new Response(stream).text());
  }

  async function taskData(key) {
    if (!cache.has(key)) {
      const element = every("script.task").find((each) => each.dataset.task === key);
      const task = await unpack(element);
      for (const metric of task.metrics) for (const stretch of metric.stretches) expand(stretch);
      cache.set(key, task);
    }
    return cache.get(key);
  }

  function expand(stretch) {
    stretch.at = sums(stretch.at);
    const trials = [];
    for (let i = 0; i < stretch.trials.length; i += 2)
      for (let n = 0; n < stretch.trials[i + 1]; n++) trials.push(stretch.trials[i]);
    stretch.trials = trials;
  }

  function sums(differences) {
    let total = 0;
    return differences.map((d) => (total += d));
  }

  // --- text

  const date = (position) => new Date(axis.minute[position] * 60000).toISOString().slice(0, 10);
  const shortDate = (position) =>
    new Date(axis.minute[position] * 60000).toLocaleDateString("en-GB", {
      day: "numeric", month: "short", timeZone: "UTC",
    });
  // Of commits that span so many minutes.
  function tickDate(position, span) {
    const day = 1440;
    if (span > 400 * day) return date(position).slice(0, 7);
    const time = new Date(axis.minute[position] * 60000).toISOString().slice(11, 16);
    return span < 4 * day ? `${shortDate(position)} ${time}` : shortDate(position);
  }
  const author = (position) => axis.authors[axis.author[position]] || "";

  function number(value, metric) {
    if (value === null || value === undefined) return "not finite";
    const scaled = value / metric.divisor;
    const text = Math.abs(scaled) >= 1e9 || (scaled && Math.abs(scaled) < 1e-4)
      ? scaled.toExponential(4)
      : String(Number(scaled.toPrecision(metric.divisor === 1 ? 12 : 6)));
    return metric.unit ? `${text} ${metric.unit}` : text;
  }

  function element(name, attributes = {}, ...children) {
    const made = document.createElement(name);
    for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
    made.append(...children);
    return made;
  }

  function svg(name, attributes = {}, text = "") {
    const made = document.createElementNS("http://www.w3.org/2000/svg", name);
    for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
    if (text) made.textContent = text;
    return made;
  }

  async function copy(button) {
    const text = find("code", button.parentElement).textContent;
    try {
      await navigator.clipboard.writeText(text);
    } catch {
      const area = element("textarea", { "aria-hidden": "true" });
      area.value = text;
      button.after(area);
      area.select();
      document.execCommand("copy");
      area.remove();
    }
    button.textContent = "Copied";
    setTimeout(() => (button.textContent = "Copy"), 1500);
  }

  // --- the address

  const hash = (position) => axis.sha[position];
  const position = (sha) => (sha ? axis.sha.findIndex((each) => each.startsWith(sha.slice(0, 12))) : -1);

  function read() {
    const given = new URLSearchParams(location.hash.slice(1));
    const task = index.tasks[given.get("t")] ? given.get("t") : index.first[0];
    const metrics = index.tasks[task];
    const fallback = task === index.first[0] ? index.first[1] : metrics[0];
    const metric = metrics.includes(given.get("m")) ? given.get("m") : fallback;
    const range = (given.get("r") || "").split("-");
    const ends = range.length === 2 ? range.map(position) : [-1, -1];
    const last = axis.sha.length - 1;
    const span = range[0] === "all" ? Infinity : Number(range[0]) || SPANS[0];
    const isRange = ends[0] >= 0 && ends[1] > ends[0];
    return {
      task, metric,
      commit: position(given.get("c")),
      span: isRange ? 0 : span,
      low: isRange ? ends[0] : Math.max(0, last - Math.min(span, last + 1) + 1),
      high: isRange ? ends[1] : last,
      given: given.has("c") || given.has("r"),
    };
  }

  function go(change, replace = false) {
    const next = { ...state, ...change };
    const words = { t: next.task, m: next.metric };
    if (next.commit >= 0) words.c = hash(next.commit);
    if (!next.span) words.r = `${hash(next.low)}-${hash(next.high)}`;
    else if (next.span !== SPANS[0]) words.r = next.span === Infinity ? "all" : next.span;
    const address = "#" + new URLSearchParams(words).toString().replaceAll("%2F", "/");
    if (address === location.hash) return;
    history[replace ? "replaceState" : "pushState"](null, "", address);
    show();
  }

  async function show() {
    const asked = (state = read());
    const task = await taskData(state.task);
    if (asked !== state) return; // somebody went on meanwhile
    const metric = task.metrics.find((each) => each.name === state.metric);
    widen(metric);
    drawChart(task, metric);
    drawCommit(task, metric);
    markCurrent(task, metric);
  }

  // Without a range of its own, a view begins early enough to show the open change.
  function widen(metric) {
    if (state.given || state.span !== SPANS[0]) return;
    const stretch = metric.stretches.at(-1);
    if (!stretch) return;
    const step = stretch.steps.at(-1);
    const isOpen = step && (metric.state === "worse" || metric.state === "undecided");
    const newest = stretch.at.at(-1);
    const wanted = isOpen ? Math.min(step.low, step.at) : newest;
    if (wanted >= state.low + 10) return;
    const margin = Math.max(30, Math.round(0.3 * (state.high - wanted)));
    state.low = Math.max(0, wanted - margin);
    state.span = 0;
  }

  const nameOf = (link) => find(".name", link).textContent;

  function markCurrent(task, metric) {
    const isCrash = task.crash >= 0 && chosen(task, metric) === task.crash;
    for (const link of every("td a"))
      link.classList.toggle("current", nameOf(link) === state.metric &&
        link.closest("tr").dataset.task === state.task);
    for (const card of every(".card"))
      card.classList.toggle("current", card.dataset.task === state.task &&
        card.dataset.metric === (isCrash ? "" : state.metric));
  }

  // --- the chart

  function visible(stretch) {
    const points = [];
    stretch.at.forEach((at, i) => {
      if (at >= state.low && at <= state.high)
        points.push({ at, mean: stretch.mean[i], sd: stretch.sd[i], trials: stretch.trials[i], stretch });
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
      MARGIN.top + (1 - (value - bottom) / (top - bottom || 1)) * (HEIGHT - MARGIN.top - MARGIN.bottom);
    shown = { task, metric, points, x, y, width, inner };
    cursor = -1;
    const picture = svg("svg", {
      viewBox: `0 0 ${width} ${HEIGHT}`, height: HEIGHT, tabindex: 0, role: "slider",
      "aria-label": `${state.task} ${metric.name}, by commit`, "aria-orientation": "horizontal",
      "aria-valuemin": state.low, "aria-valuemax": state.high, "aria-valuenow": state.high,
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
    let low = Infinity, high = -Infinity;
    for (const p of points) {
      low = Math.min(low, p.mean - (p.sd || 0));
      high = Math.max(high, p.mean + (p.sd || 0));
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
      id: "hatching", width: 7, height: 7, patternUnits: "userSpaceOnUse", patternTransform: "rotate(45)",
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
        picture.append(svg("rect", {
          class: "hatch", x: x(last + 1) - half, width: Math.max(1, x(at - 1) - x(last + 1) + 2 * half),
          y: MARGIN.top, height: HEIGHT - MARGIN.top - MARGIN.bottom,
        }));
      last = at;
    }
  }

  function drawGrid(picture, bottom, top, metric) {
    const { x, y, width } = shown;
    for (const tick of ticks(bottom / metric.divisor, top / metric.divisor)) {
      const at = y(tick * metric.divisor);
      picture.append(svg("line", { class: "grid", x1: MARGIN.left, x2: width - MARGIN.right, y1: at, y2: at }));
      picture.append(svg("text", { x: MARGIN.left - 8, y: at + 4, "text-anchor": "end" }, tickText(tick)));
    }
    if (metric.unit) picture.append(svg("text", { x: 4, y: MARGIN.top - 12 }, metric.unit));
    const wanted = Math.max(2, Math.floor(width / 110));
    for (let i = 0; i < wanted; i++) {
      const at = Math.round(state.low + ((i + 0.5) / wanted) * (state.high - state.low));
      picture.append(svg("text", { x: x(at), y: HEIGHT - 9, "text-anchor": "middle" },
        tickDate(at, axis.minute[state.high] - axis.minute[state.low])));
    }
  }

  function ticks(low, high) {
    const rough = (high - low) / 5;
    const power = 10 ** Math.floor(Math.log10(rough));
    const step = [1, 2, 2.5, 5, 10].map((f) => f * power).find((s) => s >= rough);
    const list = [];
    for (let i = Math.ceil(low / step); i * step <= high; i++) list.push(i * step);
    return list;
  }

  const tickText = (value) =>
    Math.abs(value) >= 1e6 || (value && Math.abs(value) < 1e-3)
      ? value.toExponential(2) : String(Number(value.toPrecision(6)));

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
    let line = "", band = "", whiskers = "", dots = "";
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
    for (const [name, d] of [["band", band], ["whisker", whiskers], ["line", line], ["dot", dots]])
      if (d) picture.append(svg("path", { class: name, d }));
    for (const p of points) {
      const verdict = verdicts.get(p.at);
      if (p.mean === null || !["regressed", "improved"].includes(verdict)) continue;
      picture.append(svg("circle", {
        class: `dot ${verdict === "regressed" ? "bad" : "good"}`, cx: x(p.at), cy: y(p.mean), r: radius + 1.6,
      }));
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
        const low = Math.max(ends[i], state.low), high = Math.min(end - 1, state.high);
        if (value === undefined || low > high) return;
        picture.append(svg("line", {
          class: `level${i === ends.length - 2 && step && metric.state === "worse" && !step.better ? " bad" : ""}`,
          x1: x(low) - half, x2: x(high) + half, y1: y(value), y2: y(value),
        }));
      });
    }
  }

  function drawSteps(picture, metric) {
    const { x, width, inner } = shown;
    const half = inner / (state.high - state.low + 1) / 2;
    const steps = metric.stretches.flatMap((s) => s.steps)
      .filter((s) => s.high >= state.low && s.low <= state.high);
    let free = [Infinity, Infinity]; // the left edge of what stands on the two lines of labels
    for (const step of steps.reverse()) {
      const way = step.better ? "good" : "bad";
      const low = Math.max(step.low, state.low), high = Math.min(step.high, state.high);
      picture.append(svg("rect", {
        class: `set ${way}`, x: x(low) - half, width: x(high) - x(low) + 2 * half,
        y: MARGIN.top, height: HEIGHT - MARGIN.top - MARGIN.bottom,
      }));
      if (step.at < state.low || step.at > state.high) continue;
      const at = x(step.at) - half; // beside the commit's own dot, which it must not hide
      picture.append(svg("line", { class: `change ${way}`, x1: at, x2: at, y1: MARGIN.top - 4, y2: HEIGHT - MARGIN.bottom }));
      const text = `${step.better ? "▼" : "▲"} ${step.change} ${step.among > 1 ? `one of ${step.among}` : "at " + hash(step.at).slice(0, 8)}`;
      const size = 7.4 * text.length, middle = Math.min(Math.max(at, MARGIN.left + size / 2), width - size / 2);
      const row = free.findIndex((edge) => middle + size / 2 < edge);
      if (row < 0) continue;
      free[row] = middle - size / 2 - 8;
      picture.append(svg("text", { class: way, x: middle, y: MARGIN.top - 9 - 15 * row, "text-anchor": "middle" }, text));
    }
  }

  function drawEnvironments(picture, task, stretches) {
    const { x, inner } = shown;
    const half = inner / (state.high - state.low + 1) / 2;
    stretches.forEach((points, i) => {
      const whole = shown.metric.stretches[i];
      if (i === 0 || !points.length || points[0].at !== whole.at[0]) return;
      const at = x(points[0].at) - half;
      picture.append(svg("line", { class: "environment", x1: at, x2: at, y1: MARGIN.top, y2: HEIGHT - MARGIN.bottom }));
      const change = task.environments[whole.environment].change || "environment changed";
      picture.append(svg("text", { x: at + 5, y: HEIGHT - MARGIN.bottom - 6 }, change.length > 60 ? change.slice(0, 59) + "…" : change));
    });
  }

  function drawMarks(picture) {
    const { x } = shown;
    const names = new Map(Object.entries(axis.tags).map(([at, tags]) => [Number(at), tags.join(", ")]));
    for (const [at, act] of axis.baselines)
      names.set(at, [names.get(at), act === "pin" ? "pinned" : "accepted"].filter(Boolean).join(", "));
    let free = Infinity;
    for (const [at, name] of [...names].sort((a, b) => b[0] - a[0])) {
      if (at < state.low || at > state.high) continue;
      picture.append(svg("line", { class: "mark", x1: x(at), x2: x(at), y1: MARGIN.top, y2: HEIGHT - MARGIN.bottom }));
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
    if (untestable.length) picture.append(svg("path", { class: "cross untestable", d: untestable.map(cross).join("") }));
  }

  function headline(task, metric, points) {
    find("#drift-title").textContent = `${state.task.split("/").slice(-1)[0]} · ${metric.name}`;
    const stretch = metric.stretches.at(-1);
    const parts = [];
    const step = stretch && stretch.steps.at(-1);
    if (!stretch) parts.push("Not measured.");
    else if (step)
      parts.push(`Level ${step.now} since ${date(step.at)}, was ${step.was}, ${step.change} (${step.sure} sure).`);
    else if (metric.direction !== "info") parts.push(`Steady over ${stretch.at.length} commits.`);
    const ways = { lower: "Lower is better.", higher: "Higher is better.", info: "Not judged." };
    parts.push(ways[metric.direction]);
    if (points.some((p) => p.sd)) parts.push("Shaded: one standard deviation of the trials.");
    if (points.length) parts.push("The axis does not start at 0.");
    if (points.length < state.high - state.low + 1)
      parts.push(`Hatched: ${state.high - state.low + 1 - points.length} of ${state.high - state.low + 1} commits are not measured.`);
    if (task.crashed.some((at) => at >= state.low && at <= state.high)) parts.push("✕: a trial failed.");
    if (metric.stretches.length > 1) parts.push("Dashed: the environment changed.");
    if (task.replaced) parts.push("Values of an earlier definition of the task are left out.");
    find("#drift-caption").textContent = parts.join(" ");
    find(".keys").hidden = false;
    const spans = find(".spans");
    spans.hidden = false;
    spans.replaceChildren(...SPANS.filter((s, i) => i === 0 || s === Infinity || s < axis.sha.length).map((span) => {
      const button = element("button", { type: "button", "aria-pressed": String(state.span === span) },
        span === Infinity ? `All ${axis.sha.length.toLocaleString("en")}` : `Last ${span}`);
      button.addEventListener("click", () => go({ span }));
      return button;
    }));
  }

  // --- pointer and keys

  function nearest(clientX) {
    const box = find("svg", chart).getBoundingClientRect();
    const at = ((clientX - box.left) * shown.width) / box.width;
    let best = null;
    for (const p of shown.points)
      if (!best || Math.abs(shown.x(p.at) - at) < Math.abs(shown.x(best.at) - at)) best = p;
    return best;
  }

  function positionAt(clientX) {
    const box = find("svg", chart).getBoundingClientRect();
    const share = ((clientX - box.left) * shown.width / box.width - MARGIN.left) / shown.inner;
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
    picture.addEventListener("pointerleave", () => { if (from === null) leave(picture); });
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
    const box = picture.getBoundingClientRect();
    const [low, high] = [from, to].sort((a, b) => a - b).map((c) => ((c - box.left) * shown.width) / box.width);
    find(".over", picture).replaceChildren(svg("rect", {
      class: "zoom", x: low, width: high - low, y: MARGIN.top, height: HEIGHT - MARGIN.top - MARGIN.bottom,
    }));
  }

  function keyed(picture, event) {
    const points = shown.points;
    const here = points.findIndex((p) => p.at === cursor);
    const current = here < 0 ? points.length : here;
    const changes = shown.metric.stretches.flatMap((s) => s.steps.map((step) => step.at));
    const moves = {
      ArrowLeft: () => points[Math.max(0, current - 1)],
      ArrowRight: () => points[Math.min(points.length - 1, here + 1)],
      Home: () => points[0],
      End: () => points.at(-1),
      PageUp: () => points.findLast((p) => p.at < (here < 0 ? Infinity : cursor) && changes.includes(p.at)),
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
    if (typing || event.ctrlKey || event.metaKey || event.altKey || !["n", "p"].includes(event.key)) return;
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
    const parts = [svg("line", { class: "cursor", x1: x(point.at), x2: x(point.at), y1: MARGIN.top, y2: HEIGHT - MARGIN.bottom })];
    if (point.mean !== null) parts.push(svg("circle", { class: "cursor-dot", cx: x(point.at), cy: y(point.mean), r: 5 }));
    find(".over", picture).replaceChildren(...parts);
    const verdict = shown.task.verdicts.find((v) => v[0] === point.at && v[1] === metric.name);
    const value = number(point.mean, metric);
    const spread = point.sd ? ` ± ${number(point.sd, metric)}` : "";
    const trials = `${point.trials} trial${point.trials === 1 ? "" : "s"}`;
    const lines = [
      element("p", {}, element("b", {}, value), `${spread}, ${trials}`),
      element("p", {}, element("span", { class: "sha" }, hash(point.at).slice(0, 8)), ` ${axis.subject[point.at]}`),
      element("p", {}, `${author(point.at)}, ${date(point.at)}`),
    ];
    if (verdict) lines.push(element("p", {}, `Verdict: ${verdict[2]} ${verdict[3]}`));
    const tags = axis.tags[point.at];
    if (tags) lines.push(element("p", {}, tags.join(", ")));
    const tip = find(".tip", chart) || element("div", { class: "tip" });
    tip.replaceChildren(...lines);
    const right = x(point.at) > width / 2; // the tip sits on the other side of the line
    tip.style.left = right ? "" : `${(100 * x(point.at)) / width + 2}%`;
    tip.style.right = right ? `${100 - (100 * x(point.at)) / width + 2}%` : "";
    chart.append(tip);
    picture.setAttribute("aria-valuenow", point.at);
    picture.setAttribute("aria-valuetext",
      `${value}, ${date(point.at)}, ${hash(point.at).slice(0, 8)} ${axis.subject[point.at]}, ${author(point.at)}${verdict ? ", " + verdict[2] : ""}`);
  }

  function leave(picture) {
    find(".over", picture).replaceChildren();
    find(".tip", chart)?.remove();
    cursor = -1;
  }

  function pick(picture) {
    const point = shown.points.find((p) => p.at === state.commit);
    if (!point || point.mean === null) return;
    picture.insertBefore(svg("circle", { class: "picked", cx: shown.x(point.at), cy: shown.y(point.mean), r: 6.5 }), find(".over", picture));
    cursor = point.at;
  }

  // --- the commit

  // What a commit is held against: the last one with the level before the open change, or else the
  // measured commit before it.
  function baseOf(metric, at) {
    const stretch = metric.stretches.find((s) => s.at.includes(at)) || metric.stretches.at(-1);
    if (!stretch) return -1;
    const step = stretch.steps.findLast((s) => s.at <= at);
    const limit = step && !step.better && stretch.steps.at(-1) === step ? step.at : at;
    return stretch.at.findLast((each) => each < limit) ?? -1;
  }

  function chosen(task, metric) {
    if (state.commit >= 0) return state.commit;
    if (task.crash >= 0) return task.crash;
    const step = metric.stretches.at(-1)?.steps.at(-1);
    if (step && ["worse", "undecided"].includes(metric.state)) return step.at;
    return metric.stretches.at(-1)?.at.at(-1) ?? -1;
  }

  function drawCommit(task, metric) {
    const section = find("#commit");
    const at = chosen(task, metric);
    section.hidden = at < 0;
    if (at < 0) return;
    const base = baseOf(metric, at);
    const address = index.commit && index.commit.replace("*", hash(at));
    const sha = element(address ? "a" : "span", { class: "sha", ...(address && { href: address, rel: "noreferrer" }) }, hash(at).slice(0, 8));
    find("#commit-title").replaceChildren("Commit ", sha, ` ${axis.subject[at]}`);
    const facts = [author(at), date(at), ...(axis.tags[at] || [])].filter(Boolean).join(" · ");
    const body = [element("p", { class: "caption" }, facts)];
    body.push(...notes(task, at));
    body.push(...epochs(task, metric, at, base));
    find("#commit-body").replaceChildren(...body);
  }

  function notes(task, at) {
    const made = [];
    for (const [where, act, what, who, why] of axis.baselines)
      if (where === at)
        made.push(element("p", { class: "remark" }, `${act === "pin" ? "Pinned" : "Accepted"}${what ? ` for ${what}` : ""} by ${who}: ${why}`));
    const verdicts = task.verdicts.filter((v) => v[0] === at);
    const news = verdicts.filter((v) => !["same", "too-noisy"].includes(v[2]));
    const list = news.map(([, metric, kind, effect, note]) =>
      element("li", { class: ["regressed", "failed", "missing", "not-finite"].includes(kind) ? "bad" : "" },
        [metric || "whole task", kind, effect, note].filter(Boolean).join(" · ")));
    const same = verdicts.length - news.length;
    if (same) list.push(element("li", {}, `${same} metric${same === 1 ? "" : "s"} without a change`));
    if (list.length) made.push(element("ul", { "aria-label": "Verdicts" }, ...list));
    const alike = Map.groupBy(task.failures.filter((f) => f.at === at), (f) => `${f.kind} ${f.message}`);
    for (const [failure, ...others] of alike.values()) {
      const seeds = [failure, ...others].map((f) => f.seed).sort((a, b) => a - b).join(", ");
      made.push(element("p", {}, element("b", {}, `✕ ${failure.kind}, seed ${seeds}`), ` ${failure.message}`));
      if (failure.log) made.push(element("pre", { tabindex: "0", role: "group", "aria-label": "End of the log" }, failure.log));
    }
    return made;
  }

  function epochs(task, metric, at, base) {
    const names = Object.keys(task.epochs).filter((name) => task.epochs[name][at]);
    if (!names.length)
      return [element("p", { class: "remark" }, "The page has the epochs of the newest commits and of open changes. For others: ",
        element("code", {}, `celedger plot curves ${hash(at)} --task ${state.task}`))];
    const hasBase = base >= 0 && names.some((name) => task.epochs[name][base]);
    const legend = element("p", { class: "remark" }, element("span", { class: "legend" }), `${hash(at).slice(0, 8)} this commit `);
    if (hasBase)
      legend.append(" ", element("span", { class: "legend base" }), `${hash(base).slice(0, 8)} baseline, ${date(base)}`);
    const order = task.metrics.map((each) => each.name);
    names.sort((a, b) => (b === metric.name) - (a === metric.name) || order.indexOf(a) - order.indexOf(b));
    const figures = names.slice(0, 8).map((name) => figure(task, name, at, base));
    const more = names.length > 8 ? [element("p", { class: "remark" }, `${names.length - 8} more metrics have epochs: select one in the table.`)] : [];
    return [legend, element("div", { class: "epochs" }, ...figures), ...more];
  }

  function figure(task, name, at, base) {
    const metric = task.metrics.find((each) => each.name === name) || { divisor: 1, unit: "", direction: "info" };
    const curves = [task.epochs[name][base], task.epochs[name][at]];
    const values = curves.flatMap((c) => (c ? c.slice(1) : [])).filter((v) => v !== null);
    const low = Math.min(...values), high = Math.max(...values);
    const first = Math.min(...curves.filter(Boolean).map((c) => c[0]));
    const last = Math.max(...curves.filter(Boolean).map((c) => c[0] + c.length - 2));
    const x = (epoch) => (last > first ? ((epoch - first) / (last - first)) * 196 + 2 : 100);
    const y = (value) => (high > low ? 76 - ((value - low) / (high - low)) * 72 : 40);
    const ends = curves.map((c) => (c ? c.at(-1) : null));
    let change = "", way = "";
    if (ends[0] && ends[1] !== null) {
      const relative = (ends[1] - ends[0]) / Math.abs(ends[0]);
      change = `${relative > 0 ? "+" : ""}${(100 * relative).toFixed(1)} %`;
      const worse = metric.direction === "lower" ? relative > 0 : metric.direction === "higher" ? relative < 0 : false;
      const step = metric.stretches?.at(-1)?.steps.at(-1);
      const isOpen = metric.state === "worse" && step && base < step.at && step.at <= at;
      if (worse && isOpen) { change += ", worse"; way = " bad"; }
    }
    const picture = svg("svg", { viewBox: "0 0 200 80", preserveAspectRatio: "none", role: "img", "aria-label": `${name} by epoch ${change}` });
    curves.forEach((curve, i) => {
      if (!curve) return;
      let d = "", pen = "M";
      curve.slice(1).forEach((value, k) => {
        if (value === null) pen = "M";
        else { d += `${pen}${x(curve[0] + k).toFixed(1)} ${y(value).toFixed(1)}`; pen = "L"; }
      });
      const alone = curve.length === 2; // one epoch: a dot
      if (alone) d += "h0";
      picture.append(svg("path", { class: `curve${i ? way : " base"}${alone ? " alone" : ""}`, d }));
    });
    const caption = element("figcaption", {}, element("b", {}, name), ` ${number(ends[1], metric)} ${change}`);
    return element("figure", {}, caption, picture,
      element("small", {}, last > first ? `epoch ${first} to ${last}` : `epoch ${first}`));
  }

  // --- the table

  function filter() {
    const text = find("#find").value.trim().toLowerCase();
    const onlyChanged = find("#changed").checked;
    let hidden = 0;
    for (const row of every("tbody tr")) {
      const names = [row.dataset.task, ...every("td a", row).map(nameOf)];
      const matches = !text || names.some((name) => name.toLowerCase().includes(text));
      row.hidden = !matches || (onlyChanged && Number(row.dataset.rank) > 3);
      hidden += row.hidden;
    }
    find("#hidden-rows").textContent = hidden ? `${hidden} of ${every("tbody tr").length} tasks are hidden by the filter.` : "";
  }

  function sort() {
    const body = find("tbody"), order = find("#order").value;
    const rows = every("tr", body);
    rows.forEach((row, i) => (row.dataset.place ??= i));
    const keys = {
      suite: (a, b) => a.dataset.place - b.dataset.place,
      worst: (a, b) => a.dataset.rank - b.dataset.rank || a.dataset.place - b.dataset.place,
      name: (a, b) => a.dataset.task.localeCompare(b.dataset.task),
    };
    body.append(...rows.sort(keys[order]));
  }

  function startTable() {
    find(".filters").hidden = false;
    find("#changed").checked = matchMedia("(max-width: 700px)").matches &&
      every("tbody tr").some((row) => Number(row.dataset.rank) <= 3);
    find(".filters").addEventListener("submit", (event) => event.preventDefault());
    find("#find").addEventListener("input", filter);
    find("#changed").addEventListener("change", filter);
    find("#order").addEventListener("change", sort);
    filter();
  }

  startTable();
  addEventListener("hashchange", show);
  let resized = 0;
  addEventListener("resize", () => {
    cancelAnimationFrame(resized);
    resized = requestAnimationFrame(() => axis && show());
  });
  document.addEventListener("click", (event) => {
    const link = event.target.closest?.("a[href^='#']");
    if (link && link.closest(".card, .verdict, td") && matchMedia("(max-width: 1000px)").matches)
      find("#drift").scrollIntoView();
  });
  unpack(find("#commits")).then((columns) => {
    axis = columns;
    axis.minute = sums(axis.minute);
    return show();
  });
})();
