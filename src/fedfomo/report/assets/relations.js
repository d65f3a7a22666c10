/** Who gives and who takes, and whose model would serve whom. */
function addGiveAndTake() {
  if (!facts.takes) return;
  const made = section("give", "Who gives, who takes?", "Weights of models given and taken, per round. Below the dotted line a model is used by others more than it uses theirs. Colour is gain.");
  const { gives, takes } = facts;
  const gains = everyone.map((client) => (own && own.gains[client] ? own.gains[client].value : null));
  const reach = Math.max(...gains.filter(known).map(Math.abs), 1e-9);
  const end = Math.max(...[...gives, ...takes].filter(known), 1e-9) * 1.08;
  const amount = (value) => (known(value) ? value.toFixed(2) : "–");
  const chart = addChart(made, {
    id: "give-and-take", label: "Scatter of how much each client gives and takes",
    traces: () => [
      { type: "scatter", mode: "lines", x: [0, end], y: [0, end], line: { color: colour("muted"), dash: "dot", width: 1 }, hoverinfo: "skip", showlegend: false },
      {
        type: "scatter", mode: names.length <= 40 ? "markers+text" : "markers", showlegend: false, x: gives, y: takes, text: names.map((name) => plain(brief(name))), textposition: "top center", textfont: { size: 11, color: colour("muted") },
        marker: {
          size: everyone.map((client) => (client === state.client ? 18 : 12)), color: gains.some(known) ? gains.map((gain) => shown(gain || 0)) : colour("own"), cmin: -shown(reach), cmax: shown(reach), colorscale: diverging(),
          line: { width: everyone.map((client) => (client === state.client ? 2.5 : 1)), color: colour("ink") }, showscale: gains.some(known), colorbar: { title: { text: "gain", side: "top" }, thickness: 10, len: 0.7, outlinewidth: 0 },
        },
        hovertemplate: everyone.map((client) => `${plain(names[client])}: gives ${amount(gives[client])}, takes ${amount(takes[client])}${known(gains[client]) ? `, gain ${figure(gains[client], true)}` : ""}<extra></extra>`),
      },
    ],
    layout: () => ({ height: 420, hovermode: "closest", xaxis: { title: { text: "gives to others, a round" }, rangemode: "tozero" }, yaxis: { title: { text: "takes from others, a round" }, rangemode: "tozero" } }),
    data: () => ({ columns: ["client", "gives", "takes", "gain"], rows: everyone.map((client) => [names[client], gives[client], takes[client], gains[client]]) }),
  });
  onClient(() => draw(chart));
  chart.clicked = (point) => (point.curveNumber === 1 ? point.pointNumber : null);
}

function addCross() {
  if (!facts.cross) return;
  const made = section("cross", "Whose model works where?", `${facts.metric[0].toUpperCase()}${facts.metric.slice(1)}${unit} of each model (row) on each ${facts.word}'s test cases (column). Frames mark own models.`);
  const values = facts.cross.flat().filter(known);
  if (!values.length) made.append(el("p", { class: "note" }, "No model has a finite figure on any target."));
  if (!values.length) return;
  const ownCell = (x, y) => ({ type: "rect", x0: x - 0.42, x1: x + 0.42, y0: y - 0.42, y1: y + 0.42, line: { color: colour("surface"), width: names.length > 60 ? 1 : 2 } });
  const [least, most] = [Math.min(...values), Math.max(...values)];
  const cellText = (model, target) => ({
    x: facts.receivers.indexOf(target), y: facts.givers.indexOf(model), showarrow: false, text: known(facts.cross[model][target]) ? figure(facts.cross[model][target]).replace(/\.\d$/, facts.is_share ? "" : "$&") : "",
    font: { size: names.length > 8 ? 10 : 12, color: colour(facts.cross[model][target] - least > (most - least) / 2 ? "surface" : "ink") },
  });
  const written = names.length <= 12; // wide enough for the figures
  const chart = addChart(made, {
    id: "cross", label: "Matrix of final models and clients' targets",
    traces: () => [{
      type: "heatmap", z: facts.givers.map((model) => facts.receivers.map((target) => shown(facts.cross[model][target]))), colorscale: sequential(), zmin: shown(least), zmax: shown(most), xgap: names.length > 60 ? 0 : 1, ygap: names.length > 60 ? 0 : 1,
      showlegend: false, colorbar: { thickness: 10, len: 0.6, outlinewidth: 0 }, text: facts.givers.map((model) => facts.receivers.map((target) => `model of ${plain(names[model])} on the target of ${plain(names[target])}: ${figure(facts.cross[model][target])}${unit}`)), hovertemplate: "%{text}<extra></extra>",
    }],
    layout: () => {
      const ticks = (order) => ({ tickvals: order.map((_, k) => k), ticktext: order.map((client) => plain(brief(names[client]))), showgrid: false, zeroline: false, tickfont: { size: names.length > 30 ? 9 : 11 }, showticklabels: names.length <= 60 });
      const column = facts.receivers.indexOf(state.client);
      return {
        height: Math.max(300, Math.min(680, (printing ? 680 : chart.plot.clientWidth || 600) * 0.85, 150 + 52 * names.length)), margin: { l: 10, r: 10, t: 30, b: 10 },
        xaxis: { ...ticks(facts.receivers), side: "top", title: { text: "target of" }, tickangle: -90 }, yaxis: { ...ticks(facts.givers), autorange: "reversed", title: { text: "model of" } },
        annotations: written ? everyone.flatMap((model) => everyone.map((target) => cellText(model, target))) : [],
        shapes: [...everyone.map((client) => ownCell(facts.receivers.indexOf(client), facts.givers.indexOf(client))), { type: "rect", x0: column - 0.5, x1: column + 0.5, y0: -0.5, y1: names.length - 0.5, line: { color: colour("ink"), width: 1.5 } }],
      };
    },
    data: () => ({ columns: ["model of", "target of", facts.metric], rows: everyone.flatMap((model) => everyone.map((target) => [names[model], names[target], facts.cross[model][target]])) }),
  });
  onClient(() => draw(chart));
  chart.clicked = (point) => facts.receivers[point.x];
}
