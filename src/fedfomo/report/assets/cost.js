/** What it took: exploring, downloading, computing. */
function addCost() {
  if (!facts.rounds.length) return;
  const made = section("cost", "Cost", null);
  const grid = el("div", { class: "grid3" });
  made.append(grid);
  const pick = (field) => facts.rounds.map((round) => round[field]);
  const bar = (name, y, shade, format) => ({ type: "bar", name, x: rounds, y, marker: { color: shade }, hovertemplate: `round %{x}: %{y${format}}<extra>${name}</extra>` });
  if (judged.length) {
    const epsilon = pick("epsilon");
    addChart(grid, {
      id: "exploration", title: "Exploration", label: "Pairs that met for the first time, and share of all pairs, over rounds",
      about: `Bars: pairs that met for the first time. Line: share of all pairs that have met.${known(epsilon[0]) ? " Dotted: chance that a model is chosen at random." : ""}`,
      traces: () => [bar("new pairs", pick("new_pairs"), colour("local"), ""),
        { type: "scatter", mode: "lines", name: "pairs met", x: rounds, y: pick("pairs_met"), yaxis: "y2", line: { color: colour("own"), width: 2.4 }, hovertemplate: "round %{x}: %{y:.0%}<extra>pairs met</extra>" },
        ...(known(epsilon[0]) ? [{ type: "scatter", mode: "lines", name: "chance", x: rounds, y: epsilon, yaxis: "y2", line: { color: colour("fedavg"), dash: "dot", width: 2 }, hovertemplate: "round %{x}: %{y:.0%}<extra>at random</extra>" }] : [])],
      layout: () => ({ height: 270, xaxis: { title: { text: "round" } }, yaxis: { rangemode: "tozero" }, yaxis2: { overlaying: "y", side: "right", tickformat: ".0%", range: [0, 1.03], tickmode: "array", tickvals: [0, 0.25, 0.5, 0.75, 1], showgrid: false, automargin: true }, printed: 0.5 }),
      data: () => ({ columns: ["round", "new pairs", "pairs met", "chance"], rows: facts.rounds.map((round) => [round.round, round.new_pairs, round.pairs_met, round.epsilon]) }),
    });
  }
  addChart(grid, {
    id: "traffic", title: "Traffic", label: "Megabytes moved in every round", about: "Megabytes to and from clients in each round.",
    traces: () => [bar("to clients", pick("bytes_down").map((size) => size / 1e6), colour("own"), ":.3g"), bar("to the server", pick("bytes_up").map((size) => size / 1e6), colour("fedavg"), ":.3g")],
    layout: () => ({ height: 270, barmode: "stack", xaxis: { title: { text: "round" } }, yaxis: { title: { text: "MB" } }, printed: 0.5 }),
    data: () => ({ columns: ["round", "models down", "bytes down", "bytes up"], rows: facts.rounds.map((round) => [round.round, round.models_down, round.bytes_down, round.bytes_up]) }),
  });
  if (!facts.rounds.some((round) => known(round.training_seconds))) return;
  addChart(grid, {
    id: "time", title: "Time", label: "Seconds of training, scoring and the rest in every round", about: "Seconds in each round, summed over processes. Scoring: models on validation and test data.",
    traces: () => [bar("train", pick("training_seconds"), colour("own"), ":.3g"), bar("score", pick("scoring_seconds"), colour("fedavg"), ":.3g"), bar("mix and store", pick("other_seconds"), colour("local"), ":.3g")],
    layout: () => ({ height: 270, barmode: "stack", xaxis: { title: { text: "round" } }, yaxis: { title: { text: "seconds" } }, printed: 0.5 }),
    data: () => ({ columns: ["round", "train", "score", "mix and store"], rows: facts.rounds.map((round) => [round.round, round.training_seconds, round.scoring_seconds, round.other_seconds]) }),
  });
}
