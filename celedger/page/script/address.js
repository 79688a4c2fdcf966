// The address holds what is shown: task, metric, commit and range, as hashes of commits.

const hash = (position) => axis.sha[position];
const position = (sha) =>
  sha ? axis.sha.findIndex((each) => each.startsWith(sha.slice(0, 12))) : -1;

function read() {
  const given = new URLSearchParams(location.hash.slice(1));
  const task = Object.hasOwn(index.tasks, given.get("t") ?? "") ? given.get("t") : index.first[0];
  const metrics = index.tasks[task];
  const fallback = task === index.first[0] ? index.first[1] : (metrics[0] ?? "");
  const metric = metrics.includes(given.get("m")) ? given.get("m") : fallback;
  const range = (given.get("r") || "").split("-");
  const ends = range.length === 2 ? range.map(position) : [-1, -1];
  const last = axis.sha.length - 1;
  const span = range[0] === "all" ? Infinity : Number(range[0]) || SPANS[0];
  const isRange = ends[0] >= 0 && ends[1] > ends[0];
  return {
    task,
    metric,
    commit: position(given.get("c")),
    span: isRange ? 0 : span,
    low: isRange ? ends[0] : Math.max(0, last - Math.min(span, last + 1) + 1),
    high: isRange ? ends[1] : last,
    given: given.has("r"),
  };
}

function go(change) {
  const next = { ...state, ...change };
  const words = { t: next.task, m: next.metric };
  if (next.commit >= 0) words.c = hash(next.commit);
  if (!next.span) words.r = `${hash(next.low)}-${hash(next.high)}`;
  else if (next.span !== SPANS[0]) words.r = next.span === Infinity ? "all" : next.span;
  const address = "#" + new URLSearchParams(words).toString().replaceAll("%2F", "/");
  if (address === location.hash) return;
  history.pushState(null, "", address);
  show();
}

// Of a task that crashed before it reported anything.
const NO_METRIC = {
  name: "no metric",
  direction: "info",
  divisor: 1,
  unit: "",
  stretches: [],
  marks: [],
};

async function show() {
  const asked = read();
  state = asked;
  const task = await taskData(state.task);
  if (asked !== state) return; // somebody went on meanwhile
  const metric = task.metrics.find((each) => each.name === state.metric) ?? NO_METRIC;
  widen(task, metric);
  drawChart(task, metric);
  drawCommit(task, metric);
  markCurrent(task, metric);
}

// Without a range of its own, a view begins early enough to show the open change.
function widen(task, metric) {
  if (state.given || state.span !== SPANS[0]) return;
  const stretch = metric.stretches.at(-1);
  const open = openMark(task, metric);
  if (!stretch && !open) return;
  const change = open ? Math.min(open.members[0][0], open.at) : stretch.at.at(-1);
  const wanted = state.commit >= 0 ? state.commit : change;
  if (state.low === 0 || wanted >= state.low + 10) return;
  const margin = Math.max(30, Math.round(0.3 * (state.high - wanted)));
  state.low = Math.max(0, wanted - margin);
  state.span = 0;
}

// What the state says happened to a metric, and to its task as a whole, oldest first.
const marksOf = (task, metric) => [...task.marks, ...metric.marks].sort((a, b) => a.at - b.at);
const openMark = (task, metric) =>
  task.marks.findLast((mark) => mark.open) ?? metric.marks.findLast((mark) => mark.open);

const nameOf = (link) => find(".name", link).textContent;

function markCurrent(task, metric) {
  const failing = task.marks.find((mark) => mark.open);
  const isCrash = failing && chosen(task, metric) === failing.at;
  for (const link of every("td a"))
    link.classList.toggle(
      "current",
      nameOf(link) === state.metric && link.closest("tr").dataset.task === state.task,
    );
  const name = isCrash ? "" : state.metric;
  const own = every(".card").filter(
    (card) => card.dataset.task === state.task && card.dataset.metric === name,
  );
  // A metric may have several incidents: the one of the commit that is looked at, else the first.
  const here = own.find((card) => position(card.dataset.commit) === chosen(task, metric)) ?? own[0];
  for (const card of every(".card")) card.classList.toggle("current", card === here);
}
