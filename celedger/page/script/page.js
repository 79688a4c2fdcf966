// What all parts share: elements, text and the data of the page.

const find = (selector, root = document) => root.querySelector(selector);
const every = (selector, root = document) => [...root.querySelectorAll(selector)];
const index = JSON.parse(find("#index").textContent);

const SPANS = [100, 500, Infinity];
const HEIGHT = 330;
const MARGIN = { left: 62, right: 10, top: 40, bottom: 28 };
const BOTTOM = HEIGHT - MARGIN.bottom;
const chart = find("#chart");
const cache = new Map(); // of unpacked parts
let axis = null; // the commits, columns of equal length
let state = {}; // task, metric, commit, span; first and last position
let shown = null; // what the chart draws: picture, scales, points
let cursor = -1; // the position under the pointer or the arrow keys

async function unpack(element) {
  const bytes = Uint8Array.from(atob(element.textContent), (c) => c.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
  return JSON.parse(await new Response(stream).text());
}

async function taskData(key) {
  if (!cache.has(key)) {
    const element = every("script.task").find((each) => each.dataset.task === key);
    const task = await unpack(element);
    for (const metric of task.metrics)
      for (const stretch of metric.stretches) stretch.at = sums(stretch.at);
    cache.set(key, task);
  }
  return cache.get(key);
}

function sums(differences) {
  let total = 0;
  return differences.map((difference) => {
    total += difference;
    return total;
  });
}

function filled(made, attributes, children) {
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  made.append(...children);
  return made;
}

const element = (name, attributes = {}, ...children) =>
  filled(document.createElement(name), attributes, children);
const svg = (name, attributes = {}, ...children) =>
  filled(document.createElementNS("http://www.w3.org/2000/svg", name), attributes, children);
const remark = (...children) => element("p", { class: "remark" }, ...children);

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

const time = (position) => new Date(axis.minute[position] * 60000);
const date = (position) => time(position).toISOString().slice(0, 10);
// Of commits that span so many minutes.
function tickDate(position, span) {
  const day = 1440;
  if (span > 400 * day) return date(position).slice(0, 7);
  const options = { day: "numeric", month: "short", timeZone: "UTC" };
  const text = time(position).toLocaleDateString("en-GB", options);
  return span < 4 * day ? `${text} ${time(position).toISOString().slice(11, 16)}` : text;
}
const author = (position) => axis.authors[axis.author[position]] || "";

function number(value, metric) {
  if (value === null || value === undefined) return "not finite";
  const scaled = value / metric.divisor;
  const text =
    Math.abs(scaled) >= 1e9 || (scaled && Math.abs(scaled) < 1e-4)
      ? scaled.toExponential(4)
      : String(Number(scaled.toPrecision(metric.divisor === 1 ? 12 : 6)));
  return metric.unit ? `${text} ${metric.unit}` : text;
}
