/** One client: from whom it learns over the rounds, how it does, and what it holds against what it wants. */
const SHADES = ["#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00"];
const rounds = facts.rounds.map((round) => round.round);

function flowOf(client) {
  const byGiver = new Map();
  judged.forEach((round, step) => {
    const judgement = round.judgements.find((one) => one.receiver === client);
    if (!judgement) return;
    judgement.givers.forEach((giver, k) => {
      if (!byGiver.has(giver)) byGiver.set(giver, new Array(judged.length).fill(0));
      byGiver.get(giver)[step] = judgement.weights[k];
    });
  });
  return byGiver;
}

function addClient() {
  const made = section("client", `One ${facts.word}`, `Choose a ${facts.word} above, or click on it in any chart.`);
  const heading = document.getElementById("client-title");
  const sentence = el("p", {});
  made.append(sentence);
  const grid = el("div", { class: "grid3" });
  if (judged.length) addFlow(made);
  made.append(grid);
  addCourse(grid);
  if (facts.curves.validation_reference.length) addValidation(grid);
  if (facts.clients.some((client) => client.train_labels)) addLabels(grid);
  onClient((client) => {
    heading.textContent = names[client];
    const { train, validation, test } = facts.clients[client];
    const holds = known(train) ? `${train} training, ${validation} validation and ${test} test examples` : `${test} test examples`;
    const step = facts.next_steps[client] ? ` ${facts.next_steps[client].text}` : "";
    sentence.textContent = `${facts.sentences[client] ? facts.sentences[client] + step : ""} It has ${holds}.`;
    charts.filter((chart) => chart.ofClient).forEach(draw);
  });
}

function addFlow(parent) {
  addChart(parent, {
    id: "flow", ofClient: true, title: "From whom it learns", label: "Stacked bars of mixing weights by giver over rounds",
    about: "Weights of the models that it mixed in each round; grey is its own. No bar: nothing lowered its loss, and its model stayed the same.",
    has: () => flowOf(state.client).size > 0,
    traces: () => {
      const flow = flowOf(state.client);
      const others = [...flow.keys()].filter((giver) => giver !== state.client).sort((a, b) => sum(flow.get(b)) - sum(flow.get(a)));
      const bar = (name, y, shade) => ({ type: "bar", name, x: judged.map((round) => round.round), y, marker: { color: shade, line: { width: 0 } }, hovertemplate: `round %{x}: ${name} %{y:.0%}<extra></extra>` });
      const rest = others.slice(SHADES.length);
      return [
        ...others.slice(0, SHADES.length).map((giver, k) => bar(plain(names[giver]), flow.get(giver), SHADES[k])),
        ...(rest.length ? [bar("others", judged.map((_, step) => sum(rest.map((giver) => flow.get(giver)[step]))), colour("muted"))] : []),
        ...(flow.has(state.client) ? [bar("its own", flow.get(state.client), colour("line"))] : []),
      ];
    },
    layout: () => ({ height: 330, barmode: "stack", bargap: 0.12, xaxis: { title: { text: "round" } }, yaxis: { tickformat: ".0%", range: [0, 1.02] } }),
    data: () => ({ columns: ["round", "receiver", "giver", "weight"], rows: [...flowOf(state.client)].flatMap(([giver, weights]) => weights.map((weight, step) => [judged[step].round, names[state.client], names[giver], weight])) }),
  });
}

const course = (rows) => rows.map((row) => row[state.client]);
const line = (name, y, shade, dash = "solid") => ({ type: "scatter", mode: "lines+markers", name, x: facts.curves.rounds, y, connectgaps: true, line: { color: shade, width: 2.2, dash }, marker: { size: 5 }, hovertemplate: `round %{x}: %{y:.4g}<extra>${name}</extra>` });

function addCourse(parent) {
  addChart(parent, {
    id: "test-course", ofClient: true, title: "On its test data", label: "Test curves over rounds",
    about: "After each federated update, and after the local training that follows it. Dashed: training alone, at its end.",
    has: () => course(facts.curves.test_updated).some(known),
    traces: () => [
      line("after update", course(facts.curves.test_updated).map(shown), colour("own")),
      line("after training", course(facts.curves.test_trained).map(shown), colour("fedavg"), "dot"),
      ...(local && local.scores[state.client] ? [{ type: "scatter", mode: "lines", name: "training alone", x: [facts.curves.rounds[0], facts.curves.rounds.at(-1)], y: [1, 1].map(() => shown(local.scores[state.client].value)), line: { color: colour("local"), dash: "dash" }, hoverinfo: "skip" }] : []),
    ],
    layout: () => ({ height: 290, xaxis: { title: { text: "round" } }, yaxis: { title: { text: `${facts.metric}${unit}` } }, printed: 0.5 }),
    data: () => ({ columns: ["round", "client", "after update", "after training"], rows: facts.curves.rounds.map((round, k) => [round, names[state.client], course(facts.curves.test_updated)[k], course(facts.curves.test_trained)[k]]) }),
  });
}

function addValidation(parent) {
  addChart(parent, {
    id: "validation-course", ofClient: true, title: "On its validation data", label: "Validation losses over rounds",
    about: "Loss of its last mixture, and of the same after training. Lower is better.",
    has: () => course(facts.curves.validation_reference).some(known),
    traces: () => [
      line("as mixed last", course(facts.curves.validation_reference), colour("own")),
      line("as trained last", course(facts.curves.validation_own), colour("fedavg"), "dot"),
    ],
    layout: () => ({ height: 290, xaxis: { title: { text: "round" } }, yaxis: { title: { text: "loss" }, rangemode: "tozero" }, printed: 0.5 }),
    data: () => ({ columns: ["round", "client", "loss as mixed", "loss as trained"], rows: facts.curves.rounds.map((round, k) => [round, names[state.client], course(facts.curves.validation_reference)[k], course(facts.curves.validation_own)[k]]) }),
  });
}

function addLabels(parent) {
  const shares = (counts) => (counts && sum(counts) ? counts.map((count) => count / sum(counts)) : []);
  addChart(parent, {
    id: "labels", ofClient: true, title: "Labels: training and target", label: "Bars of label shares, training beside target",
    about: "Share of each label in its training data and in its target data.",
    has: () => known(facts.clients[state.client].train_labels),
    traces: () => [["trains on", "train_labels", "local"], ["target", "target_labels", "own"]].map(([name, part, shade]) => ({
      type: "bar", name, x: facts.label_names.map(plain), y: shares(facts.clients[state.client][part]), marker: { color: colour(shade) }, hovertemplate: `label %{x}: %{y:.0%}<extra>${name}</extra>`,
    })),
    layout: () => ({ height: 290, bargap: 0.25, xaxis: { title: { text: "label" }, type: "category" }, yaxis: { tickformat: ".0%" }, printed: 0.5 }),
    data: () => ({ columns: ["client", "label", "train", "target"], rows: facts.label_names.map((label, k) => [names[state.client], label, (facts.clients[state.client].train_labels || [])[k], (facts.clients[state.client].target_labels || [])[k]]) }),
  });
}
