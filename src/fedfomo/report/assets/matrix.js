/** The receiver × giver matrix, round by round. */
const judged = facts.rounds.filter((round) => round.judgements.length);
const onlyAtEnd = !judged.length && Boolean(facts.affinity && facts.rounds.length); // nobody but the sites knows the rounds before
const moments = onlyAtEnd ? facts.rounds.slice(-1) : judged;
const QUANTITIES = {
  taken: ["Learned from", "Of what a receiver took from others up to this round, each giver's share."],
  utility: ["Utility", "Loss improvement by a giver's model, divided by its distance, as the receiver measured it in this round. Blue lowers the loss, orange raises it."],
  weight: ["Weights", "Share of each model in the receiver's model after this round. The diagonal is its own."],
  affinity: ["Affinity", "Sum of the utilities up to this round. It decides which models are sent next."],
};

function matrixOf(quantity, step) {
  const size = names.length;
  if (quantity === "taken") return takenUpTo(step);
  const cells = everyone.map(() => new Array(size).fill(null));
  const upTo = quantity === "affinity" ? moments.slice(0, step + 1) : [moments[step]];
  if (quantity === "affinity" && (onlyAtEnd || facts.is_thinned)) return facts.affinity.map((row, r) => row.map((value, g) => (r === g ? null : value)));
  for (const round of upTo) {
    for (const judgement of round.judgements) {
      const values = quantity === "weight" ? judgement.weights : judgement.utilities;
      judgement.givers.forEach((giver, k) => {
        if (!known(values[k]) || (quantity === "affinity" && giver === judgement.receiver)) return;
        const before = quantity === "affinity" ? cells[judgement.receiver][giver] || 0 : 0;
        cells[judgement.receiver][giver] = before + values[k];
      });
    }
  }
  return cells;
}

/** What receivers took from others so far, as shares; at the end as the sentences have it. */
function takenUpTo(step) {
  const isEnd = step === moments.length - 1 && facts.mixing;
  const cells = everyone.map((receiver) => (isEnd ? [...facts.mixing[receiver]] : new Array(names.length).fill(0)));
  if (!isEnd) for (const round of moments.slice(0, step + 1)) for (const { receiver, givers, weights } of round.judgements) givers.forEach((giver, k) => { cells[receiver][giver] += weights[k] || 0; });
  return cells.map((row, receiver) => {
    const total = sum(row.filter((value, giver) => giver !== receiver && known(value)));
    return row.map((value, giver) => (giver === receiver || !total || !known(value) ? null : value / total));
  });
}

/** The value that is drawn in full colour: nearly the largest of all rounds, so that one outlier does not hide the rest. */
function limitOf(quantity) {
  if (quantity === "weight" || quantity === "taken") return 1;
  const steps = quantity === "affinity" ? [moments.length - 1] : moments.map((_, step) => step);
  const sizes = steps.flatMap((step) => matrixOf(quantity, step).flatMap((row, r) => row.filter((value, g) => known(value) && value !== 0 && r !== g).map(Math.abs)));
  sizes.sort((a, b) => a - b);
  return sizes[Math.floor(0.97 * (sizes.length - 1))] || 1;
}

