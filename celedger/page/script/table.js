// The filters and the order of the table.

function filter() {
  const text = find("#find").value.trim().toLowerCase();
  const onlyChanged = find("#changed").checked;
  let hidden = 0;
  for (const row of every("tbody tr")) {
    const names = [row.dataset.task, ...every("td a", row).map(nameOf)];
    const matches = !text || names.some((name) => name.toLowerCase().includes(text));
    row.hidden = !matches || (onlyChanged && !("changed" in row.dataset));
    hidden += row.hidden;
  }
  find("#hidden-rows").textContent = hidden
    ? `${hidden} of ${every("tbody tr").length} tasks are hidden by the filter.`
    : "";
}

function sort() {
  const body = find("tbody"),
    order = find("#order").value;
  const rows = every("tr", body);
  rows.forEach((row, i) => {
    row.dataset.place ??= i;
  });
  const keys = {
    suite: (a, b) => a.dataset.place - b.dataset.place,
    worst: (a, b) => a.dataset.rank - b.dataset.rank || a.dataset.place - b.dataset.place,
    name: (a, b) => a.dataset.task.localeCompare(b.dataset.task),
  };
  body.append(...rows.sort(keys[order]));
}

function startTable() {
  find(".filters").hidden = false;
  find("#changed").checked =
    matchMedia("(max-width: 700px)").matches &&
    every("tbody tr").some((row) => "changed" in row.dataset);
  find(".filters").addEventListener("submit", (event) => event.preventDefault());
  find("#find").addEventListener("input", filter);
  find("#changed").addEventListener("change", filter);
  find("#order").addEventListener("change", sort);
  filter();
}
