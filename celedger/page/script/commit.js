// The commit that is selected: what happened there, logs and epochs.

// The commit that the selected one is compared with: the last one with the level before the open
// change, or else the measured commit before it.
function comparedWith(metric, at) {
  const stretch = metric.stretches.find((s) => s.at.includes(at)) || metric.stretches.at(-1);
  if (!stretch) return -1;
  const open = metric.marks.findLast((mark) => mark.open && mark.at <= at);
  const limit = open ? open.at : at;
  return stretch.at.findLast((each) => each < limit) ?? -1;
}

function chosen(task, metric) {
  if (state.commit >= 0) return state.commit;
  return openMark(task, metric)?.at ?? metric.stretches.at(-1)?.at.at(-1) ?? -1;
}

function drawCommit(task, metric) {
  const section = find("#commit");
  const at = chosen(task, metric);
  section.hidden = at < 0;
  if (at < 0) return;
  const before = comparedWith(metric, at);
  const address = index.commit?.replace("*", hash(at));
  const sha = element(
    address ? "a" : "span",
    { class: "sha", ...(address && { href: address, rel: "noreferrer" }) },
    hash(at).slice(0, 8),
  );
  find("#commit-title").replaceChildren("Commit ", sha, ` ${axis.subject[at]}`);
  const facts = [author(at), date(at), ...(axis.tags[at] || [])].filter(Boolean).join(" · ");
  const body = [element("p", { class: "caption" }, facts)];
  body.push(...notes(task, at));
  body.push(...epochs(task, metric, at, before));
  find("#commit-body").replaceChildren(...body);
}

function notes(task, at) {
  const made = [];
  for (const [where, act, what, who, why] of axis.baselines)
    if (where === at) {
      const name = act[0].toUpperCase() + act.slice(1);
      made.push(remark(`${name}${what ? ` for ${what}` : ""} by ${who}: ${why}`));
    }
  const list = task.news
    .filter((each) => each[0] === at)
    .map(([, metric, text, isBad]) =>
      element("li", { class: isBad ? "bad" : "" }, `${metric || "task"} ${text}`),
    );
  if (list.length) made.push(element("ul", { "aria-label": "What happened here" }, ...list));
  for (const [where, verb, when, headline, command] of task.findings)
    if (where === at) {
      const title = element("b", {}, `${verb}, ${when}`);
      made.push(
        element("p", {}, title, ` ${headline} `, element("code", {}, `celedger ${command}`)),
      );
    }
  const alike = Map.groupBy(
    task.failures.filter((f) => f.at === at),
    (f) => `${f.kind} ${f.message}`,
  );
  for (const [failure, ...others] of alike.values()) {
    const seeds = [failure, ...others].map((f) => f.seed).sort((a, b) => a - b);
    const title = element("b", {}, `✕ ${failure.kind}, seed ${seeds.join(", ")}`);
    made.push(element("p", {}, title, ` ${failure.message}`));
    const attributes = { tabindex: "0", role: "group", "aria-label": "End of the log" };
    if (failure.log) made.push(element("pre", attributes, failure.log));
  }
  return made;
}

function epochs(task, metric, at, before) {
  const names = Object.keys(task.epochs).filter((name) => task.epochs[name][at]);
  if (!names.length)
    return [
      remark(
        "The page has the epochs of the newest commits and of open changes. For others: ",
        element("code", {}, `celedger plot curves ${hash(at)} --task ${state.task}`),
      ),
    ];
  const isCompared = before >= 0 && names.some((name) => task.epochs[name][before]);
  const legend = remark(
    element("span", { class: "legend" }),
    `${hash(at).slice(0, 8)} this commit `,
  );
  if (isCompared)
    legend.append(
      " ",
      element("span", { class: "legend compared" }),
      `${hash(before).slice(0, 8)} compared commit, ${date(before)}`,
    );
  const order = task.metrics.map((each) => each.name);
  names.sort(
    (a, b) => (b === metric.name) - (a === metric.name) || order.indexOf(a) - order.indexOf(b),
  );
  const figures = names.slice(0, 8).map((name) => figure(task, name, at, before));
  const more = names.length - figures.length;
  const rest = remark(`${more} more metrics have epochs: select one in the table.`);
  return [legend, element("div", { class: "epochs" }, ...figures), ...(more ? [rest] : [])];
}

function figure(task, name, at, before) {
  const metric = task.metrics.find((each) => each.name === name) || NO_METRIC;
  const curves = [task.epochs[name][before], task.epochs[name][at]];
  const values = curves.flatMap((c) => (c ? c.slice(1) : [])).filter((v) => v !== null);
  const low = Math.min(...values);
  const high = Math.max(...values);
  const first = Math.min(...curves.filter(Boolean).map((c) => c[0]));
  const last = Math.max(...curves.filter(Boolean).map((c) => c[0] + c.length - 2));
  const x = (epoch) => ((epoch - first) / (last - first)) * 196 + 2;
  const y = (value) => (high > low ? 76 - ((value - low) / (high - low)) * 72 : 40);
  const ends = curves.map((c) => (c ? c.at(-1) : null));
  let change = "";
  let way = "";
  if (ends[0] && ends[1] !== null) {
    const relative = (ends[1] - ends[0]) / Math.abs(ends[0]);
    const share = Number((100 * relative).toFixed(1)); // a 0 has no sign
    change =
      Math.abs(relative) > 10
        ? `× ${(ends[1] / ends[0]).toPrecision(3)}`
        : `${share > 0 ? "+" : ""}${share.toFixed(1)} %`;
    const isWorse = { lower: relative > 0, higher: relative < 0 }[metric.direction];
    const isOpen = metric.marks.some((mark) => mark.open && before < mark.at && mark.at <= at);
    if (isWorse && isOpen) {
      change += ", worse";
      way = " bad";
    }
  }
  const value = ` ${number(ends[1], metric)} ${change}`;
  const caption = element("figcaption", {}, element("b", {}, name), value);
  if (last === first) return element("figure", {}, caption); // one epoch has no curve
  const picture = svg("svg", {
    viewBox: "0 0 200 80",
    preserveAspectRatio: "none",
    role: "img",
    "aria-label": `${name} by epoch ${change}`,
  });
  curves.forEach((curve, i) => {
    if (!curve) return;
    const values = curve.slice(1);
    const style = i ? way : " compared";
    const isThere = (k) => (values[k] ?? null) !== null;
    let line = "",
      dots = ""; // epochs without a neighbour
    values.forEach((value, k) => {
      if (value === null) return;
      const to = `${x(curve[0] + k).toFixed(1)} ${y(value).toFixed(1)}`;
      if (isThere(k - 1) || isThere(k + 1)) line += (isThere(k - 1) ? "L" : "M") + to;
      else dots += `M${to}h0`;
    });
    if (line) picture.append(svg("path", { class: `curve${style}`, d: line }));
    if (dots) picture.append(svg("path", { class: `curve${style} alone`, d: dots }));
  });
  const label = element("small", {}, `epoch ${first} to ${last}`);
  return element("figure", {}, caption, picture, label);
}
