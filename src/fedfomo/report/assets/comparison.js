/** Methods × scenarios: paired differences, client by client. */
const methods = [...new Set(facts.scenarios.flatMap((scenario) => Object.keys(scenario.means)))];
const against = { method: methods.includes("local") ? "local" : methods[0] };
const pairsOf = (scenario) => scenario.pairs.filter((pair) => pair.against === against.method).sort((a, b) => b.mean.value - a.mean.value);

main.append(el("h1", {}, `${methods.length} methods on ${facts.scenarios.length} scenario${facts.scenarios.length === 1 ? "" : "s"}`),
  el("p", { class: "lede" }, "Every method met the same clients, from the same start. What counts is the difference for each single client: a mean can hide that some lose what others win."));
const chooser = el("select", { id: "against", onchange: () => { against.method = chooser.value; refresh(); } }, methods.map((method) => el("option", { value: method, selected: method === against.method }, title(method))));
main.append(el("div", { class: "bar" }, el("label", { for: "against" }, "Difference to", chooser)));

const overview = section("overview", "At a glance", "Mean difference over all clients of all seeds, with its 95 % interval; below it, how many clients are better / the same / worse off.");
const table = el("div", { class: "scroll-x" });
overview.append(table);
function fillOverview() {
  const rows = methods.map((method) => [title(method), ...facts.scenarios.map((scenario) => {
    const pair = scenario.pairs.find((one) => one.method === method && one.against === against.method);
    const fewer = scenario.num_seeds[method] < scenario.seeds.length ? ` (${scenario.num_seeds[method]} of ${scenario.seeds.length} seeds)` : "";
    const mean = known(scenario.means[method]) ? `${figure(scenario.means[method])}${unit}${fewer}` : "–";
    if (!pair) return mean;
    return el("span", {}, el("strong", {}, withInterval(pair.mean)), el("br"), `${pair.better} / ${pair.equal} / ${pair.worse} of ${pair.gaps.length}`, el("br"), mean);
  })]);
  table.replaceChildren(tableOf(["method", ...facts.scenarios.map((scenario) => scenario.title)], rows));
}

facts.scenarios.forEach((scenario, number) => {
  const made = section(`scenario-${number}`, scenario.title, `Each dot is one client: what it gains or loses by the method. Diamonds are means with 95 % intervals. Seeds: ${scenario.seeds.join(", ")}.`);
  /** A fixed scatter within the row: the same page looks the same every time. */
  const jitter = (k) => (((k * 0.618034) % 1) - 0.5) * 0.5;
  addChart(made, {
    id: `differences-${number}`, label: `Differences for each client on ${scenario.title}`,
    traces: () => {
      const pairs = pairsOf(scenario);
      return [
        { type: "scatter", mode: "markers", name: "clients", x: pairs.flatMap((pair) => pair.gaps.map(shown)), y: pairs.flatMap((pair, row) => pair.gaps.map((_, k) => row + jitter(k))), marker: { size: 6, opacity: 0.55, color: pairs.flatMap((pair) => pair.gaps.map((gap) => colour(gap > 0 ? "high" : gap < 0 ? "low" : "undecided"))) }, hovertemplate: `%{x:${facts.is_share ? ".1f" : ".3g"}}<extra></extra>` },
        { type: "scatter", mode: "markers", name: "mean", x: pairs.map((pair) => shown(pair.mean.value)), y: pairs.map((_, row) => row), marker: { symbol: "diamond", size: 11, color: colour("ink") }, error_x: { type: "data", symmetric: false, array: pairs.map((pair) => shown((pair.mean.high ?? pair.mean.value) - pair.mean.value)), arrayminus: pairs.map((pair) => shown(pair.mean.value - (pair.mean.low ?? pair.mean.value))), color: colour("ink"), thickness: 2 }, text: pairs.map((pair) => `${title(pair.method)}: ${withInterval(pair.mean)}`), hovertemplate: "%{text}<extra></extra>" },
      ];
    },
    layout: () => {
      const pairs = pairsOf(scenario);
      return { height: 110 + 46 * Math.max(2, pairs.length), hovermode: "closest", showlegend: false, xaxis: { title: { text: `${facts.metric} against ${title(against.method)}${points ? ", points" : ""}` }, zeroline: true, zerolinecolor: colour("muted"), zerolinewidth: 1.5 }, yaxis: { tickvals: pairs.map((_, row) => row), ticktext: pairs.map((pair) => plain(title(pair.method))), range: [pairs.length - 0.4, -0.6], showgrid: false, zeroline: false } };
    },
    data: () => ({
      columns: ["method", "against", "mean", "low", "high", "worst client", "10th percentile", "better", "equal", "worse", "clients"],
      rows: pairsOf(scenario).map((pair) => [pair.method, pair.against, pair.mean.value, pair.mean.low, pair.mean.high, pair.worst, pair.tenth_percentile, pair.better, pair.equal, pair.worse, pair.gaps.length]),
    }),
  });
  const spread = el("div", { class: "scroll-x" });
  made.append(spread);
  state.listeners.push(() => spread.replaceChildren(tableOf(["method", "mean", "worst client", "10th percentile", "better", "same", "worse"],
    pairsOf(scenario).map((pair) => [title(pair.method), withInterval(pair.mean), figure(pair.worst, true), figure(pair.tenth_percentile, true), pair.better, pair.equal, pair.worse]))));
});

function refresh() {
  fillOverview();
  state.listeners.forEach((listener) => listener());
  drawAll();
}
applyTheme();
refresh();
drawInTurn(charts, () => { document.documentElement.dataset.drawn = "true"; });