function addMatrix() {
  if (moments.length && names.length > 1000) {
    section("matrix", "Who learned from whom?", `${names.length} ${facts.word}s are too many for a matrix. See one ${facts.word} below.`);
    return;
  }
  if (!moments.length) {
    if (!facts.is_finished) section("matrix", "Who learned from whom?", `${title(facts.method)} has no record of it yet.`);
    return;
  }
  const made = section("matrix", "Who learned from whom?", `Each row receives, each column gives.${facts.clients[0].group !== null ? " Coloured margins are the true groups, which no method was told." : ""}`);
  const current = { quantity: onlyAtEnd ? "affinity" : "taken", step: moments.length - 1, timer: null };
  const limits = {};
  const limit = () => (limits[current.quantity] ??= limitOf(current.quantity));
  const explanation = el("p", { class: "about" });
  const counter = el("output", { id: "round-shown", for: "round" });
  const slider = el("input", { type: "range", id: "round", min: 0, max: moments.length - 1, step: 1, value: current.step, oninput: () => { stop(); go(Number(slider.value)); } });
  const play = el("button", { type: "button", id: "play", onclick: () => (current.timer ? stop() : start()) }, "▶ Play");
  const offered = Object.entries(QUANTITIES).filter(([quantity]) => (quantity === "affinity" ? facts.affinity || !facts.is_thinned : !onlyAtEnd));
  const choices = el("fieldset", { class: "segmented" }, el("legend", {}, "Quantity"), offered.map(([quantity, [word]]) =>
    el("label", {}, el("input", { type: "radio", name: "quantity", value: quantity, checked: quantity === current.quantity, onchange: () => { current.quantity = quantity; refresh(); } }), word)));
  const groups = [...new Set(facts.clients.flatMap((client) => [client.group, client.target]))].filter(known).sort((a, b) => a - b);
  const groupColour = (group) => GROUPS[group % GROUPS.length];
  made.append(el("div", { class: "controls" }, choices, el("label", { for: "round" }, "Round", slider), counter, play), explanation);
  const chart = addChart(made, {
    id: "matrix", label: "Matrix of receivers and givers. Left and right arrow keys change the round, up and down the receiver.",
    traces: () => [heat(), ...(groups.length ? margins() : [])],
    layout: () => {
      const width = printing ? 680 : chart.plot.clientWidth || 600;
      const ticks = (order) => ({ tickvals: order.map((_, k) => k), ticktext: order.map((client) => plain(brief(names[client]))), showgrid: false, zeroline: false, ticks: "", tickfont: { size: names.length > 30 ? 9 : 11 }, showticklabels: names.length <= 60 });
      const strip = groups.length ? 0.03 : 0;
      const row = facts.receivers.indexOf(state.client);
      return {
        height: Math.max(300, Math.min(760, width * 0.92, 150 + 52 * names.length)), hovermode: "closest",
        margin: { l: 10, r: 10, t: 30, b: 10 },
        xaxis: { ...ticks(facts.givers), domain: [strip + (strip && 0.008), 1], range: [-0.5, names.length - 0.5], side: "top", title: { text: "giver" }, tickangle: -90 },
        yaxis: { ...ticks(facts.receivers), domain: [0, 1 - strip - (strip && 0.008)], range: [names.length - 0.5, -0.5], title: { text: "receiver" }, anchor: strip ? "x2" : "x" },
        ...(strip ? {
          xaxis: { ...ticks(facts.givers), domain: [strip + 0.008, 1], range: [-0.5, names.length - 0.5], side: "top", title: { text: "giver" }, tickangle: -90, anchor: "y2" },
          xaxis2: { domain: [0, strip], range: [-0.5, 0.5], showticklabels: false, ticks: "", showgrid: false, zeroline: false },
          yaxis2: { domain: [1 - strip, 1], range: [-0.5, 0.5], showticklabels: false, ticks: "", showgrid: false, zeroline: false },
        } : {}),
        shapes: row < 0 ? [] : [{ type: "rect", x0: -0.5, x1: names.length - 0.5, y0: row - 0.5, y1: row + 0.5, line: { color: colour("ink"), width: 1.5 } }],
      };
    },
    data: () => {
      const cells = matrixOf(current.quantity, current.step);
      return { columns: ["round", "quantity", "receiver", "giver", "value"], rows: everyone.flatMap((r) => everyone.filter((g) => known(cells[r][g])).map((g) => [moments[current.step].round, current.quantity, names[r], names[g], cells[r][g]])) };
    },
  });
  chart.plot.tabIndex = 0;
  chart.plot.addEventListener("keydown", (event) => {
    const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    const move = { ArrowDown: 1, ArrowUp: -1 }[event.key];
    if (step) go(Math.max(0, Math.min(moments.length - 1, current.step + step)));
    if (move) selectClient(facts.receivers[Math.max(0, Math.min(names.length - 1, facts.receivers.indexOf(state.client) + move))]);
    if (step || move) event.preventDefault();
  });
  if (groups.length) made.append(el("ul", { class: "legend" }, groups.map((group) => {
    const chip = el("i");
    chip.style.background = groupColour(group);
    return el("li", {}, chip, `true group ${group}`);
  })));
  function heat() {
    const cells = matrixOf(current.quantity, current.step);
    const signed = current.quantity === "utility" || current.quantity === "affinity";
    return {
      type: "heatmap", z: facts.receivers.map((r) => facts.givers.map((g) => (signed ? height(cells[r][g]) : cells[r][g]))), zmin: signed ? -1 : 0, zmax: 1,
      colorscale: signed ? diverging() : sequential(), xgap: names.length > 60 ? 0 : 1, ygap: names.length > 60 ? 0 : 1, hoverongaps: false,
      colorbar: { thickness: 10, len: 0.6, outlinewidth: 0, tickfont: { size: 11 }, ...(signed ? { tickvals: [-1, -0.5, 0, 0.5, 1], ticktext: [-1, -0.25, 0, 0.25, 1].map((part) => String(Number((part * limit()).toPrecision(2)))) } : { tickformat: ".0%" }) },
      ...(names.length > 200 ? { hoverinfo: "skip" } : { text: facts.receivers.map((r) => facts.givers.map((g) => (known(cells[r][g]) ? `${plain(names[r])} ← ${r === g ? "its own model" : plain(names[g])}: ${Number(cells[r][g].toPrecision(3))}` : ""))), hovertemplate: "%{text}<extra></extra>" }),
    };
  }
  /** Colours follow the square root, so that small help is seen beside great harm. */
  function height(value) {
    return known(value) ? Math.sign(value) * Math.sqrt(Math.min(1, Math.abs(value) / limit())) : null;
  }
  function margins() {
    const scale = groups.flatMap((group, k) => [[k / groups.length, groupColour(group)], [(k + 1) / groups.length, groupColour(group)]]);
    const common = { type: "heatmap", showscale: false, colorscale: scale, zmin: -0.5, zmax: groups.length - 0.5, hovertemplate: "%{text}<extra></extra>", ygap: 1, xgap: 1 };
    const index = (group) => groups.indexOf(group);
    const words = (client, target) => `${plain(names[client])}: ${target ? "aims at" : "holds"} group ${target ? facts.clients[client].target : facts.clients[client].group}`;
    return [
      { ...common, xaxis: "x2", yaxis: "y", x: [0], z: facts.receivers.map((c) => [index(facts.clients[c].target)]), text: facts.receivers.map((c) => [words(c, true)]) },
      { ...common, xaxis: "x", yaxis: "y2", y: [0], z: [facts.givers.map((c) => index(facts.clients[c].group))], text: [facts.givers.map((c) => words(c, false))] },
    ];
  }
  function go(step) {
    current.step = step;
    slider.value = step;
    refresh();
  }
  function refresh() {
    const round = moments[current.step].round;
    counter.textContent = `${round} of ${facts.rounds_planned}`;
    slider.setAttribute("aria-valuetext", `round ${round}`);
    explanation.textContent = QUANTITIES[current.quantity][1] + (facts.is_thinned ? " Some rounds of this long run are left out." : "");
    draw(chart);
    remember();
  }
  function start() {
    if (current.step === moments.length - 1) go(0);
    play.textContent = "❚❚ Pause";
    current.timer = setInterval(() => (current.step < moments.length - 1 ? go(current.step + 1) : stop()), 600);
  }
  function stop() {
    clearInterval(current.timer);
    current.timer = null;
    play.textContent = "▶ Play";
  }
  onClient(() => draw(chart));
  chart.clicked = (point) => (point.curveNumber < 2 ? facts.receivers[point.y] : null);
  refresh();
}
const brief = (name) => name.replace(/^client /, "");
