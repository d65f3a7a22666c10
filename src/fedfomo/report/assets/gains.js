/** A row for each client: what it gained over training alone, with its interval. */
function addGains() {
  if (!own || !own.scores.some(known)) return;
  const hasGains = own.gains.some(known);
  const of = (method) => (hasGains ? method.gains : method.scores);
  const made = section("gains", hasGains ? `Gain of each ${facts.word}` : `Score of each ${facts.word}`, hasGains
    ? `Gain of ${title(facts.method)} over training alone. Lines are 95 % intervals; right of zero is better.`
    : "Lines are 95 % intervals.");
  const ranked = gainOrder().filter((client) => of(own)[client]);
  const ends = 100;
  const order = ranked.length > 2 * ends ? [...ranked.slice(0, ends), ...ranked.slice(-ends)] : ranked;
  if (order.length < ranked.length) made.append(el("p", { class: "note" }, `Of ${ranked.length} ${facts.word}s, the ${ends} with the largest and the ${ends} with the smallest values.`));
  const drawn = [own, fedavg].filter((method, k, all) => method && of(method).some(known) && all.indexOf(method) === k);
  const place = new Map(order.map((client, row) => [client, row]));
  const chart = addChart(made, {
    id: "gains", scrolls: true,
    label: `${order.length} ${facts.word}s: ${drawn.map((method) => title(method.method)).join(", ")}`,
    traces: () => [intervals(), ...drawn.map(dots).reverse()],
    layout: () => ({
      height: 90 + Math.max(order.length, 3) * 28, hovermode: "closest", showlegend: drawn.length > 1,
      margin: { l: 10, r: isRoomy() ? (facts.is_share ? 150 : 170) : 64, t: 10, b: 40 }, legend: { orientation: "h", y: 1, yanchor: "bottom", x: 0, traceorder: "reversed" },
      xaxis: { title: { text: hasGains ? `gain in ${facts.metric}${points ? ", points" : ""}` : `${facts.metric}${unit}` }, side: "bottom", automargin: true, zeroline: hasGains, zerolinecolor: colour("ink"), zerolinewidth: 1.5 },
      yaxis: { tickvals: order.map((_, row) => row), ticktext: order.map((client) => plain(names[client])), range: [order.length - 0.4, -0.6], showgrid: false, zeroline: false },
      shapes: place.has(state.client) ? [{ type: "rect", xref: "paper", x0: 0, x1: 1, y0: place.get(state.client) - 0.5, y1: place.get(state.client) + 0.5, fillcolor: colour("sunk"), line: { width: 0 }, layer: "below" }] : [],
      annotations: !hasGains ? [] : order.map((client) => ({
        xref: "paper", x: 1.01, xanchor: "left", y: place.get(client), showarrow: false, text: isRoomy() ? withInterval(own.gains[client]) : figure(own.gains[client].value, true),
        font: { size: 12, color: gainColour(own.gains[client]) },
      })),
    }),
    data: () => ({
      columns: [facts.word, ...[local, ...drawn].filter(known).flatMap((method) => [method.method, `${method.method} low`, `${method.method} high`]), "gain", "gain low", "gain high"],
      rows: order.map((client) => [names[client], ...[local, ...drawn].filter(known).flatMap((method) => triple(method.scores[client])), ...triple(own.gains[client])]),
    }),
  });
  /** On a telephone, intervals would leave no room for the chart: they are in the sentences above it. */
  function isRoomy() {
    return printing || (chart.plot.clientWidth || 600) > 480;
  }
  function shade(client) {
    return hasGains ? gainColour(own.gains[client]) : colour("own");
  }
  function intervals() {
    const ends = order.filter((client) => known(of(own)[client].low));
    const [low, high, value] = ["low", "high", "value"].map((end) => ends.map((client) => shown(of(own)[client][end])));
    return {
      type: "scatter", mode: "markers", hoverinfo: "skip", showlegend: false, x: value, y: ends.map((client) => place.get(client)), marker: { size: 1, color: colour("own") },
      error_x: { type: "data", symmetric: false, array: high.map((end, k) => end - value[k]), arrayminus: low.map((end, k) => value[k] - end), color: colour("muted"), thickness: 2, width: 4 },
    };
  }
  function dots(method) {
    const others = method !== own;
    const chosen = order.filter((client) => of(method)[client]);
    return {
      type: "scatter", mode: "markers", name: title(method.method), x: chosen.map((client) => shown(of(method)[client].value)), y: chosen.map((client) => place.get(client)),
      marker: { size: others ? 8 : 11, symbol: others ? "diamond-open" : "circle", color: others ? colour("fedavg") : chosen.map(shade), line: { width: others ? 1.5 : 0 } },
      text: chosen.map((client) => `${plain(names[client])}: ${title(method.method)} ${withInterval(of(method)[client])}`),
      hovertemplate: "%{text}<extra></extra>",
    };
  }
  onClient(() => draw(chart));
  chart.clicked = (point) => order[Math.round(point.y)];
  if (own.by_class) addClasses(made);
}

/** Of two classes: how many of each are recognised. */
function addClasses(parent) {
  const compared = [local, own].filter((method, k, all) => method && method.by_class && all.indexOf(method) === k);
  const share = ([right, all]) => (all ? `${right} of ${all}` : "–");
  const columns = [facts.word, ...["sensitivity", "specificity"].flatMap((word) => compared.map((method) => `${word}, ${title(method.method)}`))];
  const rows = everyone.map((client) => [names[client], ...[1, 0].flatMap((label) => compared.map((method) => share(method.by_class[client][label])))]);
  const table = { id: "classes", data: () => ({ columns, rows }) };
  parent.append(el("h3", {}, "Sensitivity and specificity"), el("p", { class: "about" }, "Sensitivity: cases of class 1 that are recognised. Specificity: cases of class 0."),
    el("div", { class: "scroll-x" }, tableOf(columns, rows, { class: "stack", id: "classes" })),
    el("div", { class: "buttons" }, el("button", { type: "button", onclick: () => saveCsv(table) }, "CSV")));
}
const triple = (estimate) => (estimate ? [estimate.value, estimate.low, estimate.high] : [null, null, null]);
const gainColour = (gain) => colour(gain && gain.low > 0 ? "good" : gain && gain.high < 0 ? "bad" : "muted");
