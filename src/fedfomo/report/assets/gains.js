/** A dumbbell for each client: where it stands alone, under FedAvg, and under the method. */
function addGains() {
  if (!own) return;
  const made = section("gains", "Does federating pay for me?", local
    ? `Each row is one client, the greatest gain on top. The bar runs from training alone to ${title(facts.method)}: blue to the right is gain, orange to the left is loss. Thin lines are 95 % intervals from the client's test examples; where they are wide, the test set is small.`
    : `Each row is one client. Thin lines are 95 % intervals from the client's test examples.`);
  const ranked = gainOrder().filter((client) => own.scores[client]);
  const ends = 100;
  const order = ranked.length > 2 * ends ? [...ranked.slice(0, ends), ...ranked.slice(-ends)] : ranked;
  if (order.length < ranked.length) made.append(el("p", { class: "note" }, `Of ${ranked.length} clients, the ${ends} that gained most and the ${ends} that gained least.`));
  const drawn = [local, fedavg, own].filter((method, k, all) => method && all.indexOf(method) === k);
  const place = new Map(order.map((client, row) => [client, row]));
  const chart = addChart(made, {
    id: "gains", scrolls: true,
    label: `Dumbbell chart of ${order.length} clients: ${drawn.map((method) => title(method.method)).join(", ")}`,
    traces: () => [...(local && own !== local ? [bars(true), bars(false)] : []), ...drawn.map(intervalsOf), ...drawn.map(dots)],
    layout: () => ({
      height: 90 + Math.max(order.length, 3) * 26, hovermode: "closest",
      margin: { l: 10, r: isRoomy() ? 164 : 60, t: 10, b: 40 }, legend: { orientation: "h", y: 1, yanchor: "bottom", x: 0 },
      xaxis: { title: { text: `${facts.metric}${unit}` }, side: "bottom", automargin: true },
      yaxis: { tickvals: order.map((_, row) => row), ticktext: order.map((client) => plain(names[client])), range: [order.length - 0.4, -0.6], showgrid: false, zeroline: false },
      shapes: place.has(state.client) ? [{ type: "rect", xref: "paper", x0: 0, x1: 1, y0: place.get(state.client) - 0.5, y1: place.get(state.client) + 0.5, fillcolor: colour("sunk"), line: { width: 0 }, layer: "below" }] : [],
      annotations: order.filter((client) => own.gains[client]).map((client) => ({
        xref: "paper", x: 1.01, xanchor: "left", y: place.get(client), showarrow: false, text: isRoomy() ? withInterval(own.gains[client]) : figure(own.gains[client].value, true),
        font: { size: 12, color: gainColour(own.gains[client]) },
      })),
    }),
    data: () => ({
      columns: ["client", ...drawn.flatMap((method) => [method.method, `${method.method} low`, `${method.method} high`]), "gain", "gain low", "gain high"],
      rows: order.map((client) => [names[client], ...drawn.flatMap((method) => triple(method.scores[client])), ...triple(own.gains[client])]),
    }),
  });
  /** On a telephone, intervals would leave no room for the chart: they are in the sentences above it. */
  function isRoomy() {
    return printing || (chart.plot.clientWidth || 600) > 480;
  }
  function bars(up) {
    const chosen = order.filter((client) => own.gains[client] && own.gains[client].value >= 0 === up);
    return {
      type: "scatter", mode: "lines", hoverinfo: "skip", showlegend: false, line: { width: 7, color: colour(up ? "high" : "low") }, opacity: 0.35,
      x: chosen.flatMap((client) => [shown(endOf(local.scores[client], "value")), shown(endOf(own.scores[client], "value")), null]),
      y: chosen.flatMap((client) => [place.get(client), place.get(client), null]),
    };
  }
  function intervalsOf(method, k) {
    const shift = drawn.length > 1 ? -0.22 + (0.44 * k) / (drawn.length - 1) : 0;
    return {
      type: "scatter", mode: "lines", hoverinfo: "skip", showlegend: false, line: { width: 1.4, color: methodColour(method.method) }, opacity: 0.55,
      x: order.flatMap((client) => [shown(endOf(method.scores[client], "low")), shown(endOf(method.scores[client], "high")), null]),
      y: order.flatMap((client) => [place.get(client) + shift, place.get(client) + shift, null]),
    };
  }
  function dots(method) {
    return {
      type: "scatter", mode: "markers", name: title(method.method),
      marker: { size: method === own ? 11 : 9, color: methodColour(method.method), symbol: method === local ? "circle-open" : method === fedavg ? "diamond" : "circle", line: { width: method === local ? 2 : 0, color: methodColour(method.method) } },
      x: order.map((client) => shown(endOf(method.scores[client], "value"))), y: order.map((client) => place.get(client)),
      text: order.map((client) => {
        const [value, low, high] = triple(method.scores[client]).map((end) => figure(end));
        return `${plain(names[client])}: ${title(method.method)} ${value}${unit} [${low}, ${high}]`;
      }),
      hovertemplate: "%{text}<extra></extra>",
    };
  }
  onClient(() => draw(chart));
  chart.clicked = (point) => order[Math.round(point.y)];
}
const triple = (estimate) => (estimate ? [estimate.value, estimate.low, estimate.high] : [null, null, null]);
const gainColour = (gain) => colour(gain.low > 0 ? "good" : gain.high < 0 ? "bad" : "muted");

