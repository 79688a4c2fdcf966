// Begin: on a page without a trial there is nothing but a command to copy.

for (const button of every(".copy")) {
  button.hidden = false;
  button.addEventListener("click", () => copy(button));
}
if (index.first.length) start();

function start() {
  startTable();
  addEventListener("hashchange", show);
  let resized = 0;
  addEventListener("resize", () => {
    cancelAnimationFrame(resized);
    resized = requestAnimationFrame(() => axis && show());
  });
  document.addEventListener("click", followed);
  unpack(find("#commits")).then((columns) => {
    axis = columns;
    axis.minute = sums(axis.minute);
    return show();
  });
}

// Where the chart lies below the cards, a link to a view leads there.
function followed(event) {
  const link = event.target.closest?.("a[href^='#']");
  if (link?.closest(".card, .verdict, td") && matchMedia("(max-width: 1000px)").matches)
    find("#drift").scrollIntoView();
}
