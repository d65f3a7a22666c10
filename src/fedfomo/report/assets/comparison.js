/** Methods × scenarios: paired differences, client by client. */
const methods = [...new Set(facts.arenas.flatMap((arena) => Object.keys(arena.means)))];
const against = { method: methods.includes("local") ? "local" : methods[0] };
const duelsOf = (arena) => arena.duels.filter((duel) => duel.against === against.method).sort((a, b) => b.mean.value - a.mean.value);

main.append(el("h1", {}, `${methods.length} methods on ${facts.arenas.length} scenario${facts.arenas.length === 1 ? "" : "s"}`),
  el("p", { class: "lede" }, "Every method met the same clients, from the same start. What counts is the difference for each single client: a mean can hide that some lose what others win."));
const chooser = el("select", { id: "against", onchange: () => { against.method = chooser.value; refresh(); } }, methods.map((method) => el("option", { value: method, selected: method === against.method }, title(method))));
main.append(el("div", { class: "bar" }, el("label", { for: "against" }, "Difference to", chooser)));

const overview = section("overview", "At a glance", "Mean difference over all clients of all seeds, with its 95 % interval; below it, how many clients are better / the same / worse off.");
const table = el("div", { class: "scroll-x" });
overview.append(table);
function fillOverview() {
  const rows = methods.map((method) => [title(method), ...facts.arenas.map((arena) => {
    const duel = arena.duels.find((one) => one.method === method && one.against === against.method);
    const fewer = arena.num_seeds[method] < arena.seeds.length ? ` (${arena.num_seeds[method]} of ${arena.seeds.length} seeds)` : "";
    const mean = known(arena.means[method]) ? `${figure(arena.means[method])} %${fewer}` : "–";
    if (!duel) return mean;
    return el("span", {}, el("strong", {}, withInterval(duel.mean)), el("br"), `${duel.better} / ${duel.equal} / ${duel.worse} of ${duel.gaps.length}`, el("br"), mean);
  })]);
  table.replaceChildren(tableOf(["method", ...facts.arenas.map((arena) => arena.title)], rows));
}

facts.arenas.forEach((arena, number) => {
  const made = section(`arena-${number}`, arena.title, `Each dot is one client: what it gains or loses by the method. Diamonds are means with 95 % intervals. Seeds: ${arena.seeds.join(", ")}.`);
  /** A fixed scatter within the row: the same page looks the same every time. */
  const jitter = (k) => (((k * 0.618034) % 1) - 0.5) * 0.5;
  addChart(made, {
    id: `differences-${number}`, label: `Differences for each client on ${arena.title}`,
    traces: () => {
      const duels = duelsOf(arena);
      return [
        { type: "scatter", mode: "markers", name: "clients", x: duels.flatMap((duel) => duel.gaps.map(shown)), y: duels.flatMap((duel, row) => duel.gaps.map((_, k) => row + jitter(k))), marker: { size: 6, opacity: 0.55, color: duels.flatMap((duel) => duel.gaps.map((gap) => colour(gap > 0 ? "high" : gap < 0 ? "low" : "undecided"))) }, hovertemplate: "%{x:.1f}<extra></extra>" },
        { type: "scatter", mode: "markers", name: "mean", x: duels.map((duel) => shown(duel.mean.value)), y: duels.map((_, row) => row), marker: { symbol: "diamond", size: 11, color: colour("ink") }, error_x: { type: "data", symmetric: false, array: duels.map((duel) => shown((duel.mean.high ?? duel.mean.value) - duel.mean.value)), arrayminus: duels.map((duel) => shown(duel.mean.value - (duel.mean.low ?? duel.mean.value))), color: colour("ink"), thickness: 2 }, text: duels.map((duel) => `${title(duel.method)}: ${withInterval(duel.mean)}`), hovertemplate: "%{text}<extra></extra>" },
      ];
    },
    layout: () => {
      const duels = duelsOf(arena);
      return { height: 110 + 46 * Math.max(2, duels.length), hovermode: "closest", showlegend: false, xaxis: { title: { text: `${facts.metric} against ${title(against.method)}, points` }, zeroline: true, zerolinecolor: colour("muted"), zerolinewidth: 1.5 }, yaxis: { tickvals: duels.map((_, row) => row), ticktext: duels.map((duel) => plain(title(duel.method))), range: [duels.length - 0.4, -0.6], showgrid: false, zeroline: false } };
    },
    data: () => ({
      columns: ["method", "against", "mean", "low", "high", "worst client", "10th percentile", "better", "equal", "worse", "clients"],
      rows: duelsOf(arena).map((duel) => [duel.method, duel.against, duel.mean.value, duel.mean.low, duel.mean.high, duel.worst, duel.tenth_percentile, duel.better, duel.equal, duel.worse, duel.gaps.length]),
    }),
  });
  const spread = el("div", { class: "scroll-x" });
  made.append(spread);
  state.listeners.push(() => spread.replaceChildren(tableOf(["method", "mean", "worst client", "10th percentile", "better", "same", "worse"],
    duelsOf(arena).map((duel) => [title(duel.method), withInterval(duel.mean), figure(duel.worst, true), figure(duel.tenth_percentile, true), duel.better, duel.equal, duel.worse]))));
});

function refresh() {
  fillOverview();
  state.listeners.forEach((listener) => listener());
  drawAll();
}
applyTheme();
refresh();
drawInTurn(charts, () => { document.documentElement.dataset.drawn = "true"; });
